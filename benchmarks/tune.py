"""Does `memsim tune` pick the tiles that an H200 runs fastest, and do pruned lists still have them?

    python benchmarks/tune.py                    print it, from replays that are stored
    python benchmarks/tune.py --write --jobs 2   replay again what only this script stores (ten minutes on one core)

Picks: the problems of measurements/h200_judge.csv with every tile that was measured of each; the search is that of
`memsim tune`, answered from tests/fidelity/data/replayed.csv. Pruned lists: up to 200 candidates to 10, on problems of
the same file (some 20 of the 200 were measured), and on those of tests/fidelity/data/tile_times.csv, where all
candidates were (probe kernels, through pointers). A list that keeps no measured candidate counts as infinitely slow.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from memsim._cli_progress import ProgressBar
from memsim._sweep_points import values_of
from memsim._sweep_table import SweepRow
from memsim._tune_candidates import Survey
from memsim.attention import Attention
from memsim.measurements import Measurement, read_measurements
from memsim.sweep import SweepPlan
from memsim.tile import Tile
from memsim.tune import Plan, Tuning, plan_of, tune

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "fidelity" / "data"
JUDGE = ROOT / "measurements" / "h200_judge.csv"
REPLAYED = DATA / "replayed.csv"
TILE_TIMES = DATA / "tile_times.csv"
STORED = DATA / "tuned.csv"

CANDIDATES, KEPT = 200, 10
LEAST_TILES = 3
PRUNED = (
    Attention(heads=4, seq_len_q=512, seq_len_k=512), Attention(heads=12, seq_len_q=2048, seq_len_k=2048, head_dim=64),
    Attention(heads=40, seq_len_q=1536, seq_len_k=1536),
)  # fmt: skip
"""Judged problems, full and causal, of which lists of 200 are pruned: those that are quick to replay."""
SIDES, WARPS, STAGES, LOAD_PATHS = (16, 32, 64, 128), (4, 8), (1, 2, 3, 4), ("pointer", "descriptor")

Times = Mapping[Tile, float]
Known = Mapping[Tile, tuple[float, int]]
"""Replayed time and HBM bytes."""
Problem = tuple[Attention, bool]
"""A problem, and whether the LSE is stored."""


@dataclass(frozen=True)
class List:
    """A list to be pruned: candidates, and the measured times of those that were measured."""

    name: str
    problem: Attention
    candidates: tuple[Tile, ...]
    measured: Times


@dataclass(frozen=True)
class Cost:
    """What was found: `over_best` is the measured time of the best that was kept (or picked) over that of the best."""

    name: str
    over_best: float
    candidates: int
    compared: int
    measured: int
    kept_measured: int


class Answers:
    """In place of workers: rows of which time and bytes are known."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self.asked: list[Tile] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def rows(self, plan: SweepPlan, numbers: Iterator[int], before: Any) -> Iterator[list[tuple[int, Any, float]]]:
        for number in numbers:
            point = plan.point(number)
            names = ("block-m", "block-n", "num-warps", "num-stages")
            tile = Tile(*(int(point[name]) for name in names), point["load-path"], point["grid-order"])
            self.asked.append(tile)
            time_s, hbm_bytes = self._known[tile]
            row = SweepRow(point, "ok", time_s=time_s, hbm_bytes=hbm_bytes, sram_fill_bytes=0)
            yield [(number, values_of(row), 0.0)]


def tuned(problem: Attention, lse: bool, known: Known, tiles: tuple[Tile, ...], keep: int) -> Tuning:
    """What tuning comes to where these are the replays."""
    plan, survey = _surveyed(problem, lse, tiles, keep)
    return plan.run(survey, Answers(known))


@cache
def _surveyed(problem: Attention, lse: bool, tiles: tuple[Tile, ...], keep: int) -> tuple[Plan, Survey]:
    plan = plan_of(problem, gpu="h200", tiles=tiles, lse=lse, best=keep)
    return plan, plan.survey()


def measured_time(row: Measurement) -> float | None:
    """In SM cycles where there are some, else in seconds."""
    return next((row.values[c] for c in ("sm_cycles", "duration_s", "event_time_s") if c in row.values), None)


def judged() -> dict[Problem, dict[Tile, Measurement]]:
    """Cold launches of flash that were measured, by problem and tile."""
    found: dict[Problem, dict[Tile, Measurement]] = {}
    for row in read_measurements(JUDGE).rows:
        if row.kernel == "flash" and row.cache_state == "cold" and not row.error and measured_time(row):
            found.setdefault((row.problem, row.lse), {}).setdefault(row.tile, row)
    return {problem: rows for problem, rows in found.items() if len(rows) >= LEAST_TILES}


def replays_of_judged() -> dict[int, tuple[float, int]]:
    """Time and HBM bytes that are stored of rows of the judged file, by line."""
    with REPLAYED.open(encoding="utf-8", newline="") as lines:
        return {
            int(line["line"]): (
                float(line["time_s"]) + float(line["launch_overhead_s"]),
                int(float(line["hbm_read_bytes"]) + float(line["hbm_write_bytes"])),
            )
            for line in csv.DictReader(lines)
            if line["file"] == JUDGE.name and not line["without"]
        }


