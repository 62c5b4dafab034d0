"""Tiny replays with every picosecond computed by hand.

The machine: 1 GHz; HBM of 32 B a nanosecond and 10 ns of latency; pipes on which a FLOP or an operation takes 1 ps;
an SRAM so wide that it takes no time (1 ps) where it is not what a test is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memsim import Attention, Gpu, Tile, load_gpu, simulate
from memsim.gpu import override
from memsim.machine import LaunchTiming, replay
from memsim.machine.clock import duration_ps, seconds
from memsim.machine.hbm import Hbm
from memsim.machine.link import host_transfer_ps
from memsim.machine.plan import Move, plan_launch
from memsim.machine.sm import Sm
from memsim.trace import (
    Bound,
    IllegalTrace,
    Index,
    LaunchTrace,
    Load,
    Loop,
    Ring,
    Store,
    Tensor,
    TileRef,
    Work,
    check_trace,
    symbol,
)

GPU = override(
    load_gpu("two-level"),
    {
        "sm.count": 1,
        "sm.clock_hz": 1e9,
        "hbm.bandwidth_bytes_per_s": 32e9,
        "hbm.latency_s": 1e-8,
        "sm.pipes.tensor_flop_per_clock.float16": 1000,
        "sm.pipes.exp_per_clock.float32": 1000,
        "sm.pipes.alu_per_clock.float32": 1000,
        "sm.sram.bandwidth_bytes_per_clock": 1e9,
        "launch.overhead_s": 1e-7,
        "host.latency_s": 1e-6,
        "host.bandwidth_bytes_per_s": 1e9,
    },
)

ZERO = Index()
# Rows of 32 bytes, a sector and a nanosecond each.
X = Tensor("X", 1, 1, 10_000, 16, "float16")


def rows(n: int, at: Index = ZERO) -> TileRef:
    return TileRef(X, ZERO, ZERO, at, ZERO, n, 16)


def dot(ps: int, *reads: str) -> Work:
    return Work("tensor", ps, "dot", "float16", reads, "o")


def alu(ps: int, *reads: str) -> Work:
    return Work("alu", ps, "add", "float32", reads)


def exp(ps: int, *reads: str) -> Work:
    return Work("exp", ps, "exp", "float32", reads)


def launch(*body: Any, blocks: int = 1) -> LaunchTrace:
    return check_trace(LaunchTrace("t", (("i", blocks),), body, values=("o",)))


def run(*body: Any, blocks: int = 1, per_sm: int = 1, gpu: Gpu = GPU) -> LaunchTiming:
    return replay(gpu, [(launch(*body, blocks=blocks), per_sm)]).launches[0]


def ps(timing: LaunchTiming) -> int:
    return round(timing.time_s * 1e12)


def waited(timing: LaunchTiming) -> dict[str, int]:
    return {name: round(s * 1e12) for name, s in timing.waited.items() if s}


def sms(count: int) -> Gpu:
    return override(GPU, {"sm.count": count})


def test_durations_are_rounded_up() -> None:
    assert duration_ps(0, 1e9) == 0
    assert duration_ps(1, 1e12) == 1
    assert duration_ps(1, 3e12) == 1
    assert duration_ps(4, 3e12) == 2
    assert duration_ps(936, 936e9) == 1000
    assert seconds(1500) == 1.5e-9


def test_one_load_one_dot_one_store() -> None:
    """Ten rows: 10 ns and 10 ns of latency; 5 ns of dot; one row out: 1 ns and 10 ns."""
    timing = run(Load(rows(10), "x"), dot(5000, "x"), Store(rows(1), "o"))
    assert ps(timing) == 10_000 + 10_000 + 5_000 + 1_000 + 10_000
    assert waited(timing) == {"tensor": 5_000, "hbm": 10_000 + 1_000, "latency": 20_000}
    assert timing.waiting_for_memory == pytest.approx(31 / 36)
    assert timing.busy["tensor"] == pytest.approx(5 / 36)
    assert timing.busy["hbm"] == pytest.approx(11 / 36)
    assert (timing.fill_bytes, timing.store_bytes) == (320, 32)
    assert (timing.hbm_read_bytes, timing.hbm_write_bytes) == (320, 32)


def test_a_load_runs_beside_work_that_does_not_need_it() -> None:
    assert ps(run(Load(rows(10), "x"), alu(15_000), dot(5_000, "x"))) == 20_000 + 5_000
    assert ps(run(Load(rows(10), "x"), alu(30_000), dot(5_000, "x"))) == 30_000 + 5_000


def test_two_loads_share_hbm_and_both_are_waited_for() -> None:
    """The second arrives 5 ns after the first; the dot needs both."""
    timing = run(Load(rows(10), "x"), Load(rows(5), "y"), dot(1_000, "x", "y"))
    assert ps(timing) == 25_000 + 1_000
    assert waited(timing) == {"tensor": 1_000, "hbm": 15_000, "latency": 10_000}


def test_a_value_is_waited_for_once_and_again_when_it_is_loaded_again() -> None:
    body = (Load(rows(10), "x"), dot(1_000, "x"), dot(1_000, "x"), Load(rows(10), "x"), dot(1_000, "x"))
    assert ps(run(*body)) == 22_000 + 20_000 + 1_000


def test_a_value_that_a_loop_loads_is_waited_for_after_it() -> None:
    """x arrives at 20 and is used until 21; the loop loads it again, until 41."""
    body = (Load(rows(10), "x"), dot(1_000, "x"), Loop("j", 0, 1, (Load(rows(10), "x"), exp(100))), dot(1_000, "x"))
    assert ps(run(*body)) == 21_000 + 20_000 + 1_000


def test_a_value_that_a_loop_loads_for_its_next_trip_is_waited_for_there() -> None:
    """x arrives at 20 and is used until 22, the second time in the first trip; then at 42, until 43; the
    last copy is still on its way when the block ends."""
    body = (Load(rows(10), "x"), dot(1_000, "x"), Loop("j", 0, 2, (dot(1_000, "x"), exp(100), Load(rows(10), "x"))))
    assert ps(run(*body)) == 22_100 + 20_000 + 1_000 + 100 + 20_000


def test_blocks_on_two_sms_share_hbm() -> None:
    """The second SM's load queues behind the first's; the pipes are each SM's own."""
    timing = run(Load(rows(10), "x"), dot(50_000, "x"), blocks=2, gpu=sms(2))
    assert ps(timing) == 30_000 + 50_000
    assert waited(timing) == {"tensor": 100_000, "hbm": 10_000 + 20_000, "latency": 20_000}
    assert timing.busy["tensor"] == pytest.approx(100 / (2 * 80))
    # On the first SM 20 ns, on the second 30.
    assert timing.waiting_for_memory == pytest.approx(50 / (2 * 80))


