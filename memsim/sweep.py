"""Sweeps: one algorithm, or several, over the product of some options' values, one typed row a point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from memsim._option_list import AXES
from memsim._options import one_of
from memsim._sweep_plan import MOST_POINTS, SweepPlan
from memsim._sweep_points import Values, row_of
from memsim._sweep_table import COLUMNS, SWEEP_SCHEMA, Provenance, SweepRow, SweepTable, as_text
from memsim.errors import MemsimError
from memsim.units import quoted

if TYPE_CHECKING:
    from memsim._sweep_store import Results
    from memsim._sweep_workers import Before, Workers

__all__ = [
    "COLUMNS", "MOST_POINTS", "SWEEP_SCHEMA", "HeldRows", "Provenance", "SweepPlan", "SweepRow", "SweepTable",
    "read_results", "results", "run", "sweep", "workers_for",
]  # fmt: skip


class HeldRows:
    """The rows of a plan while they get done, held in memory: what `memsim._sweep_store.Results` is in a file."""

    def __init__(self, plan: SweepPlan) -> None:
        self.done = bytearray(plan.points)
        self._plan = plan
        self._values: dict[int, Values] = {}

    def add(self, rows: Sequence[tuple[int, Values, float]]) -> None:
        for number, values, _ in rows:
            self._values[number] = values
            self.done[number] = 1

    def kept(self) -> Iterator[tuple[int, SweepRow]]:
        """The rows that there are with the numbers of their points."""
        return ((number, row_of(self._plan.point(number), self._values[number])) for number in sorted(self._values))

    def rows(self) -> Sequence[SweepRow]:
        """The rows that there are, in the order of the product."""
        return tuple(row for _, row in self.kept())


def run(plan: SweepPlan, rows: HeldRows | Results, workers: Workers, before: Before | None = None) -> Iterator[int]:
    """Have the workers run what `rows` lacks. Yields how many rows there are, at first and whenever some were added.

    `before` is called with each request before it is run, where it is run here.
    """
    left = (number for number, done in enumerate(bytes(rows.done)) if not done)
    count = sum(rows.done)
    yield count
    for batch in workers.rows(plan, left, before):
        rows.add(batch)
        count += len(batch)
        yield count


def sweep(
    algorithm: str,
    axes: Mapping[str, str | Sequence[str | int | float]],
    options: Mapping[str, str | int | float] | None = None,
    *,
    count_only: bool = False,
    out: str | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SweepTable:
    """Simulate an algorithm at every point of the product of the axes' values.

    Axes and options go by the names of the command line, without dashes, and values are as there, a text being as
    after --vary: `sweep("flash", {"seq-len": ["1Ki", "2Ki"], "sram": "32KiB:256KiB:x2"}, {"gpu": "two-level"})`. Any
    other field of the GPU goes by its dotted key, and "algorithm" and "tile" (block-m x block-n: "64x32") may be axes
    too. `out` is a results file (SQLite), to which rows go as they get done: the same call goes on where it was
    stopped, and the table's rows are read from it. `jobs` processes, or the workers of the Dask cluster at `cluster`
    ("tcp://host:port"), run the points (extra `sweeps`), with the same rows. `progress` is called with the points done
    and their number. Raises `MemsimError` for what is wrong at every point, and for a file or a cluster that cannot be
    had; points that cannot run are rows that say why.
    """
    given = {name: as_text(value) for name, value in (options or {}).items()}
    texts = [
        (name, values.split(",") if isinstance(values, str) else [as_text(value) for value in values])
        for name, values in axes.items()
    ]
    unknown = [name for name in given if name not in AXES and "." not in name]
    if unknown:
        raise MemsimError(f"there is no option {quoted(name)}: {one_of(name, AXES)}" for name in unknown)
    gpu_fields = {name: text for name, text in given.items() if "." in name}
    short = {name: text for name, text in given.items() if name not in gpu_fields}
    plan = SweepPlan(algorithm, texts, short, gpu_fields, count_only=count_only)
    with ExitStack() as stack:
        workers = stack.enter_context(workers_for(jobs, cluster))
        rows = stack.enter_context(results(out, plan)) if out is not None else HeldRows(plan)
        for done in run(plan, rows, workers):
            if progress is not None and done:
                progress(done, plan.points)
    return plan.table(rows.rows())


def workers_for(jobs: int, cluster: str | None) -> Workers:
    """Those that are asked for, a context. Raises `MemsimError` if they cannot be had."""
    from memsim._sweep_workers import workers_for

    return workers_for(jobs, cluster)


def results(path: str, plan: SweepPlan) -> Results:
    """The results file of a plan at that path, new or to go on with; a context."""
    from memsim._sweep_store import Results

    return Results(path, plan)


def read_results(path: str) -> SweepTable:
    """The table of a results file, as far as it was finished. Raises `MemsimError` if it is none, or damaged."""
    from memsim._sweep_store import read_results

    return read_results(path)
