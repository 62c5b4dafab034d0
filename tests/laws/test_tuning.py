"""Tuning finds what simulating every candidate finds: the same best, in the same order, though it replays only some.

And what it goes by when it passes candidates over holds: none is quicker, or moves less, than the least it is said to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsim
from memsim import Attention, Gpu, MemsimError, Result, Tile, Tuning, load_gpu, simulate
from memsim import _tune_search as search
from memsim.gpu import override
from memsim.sweep import workers_for
from memsim.tile import SPECIALIZED_SEEN_RIGHT, cdiv
from memsim.tune import Plan, plan_of

from .problems import scaled

SIDES, STAGES = (16, 64), (1, 2)
BEST = 4
ORDERS_TRIED = {False: ("rows-fast", "persistent"), True: ("rows-fast", "longest-first")}


def candidates(algorithm: str, gpu: Gpu, orders: tuple[str, ...]) -> list[Tile]:
    """A small space with every kind of candidate."""
    paths = ("pointer", "descriptor", "descriptor-ws") if algorithm == "flash" and gpu.architecture == "sm_90" else (
        "pointer",
    )  # fmt: skip
    tiles = [
        Tile(m, n, w, s, path, order)
        for m in (*SIDES, 128) for n in SIDES for w in (4,) for s in STAGES for path in paths for order in orders
    ]  # fmt: skip
    return tiles


def exhaustive(
    algorithm: str, problem: Attention, gpu: Gpu, tiles: list[Tile], by: str, **options: Any
) -> list[tuple[Tile, float]]:
    """Every candidate simulated and sorted, by nothing of the tuner's own."""
    found: list[tuple[int, tuple[float, float, int, int], Tile]] = []
    for number, tile in enumerate(tiles):
        if not offered(problem, tile):
            continue
        try:
            result = simulate(algorithm, problem, gpu=gpu, tile=tile, **options)
        except MemsimError:
            continue
        if tile.grid_order == "persistent" and waves(result, gpu) <= 1 and "rows-fast" in {t.grid_order for t in tiles}:
            continue
        time_s, moved = result.total.time_s or 0.0, result.total.hbm_bytes
        costs = (time_s, moved) if by == "time" else (moved, time_s)
        sram = max(launch.sram_bytes for launch in result.launches)
        found.append((kind(result, gpu), (*costs, sram, number), tile))
    best = min((entry[0] for entry in found), default=0)
    return [(tile, key[0]) for _, key, tile in sorted(entry for entry in found if entry[0] == best)]


def offered(problem: Attention, tile: Tile) -> bool:
    if tile.load_path != "descriptor-ws":
        return True
    plain = Tile(tile.block_m, tile.block_n, tile.num_warps, tile.num_stages, tile.load_path)
    return not problem.causal and plain in SPECIALIZED_SEEN_RIGHT and tile.grid_order != "persistent"


def waves(result: Result, gpu: Gpu) -> int:
    return max(cdiv(launch.blocks, gpu.sm.count * launch.blocks_per_sm) for launch in result.launches)


def kind(result: Result, gpu: Gpu) -> int:
    if result.counted_only:
        known = [launch.registers_from in ("table", "compiled") for launch in result.launches]
    else:
        known = [launch.replayed_by in ("instructions", None) for launch in result.launches]
    if gpu.calibrated is not None and all(known):
        return 0
    return 2 if any(" spills:" in note or " would spill:" in note for note in result.notes) else 1


@st.composite
def machines(draw: st.DrawFn) -> Gpu:
    gpu = load_gpu(draw(st.sampled_from(("two-level", "h200", "a100-40gb", "rtx-4090"))))
    changes: dict[str, Any] = {
        "sm.count": draw(st.integers(1, 6)),
        "hbm.bandwidth_bytes_per_s": 10 ** draw(st.floats(9.5, 12.7)),
        "sm.pipes.exp_per_clock.float32": draw(st.sampled_from((1, 16))),
    }
    if gpu.l2 is not None:
        changes |= draw(
            st.sampled_from(
                (
                    {},
                    {"l2": None},
                    {"l2.bandwidth_bytes_per_s": 1e11},
                    {"l2.capacity_bytes": 1 << 17, "l2.dirty_limit_bytes": 1 << 16},
                )
            )
        )
    return override(gpu, changes)


CASES: dict[str, Any] = {
    "algorithm": st.sampled_from(("flash", "flash", "flash", "naive", "flash1")),
    "problem": st.builds(
        Attention,
        batch=st.integers(1, 2),
        heads=st.sampled_from((2, 4)),
        kv_heads=st.sampled_from((None, 1, 2)),
        seq_len_q=st.integers(1, 150),
        seq_len_k=st.integers(0, 150),
        head_dim=st.sampled_from((16, 64, 72)),
        dtype=st.sampled_from(("float16", "bfloat16", "float32")),
        causal=st.booleans(),
    ),
    "gpu": machines(),
    "by": st.sampled_from(search.BY),
    "l2_state": st.sampled_from(("cold", "warm")),
    "inputs": st.sampled_from(("hbm", "host")),
}


