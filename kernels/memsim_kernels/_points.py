"""From a command's options to the points it runs: those that were asked for, or its own grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from memsim._cli_parse import Line
from memsim._option_list import PROBLEM, RUN, TILE, Option
from memsim._options import Faults, check_value, in_option_names, read_request
from memsim.api import prepare
from memsim.errors import MemsimError
from memsim.units import quoted
from memsim_kernels._grids import Point
from memsim_kernels.calls import LARGEST_HEAD_DIM

ALGORITHMS = ("flash", "naive")
MOST_POINTS = 10_000
VARY = Option(
    "vary", "Grid", "An option of the problem or the tile and its values; may be repeated.", "AXIS=V1,V2,…",
    repeatable=True,
)  # fmt: skip
ALGORITHM = Option("algorithm", "", f"{' or '.join(ALGORITHMS)}; both if left out.")
_LSE = RUN["lse"]
_ASKED: Mapping[str, Option] = {**PROBLEM, **TILE, "lse": _LSE}
POINT_OPTIONS = (VARY, *_ASKED.values())
"""The options that say which points a command runs."""


def points_of(line: Line, gpu: str, grid: Iterable[Point]) -> list[Point]:
    """The points of a command line; those of the grid if it names no problem and no tile.

    What fits together in no way is left out of a product of axes, and refused if nothing else is there.
    """
    faults = Faults(line.faults)
    if line.positional is not None and line.positional not in ALGORITHMS:
        faults.append(f"there are no kernels of {quoted(line.positional)}: give {' or '.join(ALGORITHMS)}.")
    algorithms = ALGORITHMS if line.positional is None else (line.positional,)
    options = {name: text for name, text in line.options.items() if name in _ASKED}
    axes = _axes(line, options, faults)
    faults.raise_any()
    if not names_points(line):
        return [point for point in grid if point.algorithm in algorithms]
    found: dict[Point, None] = {}
    for algorithm in algorithms:
        for values in itertools.product(*axes.values()):
            given = options | dict(zip(axes, values, strict=True))
            try:
                found[_point(algorithm, given, gpu)] = None
            except MemsimError as error:
                faults += map(in_option_names, error.faults)
    if not found or (faults and not axes and len(algorithms) == 1):
        faults.raise_any()
    return list(found)


def names_points(line: Line) -> bool:
    """Whether a command line says which points to run, and so not a grid."""
    return any(name in _ASKED for name in line.options) or bool(line.repeated["vary"])


def _axes(line: Line, options: Mapping[str, str], faults: Faults) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for text in line.repeated["vary"]:
        name, equals, values = text.partition("=")
        if not equals or name not in _ASKED:
            faults.append(
                f"--vary is {quoted(text)}: give AXIS=V1,V2 with an option of the problem or the tile, such as "
                "seq-len=1Ki,2Ki."
            )
        elif name in axes or name in options:
            faults.append(f"{name} is given twice: give all its values at once.")
        else:
            axes[name] = values.split(",")
            for value in axes[name]:
                faults.attempt(check_value, name, value)
    points = math.prod(map(len, axes.values()))
    if points > MOST_POINTS:
        faults.append(f"the grid has {points} points; take fewer values: at most {MOST_POINTS} points.")
    return axes


def _point(algorithm: str, options: Mapping[str, str], gpu: str) -> Point:
    given = dict(options)
    if algorithm == "naive":
        # As in a comparison: these are flash's.
        given.pop("load-path", None)
        given.pop("grid-order", None)
    request = read_request(given | {"gpu": gpu}, {}, algorithm=algorithm, count_only=True)
    ready = prepare(algorithm, request.problem, request.gpu, request.tile or None, lse=request.lse)
    if request.problem.head_dim > LARGEST_HEAD_DIM:
        raise MemsimError(f"head-dim is {request.problem.head_dim}; the kernels take up to {LARGEST_HEAD_DIM}.")
    return Point(algorithm, request.problem, ready.tile, request.lse)
