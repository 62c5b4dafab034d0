"""Is a launch by instructions its blocks' paces, wave after wave? On hand-written streams and a made-up machine.

The machine: an H200 of few SMs at 1 GHz, where a launch, a warp's start and a drain take round numbers of cycles; the
streams are chains of instructions that each take their stall, so that a block's time is known without running it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memsim import Attention, Gpu, Tile, load_gpu, simulate
from memsim import stream as s
from memsim.gpu import override
from memsim.machine import Compiled, LaunchTiming, pace, paced, replay
from memsim.machine.core import PIPES, WAITS, CoreRun, MemoryTimes
from memsim.machine.l2 import L2
from memsim.machine.pace import pace_of
from memsim.machine.plan import plan_launch
from memsim.machine.times import memory_times
from memsim.stream import Stream
from memsim.trace import Bound, Index, LaunchTrace, Load, Loop, Ring, Store, Tensor, TileRef, symbol

from .test_core import CORE, MEMORY, instruction, stream

LAUNCH, START, DRAIN = 1000, 10, 100
GPU = override(
    load_gpu("h200"),
    {
        "sm.count": 1,
        "calibrated.clock_hz": 1e9,
        "calibrated.idle_tensor_clock_hz": 1e9,
        "calibrated.launch_cycles": LAUNCH,
        "calibrated.warp_start_cycles": START,
        "calibrated.drain_cycles": DRAIN,
        "calibrated.hbm_efficiency": 1.0,
        "calibrated.lockstep_wait_share": 1.0,
        "calibrated.block_spread": 0,
        "calibrated.hbm_copy_cycles": 700,
        "calibrated.copy_cycles": 200,
        "hbm.latency_s": 0,
    },
)

ZERO = Index()
ROWS = 64
K = Tensor("K", 1, 1, 100_000, 16, "float16")
O = Tensor("O", 1, 1, 100_000, 16, "float16", 10_000_000)


def rows(tensor: Tensor, at: Index) -> TileRef:
    return TileRef(tensor, ZERO, ZERO, at, ZERO, ROWS, 16)


# A block: `enter` cycles, `trip` cycles in each of its trips, `leave` cycles.
def chain(cycles: int) -> list[Any]:
    return [instruction(s.FMA, stall=10)] * (cycles // 10)


def looped(enter: int, trip: int, leave: int) -> Stream:
    return stream(chain(enter), chain(trip), chain(leave), loops=[1])


def trace(blocks: int, trips: int | Bound, *, store: bool = True) -> LaunchTrace:
    loop = Loop("j", 0, trips, (Load(rows(K, symbol("j") * ROWS), "k", Ring("K", 2, ROWS * 32)),))
    stored = (Store(rows(O, symbol("i") * ROWS), "o"),) if store else ()
    return LaunchTrace("t", (("i", blocks),), (loop, *stored), values=("o",))


def compiled(of: Stream, warps: int = 4, **more: Any) -> Compiled:
    return Compiled(of, warps, stack_bytes=0, sram_bytes=1024, box_bytes=0, dtype="float16", **more)


def run(
    of: Stream, blocks: int, trips: int | Bound, *, per_sm: int = 1, gpu: Gpu = GPU, warps: int = 4, store: bool = True,
    **more: Any,
) -> LaunchTiming:  # fmt: skip
    launched = (trace(blocks, trips, store=store), per_sm, compiled(of, warps))
    return replay(gpu, [launched], **more).launches[0]


def cycles(timing: LaunchTiming) -> float:
    return timing.time_s * timing.clock_hz


BLOCK = looped(200, 50, 100)


def test_one_block_is_its_pace_and_what_comes_before_and_after() -> None:
    timing = run(BLOCK, 1, 8)
    assert cycles(timing) == pytest.approx(LAUNCH + 4 * START + 200 + 8 * 50 + 100 + DRAIN, abs=5)
    assert timing.replayed_by == "instructions" and timing.clock_hz == 1e9
    assert (timing.fill_bytes, timing.store_bytes) == (8 * ROWS * 32, ROWS * 32)


def test_a_longer_loop_is_so_many_trips_longer() -> None:
    few, more = (cycles(run(BLOCK, 1, trips, warm=True)) for trips in (10, 1000))
    assert more - few == pytest.approx(990 * 50, rel=0.001)


def test_waves_follow_one_another() -> None:
    """Three blocks one after the other on an SM, each with its start and its drain."""
    one, three = (cycles(run(BLOCK, blocks, 8, warm=True)) for blocks in (1, 3))
    assert three - one == pytest.approx(2 * (one - LAUNCH), abs=5)
    # On three SMs they run side by side.
    assert cycles(run(BLOCK, 3, 8, gpu=override(GPU, {"sm.count": 3}), warm=True)) == pytest.approx(one, abs=5)


def test_a_tail_takes_as_long_as_a_wave() -> None:
    """Four blocks on three SMs are two waves, as six are."""
    gpu = override(GPU, {"sm.count": 3})
    four, six, seven = (cycles(run(BLOCK, blocks, 8, gpu=gpu)) for blocks in (4, 6, 7))
    assert four == pytest.approx(six, abs=5)
    assert seven - six == pytest.approx((six - LAUNCH) / 2, abs=10)


def test_an_sm_starts_one_warp_after_the_other() -> None:
    """Two blocks of 8 warps on an SM: the second starts when the first has, and ends so much later."""
    alone, together = run(BLOCK, 1, 8, warps=8), run(BLOCK, 2, 8, per_sm=2, warps=8)
    assert cycles(together) - cycles(alone) == pytest.approx(8 * START, abs=20)
    one = cycles(run(BLOCK, 1, 8, warps=8)) - cycles(run(BLOCK, 1, 8, warps=4))
    assert one == pytest.approx(4 * START, abs=5)


def test_blocks_on_an_sm_go_at_the_pace_of_so_many() -> None:
    """Exponentials: a lone block waits for latency, two take turns, four share the pipe's rate."""
    exps = [[instruction(s.EXP, stall=12)] * count for count in (10, 20, 10)]
    of = stream(*exps, loops=[1])
    times = {}
    for resident in (1, 2, 4):
        times[resident] = cycles(run(of, resident, 100, per_sm=resident)) - LAUNCH
    # 12 cycles an instruction by its stall; two a turn of 16; four a turn of 32.
    assert times[1] == pytest.approx(100 * 20 * 12, rel=0.05)
    assert times[2] == pytest.approx(100 * 20 * 16, rel=0.05)
    assert times[4] == pytest.approx(100 * 20 * 32, rel=0.05)


