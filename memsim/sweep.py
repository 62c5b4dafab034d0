"""Sweeps: one algorithm, or several, over the product of some options' values, one typed row a point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from memsim._gpu_files import keys, pattern_of, suggestion
from memsim._gpu_options import read_field
from memsim._option_list import AXES, PROBLEM
from memsim._options import (
    Faults,
    Machines,
    Request,
    check_algorithm,
    check_text,
    check_value,
    one_of,
    read_request,
    settings_of,
)
from memsim._sweep_table import COLUMNS, SWEEP_SCHEMA, SweepRow, SweepTable, as_text
from memsim.api import DEFAULT_GPU, INPUTS, L2_STATES
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.gpu import SHORT_OPTIONS, Gpu
from memsim.result import Result
from memsim.units import quoted

__all__ = ["COLUMNS", "MOST_POINTS", "SWEEP_SCHEMA", "SweepPlan", "SweepRow", "SweepTable", "sweep"]

MOST_POINTS = 100_000


class SweepPlan:
    """A sweep that was checked and can be run row by row.

    `options` are names of problem, tile, GPU or run options, `gpu_fields` dotted keys of a GPU; the axes are either,
    or "algorithm". Raises `MemsimError` with every fault of what all points share, and with every value of an axis
    that cannot be read; what else goes wrong at a point becomes its row.
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
            self._check_options(faults)
            self._check_axes(faults)
        faults.raise_any()

    def rows(self, before: Callable[[Request], None] | None = None) -> Iterator[SweepRow]:
        """Run the points, one after the other. `before` is called with each that can be, before it is run."""
        for values in itertools.product(*self.axes.values()):
            yield self._row(dict(zip(self.axes, values, strict=True)), before)

    def table(self, rows: Sequence[SweepRow]) -> SweepTable:
        """The table of the rows that there are."""
        return SweepTable(self._shared(), self.axes, self.points, tuple(rows), self._count_only, self._gpu())

    def _shared(self) -> dict[str, str]:
        """What all points share: the problem's sizes by themselves, and not those that follow from an axis."""
        settings = {name.replace("_", "-"): as_text(value) for name, value in settings_of(self._options).items()}
        follow = {"heads": ["kv-heads"], "seq-len": ["seq-len-q", "seq-len-k"]}
        varied = {*self.axes, *(name for axis in self.axes for name in follow.get(axis, []))} - {*self._options}
        given = {name: text for name, text in self._options.items() if name not in PROBLEM or name == "scale"}
        run = {"lse": "false", "inputs": INPUTS[0], "l2-state": L2_STATES[0]}
        shared = {"algorithm": self._algorithm, "gpu": DEFAULT_GPU, **settings, **run}
        return {name: text for name, text in (shared | given | self._gpu_fields).items() if name not in varied}

    def _gpu(self) -> Gpu | None:
        """The machine with what all points change of it, or without where that is right together with an axis only."""
        if "gpu" in self.axes:
            return None
        name = self._options.get("gpu", DEFAULT_GPU)
        try:
            return self._machines.get(name, self._fixed_fields())
        except MemsimError:
            return self._machines.load(name)

    def _fixed_fields(self) -> dict[str, str]:
        return {name: text for name, text in self._options.items() if name in SHORT_OPTIONS} | self._gpu_fields

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

    def _check_options(self, faults: Faults) -> None:
        """What all points share is refused for what is wrong with it whatever the axes are."""
        if "algorithm" not in self.axes:
            faults.attempt(check_algorithm, self._algorithm)
        for name, text in self._options.items():
            if name == "gpu":
                faults.attempt(self._machines.load, text)
            else:
                faults.attempt(check_value, name, text)
        for name, text in self._gpu_fields.items():
            faults.attempt(read_field, name, text)
        # The GPU's fields may be right only together or on some GPU, so they are judged here where none varies.
        if not faults and not any(name == "gpu" or name in SHORT_OPTIONS or "." in name for name in self.axes):
            faults.attempt(self._machines.get, self._options.get("gpu", DEFAULT_GPU), self._fixed_fields())

    def _check_axes(self, faults: Faults) -> None:
        """A value that is none of its axis, such as a size that is no number, ends the sweep before it starts."""
        for name, values in self.axes.items():
            for text in values:
                if name == "algorithm":
                    faults.attempt(check_algorithm, text)
                elif name == "gpu":
                    faults.attempt(self._machines.load, text)
                elif name in AXES:
                    faults.attempt(check_text, name, text)
                else:
                    faults.attempt(read_field, name, text)

    def _row(self, point: dict[str, str], before: Callable[[Request], None] | None) -> SweepRow:
        options = self._options | {name: text for name, text in point.items() if name in AXES}
        gpu_fields = self._gpu_fields | {name: text for name, text in point.items() if "." in name}
        try:
            request = read_request(
                options, gpu_fields, algorithm=point.get("algorithm", self._algorithm), count_only=self._count_only,
                machines=self._machines,
            )  # fmt: skip
            if before is not None:
                before(request)
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
    given = {name: as_text(value) for name, value in (options or {}).items()}
    texts = [(name, [as_text(value) for value in values]) for name, values in axes.items()]
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


def _ok(point: dict[str, str], result: Result) -> SweepRow:
    total = result.total
    return SweepRow(
        point,
        "ok",
        block_m=result.tile["block_m"],
        block_n=result.tile["block_n"],
        num_warps=result.tile["num_warps"],
        num_stages=result.tile["num_stages"],
        load_path=result.tile["load_path"],
        grid_order=result.tile["grid_order"],
        blocks_per_sm=min(launch.blocks_per_sm for launch in result.launches),
        sram_bytes=max(launch.sram_bytes for launch in result.launches),
        sram_fill_bytes=total.sram_fill_bytes,
        sram_store_bytes=total.sram_store_bytes,
        hbm_bytes=total.hbm_bytes,
        l2_hit_rate=total.l2_hit_rate,
        flops=total.flops,
        time_s=total.time_s,
        bound=total.bound,
        waiting_for_memory=total.waiting_for_memory,
        over_compulsory=total.over_compulsory,
        notes=result.notes,
    )
