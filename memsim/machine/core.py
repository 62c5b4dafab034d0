"""One SM at the scale of instructions: a sub-partition, with the warps that its resident blocks have there.

The sub-partitions of an SM run alike, since every block spreads its warps over them, so one stands for all; what they
share (SRAM, the way in from the L2, the tensor cores of a warp group) is counted at its share of the SM's rate. A warp
issues its instructions in order, each when the compiler's schedule, the barriers it waits for, the issue slot and its
pipe allow; who has to wait for a slot or a pipe takes the next one at once, first come, first served. Products, copies
and stores go on behind a warp. Time is in SM cycles; simpy's clock counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

import simpy

from memsim import stream as s
from memsim.machine.steps import (
    ALU,
    BANKS,
    FOR_ALU,
    FOR_MEMORY,
    FOR_ORDER,
    FOR_TENSOR,
    PIPES,
    TENSOR,
    WAIT_OF_PIPE,
    WAITS,
    CoreTimes,
    Deed,
    MemoryTimes,
    Step,
    steps_of,
)  # fmt: skip
from memsim.machine.sub_partition import Block, SubPartition, Turn
from memsim.stream import Stream

__all__ = ["PIPES", "WAITS", "CoreRun", "CoreTimes", "MemoryTimes", "run_core"]

# Cycles' worth of stores that wait on their way out of an SM before the next one has to.
_STORE_QUEUE = 256.0


@dataclass(frozen=True)
class CoreRun:
    """What the blocks of an SM took: the cycles until each entered its loops and until each ended (means), how long
    each of `PIPES` was busy, and what their warps waited for (`WAITS`), in cycles of a warp."""

    entered: float
    ended: float
    busy: tuple[float, ...]
    waited: tuple[float, ...]


def run_core(
    stream: Stream,
    trips: Sequence[int],
    blocks: int,
    warps: int,
    core: CoreTimes,
    memory: MemoryTimes,
    box_bytes: int = 0,
    groups: int = 1,
    apart_cycles: float = 0.0,
) -> CoreRun:
    """Run `blocks` blocks side by side, each with `warps` warps in the sub-partition and so many trips of each loop.

    `box_bytes` is what one copy by descriptor moves. The warps of a block meet at barriers in so many groups apart.
    One block starts `apart_cycles` after the other.
    """
    parts = _parts(stream, trips, core, memory)
    partitions = [SubPartition() for _ in range(1 if core.share else blocks)]
    warped = []
    for number in range(blocks):
        partition = partitions[number % len(partitions)]
        block = Block(partition, warps // groups)
        for n in range(warps):
            warp = _Warp(partition, block, core, memory, box_bytes, leads=n == 0)
            warp.turn = warp.run(parts, number * apart_cycles).__next__
            partition.ask(0.0, warp.turn)
            warped.append(warp)
    env = simpy.Environment()
    for partition in partitions:
        env.process(partition.run(env))
    env.run()
    return CoreRun(
        _sum(w.entered for w in warped) / len(warped),
        _sum(w.ended for w in warped) / len(warped),
        tuple(_sum(p.busy[n] for p in partitions) for n in range(len(PIPES))),
        tuple(_sum(w.waited[n] for w in warped) for n in range(len(WAITS))),
    )


def _sum(values: Iterable[float]) -> float:
    """The sum, one value after the other: Python's own depends on its release."""
    total = 0.0
    for value in values:
        total += value
    return total


@dataclass(frozen=True)
class _Part:
    """A segment ready to run `times` times: copies after the first `own` belong to the next loop, which takes
    `wanted` of them in all; what would copy more is predicated off."""

    steps: tuple[Step, ...]
    times: int
    own: int
    loop: int
    wanted: int
    first: bool


def _parts(stream: Stream, trips: Sequence[int], core: CoreTimes, memory: MemoryTimes) -> list[_Part]:
    parts = []
    loop = 0
    for position, (segment, steps) in enumerate(zip(stream.segments, steps_of(stream, core, memory), strict=True)):
        first = position == 0
        times = trips[loop] if loop < len(trips) else 0
        if segment.loop:
            parts.append(_Part(steps, times, 0, loop, segment.copies * times, first))
            loop += 1
        elif position + 1 < len(stream.segments):
            per_trip = stream.segments[position + 1].copies
            ahead = segment.copies // per_trip * per_trip if per_trip else 0
            parts.append(_Part(steps, 1, segment.copies - ahead, loop, per_trip * times, first))
        else:
            parts.append(_Part(steps, 1, segment.copies, loop, 0, first))
    return parts