def test_two_blocks_on_an_sm_share_its_pipe() -> None:
    """Loads arrive at 20 and 30; dots of 15 run from 20 and from 35."""
    timing = run(Load(rows(10), "x"), dot(15_000, "x"), blocks=2, per_sm=2)
    assert ps(timing) == 50_000
    assert waited(timing) == {"tensor": 15_000 + 20_000, "hbm": 30_000, "latency": 20_000}
    # Only until 20 do both wait for memory.
    assert timing.waiting_for_memory == pytest.approx(20 / 50)
    # One after the other, the load of the second starts when the first has ended.
    assert ps(run(Load(rows(10), "x"), dot(15_000, "x"), blocks=2, per_sm=1)) == 2 * 35_000


def test_blocks_overlap_on_one_anothers_pipes() -> None:
    """One block adds its phases up; two take turns on dot and exp."""
    phases = (dot(10_000), exp(10_000), dot(10_000), exp(10_000))
    assert ps(run(*phases)) == 40_000
    assert ps(run(*phases, blocks=2, per_sm=2)) == 50_000
    assert ps(run(*phases, blocks=2, per_sm=1)) == 80_000


@pytest.mark.parametrize("buffers, expected", [(1, 3 * 35_000), (2, 70_000), (3, 65_000), (4, 65_000)])
def test_a_ring_fetches_as_far_ahead_as_it_has_buffers(buffers: int, expected: int) -> None:
    """Three trips of a load of 20 and a dot of 15.

    One buffer: no overlap. Two: arrivals at 20, 30, and, from the release at 35, 55. Three: 20, 30, 40.
    """
    ring = Ring("K", buffers, 320)
    body = (Load(rows(10, symbol("j") * 10), "k", ring), dot(15_000, "k"))
    timing = run(Loop("j", 0, 3, body))
    assert ps(timing) == expected
    assert timing.fill_bytes == 3 * 320


