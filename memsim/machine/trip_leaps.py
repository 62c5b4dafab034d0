"""Replays a launch by its trace without replaying every trip: in windows, and leaps from one to the next.

In a window (`memsim.machine.windows`) all blocks are replayed tile by tile. When what a trip takes is settled,
every slot leaps ahead, by whole trips and units (`memsim.machine.leap`), and the replay goes on from there: what is on
its way, how pipes are taken and how far slots are from one another stay as they are, only which trip of which unit a
slot makes is another. No simulated time passes meanwhile; what would have passed is added in the end.
"""

from __future__ import annotations

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.leap import Aboard, Flight, Paces
from memsim.machine.leaping import MOST_SLOWER, SATURATED, Counters
from memsim.machine.levels import Memory
from memsim.machine.plan import LOOP, Environment, LaunchPlan
from memsim.machine.timing import Progress
from memsim.machine.warming import Warming
from memsim.machine.windows import Windows
from memsim.machine.work import Work, fills_by_tensor
from memsim.trace import LaunchTrace

SHORTEST = 16
"""Trips of a leap within loops, at least."""
TURNED = 0.5
"""Of how many of the slots a turnover has to be seen before some are left out."""
DRIFT, CAUSAL_DRIFT = 0.004, 0.01
"""How far the pace may change from one window to the next for turnovers between them to be left out."""
IN_STEP, IN_STEP_WAVES = 0.5, 2.0
"""Slots are in step that are within so much of a loop from one another; so many waves in step are not leapt over at the
end."""
SLICES, ROOMY_SLICES, THIN = 16, 4, 4
"""Into how many slices a loop is cut where the L2 is crowded, thinner ones where a slice asks for more than a THINth of
it, and where it is not."""
LOOK_BACK, OTHER_SHARE = 4, 0.06
"""A leap ends where HBM was busy with a share that differs so much from the window's, over so many slices."""
FITTING = 0.7
"""What share of the L2 loops within loops may fill to find all of what they touch again."""


