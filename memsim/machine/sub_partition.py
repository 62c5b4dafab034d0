"""A sub-partition of an SM: whose turn it is, and what its warps share.

Warps take turns by time, and at the same time by who asked first. One turn follows another within one simpy process,
since the warps of a sub-partition see nothing but one another.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator

import simpy

from memsim.machine.steps import PIPES

Turn = Callable[[], float | None]
"""One turn of a warp, and the time at which it wants the next; None where something else has asked for it."""


class SubPartition:
    """The turns of the warps; when each pipe is free next and how long each was in use. Times are in cycles."""

    def __init__(self) -> None:
        self.free = [0.0] * len(PIPES)
        self.busy = [0.0] * len(PIPES)
        self.issue = 0.0
        # When products compute, from when to when: their accumulators then take registers' ports that arithmetic needs.
        self.running: deque[tuple[float, float]] = deque()
        # The way to the L2 and back, and when the last store is through it.
        self.way = 0.0
        self.stored = 0.0
        # When turns are asked for, the earliest first, and whose they are. The last is nobody's.
        self.times = [math.inf]
        self._turns: list[Turn] = [lambda: None]

    def ask(self, time: float, turn: Turn) -> None:
        """Ask for a turn, behind all that asked for the same time before."""
        place = bisect_right(self.times, time)
        self.times.insert(place, time)
        self._turns.insert(place, turn)

    def run(self, env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        """Give every turn in its time, without waiting for the clock as long as no other process has anything to do."""
        times, turns = self.times, self._turns
        next_time, next_turn, insert_time, insert_turn = times.pop, turns.pop, times.insert, turns.insert
        elsewhere = env.peek()
        while True:
            time = next_time(0)
            if time >= elsewhere:
                if time == math.inf:
                    break
                yield env.timeout(time - env.now)
                elsewhere = env.peek()
            turn = next_turn(0)
            following = turn()
            if following is not None:
                # What `ask` does, which is too slow to call here.
                place = bisect_right(times, following)
                insert_time(place, following)
                insert_turn(place, turn)


class Block:
    """What the warps of a block share: the barrier at which so many meet, and the arrivals of their boxes."""

    def __init__(self, partition: SubPartition, warps: int) -> None:
        self.warps = warps
        self.boxes: list[float] = []
        self.released = 0.0
        self._partition = partition
        self._waiting: list[Turn] = []

    def meet(self, time: float, turn: Turn) -> bool:
        """Whether this is the last warp to come to the barrier. The others wait, and then go on at `released`."""
        if len(self._waiting) + 1 < self.warps:
            self._waiting.append(turn)
            return False
        self.released = time
        for other in self._waiting:
            self._partition.ask(time, other)
        self._waiting.clear()
        return True