def test_a_block_that_is_left_alone_goes_faster() -> None:
    """One block has ten times the trips: it shares the pipe for a tenth of them, then has it alone."""
    of = stream(*[[instruction(s.EXP, stall=8)] * count for count in (1, 20, 1)], loops=[1])
    trips = Bound("i", lambda values: np.where(values == 0, 1000, 100))
    time = cycles(run(of, 2, trips, per_sm=2)) - LAUNCH
    assert time == pytest.approx(100 * 20 * 16 + 900 * 20 * 8, rel=0.1)


def test_tiles_from_hbm_come_later_than_tiles_of_the_l2() -> None:
    """One copy a trip that is waited for: 700 cycles from HBM, 200 from the L2."""
    trip = [instruction(s.COPY, 1), instruction(s.COPY_COMMIT), instruction(s.COPY_WAIT, 0), instruction(s.OTHER)]
    of = stream(chain(100), trip, chain(100), loops=[1])
    cold, warm = run(of, 1, 50), run(of, 1, 50, warm=True)
    assert cycles(cold) - cycles(warm) == pytest.approx(50 * 500, rel=0.05)
    assert (cold.hbm_read_bytes - cold.code_bytes, warm.hbm_read_bytes) == (50 * ROWS * 32, 0)
    # The second block finds what the first read, whatever it was before.
    both = run(of, 2, 50)
    assert both.hbm_read_bytes == cold.hbm_read_bytes
    assert cycles(both) - cycles(cold) == pytest.approx(cycles(warm) - LAUNCH, rel=0.02)


def test_nobody_overtakes_who_fetches() -> None:
    """Two SMs, one block each, of 256 trips in steps of four, each trip waiting for its copy: 700 cycles from HBM, 200
    from the L2. The second block starts later and finds what the first fetched, but ends no earlier than the first."""
    trip = [instruction(s.COPY, 1), instruction(s.COPY_COMMIT), instruction(s.COPY_WAIT, 0), instruction(s.OTHER)]
    of = stream(chain(100), trip, chain(100), loops=[1])
    two = override(GPU, {"sm.count": 2})
    cold, warm = (cycles(run(of, 1, 256, warm=warm)) for warm in (False, True))
    assert cold - warm == pytest.approx(256 * 500, rel=0.05)
    both = run(of, 2, 256, gpu=two)
    assert both.hbm_read_bytes - both.code_bytes == 256 * ROWS * 32
    # Side by side all tiles are cold for both; and for two of which one is quick and one slow, too.
    assert cycles(both) == pytest.approx(cold, rel=0.01)
    spread = override(two, {"calibrated.block_spread": 0.05})
    assert cycles(run(of, 2, 256, gpu=spread)) >= 0.95 * cold


