"""One SM at the scale of instructions: a sub-partition, with the warps that its resident blocks have there.

The sub-partitions of an SM run alike, since every block spreads its warps over them, so one stands for all; what they
share (SRAM, the way in from the L2, the tensor cores of a warp group) is counted at its share of the SM's rate. A warp
issues its instructions in order, each when the compiler's schedule, the barriers it waits for, the issue slot and its
pipe allow; who has to wait for a slot or a pipe takes the next one at once, first come, first served. Products, copies
and stores go on behind a warp. Time is in SM cycles; simpy's clock counts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from memsim import stream as s
from memsim.stream import Segment, Stream

# Pipes of a sub-partition by number; _BANKS is the SRAM's own bandwidth, _LSU the way of single lanes to it.
_FMA, _ALU, _EXP, _UNIFORM, _LSU, _TENSOR, _BANKS = range(7)
PIPES = ("fma", "alu", "exp", "uniform", "lsu", "tensor", "sram")
WAITS = ("tensor", "exp", "alu", "sram", "memory", "order")
_FOR_TENSOR, _FOR_EXP, _FOR_ALU, _FOR_SRAM, _FOR_MEMORY, _FOR_ORDER = range(6)
_WAIT_OF_PIPE = (_FOR_ALU, _FOR_ALU, _FOR_EXP, _FOR_ALU, _FOR_SRAM, _FOR_TENSOR, _FOR_SRAM)
WORD_OF_WARP_BYTES = 128
_PRODUCT_ROWS, _PRODUCT_DEPTH, _ELEMENT_BYTES = 64, 16, 2
# Cycles' worth of stores that wait on their way out of an SM before the next one has to.
_STORE_QUEUE = 256.0


@dataclass(frozen=True)
class CoreTimes:
    """What a sub-partition takes, in cycles: a warp's instruction on a pipe, and latencies. Of what the whole SM
    shares, `sub_partitions` times what the SM takes. `tensor_contention` is what arithmetic beside a running product
    costs more; `depend` off leaves the compiler's waits out, `share` off gives each block pipes of its own."""

    sub_partitions: int
    fma: float
    integer_multiply: float
    alu: float
    convert: float
    exp: float
    uniform: float
    lsu_word: float
    copy: float
    mma: float
    product_flop_per_cycle: float
    sram_bytes_per_cycle: float
    exp_latency: float
    shuffle_latency: float
    sram_latency: float
    uniform_latency: float
    operand_latency: float
    product_start: float
    product_latency: float
    barrier: float
    fence: float
    spill_latency: float
    copies_at_banks: float
    tensor_contention: float
    depend: bool = True
    share: bool = True


