"""Replays launches on the machine in SimPy: blocks on SMs, copies through the levels, work on pipes.

Blocks are handed out in linear order as slots free; SM s gets blocks s, s + SMs, … first. Each slot of an SM is one
process that runs block after block. Pipes and memory are next-free times, so a block waits with one timeout
wherever it waits; calls come in order of simulated time, which makes every queue first come, first served and the
run repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps, seconds
from memsim.machine.levels import Level, levels_of
from memsim.machine.link import host_transfer_ps
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
    plan_launch,
)
from memsim.machine.sm import PIPE_NAMES, SRAM, Sm
from memsim.trace import LaunchTrace

Progress = Callable[[str, int, int], None]
"""Called with a launch's name, the blocks handed out and the blocks of the launch."""

WAITED_FOR = (*PIPE_NAMES, "hbm", "latency")
_HBM, _LATENCY = 4, 5
_NOTHING_PENDING = (0, 0, 0)


@dataclass(frozen=True)
class LaunchTiming:
    """What the replay of one launch showed.

    `busy` is each resource's share of the launch's time (pipes over all SMs), `waited` block-seconds by what a block
    stood still for, `waiting_for_memory` the share of the used SMs' time in which all their blocks waited for it.
    """

    name: str
    time_s: float
    fill_bytes: int
    store_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    busy: dict[str, float]
    waited: dict[str, float]
    waiting_for_memory: float


@dataclass(frozen=True)
class RunTiming:
    """What the replay of all launches showed. `host_s` is the time of the inputs on the host link."""

    launches: tuple[LaunchTiming, ...]
    host_s: float
    host_bytes: int
    launch_overhead_s: float


def replay(
    gpu: Gpu,
    launches: list[tuple[LaunchTrace, int]],
    *,
    host_bytes: int = 0,
    progress: Progress | None = None,
) -> RunTiming:
    """Replay launches, each with its blocks per SM, one after the other.

    `host_bytes` cross the host link before the first launch. A launch of no blocks is not made.
    """
    env = simpy.Environment(initial_time=0)
    levels = levels_of(gpu)
    host_ps = host_transfer_ps(gpu, host_bytes)
    overhead_ps = duration_ps(gpu.launch.overhead_s, 1.0)
    start = host_ps
    timings = []
    made = 0
    for trace, per_sm in launches:
        if trace.blocks == 0:
            timings.append(LaunchTiming(trace.name, 0.0, 0, 0, 0, 0, {}, {}, 0.0))
            continue
        made += 1
        start += overhead_ps
        if start > env.now:
            env.run(until=start)
        run = _LaunchRun(env, gpu, levels, plan_launch(trace, gpu), per_sm, progress)
        timings.append(run.run())
        start = run.end_ps
    return RunTiming(tuple(timings), seconds(host_ps), host_bytes, seconds(made * overhead_ps))


