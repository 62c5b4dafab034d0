"""How far the slots of a launch get in a long stretch of time, without a look at what they do in it.

A slot makes the trips of a unit's loop, turns over to its next unit, makes that one's. Given what a trip takes, by how
many slots of its SM are still at work, and what a turnover takes, `Flight` says which trip of which unit each slot is
at after a stretch. An event is the end of a unit: however long loops are, they cost nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

U = TypeVar("U")


_SHARPNESS = 8
_LOAD_CHANGE = 0.02
_NEXT_GROUP = 7


@dataclass
class Paces:
    """Picoseconds of a trip as measured, by the slots at work on the SM, and of a turnover.

    Of other numbers of slots the pace is in proportion to what no slot can be faster than: `alone_ps`, a trip with no
    one else about, what the trips of an SM's slots take of each of its pipes (`pipes_ps`), and what those of all slots
    take of HBM and the L2 (`memories_ps`). SMs of as many slots may be faster or slower for a while, as their slots
    happen to lie: by a factor for each group (`factors`), which a turnover hands on to another group.
    """

    trip_ps: dict[int, float]
    turn_ps: float = 0.0
    at_work: int = 1
    alone_ps: float = 0.0
    pipes_ps: tuple[float, ...] = ()
    memories_ps: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    def factor(self, group: int, turnovers: int) -> float:
        """How much longer than others' a trip takes on an SM, after so many turnovers."""
        return self.factors[(group + turnovers * _NEXT_GROUP) % len(self.factors)] if self.factors else 1.0

    def least(self, resident: int, at_work: int) -> float:
        """About the least that a trip can take, where several limits are near one another a little more."""
        limits = [self.alone_ps, *(resident * ps for ps in self.pipes_ps), *(at_work * ps for ps in self.memories_ps)]
        most = max(limits)
        return most * sum((limit / most) ** _SHARPNESS for limit in limits) ** (1 / _SHARPNESS) if most else 1.0

    def at(self, resident: int, at_work: int) -> float:
        """What a trip takes with so many slots at work on the SM, and on the whole machine."""
        nearest = min(self.trip_ps, key=lambda r: (abs(r - resident), r))
        return self.trip_ps[nearest] * self.least(resident, at_work) / self.least(nearest, self.at_work)


class Aboard(Generic[U]):
    """A slot: the group (SM) it is in, its unit, the trips that it has still to make of it; `ended` when there is no
    unit any more."""

    __slots__ = ("ended", "finish_ps", "group", "left", "number", "pace", "turned_ps", "unit", "units_done", "version")

    def __init__(self, number: int, group: int, unit: U | None, left: float) -> None:
        self.number = number
        self.group = group
        self.unit = unit
        self.left = left
        self.turned_ps = 0.0
        self.pace = 0.0
        self.finish_ps = 0.0
        self.version = 0
        self.units_done = 0
        self.ended = False

    def left_at(self, now: float) -> float:
        """Trips still to make, those in whose stead it still turns over included."""
        return max(0.0, self.finish_ps - now) / self.pace if self.pace else self.left


class Flight(Generic[U]):
    """A stretch of time that slots spend at given paces. `next_unit` gives a slot (by its number) its next unit with
    the trips of that, or None."""

    def __init__(
        self, slots: Iterable[Aboard[U]], paces: Paces, next_unit: Callable[[int], tuple[U, float] | None],
        completed: Callable[[Aboard[U]], Any] | None = None,
    ) -> None:  # fmt: skip
        self.slots = list(slots)
        self.now = 0.0
        self.slot_ps = 0.0
        self._paces = paces
        self._next_unit = next_unit
        self._completed = completed
        self._groups: dict[int, list[Aboard[U]]] = {}
        self.exhausted = False
        self._heap: list[tuple[float, int, int]] = []
        self._by_number = {slot.number: slot for slot in self.slots}
        for slot in self.slots:
            self._groups.setdefault(slot.group, []).append(slot)
        self._load = self._at_work = len(self.slots)
        self._known: dict[int, float] = {}
        # A slot that is about to turn over does so after the flight.
        self._flying = False
        for slot in self.slots:
            if slot.unit is None:
                self._take(slot)
        self._flying = True
        for slot in self.slots:
            if not slot.ended and not slot.pace:
                self._schedule(slot)

    @property
    def active(self) -> list[Aboard[U]]:
        """The slots that have a unit."""
        return [slot for slot in self.slots if not slot.ended]

    def unseen_share(self) -> float:
        """The share of slots at work whose pace is a guess."""
        of_groups = [len(group) for group in self._groups.values()]
        unseen = sum(n for n in of_groups if n not in self._paces.trip_ps)
        return unseen / max(1, sum(of_groups))

    def until(self, end: float) -> bool:
        """Go on up to a time; whether a slot found no more units on the way, at which it stops at once."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            finish, number, version = heapq.heappop(heap)
            slot = self._by_number[number]
            if version != slot.version or slot.ended:
                continue
            self._pass(finish)
            if self._completed is not None:
                self._completed(slot)
            slot.units_done += 1
            slot.left = 0.0
            self._take(slot)
            if slot.ended:
                return True
            self._schedule(slot)
        self._pass(end)
        return False

    def last_finish(self) -> float:
        """When the last of the slots' present units ends."""
        return max((slot.finish_ps for slot in self.active), default=self.now)

    def _pass(self, now: float) -> None:
        if now > self.now:
            self.slot_ps += (now - self.now) * self._at_work
            self.now = now

    def _take(self, slot: Aboard[U]) -> None:
        group = self._groups[slot.group]
        turned = self._paces.turn_ps if self._flying else 0.0
        taken = self._next_unit(slot.number)
        while taken is not None and taken[1] <= 0:
            slot.unit = taken[0]
            if self._completed is not None:
                self._completed(slot)
            slot.units_done += 1
            turned += self._paces.turn_ps
            taken = self._next_unit(slot.number)
        if taken is not None:
            slot.unit, slot.left = taken
            slot.turned_ps = self.now + max(0.0, turned)
            if turned < 0:
                # Copies that a loop starts with come together, which can save more than the turnover takes.
                slot.left = max(slot.left / 2, slot.left + turned / self._paces.at(len(group), self._load))
            return
        self.exhausted = True
        self._at_work -= 1
        slot.ended, slot.unit, slot.left = True, None, 0.0
        group.remove(slot)
        # Those that stay are faster from now on: of its SM at once, of others when enough have ended.
        stay = group
        if self._at_work < (1 - _LOAD_CHANGE) * self._load:
            self._load = self._at_work
            self._known.clear()
            stay = self.active
        for other in stay:
            if other.pace:
                other.left = max(0.0, other.finish_ps - max(self.now, other.turned_ps)) / other.pace
                self._schedule(other)

    def _schedule(self, slot: Aboard[U]) -> None:
        resident = len(self._groups[slot.group])
        pace = self._known.get(resident)
        if pace is None:
            pace = self._known[resident] = self._paces.at(resident, self._load)
        slot.pace = pace * self._paces.factor(slot.group, slot.units_done)
        slot.finish_ps = max(self.now, slot.turned_ps) + slot.left * slot.pace
        slot.version += 1
        heapq.heappush(self._heap, (slot.finish_ps, slot.number, slot.version))
