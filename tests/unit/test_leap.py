"""Leaps worked out by hand: how far slots get, what is shared, what ends; and what a windowed replay must not lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memsim.machine import LaunchTiming, fast, replay
from memsim.machine.handout import Handout
from memsim.machine.leap import Aboard, Flight, Paces
from memsim.machine.plan import plan_launch
from memsim.machine.trip_leaps import TripLeaps
from memsim.machine.unit_leaps import UnitLeaps
from memsim.machine.work import tile_operations
from memsim.trace import LaunchTrace, Load, Loop, Ring, check_trace, symbol

from .test_machine import GPU, dot, rows, run, sms


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches small enough to be worked out by hand leap, too."""
    monkeypatch.setattr(fast, "LEAST_OPERATIONS", 0)


PACES = Paces({1: 100.0, 2: 150.0}, turn_ps=30.0, at_work=2)


def units(*trips: float) -> Any:
    """Hands out units of so many trips."""
    left = list(enumerate(trips))
    return lambda number: left.pop(0) if left else None


def test_a_slot_makes_trips_turns_over_and_goes_on() -> None:
    """Two trips left at 100 ps, 30 ps of turnover, then three trips: at 430 ps one and a bit of them are left."""
    slot = Aboard(0, 0, "first", 2.0)
    flight = Flight([slot], PACES, units(3.0))
    flight.until(430.0)
    assert slot.unit == 0 and slot.units_done == 1
    assert slot.left_at(430.0) == pytest.approx(1.0)
    assert flight.slot_ps == 430.0


def test_those_that_stay_on_an_sm_are_faster_once_another_has_ended() -> None:
    """Two share at 150 ps a trip. One ends after 2 trips, at 300; the other has 4 of 6 left, at 100 ps each."""
    short, long = Aboard(0, 0, "a", 2.0), Aboard(1, 0, "b", 6.0)
    flight = Flight([short, long], PACES, units())
    assert flight.until(1000.0)
    assert short.ended and flight.now == 300.0
    flight.until(500.0)
    assert long.left_at(500.0) == pytest.approx(2.0)
    assert flight.last_finish() == pytest.approx(700.0)


def test_on_another_sm_nothing_changes_where_pipes_are_the_limit() -> None:
    paces = Paces({1: 100.0}, at_work=2, alone_ps=100.0)
    short, long = Aboard(0, 0, "a", 1.0), Aboard(1, 1, "b", 5.0)
    flight = Flight([short, long], paces, units())
    flight.until(1000.0)
    assert flight.last_finish() == pytest.approx(500.0)


def test_where_memory_is_the_limit_half_the_slots_go_twice_as_fast() -> None:
    """Four slots on four SMs share HBM, 25 ps of it a trip; two end at 100 ps, the others have 4 trips left."""
    paces = Paces({1: 100.0}, at_work=4, alone_ps=1.0, memories_ps=(25.0,))
    slots = [Aboard(n, n, "u", 1.0 if n < 2 else 5.0) for n in range(4)]
    flight = Flight(slots, paces, units())
    while flight.now < 1000.0:
        flight.until(1000.0)
        if not flight.active:
            break
    assert flight.slot_ps == pytest.approx(4 * 100 + 2 * 4 * 50)


def test_a_turnover_that_saves_time_shortens_the_next_unit() -> None:
    paces = replace(PACES, turn_ps=-50.0)
    slot = Aboard(0, 0, "first", 1.0)
    flight = Flight([slot], paces, units(4.0))
    flight.until(100.0)
    assert slot.left_at(100.0) == pytest.approx(3.5)


def test_units_without_trips_are_turned_over_one_by_one() -> None:
    slot = Aboard(0, 0, "first", 1.0)
    flight = Flight([slot], PACES, units(0.0, 0.0, 2.0))
    flight.until(100.0)
    assert slot.units_done == 3
    assert slot.left_at(100.0) == pytest.approx((3 * 30 + 2 * 100) / 100)


# ---- Whole replays


def steady(trips: int, blocks: int) -> LaunchTrace:
    """A trip fetches 10 rows, 10 ns of HBM, and works 15 ns."""
    ring = Ring("K", 2, 320)
    body = (Load(rows(10, symbol("j") * 10), "k", ring), dot(15_000, "k"))
    return check_trace(LaunchTrace("t", (("i", blocks),), (Loop("j", 0, trips, body),), values=("o",)))


def both(trace: LaunchTrace, gpu: Any, per_sm: int = 1) -> tuple[LaunchTiming, LaunchTiming]:
    leapt, full = (replay(gpu, [(trace, per_sm)], full=full).launches[0] for full in (False, True))
    return leapt, full


