"""Measuring real kernels on this machine's GPU: CUDA-event times and ncu's counters, as rows of a measurement CSV.

Times are of one launch, counters come from ncu; what a launch finds in the caches is its point's cache state
(`memsim_kernels._grids`). Rows are written as they come, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import load_gpu
from memsim.measurements import Measurement, write_measurements
from memsim_kernels._grids import CHAINED, WARM, Point
from memsim_kernels._ncu import FLAGS, profile
from memsim_kernels._ready import Ready, ready
from memsim_kernels._rows import add_figures, identity, rows_of_point, rows_to_keep
from memsim_kernels.inputs import random_inputs
from memsim_kernels.tiles import choose
from memsim_kernels.timing import time_chain, time_launch
from memsim_kernels.warm import warm

Progress = Callable[[str, int, int], None]
NO_LAUNCH = "did not launch"
# Points that one run of ncu profiles, so that a stop loses little.
_PROFILED_AT_ONCE = 40
# Points that are timed before the file is written.
_TIMED_AT_ONCE = 20

_NAMES = (
    ("H200", "h200"), ("H100", "h100-sxm"), ("B200", "b200"), ("A100-SXM4-40GB", "a100-40gb"), ("A100", "a100-80gb"),
    ("RTX 4090", "rtx-4090"),
)  # fmt: skip


def gpu_here(named: str | None = None) -> str:
    """What rows call this machine's GPU: as it is named, else its shipped name. Raises `MemsimError` where there is
    none, or none that has a name."""
    if not torch.cuda.is_available():
        raise MemsimError("there is no CUDA GPU here to measure on: run it on a machine that has one.")
    if named is not None:
        return named
    device = torch.cuda.get_device_name()
    for part, name in _NAMES:
        if part in device:
            return name
    raise MemsimError(f"this GPU is {device}, which memsim has no name for: give the one it is like with --gpu.")


class Session:
    """Rows of one file, old and new: what a stopped run left is kept and not measured again."""

    def __init__(self, path: str | Path, gpu: str) -> None:
        # A link stays one: what it leads to is written.
        self.path = Path(path).resolve()
        self.gpu = gpu
        self._rows: dict[tuple[str, ...], Measurement] = {}
        if self.path.exists():
            self._rows = rows_to_keep(self.path)

    @property
    def rows(self) -> tuple[Measurement, ...]:
        """All rows, in the order in which they were first measured."""
        return tuple(self._rows.values())

    def rows_of(self, point: Point) -> tuple[Measurement, ...]:
        """The rows of a point, with whatever was measured of each; empty ones for what was not."""
        return tuple(self._rows.get(identity(row), row) for row in rows_of_point(point, self.gpu))

    def lacks(self, point: Point, column: str) -> bool:
        """Whether a launch of a point is without a column and did not fail."""
        return any(column not in row.values and not row.error for row in self.rows_of(point))

    def add(self, rows: Sequence[Measurement]) -> None:
        """Add figures to their rows, and write the file."""
        add_figures(self._rows, rows)
        write_measurements(self.path, self.rows)


def refusal_of(point: Point, gpu: str) -> str:
    """Why a point cannot be launched; empty if it can."""
    from memsim.api import prepare

    if not point.problem.seq_len_q:
        return "O is empty: there is nothing to launch."
    try:
        prepare(point.algorithm, point.problem, load_gpu(gpu), point.tile, lse=point.lse)
        if point.algorithm == "flash":
            choose(point.problem, load_gpu(gpu), point.tile, descriptors=True, lse=point.lse)
    except MemsimError as error:
        return " ".join(error.faults)
    return ""


def compile_points(points: Sequence[Point], jobs: int, progress: Progress) -> None:
    """Compile what points will launch, side by side, on short problems that need the same kernels."""
    shortened = {replace(point, problem=_shortened(point)): None for point in points}
    warm([_launcher(point) for point in shortened], jobs, lambda done, total: progress("compiling", done, total))


def measure_times(points: Sequence[Point], session: Session, progress: Progress) -> None:
    """Time every launch of the points that has no time yet."""
    todo = [point for point in points if session.lacks(point, "event_time_s")]
    for start in range(0, len(todo), _TIMED_AT_ONCE):
        found: list[Measurement] = []
        try:
            for done, point in enumerate(todo[start : start + _TIMED_AT_ONCE], start):
                progress("timing", done, len(todo))
                found += _timed(point, session.gpu)
        finally:
            session.add(found)
    progress("timing", len(todo), len(todo))


def measure_counters(points: Sequence[Point], session: Session, progress: Progress) -> None:
    """Have ncu count every launch of the points that it has not counted yet."""
    todo = [point for point in points if session.lacks(point, "sram_fill_bytes")]
    done = 0
    for flags in dict.fromkeys(FLAGS.values()):
        alike = [point for point in todo if FLAGS[point.cache_state] == flags]
        for start in range(0, len(alike), _PROFILED_AT_ONCE):
            progress("counting", done, len(todo))
            some = alike[start : start + _PROFILED_AT_ONCE]
            session.add(profile(some, session.gpu))
            done += len(some)
    progress("counting", len(todo), len(todo))


def _timed(point: Point, gpu: str) -> Iterator[Measurement]:
    rows = rows_of_point(point, gpu)
    try:
        made = _made(point)
        made.launch()
    except OutOfResources as error:
        yield from (replace(row, error=f"{NO_LAUNCH}: {error}") for row in rows)
        return
    launches = [call.launch for call in made.calls]
    if point.cache_state == CHAINED:
        timings = time_chain(launches)
    elif point.cache_state == WARM:
        timings = tuple(time_chain([launch, launch])[1] for launch in launches)
    else:
        timings = tuple(map(time_launch, launches))
    for row, launch, timing in zip(rows, launches, timings, strict=True):
        compiled: Any = launch()
        values: dict[str, int | float] = {
            "registers": compiled.n_regs,
            "sram_bytes": compiled.metadata.shared,
            # Triton counts 4-byte words of local memory.
            "stack_bytes": 4 * compiled.n_spills,
            "event_time_s": timing.median_s,
            "event_time_spread": timing.spread,
        }
        yield replace(row, values=values)


def _made(point: Point) -> Ready:
    inputs = random_inputs(point.problem, seed=0, device="cuda")
    return ready(point.algorithm, point.problem, point.tile, inputs, lse=point.lse)


def _launcher(point: Point) -> Callable[[], object]:
    return lambda: _made(point).launch()


def _shortened(point: Point) -> Attention:
    """The same kernels on fewer rows and heads: lengths that leave the same remainders, and few of them."""
    p = point.problem
    if point.tile.grid_order == "head-sections":
        # How many heads a section has is compiled in, and depends on their length.
        return p
    step = 16 * max(point.tile.block_m, point.tile.block_n)
    rows, keys = (n if n <= step else n % step + step for n in (p.seq_len_q, p.seq_len_k))
    if point.algorithm == "naive":
        # softmax is compiled for its number of columns.
        rows, keys = min(rows, p.seq_len_q), p.seq_len_k
    return replace(p, seq_len_q=rows, seq_len_k=keys)