def test_a_buffer_is_released_after_its_last_use() -> None:
    """Of two uses of 15 and 5: with one buffer the next load starts after the second."""
    body = (Load(rows(10, symbol("j") * 10), "k", Ring("K", 1, 320)), dot(15_000, "k"), exp(5_000, "k"), alu(1_000))
    assert ps(run(Loop("j", 0, 3, body))) == (20_000 + 20_000) * 3 + 1_000
    two = (replace(body[0], ring=Ring("K", 2, 320)), *body[1:])
    # Arrivals at 20, 30, and 40 + 20: a trip takes 21 from 20 on, so the third starts at 62.
    assert ps(run(Loop("j", 0, 3, two))) == 20_000 + 3 * 21_000


def test_k_and_v_take_turns_in_one_buffer() -> None:
    """Each of K, V, K, V is fetched when the one before it has been used: 20 + 5 each."""
    ring = Ring("K/V", 1, 320)
    body = (
        Load(rows(10, symbol("j") * 10), "k", ring),
        dot(5_000, "k"),
        Load(rows(10, symbol("j") * 10), "v", ring),
        dot(5_000, "v"),
    )
    assert ps(run(Loop("j", 0, 2, body))) == 4 * 25_000
    # With a buffer each K and V of a trip are fetched together.
    own = (replace(body[0], ring=Ring("K", 1, 320)), body[1], replace(body[2], ring=Ring("V", 1, 320)), body[3])
    # K at 20, V at 30; K again from 25: 30 is when HBM is free? It is from 20 on: 35 + 10. V again from 35.
    assert ps(run(Loop("j", 0, 2, own))) == 60_000


def test_a_shared_ring_of_two_holds_two_values() -> None:
    ring = Ring("K/V", 2, 320)
    body = (
        Load(rows(10, symbol("j") * 10), "k", ring),
        Load(rows(10, symbol("j") * 10), "v", ring),
        dot(5_000, "k"),
        dot(5_000, "v"),
    )
    # K and V at 20 and 30, used until 25 and 35; again from 25 and 35: 45 and 55.
    assert ps(run(Loop("j", 0, 2, body))) == 60_000


def test_a_loop_that_makes_no_trip_fetches_nothing() -> None:
    none = Bound("i", lambda values: np.zeros_like(values))
    body = (Load(rows(10), "k", Ring("K", 2, 320)), dot(1_000, "k"))
    timing = run(Loop("j", 0, none, body), dot(7_000))
    assert (ps(timing), timing.fill_bytes) == (7_000, 0)


def test_a_loop_that_starts_late_fetches_its_own_rows() -> None:
    """Trips 2 and 3 of tensor rows 20 to 34: ten, and the five that there are."""
    short = replace(X, rows=35)
    tile = TileRef(short, ZERO, ZERO, symbol("j") * 10, ZERO, 10, 16)
    timing = run(Loop("j", 2, 4, (Load(tile, "k", Ring("K", 4, 320)), dot(1_000, "k"))))
    assert timing.fill_bytes == 15 * 32
    assert ps(timing) == 25_000 + 1_000


