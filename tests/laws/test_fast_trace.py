"""Law 8, for replays by trace: leaving out what is alike gives the answer of replaying all of it.

What takes a few seconds is replayed in full, so that there both are equal in every figure. Of what takes longer fills
and stores are equal, and HBM bytes where there is no L2; time is within 1 %, causal within 2 %, HBM bytes within 1 %
(of what is asked for, a fiftieth at least). `pytest -s` prints how far off each problem is.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memsim import Attention, Gpu, MemsimError, Tile, load_gpu
from memsim._kernels import machine_launch
from memsim.api import prepare
from memsim.gpu import override
from memsim.grid import ORDERS
from memsim.machine import LaunchTiming, fast, replay
from memsim.machine.leap import Paces
from memsim.machine.trip_leaps import TripLeaps
from memsim.machine.warming import Warming

from .problems import scaled

PLAIN, CAUSAL, HBM = 0.01, 0.02, 0.01
GPUS = ("a100-80gb", "h100-sxm", "b200", "rtx-4090", "two-level")


def fewer_sms(gpu: Gpu, sms: int, hbm: float, l2: bool) -> Gpu:
    """A machine cut down to a few SMs, HBM slower or faster for them, and with no L2 if so asked."""
    share = sms / gpu.sm.count
    changes: dict[str, Any] = {
        "sm.count": sms, "hbm.bandwidth_bytes_per_s": gpu.hbm.bandwidth_bytes_per_s * share * hbm
    }  # fmt: skip
    if gpu.l2 is not None:
        changes |= {"l2.bandwidth_bytes_per_s": gpu.l2.bandwidth_bytes_per_s * share} if l2 else {"l2": None}
    return override(gpu, changes)


def launches_of(algorithm: str, problem: Attention, gpu: Gpu, tile: Tile) -> list[Any]:
    ready = prepare(algorithm, problem, gpu, tile)
    return [
        machine_launch(gpu, trace, resources, problem, ready.tile)
        for trace, resources in zip(ready.traces, ready.resources, strict=True)
    ]


def both(gpu: Gpu, launches: list[Any], warm: bool = False) -> list[tuple[LaunchTiming, LaunchTiming]]:
    leapt, full = (replay(gpu, launches, warm=warm, full=whole).launches for whole in (False, True))
    return list(zip(leapt, full, strict=True))


def off(leapt: LaunchTiming, full: LaunchTiming) -> tuple[float, float]:
    """(how far off the time is, how far the HBM bytes are)."""
    bytes_full, bytes_leapt = (t.hbm_read_bytes + t.hbm_write_bytes for t in (full, leapt))
    return abs(leapt.time_s / full.time_s - 1), abs(bytes_leapt - bytes_full) / max(bytes_full, full.fill_bytes / 50)


def of(heads: int, group: int, length: int, head_dim: int, causal: bool) -> Attention:
    return Attention(1, heads, heads // group, length, length, head_dim, causal=causal)


def tile(size: int, stages: int, order: str) -> Tile:
    return Tile(size, size, 4, stages, grid_order=order)


CASES = [
    ("flash", load_gpu("a100-80gb"), of(12, 2, 8192, 32, False), tile(64, 3, "longest-first")),
    ("flash", fewer_sms(load_gpu("b200"), 27, 1.0, True), of(6, 2, 8192, 128, True), tile(32, 2, "rows-reversed")),
    ("flash", fewer_sms(load_gpu("rtx-4090"), 27, 1.0, True), of(6, 2, 8192, 64, True), tile(32, 3, "longest-first")),
    ("flash", fewer_sms(load_gpu("two-level"), 27, 1.0, True), of(3, 1, 8192, 64, False), tile(32, 4, "rows-reversed")),
    ("flash", fewer_sms(load_gpu("a100-80gb"), 27, 1.0, True), of(20, 4, 8192, 32, True), tile(64, 2, "rows-reversed")),
    ("flash1", fewer_sms(load_gpu("h100-sxm"), 13, 1.0, True), of(5, 1, 8192, 32, False), Tile(64, 64, 4, 3)),
    ("naive", fewer_sms(load_gpu("h100-sxm"), 54, 0.6, False), of(14, 1, 8192, 64, False), Tile(64, 64, 4, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1].name}-{case[1].sm.count}")
def test_leaving_out_gives_the_answer_of_replaying_all(case: tuple[str, Gpu, Attention, Tile]) -> None:
    algorithm, gpu, problem, shape = case
    launches = launches_of(algorithm, problem, gpu, shape)
    timings = both(gpu, launches[:1])
    assert any(leapt != full for leapt, full in timings), "nothing was left out"
    for leapt, full in timings:
        time, hbm = off(leapt, full)
        print(f"{full.name} on {gpu.name}, {gpu.sm.count} SMs: {problem} {shape}: time {time:.3%}, HBM {hbm:.3%} off")
        assert (leapt.fill_bytes, leapt.store_bytes) == (full.fill_bytes, full.store_bytes)
        asked, in_full = ({n: t.read_bytes for n, t in of.tallies.items()} for of in (leapt, full))
        assert asked == in_full
        if gpu.l2 is None:
            assert (leapt.hbm_read_bytes, leapt.hbm_write_bytes) == (full.hbm_read_bytes, full.hbm_write_bytes)
        assert time < (CAUSAL if problem.causal else PLAIN)
        assert hbm < HBM
        for resource, share in full.busy.items():
            assert leapt.busy[resource] == pytest.approx(share, abs=0.02)
        assert leapt.waiting_for_memory == pytest.approx(full.waiting_for_memory, abs=0.02)


@settings(max_examples=scaled(15))
@given(
    st.sampled_from(("flash", "naive", "flash1")), st.sampled_from(GPUS), st.integers(1, 3), st.integers(200, 1500),
    st.booleans(), st.sampled_from(tuple(ORDERS)),
)  # fmt: skip
def test_what_takes_a_few_seconds_is_replayed_in_full(
    algorithm: str, name: str, heads: int, length: int, causal: bool, order: str
) -> None:
    gpu = load_gpu(name)
    problem = of(heads, 1, length, 64, causal)
    try:
        launches = launches_of(
            algorithm, problem, gpu, tile(64, 2, order) if algorithm == "flash" else Tile(64, 64, 4, 2)
        )
    except MemsimError:
        assume(False)
    for leapt, full in both(gpu, launches):
        assert leapt == full


# ---- Would a fault be seen? On launches small enough to leap only if they are let.


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "LEAST_OPERATIONS", 0)


A100 = override(load_gpu("a100-80gb"), {"sm.count": 27})
FLASH = Attention(1, 8, None, 4096, 4096, 64)


@pytest.mark.usefixtures("leaping")
def test_faults_in_leaps_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leap that tells the L2 nothing, one that takes no time, turnovers and paces that are not those measured."""
    launches = launches_of("flash", FLASH, A100, tile(64, 3, "rows-fast"))
    full = replay(A100, launches, full=True).launches[0]

    def how_far() -> tuple[float, float]:
        return off(replay(A100, launches).launches[0], full)

    time, hbm = how_far()
    assert time < PLAIN and hbm < HBM
    with monkeypatch.context() as patch:
        patch.setattr(Warming, "flush", lambda self, now: (self._once.clear(), self._spans.clear()))
        assert how_far()[1] > HBM
    leave_out = TripLeaps._leave_out
    with monkeypatch.context() as patch:
        patch.setattr(TripLeaps, "_leave_out", lambda self, ps, *more: leave_out(self, 0.95 * ps, *more))
        assert how_far()[0] > PLAIN
    at = Paces.at
    with monkeypatch.context() as patch:
        patch.setattr(Paces, "at", lambda self, *given: 1.05 * at(self, *given))
        assert how_far()[0] > PLAIN