@dataclass(frozen=True)
class MemoryTimes:
    """What lies behind the SM, as its copies see it: bytes a cycle into the SM or out of it, latencies in cycles (of
    a block's first boxes that of their descriptors besides; of spilled words, which stay in the L2, where the L1 no
    longer holds them), the share of spilled words that it no longer holds."""

    bytes_per_cycle: float
    store_bytes_per_cycle: float
    copy_latency: float
    box_latency: float
    load_latency: float
    descriptor_latency: float = 0.0
    spill_miss_share: float = 0.0
    spill_miss_latency: float = 0.0
    reuse: bool = True


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
    env = simpy.Environment(initial_time=0)
    segments = _resolved(stream, trips, core, memory)
    shared = _Pipes()
    warped = []
    for number in range(blocks):
        block = _Block(env, warps // groups)
        pipes = shared if core.share else _Pipes()
        warped += [_Warp(env, block, pipes, core, memory, box_bytes, leads=w == 0) for w in range(warps)]
        for warp in warped[-warps:]:
            env.process(warp.run(segments, number * apart_cycles))
    env.run()
    count = len(warped)
    all_pipes = {id(warp.pipes): warp.pipes for warp in warped}.values()
    return CoreRun(
        sum(w.entered for w in warped) / count,
        sum(w.ended for w in warped) / count,
        tuple(sum(p.busy[n] for p in all_pipes) for n in range(len(PIPES))),
        tuple(sum(w.waited[n] for w in warped) for n in range(len(WAITS))),
    )


class _Pipes:
    """Next-free times of what the warps share, and how long each was in use."""

    def __init__(self) -> None:
        self.free = [0.0] * len(PIPES)
        self.busy = [0.0] * len(PIPES)
        self.issue = 0.0
        # When products compute, from when to when: their accumulators then take registers' ports that arithmetic needs.
        self.running: deque[tuple[float, float]] = deque()
        # The way to the L2 and back, and when the last store is through it.
        self.way = 0.0
        self.stored = 0.0


class _Block:
    """What the warps of a block share: the barrier they meet at and the arrivals of their boxes."""

    def __init__(self, env: simpy.Environment, warps: int) -> None:
        self._env = env
        self.warps = warps
        self.met = 0
        self.event = env.event()
        self.boxes: list[float] = []

    def meet(self) -> simpy.Event | None:
        """The event to wait for at the barrier; None for the last to come."""
        self.met += 1
        if self.met < self.warps:
            return self.event
        self.met = 0
        released, self.event = self.event, self._env.event()
        released.succeed()
        return None


@dataclass(frozen=True)
class _Resolved:
    """A segment ready to run `times` times: copies after the first `own` belong to the next loop, which takes
    `wanted` of them in all; what would copy more is predicated off."""

    instructions: tuple[tuple[Any, ...], ...]
    times: int
    own: int
    loop: int
    wanted: int


def _resolved(
    stream: Stream, trips: Sequence[int], core: CoreTimes, memory: MemoryTimes
) -> list[_Resolved]:  # fmt: skip
    segments = []
    loop = 0
    for position, segment in enumerate(stream.segments):
        steps = _steps(segment, core, memory)
        times = trips[loop] if loop < len(trips) else 0
        if segment.loop:
            segments.append(_Resolved(steps, times, 0, loop, segment.copies * times))
            loop += 1
        elif position + 1 < len(stream.segments):
            per_trip = stream.segments[position + 1].copies
            ahead = segment.copies // per_trip * per_trip if per_trip else 0
            segments.append(_Resolved(steps, 1, segment.copies - ahead, loop, per_trip * times))
        else:
            segments.append(_Resolved(steps, 1, segment.copies, loop, 0))
    return segments


def _steps(segment: Segment, core: CoreTimes, memory: MemoryTimes) -> tuple[tuple[Any, ...], ...]:
    """(kind, pipe or -1, cycles on it, latency, stall, writes, reads, waits, cause, amount) per instruction."""
    on_pipe = {
        s.FMA: (_FMA, core.fma, 0.0),
        s.INTEGER_MULTIPLY: (_FMA, core.integer_multiply, 0.0),
        s.ALU: (_ALU, core.alu, 0.0),
        s.CONVERT: (_ALU, core.convert, core.exp_latency),
        s.EXP: (_EXP, core.exp, core.exp_latency),
        s.UNIFORM: (_UNIFORM, core.uniform, core.uniform_latency),
        s.SHUFFLE: (_LSU, core.lsu_word, core.shuffle_latency),
        s.MMA: (_TENSOR, core.mma, 0.0),
        s.COPY: (_LSU, core.copy, core.sram_latency),
    }
    by_words = (s.SRAM, s.LOAD, s.STORE, s.SPILL_LOAD, s.SPILL_STORE)
    steps = []
    for kind, argument, flags, stall, writes, reads, waits in segment.instructions:
        pipe, cycles, latency = on_pipe.get(kind, (-1, 0.0, 0.0))
        cause, amount = _FOR_ALU, 0.0
        if kind in by_words:
            pipe, cycles = _LSU, core.lsu_word * argument
        words_bytes = argument * WORD_OF_WARP_BYTES * core.sub_partitions
        more: Any = None
        if kind == s.LOAD:
            latency, amount, cause = memory.load_latency, words_bytes, _FOR_MEMORY
        elif kind == s.SPILL_LOAD:
            latency = core.spill_latency + memory.spill_miss_share * memory.spill_miss_latency
            amount, cause = words_bytes * memory.spill_miss_share, _FOR_MEMORY
        elif kind == s.SPILL_STORE:
            amount = words_bytes * memory.spill_miss_share
        elif kind in (s.STORE, s.COPY):
            amount = words_bytes
        elif kind == s.PRODUCT:
            columns = 8 * argument
            flops = 2.0 * _PRODUCT_ROWS * columns * _PRODUCT_DEPTH
            rows = columns + (0 if flags & s.FROM_REGISTERS else _PRODUCT_ROWS)
            operand_bytes = rows * _PRODUCT_DEPTH * _ELEMENT_BYTES
            more = (
                flops / core.product_flop_per_cycle, operand_bytes / core.sram_bytes_per_cycle, bool(flags & s.COMMITS)
            )  # fmt: skip
        elif kind in (s.COPY_WAIT, s.PRODUCT_WAIT):
            more = argument
        if kind in (s.EXP, s.CONVERT):
            cause = _FOR_EXP
        elif kind in (s.SHUFFLE, s.SRAM):
            cause = _FOR_SRAM
        elif kind == s.MMA:
            cause = _FOR_TENSOR
        # A barrier that no latency is known for is released as SRAM answers.
        steps.append((
            kind, pipe, cycles, latency or core.sram_latency, float(max(1, stall)), writes, reads, waits, cause,
            amount, more,
        ))  # fmt: skip
    return tuple(steps)


class _Warp:
    """One warp's way through the segments."""

    def __init__(
        self, env: simpy.Environment, block: _Block, pipes: _Pipes, core: CoreTimes, memory: MemoryTimes,
        box_bytes: int, *, leads: bool,
    ) -> None:  # fmt: skip
        self._env = env
        self._block = block
        self.pipes = pipes
        self._core = core
        self._memory = memory
        self._box_bytes = box_bytes
        self._leads = leads
        self.entered = 0.0
        self.ended = 0.0
        self.waited = [0.0] * len(WAITS)

    def run(self, segments: Sequence[_Resolved], start: float) -> Generator[simpy.Event, Any, None]:
        """Issue every instruction in its time."""
        env, core, memory, pipes, block = self._env, self._core, self._memory, self.pipes, self._block
        timeout, free, busy, waited = env.timeout, pipes.free, pipes.busy, self.waited
        inward, reuse, depend = memory.bytes_per_cycle, memory.reuse, core.depend
        banks = core.sram_bytes_per_cycle
        copied_at_banks = core.copies_at_banks / banks
        barriers = [0.0] * 8
        causes = [_FOR_ORDER] * 8
        products: list[float] = []
        copies: list[float] = []
        opened = 0.0
        waited_boxes = 0
        taken: dict[int, int] = {}
        in_loops = False
        if start:
            yield timeout(start)
        now = float(env.now)
        for segment in segments:
            if not in_loops and segment.times and segment is not segments[0] and segment.own == 0:
                in_loops = True
                self.entered = now - start
            for _ in range(segment.times):
                seen = 0
                for (
                    kind,
                    pipe,
                    cycles,
                    latency,
                    stall,
                    writes,
                    reads,
                    waits,
                    cause,
                    amount,
                    more,
                ) in segment.instructions:
                    ready = now
                    if waits and depend:
                        bit = 0
                        while waits:
                            if waits & 1 and barriers[bit] > ready:
                                waited[causes[bit]] += barriers[bit] - ready
                                ready = barriers[bit]
                            waits >>= 1
                            bit += 1
                    if ready > now:
                        # Its own dependences hold nobody else up.
                        yield timeout(ready - env.now)
                    while pipe >= 0 and free[pipe] > ready:
                        # Nor does a pipe that is in use: the slot goes to who can issue.
                        waited[_WAIT_OF_PIPE[pipe]] += free[pipe] - ready
                        ready = free[pipe]
                        yield timeout(ready - env.now)
                    if pipes.issue > ready:
                        waited[_FOR_ALU] += pipes.issue - ready
                        ready = pipes.issue
                    now = ready
                    pipes.issue = now + 1.0
                    if pipe >= 0:
                        free[pipe] = now + cycles
                        busy[pipe] += cycles
                        running = pipes.running
                        while running and running[0][1] <= now:
                            running.popleft()
                        if pipe <= _ALU and running and running[0][0] <= now:
                            pipes.issue += core.tensor_contention
                    if now > env.now:
                        yield timeout(now - env.now)
                    then = now + stall
                    if kind == s.PRODUCT:
                        cycles, at_banks, commits = more
                        begins = now + core.product_start
                        if free[_TENSOR] > begins:
                            begins = free[_TENSOR]
                        ends = begins + cycles
                        pipes.running.append((begins, ends))
                        read = (free[_BANKS] if free[_BANKS] > begins else begins) + at_banks
                        free[_BANKS] = read
                        busy[_BANKS] += at_banks
                        busy[_TENSOR] += cycles
                        if read > ends:
                            ends = read
                        free[_TENSOR] = ends
                        if commits:
                            products.append(ends + core.product_latency)
                    elif kind == s.PRODUCT_WAIT:
                        if depend and len(products) > more and products[-1 - more] > then:
                            waited[_FOR_TENSOR] += products[-1 - more] - then
                            then = products[-1 - more]
                    elif kind == s.COPY or (kind == s.BOX_COPY and self._leads):
                        seen += 1
                        needed = True
                        if seen > segment.own:
                            used = taken.get(segment.loop, 0)
                            needed = used < segment.wanted
                            taken[segment.loop] = used + needed
                        if needed:
                            n_bytes = amount if kind == s.COPY else self._box_bytes
                            through = (pipes.way if pipes.way > now else now) + n_bytes / inward
                            pipes.way = through
                            written = n_bytes * copied_at_banks
                            free[_BANKS] = (free[_BANKS] if free[_BANKS] > now else now) + written
                            busy[_BANKS] += written
                            if kind == s.COPY:
                                opened = max(opened, through + memory.copy_latency)
                            else:
                                first = memory.descriptor_latency if segment is segments[0] else 0.0
                                block.boxes.append(through + memory.box_latency + first)
                    elif kind == s.COPY_COMMIT:
                        copies.append(max(opened, copies[-1] if copies else 0.0))
                        opened = 0.0
                    elif kind == s.COPY_WAIT:
                        if reuse and len(copies) > more and copies[-1 - more] > then:
                            waited[_FOR_MEMORY] += copies[-1 - more] - then
                            then = copies[-1 - more]
                    elif kind == s.BOX_WAIT:
                        if reuse and waited_boxes < len(block.boxes) and block.boxes[waited_boxes] > then:
                            waited[_FOR_MEMORY] += block.boxes[waited_boxes] - then
                            then = block.boxes[waited_boxes]
                        waited_boxes += 1
                    elif kind == s.BARRIER:
                        if block.warps > 1 and depend:
                            event = block.meet()
                            if event is not None:
                                yield event
                                waited[_FOR_ORDER] += env.now - now
                                now = float(env.now)
                        if now + core.barrier > then:
                            then = now + core.barrier
                    elif kind in (s.LOAD, s.SPILL_LOAD, s.SPILL_STORE) and amount:
                        pipes.way = (pipes.way if pipes.way > now else now) + amount / inward
                        if kind != s.SPILL_STORE:
                            latency += pipes.way - now
                    elif kind == s.STORE:
                        pipes.way = (pipes.way if pipes.way > now else now) + amount / memory.store_bytes_per_cycle
                        pipes.stored = pipes.way
                        # A store that finds too many before it holds its warp up.
                        if pipes.stored - _STORE_QUEUE > then:
                            then = pipes.stored - _STORE_QUEUE
                    elif kind == s.FENCE:
                        then = now + core.fence
                    if writes != s.NO_BARRIER:
                        barriers[writes] = now + latency
                        causes[writes] = cause
                    if reads != s.NO_BARRIER and now + core.operand_latency > barriers[reads]:
                        barriers[reads] = now + core.operand_latency
                        causes[reads] = cause
                    if pipes.issue > then:
                        then = pipes.issue
                    if then > now:
                        yield timeout(then - env.now)
                    now = then
        self.ended = max(now, pipes.stored) - start