def test_loops_within_loops() -> None:
    """Inner trips i = j, …, 2 for j = 0, 1, 2: 3 + 2 + 1 dots, each after a load of its own."""
    inner = Loop("k", Bound("j", lambda values: values), 3, (Load(rows(10, symbol("k")), "x"), dot(5_000, "x")))
    timing = run(Loop("j", 0, 3, (inner, alu(1_000))))
    assert ps(timing) == 6 * 25_000 + 3 * 1_000


def test_blocks_are_handed_out_in_order_as_slots_free() -> None:
    """Dots of 40, 10, 10, 10 on two SMs: the second SM takes all of the short ones."""
    trips = Bound("i", lambda values: np.where(values == 0, 4, 1))
    timing = run(Loop("j", 0, trips, (dot(10_000),)), blocks=4, gpu=sms(2))
    assert ps(timing) == 40_000
    # The long one last: three short ones first, two on one SM.
    last = Bound("i", lambda values: np.where(values == 3, 4, 1))
    assert ps(run(Loop("j", 0, last, (dot(10_000),)), blocks=4, gpu=sms(2))) == 10_000 + 40_000


def test_the_first_blocks_go_to_sms_in_turn() -> None:
    """Four blocks on two SMs of two slots: 0 and 2 on one, 1 and 3 on the other."""
    trips = Bound("i", lambda values: np.where(values % 2 == 0, 2, 1))
    timing = run(Loop("j", 0, trips, (dot(10_000),)), blocks=4, per_sm=2, gpu=sms(2))
    assert ps(timing) == 2 * 20_000
    halves = Bound("i", lambda values: np.where(values < 2, 2, 1))
    assert ps(run(Loop("j", 0, halves, (dot(10_000),)), blocks=4, per_sm=2, gpu=sms(2))) == 30_000


def test_the_first_axis_of_the_grid_is_the_fastest() -> None:
    """Blocks of 40, 10, 40, 10, 40, 10 in this order; heads first it would be 80."""
    trips = Bound("i", lambda values: np.where(values == 0, 4, 1))
    trace = LaunchTrace("t", (("i", 2), ("head", 3)), (Loop("j", 0, trips, (dot(10_000),)),))
    assert ps(replay(sms(2), [(trace, 1)]).launches[0]) == 90_000


def test_more_slots_than_blocks_stay_empty() -> None:
    assert ps(run(dot(10_000), blocks=3, per_sm=16, gpu=sms(2))) == 20_000
    assert ps(run(dot(10_000), blocks=3, per_sm=16, gpu=sms(8))) == 10_000


def test_a_launch_ends_when_its_last_store_has_landed() -> None:
    """The block goes on beside its store of 20 rows: 20 and 10 from the start."""
    timing = run(Store(rows(20), "o"), dot(5_000))
    assert ps(timing) == 30_000
    assert timing.waiting_for_memory == pytest.approx(25 / 30)
    assert waited(timing) == {"tensor": 5_000, "hbm": 15_000, "latency": 10_000}
    assert ps(run(Store(rows(20), "o"), dot(50_000))) == 50_000


def test_reads_and_writes_share_hbm_in_order_of_request() -> None:
    """The load queues behind the store: 20 + 10, and 10 of latency."""
    assert ps(run(Store(rows(20), "o"), Load(rows(10), "x"), dot(1_000, "x"))) == 40_000 + 1_000