@pytest.mark.usefixtures("leaping")
def test_a_steady_loop_takes_its_pace_times_its_trips() -> None:
    """One buffer is fetched while the other is worked on: 10 ns of copy and 10 ns of latency after a release, so every
    second trip waits 5 ns. 20 ns for the first arrival, and then 17.5 ns a trip."""
    trips = 900
    timing = run(Loop("j", 0, trips, steady(trips, 1).body[0].body), blocks=8)  # type: ignore[union-attr]
    leapt, full = both(steady(trips, 8), GPU)
    assert leapt.time_s == pytest.approx(full.time_s, rel=1e-3)
    assert timing.time_s == leapt.time_s
    assert leapt.fill_bytes == full.fill_bytes == leapt.hbm_read_bytes == 8 * trips * 320
    assert leapt.busy["tensor"] == pytest.approx(full.busy["tensor"], rel=2e-3)


@pytest.mark.usefixtures("leaping")
def test_waves_of_short_blocks_take_the_time_of_a_wave_each() -> None:
    """4,000 blocks of 20 ns of arrival and 15 ns of work on two SMs: the second SM's load queues 10 ns behind the
    first's in the first wave only."""
    trace = check_trace(LaunchTrace("t", (("i", 4000),), (Load(rows(10), "x"), dot(15_000, "x")), values=("o",)))
    leapt, full = both(trace, sms(2))
    assert leapt.time_s == full.time_s == pytest.approx((2000 * 35_000 + 10_000) * 1e-12)
    assert leapt.fill_bytes == full.fill_bytes == 4000 * 320


def test_launches_of_a_few_seconds_are_replayed_in_full() -> None:
    """Of 18,000 trips nothing is left out; the same with a lower limit leaps."""
    trace = steady(900, 20)
    timings = both(trace, sms(2))
    assert timings[0] == timings[1]
    assert tile_operations(plan_launch(trace, sms(2))) < fast.LEAST_OPERATIONS


def test_steps_of_a_launch_are_counted() -> None:
    """8 blocks of 900 trips: each waits for its tile, works on it and gives it back; a block is one loop."""
    assert tile_operations(plan_launch(steady(900, 8), GPU)) == 8 * (1 + 900 * 3)


def test_an_sm_has_its_own_pace_until_it_turns_over() -> None:
    """Two SMs of a slot each at 90 and 110 ps a trip; after a turnover each goes on at the other's."""
    paces = replace(PACES, turn_ps=0.0, factors=(0.9, 1.1))
    slots = [Aboard(n, n, "first", 2.0) for n in (0, 1)]
    flight = Flight(slots, paces, units(10.0, 10.0))
    flight.until(150.0)
    assert [slot.left_at(150.0) for slot in slots] == pytest.approx([30 / 90, 70 / 110])
    flight.until(400.0)
    assert [slot.left_at(400.0) for slot in slots] == pytest.approx([10 - 220 / 110, 10 - 180 / 90])


# ---- Would a fault be seen?


@pytest.mark.usefixtures("leaping")
def test_a_lost_stretch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that nobody accounts for, and a trip that is replayed and left out."""
    trace = check_trace(LaunchTrace("t", (("i", 4000),), (Load(rows(10), "x"), dot(15_000, "x")), values=("o",)))
    skip = Handout.skip
    with monkeypatch.context() as patch:
        patch.setattr(Handout, "skip", lambda self, blocks: skip(self, blocks + 1))
        with pytest.raises(AssertionError, match="left out"):
            replay(sms(2), [(trace, 1)])
    leap = TripLeaps._leap

    def astray(self: Any, *given: Any) -> float:
        length = leap(self, *given)
        for lane in self._lanes:
            if lane.jump is not None and lane.jump[0] is not None and lane.jump[1]:
                lane.jump = (lane.jump[0], lane.jump[1] - 1)
                break
        return length

    monkeypatch.setattr(TripLeaps, "_leap", astray)
    with pytest.raises(AssertionError, match="left out"):
        replay(GPU, [(steady(900, 8), 1)])


@pytest.mark.usefixtures("leaping")
@pytest.mark.parametrize("leaps", [TripLeaps, UnitLeaps])
def test_a_period_counted_twice_is_seen_in_time(leaps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = steady(900, 8)
    if leaps is UnitLeaps:
        trace = check_trace(LaunchTrace("t", (("i", 4000),), (Load(rows(10), "x"), dot(15_000, "x")), values=("o",)))
    leave_out = leaps._leave_out

    def twice(self: Any, length_ps: float, *more: Any) -> None:
        leave_out(self, 2 * length_ps, *more)

    monkeypatch.setattr(leaps, "_leave_out", twice)
    leapt, full = both(trace, GPU)
    assert leapt.time_s > 1.1 * full.time_s
