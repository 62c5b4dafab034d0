"""How much faster is the fast path than replaying every tile, and how far off is it?

Processor time of one core, the least of some runs, both in this process and after a first run has worked out the paces
of compiled kernels. HBM bytes and time are the fast path's less the full replay's, in per cent of the latter.

python benchmarks/fast_path.py [--large]       also problems whose full replay takes minutes
python benchmarks/fast_path.py --problems N    how far off it is on N random problems: the distribution and the worst
"""

from __future__ import annotations

import argparse
import functools
import inspect
import random
import sys
from statistics import fmean
from typing import Any

import _fast_problems
from _bench import heading, least_processor_s, line, seconds, table

from memsim import Attention, MemsimError, Result, Tile, simulate

COLUMNS = ("GPU, algorithm, heads × N × d, tile", "tile ops", "full", "fast", "full / fast", "HBM bytes", "time")
WIDTHS = (58, 11, 8, 8, 11, 9, 8)


def square(heads: int, n: int, d: int, causal: bool = False) -> Attention:
    return Attention(heads=heads, seq_len_q=n, seq_len_k=n, head_dim=d, causal=causal)


CASES = [
    (gpu, algorithm, problem, Tile(64, 64, 4, 2))
    for gpu in ("two-level", "h100-sxm", "h200")
    for algorithm, problem in (
        ("flash", square(16, 1024, 64)),
        ("flash", square(16, 4096, 64)),
        ("flash", square(16, 4096, 64, causal=True)),
        ("flash", square(15, 3000, 64)),
        ("naive", square(8, 1024, 64)),
    )
]
LARGE = [
    (gpu, "flash", square(16, 16384, 64, causal), Tile(64, 64, 4, 2))
    for gpu in ("a100-80gb", "h200") for causal in (False, True)
]  # fmt: skip


def off(fast: float, full: float) -> str:
    return f"{100 * (fast / full - 1):+.2f} %"


def on_random_problems(problems: int, seed: int) -> None:
    """How far the fast path is off on random problems and machines, for those of which it left blocks out."""
    choose = random.Random(seed).choice
    found: list[tuple[bool, dict[str, float], Any]] = []
    replayed = 0
    while replayed < problems:
        case = _fast_problems.draw(choose)
        try:
            fast = case.run(full=False)
        except MemsimError:
            # A tile that does not fit.
            continue
        replayed += 1
        if any(launch.blocks_left_out for launch in fast.launches):
            off_by = _fast_problems.differences(fast.total, case.run(full=True).total)
            found.append((case.problem.causal, off_by, case))
    print(
        f"\n{replayed:,} random problems (seed {seed}), blocks left out in {len(found):,} of them; per cent, absolute"
    )
    widths = (24, 8, 8, 8)
    table(("", "mean", "95 %", "worst"), widths=widths)
    worst: dict[str, Any] = {}
    for name in found[0][1] if found else ():
        for causal in (False, True):
            of = sorted(((abs(by[name]), at) for at, (is_causal, by, _) in enumerate(found) if is_causal == causal))
            if of:
                values = [value for value, _ in of]
                cells = (fmean(values), values[int(0.95 * len(values))], values[-1])
                label = f"{name}, {'causal' if causal else 'full'}"
                line([label, *(f"{100 * value:.3f}" for value in cells)], widths)
                worst[label] = found[of[-1][1]][2]
    for label in ("time, full", "time, causal", "HBM bytes, full", "HBM bytes, causal"):
        print(f"worst {label}: {worst.get(label)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="problems whose full replay takes minutes too")
    parser.add_argument("--problems", type=int, default=0, metavar="N", help="random problems instead")
    parser.add_argument("--seed", type=int, default=1, help="which random problems")
    options = parser.parse_args()
    heading(__doc__ or "")
    if "full" not in inspect.signature(simulate).parameters:
        print(
            "\nThis memsim has one replay, which takes every tile: there is nothing to compare it with.",
            file=sys.stderr,
        )
        return
    if options.problems:
        on_random_problems(options.problems, options.seed)
        return
    table(COLUMNS, widths=WIDTHS)
    unequal = 0
    for gpu, algorithm, problem, tile in CASES + (LARGE if options.large else []):
        results: dict[bool, Result] = {}

        def run(full: bool, found: dict[bool, Result], call: functools.partial[Result]) -> None:
            found[full] = call(full=full)

        call = functools.partial(simulate, algorithm, problem, gpu=gpu, tile=tile)
        run(False, results, call)
        times = {
            full: least_processor_s(functools.partial(run, full, results, call), 1 if full else 3)
            for full in (False, True)
        }
        fast, whole = results[False].total, results[True].total
        moved = [(of.sram_fill_bytes, of.sram_store_bytes) for of in (fast, whole)]
        unequal += moved[0] != moved[1]
        p = problem
        label = (
            f"{gpu}, {algorithm}, {p.heads} × {p.seq_len_q:,} × {p.head_dim}{', causal' if p.causal else ''}, {tile}"
        )
        line(
            [
                label, f"{whole.tile_operations:,}", seconds(times[True]), seconds(times[False]),
                f"{times[True] / times[False]:.1f}", off(fast.hbm_bytes, whole.hbm_bytes),
                off(fast.time_s or 0.0, whole.time_s or 0.0),
            ],
            WIDTHS,
        )  # fmt: skip
    print(f"\nSRAM fills and stores: equal in all but {unequal}.")


if __name__ == "__main__":
    main()