def test_hbm_holds_up_who_asks_for_more_than_it_has() -> None:
    """A trip of 50 cycles asks for 2,048 bytes; HBM gives 10 bytes a nanosecond. At most the two add up."""
    slow = override(GPU, {"hbm.bandwidth_bytes_per_s": 1e10})
    timing = run(BLOCK, 1, 64, gpu=slow, store=False)
    assert timing.time_s >= 64 * 2048 / 1e10
    assert cycles(timing) <= cycles(run(BLOCK, 1, 64, store=False, warm=True)) + 64 * 2048 / 10 + 10
    assert timing.waited["hbm"] > 0.9 * 64 * (204.8 - 50) * 1e-9 and timing.busy["hbm"] > 0.7


def test_a_launch_of_many_trips_asks_for_the_same_bytes() -> None:
    """A loop is replayed in strides, the bytes of its trips are all there."""
    for trips in (63, 64, 65, 1000):
        timing = run(BLOCK, 3, trips)
        assert timing.fill_bytes == 3 * trips * ROWS * 32
        assert timing.hbm_read_bytes - timing.code_bytes == trips * ROWS * 32


def test_a_launch_on_flushed_caches_reads_its_own_instructions() -> None:
    """At 16 bytes an instruction, and some more; a warm one, and a further one, has them."""
    short, long = (run(looped(200, trip, 100), 1, 2) for trip in (50, 1050))
    assert long.code_bytes - short.code_bytes == 16 * 100 and short.code_bytes > 16 * 35
    launched = (trace(1, 2), 1, compiled(BLOCK))
    first, second = replay(GPU, [launched, launched]).launches
    assert first.code_bytes > 0 and second.code_bytes == 0
    assert run(BLOCK, 1, 2, warm=True).code_bytes == 0


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    silent = run(BLOCK, 50, 2)
    loud = run(BLOCK, 50, 2, progress=lambda *said: told.append(said))
    assert loud == silent
    assert [done for _, done, _ in told] == list(range(50)) and {said[::2] for said in told} == {("t", 50)}


PLAIN = stream(chain(100), [instruction(s.LOAD, 1, writes=0), instruction(s.OTHER, waits=[0])], chain(100), loops=[1])


def test_plain_loads_are_found_in_the_l1_while_it_has_room() -> None:
    """The second block on the SM wants the tiles of the first. 256 KiB less the SRAM carved out."""
    timing = run(PLAIN, 2, 10)
    assert timing.l1_hit_bytes == 10 * ROWS * 32 and timing.fill_bytes == 2 * timing.l1_hit_bytes
    assert timing.tallies["K"].read_bytes == 10 * ROWS * 32
    # One tile too many: each finds what the next to last one before left of it, which is nothing.
    too_many = 2 * (256 << 10) // (ROWS * 32)
    assert run(PLAIN, 2, too_many).l1_hit_bytes == 0
    # Copies into SRAM pass it by.
    copying = stream(chain(100), [instruction(s.COPY, 1), *PLAIN.segments[1].instructions], chain(100), loops=[1])
    assert run(copying, 2, 10).l1_hit_bytes == 0


def test_what_is_stored_takes_room_in_the_l1() -> None:
    """Ten tiles of 2 KiB are loaded and one is stored, in 20 KiB: a block after it finds less of them."""
    small = override(GPU, {"sm.core.l1_bytes": (8 + 20) << 10})
    assert run(PLAIN, 2, 10, gpu=small, store=False).l1_hit_bytes == 10 * ROWS * 32
    assert run(PLAIN, 2, 10, gpu=small, store=True).l1_hit_bytes < 10 * ROWS * 32


def test_two_sms_have_an_l1_each() -> None:
    assert run(PLAIN, 2, 10, gpu=override(GPU, {"sm.count": 2})).l1_hit_bytes == 0