def test_sram_moves_what_an_operation_reads_and_writes() -> None:
    """At 8 B a clock of 1 ns, 160 bytes take 20 ns, longer than the dot; a load passes the same port."""
    gpu = override(GPU, {"sm.sram.bandwidth_bytes_per_clock": 8})
    timing = run(replace(dot(5_000), sram_bytes=160), gpu=gpu)
    assert (ps(timing), waited(timing)) == (20_000, {"sram": 20_000})
    assert timing.busy["sram"] == 1 and timing.busy["tensor"] == 0.25
    timing = run(replace(dot(30_000), sram_bytes=160), gpu=gpu)
    assert (ps(timing), waited(timing)) == (30_000, {"tensor": 30_000})
    # 320 bytes: HBM needs 10 + 10, the port 40.
    timing = run(Load(rows(10), "x"), dot(1_000, "x"), gpu=gpu)
    assert ps(timing) == 40_000 + 1_000
    assert waited(timing) == {"tensor": 1_000, "sram": 20_000, "hbm": 10_000, "latency": 10_000}
    # Two loads take turns.
    assert ps(run(Load(rows(10), "x"), Load(rows(10), "y"), dot(1_000, "x", "y"), gpu=gpu)) == 80_000 + 1_000
    # And a store holds the launch until it is through: 40 against 10 + 10.
    assert ps(run(Store(rows(10), "o"), gpu=gpu)) == 40_000


def test_operations_on_one_pipe_are_one_booking() -> None:
    """Two dots in a row are not parted by another block's, two dots with an exp between them are."""
    joined = launch(dot(5_000), dot(5_000))
    assert len(plan_launch(joined, GPU).body.steps) == 1
    parted = launch(dot(5_000), exp(1), dot(5_000))
    assert len(plan_launch(parted, GPU).body.steps) == 3
    assert plan_launch(launch(dot(0)), GPU).body.steps == []


def test_a_float32_dot_takes_the_alu_at_two_flops_an_operation() -> None:
    timing = run(replace(dot(8_000), dtype="float32"))
    assert (ps(timing), waited(timing)) == (4_000, {"alu": 4_000})
    with_rate = override(GPU, {"sm.pipes.tensor_flop_per_clock.float32": 500})
    timing = run(replace(dot(8_000), dtype="float32"), gpu=with_rate)
    assert (ps(timing), waited(timing)) == (16_000, {"tensor": 16_000})


def test_launches_run_one_after_the_other_and_each_costs_its_overhead() -> None:
    first, second = launch(Store(rows(20), "o")), launch(Load(rows(10), "x"), dot(1_000, "x"))
    timing = replay(GPU, [(first, 1), (second, 1)])
    # The second finds HBM free: its load does not queue behind the store that ended the first.
    assert [ps(t) for t in timing.launches] == [30_000, 21_000]
    assert timing.launch_overhead_s == pytest.approx(2e-7)
    assert [t.hbm_read_bytes for t in timing.launches] == [0, 320]
    assert [t.hbm_write_bytes for t in timing.launches] == [640, 0]
    free = override(GPU, {"launch.overhead_s": 0})
    assert [ps(t) for t in replay(free, [(first, 1), (second, 1)]).launches] == [30_000, 21_000]


def test_a_launch_of_no_blocks_is_not_made() -> None:
    timing = replay(GPU, [(launch(dot(1_000), blocks=0), 1), (launch(dot(1_000)), 1)])
    assert [ps(t) for t in timing.launches] == [0, 1_000]
    assert timing.launch_overhead_s == pytest.approx(1e-7)
    assert timing.launches[0].busy == {} and timing.launches[0].waiting_for_memory == 0


def test_the_host_link() -> None:
    assert host_transfer_ps(GPU, 0) == 0
    assert host_transfer_ps(GPU, 1) == 1_000_000 + 1_000
    assert host_transfer_ps(GPU, 5000) == 1_000_000 + 5_000_000
    timing = replay(GPU, [(launch(dot(1_000)), 1)], host_bytes=5000)
    assert timing.host_s == pytest.approx(6e-6) and timing.host_bytes == 5000
    assert ps(timing.launches[0]) == 1_000


def test_a_result_adds_host_overheads_and_kernels() -> None:
    problem = Attention(1, 1, None, 16, 16, 16)
    total = simulate("naive", problem, gpu=GPU, tile=Tile(16, 16), inputs="host").total
    assert total.host_bytes == 3 * 512
    assert total.host_s == pytest.approx(1e-6 + 3 * 512 / 1e9)
    assert total.launch_overhead_s == pytest.approx(3e-7)
    kernels = sum(launch.time_s or 0 for launch in simulate("naive", problem, gpu=GPU, tile=Tile(16, 16)).launches)
    assert total.time_s == pytest.approx(kernels + total.host_s + total.launch_overhead_s)
    assert total.bound == "host"


