"""Sweeps: one algorithm, or several, over the product of some options' values, one typed row a point."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TextIO

from memsim._gpu_files import keys, pattern_of, suggestion
from memsim._options import AXES, Faults, Machines, Option, check_algorithm, check_value, one_of, read_request
from memsim.api import DEFAULT_GPU
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.gpu import SHORT_OPTIONS
from memsim.result import Result
from memsim.units import quoted

SWEEP_SCHEMA = "memsim.sweep/1"
MOST_POINTS = 100_000
ALGORITHM = Option("algorithm", "Run", "The algorithm.")


@dataclass(frozen=True)
class SweepRow:
    """One point. `status` is "ok", or why there are no figures: "does-not-fit" (the tile), "out-of-memory" (HBM) or
    "refused" (values that do not go together), with the sentence in `reason`.

    Of an algorithm with several launches `blocks_per_sm` is the smallest and `sram_bytes` (of a block) the largest;
    the rest are its totals. Figures of time are None when only counted.
    """

    point: dict[str, str]
    status: str
    reason: str = ""
    blocks_per_sm: int | None = None
    sram_bytes: int | None = None
    sram_fill_bytes: int | None = None
    sram_store_bytes: int | None = None
    hbm_bytes: int | None = None
    flops: int | None = None
    time_s: float | None = None
    bound: str | None = None
    waiting_for_memory: float | None = None
    over_compulsory: float | None = None


COLUMNS = tuple(field.name for field in fields(SweepRow))[1:]
"""The columns of a sweep's CSV after those of its axes."""


