"""Windows of a replay by trace, in which all blocks are replayed tile by tile, as in `memsim.machine.traced`.

When what a trip takes is settled, every slot leaps ahead (`memsim.machine.trip_leaps`), and the replay goes on from
there until the next window is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.lane import Lane, aim
from memsim.machine.leap import Paces
from memsim.machine.leaping import EVEN, SIMILAR, UNEVEN, Counters, Leaping
from memsim.machine.levels import Memory
from memsim.machine.plan import BodyPlan, Environment, LaunchPlan
from memsim.machine.sm import Sm
from memsim.machine.timing import Progress
from memsim.machine.traced import MovesOver, Ring
from memsim.machine.work import Work
from memsim.trace import LaunchTrace

SETTLING, MEASURED = 4, 12
"""Trips of each slot before a window, and in it."""
LEAST_MEASURED = 1024
"""Trips of all slots in a window, at least."""
LASTING, ANOTHER_PACE, SOME = 0.85, 0.1, 0.1
"""What earlier windows count for in what a turnover takes, from which change of pace on they count for nothing, and of
how many slots a turnover has to be seen."""
FEWER, MOST_FEWER = 1.03, 1.2
"""By what factor slots may get fewer in a window, where loops are alike and where they are not."""
STEADY = 0.01
"""How far two halves of a window may differ for an SM to have a pace of its own."""


class Windows(Leaping):
    """One launch on the machine, replayed in windows; what lies between them is for a subclass to say."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int,
        progress: Progress | None, order: GridOrder, trace: LaunchTrace, work: Work,
    ) -> None:  # fmt: skip
        super().__init__(env, gpu, memory, plan, per_sm, progress, order, trace)
        self._work = work
        self._groups = {id(sm): number for number, sm in enumerate(self._sms)}
        self._lanes: list[Lane] = []
        self._seen = 0
        self._whole_units = False
        self._settling, self._measured = (1, 2) if work.nested else (SETTLING, MEASURED)
        if work.uniform and not work.nested and work.mean_trips <= 2 * MEASURED:
            # Whole units, since trips in them differ.
            self._measured = round(work.mean_trips * -(-MEASURED // work.mean_trips))
            self._whole_units = True
        elif not work.nested:
            # Where slots are few, their phases are only few of those there are.
            slots = min(per_sm * len(self._sms), plan.blocks)
            self._measured = max(MEASURED, min(LEAST_MEASURED // slots, round(work.total / slots / 32)))
        self._pace_before = 0.0
        self._check_at = -1
        self._measuring = False
        self._tries = 0
        # What trips took in the window, its first half and its second, by the slots at work on the SM.
        self._sums: list[dict[int, list[float]]] = [{}, {}]
        self._of_groups: list[dict[int, list[float]]] = [{}, {}]
        self._trip_ps: dict[int, float] = {}
        self._before: Counters | None = None
        # Since the leap before, and over windows so far: the slots' time, trips, turnovers.
        self._landed: Counters | None = None
        self._pooled = (0.0, 0.0, 0.0)
        self._pooled_pace = 0.0
        self._turn = 0.0
        # The last leap at a steady pace: how long, at which pace, by how many slots.
        self._bulk = (0.0, 0.0, 0)
        self._handout_ended = False
        self._units_left_out = 0

    def _slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        env = self._env
        lane = Lane(len(self._lanes), self._groups[id(sm)], sm)
        self._lanes.append(lane)
        self._at_work += 1
        self._check_at = self._at_work * self._settling
        slots = [(0, 0, 0, False)] * self._plan.slots
        while (unit := self._enter(lane)) is not None:
            sm.enter(int(env.now))
            yield from self._body(self._plan.body, unit, sm, slots, lane)
            now = int(env.now)
            sm.leave(now)
            if now > self._last_block_end_ps:
                self._last_block_end_ps = now
        lane.ended = True
        self._count_slots(int(env.now))
        self._at_work -= 1

    def _enter(self, lane: Lane) -> Environment | None:
        """The next unit that a slot replays."""
        if lane.ended:
            return None
        if lane.jump is not None:
            unit = lane.jump[0]
            if unit is None:
                lane.jump = None
        else:
            unit = self._next_unit(lane)
        lane.unit = unit
        if unit is not None:
            unit = lane.unit = dict(unit)
            lane.value, lane.stop = self._work.start, self._work.stop(unit)
            lane.entering = lane.stop > lane.value
            lane.last_ps = -1
            self._turns += 1
        return unit

    def _next_unit(self, lane: Lane) -> Environment | None:
        while (unit := next(lane.units, None)) is None:
            block = self._handout.take()
            if block is None:
                return None
            lane.units = iter(self._order.units_of_block(self._plan.axes, block))
        return unit

    def _trips(
        self, body: BodyPlan, start: int, stop: int, lane: Lane, coordinates: Environment, moves: list[MovesOver],
        rings: list[Ring],
    ) -> Iterable[int]:  # fmt: skip
        return (
            self._trips_of_unit(body, lane, coordinates, moves, rings)
            if body is self._work.loop
            else range(start, stop)
        )

    def _trips_of_unit(
        self, body: BodyPlan, lane: Lane, coordinates: Environment, moves: list[MovesOver], rings: list[Ring]
    ) -> Iterator[int]:
        """The trips that a slot replays of the loop of its unit, and after a leap of another unit's."""
        env, start, weight = self._env, self._work.start, self._work.weight
        value = start
        lane.entering = False
        while value < lane.stop:
            lane.value = value
            now = int(env.now)
            if lane.jump is None:
                self._sample(lane, now)
                self._seen += 1
                if self._seen >= self._check_at:
                    self._control(now)
            if lane.jump is not None:
                unit, to = lane.jump
                lane.jump = None
                if unit is None:
                    lane.ended = lane.moved = True
                    lane.in_trip = False
                    return
                if unit is not lane.unit:
                    lane.moved = True
                    lane.unit = unit
                    coordinates.clear()
                    coordinates.update(unit)
                lane.stop = self._work.stop(unit)
                aim(body, coordinates, lane.stop - start, lane.stop, value - start, to - start, moves, rings)
                value = lane.value = to
                continue_from = now
                lane.last_ps = continue_from
            lane.value = value + 1
            self.replayed += weight(value)
            lane.in_trip = True
            yield value
            value += 1
        lane.value = lane.stop
        lane.in_trip = False

    def _sample(self, lane: Lane, now: int) -> None:
        """Take note of what the trip before took, or the turnover."""
        weight = self._work.weight
        step = lane.value - self._work.start
        if lane.last_ps >= 0 and step and self._measuring and lane.samples < self._measured:
            half = self._sums[2 * lane.samples >= self._measured]
            of = half.setdefault(lane.sm.resident, [0.0, 0.0])
            of[0] += now - lane.last_ps
            of[1] += weight(lane.value - 1)
            lane.samples += 1
            of = self._of_groups[2 * lane.samples > self._measured].setdefault(lane.group, [0.0, 0.0])
            of[0] += now - lane.last_ps
            of[1] += weight(lane.value - 1)
        lane.last_ps = now

    def _control(self, now: int) -> None:
        """Begin to measure, or leap if what was measured is settled."""
        if not self._measuring:
            self._measuring = True
            self._before = self._counters(now)
            self._sums = [{}, {}]
            self._of_groups = [{}, {}]
            for lane in self._lanes:
                lane.samples = 0
            if self._landed is None:
                self._landed = self._before
            self._check_at = self._seen + self._at_work * (self._measured + 1)
            return
        assert self._before is not None
        self._measuring = False
        self._check_at = self._seen + self._at_work * self._settling
        first, second = self._sums
        if not second:
            return
        means = [sum(of[0] for of in half.values()) / sum(of[1] for of in half.values()) for half in (first, second)]
        self._tries += 1
        pace = self._mean_pace()
        counters = self._counters(now)
        if self._tries > 1 and self._landed is not None and self._whole_units:
            # What was not settled says nothing of turnovers.
            self._landed = self._before
        since = counters.since(self._before, pace)
        uneven = min(abs(means[0] / means[1] - 1), abs(pace / self._pace_before - 1) if self._pace_before else 1.0)
        self._pace_before = pace
        overfull = since.overfull
        # A window in which many slots ended says little of those that are left.
        fewer = since.slot_ps > (FEWER if self._work.uniform else MOST_FEWER) * since.now * self._at_work or not any(
            lane.sm.resident in second for lane in self._lanes if not lane.ended
        )
        if fewer or overfull or uneven > (EVEN if self._tries < 3 else UNEVEN):
            self._check_at = self._seen
            return
        self._tries, self._pace_before = 0, 0.0
        self._trip_ps = {}
        for resident in first.keys() | second.keys():
            ps, trips = (sum(half.get(resident, (0.0, 0.0))[n] for half in self._sums) for n in (0, 1))
            if trips:
                self._trip_ps[resident] = ps / trips
        if not self._handout_ended and self._landed is not None:
            self._turn = self._turn_ps(counters.since(self._landed, pace))
            self._landed = counters
        trips = max(1.0, since.replayed)
        length, old, at_work = self._bulk
        if length and at_work == self._at_work and abs(pace / old - 1) < SIMILAR:
            # A leap is half at the pace before it, half at that after it.
            self._left_out_ps += round(length * (pace / old - 1) / 2)
        paces = Paces(
            self._trip_ps, self._turn, self._at_work, self._work.alone_ps,
            tuple(ps / trips for ps in since.busy_ps), tuple(ps / trips for ps in since.memories_ps),
            self._factors(),
        )  # fmt: skip
        length = self._leap(paces, since)
        self._bulk = (length, pace, self._at_work)
        self._check_at = self._seen + self._at_work * self._settling

    def _leap(self, paces: Paces, since: Counters) -> float:
        """Go on elsewhere, having seen a window; the picoseconds leapt, or 0 where the next leap begins anew."""
        raise NotImplementedError

    def _factors(self) -> tuple[float, ...]:
        """How much longer trips took on an SM than on others of as many slots, where both halves of a window say so."""
        found = [1.0] * len(self._sms)
        first, second = self._of_groups
        for group in first.keys() & second.keys():
            (ps, trips), (ps_after, trips_after) = first[group], second[group]
            mean = self._trip_ps.get(self._sms[group].resident)
            if mean and trips and trips_after and abs(ps / trips / (ps_after / trips_after) - 1) < STEADY:
                found[group] = (ps + ps_after) / (trips + trips_after) / mean
        return tuple(found)

    def _in_trips(self, now: int) -> list[tuple[int, float]]:
        weight = self._work.weight
        return [(now - lane.last_ps, weight(lane.value - 1)) for lane in self._lanes if lane.in_trip]

    def _mean_pace(self) -> float:
        ps, trips = (sum(of[n] for half in self._sums for of in half.values()) for n in (0, 1))
        return ps / max(1.0, trips)

    def _turn_ps(self, landed: Counters) -> float:
        """What a turnover takes: what trips at the pace of now leave of the slots' time, over windows so far."""
        pace = self._mean_pace()
        lasting = LASTING if self._pooled_pace and abs(pace / self._pooled_pace - 1) < ANOTHER_PACE else 0.0
        slots_ps, trips, turns = (lasting * sum_ for sum_ in self._pooled)
        if landed.turns < SOME * self._at_work:
            # Of few turnovers what trips leave is chance.
            return self._turn
        self._pooled_pace = pace
        self._pooled = slots_ps + landed.slot_ps, trips + landed.replayed, turns + landed.turns
        slots_ps, trips, turns = self._pooled
        return (slots_ps - pace * trips) / turns if turns else 0.0
