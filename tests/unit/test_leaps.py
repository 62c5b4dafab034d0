"""Are blocks left out of a replay only where they go like those before them, and is the rest as if they had run?

On the made-up machine and hand-written streams of test_paced, where a block's time is known without running it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from memsim import Attention, Gpu, Tile, load_gpu, simulate
from memsim.gpu import override
from memsim.machine import LaunchTiming, leaps, paced, replay
from memsim.machine.leaps import Leaps
from memsim.machine.units import Units
from memsim.machine.untimed import PassOver
from memsim.trace import Bound, LaunchTrace, Load, Loop, Ring, Store, Tensor, TileRef, symbol

from .test_paced import BLOCK, DRAIN, GPU, LAUNCH, ROWS, START, ZERO, K, compiled, cycles

OUT = Tensor("O", 1, 1, 1_000_000, 16, "float16", 10_000_000)
DIRTY = override(
    GPU, {"l2.capacity_bytes": 4 << 20, "l2.dirty_limit_bytes": 1 << 19, "hbm.bandwidth_bytes_per_s": 1e13}
)
EACH = 4 * START + DRAIN
TILE_BYTES = ROWS * 32
H = 2**20


@pytest.fixture(autouse=True)
def short_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of these blocks move little, which would not keep a real one from being replayed whole."""
    monkeypatch.setattr(leaps, "LEAST_MOVED_BYTES", 0)


def both(launches: list[LaunchTrace], *, gpu: Gpu = GPU, per_sm: int = 1, **more: Any) -> list[list[LaunchTiming]]:
    """The launches by the fast path and replayed whole."""
    given = [(launch, per_sm, compiled(BLOCK)) for launch in launches]
    return [list(replay(gpu, given, full=full, **more).launches) for full in (False, True)]


def stores(blocks: int, trips: int = 4) -> LaunchTrace:
    """Blocks that share their loads and store a tile each."""
    loop = Loop("j", 0, trips, (Load(TileRef(K, ZERO, ZERO, symbol("j") * ROWS, ZERO, ROWS, 16), "k",
                                     Ring("K", 2, TILE_BYTES)),))  # fmt: skip
    store = Store(TileRef(OUT, ZERO, ZERO, symbol("i") * ROWS, ZERO, ROWS, 16), "o")
    return LaunchTrace("t", (("i", blocks),), (loop, store), values=("o",))


def loads(blocks: int) -> LaunchTrace:
    """Blocks that load what `stores` has stored."""
    load = Load(TileRef(OUT, ZERO, ZERO, symbol("i") * ROWS, ZERO, ROWS, 16), "o")
    loop = stores(blocks).body[0]
    return LaunchTrace("u", (("i", blocks),), (load, loop), values=())


def causal(rows: int, planes: int) -> LaunchTrace:
    """Block i of a plane makes i + 1 trips."""
    (loop, _) = stores(1).body
    assert isinstance(loop, Loop)
    masked = replace(loop, stop=Bound("i", lambda values: values + 1))
    return LaunchTrace("t", (("i", rows), ("p", planes)), (masked,), values=())