@dataclass(frozen=True)
class SweepTable:
    """The rows of a sweep, in the order of its axes' product, the last axis fastest.

    `options` are the values that all points share. `points` is how many rows a finished sweep has.
    """

    options: dict[str, str]
    axes: dict[str, tuple[str, ...]]
    points: int
    rows: tuple[SweepRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON-ready data, with its schema first."""
        axes = [{"name": name, "values": list(values)} for name, values in self.axes.items()]
        return {
            "schema": SWEEP_SCHEMA,
            "options": self.options,
            "axes": axes,
            "points": self.points,
            "rows": [asdict(row) for row in self.rows],
        }

    def write_csv(self, file: TextIO) -> None:
        """The table as CSV: the axes' columns, then `COLUMNS`; what a row does not have is empty."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*self.axes, *COLUMNS))
        for row in self.rows:
            writer.writerow((*row.point.values(), *(getattr(row, column) for column in COLUMNS)))


class SweepPlan:
    """A sweep that was checked and can be run row by row.

    `options` are names of problem, tile, GPU or run options, `gpu_fields` dotted keys of a GPU; the axes are either,
    or "algorithm". Raises `MemsimError` with every fault that a value has whatever the others are; what goes wrong
    at some points only becomes rows.
    """

    def __init__(
        self, algorithm: str, axes: Sequence[tuple[str, Sequence[str]]], options: Mapping[str, str],
        gpu_fields: Mapping[str, str], *, count_only: bool = False,
    ) -> None:  # fmt: skip
        self._machines = Machines()
        self._algorithm = algorithm
        self._options = dict(options)
        self._gpu_fields = dict(gpu_fields)
        self._count_only = count_only
        self.axes: dict[str, tuple[str, ...]] = {}
        faults = Faults()
        if not axes:
            faults.append("nothing is varied: give at least one axis with its values, such as seq-len=1Ki,2Ki.")
        for name, values in axes:
            faults.attempt(self._add_axis, name, tuple(values))
        self.points = math.prod(len(values) for values in self.axes.values())
        if self.points > MOST_POINTS:
            faults.append(f"the sweep has {self.points} points; take fewer values: at most {MOST_POINTS} points.")
        else:
            self._check_values(faults)
        faults.raise_any()

    def rows(self) -> Iterator[SweepRow]:
        """Run the points, one after the other."""
        for values in itertools.product(*self.axes.values()):
            yield self._row(dict(zip(self.axes, values, strict=True)))

    def table(self, rows: Sequence[SweepRow]) -> SweepTable:
        """The table of the rows that there are."""
        shared = {"algorithm": self._algorithm, "gpu": DEFAULT_GPU} | self._options | self._gpu_fields
        return SweepTable(
            {name: text for name, text in shared.items() if name not in self.axes}, self.axes, self.points, tuple(rows)
        )

    def _add_axis(self, given: str, values: tuple[str, ...]) -> None:
        name = given.replace("_", "-") if given.replace("_", "-") in AXES else given
        if name not in AXES and name != "algorithm":
            _check_gpu_field(name)
        if name in self.axes:
            raise MemsimError(f"{name} is varied twice: give all its values at once.")
        if name in self._options or name in self._gpu_fields:
            raise MemsimError(f"{name} is varied and has a value too: give one of them.")
        if not values or "" in values:
            raise MemsimError(f"{name} is varied over an empty value: give values, separated by single commas.")
        self.axes[name] = values

    def _check_values(self, faults: Faults) -> None:
        given = [*((name, (text,)) for name, text in self._options.items()), *self.axes.items()]
        if "algorithm" not in self.axes:
            given.append(("algorithm", (self._algorithm,)))
        for name, values in given:
            for text in values:
                if name == "algorithm":
                    faults.attempt(check_algorithm, text)
                elif name == "gpu":
                    faults.attempt(self._machines.load, text)
                elif name in AXES:
                    faults.attempt(check_value, name, text)
        self._check_gpu_fields(faults)

    def _check_gpu_fields(self, faults: Faults) -> None:
        """GPU fields may be right only together or on some GPU, so they are judged here where nothing else varies."""
        fixed = {name: text for name, text in self._options.items() if name in SHORT_OPTIONS} | self._gpu_fields
        varied = [name for name in self.axes if name == "gpu" or name in SHORT_OPTIONS or "." in name]
        if faults or len(varied) > 1 or "gpu" in varied:
            return
        gpu = self._options.get("gpu", DEFAULT_GPU)
        for text in self.axes[varied[0]] if varied else ("",):
            faults.attempt(self._machines.get, gpu, fixed | ({varied[0]: text} if varied else {}))

    def _row(self, point: dict[str, str]) -> SweepRow:
        options = self._options | {name: text for name, text in point.items() if name in AXES}
        gpu_fields = self._gpu_fields | {name: text for name, text in point.items() if "." in name}
        try:
            request = read_request(
                options, gpu_fields, algorithm=point.get("algorithm", self._algorithm), count_only=self._count_only,
                machines=self._machines,
            )  # fmt: skip
            result = request.simulate()
        except TileDoesNotFit as error:
            return SweepRow(point, "does-not-fit", str(error))
        except OutOfMemory as error:
            return SweepRow(point, "out-of-memory", str(error))
        except MemsimError as error:
            return SweepRow(point, "refused", str(error))
        return _ok(point, result)


def sweep(
    algorithm: str,
    axes: Mapping[str, Sequence[str | int | float]],
    options: Mapping[str, str | int | float] | None = None,
    *,
    count_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepTable:
    """Simulate an algorithm at every point of the product of the axes' values.

    Axes and options go by the names of the command line, without dashes, and values are as there:
    `sweep("flash", {"seq-len": ["1Ki", "2Ki"], "sram": ["96KiB", "192KiB"]}, {"gpu": "two-level"})`. Any other field
    of the GPU goes by its dotted key, and "algorithm" may be an axis too. `progress` is called with the points done
    and their number. Raises `MemsimError` for what is wrong at every point; points that cannot run are rows that say
    why.
    """
    given = {name: _as_text(value) for name, value in (options or {}).items()}
    texts = [(name, [_as_text(value) for value in values]) for name, values in axes.items()]
    unknown = [name for name in given if name not in AXES and "." not in name]
    if unknown:
        raise MemsimError(f"there is no option {quoted(name)}: {one_of(name, AXES)}" for name in unknown)
    gpu_fields = {name: text for name, text in given.items() if "." in name}
    short = {name: text for name, text in given.items() if name not in gpu_fields}
    plan = SweepPlan(algorithm, texts, short, gpu_fields, count_only=count_only)
    rows = []
    for row in plan.rows():
        rows.append(row)
        if progress is not None:
            progress(len(rows), plan.points)
    return plan.table(rows)


def _check_gpu_field(name: str) -> None:
    known = keys().get(pattern_of(name))
    if "." not in name:
        raise MemsimError(f"there is no axis {quoted(name)}: {one_of(name, ('algorithm', *AXES))}")
    if known is None:
        raise MemsimError(f"there is no axis {quoted(name)}: {suggestion(name)}")
    if known.children:
        raise MemsimError(f"{name} is more than one value: vary one of {', '.join(known.children)} in it.")


def _as_text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ok(point: dict[str, str], result: Result) -> SweepRow:
    total = result.total
    return SweepRow(
        point,
        "ok",
        blocks_per_sm=min(launch.blocks_per_sm for launch in result.launches),
        sram_bytes=max(launch.sram_bytes for launch in result.launches),
        sram_fill_bytes=total.sram_fill_bytes,
        sram_store_bytes=total.sram_store_bytes,
        hbm_bytes=total.hbm_bytes,
        flops=total.flops,
        time_s=total.time_s,
        bound=total.bound,
        waiting_for_memory=total.waiting_for_memory,
        over_compulsory=total.over_compulsory,
    )
