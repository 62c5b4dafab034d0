"""How long do hand-written instructions take on a sub-partition? Every cycle by hand, on a core made up for it.

Latencies are chosen apart from one another, so that a sum says which were in it. A stall of 1 lets the next instruction
issue in the next cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from memsim import stream as s
from memsim.machine import core as module
from memsim.machine.core import PIPES, WAITS, CoreRun, CoreTimes, MemoryTimes, run_core
from memsim.stream import Instruction, Segment, Stream

CORE = CoreTimes(
    sub_partitions=4, fma=1, integer_multiply=2, alu=2, convert=4, exp=8, uniform=1, lsu_word=4, copy=16, mma=32,
    product_flop_per_cycle=1024, sram_bytes_per_cycle=1e12, exp_latency=20, shuffle_latency=24, sram_latency=22,
    uniform_latency=10, operand_latency=7, product_start=16, product_latency=35, barrier=26, fence=400,
    spill_latency=40, copies_at_banks=1, tensor_contention=0,
)  # fmt: skip
MEMORY = MemoryTimes(
    bytes_per_cycle=64, store_bytes_per_cycle=64, copy_latency=200, box_latency=600, load_latency=800
)  # fmt: skip


def instruction(
    kind: int, argument: int = 0, *, flags: int = 0, stall: int = 1, writes: int = s.NO_BARRIER,
    reads: int = s.NO_BARRIER, waits: Sequence[int] = (),
) -> Instruction:  # fmt: skip
    return kind, argument, flags, stall, writes, reads, sum(1 << barrier for barrier in waits)


def stream(*segments: Sequence[Instruction], loops: Sequence[int] = ()) -> Stream:
    parts = tuple(Segment(number in loops, tuple(segment)) for number, segment in enumerate(segments))
    return Stream(repr(parts), parts)


def run(*instructions: Instruction, blocks: int = 1, warps: int = 1, core: CoreTimes = CORE, **kwargs: Any) -> CoreRun:
    memory = kwargs.pop("memory", MEMORY)
    return run_core(stream(instructions), (), blocks, warps, core, memory, **kwargs)


def busy(result: CoreRun, pipe: str) -> float:
    return result.busy[PIPES.index(pipe)]


def waited(result: CoreRun, cause: str) -> float:
    return result.waited[WAITS.index(cause)]


def test_a_chain_of_multiply_adds_takes_its_stalls() -> None:
    """Each needs the one before, for which the compiler stalls 4 cycles."""
    result = run(*[instruction(s.FMA, stall=4)] * 10)
    assert result.ended == 40
    assert busy(result, "fma") == 10


def test_independent_instructions_issue_one_a_cycle() -> None:
    assert run(*[instruction(s.FMA)] * 10).ended == 10
    assert run(*[instruction(s.OTHER)] * 10).ended == 10


@pytest.mark.parametrize(
    "kind, pipe, cycles",
    [(s.FMA, "fma", 1), (s.INTEGER_MULTIPLY, "fma", 2), (s.ALU, "alu", 2), (s.CONVERT, "alu", 4), (s.EXP, "exp", 8),
     (s.UNIFORM, "uniform", 1), (s.SHUFFLE, "lsu", 4), (s.MMA, "tensor", 32)],
)  # fmt: skip
def test_pipes_have_their_rates(kind: int, pipe: str, cycles: int) -> None:
    """The last of ten issues when nine have been through."""
    result = run(*[instruction(kind)] * 10)
    assert result.ended == 9 * cycles + 1
    assert busy(result, pipe) == 10 * cycles
    assert sum(result.busy) == 10 * cycles


def test_words_of_sram_take_the_lane_pipe_a_word_at_a_time() -> None:
    result = run(*[instruction(s.SRAM, 2)] * 5)
    assert result.ended == 4 * 8 + 1
    assert busy(result, "lsu") == 5 * 8


def test_different_pipes_overlap() -> None:
    """An exponential is 8 cycles on its pipe; seven multiply-adds issue meanwhile."""
    body = [instruction(s.EXP), *[instruction(s.FMA)] * 7] * 4
    assert run(*body).ended == 32
    assert run(*body, instruction(s.FMA)).ended == 33


def test_who_waits_for_a_result_waits_for_its_latency() -> None:
    """Two exponentials one after the other: 20 cycles from issue to result, not 8."""
    result = run(instruction(s.EXP, writes=0), instruction(s.EXP, writes=0, waits=[0]), instruction(s.FMA, waits=[0]))
    assert result.ended == 20 + 20 + 1
    assert waited(result, "exp") == 19 + 19
    assert run(instruction(s.EXP, writes=0), instruction(s.FMA)).ended == 2
    other = run(instruction(s.EXP, writes=0), instruction(s.FMA, waits=[1]))
    assert other.ended == 2, "a barrier that nobody set"


@pytest.mark.parametrize(
    "kind, latency, cause",
    [(s.EXP, 20, "exp"), (s.CONVERT, 20, "exp"), (s.SHUFFLE, 24, "sram"), (s.UNIFORM, 10, "alu"), (s.MMA, 22, "tensor"),
     (s.SRAM, 22, "sram")],
)  # fmt: skip
def test_latencies_by_kind(kind: int, latency: int, cause: str) -> None:
    result = run(instruction(kind, 1, writes=3), instruction(s.OTHER, waits=[3]))
    assert result.ended == latency + 1
    assert waited(result, cause) == latency - 1 and sum(result.waited) == latency - 1


def test_operands_are_read_a_while_after_the_issue() -> None:
    assert run(instruction(s.STORE, 1, reads=2), instruction(s.FMA, waits=[2])).ended == 7 + 1


def test_a_plain_load_takes_its_latency_and_its_way_in() -> None:
    """One word a lane: 128 bytes of each of four sub-partitions at 64 bytes a cycle."""
    assert run(instruction(s.LOAD, 1, writes=0), instruction(s.FMA, waits=[0])).ended == 800 + 8 + 1
    two = run(instruction(s.LOAD, 1, writes=0), instruction(s.LOAD, 1, writes=1), instruction(s.FMA, waits=[0, 1]))
    # The second issues after four cycles of the lane pipe and queues behind the first.
    assert two.ended == 4 + 800 + (16 - 4) + 1
    assert waited(two, "memory") == two.ended - 1 - 5


def test_stores_leave_at_their_rate_and_hold_nobody_up_until_there_are_many() -> None:
    """8 cycles each on the way out: two more than 256 cycles' worth of them wait."""
    result = run(instruction(s.STORE, 1), instruction(s.FMA))
    assert result.ended == 8
    few, many = (run(*[instruction(s.STORE, 1)] * count) for count in (10, 100))
    assert few.ended == 80 and many.ended == pytest.approx(800)