def check(algorithm: str, problem: Attention, gpu: Gpu, by: str, **options: Any) -> Tuning | None:
    orders = ORDERS_TRIED[problem.causal] if algorithm == "flash" else ("rows-fast",)
    tiles = candidates(algorithm, gpu, orders)
    right = exhaustive(algorithm, problem, gpu, tiles, by, **options)
    try:
        found = memsim.tune(problem, algorithm=algorithm, gpu=gpu, by=by, tiles=tiles, best=BEST, **options)
    except MemsimError:
        assert not right
        return None
    costs = [candidate.time_s if by == "time" else candidate.hbm_bytes for candidate in found.best]
    assert [(c.tile, cost) for c, cost in zip(found.best, costs, strict=True)] == right[:BEST]
    assert len(found.ranked) + found.passed_over == len(right)
    assert found.candidates == len(tiles) == len(right) + sum(refusal.count for refusal in found.refusals)
    return found


@settings(max_examples=scaled(20))
@given(**CASES)
def test_tuning_finds_what_simulating_all_finds(
    algorithm: str, problem: Attention, gpu: Gpu, by: str, l2_state: str, inputs: str
) -> None:
    check(algorithm, problem, gpu, by, l2_state=l2_state, inputs=inputs)


@settings(max_examples=scaled(20))
@given(**CASES)
def test_no_candidate_costs_less_than_the_least_it_is_said_to(
    algorithm: str, problem: Attention, gpu: Gpu, by: str, l2_state: str, inputs: str
) -> None:
    orders = ("longest-first" if problem.causal else "persistent",) if algorithm == "flash" else ("rows-fast",)
    tiles = candidates(algorithm, gpu, orders)
    try:
        plan = plan_of(problem, algorithm=algorithm, gpu=gpu, tiles=tiles, best=1000, l2_state=l2_state, inputs=inputs)
        survey = plan.survey()
    except MemsimError:
        return
    assert survey.candidates
    for candidate, time_s, moved in costs_of(plan, survey.candidates):
        assert candidate.least_time_s <= time_s, candidate
        assert candidate.least_hbm_bytes <= moved, candidate


def costs_of(plan: Plan, surveyed: Any) -> Iterator[tuple[Any, float, int]]:
    for candidate in surveyed:
        row = plan.sweep.row(candidate.number)
        assert row.status == "ok" and row.time_s is not None and row.hbm_bytes is not None
        yield candidate, row.time_s, row.hbm_bytes


def test_the_bytes_of_an_algorithm_that_reads_some_rows_again_and_others_never() -> None:
    """flash1, causal, with more rows than keys: what it fills of each tensor, up to its size, is no bound."""
    problem = Attention(heads=2, seq_len_q=83, seq_len_k=17, head_dim=16, causal=True)
    gpu = override(load_gpu("h200"), {"sm.count": 1, "sm.pipes.exp_per_clock.float32": 1})
    check("flash1", problem, gpu, "hbm-bytes")


# Small tiles take much longer here, and the bounds say so.
BOUND = {"hbm.bandwidth_bytes_per_s": 2e10, "sm.count": 4}
PROBLEM = Attention(heads=8, seq_len_q=192, seq_len_k=192, head_dim=64)


@pytest.mark.parametrize("by", search.BY)
@pytest.mark.parametrize("name", ["two-level", "a100-40gb"])
def test_candidates_are_passed_over(name: str, by: str) -> None:
    """The bounds are of use: without them the law above would hold of a tuner that replays all."""
    gpu = override(load_gpu(name), BOUND | ({} if name == "two-level" else {"l2": None}))
    found = check("flash", PROBLEM, gpu, by)
    assert found is not None and found.passed_over > len(found.ranked) / 4


def test_counted_bytes_are_ranked_without_a_replay() -> None:
    gpu = override(load_gpu("two-level"), BOUND)
    found = check("flash", PROBLEM, gpu, "hbm-bytes", count_only=True)
    assert found is not None and found.counted_only and found.best[0].time_s is None


@pytest.mark.parametrize("by", search.BY)
def test_a_bound_that_is_too_high_is_caught(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    least = search.least_of
    # Higher for large tiles, which are the best here.
    monkeypatch.setattr(search, "least_of", lambda by, c: least(by, c) * (3 if c.tile.block_m > 16 else 1))
    with pytest.raises(AssertionError):
        check("flash", PROBLEM, override(load_gpu("two-level"), BOUND), by)


def test_a_search_that_stops_at_ties_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that cost as much as the last of the best may still rank before it."""

    def hopeless(self: search.Search, candidate: Any) -> bool:
        costs = self._costs
        return len(costs) >= self._best and search.least_of(self._by, candidate) >= costs[self._best - 1]

    monkeypatch.setattr(search.Search, "_is_hopeless", hopeless)
    with pytest.raises(AssertionError):
        check("flash", PROBLEM, override(load_gpu("two-level"), BOUND), "hbm-bytes")


def test_rows_that_come_in_any_order_make_the_same_ranking() -> None:
    """As from processes that run side by side, several at a time."""
    gpu = override(load_gpu("two-level"), BOUND)
    plan = plan_of(PROBLEM, gpu=gpu, best=BEST)

    class Backwards:
        def __enter__(self) -> Backwards:
            return self

        def __exit__(self, *_: object) -> None: ...

        def rows(self, plan: Any, numbers: Iterator[int], before: Any) -> Iterator[Any]:
            yield from workers_for(1, None).rows(plan, iter([*numbers][::-1]), before)

    one = plan.run(plan.survey(), workers_for(1, None))
    other = plan.run(plan.survey(), Backwards())
    assert one.best == other.best
    assert one.passed_over > 0 == other.passed_over
