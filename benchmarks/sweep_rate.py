"""How many points of a sweep get done in a second, in one process and in two, and in how much memory?

python benchmarks/sweep_rate.py                   a small sweep of flash: counted, replayed, by one process and by two
python benchmarks/sweep_rate.py --points 10000    flash: tile × SRAM × N up to 16,384 × GPU × causal, replayed, into a
                                                  results file; a sample of its rows is held against single runs
python benchmarks/sweep_rate.py --points 500 --count-only --jobs 1

--points takes a multiple of 50 up to 10,000: fewer tiles and SRAM sizes, spread over the same ranges. Memory is the
largest sum over all processes of the sweep; pages that they share count in each.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from _bench import Failed, FamilyMemory, heading, megabytes, of_its_own, seconds, table

from memsim import Attention, MemsimError, Tile, simulate, sweep
from memsim.sweep import SweepRow

Axes = dict[str, list[str]]

TILES = [f"{m}x{n}" for m, n in product((16, 32, 64, 128, 256), (16, 32, 64, 128))]
SRAM_KIB = [48, 64, 80, 96, 112, 128, 160, 192, 208, 228]
OTHER_AXES: Axes = {
    "seq-len": ["1024", "2048", "4096", "8192", "16384"],
    "gpu": ["two-level", "a100-80gb", "h100-sxm", "h200", "rtx-4090"],
    "causal": ["false", "true"],
}
SHARED = {"heads": "16", "head-dim": "64", "num-warps": "4", "num-stages": "2"}
OTHERS, MOST = 50, 10_000
SMALL: Axes = {
    "tile": ["32x32", "64x32", "64x64", "128x64"], "sram": ["64KiB", "128KiB", "192KiB"], "seq-len": ["256", "512"],
    "gpu": ["two-level", "a100-80gb", "h100-sxm", "h200"], "causal": ["false", "true"],
}  # fmt: skip
MORE_SRAM = [f"{kib}KiB" for kib in range(48, 228, 10)]
"""For points that are only counted, which are quick."""
SAMPLE = 20
COMPARED = ("sram_fill_bytes", "sram_store_bytes", "hbm_bytes", "flops", "time_s", "bound", "waiting_for_memory")


@dataclass
class Swept:
    """A sweep's rows, seconds on the clock, and the most memory of all its processes."""

    rows: list[SweepRow]
    seconds: float
    peak_bytes: int
    processes: int