def test_stores_and_loads_take_turns_on_the_way_to_the_l2() -> None:
    """A load after nine stores of 8 cycles each comes so much later; issuing them takes 4 cycles each."""
    after = run(*[instruction(s.STORE, 1)] * 9, instruction(s.LOAD, 1, writes=0), instruction(s.FMA, waits=[0]))
    assert after.ended == 9 * 8 + 8 + 800 + 1


def test_a_product_and_who_waits_for_it() -> None:
    """64 × 64 × 16: 131,072 FLOPs at 1,024 a cycle; 16 cycles until it starts, 35 until it is told."""
    product = instruction(s.PRODUCT, 8, flags=s.COMMITS | s.FROM_REGISTERS)
    result = run(product, instruction(s.PRODUCT_WAIT, 0))
    assert result.ended == 16 + 128 + 35
    assert busy(result, "tensor") == 128
    assert waited(result, "tensor") == 16 + 128 + 35 - 2
    # Two at once overlap their starts; one that may be pending is not waited for.
    assert run(product, product, instruction(s.PRODUCT_WAIT, 0)).ended == 16 + 2 * 128 + 35
    assert run(product, product, instruction(s.PRODUCT_WAIT, 1)).ended == 16 + 128 + 35
    assert run(product, instruction(s.PRODUCT_WAIT, 1)).ended == 2
    # Without the flag it is part of the group that the next one ends.
    part = instruction(s.PRODUCT, 8, flags=s.FROM_REGISTERS)
    assert run(part, product, instruction(s.PRODUCT_WAIT, 0)).ended == 16 + 2 * 128 + 35


def test_a_product_reads_its_operands_from_sram() -> None:
    """64 columns and, unless they are in registers, 64 rows of 16 elements of 2 bytes."""
    narrow = replace(CORE, sram_bytes_per_cycle=16.0)
    wait = instruction(s.PRODUCT_WAIT, 0)
    both = run(instruction(s.PRODUCT, 8, flags=s.COMMITS), wait, core=narrow)
    one = run(instruction(s.PRODUCT, 8, flags=s.COMMITS | s.FROM_REGISTERS), wait, core=narrow)
    assert both.ended == 16 + 128 * 32 / 16 + 35 and busy(both, "sram") == 256
    assert one.ended == 16 + 128 + 35 and busy(one, "sram") == 128


