"""The options of commands that simulate a request, and the GPU fields among them."""

from __future__ import annotations

from collections.abc import Iterator

from memsim._cli_parse import Line
from memsim._option_list import AXES, MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults
from memsim.gpu import SHORT_OPTIONS
from memsim.units import quoted

JSON = Option("json", "Output", "Print JSON, alone on standard output.", flag=True)
_SET = Option(
    "set", "GPU", "Any other field of the GPU, such as sm.count=66; may be repeated.", "KEY=VALUE", repeatable=True
)
_COUNT_ONLY = Option(
    "count-only", "Run", "Count bytes and work exactly, and leave the replay and its times out.", flag=True
)
REQUEST = (*PROBLEM.values(), *TILE.values(), *MACHINE.values(), _SET, *RUN.values(), _COUNT_ONLY)


def gpu_fields(line: Line, faults: Faults) -> dict[str, str]:
    """The GPU's fields that --set gives, by dotted key."""
    fields: dict[str, str] = {}
    for text in line.repeated["set"]:
        key, equals, value = text.partition("=")
        if not equals or not key:
            faults.append(f"--set is {quoted(text)}: give KEY=VALUE, such as sm.count=66.")
        elif key in fields or key in line.options.keys() & SHORT_OPTIONS.keys():
            faults.append(f"{quoted(key)} is set twice: give it once.")
        else:
            fields[key] = value
    return fields


def varied(line: Line, faults: Faults, example: str, axis: str = "AXIS") -> Iterator[tuple[str, str]]:
    """(name, values) of each --vary; one that is not written as such is a fault, whose sentence has the example."""
    for text in line.repeated["vary"]:
        name, equals, values = text.partition("=")
        if equals and name:
            yield name, values
        else:
            faults.append(f"--vary is {quoted(text)}: give {axis}=V1,V2, such as {example}.")


def request_options(line: Line) -> dict[str, str]:
    """The options of a line that are of problem, tile, machine or run."""
    return {name: text for name, text in line.options.items() if name in AXES}
