"""Fits the constants of a machine's `[calibrated]` table to measured launches.

Damped Gauss-Newton (Levenberg 1944) on the logarithm of simulated over measured SM cycles, each row weighted so that
one that is far off counts little more than one that is not (Huber 1964). Every evaluation replays the rows. Whole
problems are left out, and say how good the constants are on what they were not fitted to.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from memsim._processes import Processes
from memsim._simulated import Simulator
from memsim.errors import MemsimError
from memsim.gpu import Calibrated, Gpu
from memsim.measurements import Measurement

CALIBRATE_SCHEMA = "memsim.calibrate/1"
BOUNDS: Mapping[str, tuple[float, float]] = {
    "launch_cycles": (500, 6000),
    "warp_start_cycles": (10, 80),
    "drain_cycles": (100, 2500),
    "block_spread": (0.005, 0.08),
    "throttle_share": (0.1, 0.95),
    "throttle_s": (3e-5, 1e-3),
    "hbm_efficiency": (0.8, 0.95),
    "hbm_copy_cycles": (400, 1500),
    "copy_cycles": (150, 600),
    "box_cycles": (50, 900),
    "descriptor_cycles": (50, 4000),
    "load_cycles": (400, 2000),
    "merged_share": (0.6, 1.0),
    "lockstep_wait_share": (0.02, 0.3),
    "store_cost": (1, 6),
    "product_start_cycles": (4, 60),
    "product_end_cycles": (10, 80),
    "tensor_contention_cycles": (0.05, 4.0),
    "exp_cycles": (10, 45),
    "shuffle_cycles": (15, 40),
    "sram_cycles": (15, 45),
    "uniform_cycles": (4, 25),
    "operand_cycles": (3, 25),
    "barrier_cycles": (8, 80),
    "fence_cycles": (50, 2000),
    "spill_cycles": (20, 150),
    "spill_miss_cycles": (150, 1500),
    "spill_miss_share": (0.05, 0.6),
    "copies_at_banks": (0.2, 2.0),
}
"""The constants that are fitted, and how far they may go. The clocks are not: those are read off the measurements."""

CLOCKS = ("clock_hz", "idle_tensor_clock_hz")
"""The constants that are read off the measurements: the median clock of kernels with matrix products, and without."""

_STEP = 0.1
_LARGEST_CHANGE = 0.35
_SMALL_ERROR = 0.05
_DAMPINGS = (0.03, 0.3, 3.0)
_SCALES = (1.0, 0.5)
_EVERY_LEFT_OUT = 4
_ENOUGH_GAIN = 0.01
# Of a launch with more steps one replay takes seconds, and a fit replays each row a hundred times.
_MOST_STEPS = 40_000
_STEPS_OF_A_BLOCK = 4

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Error:
    """How far simulated cycles are from measured ones over some rows: mean and worst of |simulated / measured − 1|."""

    rows: int
    problems: int
    mean: float
    worst: float
    worst_row: str


@dataclass(frozen=True)
class Calibration:
    """The constants before and now, the iterations it took, and the errors, with either, on the rows that they were
    fitted to, on those of problems left out, and on those that only judge (None: there are none)."""

    before: Calibrated
    constants: Calibrated
    iterations: int
    fitted_before: Error
    fitted: Error
    left_out_before: Error | None = None
    left_out: Error | None = None
    judged_before: Error | None = None
    judged: Error | None = None

    @property
    def improved(self) -> bool:
        """Whether a constant changed."""
        return self.before != self.constants

    def as_dict(self) -> dict[str, Any]:
        """The calibration as JSON-ready data, with its schema first."""
        return {"schema": CALIBRATE_SCHEMA, **asdict(self), "before": self.before.model_dump(),
                "constants": self.constants.model_dump()}  # fmt: skip


def calibrate(
    gpu: Gpu, rows: Sequence[Measurement], *, judge: Sequence[Measurement] = (), most_rows: int = 160,
    most_iterations: int = 3, only: Sequence[str] = (), jobs: int = 1, progress: Progress | None = None,
    keep: Callable[[Calibration], None] | None = None,
) -> Calibration:  # fmt: skip
    """Fit `gpu.calibrated`, or `only` these of its constants, to the cold rows that have SM cycles.

    At most `most_rows` of them are fitted to, the same number of each tile as near as may be; every fourth problem is
    left out. `judge` has rows of problems that the constants are judged by and never fitted to. `keep` is given what
    there is after every iteration that made the constants better. Raises `MemsimError` where there is nothing to fit or
    nothing to fit to.
    """
    if gpu.calibrated is None or gpu.sm.core is None:
        raise MemsimError(
            f"{gpu.name} has no [calibrated] table and [sm.core] to start from: copy those of the machine it is most "
            "like."
        )
    if unknown := [name for name in only if name not in BOUNDS]:
        raise MemsimError(
            f"{name!r} is not a constant that is fitted; give any of {', '.join(BOUNDS)}." for name in unknown
        )
    if both := {row.problem for row in usable(rows)} & {row.problem for row in judge}:
        raise MemsimError(
            f"{len(both)} problem{'s are' if len(both) > 1 else ' is'} among the rows to fit to and among those that "
            "judge: leave each in one of the two files."
        )
    fitted, left = split(usable(rows), most_rows)
    if not fitted:
        raise MemsimError(
            "no row has sm_cycles of a cold launch that is quick to replay: measure some with memsim measure, or give "
            "another file."
        )
    judged = _thinned(usable(judge), most_rows)
    start = gpu.calibrated
    clocked = gpu.calibrated.model_copy(update=clocks_of(rows))
    with Processes(jobs) as processes:
        fit = _Fit(gpu, processes, progress, [name for name in BOUNDS if not only or name in only])
        told: dict[str, Error | None] = {}
        for name, table, of in (
            ("fitted_before", start, fitted), ("left_out_before", start, left), ("judged_before", start, judged)
        ):  # fmt: skip
            told[name] = fit.error(table, of, "before") if of else None
        before = told.pop("fitted_before")
        assert before is not None

        def so_far(table: Calibrated, iterations: int, errors: np.ndarray) -> Calibration:
            fitted_now = error_of(fitted, errors)
            outside = fit.error(table, left, "left out") if left else None
            judging = fit.error(table, judged, "judged") if judged else None
            return Calibration(
                start, table, iterations, before, fitted_now, told["left_out_before"], outside, told["judged_before"],
                judging,
            )  # fmt: skip

        return fit.run(clocked, fitted, most_iterations, so_far, keep)


def usable(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows that constants can be fitted to: cold launches with SM cycles, that are quick to replay."""
    return [
        row for row in rows
        if not row.error and row.values.get("sm_cycles") and row.cache_state in ("", "cold") and _is_quick(row)
    ]  # fmt: skip