def test_hbm_is_a_pipe_with_a_latency() -> None:
    hbm = Hbm(GPU)
    assert hbm.read(0, 320) == 20_000
    assert hbm.write(0, 32) == 21_000
    assert hbm.read(50_000, 64) == 62_000
    assert (hbm.read_bytes, hbm.write_bytes, hbm.pipe.busy_ps, hbm.latency_ps) == (384, 32, 13_000, 10_000)


def test_who_stalls_an_sm() -> None:
    """Two blocks: both wait from 10 to 15 and, after one has ended, the other from 30 to 40."""
    sm = Sm()
    sm.enter(0)
    sm.enter(0)
    sm.begin_wait(5)
    sm.begin_wait(10)
    sm.end_wait(15)
    assert sm.stalled_ps == 5
    sm.end_wait(20)
    sm.begin_wait(25)
    sm.leave(30)
    sm.end_wait(40)
    assert sm.stalled_ps == 5 + 10
    # A block that comes ends a stall of those that were there.
    sm.begin_wait(50)
    sm.enter(53)
    sm.end_wait(60)
    assert sm.stalled_ps == 15 + 3


def test_where_a_tile_lies() -> None:
    tensor = Tensor("K", 2, 3, 100, 20, "float16", 512)  # rows of 40 bytes
    tile = TileRef(tensor, symbol("batch"), symbol("head") // 2, symbol("j") * 30, Index(offset=4), 30, 20)
    move = Move(tile, "j", {"batch": 2, "head": 6})
    at = {"batch": 1, "head": 5, "j": 7}
    table, address, step = move.over(at, 4)
    assert (address, step) == (512 + (1 * 3 + 2) * 4000 + 4 * 2, 30 * 40)
    # 16 columns inside, of 30, 30, 30 and 10 rows: 32 bytes each, which start 8 bytes further on in their sectors.
    firsts = [[address + (row + 30 * j) * 40 for row in range(min(30, 100 - 30 * j))] for j in range(4)]
    sectors = [{byte // 32 for first in tile_ for byte in range(first, first + 32)} for tile_ in firsts]
    assert table[:4] == [32 * len(touched) for touched in sectors]
    whole = Move(replace(tile, row=symbol("i") * 50, rows=50, col=ZERO), None, {"batch": 2, "head": 6, "i": 2})
    assert whole.at({"batch": 0, "head": 1, "i": 1}) == (2016, 512 + 2000)
    beyond = Move(replace(tile, row=symbol("i") * 50, rows=50, col=ZERO), None, {"batch": 2, "head": 6, "i": 3})
    assert beyond.at({"batch": 0, "head": 1, "i": 2}) == (0, 512 + 4000)


@pytest.mark.parametrize("part", ["batch", "head"])
def test_a_head_that_a_loop_runs_over_is_not_supported_and_says_so(part: str) -> None:
    tile = replace(rows(10), **{part: symbol("j")})
    with pytest.raises(IllegalTrace, match="X: batch and head cannot depend on a loop variable"):
        run(Loop("j", 0, 1, (Load(tile, "x"),)))


def test_a_divided_loop_variable_is_not_supported_and_says_so() -> None:
    with pytest.raises(IllegalTrace, match="X: a loop variable cannot be divided"):
        run(Loop("j", 0, 2, (Load(rows(10, symbol("j") // 2), "x"),)))


def test_copies_that_nobody_reads_still_take_their_time() -> None:
    result = simulate("flash1", Attention(1, 1, 1, 0, 4096, 64), gpu="two-level")
    (launch,) = result.launches
    assert launch.time_s is not None and launch.busy is not None
    assert launch.time_s >= launch.hbm_read_bytes / 936e9
    assert all(0 <= share <= 1 for share in launch.busy.values())
