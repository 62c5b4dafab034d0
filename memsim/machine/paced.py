"""Replays a launch of a compiled kernel: blocks on SMs at the pace of their instructions, tiles through L2 and HBM.

How long a trip takes among so many resident blocks comes from a core of the SM run on its own (`memsim.machine.pace`),
twice: with tiles that the L2 has, and with tiles that come from HBM. The replay says which it is for each trip, what
waits in HBM's queue besides, and how many blocks are resident. Every slot of an SM is a process that runs block after
block, a timeout a trip.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.clock import PS_PER_S, duration_ps, seconds
from memsim.machine.compiled import Compiled
from memsim.machine.handout import Handout
from memsim.machine.kept_paces import kept_pace_of
from memsim.machine.l1 import L1
from memsim.machine.l2 import Access
from memsim.machine.levels import Memory
from memsim.machine.pace import Pace
from memsim.machine.parts import BLOCK_START, CONTENTION, DEPENDENCES
from memsim.machine.parts import L1 as PART_L1
from memsim.machine.plan import ISSUE, LOOP, STORE, BodyPlan, Environment, LaunchPlan
from memsim.machine.sm import PIPE_NAMES
from memsim.machine.times import core_times, memory_times
from memsim.machine.timing import WAITED_FOR, LaunchTiming, Progress
from memsim.stream import LOAD, MMA, PRODUCT
from memsim.trace import Bound

_MILLION = 10**6
# Where a tile comes from: the L1 or the L2 has it, it is on its way from HBM, HBM has to be asked.
_HELD, _ON_ITS_WAY, _MISSED = range(3)
# Where threads spill: above every tensor.
_STACK = Access("stack", True, 1 << 60, 1, 1, 1, 1, 1)
# Multiples of it, less their whole parts, spread evenly however many there are.
_GOLDEN_RATIO = 0.6180339887498949

FEWEST_STEPS, MOST_STEPS, MOST_STEPS_BEYOND_L2, STEPS_OF_ALL_BLOCKS = 16, 64, 256, 1 << 20
"""Steps in which a loop is replayed at most: more where its tiles do not all stay in the L2, so that it matters how far
blocks are apart, fewer where there are many blocks. Of a loop with more trips a step is several."""


@dataclass(frozen=True)
class _Steps:
    """A pace in picoseconds."""

    enter: int
    exit: int
    trips: tuple[int, ...]


class _Sm:
    __slots__ = ("l1", "resident", "side", "started_ps")

    def __init__(self, side: int, l1: L1) -> None:
        self.side = side
        self.l1 = l1
        self.resident = 0
        self.started_ps = 0


class PacedRun:
    """One launch on the machine."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int, compiled: Compiled,
        progress: Progress | None, order: GridOrder, without: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        assert gpu.calibrated is not None and gpu.sm.core is not None
        self._env = env
        self._gpu = gpu
        self._fitted = gpu.calibrated
        self._issue = gpu.sm.core
        self._memory = memory
        self._plan = plan
        self._order = order
        self._handout = Handout(plan.name, plan.axes, order, progress)
        self._blocks = self._handout.blocks
        self._compiled = compiled
        self._without = without
        kinds = {i[0] for segment in compiled.stream.segments for i in segment.instructions}
        products = bool(kinds & {PRODUCT, MMA})
        self._products = products
        self._clock_hz = self._fitted.clock_hz if products else self._fitted.idle_tensor_clock_hz
        starts = BLOCK_START not in without
        block_warps = compiled.warps + compiled.copying_warps
        self._start_ps = self._ps(self._fitted.warp_start_cycles * block_warps) if starts else 0
        self._drain_ps = self._ps(self._fitted.drain_cycles) if starts else 0
        self._core = replace(
            core_times(gpu, compiled.dtype), depend=DEPENDENCES not in without, share=CONTENTION not in without
        )
        self._warps = max(1, -(-compiled.warps // self._issue.sub_partitions))
        # Copies pass the L1 by; what a kernel loads plainly it caches.
        copies = any(segment.copies for segment in compiled.stream.segments)
        self._plain = LOAD in kinds and not copies and PART_L1 not in without
        l1_bytes = compiled.l1_bytes(gpu, per_sm)
        self._sms = [_Sm(number % memory.sides, L1(l1_bytes)) for number in range(min(gpu.sm.count, self._blocks))]
        self._per_sm = min(per_sm, -(-self._blocks // len(self._sms)))
        self._spill_misses = compiled.spill_miss_share(gpu, self._per_sm)
        self._loaded, self._stored = compiled.used_shares(plan)
        middle = next(iter(order.units_of_block(plan.axes, self._blocks // 2)))
        self._further_trips = compiled.further_trips(plan, middle)
        self._lockstep = False
        self._paces: dict[tuple[int, bool], Pace] = {}
        self._steps: dict[tuple[int, bool], _Steps] = {}
        self._lockstep = self._goes_in_step()
        self._time_at: dict[tuple[int, bool], int] = {}
        self._queued_ps = 0
        self._strides: dict[int, int] = {}
        # Of pieces of several trips: until when the block that fetched them is busy with that.
        self._front_ps: dict[int, int] = {}
        self._fill_bytes = self._store_bytes = self.l1_hit_bytes = 0
        self._last_end_ps = int(env.now)
        self.end_ps = int(env.now)

    def run(self) -> LaunchTiming:
        """Run to the end of the last block, and until what it stored has left the SM."""
        env = self._env
        start = int(env.now)
        before = self._memory.counts()
        self._begin_ps = start + self._ps(self._fitted.launch_cycles)
        for slot in range(self._per_sm):
            for number, sm in enumerate(self._sms):
                if slot * len(self._sms) + number < self._blocks:
                    sm.resident += 1
                    env.process(self._slot(sm))
        env.run()
        self.end_ps = max(self._last_end_ps, self._begin_ps)
        after = self._memory.counts()
        total = max(1, self.end_ps - start)
        busy, waited = self._shares(total)
        busy["hbm"] = (after[2] - before[2]) / total
        if self._gpu.l2 is not None:
            moved = self._fill_bytes - self.l1_hit_bytes + self._store_bytes
            busy["l2"] = moved / self._gpu.l2.bandwidth_bytes_per_s / seconds(total)
        return LaunchTiming(
            name=self._plan.name,
            time_s=seconds(self.end_ps - start),
            fill_bytes=self._fill_bytes,
            store_bytes=self._store_bytes,
            hbm_read_bytes=after[0] - before[0],
            hbm_write_bytes=after[1] - before[1],
            busy=busy,
            waited=waited,
            waiting_for_memory=self._waiting(total),
            clock_hz=self._clock_after(seconds(total), after[0] - before[0], busy["tensor"]),
            replayed_by="instructions",
            dirty_bytes_at_end=self._memory.dirty_bytes,
            tallies=self._memory.tallies,
            l1_hit_bytes=self.l1_hit_bytes,
        )

    def _slot(self, sm: _Sm) -> Generator[simpy.Event, Any, None]:
        env = self._env
        plan = self._plan
        yield env.timeout(self._begin_ps - int(env.now))
        first = True
        while (block := self._handout.take()) is not None:
            # An SM starts one warp after the other.
            now = int(env.now)
            sm.started_ps = max(sm.started_ps, now) + self._start_ps
            yield env.timeout(sm.started_ps - now)
            sm.resident += not first
            first = False
            for coordinates in self._order.units_of_block(plan.axes, block):
                yield from self._unit(sm, coordinates, block)
            # A block's place is free when what it stored has been taken; until the next one runs it takes no pipe.
            sm.resident -= 1
            yield env.timeout(self._drain_ps)
            self._last_end_ps = max(self._last_end_ps, int(env.now))

    def _unit(self, sm: _Sm, coordinates: Environment, block: int) -> Generator[simpy.Event, Any, None]:
        """What a block does for one place in the grid."""
        env, plan = self._env, self._plan
        entered = False
        cold, late = False, 0
        loop = 0
        for step in plan.body.steps:
            code = step[0]
            if code == ISSUE:
                move = plan.body.moves[step[2]]
                source, queued = self._load(sm, move.access, *move.at(coordinates)[::-1])
                cold, late = cold or source != _HELD, max(late, queued)
            elif code == LOOP:
                if not entered:
                    entered = True
                    yield env.timeout(self._spend(sm, cold, self._step(sm, cold).enter) + late)
                    cold, late = False, 0
                yield from self._loop(sm, step[1], coordinates, loop, self._slowness(block))
                loop += 1
            elif code == STORE:
                move = plan.body.moves[step[1]]
                late = max(late, self._store(sm, move.access, *move.at(coordinates)[::-1]))
        late = max(late, self._spill(block))
        steps = self._step(sm, cold)
        yield env.timeout(self._spend(sm, cold, steps.exit + (0 if entered else steps.enter)) + late)
        self._queued_ps += late

    def _loop(
        self, sm: _Sm, body: BodyPlan, coordinates: Environment, number: int, slowness: float
    ) -> Generator[simpy.Event, Any, None]:
        """All trips of one loop of a block."""
        env: Any = self._env
        timeout = env.timeout
        start, unmasked, stop = body.trips(coordinates)
        if stop <= start:
            return
        stored = {step[1] for step in body.steps if step[0] == STORE}
        moves = [(n in stored, m.access, *m.over(coordinates, stop)) for n, m in enumerate(body.moves)]
        time_at, steps_of = self._time_at, self._steps
        stride = self._stride(body, sum(table[start] for _, access, table, _, _ in moves if access.shared))
        value = start
        while value < stop:
            # Strides end at the same trips in every block, so that blocks ask for the same pieces.
            end = min(stop, (value // stride + 1) * stride)
            cold, late, front = False, 0, 0
            fetched = []
            for stores, access, table, address, step in moves:
                n_bytes = table[value] if stride == 1 else sum(table[value:end])
                if stores:
                    late = max(late, self._store(sm, access, address + value * step, n_bytes))
                    continue
                source, queued = self._load(sm, access, address + value * step, n_bytes)
                if source != _HELD:
                    cold = True
                if queued > late:
                    late = queued
                if stride > 1 and access.shared:
                    if source == _MISSED:
                        fetched.append(address + value * step)
                    else:
                        front = max(front, self._front_ps.get(address + value * step, 0))
            key = (sm.resident, cold)
            trips = (steps_of.get(key) or self._step(sm, cold)).trips
            plain = min(end, max(value, unmasked)) - value
            duration = plain * trips[min(number, len(trips) - 1)]
            duration += (end - value - plain) * trips[min(number + 1, len(trips) - 1)]
            duration = int(duration * slowness)
            time_at[key] = time_at.get(key, 0) + duration
            now = int(env.now)
            self._queued_ps += max(late, front - now - duration)
            for piece in fetched:
                self._front_ps[piece] = now + late + duration
            # Nobody overtakes the block that fetches: what is further on is not there yet.
            yield timeout(max(duration + late, front - now))
            value = end

    def _stride(self, body: BodyPlan, shared_bytes: int) -> int:
        """Trips of a loop that are taken in one step, each of which asks for so many bytes that others ask for too."""
        stride = self._strides.get(id(body))
        if stride is None:
            longest = body.stop if isinstance(body.stop, int) else self._longest(body.stop)
            l2 = self._gpu.l2
            stays = l2 is not None and shared_bytes * longest * l2.partitions <= l2.capacity_bytes
            most = min(MOST_STEPS if stays else MOST_STEPS_BEYOND_L2, STEPS_OF_ALL_BLOCKS // max(1, self._blocks))
            stride = self._strides[id(body)] = max(1, -(-longest // max(FEWEST_STEPS, most)))
        return stride

    def _longest(self, bound: Bound) -> int:
        sizes = dict(self._plan.axes)
        return int(bound.of_values(np.arange(sizes[bound.symbol], dtype=np.int64)).max(initial=0))

    def _load(self, sm: _Sm, access: Access, address: int, n_bytes: int) -> tuple[int, int]:
        """(where a tile comes from, how long it waits in HBM's queue)."""
        if n_bytes == 0:
            return _HELD, 0
        self._fill_bytes += n_bytes
        if self._plain and access.shared:
            found = sm.l1.take(address, n_bytes)
            self.l1_hit_bytes += found
            n_bytes -= found
            if n_bytes == 0:
                return _HELD, 0
        now = int(self._env.now)
        l2, hbm = self._memory.l2, self._memory.hbm
        if l2 is None:
            return _MISSED, max(0, hbm.read(now, n_bytes) - now - hbm.latency_ps)
        missed, ready = l2.read(now, access, address, n_bytes, sm.side)
        if missed or ready > now:
            return _MISSED if missed else _ON_ITS_WAY, max(0, ready - now - hbm.latency_ps)
        return _HELD, 0

    def _store(self, sm: _Sm, access: Access, address: int, n_bytes: int) -> int:
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
        place = block % (self._per_sm * len(self._sms)) * self._compiled.spilled_bytes
        l2.write(now, _STACK, _STACK.origin + place, self._compiled.spilled_bytes)
        return max(0, hbm.pipe.free_ps - now - hbm.latency_ps)

    def _spend(self, sm: _Sm, cold: bool, duration: int) -> int:
        key = (sm.resident, cold)
        self._time_at[key] = self._time_at.get(key, 0) + duration
        return duration

    def _step(self, sm: _Sm, cold: bool) -> _Steps:
        key = (sm.resident, cold)
        steps = self._steps.get(key)
        if steps is None:
            pace = self._pace(*key)
            trips = tuple(map(self._ps, pace.trips)) or (0,)
            steps = self._steps[key] = _Steps(self._ps(pace.enter), self._ps(pace.exit), trips)
        return steps

    def _pace(self, resident: int, cold: bool) -> Pace:
        key = (resident, cold)
        if key not in self._paces:
            kernel, clocks = self._compiled, self._clock_hz * len(self._sms)
            memory = memory_times(
                self._gpu, clocks, self._spill_misses, self._without, cold=cold, lockstep=self._lockstep
            )
            memory = replace(
                memory,
                bytes_per_cycle=memory.bytes_per_cycle / self._loaded,
                store_bytes_per_cycle=memory.store_bytes_per_cycle / self._stored,
            )
            shared = (self._warps, self._core, memory, kernel.box_bytes, kernel.groups, self._further_trips)
            self._paces[key] = kept_pace_of(kernel.stream, resident, *shared)
        return self._paces[key]

    def _waiting(self, total: int) -> float:
        """The share of the SMs' time in which none of their blocks can go on for want of data: what blocks wait in
        HBM's queue, and else how likely it is that all that are resident wait at once."""
        queued = min(1.0, self._queued_ps / max(1, self._per_sm) / (total * len(self._sms)))
        times = {key: ps / key[0] for key, ps in self._time_at.items()}
        together = sum(share * self._pace(*key).waited["memory"] ** key[0] for key, share in times.items())
        return queued + (1.0 - queued) * together / max(1.0, sum(times.values()))

    def _clock_after(self, time_s: float, hbm_read_bytes: int, tensor_busy: float) -> float:
        """The mean clock of the launch. Power is short where products run while more is read than saturates HBM or the
        L2 alone; such a launch waits for memory, so that its time stays as it is."""
        gpu, fitted = self._gpu, self._fitted
        if not self._products or time_s <= 0 or gpu.l2 is None or not fitted.throttle_s:
            return self._clock_hz
        hbm = hbm_read_bytes / (gpu.hbm.bandwidth_bytes_per_s * fitted.hbm_efficiency)
        l2 = self._fill_bytes / gpu.l2.bandwidth_bytes_per_s
        lost = fitted.throttle_share * min(1.0, max(0.0, (hbm + l2) / time_s - 1.0)) * tensor_busy
        return self._clock_hz * max(0.5, 1.0 - lost * (1.0 - math.exp(-time_s / fitted.throttle_s)))

    def _slowness(self, number: int) -> float:
        """How much longer a block takes than the mean: SMs lie at different distances from the L2, and blocks that
        share an SM do not get even shares of it, so they drift apart."""
        return 1.0 + self._fitted.block_spread * (2.0 * (number * _GOLDEN_RATIO % 1.0) - 1.0)

    def _goes_in_step(self) -> bool:
        """Whether blocks wait for their copies so much that those of all SMs stay together."""
        pace = self._pace(self._per_sm, False)
        self._paces.clear()
        return pace.waited["memory"] > self._fitted.lockstep_wait_share and bool(pace.trips)

    def _ps(self, cycles: float) -> int:
        return duration_ps(math.ceil(cycles * _MILLION), self._clock_hz * _MILLION) if cycles else 0

    def _shares(self, total: int) -> tuple[dict[str, float], dict[str, float]]:
        """(each resource's share of the launch's time, block-seconds by what blocks stood still for)."""
        busy = dict.fromkeys(PIPE_NAMES, 0.0)
        waited = dict.fromkeys(WAITED_FOR, 0.0)
        for (resident, cold), ps in self._time_at.items():
            pace = self._pace(resident, cold)
            share = ps / resident / (total * self._gpu.sm.count)
            for name, names in (
                ("tensor", ("tensor",)),
                ("exp", ("exp",)),
                ("alu", ("fma", "alu")),
                ("sram", ("sram",)),
            ):
                busy[name] += share * max(pace.busy[n] for n in names)
            for name in PIPE_NAMES:
                waited[name] += ps / PS_PER_S * pace.waited[name]
            waited["latency"] += ps / PS_PER_S * (pace.waited["memory"] + pace.waited["order"])
        waited["hbm"] += self._queued_ps / PS_PER_S
        return busy, waited
