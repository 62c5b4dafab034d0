"""Numbers in prose: each must be the one that a command of its page printed, or follow from its JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from memsim_docs.runs import PageFault

UNITS: Mapping[str, float] = {
    "": 1, "×": 1, "times": 1, "%": 0.01, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10,
    "MiB": 2**20, "GiB": 2**30, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "GB/s": 1e9, "TB/s": 1e12,
    "TFLOP/s": 1e12, "GFLOP": 1e9, "TFLOP": 1e12, "GHz": 1e9,
}  # fmt: skip
NUMBER = re.compile(r"(?<![\w.,-])\d")
"""Where a number begins in prose: not inside a name such as float16 or L2."""


def split(text: str) -> tuple[str, str | None]:
    """What a quote says and what it is held against: "537 MB <HBM total>" has both."""
    found = re.fullmatch(r"\s*(.*?)\s*<(.*)>\s*", text, re.DOTALL)
    return (found[1], " ".join(found[2].split())) if found else (text.strip(), None)


def check_printed(said: str, where: str, output: str) -> None:
    """Raise unless `said` stands as a whole in a line of the output that has `where` in it.

    `where` may end with "@ heading": `said` must then stand in the column of that heading, right under its end.
    """
    row, at, heading = (part.strip() for part in where.partition("@"))
    lines = output.splitlines()
    rows = [(number, line) for number, line in enumerate(lines) if row in line]
    if not rows:
        raise PageFault(f"{said!r} is quoted from a line with {row!r}, and no line that was printed has that.")
    whole = re.compile(rf"(?<![\w.,]){re.escape(said)}(?!\w|[.,]\d)")
    for number, line in rows:
        ends = {match.end() for match in whole.finditer(line)}
        if at:
            headings = (re.finditer(rf"(?<!\S){re.escape(heading)}(?!\S)", above) for above in lines[:number])
            ends &= {match.end() for found in headings for match in found}
        if ends:
            return
    column = f" under {heading!r}" if at else ""
    raise PageFault(f"{said!r} is not what was printed{column}: {' / '.join(line.strip() for _, line in rows[:4])}")


def check_computed(said: str, expression: str, data: Callable[[str], Any]) -> None:
    """Raise unless the expression over the JSON of a page's commands, rounded as `said` is, reads the same."""
    found = re.fullmatch(r"([\d,]+(?:\.(\d+))?)\s*(\S*)", said)
    if not found or found[3] not in UNITS:
        raise PageFault(f"{said!r} is no number with one of the units {', '.join(UNITS)}.")
    value = float(eval(expression, {"__builtins__": {}}, _Names(data))) / UNITS[found[3]]
    shown = f"{value:,.{len(found[2] or '')}f}"
    if shown.replace(",", "") != found[1].replace(",", ""):
        raise PageFault(f"{said!r} is said to be {expression}, which is {shown} {found[3]}".rstrip() + ".")


class _Names(dict[str, Any]):
    """What an expression may name: the page's commands, and a few functions."""

    def __init__(self, data: Callable[[str], Any]) -> None:
        super().__init__(min=min, max=max, sum=sum, ceil=math.ceil, sqrt=math.sqrt)
        self._data = data

    def __missing__(self, name: str) -> Any:
        return _Value(self._data(name))


class _Value:
    """JSON with its keys as attributes; of a list, the element whose name it is, or the one at an index."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        value = self._value
        if isinstance(value, list):
            found = [element for element in value if isinstance(element, dict) and element.get("name") == name]
            if len(found) != 1:
                raise PageFault(f"{len(found)} elements are called {name!r}.")
            return _wrapped(found[0])
        if name not in value:
            raise PageFault(f"the JSON has no {name!r} here, but {', '.join(value)}.")
        return _wrapped(value[name])

    def __getitem__(self, index: int | str) -> Any:
        return _wrapped(self._value[index])


def _wrapped(value: Any) -> Any:
    return _Value(value) if isinstance(value, dict | list) else value


def unquoted(text: str) -> str | None:
    """The words around the first number in a piece of prose, or None if there is none."""
    found = NUMBER.search(text)
    return None if found is None else " ".join(text[max(0, found.start() - 30) : found.end() + 30].split())