def test_what_threads_spill_beyond_the_l1() -> None:
    machine = GPU
    fits = compiled(BLOCK, 4)
    assert not fits.spills_beyond_l1(machine, 1) and fits.spilled_bytes == 0
    spilling = replace(fits, stack_bytes=2048)
    assert spilling.spilled_bytes == 4 * 32 * 2048 == 256 << 10
    # 8 KiB are carved out for 2 KiB of SRAM.
    assert spilling.l1_bytes(machine, 1) == (256 - 8) << 10 and spilling.spills_beyond_l1(machine, 1)
    assert replace(fits, sram_bytes=60 << 10).l1_bytes(machine, 1) == (256 - 228) << 10


def test_blocks_drift_apart_by_their_spread_and_not_in_the_mean() -> None:
    """The trips of block 0, 5,000 of 5,300 cycles, are the quickest, by 5 %; of many the mean is as without."""
    spread = override(GPU, {"calibrated.block_spread": 0.05})
    for blocks, change in ((1, 1 - 0.05 * 5000 / 5300), (89, 1.0)):
        even, uneven = (
            cycles(run(BLOCK, blocks, 100, gpu=gpu, warm=True)) - LAUNCH - blocks * (4 * START + DRAIN)
            for gpu in (GPU, spread)
        )
        assert uneven / even == pytest.approx(change, abs=0.002)


# ---- the pace itself


def test_a_pace_is_the_difference_of_runs() -> None:
    found = pace_of(BLOCK, 1, 1, CORE, MEMORY, 0)
    assert found.trips == (50,)
    assert found.enter + found.exit == 200 + 100 and found.enter == 200
    assert found.waited["memory"] == 0


def test_a_pace_without_a_loop_is_all_to_enter() -> None:
    only = stream(chain(300))
    found = pace_of(only, 1, 1, CORE, MEMORY, 0)
    assert (found.enter, found.exit, found.trips) == (300, 0, ())


def test_blocks_without_a_loop_run_one_after_the_other_on_shared_pipes() -> None:
    """Two blocks of 20 exponentials take turns on a pipe of 8 cycles: 16 each, whatever they wait for besides."""
    only = stream([instruction(s.EXP, stall=12)] * 20)
    assert pace_of(only, 1, 1, CORE, MEMORY, 0).enter == pytest.approx(20 * 12)
    assert pace_of(only, 2, 1, CORE, MEMORY, 0).enter == pytest.approx(20 * 16, rel=0.01)
    found = pace_of(only, 2, 1, CORE, MEMORY, 0)
    assert found.busy["exp"] == pytest.approx(1, rel=0.01)


def test_a_pace_is_the_mean_over_how_far_apart_blocks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up core whose trip takes so many cycles more as the second block starts after the first."""

    def core(of: Stream, trips: Any, resident: int, *rest: Any) -> CoreRun:
        apart = rest[-1]
        return CoreRun(10, 10 + trips[0] * (100 + apart), (0,) * len(PIPES), (0,) * len(WAITS))

    monkeypatch.setattr(pace, "run_core", core)
    of = looped(10, 50, 20)
    pace_of.cache_clear()
    assert pace_of(of, 1, 1, CORE, MEMORY, 0).trips == (100,)
    # From a tenth to 85 hundredths of the 100 cycles that a lone block takes, 47.5 in the mean.
    assert pace_of(of, 2, 1, CORE, MEMORY, 0).trips == pytest.approx((147.5,))
    # Of three the last starts a quarter to 85 hundredths after the first, the second after half of that.
    assert pace_of(of, 3, 1, CORE, MEMORY, 0).trips == pytest.approx((127.5,))
    pace_of.cache_clear()


def test_the_trips_of_a_further_loop_share_what_it_takes_to_fill_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up core whose second loop takes 30 cycles once and 50 a trip."""

    def core(of: Stream, trips: Any, *rest: Any) -> CoreRun:
        return CoreRun(
            10, 10 + 100 * trips[0] + bool(trips[1]) * (30 + 50 * trips[1]), (0,) * len(PIPES), (0,) * len(WAITS)
        )

    monkeypatch.setattr(pace, "run_core", core)
    two = stream(chain(100), chain(50), chain(10), chain(80), chain(20), loops=[1, 3])
    for made, each in (((1,), 80), ((2,), 65), ((3,), 60), ((), 60), ((0,), 80), ((1000,), 50 + 30 / 9)):
        pace_of.cache_clear()
        assert pace_of(two, 1, 1, CORE, MEMORY, 0, 1, made).trips == pytest.approx((100, each))
    pace_of.cache_clear()


