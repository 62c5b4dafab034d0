"""Replays a launch by its trace: every tile of every block, at data-sheet rates, as the trace has them.

Every slot of an SM is a process that runs block after block; a pipe is the time at which it is next free.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.clock import duration_ps, seconds
from memsim.machine.handout import Handout
from memsim.machine.l2 import Access
from memsim.machine.levels import BUSY, Memory
from memsim.machine.plan import (
    ISSUE,
    RELEASE,
    RING_WAIT,
    STORE,
    WAIT,
    WORK,
    BodyPlan,
    Environment,
    LaunchPlan,
    bound_value,
)
from memsim.machine.sm import PIPE_NAMES, SRAM, Sm
from memsim.machine.timing import WAITED_FOR, LaunchTiming, Progress

_HBM, _LATENCY, _L2 = 4, 5, 6
_NOTHING_PENDING = (0, 0, 0, False)
Pending = tuple[int, int, int, bool]
MovesOver = tuple[Access, list[int], int, int]
Ring = tuple[int, int, int, list[MovesOver], list[Pending]]


class TracedRun:
    """One launch on the machine."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int,
        progress: Progress | None, order: GridOrder,
    ) -> None:  # fmt: skip
        self._env = env
        self._memory = memory
        self._clock_hz = gpu.sm.clock_hz
        self._plan = plan
        self._order = order
        self._handout = Handout(plan.name, plan.axes, order, progress)
        self._sram_rate = gpu.sm.sram.bandwidth_bytes_per_clock * gpu.sm.clock_hz
        self._sram_durations: dict[int, int] = {}
        self._waited_ps = [0] * len(WAITED_FOR)
        self._fill_bytes = 0
        self._store_bytes = 0
        self._last_arrival_ps = int(env.now)
        self._last_landing_ps = int(env.now)
        self._last_block_end_ps = int(env.now)
        self.end_ps = int(env.now)
        # Time that passes without being replayed; see `memsim.machine.leaping`.
        self._left_out_ps = 0
        self._sms = [Sm(number % memory.sides) for number in range(min(gpu.sm.count, self._handout.blocks))]
        self._sm_count = gpu.sm.count
        slots = min(per_sm, -(-self._handout.blocks // len(self._sms)))
        for _ in range(slots):
            for sm in self._sms:
                env.process(self._slot(sm))

    def run(self) -> LaunchTiming:
        """Run to the end of the launch: the last block done, its copies arrived, the last store landed."""
        start = int(self._env.now)
        hbm = self._memory.hbm
        before = self._memory.counts()
        self._env.run()
        self._account()
        self.end_ps = max(self._last_block_end_ps, self._last_arrival_ps, self._last_landing_ps)
        total = max(1, self.end_ps - start + self._left_out_ps)
        drain = self.end_ps - self._last_block_end_ps
        # Every SM waits for the last store to land: for its latency at most, for queues and transfer beyond that.
        by_latency = min(drain, hbm.latency_ps)
        self._waited_ps[_LATENCY] += by_latency * len(self._sms)
        self._waited_ps[_HBM] += (drain - by_latency) * len(self._sms)
        busy = {
            name: sum(sm.busy_ps[pipe] for sm in self._sms) / (total * self._sm_count)
            for pipe, name in enumerate(PIPE_NAMES)
        }
        after = self._memory.counts()
        busy |= {name: (now - then) / total for name, then, now in zip(BUSY, before[2:], after[2:], strict=False)}
        stalled = sum(sm.stalled_ps for sm in self._sms) + drain * len(self._sms)
        return LaunchTiming(
            name=self._plan.name,
            time_s=seconds(self.end_ps - start + self._left_out_ps),
            fill_bytes=self._fill_bytes,
            store_bytes=self._store_bytes,
            hbm_read_bytes=after[0] - before[0],
            hbm_write_bytes=after[1] - before[1],
            busy=busy,
            waited={name: seconds(ps) for name, ps in zip(WAITED_FOR, self._waited_ps, strict=True)},
            waiting_for_memory=stalled / (total * len(self._sms)),
            clock_hz=self._clock_hz,
            replayed_by="trace",
            dirty_bytes_at_end=self._memory.dirty_bytes,
            tallies=self._memory.tallies,
        )

    def _account(self) -> None:
        """Add what was not replayed to what was: nothing here."""

    def _slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        slots = [_NOTHING_PENDING] * self._plan.slots
        while (block := self._handout.take()) is not None:
            yield from self._block(sm, block, slots)

    def _block(self, sm: Sm, block: int, slots: list[Pending]) -> Generator[simpy.Event, Any, None]:
        """One block from its start to its end."""
        env = self._env
        sm.enter(int(env.now))
        for coordinates in self._order.units_of_block(self._plan.axes, block):
            yield from self._body(self._plan.body, coordinates, sm, slots)
        now = int(env.now)
        sm.leave(now)
        if now > self._last_block_end_ps:
            self._last_block_end_ps = now

    def _body(
        self, body: BodyPlan, coordinates: Environment, sm: Sm, slots: list[Pending], lane: Any = None
    ) -> Generator[simpy.Event, Any, None]:
        """One block, or one loop of it over all its trips."""
        env: Any = self._env
        timeout, free, busy, waited = env.timeout, sm.free_ps, sm.busy_ps, self._waited_ps
        fetch, put = self._fetch, self._put
        symbol = body.symbol
        if symbol is None:
            start, stop = 0, 1
            moves = _moves_at(body, coordinates)
        else:
            start, stop = bound_value(body.start, coordinates), bound_value(body.stop, coordinates)
            if stop <= start:
                return
            moves = [(m.access, *m.over(coordinates, stop)) for m in body.moves]
        # For each ring: its buffers, its loads in one trip, all its loads, and what each buffer waits for.
        rings = [
            (r.buffers, len(r.moves), (stop - start) * len(r.moves), [moves[m] for m in r.moves],
             [_NOTHING_PENDING] * r.buffers)
            for r in body.rings
        ]  # fmt: skip
        for ring, number in body.prologue:
            buffers, parts, loads, ring_moves, pending = rings[ring]
            if number < loads:
                trip, part = divmod(number, parts)
                access, table, address, step = ring_moves[part]
                at = start + trip
                pending[number % buffers] = fetch(sm, access, table[at], address + at * step)
        for value in self._trips(body, start, stop, lane, coordinates, moves, rings):
            for op in body.steps:
                code = op[0]
                if code == WORK:
                    _, pipe, duration, sram = op
                    now = env.now
                    end = (free[pipe] if free[pipe] > now else now) + duration
                    free[pipe] = end
                    busy[pipe] += duration
                    if sram:
                        sram_end = (free[SRAM] if free[SRAM] > now else now) + sram
                        free[SRAM] = sram_end
                        busy[SRAM] += sram
                        if sram_end > end:
                            pipe, end = SRAM, sram_end
                    if end > now:
                        waited[pipe] += end - now
                        yield timeout(end - now)
                elif code == RING_WAIT:
                    buffers, parts, _, _, pending = rings[op[1]]
                    arrival = pending[((value - start) * parts + op[2]) % buffers]
                    wait = arrival[0] - env.now
                    if wait > 0:
                        sm.begin_wait(env.now)
                        self._blame(wait, arrival)
                        yield timeout(wait)
                        sm.end_wait(env.now)
                elif code == RELEASE:
                    buffers, parts, loads, ring_moves, pending = rings[op[1]]
                    number = (value - start) * parts + op[2] + buffers
                    if number < loads:
                        trip, part = divmod(number, parts)
                        access, table, address, step = ring_moves[part]
                        at = start + trip
                        pending[number % buffers] = fetch(sm, access, table[at], address + at * step)
                elif code == ISSUE:
                    access, table, address, step = moves[op[2]]
                    slots[op[1]] = fetch(sm, access, table[value], address + value * step)
                elif code == WAIT:
                    arrival = slots[op[1]]
                    wait = arrival[0] - env.now
                    if wait > 0:
                        sm.begin_wait(env.now)
                        self._blame(wait, arrival)
                        yield timeout(wait)
                        sm.end_wait(env.now)
                elif code == STORE:
                    access, table, address, step = moves[op[1]]
                    put(sm, access, table[value], address + value * step)
                else:
                    if symbol is not None:
                        coordinates[symbol] = value
                    yield from self._body(op[1], coordinates, sm, slots, lane)
                    if symbol is None and lane is not None and lane.moved:
                        # What is left to do is that of another unit, if there is one.
                        lane.moved = False
                        if lane.ended:
                            return
                        moves = _moves_at(body, coordinates)

    def _trips(
        self, body: BodyPlan, start: int, stop: int, lane: Any, coordinates: Environment, moves: list[MovesOver],
        rings: list[Ring],
    ) -> Iterable[int]:  # fmt: skip
        """The trips that a loop makes, one after the other."""
        return range(start, stop)

    def _sram_port(self, sm: Sm, now: int, n_bytes: int) -> int:
        """Take the SRAM's bandwidth for bytes that move in or out; when they are through."""
        duration = self._sram_durations.get(n_bytes)
        if duration is None:
            duration = self._sram_durations[n_bytes] = duration_ps(n_bytes, self._sram_rate)
        sm.busy_ps[SRAM] += duration
        end = (sm.free_ps[SRAM] if sm.free_ps[SRAM] > now else now) + duration
        sm.free_ps[SRAM] = end
        return end

    def _fetch(self, sm: Sm, access: Access, n_bytes: int, address: int) -> tuple[int, int, int, bool]:
        """Start a copy into the SM: (arrival, of which the memory's queues and bandwidth, of which the SRAM's, whether
        it comes from HBM)."""
        now = int(self._env.now)
        if n_bytes == 0:
            return _NOTHING_PENDING
        self._fill_bytes += n_bytes
        below, queued, from_hbm = self._memory.fetch(now, access, address, n_bytes, sm.side)
        port = self._sram_port(sm, now, n_bytes)
        arrival = max(below, port)
        # What no operation reads is still on its way when the block ends.
        if arrival > self._last_arrival_ps:
            self._last_arrival_ps = arrival
        return arrival, queued, arrival - below, from_hbm

    def _put(self, sm: Sm, access: Access, n_bytes: int, address: int) -> None:
        """Start writing out of the SM; the block goes on, the launch ends no earlier than the bytes have landed."""
        if n_bytes == 0:
            return
        now = int(self._env.now)
        self._store_bytes += n_bytes
        landing = max(self._memory.put(now, access, address, n_bytes), self._sram_port(sm, now, n_bytes))
        if landing > self._last_landing_ps:
            self._last_landing_ps = landing

    def _blame(self, wait: int, arrival: tuple[int, int, int, bool]) -> None:
        """Book a wait on what caused it: without queues and transfer times, only the latency would be left."""
        _, queued, sram, from_hbm = arrival
        by_sram = min(wait, sram)
        by_memory = min(wait - by_sram, queued)
        self._waited_ps[SRAM] += by_sram
        self._waited_ps[_HBM if from_hbm else _L2] += by_memory
        self._waited_ps[_LATENCY] += wait - by_sram - by_memory


def _moves_at(body: BodyPlan, coordinates: Environment) -> list[MovesOver]:
    return [(m.access, [n_bytes], address, 0) for m in body.moves for n_bytes, address in (m.at(coordinates),)]