def _is_quick(row: Measurement) -> bool:
    p = row.problem
    planes = p.batch * p.heads
    if row.kernel == "softmax":
        return planes * p.seq_len_q * _STEPS_OF_A_BLOCK <= _MOST_STEPS
    blocks = planes * -(-p.seq_len_q // row.block_m)
    if row.kernel == "qk":
        return blocks * -(-p.seq_len_k // row.block_n) * _STEPS_OF_A_BLOCK <= _MOST_STEPS
    return blocks * (min(64, -(-p.seq_len_k // row.block_n)) + _STEPS_OF_A_BLOCK) <= _MOST_STEPS


def clocks_of(rows: Sequence[Measurement]) -> dict[str, float]:
    """`CLOCKS` as the measurements have them: cycles over seconds, the median of launches."""
    found: dict[str, list[float]] = {name: [] for name in CLOCKS}
    for row in rows:
        cycles, seconds = row.values.get("sm_cycles"), row.values.get("duration_s")
        if cycles and seconds:
            found[CLOCKS[row.kernel == "softmax"]].append(cycles / seconds)
    return {name: float(f"{statistics.median(values):.4g}") for name, values in found.items() if values}


def split(rows: Sequence[Measurement], most_rows: int) -> tuple[list[Measurement], list[Measurement]]:
    """(rows to fit to, rows left out): every fourth problem is left out, then rows are thinned evenly."""
    problems = list(dict.fromkeys(row.problem for row in rows))
    out = set(problems[_EVERY_LEFT_OUT - 1 :: _EVERY_LEFT_OUT])
    return (
        _thinned([row for row in rows if row.problem not in out], most_rows),
        _thinned([row for row in rows if row.problem in out], most_rows),
    )


def _thinned(rows: Sequence[Measurement], most: int) -> list[Measurement]:
    """At most so many rows: each tile in turn gives one, from all over its problems."""
    by_tile: dict[object, list[Measurement]] = {}
    for row in rows:
        by_tile.setdefault((row.kernel, row.tile), []).append(row)
    groups = [_spread_out(group) for group in by_tile.values()]
    turns = max((len(group) for group in groups), default=0)
    in_turn = [group[turn] for turn in range(turns) for group in groups if turn < len(group)]
    return in_turn[:most]


def _spread_out(rows: Sequence[Measurement]) -> list[Measurement]:
    """The same rows so that any number from the front comes from all over: a stride of about the golden section."""
    count = len(rows)
    stride = next(n for n in range(max(1, round(count * 0.618)), count + 2) if math.gcd(n, count) == 1)
    return [rows[n * stride % count] for n in range(count)]


def error_of(rows: Sequence[Measurement], errors: np.ndarray) -> Error:
    """The error that logarithms of simulated over measured come to."""
    sizes = np.abs(np.exp(errors) - 1)
    worst = int(np.argmax(sizes))
    problems = len({row.problem for row in rows})
    return Error(len(rows), problems, float(sizes.mean()), float(sizes[worst]), rows[worst].place)


class _Fit:
    """Replays rows with changed constants, and changes them for the better."""

    def __init__(
        self, gpu: Gpu, processes: Processes, progress: Progress | None, names: Sequence[str]
    ) -> None:  # fmt: skip
        self._gpu = gpu
        self._names = names
        self._processes = processes
        self._progress = progress

    def error(self, table: Calibrated, rows: Sequence[Measurement], what: str) -> Error:
        return error_of(rows, self._residuals([table], rows, what)[0])

    def run(
        self, table: Calibrated, rows: Sequence[Measurement], most_iterations: int,
        so_far: Callable[[Calibrated, int, np.ndarray], Calibration], keep: Callable[[Calibration], None] | None,
    ) -> Calibration:  # fmt: skip
        """The best constants within so many iterations; one that gains less than a hundredth is the last."""
        names = self._names
        errors = self._residuals([table], rows, "first look")[0]
        found = so_far(table, 0, errors)
        for iteration in range(1, most_iterations + 1):
            stepped = [_changed(table, {name: _STEP}) for name in names]
            slopes = (self._residuals(stepped, rows, f"slopes {iteration}") - errors) / _STEP
            trials = [_changed(table, change) for change in _changes(slopes.T, errors, names)]
            tried = self._residuals(trials, rows, f"trials {iteration}")
            best = int(np.argmin([_score(e) for e in tried]))
            gain = _score(errors) - _score(tried[best])
            if gain <= 0:
                break
            table, errors = trials[best], tried[best]
            found = so_far(table, iteration, errors)
            if keep is not None:
                keep(found)
            if gain < _ENOUGH_GAIN * _score(errors):
                break
        return found

    def _residuals(self, tables: Sequence[Calibrated], rows: Sequence[Measurement], what: str) -> np.ndarray:
        """log(simulated / measured) of each table (first axis) and row."""
        groups: dict[object, list[int]] = {}
        for n, row in enumerate(rows):
            groups.setdefault((row.kernel, row.tile, row.problem.head_dim, row.problem.causal), []).append(n)
        ordered = sorted(groups.values(), key=len, reverse=True)
        tasks = [
            (self._gpu.model_copy(update={"calibrated": table}), [rows[n] for n in group])
            for table in tables for group in ordered
        ]  # fmt: skip
        found = np.zeros((len(tables), len(rows)))
        for done, (number, values) in enumerate(self._processes.map(_log_ratios, tasks), 1):
            found[number // len(ordered), ordered[number % len(ordered)]] = values
            if self._progress is not None:
                self._progress(what, done, len(tasks))
        return found


def _log_ratios(task: tuple[Gpu, Sequence[Measurement]]) -> list[float]:
    gpu, rows = task
    simulator = Simulator(gpu)
    return [math.log(simulator.launch(row).replayed()["sm_cycles"] / row.values["sm_cycles"]) for row in rows]


def _changes(slopes: np.ndarray, errors: np.ndarray, names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Changes of the constants, as shares of each, by damped least squares."""
    weights = 1 / np.hypot(_SMALL_ERROR, errors)
    a = slopes * weights[:, None]
    normal, gradient = a.T @ a / len(errors), a.T @ (errors * weights) / len(errors)
    for damping in _DAMPINGS:
        damped = normal + damping * max(float(np.mean(np.diag(normal))), 1e-12) * np.eye(len(names))
        change = np.clip(-np.linalg.solve(damped, gradient), -_LARGEST_CHANGE, _LARGEST_CHANGE)
        for scale in _SCALES:
            yield dict(zip(names, (scale * change).tolist(), strict=True))


def _changed(table: Calibrated, changes: Mapping[str, float]) -> Calibrated:
    values = table.model_dump()
    for name, change in changes.items():
        low, high = BOUNDS[name]
        values[name] = float(f"{min(high, max(low, values[name] * (1 + change))):.5g}")
    return Calibrated(**values)


def _score(errors: np.ndarray) -> float:
    return float(np.abs(errors).mean() + 0.3 * np.sqrt((errors**2).mean()))