def test_copies_take_turns_on_the_way_in_and_arrive_after_their_latency() -> None:
    """Four words a lane and sub-partition: 2,048 bytes, 32 cycles at 64 a cycle; issued 16 apart."""
    copy, commit = instruction(s.COPY, 4), instruction(s.COPY_COMMIT)
    one = run(copy, commit, instruction(s.COPY_WAIT, 0))
    assert one.ended == 32 + 200
    assert waited(one, "memory") == 232 - 3
    two = run(copy, commit, copy, commit, instruction(s.COPY_WAIT, 0))
    assert two.ended == 2 * 32 + 200
    assert run(copy, commit, copy, commit, instruction(s.COPY_WAIT, 1)).ended == 32 + 200
    without = run(copy, commit, instruction(s.COPY_WAIT, 0), memory=replace(MEMORY, reuse=False))
    assert without.ended == 3


def test_boxes_are_copied_by_one_warp_for_all() -> None:
    """3,200 bytes: 50 cycles, and the latency of a box."""
    box, wait = instruction(s.BOX_COPY), instruction(s.BOX_WAIT)
    assert run(box, wait, box_bytes=3200).ended == 650
    assert run(box, wait, box_bytes=3200, warps=2).ended == pytest.approx(650, abs=2)
    assert run(box, box, wait, wait, box_bytes=3200).ended == 700


def test_a_barrier_lets_all_go_when_the_last_has_come() -> None:
    """One of two warps has come after 1 cycle, the other behind it; then 26 cycles."""
    result = run(instruction(s.OTHER), instruction(s.BARRIER), warps=2)
    assert result.ended == pytest.approx(2 + 26, abs=2)
    assert waited(result, "order") > 0
    alone = run(instruction(s.OTHER), instruction(s.BARRIER))
    assert alone.ended == 1 + 26 and waited(alone, "order") == 0


def test_groups_of_warps_meet_apart() -> None:
    """Two groups of one warp: neither waits for the other."""
    assert waited(run(instruction(s.OTHER), instruction(s.BARRIER), warps=2, groups=2), "order") == 0


def test_a_fence_takes_its_time() -> None:
    assert run(instruction(s.FENCE), instruction(s.FMA)).ended == 401


def test_spills_are_as_fast_as_the_l1_unless_it_is_too_small() -> None:
    spill = (instruction(s.SPILL_LOAD, 1, writes=0), instruction(s.FMA, waits=[0]))
    assert run(*spill).ended == 40 + 1
    half = run(*spill, memory=replace(MEMORY, spill_miss_share=0.5, spill_miss_latency=200))
    assert half.ended == 40 + 0.5 * 200 + 4 + 1


def test_warps_share_a_pipe() -> None:
    """Two warps take turns: ten exponentials each, the last at 144 and at 152."""
    result = run(*[instruction(s.EXP)] * 10, warps=2)
    assert busy(result, "exp") == 160
    assert result.ended == (145 + 153) / 2
    apart = run(*[instruction(s.EXP)] * 10, blocks=2, core=replace(CORE, share=False))
    assert apart.ended == 73


def phases(count: int) -> list[Instruction]:
    """A product that is waited for, then exponentials that the next product waits for."""
    product = [instruction(s.PRODUCT, 8, flags=s.COMMITS | s.FROM_REGISTERS), instruction(s.PRODUCT_WAIT, 0)]
    exps = [instruction(s.EXP)] * 15 + [instruction(s.EXP, writes=0), instruction(s.OTHER, waits=[0])]
    return [*product, *exps] * count


def test_one_block_adds_its_phases_up_and_two_overlap() -> None:
    one, two = run(*phases(8)), run(*phases(8), blocks=2)
    each = (16 + 128 + 35) + (15 * 8 + 20 + 1)
    assert one.ended == pytest.approx(8 * each, rel=0.01)
    # Each block has its own product behind the other's exponentials: far less than twice, not less than either pipe.
    assert one.ended < two.ended < 1.3 * one.ended
    assert two.ended >= 2 * 8 * 128


TRIP = [instruction(s.COPY_WAIT, 0), instruction(s.FMA), instruction(s.COPY, 4), instruction(s.COPY_COMMIT)]


