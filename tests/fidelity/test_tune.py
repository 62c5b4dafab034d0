"""Are the tiles that tuning picks those that an H200 ran fastest, and do pruned lists still have the fastest?

From stored replays: those of the judged rows (test_stored.py holds them against new ones), and tuned.csv, which
`python benchmarks/tune.py --write` makes.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from types import ModuleType

import pytest

from memsim import simulate

from ..benchmark_modules import benchmark as benchmark_module

ROOT = Path(__file__).parents[2]
BAR = 1.03
WORST_PICK = 1.10
# Replays by another path of the simulator may differ by so much.
CLOSE = 0.02
QUICK_BLOCKS = 200


def benchmark() -> ModuleType:
    return benchmark_module("tune")


def test_the_pick_costs_little_more_than_the_best_measured() -> None:
    picks = benchmark().picks()
    assert len(picks) == 36 and all(pick.measured == pick.compared >= 19 for pick in picks)
    over = [pick.over_best for pick in picks]
    print(f"picks: mean {statistics.fmean(over):.3f}, worst {max(over):.3f} of {len(over)}")
    assert statistics.fmean(over) <= BAR and max(over) <= WORST_PICK
    assert min(over) == 1


def test_pruned_lists_keep_the_best_measured() -> None:
    stored = benchmark().read_stored()
    costs = [benchmark().pruned(stored, one) for one in benchmark().lists()]
    for cost in costs:
        print(cost)
    of_200 = [cost for cost in costs if cost.candidates == benchmark().CANDIDATES]
    assert len(of_200) == 2 * len(benchmark().PRUNED) and len(costs) == len(of_200) + 3
    assert all(cost.measured == cost.candidates for cost in costs if cost not in of_200)
    assert all(cost.kept_measured >= 1 for cost in costs)
    assert max(cost.over_best for cost in costs) <= BAR


def test_what_is_stored_is_near_what_a_replay_says_now() -> None:
    found = 0
    for (problem, tile), (time_s, hbm_bytes) in [*benchmark().read_stored().items()][::9]:
        if problem.heads * problem.seq_len_q // tile.block_m <= QUICK_BLOCKS:
            total = simulate("flash", problem, tile=tile).total
            # If not: python benchmarks/tune.py --write
            assert total.time_s == pytest.approx(time_s, rel=CLOSE), (problem, tile)
            assert total.hbm_bytes == pytest.approx(hbm_bytes, rel=CLOSE), (problem, tile)
            found += 1
    assert found >= 10


@pytest.mark.parametrize(
    "change",
    [lambda time_s: -time_s, lambda time_s: math.sin(1e9 * time_s), lambda time_s: 1.0],
    ids=["slowest first", "at random", "all alike"],
)
def test_a_wrong_order_shows(change) -> None:  # type: ignore[no-untyped-def]
    picks = [pick.over_best for pick in benchmark().picks(change)]
    assert statistics.fmean(picks) > BAR
    stored = benchmark().read_stored()
    costs = [benchmark().pruned(stored, one, change).over_best for one in benchmark().lists()]
    assert max(costs) > BAR


def test_the_documentation_says_what_the_benchmark_prints() -> None:
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    assert benchmark().summary() in text