class _Warp:
    """One warp's way through the parts of its stream."""

    def __init__(
        self, partition: SubPartition, block: Block, core: CoreTimes, memory: MemoryTimes, box_bytes: int, *,
        leads: bool,
    ) -> None:  # fmt: skip
        self._partition = partition
        self._block = block
        self._core = core
        self._memory = memory
        self._box_bytes = box_bytes
        self._leads = leads
        self.turn: Turn
        self.entered = 0.0
        self.ended = 0.0
        self.waited = [0.0] * len(WAITS)
        self._barriers = [0.0] * 8
        self._causes = [FOR_ORDER] * 8
        # When each committed group of products and of copies is done, and when the copies since the last commit are.
        self._products: list[float] = []
        self._copies: list[float] = []
        self._opened = 0.0
        self._boxes_taken = 0
        self._part: _Part
        # Copies so far: of a trip of this part, and for each loop.
        self._seen = 0
        self._taken: dict[int, int] = {}

    def run(self, parts: Sequence[_Part], start: float) -> Generator[float | None, None, None]:
        """Issue every instruction in its time.

        A turn goes on while nobody else's is due. `clock` is the time of the turn, which is `now` but for rounding.
        """
        partition, waited, barriers, causes = self._partition, self.waited, self._barriers, self._causes
        free, busy, running, times = partition.free, partition.busy, partition.running, partition.times
        operand_latency, contention = self._core.operand_latency, self._core.tensor_contention
        deeds, block = self._deeds(), self._block
        meets = block.warps > 1 and self._core.depend
        in_loops = False
        if start:
            yield start
        now = clock = start
        due = times[0]
        for part in parts:
            self._part = part
            if not in_loops and part.times and not part.first and part.own == 0:
                in_loops = True
                self.entered = now - start
            for _ in range(part.times):
                self._seen = 0
                for awaited, pipe, cycles, stall, left in part.steps:
                    ready = now
                    if awaited:
                        for bit in awaited:
                            if barriers[bit] > ready:
                                waited[causes[bit]] += barriers[bit] - ready
                                ready = barriers[bit]
                        if ready > now:
                            # Its own dependences hold nobody else up.
                            clock += ready - clock
                            if clock >= due:
                                yield clock
                                due = times[0]
                    if pipe is not None:
                        freed = free[pipe]
                        while freed > ready:
                            # Nor does a pipe that is in use: the slot goes to who can issue.
                            waited[WAIT_OF_PIPE[pipe]] += freed - ready
                            ready = freed
                            clock += freed - clock
                            if clock >= due:
                                yield clock
                                due = times[0]
                                freed = free[pipe]
                    now = partition.issue
                    if now > ready:
                        waited[FOR_ALU] += now - ready
                    else:
                        now = ready
                    partition.issue = now + 1.0
                    if pipe is not None:
                        free[pipe] = now + cycles
                        busy[pipe] += cycles
                        if running and pipe <= ALU:
                            while running and running[0][1] <= now:
                                running.popleft()
                            if running and running[0][0] <= now:
                                partition.issue += contention
                    if now > clock:
                        clock += now - clock
                        if clock >= due:
                            yield clock
                            due = times[0]
                    then = now + stall
                    if left is not None:
                        deed, (writes, latency, cause, reads) = left
                        if deed is not None:
                            if deed.kind == s.BARRIER:
                                if meets:
                                    if not block.meet(clock, self.turn):
                                        yield None
                                        clock = block.released
                                        waited[FOR_ORDER] += clock - now
                                        now = clock
                                    due = times[0]
                                then = max(then, now + self._core.barrier)
                            else:
                                then = deeds[deed.kind](deed, now, then)
                        if writes != s.NO_BARRIER:
                            barriers[writes] = now + latency
                            causes[writes] = cause
                        if reads != s.NO_BARRIER and now + operand_latency > barriers[reads]:
                            barriers[reads] = now + operand_latency
                            causes[reads] = cause
                    if partition.issue > then:
                        then = partition.issue
                    clock += then - clock
                    if clock >= due:
                        yield clock
                        due = times[0]
                    now = then
        self.ended = max(now, partition.stored) - start
        yield None

    def _deeds(self) -> dict[int, Callable[[Deed, float, float], float]]:
        """What each kind of instruction sets going at `now`, and when the warp goes on, which it else would `then`."""
        return {
            s.PRODUCT: self._product,
            s.PRODUCT_WAIT: self._product_wait,
            s.COPY: self._copy,
            s.BOX_COPY: self._box_copy,
            s.COPY_COMMIT: self._copy_commit,
            s.COPY_WAIT: self._copy_wait,
            s.BOX_WAIT: self._box_wait,
            s.LOAD: self._load,
            s.SPILL_LOAD: self._load,
            s.SPILL_STORE: self._spill_store,
            s.STORE: self._store,
            s.FENCE: self._fence,
        }

    def _until(self, done: float, then: float, cause: int) -> float:
        if done > then:
            self.waited[cause] += done - then
            return done
        return then

    def _product(self, deed: Deed, now: float, then: float) -> float:
        free, busy = self._partition.free, self._partition.busy
        begins = max(now + self._core.product_start, free[TENSOR])
        ends = begins + deed.cycles
        self._partition.running.append((begins, ends))
        free[BANKS] = max(begins, free[BANKS]) + deed.at_banks
        busy[BANKS] += deed.at_banks
        busy[TENSOR] += deed.cycles
        free[TENSOR] = ends = max(ends, free[BANKS])
        if deed.commits:
            self._products.append(ends + self._core.product_latency)
        return then

    def _product_wait(self, deed: Deed, now: float, then: float) -> float:
        if not self._core.depend or len(self._products) <= deed.argument:
            return then
        return self._until(self._products[-1 - deed.argument], then, FOR_TENSOR)

    def _copy(self, deed: Deed, now: float, then: float) -> float:
        if self._wanted():
            self._opened = max(self._opened, self._inward(deed.amount, now) + self._memory.copy_latency)
        return then

    def _box_copy(self, deed: Deed, now: float, then: float) -> float:
        if self._leads and self._wanted():
            memory = self._memory
            first = memory.descriptor_latency if self._part.first else 0.0
            self._block.boxes.append(self._inward(self._box_bytes, now) + memory.box_latency + first)
        return then

    def _wanted(self) -> bool:
        """Whether a copy is not predicated off."""
        part, taken = self._part, self._taken
        self._seen += 1
        if self._seen <= part.own:
            return True
        used = taken.get(part.loop, 0)
        if used < part.wanted:
            taken[part.loop] = used + 1
            return True
        return False

    def _inward(self, n_bytes: float, now: float) -> float:
        """When a copy of so many bytes is through the way in. It takes SRAM's bandwidth, too."""
        partition = self._partition
        partition.way = max(now, partition.way) + n_bytes / self._memory.bytes_per_cycle
        written = n_bytes * (self._core.copies_at_banks / self._core.sram_bytes_per_cycle)
        partition.free[BANKS] = max(now, partition.free[BANKS]) + written
        partition.busy[BANKS] += written
        return partition.way

    def _copy_commit(self, deed: Deed, now: float, then: float) -> float:
        self._copies.append(max(self._opened, self._copies[-1] if self._copies else 0.0))
        self._opened = 0.0
        return then

    def _copy_wait(self, deed: Deed, now: float, then: float) -> float:
        if not self._memory.reuse or len(self._copies) <= deed.argument:
            return then
        return self._until(self._copies[-1 - deed.argument], then, FOR_MEMORY)

    def _box_wait(self, deed: Deed, now: float, then: float) -> float:
        number, boxes = self._boxes_taken, self._block.boxes
        self._boxes_taken += 1
        if not self._memory.reuse or number >= len(boxes):
            return then
        return self._until(boxes[number], then, FOR_MEMORY)

    def _load(self, deed: Deed, now: float, then: float) -> float:
        self._spill_store(deed, now, then)
        writes, latency, cause, _ = deed.result
        if writes != s.NO_BARRIER:
            self._barriers[writes] = now + (latency + (self._partition.way - now))
            self._causes[writes] = cause
        return then

    def _spill_store(self, deed: Deed, now: float, then: float) -> float:
        self._partition.way = max(now, self._partition.way) + deed.amount / self._memory.bytes_per_cycle
        return then

    def _store(self, deed: Deed, now: float, then: float) -> float:
        """A store that finds too many before it holds its warp up."""
        partition = self._partition
        partition.way = max(now, partition.way) + deed.amount / self._memory.store_bytes_per_cycle
        partition.stored = partition.way
        return max(then, partition.stored - _STORE_QUEUE)

    def _fence(self, deed: Deed, now: float, then: float) -> float:
        return now + self._core.fence