class TripLeaps(Windows):
    """One launch on the machine, most of it in leaps."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int,
        progress: Progress | None, order: GridOrder, trace: LaunchTrace, work: Work, *, crowded: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(env, gpu, memory, plan, per_sm, progress, order, trace, work)
        # Whether the L2 is short of room for what slots ask for in common.
        self._crowded = crowded
        self._reach = 0.5
        self._steady_pace = 0.0
        self._hbm_ps = (0.0, 0.0)
        if memory.l2 is None:
            self._plan_hbm()

    def _leap(self, paces: Paces, since: Counters) -> float:
        work = self._work
        left = all_left = work.total - self.replayed - self.left_out
        if left < self._at_work * 2 * (self._settling + self._measured):
            return 0.0
        left_out_before = self.left_out
        taken: dict[int, float] = {}

        def next_unit(number: int) -> tuple[Environment, float] | None:
            unit = self._next_unit(self._lanes[number])
            if unit is None:
                return None
            trips = work.between(work.start, work.stop(unit))
            taken[number] = taken.get(number, 0.0) + trips
            return unit, trips

        aboard: list[Aboard[Environment]] = []
        before: dict[int, float] = {}
        phases: dict[int, float] = {}
        weight, now = work.weight, int(self._env.now)
        for lane in self._lanes:
            if lane.ended:
                continue
            inside = lane.entering or lane.value < lane.stop
            rest = work.between(lane.value, lane.stop) if inside else 0.0
            before[lane.number] = rest
            # How far a slot is in the trip that it makes, it still is afterwards.
            pace = paces.at(lane.sm.resident, self._at_work) * weight(lane.value - 1 if lane.value > work.start else 0)
            began = 0 <= lane.last_ps < now and inside
            phase = max(0.0, 1.0 - (now - lane.last_ps) / pace) if began else 0.0
            phases[lane.number] = phase
            left = max(0.0, rest - lane.carry + phase)
            aboard.append(Aboard(lane.number, lane.group, lane.unit if inside else None, left))
        shortest = min((slot.left for slot in aboard if slot.unit is not None), default=0.0)
        slowest = max(paces.trip_ps.values())
        turns = self._pooled[2]
        turned = turns >= TURNED * self._at_work or (
            not work.uniform and turns * work.mean >= 4 * self._settling * self._at_work
        )
        turned = turned and not work.nested
        longest = max((slot.left for slot in aboard if slot.unit is not None), default=0.0)
        # Where slots go in step, which of them get the last blocks is seen, not guessed.
        waves = all_left / (work.mean * self._at_work) - IN_STEP_WAVES
        in_step = work.uniform and shortest >= SHORTEST * work.mean_weight and longest - shortest < IN_STEP * work.mean
        turned = turned and not (in_step and waves < 1)
        # What turnovers do to the pace has to be over before they are left out.
        pace = self._mean_pace()
        apart = abs(pace / self._steady_pace - 1) if self._steady_pace else 1.0
        self._steady_pace = pace
        if apart > (DRIFT if work.uniform else CAUSAL_DRIFT):
            self._reach = 0.5
            turned = False
        if not turned and shortest < SHORTEST * work.mean_weight:
            return 0.0
        if turned:
            unit_ps = work.mean * slowest + paces.turn_ps
            reach = min(self._reach, waves) if in_step else self._reach
            limit = max(1, int(reach)) * unit_ps if work.uniform else reach * unit_ps
            self._reach *= 2
        else:
            limit = (shortest - 4 * work.mean_weight) * min(paces.trip_ps.values()) * min(paces.factors)
        warming = self._warming(aboard)
        hbm_share = since.memories_ps[0] / since.now
        read_before, _, busy_before, *_ = self._memory.counts()
        recent: list[tuple[float, int]] = [(0.0, busy_before)]

        def completed(slot: Aboard[Environment]) -> None:
            if warming is not None and slot.unit is not None:
                side = self._lanes[slot.number].sm.side
                warming.leave(slot.number, slot.unit, work.stop(slot.unit), side)

        flight: Flight[Environment] = Flight(aboard, paces, next_unit, completed)
        at_work = len(flight.active)
        slice_ps = slowest * work.mean_weight * self._slice_trips(at_work)
        while flight.now < limit:
            if flight.exhausted:
                limit = min(limit, flight.last_finish() - 4 * slowest * work.mean_weight)
                if flight.unseen_share() > 0.1 or len(flight.active) < 0.75 * at_work:
                    break
            end = max(limit, flight.now)
            if warming is not None:
                end = min(end, flight.now + slice_ps)
            flight.until(end)
            if warming is not None:
                self._warm(warming, flight, now)
                recent = [*recent[-LOOK_BACK:], (flight.now, self._memory.counts()[2])]
                (then, busy_then), (at, busy) = recent[0], recent[-1]
                if len(recent) > LOOK_BACK and abs((busy - busy_then) / (at - then) - hbm_share) > OTHER_SHARE:
                    break
        for slot in flight.slots:
            lane = self._lanes[slot.number]
            gone = before[slot.number] + taken.get(slot.number, 0.0)
            if slot.ended:
                lane.jump = (None, 0)
                self.left_out += gone
                continue
            assert slot.unit is not None
            stop = work.stop(slot.unit)
            exact = max(0.0, slot.left_at(flight.now) - phases[slot.number])
            value = work.value_with(stop, exact)
            rest = work.between(value, stop)
            lane.carry = rest - exact
            lane.jump = (slot.unit, value)
            self.left_out += gone - rest
        if work.nested and self._memory.l2 is not None:
            # What loops in the loop touch again and again is found or missed as in the window.
            times = (self.left_out - left_out_before) / max(1.0, since.replayed)
            named = {m.access.tensor for step in work.loop.steps if step[0] == LOOP for m in step[1].moves}
            units = sum(max(0, slot.units_done - 1) for slot in flight.slots)
            fits = work.inner_bytes * at_work < FITTING * self._memory.l2.room_bytes
            for name in named & set(since.missed):
                # Of a new unit all is missed once.
                new = work.new_bytes.get(name, 0.0)
                again = 0.0 if fits else max(0.0, since.missed[name] - new * since.turns)
                missed = round(again * times + new * units)
                self._memory.tallies[name].missed_bytes += missed
                self._left_out_hbm[0] += missed
            self._left_out_hbm[1] += since.hbm_bytes[1] * times
            if warming is not None:
                for slot in flight.slots:
                    if slot.units_done and slot.unit is not None:
                        value = self._lanes[slot.number].jump_value
                        warming.settle_in(slot.unit, value, self._lanes[slot.number].sm.side, now)
        slower = 1.0
        if self._memory.l2 is None and flight.now and not work.nested:
            slower = self._slower_by_bytes(since, self.left_out - left_out_before, flight)
        if self._memory.l2 is not None and flight.now:
            counts = self._memory.counts()
            if not work.nested:
                reads = counts[0] - read_before
                share = (counts[2] - busy_before) / flight.now
                pile = max(0.0, share - 1.0) * flight.now
                slower = self._slower(since, share, reads, flight.now, pile)
        self._leave_out(slower * flight.now, slower * flight.slot_ps, since, at_work)
        self._units_left_out += sum(slot.units_done for slot in flight.slots)
        self._landed = self._counters(now)
        self._handout_ended = self._handout_ended or flight.exhausted
        return 0.0 if flight.exhausted or not turned else flight.now

    def _plan_hbm(self) -> None:
        """What of HBM's time a weight of 1 in the loop takes, and what a unit takes outside it."""
        fills, work = fills_by_tensor(self._trace), self._work
        inside = sum(fills.get(name, 0) for name in {move.access.tensor for move in work.loop.moves})
        outside = sum(fills.values()) - inside + work.stored_bytes
        pipe = self._memory.hbm.pipe
        self._hbm_ps = pipe.duration_ps(inside) / max(1.0, work.total), pipe.duration_ps(outside) / work.units

    def _slower_by_bytes(self, since: Counters, weight: float, flight: Flight[Environment]) -> float:
        """Where there is no L2, HBM's bytes are known: where it is the limit, they are the time."""
        in_window = since.memories_ps[0] / since.now
        if in_window < SATURATED:
            return 1.0
        inside, outside = self._hbm_ps
        bytes_ps = inside * weight + outside * sum(slot.units_done for slot in flight.slots)
        return min(MOST_SLOWER, max(1 / MOST_SLOWER, bytes_ps / flight.now / min(1.0, in_window)))

    def _slice_trips(self, at_work: int) -> int:
        """Trips in a slice: a share of a loop, but few where slots ask for much beside what the L2 holds."""
        if not self._crowded:
            return max(1, (self._work.longest - self._work.start) // ROOMY_SLICES)
        trips = max(1, (self._work.longest - self._work.start) // SLICES)
        if self._memory.l2 is None:
            return trips
        asked = sum(m.access.rows * m.access.row_bytes for m in self._work.loop.moves) * at_work
        thinnest = max(1, trips // 2) if trips > 2 * SLICES else 1
        return max(thinnest, min(trips, self._memory.l2.room_bytes * self._memory.sides // (THIN * max(1, asked))))

    def _warming(self, aboard: list[Aboard[Environment]]) -> Warming | None:
        if self._memory.l2 is None:
            return None
        warming = Warming(self._memory, self._plan.body, self._work.loop, self._work.start, self._work.longest)
        for slot in aboard:
            if slot.unit is not None:
                lane = self._lanes[slot.number]
                warming.enter(slot.number, slot.unit, self._work.stop(slot.unit), lane.value, lane.sm.side)
        return warming

    def _warm(self, warming: Warming, flight: Flight[Environment], now: int) -> None:
        """Ask the L2 for what slots passed in a slice of a leap."""
        work = self._work
        for slot in flight.active:
            if slot.unit is not None:
                side, stop = self._lanes[slot.number].sm.side, work.stop(slot.unit)
                if not warming.knows(slot.number, slot.unit):
                    warming.enter(slot.number, slot.unit, stop, None, side)
                warming.reach(slot.number, stop, work.value_with(stop, slot.left_at(flight.now)), side)
        warming.flush(now)

    def _account(self) -> None:
        if abs(self.replayed + self.left_out - self._work.total) > 1e-6 * self._work.total:
            raise AssertionError(f"{self.replayed} trips replayed and {self.left_out} left out, of {self._work.total}")
        self._left_out_busy = self._work.busy_of(self.left_out, self._units_left_out)
        super()._account()