def test_identical_blocks_take_so_many_times_as_long_as_one() -> None:
    """On two SMs half of them run one after the other, each 200 + 4 · 50 + 100 cycles, and what they store is written
    at once, HBM being fast."""
    gpu = override(DIRTY, {"sm.count": 2})
    for blocks in (2000, 6000):
        (fast,), (full,) = both([stores(blocks)], gpu=gpu)
        assert fast.blocks_left_out > blocks // 2 and full.blocks_left_out == 0
        for timing in (fast, full):
            # The first two blocks fetch their tiles, 700 cycles each at most.
            assert cycles(timing) == pytest.approx(LAUNCH + blocks // 2 * (EACH + 500), abs=4 * 700)
            assert (timing.fill_bytes, timing.store_bytes) == (blocks * 4 * TILE_BYTES, blocks * TILE_BYTES)


def test_causal_blocks_are_left_out_by_planes() -> None:
    """Planes of 8 blocks that make 1 to 8 trips, all on one SM: 8 · 300 + 36 · 50 a plane."""
    (fast,), (full,) = both([causal(8, 60)], gpu=DIRTY, warm=True)
    assert fast.blocks_left_out > 0 and fast.blocks_left_out % 8 == 0
    assert cycles(fast) == pytest.approx(LAUNCH + 60 * (8 * (EACH + 300) + 36 * 50), rel=1e-3)
    assert fast.fill_bytes == full.fill_bytes == 60 * 36 * TILE_BYTES


def test_short_launches_are_replayed_whole() -> None:
    assert both([stores(10)], gpu=DIRTY)[0][0].blocks_left_out == 0


@pytest.mark.parametrize("limit_share", [0.5, 1.0])
def test_blocks_before_a_change_say_nothing_of_those_after_it(limit_share: float) -> None:
    """HBM takes longer for a stored tile, 2,048 ns, than a block, 640, and the L2 holds them back while less than
    its limit is dirty, or while it is not full: only then the launch has its pace."""
    capacity = 4 * H
    gpu = override(
        GPU,
        {"l2.capacity_bytes": capacity, "l2.dirty_limit_bytes": int(capacity * limit_share),
         "hbm.bandwidth_bytes_per_s": 1e9},
    )  # fmt: skip
    blocks = 12_000
    (fast,), (full,) = both([stores(blocks)], gpu=gpu)
    before = int(capacity * limit_share) // TILE_BYTES
    assert 0 < fast.blocks_left_out < blocks - before
    assert fast.time_s == pytest.approx(full.time_s, rel=0.005)
    assert fast.time_s > 1.5 * blocks * 640e-9
    hbm = [of.hbm_read_bytes + of.hbm_write_bytes for of in (fast, full)]
    assert hbm[0] == pytest.approx(hbm[1], rel=0.01)


def test_the_next_launch_finds_the_l2_as_if_all_had_run() -> None:
    """What 12,000 blocks stored last is in the L2, the rest is not; those that load it find it from the front."""
    gpu = override(GPU, {"l2.capacity_bytes": 4 * H, "l2.dirty_limit_bytes": H})
    for second in (loads(2000), loads(12_000), stores(12_000)):
        fast, full = both([stores(12_000), second], gpu=gpu)
        assert fast[0].blocks_left_out > 0
        assert abs(fast[0].dirty_bytes_at_end - full[0].dirty_bytes_at_end) <= leaps.LEAST_PIECE_BYTES
        assert abs(fast[1].hbm_read_bytes - full[1].hbm_read_bytes) <= 2 * leaps.LEAST_PIECE_BYTES
        written = [of[0].hbm_write_bytes + of[1].hbm_write_bytes + of[1].dirty_bytes_at_end for of in (fast, full)]
        assert written[0] == written[1]


def test_what_the_l2_was_asked_for_is_counted_once() -> None:
    gpu = override(GPU, {"l2.capacity_bytes": 4 * H, "l2.dirty_limit_bytes": H})
    (fast,), (full,) = both([stores(12_000)], gpu=gpu)
    assert fast.blocks_left_out > 0
    assert {name: (of.read_bytes, of.missed_bytes) for name, of in fast.tallies.items()} == {
        name: (of.read_bytes, of.missed_bytes) for name, of in full.tallies.items()
    }
    # Without an L2 every fill is HBM's.
    (fast,), (full,) = both([stores(12_000)], gpu=override(GPU, {"l2": None}))
    assert fast.blocks_left_out > 0
    for one, other in ((fast.hbm_read_bytes, full.hbm_read_bytes), (fast.hbm_write_bytes, full.hbm_write_bytes)):
        assert one == other
    assert fast.hbm_read_bytes == fast.fill_bytes


def test_progress_ends_when_the_blocks_at_hand_do() -> None:
    told: list[tuple[str, int, int]] = []
    (timing,) = replay(DIRTY, [(stores(3000), 1, compiled(BLOCK))], progress=lambda *said: told.append(said)).launches
    assert timing.blocks_left_out > 0
    name, done, of = told[-1]
    assert name == "t" and of == 3000 - timing.blocks_left_out
    assert of - done <= 200
    assert all(a[1] <= b[1] for a, b in pairwise(told))


def test_busy_and_waiting_are_shares_of_all_of_the_time() -> None:
    gpu = override(GPU, {"l2.capacity_bytes": 4 * H, "l2.dirty_limit_bytes": H})
    (fast,), (full,) = both([stores(12_000)], gpu=gpu)
    for name, share in full.busy.items():
        assert fast.busy[name] == pytest.approx(share, abs=0.01)
    for name, waited_s in full.waited.items():
        assert fast.waited[name] == pytest.approx(waited_s, rel=0.02, abs=1e-9)


DRIFTS = (Attention(5, 18, 9, 256, 512, 128), Tile(64, 64, 4, 3))


def test_blocks_that_drift_apart_are_replayed_whole() -> None:
    """Naive's pv on six SMs: its blocks start in step and wait for HBM at once; at the end they take a tenth less."""
    gpu = override(
        load_gpu("h200"),
        {"sm.count": 6, "hbm.bandwidth_bytes_per_s": 6.5e10, "l2.capacity_bytes": H, "l2.dirty_limit_bytes": 471_859,
         "l2.bandwidth_bytes_per_s": 4.45e11},
    )  # fmt: skip
    problem, tile = DRIFTS
    fast, full = (simulate("naive", problem, gpu=gpu, tile=tile, full=full).launch("pv") for full in (False, True))
    assert fast.time_s == pytest.approx(full.time_s, rel=0.01)


def leap_with(**changes: Any) -> Any:
    right = Leaps.see

    def see(self: Leaps, block: int, now: int) -> Any:
        leap = right(self, block, now)
        if leap is not None:
            self.leap = leap = replace(leap, **{name: change(leap) for name, change in changes.items()})
        return leap

    return see


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "time twice": (
        Leaps, "see", leap_with(time_ps=lambda leap: 2 * leap.time_ps),
        "test_identical_blocks_take_so_many_times_as_long_as_one",
    ),
    "time not at all": (
        Leaps, "see", leap_with(time_ps=lambda leap: 0.0), "test_causal_blocks_are_left_out_by_planes",
    ),
    "fills forgotten": (
        Units, "totals", lambda self, first, last: ({}, 0), "test_identical_blocks_take_so_many_times_as_long_as_one",
    ),
    "the L2 not passed over": (
        Leaps, "pass_over", lambda self, spill: None, "test_the_next_launch_finds_the_l2_as_if_all_had_run",
    ),
    "a change leapt over": (
        Leaps, "_alike_in_bytes", lambda self, *of: True, "test_blocks_before_a_change_say_nothing_of_those_after_it",
    ),
    "drifting blocks": (Leaps, "_settled", lambda self, *of: True, "test_blocks_that_drift_apart_are_replayed_whole"),
    "misses twice": (
        PassOver, "_touch", None, "test_what_the_l2_was_asked_for_is_counted_once",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, test = FAULTS[fault]
    if fault == "misses twice":
        account = paced.PacedRun._account

        def twice(self: Any, leap: Any) -> None:
            account(self, leap)
            for tally in self._memory.tallies.values():
                tally.missed_bytes += tally.missed_bytes

        owner, name, wrong = paced.PacedRun, "_account", twice
    if fault == "drifting blocks":
        monkeypatch.setattr(leaps, "_repeat", lambda *of: True)
        monkeypatch.setattr(Leaps, "_alike_in_bytes", lambda self, *of: True)
    monkeypatch.setattr(owner, name, wrong)
    arguments = (1.0,) if "change" in test else ()
    with pytest.raises(AssertionError):
        globals()[test](*arguments)


def test_the_next_launch_finds_what_it_would_find_after_a_full_replay() -> None:
    """One head of naive attention whose P outgrows the L2: pv finds the end of P, and softmax, of which blocks are left
    out, has left as much of it beside S."""
    problem = Attention(heads=1, seq_len_q=6144, seq_len_k=6144, head_dim=128)
    fast, full = (simulate("naive", problem, gpu="h200", full=of).launches for of in (False, True))
    assert fast[1].blocks_left_out > 0
    for name in ("hbm_read_bytes", "hbm_write_bytes", "time_s"):
        assert getattr(fast[2], name) == pytest.approx(getattr(full[2], name), rel=0.01)
