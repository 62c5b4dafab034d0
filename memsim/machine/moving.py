"""What the blocks of an SM ask of the memory: the tiles of a trip, what they store and spill, and how long that takes.

A run at the pace of instructions (`memsim.machine.paced`) is made of this; it says at which pace blocks go.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from memsim.machine.compiled import Compiled
from memsim.machine.l1 import L1
from memsim.machine.l2 import L2, Access
from memsim.machine.levels import Memory
from memsim.machine.units import LoopOfUnit

# Where a tile comes from: the L1 or the L2 has it, it is on its way from HBM, HBM has to be asked.
HELD, ON_ITS_WAY, MISSED = range(3)
# Where threads spill: above every tensor.
_STACK = Access("stack", True, 1 << 60, 1, 1, 1, 1, 1)


@dataclass(slots=True)
class Steps:
    """A pace in picoseconds, and how long blocks went at it in all."""

    enter: int
    exit: int
    trips: tuple[int, ...]
    time_ps: int = 0

    def loop_ps(self, number: int, plain: int, masked: int, slowness: float) -> int:
        """How long so many trips of a loop take by its number, of which those over masked tiles are the next one's; it
        is added to the time at this pace."""
        trips = self.trips
        last = len(trips) - 1
        duration = plain * trips[number if number < last else last]
        if masked:
            duration += masked * trips[number + 1 if number < last else last]
        duration = int(duration * slowness)
        self.time_ps += duration
        return duration


class Sm:
    """An SM: its L1, the side of the L2 that it lies on, its resident blocks, and when it last started one."""

    __slots__ = ("l1", "resident", "side", "started_ps")

    def __init__(self, side: int, l1: L1) -> None:
        self.side = side
        self.l1 = l1
        self.resident = 0
        self.started_ps = 0


class Moving:
    """The part of a run that asks the memory. `plain` says that what it loads goes through the L1; `slots` blocks run
    at once."""

    def __init__(self, env: simpy.Environment, memory: Memory, compiled: Compiled, plain: bool, slots: int) -> None:
        self._env = env
        self._memory = memory
        self._compiled = compiled
        self._plain = plain
        # Tiles go from the L2 to SRAM, with no L1 between.
        self._copies = memory.l2 is not None and memory.sides > 1 and not plain
        self._slots = slots
        # By twice the resident blocks, and one more where tiles come from HBM.
        self._steps: dict[int, Steps] = {}
        self._queued_ps = 0
        # Of pieces of several trips: until when the block that fetched them is busy with that.
        self._front_ps: dict[int, int] = {}
        self._fill_bytes = self._store_bytes = self.l1_hit_bytes = 0

    def _step(self, sm: Sm, cold: bool) -> Steps:
        """The pace of the blocks of an SM now, with tiles from HBM or not."""
        raise NotImplementedError

    def _loop(self, sm: Sm, loop: LoopOfUnit, number: int, slowness: float) -> Generator[simpy.Event, Any, None]:
        """All trips of one loop of a block."""
        env: Any = self._env
        timeout = env.timeout
        l2 = self._memory.l2
        # Tiles that others ask for too, copied from the L2 without the L1 between.
        copied = l2 is not None and not self._plain and loop.loads_only
        if copied and l2 is not None:
            read_shared, read_once = l2.read_shared, l2.read_once
        latency, side, coarse = self._memory.hbm.latency_ps, sm.side, loop.coarse
        front_ps, steps_at = self._front_ps, self._steps
        moves = loop.moves
        missed_of = [0] * len(moves)
        queued_ps = 0
        for value, plain, masked, bytes_of in loop.pieces:
            cold, late, front = False, 0, 0
            now = env.now
            if copied:
                arrival = 0
                fetched = []
                for at_move, (_, access, address, step) in enumerate(moves):
                    at = address + value * step
                    if access.shared:
                        missed, ready = read_shared(now, at, bytes_of[at_move], side)
                    else:
                        missed, ready = read_once(now, access, at, bytes_of[at_move])
                    if ready > arrival:
                        arrival = ready
                    if missed:
                        missed_of[at_move] += missed
                        cold = True
                        if coarse and access.shared:
                            fetched.append(at)
                    elif coarse and access.shared:
                        reached = front_ps.get(at, 0)
                        if reached > front:
                            front = reached
                if arrival > now:
                    cold = True
                    late = arrival - now - latency
                    if late < 0:
                        late = 0
            else:
                cold, late, front, fetched = self._moved(sm, loop, value, bytes_of)
            steps = steps_at.get(2 * sm.resident + cold) or self._step(sm, cold)
            duration = steps.loop_ps(number, plain, masked, slowness)
            spent = duration + late
            if fetched:
                for at in fetched:
                    front_ps[at] = now + spent
            # Nobody overtakes the block that fetches: what is further on is not there yet.
            if front > now + spent:
                spent = front - now
            queued_ps += spent - duration
            yield timeout(spent)
        self._queued_ps += queued_ps
        if copied and l2 is not None:
            self._asked(l2, loop, missed_of)

    def _pair_loop(self, sm: Sm, loop: LoopOfUnit, number: int, slowness: float) -> Generator[simpy.Event, Any, None]:
        """`_loop` where a trip loads one tile each of two tensors that blocks share, as flash's do: the same, with
        nothing called that a hit in the L2 does not need."""
        env: Any = self._env
        timeout = env.timeout
        l2 = self._memory.l2
        assert l2 is not None
        (_, _, address_a, step_a), (_, _, address_b, step_b) = loop.moves
        read_shared, young, find = l2.read_shared, l2.pieces.move_to_end, l2.pieces.get
        latency, side, coarse = self._memory.hbm.latency_ps, sm.side, loop.coarse
        front_ps, steps_at = self._front_ps, self._steps
        partitions = l2.partitions
        missed_a = missed_b = queued_ps = 0
        for value, plain, masked, (bytes_a, bytes_b) in loop.pieces:
            now = env.now
            fetched_a = fetched_b = arrival = 0
            at_a, at_b = address_a + value * step_a, address_b + value * step_b
            near = at_a * 2 * partitions + side
            home, copy = find(near), find(near + partitions)
            if home is not None and copy is not None and home.bytes >= bytes_a and copy.bytes >= bytes_a:
                young(near)
                young(near + partitions)
                arrival = home.ready if home.ready > copy.ready else copy.ready
            else:
                fetched_a, arrival = read_shared(now, at_a, bytes_a, side)
                missed_a += fetched_a
            near = at_b * 2 * partitions + side
            home, copy = find(near), find(near + partitions)
            if home is not None and copy is not None and home.bytes >= bytes_b and copy.bytes >= bytes_b:
                young(near)
                young(near + partitions)
                if home.ready > arrival:
                    arrival = home.ready
                if copy.ready > arrival:
                    arrival = copy.ready
            else:
                fetched_b, ready = read_shared(now, at_b, bytes_b, side)
                missed_b += fetched_b
                if ready > arrival:
                    arrival = ready
            cold, late = fetched_a > 0 or fetched_b > 0, 0
            if arrival > now:
                cold = True
                late = arrival - now - latency
                if late < 0:
                    late = 0
            steps = steps_at.get(2 * sm.resident + cold) or self._step(sm, cold)
            duration = steps.loop_ps(number, plain, masked, slowness)
            spent = duration + late
            if coarse:
                front = 0
                if fetched_a:
                    front_ps[at_a] = now + spent
                else:
                    front = front_ps.get(at_a, 0)
                if fetched_b:
                    front_ps[at_b] = now + spent
                elif (reached := front_ps.get(at_b, 0)) > front:
                    front = reached
                if front > now + spent:
                    spent = front - now
            queued_ps += spent - duration
            yield timeout(spent)
        self._queued_ps += queued_ps
        self._asked(l2, loop, (missed_a, missed_b))

    def _asked(self, l2: L2, loop: LoopOfUnit, missed_of: Sequence[int]) -> None:
        """Count what a loop has loaded, and what of each of its moves the L2 lacked."""
        for (_, access, _, _), n_bytes, missed in zip(loop.moves, loop.bytes, missed_of, strict=True):
            self._fill_bytes += n_bytes
            tally = l2.tally(access.tensor)
            tally.read_bytes += n_bytes
            tally.missed_bytes += missed

    def _moved(
        self, sm: Sm, loop: LoopOfUnit, value: int, bytes_of: tuple[int, ...]
    ) -> tuple[bool, int, int, list[int]]:
        """Take the tiles of a piece of a loop: (whether some are not in the L2, how long they wait in HBM's queue,
        until when those who fetched them are busy with that, which it fetched itself)."""
        cold, late, front = False, 0, 0
        fetched = []
        for (stores, access, address, step), n_bytes in zip(loop.moves, bytes_of, strict=True):
            at = address + value * step
            if stores:
                late = max(late, self._store(sm, access, at, n_bytes))
                continue
            source, queued = self._load(sm, access, at, n_bytes)
            cold, late = cold or source != HELD, max(late, queued)
            if loop.coarse and access.shared:
                if source == MISSED:
                    fetched.append(at)
                else:
                    front = max(front, self._front_ps.get(at, 0))
        return cold, late, front, fetched

    def _load(self, sm: Sm, access: Access, address: int, n_bytes: int) -> tuple[int, int]:
        """(where a tile comes from, how long it waits in HBM's queue)."""
        if n_bytes == 0:
            return HELD, 0
        self._fill_bytes += n_bytes
        if self._plain and access.shared:
            found = sm.l1.take(address, n_bytes)
            self.l1_hit_bytes += found
            n_bytes -= found
            if n_bytes == 0:
                return HELD, 0
        now = int(self._env.now)
        l2, hbm = self._memory.l2, self._memory.hbm
        if l2 is None:
            return MISSED, max(0, hbm.read(now, n_bytes) - now - hbm.latency_ps)
        missed, ready = l2.read(now, access, address, n_bytes, sm.side)
        if missed or ready > now:
            return MISSED if missed else ON_ITS_WAY, max(0, ready - now - hbm.latency_ps)
        return HELD, 0

    def _store(self, sm: Sm, access: Access, address: int, n_bytes: int) -> int:
        """Take a tile out of the SM; how long HBM holds that up. The L1 writes through, and keeps what it wrote."""
        if n_bytes == 0:
            return 0
        self._store_bytes += n_bytes
        if self._plain:
            sm.l1.take(address, n_bytes)
        now = int(self._env.now)
        l2, hbm = self._memory.l2, self._memory.hbm
        if l2 is None:
            hbm.write(now, n_bytes)
        else:
            l2.write(now, access, address, n_bytes)
        return max(0, hbm.pipe.free_ps - now - hbm.latency_ps)

    def _spill(self, block: int) -> int:
        """Write what a block spills to its place in memory, which the next one in its slot writes over. The L1 writes
        through; it only saves reads."""
        l2, hbm = self._memory.l2, self._memory.hbm
        if l2 is None or not self._compiled.spilled_bytes:
            return 0
        now = int(self._env.now)
        place = block % self._slots * self._compiled.spilled_bytes
        l2.write(now, _STACK, _STACK.origin + place, self._compiled.spilled_bytes)
        return max(0, hbm.pipe.free_ps - now - hbm.latency_ps)