def test_a_kernel_knows_how_often_a_block_goes_through_its_further_loops() -> None:
    two = compiled(stream(chain(100), chain(50), chain(10), chain(80), chain(20), loops=[1, 3]))
    plain = trace(4, 10)
    (loop, store) = plain.body
    assert isinstance(loop, Loop)
    for unmasked, made in ((None, 0), (7, 3), (12, 0), (0, 10)):
        masked = LaunchTrace("t", plain.axes, (replace(loop, unmasked=unmasked), store), values=("o",))
        assert two.further_trips(plan_launch(masked, GPU), {"i": 0}) == (made,)
    assert compiled(BLOCK).further_trips(plan_launch(plain, GPU), {"i": 0}) == ()


def test_what_leaves_an_sm_last_is_waited_for() -> None:
    """Ten stores of 8 cycles each, issued in 4 each: they are through 80 cycles after the start, each round."""
    found = pace_of(stream([instruction(s.STORE, 1)] * 10), 1, 1, CORE, MEMORY, 0)
    assert found.enter + found.exit == pytest.approx(80, abs=10)
    assert found.trips == ()


def test_sms_lie_on_both_sides_of_the_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second of two SMs tiles are asked for from the other side; on the trace's way too."""
    asked = []
    right = L2.read_shared

    def read(self: L2, now: int, address: int, n_bytes: int, side: int) -> tuple[int, int]:
        asked.append(side)
        return right(self, now, address, n_bytes, side)

    monkeypatch.setattr(L2, "read_shared", read)
    two = override(GPU, {"sm.count": 2})
    replay(two, [(trace(2, 8), 1, compiled(BLOCK))])
    assert asked.count(0) == asked.count(1) == 8
    asked.clear()
    by_trace = override(load_gpu("a100-40gb"), {"sm.count": 2, "l2.partitions": 2})
    simulate("flash", Attention(1, 1, None, 128, 128, 64), gpu=by_trace, tile=Tile(64, 64, 4, 2))
    assert asked.count(0) == asked.count(1) > 0


def test_loops_that_outrun_the_l2_are_taken_in_finer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 trips of 2 KiB, in both partitions 4 MiB: 64 steps where that fits, 256 where not."""
    asked = []
    right = L2.read_shared

    def read(self: L2, *arguments: Any) -> tuple[int, int]:
        asked.append(arguments)
        return right(self, *arguments)

    monkeypatch.setattr(L2, "read_shared", read)
    for size, steps in ((4 << 20, 64), (3 << 20, 256)):
        asked.clear()
        run(BLOCK, 2, 1024, gpu=override(GPU, {"l2.capacity_bytes": size, "l2.dirty_limit_bytes": size}), store=False)
        assert len(asked) == 2 * steps


def test_the_memory_as_an_sm_sees_it() -> None:
    """Of a made-up L2 of 32 bytes a cycle an SM: merged requests have the SM's whole port, 64; stores cost four."""
    gpu = override(
        GPU, {"l2.bandwidth_bytes_per_s": 32e9, "calibrated.store_cost": 4, "calibrated.load_cycles": 900,
              "calibrated.merged_share": 0.8, "hbm.bandwidth_bytes_per_s": 16e9},
    )  # fmt: skip

    def times(of: Gpu, *, cold: bool = False, lockstep: bool = False) -> MemoryTimes:
        return memory_times(of, 1e9, 0.0, frozenset(), cold=cold, lockstep=lockstep)

    assert times(gpu).bytes_per_cycle == 40 and times(gpu, lockstep=True).bytes_per_cycle == 64
    assert times(gpu).store_bytes_per_cycle == times(gpu, lockstep=True).store_bytes_per_cycle == 8
    assert (times(gpu).copy_latency, times(gpu, cold=True).copy_latency) == (200, 700)
    assert (times(gpu).load_latency, times(gpu, cold=True).load_latency) == (200, 900)
    # Where tiles come from HBM, what threads spill is still in the L2.
    assert gpu.calibrated is not None
    assert times(gpu).spill_miss_latency == times(gpu, cold=True).spill_miss_latency == gpu.calibrated.spill_miss_cycles
    without = times(override(gpu, {"l2": None}))
    assert without.bytes_per_cycle == without.store_bytes_per_cycle == 16
    assert without.copy_latency == without.spill_miss_latency == 700


def test_words_beyond_a_row_are_not_moved() -> None:
    """A block that stores 64 rows of 32 bytes with instructions for twice as much stores in half their time."""
    of = compiled(stream([instruction(s.STORE, 1)] * 8))
    assert of.used_shares(plan_launch(stores_only(), GPU)) == (1.0, 0.5)
    assert compiled(BLOCK).used_shares(plan_launch(trace(1, 2), GPU)) == (1.0, 1.0)