class _LaunchRun:
    """One launch on the machine."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, levels: list[Level], plan: LaunchPlan, per_sm: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._env = env
        self._levels = levels
        self._plan = plan
        self._progress = progress
        self._next_block = 0
        self._report_every = max(1, plan.blocks // 200)
        self._sram_rate = gpu.sm.sram.bandwidth_bytes_per_clock * gpu.sm.clock_hz
        self._sram_durations: dict[int, int] = {}
        self._waited_ps = [0] * len(WAITED_FOR)
        self._fill_bytes = 0
        self._store_bytes = 0
        self._last_arrival_ps = int(env.now)
        self._last_landing_ps = int(env.now)
        self._last_block_end_ps = int(env.now)
        self.end_ps = int(env.now)
        self._sms = [Sm() for _ in range(min(gpu.sm.count, plan.blocks))]
        self._sm_count = gpu.sm.count
        slots = min(per_sm, -(-plan.blocks // len(self._sms)))
        for _ in range(slots):
            for sm in self._sms:
                env.process(self._slot(sm))

    def run(self) -> LaunchTiming:
        """Run to the end of the launch: the last block done, its copies arrived, the last store landed."""
        start = int(self._env.now)
        hbm = self._levels[-1]
        before = (hbm.read_bytes, hbm.write_bytes, hbm.busy_ps)
        self._env.run()
        self.end_ps = max(self._last_block_end_ps, self._last_arrival_ps, self._last_landing_ps)
        total = max(1, self.end_ps - start)
        drain = self.end_ps - self._last_block_end_ps
        # Every SM waits for the last store to land: for its latency at most, for queues and transfer beyond that.
        by_latency = min(drain, hbm.latency_ps)
        self._waited_ps[_LATENCY] += by_latency * len(self._sms)
        self._waited_ps[_HBM] += (drain - by_latency) * len(self._sms)
        busy = {
            name: sum(sm.busy_ps[pipe] for sm in self._sms) / (total * self._sm_count)
            for pipe, name in enumerate(PIPE_NAMES)
        }
        busy["hbm"] = (hbm.busy_ps - before[2]) / total
        stalled = sum(sm.stalled_ps for sm in self._sms) + drain * len(self._sms)
        return LaunchTiming(
            name=self._plan.name,
            time_s=seconds(self.end_ps - start),
            fill_bytes=self._fill_bytes,
            store_bytes=self._store_bytes,
            hbm_read_bytes=hbm.read_bytes - before[0],
            hbm_write_bytes=hbm.write_bytes - before[1],
            busy=busy,
            waited={name: seconds(ps) for name, ps in zip(WAITED_FOR, self._waited_ps, strict=True)},
            waiting_for_memory=stalled / (total * len(self._sms)),
        )

    def _take_block(self) -> Environment | None:
        """The grid coordinates of the next block in linear order, or None when all are handed out."""
        block = self._next_block
        if block >= self._plan.blocks:
            return None
        self._next_block = block + 1
        if self._progress is not None and block % self._report_every == 0:
            self._progress(self._plan.name, block, self._plan.blocks)
        coordinates: Environment = {}
        for name, size in self._plan.axes:
            block, coordinates[name] = divmod(block, size)
        return coordinates

    def _slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        env = self._env
        slots = [_NOTHING_PENDING] * self._plan.slots
        while (coordinates := self._take_block()) is not None:
            sm.enter(int(env.now))
            yield from self._body(self._plan.body, coordinates, sm, slots)
            now = int(env.now)
            sm.leave(now)
            if now > self._last_block_end_ps:
                self._last_block_end_ps = now

    def _body(
        self, body: BodyPlan, coordinates: Environment, sm: Sm, slots: list[tuple[int, int, int]]
    ) -> Generator[simpy.Event, Any, None]:
        """One block, or one loop of it over all its trips."""
        env: Any = self._env
        timeout, free, busy, waited = env.timeout, sm.free_ps, sm.busy_ps, self._waited_ps
        fetch, put = self._fetch, self._put
        symbol = body.symbol
        if symbol is None:
            start, stop = 0, 1
            moves = [([n_bytes], address, 0) for n_bytes, address in (m.at(coordinates) for m in body.moves)]
        else:
            start, stop = bound_value(body.start, coordinates), bound_value(body.stop, coordinates)
            if stop <= start:
                return
            moves = [m.over(coordinates, stop) for m in body.moves]
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
                table, address, step = ring_moves[part]
                at = start + trip
                pending[number % buffers] = fetch(sm, table[at], address + at * step)
        for value in range(start, stop):
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
                        table, address, step = ring_moves[part]
                        at = start + trip
                        pending[number % buffers] = fetch(sm, table[at], address + at * step)
                elif code == ISSUE:
                    table, address, step = moves[op[2]]
                    slots[op[1]] = fetch(sm, table[value], address + value * step)
                elif code == WAIT:
                    arrival = slots[op[1]]
                    wait = arrival[0] - env.now
                    if wait > 0:
                        sm.begin_wait(env.now)
                        self._blame(wait, arrival)
                        yield timeout(wait)
                        sm.end_wait(env.now)
                elif code == STORE:
                    table, address, step = moves[op[1]]
                    put(sm, table[value], address + value * step)
                else:
                    if symbol is not None:
                        coordinates[symbol] = value
                    yield from self._body(op[1], coordinates, sm, slots)

    def _sram_port(self, sm: Sm, now: int, n_bytes: int) -> int:
        """Take the SRAM's bandwidth for bytes that move in or out; when they are through."""
        duration = self._sram_durations.get(n_bytes)
        if duration is None:
            duration = self._sram_durations[n_bytes] = duration_ps(n_bytes, self._sram_rate)
        sm.busy_ps[SRAM] += duration
        end = (sm.free_ps[SRAM] if sm.free_ps[SRAM] > now else now) + duration
        sm.free_ps[SRAM] = end
        return end

    def _fetch(self, sm: Sm, n_bytes: int, address: int) -> tuple[int, int, int]:
        """Start a copy into the SM: (arrival, of which the levels' queues and bandwidth, of which the SRAM's)."""
        now = int(self._env.now)
        if n_bytes == 0:
            return now, 0, 0
        self._fill_bytes += n_bytes
        level = self._levels[0]
        below = level.read(now, address, n_bytes)
        port = self._sram_port(sm, now, n_bytes)
        queued = below - now - level.latency_ps
        arrival = max(below, port)
        # What no operation reads is still on its way when the block ends.
        if arrival > self._last_arrival_ps:
            self._last_arrival_ps = arrival
        return arrival, queued, arrival - below

    def _put(self, sm: Sm, n_bytes: int, address: int) -> None:
        """Start writing out of the SM; the block goes on, the launch ends no earlier than the bytes have landed."""
        if n_bytes == 0:
            return
        now = int(self._env.now)
        self._store_bytes += n_bytes
        landing = max(self._levels[0].write(now, address, n_bytes), self._sram_port(sm, now, n_bytes))
        if landing > self._last_landing_ps:
            self._last_landing_ps = landing

    def _blame(self, wait: int, arrival: tuple[int, int, int]) -> None:
        """Book a wait on what caused it: without queues and transfer times, only the latency would be left."""
        _, queued, sram = arrival
        by_sram = min(wait, sram)
        by_hbm = min(wait - by_sram, queued)
        self._waited_ps[SRAM] += by_sram
        self._waited_ps[_HBM] += by_hbm
        self._waited_ps[_LATENCY] += wait - by_sram - by_hbm