def axes_of(points: int) -> Axes:
    """The axes of the large sweep with so many points."""
    if not 0 < points <= MOST or points % OTHERS:
        raise SystemExit(f"--points is {points}: give a multiple of {OTHERS} from {OTHERS} to {MOST:,}.")
    wanted = points // OTHERS
    pairs = [(t, wanted // t) for t in range(1, len(TILES) + 1) if wanted % t == 0 and wanted // t <= len(SRAM_KIB)]
    if not pairs:
        raise SystemExit(f"--points is {points}: {wanted} tiles and SRAM sizes; give {OTHERS} times a smaller product.")
    tiles, srams = min(pairs, key=lambda pair: abs(pair[0] - 2 * pair[1]))
    return {
        "tile": _spread(TILES, tiles), "sram": [f"{kib}KiB" for kib in _spread(SRAM_KIB, srams)], **OTHER_AXES,
    }  # fmt: skip


def _spread(values: list, count: int) -> list:
    """So many of the values, evenly spaced, the last one among them."""
    return [values[(at + 1) * len(values) // count - 1] for at in range(count)]


def run(axes: Axes, jobs: int, count_only: bool, show: bool = False) -> Swept:
    """One sweep, its rows going into a results file as a user's would."""
    since, shown = time.perf_counter(), [0.0]

    def progress(done: int, points: int) -> None:
        now = time.perf_counter() - since
        if show and now - shown[0] > 10:
            shown[0] = now
            print(f"{done:,} of {points:,} points, {done / now:.1f} a second", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder, FamilyMemory() as memory:
        out = str(Path(folder) / "results.db")
        found = sweep("flash", axes, SHARED, count_only=count_only, out=out, jobs=jobs, progress=progress)
        took = time.perf_counter() - since
        rows = list(found.rows)
    return Swept(rows, took, memory.peak_bytes, memory.processes)


def run_small(jobs: int, count_only: bool) -> tuple[int, float, int]:
    """The small sweep in this process and those that it starts: points, seconds, bytes."""
    swept = run({**SMALL, "sram": MORE_SRAM} if count_only else SMALL, jobs, count_only)
    return len(swept.rows), swept.seconds, swept.peak_bytes


def differences(row: SweepRow, count_only: bool) -> list[str]:
    """What a single run of a row's point says otherwise than the row."""
    at = row.point
    n = int(at["seq-len"])
    problem = Attention(
        heads=int(SHARED["heads"]), seq_len_q=n, seq_len_k=n, head_dim=int(SHARED["head-dim"]),
        causal=at["causal"] == "true",
    )  # fmt: skip
    block_m, block_n = map(int, at["tile"].split("x"))
    tile = Tile(block_m, block_n, int(SHARED["num-warps"]), int(SHARED["num-stages"]))
    try:
        total = simulate(
            "flash", problem, gpu=at["gpu"], gpu_options={"sram": at["sram"]}, tile=tile, count_only=count_only
        ).total
    except MemsimError as refusal:
        return (
            [] if row.status != "ok" and row.reason == str(refusal) else [f"{at}: {row.status}, but alone: {refusal}"]
        )
    if row.status != "ok":
        return [f"{at}: {row.status}, but alone it runs"]
    single, swept = ([getattr(of, name) for name in COMPARED] for of in (total, row))
    return [f"{at}: {n} is {b}, alone {a}" for n, a, b in zip(COMPARED, single, swept, strict=True) if a != b]


def large(points: int, jobs: int, count_only: bool) -> int:
    """The large sweep, and its sample. Returns the exit code: 1 if a row of the sample differs."""
    swept = run(axes_of(points), jobs, count_only, show=True)
    rows = swept.rows
    status = ", ".join(f"{count:,} {name}" for name, count in Counter(row.status for row in rows).most_common())
    print(f"\n{len(rows):,} points by {jobs} process{'es' if jobs > 1 else ''}: {status}.")
    print(f"{seconds(swept.seconds)}, {len(rows) / swept.seconds:,.1f} points a second.")
    print(f"At most {megabytes(swept.peak_bytes)}; most processes at a time: {swept.processes}.")
    ok = [row for row in rows if row.status == "ok"]
    refused = [row for row in rows if row.status != "ok"]
    rng = random.Random(0)
    sample = rng.sample(ok, min(SAMPLE, len(ok))) + rng.sample(refused, min(SAMPLE // 4, len(refused)))
    wrong = [text for row in sample for text in differences(row, count_only)]
    print(f"{len(sample)} rows held against single runs: {len(sample) - len(wrong)} equal, {len(wrong)} differ.")
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong else 0


def small() -> int:
    """The small sweep, counted and replayed, by one process and by two, each time in processes of its own."""
    rows = []
    for counted, name in ((True, "counted"), (False, "replayed")):
        first = 0.0
        for jobs in (1, 2):
            with tempfile.TemporaryDirectory() as cache:
                try:
                    measured = of_its_own(__file__, "run_small", jobs, counted, environment={"MEMSIM_CACHE": cache})
                except Failed as error:
                    print(f"not by {jobs} processes: {error}")
                    continue
            points, took, peak = measured.value
            first = first or took
            rows.append(
                [
                    name,
                    str(jobs),
                    f"{points}",
                    seconds(took),
                    f"{points / took:,.1f}",
                    f"{first / took:.2f}",
                    megabytes(peak),
                ]
            )
    table(("points", "processes", "number", "time", "a second", "speed-up", "peak memory"), rows)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, help="the large sweep, with so many points")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes of the large sweep")
    parser.add_argument("--count-only", action="store_true", help="leave the replay of the large sweep out")
    options = parser.parse_args()
    heading(__doc__ or "")
    try:
        return large(options.points, options.jobs, options.count_only) if options.points is not None else small()
    except MemsimError as error:
        print(error)
        return 0


if __name__ == "__main__":
    sys.exit(main())