def stores_only() -> LaunchTrace:
    return LaunchTrace("t", (("i", 1),), (Store(rows(O, symbol("i") * ROWS), "o"),), values=("o",))


def test_a_second_loop_has_a_pace_of_its_own() -> None:
    """The loop of a causal kernel over masked tiles: 50 and 80 cycles a trip."""
    two = stream(chain(100), chain(50), chain(10), chain(80), chain(20), loops=[1, 3])
    assert pace_of(two, 1, 1, CORE, MEMORY, 0).trips == pytest.approx((50, 80))


def test_a_masked_trip_goes_at_the_pace_of_the_second_loop() -> None:
    two = stream(chain(100), chain(50), chain(10), chain(80), chain(20), loops=[1, 3])
    plain = trace(1, 10)
    (loop, store) = plain.body
    assert isinstance(loop, Loop)
    masked = LaunchTrace("t", plain.axes, (replace(loop, unmasked=7), store), values=("o",))
    times = [cycles(replay(GPU, [(of, 1, compiled(two))]).launches[0]) for of in (plain, masked)]
    assert times[1] - times[0] == pytest.approx(3 * (80 - 50), abs=3)


def test_shares_of_a_pace_are_of_its_trips() -> None:
    """A trip of 10 exponentials of 12 cycles each keeps the pipe, of 8, busy two thirds of the time."""
    of = stream(*[[instruction(s.EXP, stall=12)] * 10] * 3, loops=[1])
    found = pace_of(of, 1, 1, CORE, MEMORY, 0)
    assert found.busy["exp"] == pytest.approx(2 / 3, abs=0.01)
    waiting = [instruction(s.COPY, 1), instruction(s.COPY_COMMIT), instruction(s.COPY_WAIT, 0), instruction(s.OTHER)]
    of = stream(chain(10), waiting, chain(10), loops=[1])
    assert pace_of(of, 1, 1, CORE, MEMORY, 0).waited["memory"] > 0.9


class Forgetful(dict[int, int]):
    def __setitem__(self, key: int, value: int) -> None:
        pass


FAULTS: dict[str, tuple[str, str]] = {
    "no start": ("test_an_sm_starts_one_warp_after_the_other", "start"),
    "no drain": ("test_one_block_is_its_pace_and_what_comes_before_and_after", "drain"),
    "one pace for all": ("test_blocks_on_an_sm_go_at_the_pace_of_so_many", "alone"),
    "all tiles in the L2": ("test_tiles_from_hbm_come_later_than_tiles_of_the_l2", "warm"),
    "who follows overtakes": ("test_nobody_overtakes_who_fetches", "front"),
    "an L1 that keeps all": ("test_plain_loads_are_found_in_the_l1_while_it_has_room", "l1"),
    "trips left out": ("test_a_pace_is_the_difference_of_runs", "trips"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, part = FAULTS[fault]
    right: Any = paced.PacedRun._pace
    if part in ("start", "drain"):
        key = {"start": "calibrated.warp_start_cycles", "drain": "calibrated.drain_cycles"}[part]
        monkeypatch.setitem(globals(), "GPU", override(GPU, {key: 0}))
        monkeypatch.setattr(run, "__kwdefaults__", {**(run.__kwdefaults__ or {}), "gpu": override(GPU, {key: 0})})
    elif part == "alone":
        monkeypatch.setattr(paced.PacedRun, "_pace", lambda self, resident, cold: right(self, 1, cold))
    elif part == "warm":
        monkeypatch.setattr(paced.PacedRun, "_pace", lambda self, resident, cold: right(self, resident, False))
    elif part == "front":
        made = paced.PacedRun.__init__

        def forgets(self: Any, *arguments: Any) -> None:
            made(self, *arguments)
            self._front_ps = Forgetful()

        monkeypatch.setattr(paced.PacedRun, "__init__", forgets)
    elif part == "l1":
        monkeypatch.setattr(Compiled, "l1_bytes", lambda self, gpu, per_sm: 1 << 30)
    else:
        pace_of.cache_clear()
        real = pace.run_core
        monkeypatch.setattr(pace, "run_core", lambda of, trips, *rest: real(of, [t // 2 for t in trips], *rest))
    with pytest.raises(AssertionError):
        globals()[name]()
    pace_of.cache_clear()