def picks(change: Callable[[float], float] = lambda time_s: time_s) -> list[Cost]:
    """The pick on every judged problem; `change` is made to every replayed time, to see what a wrong one does."""
    stored = replays_of_judged()
    found = []
    for (problem, lse), rows in judged().items():
        known = {tile: (change(stored[row.line][0]), stored[row.line][1]) for tile, row in rows.items()}
        tuning = tuned(problem, lse, known, tuple(rows), 1)
        times = {tile: measured_time(row) or math.inf for tile, row in rows.items()}
        name = next(iter(rows.values())).name.split(",")[0].removeprefix("flash ")
        cost = times[tuning.tile] / min(times.values())
        found.append(Cost(name, cost, tuning.candidates, _compared(tuning), len(times), 1))
    return found


def lists() -> list[List]:
    """The lists that are pruned."""
    found = []
    for (problem, _), rows in judged().items():
        if replace(problem, causal=False) in PRUNED:
            times = {tile: measured_time(row) or math.inf for tile, row in rows.items()}
            name = next(iter(rows.values())).name.split(",")[0].removeprefix("flash ")
            found.append(List(name, problem, _filled_up(tuple(times)), times))
    by_problem: dict[Attention, dict[Tile, float]] = {}
    for row in read_measurements(TILE_TIMES).rows:
        by_problem.setdefault(row.problem, {})[row.tile] = math.inf if row.error else measured_time(row) or math.inf
    for problem, times in by_problem.items():
        sizes = f"{problem.heads}×{problem.seq_len_q}×{problem.head_dim}{' causal' * problem.causal}"
        found.append(List(f"{sizes}, all measured", problem, tuple(times), times))
    return found


def _filled_up(measured: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """These, and of what else an autotune would have in its list evenly as many as make 200."""
    every = itertools.product(SIDES, SIDES, WARPS, STAGES, LOAD_PATHS)
    others = [tile for tile in itertools.starmap(Tile, every) if tile not in measured]
    wanted = CANDIDATES - len(measured)
    return (*measured, *(others[number * len(others) // wanted] for number in range(wanted)))


Stored = dict[tuple[Attention, Tile], tuple[float, int]]


def pruned(stored: Stored, one: List, change: Callable[[float], float] = lambda time_s: time_s) -> Cost:
    """One list pruned by what is stored."""
    known = {tile: (change(t), n) for (problem, tile), (t, n) in stored.items() if problem == one.problem}
    tuning = tuned(one.problem, False, known, one.candidates, KEPT)
    kept = [one.measured[c.tile] for c in tuning.best if c.tile in one.measured]
    best = min(kept, default=math.inf) / min(one.measured.values())
    return Cost(one.name, best, len(one.candidates), _compared(tuning), len(one.measured), len(kept))


def _compared(tuning: Tuning) -> int:
    return tuning.candidates - sum(refusal.count for refusal in tuning.refusals)


_COLUMNS = ("heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "dtype", "causal")
_TILE = ("block_m", "block_n", "num_warps", "num_stages", "load_path")


def read_stored() -> Stored:
    with STORED.open(encoding="utf-8", newline="") as lines:
        found: Stored = {}
        for line in csv.DictReader(lines):
            counts = {name: int(line[name]) for name in _COLUMNS if name not in ("dtype", "causal")}
            problem = Attention(**counts, dtype=line["dtype"], causal=line["causal"] == "1")
            tile = Tile(*(int(line[name]) for name in _TILE[:4]), line["load_path"])
            found[problem, tile] = float(line["time_s"]), int(line["hbm_bytes"])
        return found


def write_stored(jobs: int) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, *_TILE, "time_s", "hbm_bytes"))
    for one in lists():
        print(f"{one.name}: {len(one.candidates)} candidates", file=sys.stderr, flush=True)
        with ProgressBar() as bar:
            tuning = tune(one.problem, gpu="h200", tiles=one.candidates, best=1000, jobs=jobs, progress=bar)
        for candidate in tuning.ranked:
            of = [
                int(value) if isinstance(value, bool) else value
                for value in (getattr(one.problem, n) for n in _COLUMNS)
            ]
            tile = [getattr(candidate.tile, name) for name in _TILE]
            writer.writerow((*of, *tile, repr(candidate.time_s), candidate.hbm_bytes))
    STORED.write_text(text.getvalue(), encoding="utf-8")


def table(costs: Sequence[Cost]) -> str:
    lines = [
        "| problem | candidates | compared | measured | kept, measured | time over the best |",
        "| --- |" + " --- |" * 5,
    ]
    lines += [
        f"| {c.name} | {c.candidates} | {c.compared} | {c.measured} | {c.kept_measured} | {c.over_best:.3f} |"
        for c in costs
    ]
    over = [c.over_best for c in costs]
    return "\n".join((*lines, "", f"Mean {statistics.fmean(over):.3f}, worst {max(over):.3f}, of {len(over)}.", ""))


def summary() -> str:
    """What docs/validation.md has of it."""
    picked = picks()
    over = [cost.over_best for cost in picked]
    worst = max(picked, key=lambda cost: cost.over_best)
    return (
        f"On {len(picked)} problems the tile that is picked takes {statistics.fmean(over):.3f} times as long as the "
        f"fastest on average, {worst.over_best:.3f} at worst ({worst.name}); on {over.count(1)} it is the fastest.\n\n"
        f"Lists pruned to {KEPT}:\n\n{table([pruned(read_stored(), one) for one in lists()])}"
    )


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="replay and store what is not stored elsewhere")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    given = options.parse_args(arguments)
    if given.write:
        write_stored(given.jobs)
    print(f"The tile that is picked, of those measured\n\n{table(picks())}")
    print(summary())


if __name__ == "__main__":
    main(sys.argv[1:])