def test_loops_copy_ahead_as_many_as_they_need() -> None:
    """One copy before the loop, one a trip, predicated off in the last: as many as trips."""
    looping = stream([instruction(s.COPY, 4), instruction(s.COPY_COMMIT)], TRIP, [instruction(s.OTHER)], loops=[1])
    for trips in (1, 2, 5):
        result = run_core(looping, (trips,), 1, 1, CORE, MEMORY)
        assert busy(result, "sram") * 1e12 == pytest.approx(trips * 2048)
    # Each trip waits for its copy, which was issued in the one before: 32 + 200 a trip.
    more, few = (run_core(looping, (trips,), 1, 1, CORE, MEMORY).ended for trips in (10, 5))
    assert (more - few) / 5 == pytest.approx(232, abs=3)


def test_two_buffers_hide_a_copy_behind_the_one_before() -> None:
    """With two copies ahead a trip waits half as long."""
    ahead = [instruction(s.COPY, 4), instruction(s.COPY_COMMIT)] * 2
    trip = [instruction(s.COPY_WAIT, 1), *TRIP[1:]]
    ring = stream(ahead, trip, [instruction(s.OTHER)], loops=[1])
    more, few = (run_core(ring, (trips,), 1, 1, CORE, MEMORY).ended for trips in (20, 10))
    assert (more - few) / 10 == pytest.approx(232 / 2, abs=4)


def test_a_loop_of_no_trips_is_left_out() -> None:
    looping = stream([instruction(s.FMA)], [instruction(s.EXP)] * 5, [instruction(s.FMA)], loops=[1])
    assert run_core(looping, (0,), 1, 1, CORE, MEMORY).ended == 2
    assert run_core(looping, (3,), 1, 1, CORE, MEMORY).ended == pytest.approx(1 + 14 * 8 + 2, abs=1)


def test_blocks_start_apart() -> None:
    """What each takes is told from its own start."""
    assert run(instruction(s.OTHER, stall=10), blocks=3, apart_cycles=100.0).ended == 10


def test_who_asked_first_issues_first() -> None:
    """At cycle 10 the first block's loop and the second block's first instruction want the slot. The first block asked
    for cycle 10 a turn earlier, so the second enters its loop a cycle late."""
    looping = stream([instruction(s.OTHER, stall=10)], [instruction(s.OTHER)], [instruction(s.OTHER)], loops=[1])
    result = run_core(looping, (1,), 2, 1, CORE, MEMORY, apart_cycles=10.0)
    assert result.entered == (10 + 11) / 2
    assert run_core(looping, (1,), 2, 1, CORE, MEMORY, apart_cycles=15.0).entered == 10


def test_what_runs_beside_a_product_issues_slower() -> None:
    slow = replace(CORE, tensor_contention=2.0)
    beside = [instruction(s.PRODUCT, 8, flags=s.COMMITS | s.FROM_REGISTERS), instruction(s.OTHER, stall=15)]
    beside += [instruction(s.OTHER, stall=2)] + [instruction(s.FMA)] * 10
    assert run(*beside).ended == 1 + 15 + 2 + 10
    assert run(*beside, core=slow).ended == pytest.approx(1 + 15 + 2 + 30, abs=3)
    # What needs few of the registers' ports does not.
    others = [*beside[:-10], *[instruction(s.UNIFORM)] * 10]
    assert run(*others, core=slow).ended == run(*others).ended


FAULTS: dict[str, Any] = {
    "no pipes": (lambda core: replace(core, exp=0.0), "test_warps_share_a_pipe"),
    "no latency": (lambda core: replace(core, exp_latency=1.0), "test_who_waits_for_a_result_waits_for_its_latency"),
    "nothing depends": (lambda core: replace(core, depend=False), "test_one_block_adds_its_phases_up_and_two_overlap"),
    "nothing is shared": (lambda core: replace(core, share=False), "test_one_block_adds_its_phases_up_and_two_overlap"),
    "products start at once": (lambda core: replace(core, product_start=0.0), "test_a_product_and_who_waits_for_it"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, name = FAULTS[fault]
    right = module.run_core

    def faulty(
        stream: Stream, trips: Any, blocks: int, warps: int, core: CoreTimes, *others: Any, **more: Any
    ) -> CoreRun:
        return right(stream, trips, blocks, warps, change(core), *others, **more)

    monkeypatch.setitem(globals(), "run_core", faulty)
    with pytest.raises(AssertionError):
        globals()[name]()
