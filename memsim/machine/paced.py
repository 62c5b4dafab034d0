"""Replays a launch of a compiled kernel: blocks on SMs at the pace of their instructions, tiles through L2 and HBM.

How long a trip takes among so many resident blocks comes from a core of the SM run on its own (`memsim.machine.pace`),
twice: with tiles that the L2 has, and with tiles that come from HBM. The replay says which it is for each trip, what
waits in HBM's queue besides, and how many blocks are resident. Every slot of an SM is a process that runs block after
block, a timeout a trip.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.clock import duration_ps, seconds
from memsim.machine.compiled import Compiled
from memsim.machine.handout import Handout
from memsim.machine.kept_paces import kept_pace_of
from memsim.machine.l1 import L1
from memsim.machine.leaps import HELD, QUEUED, READ, STORED, UNEVEN, WRITTEN, Leap, Leaps, Sums
from memsim.machine.levels import Memory
from memsim.machine.moving import HELD as FOUND
from memsim.machine.moving import Moving, Sm, Steps
from memsim.machine.pace import Pace
from memsim.machine.paced_shares import clock_after, shares, waiting_share
from memsim.machine.parts import BLOCK_START, CONTENTION, DEPENDENCES
from memsim.machine.parts import L1 as PART_L1
from memsim.machine.plan import ISSUE, LOOP, STORE, BodyPlan, LaunchPlan, most_of
from memsim.machine.times import core_times, memory_times
from memsim.machine.timing import LaunchTiming, Progress
from memsim.machine.units import Unit, Units
from memsim.stream import MMA, PRODUCT

_MILLION = 10**6
# The steps of a block that move something, or a loop that does.
_MOVING = (ISSUE, LOOP, STORE)
# Multiples of it, less their whole parts, spread evenly however many there are.
_GOLDEN_RATIO = 0.6180339887498949

FEWEST_STEPS, MOST_STEPS, MOST_STEPS_BEYOND_L2, STEPS_OF_ALL_BLOCKS = 16, 64, 256, 1 << 20
"""Steps in which a loop is replayed at most: more where its tiles do not all stay in the L2, so that it matters how far
blocks are apart, fewer where there are many blocks. Of a loop with more trips a step is several."""


class PacedRun(Moving):
    """One launch on the machine."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int, compiled: Compiled,
        progress: Progress | None, order: GridOrder, without: frozenset[str] = frozenset(),
        full: bool = False,
    ) -> None:  # fmt: skip
        assert gpu.calibrated is not None and gpu.sm.core is not None
        self._gpu = gpu
        self._fitted = gpu.calibrated
        self._issue = gpu.sm.core
        self._plan = plan
        self._order = order
        self._handout = Handout(plan.name, plan.axes, order, progress)
        self._blocks = self._handout.blocks
        self._without = without
        kinds = {i[0] for segment in compiled.stream.segments for i in segment.instructions}
        self._products = bool(kinds & {PRODUCT, MMA})
        self._clock_hz = self._fitted.clock_hz if self._products else self._fitted.idle_tensor_clock_hz
        starts = BLOCK_START not in without
        block_warps = compiled.warps + compiled.copying_warps
        self._start_ps = self._ps(self._fitted.warp_start_cycles * block_warps) if starts else 0
        self._drain_ps = self._ps(self._fitted.drain_cycles) if starts else 0
        self._core = replace(
            core_times(gpu, compiled.dtype), depend=DEPENDENCES not in without, share=CONTENTION not in without
        )
        self._warps = max(1, -(-compiled.warps // self._issue.sub_partitions))
        l1_bytes = compiled.l1_bytes(gpu, per_sm)
        self._sms = [Sm(number % memory.sides, L1(l1_bytes)) for number in range(min(gpu.sm.count, self._blocks))]
        self._per_sm = min(per_sm, -(-self._blocks // len(self._sms)))
        slots = self._per_sm * len(self._sms)
        self._units = Units(plan, order, self._stride)
        self._block_steps = [(s[0], s[2] if s[0] == ISSUE else s[1]) for s in plan.body.steps if s[0] in _MOVING]
        self._accesses = [move.access for move in plan.body.moves]
        self._shared = self._units.shared_tensors
        # What only one block asks for is not in the L1.
        plain = compiled.loads_plainly and PART_L1 not in without and bool(self._shared)
        super().__init__(env, memory, compiled, plain, slots)
        self._spill_misses = compiled.spill_miss_share(gpu, self._per_sm)
        self._loaded, self._stored = compiled.used_shares(plan)
        middle = order.unit(plan.axes, self._blocks // 2)
        self._further_trips = compiled.further_trips(plan, middle)
        self._paces: dict[tuple[int, bool], Pace] = {}
        self._lockstep = False
        self._lockstep = self._goes_in_step()
        leaps = Leaps(
            self._units, order, slots, memory, self._sums, sides=min(memory.sides, len(self._sms)),
            in_l1=plain, spills=compiled.spilled_bytes > 0,
        )  # fmt: skip
        self._leaps = leaps if leaps.possible and not full else None
        self._last_end_ps = int(env.now)
        self.end_ps = int(env.now)

    def run(self) -> LaunchTiming:
        """Run to the end of the last block, and until what it stored has left the SM."""
        env = self._env
        start = int(env.now)
        before = self._memory.counts()
        self._begin_ps = start + self._ps(self._fitted.launch_cycles)
        no_l2 = self._memory.l2 is None
        for slot in range(self._per_sm):
            for number, sm in enumerate(self._sms):
                if slot * len(self._sms) + number < self._blocks:
                    sm.resident += 1
                    env.process(self._slot(sm) if self._units.loops or no_l2 else self._short_slot(sm))
        env.run()
        left_out_ps = 0
        leap = self._leaps.leap if self._leaps is not None else None
        if self._leaps is not None and leap is not None:
            left_out_ps = round(leap.time_ps)
            self._account(leap)
            self._leaps.pass_over(self._spill)
        self.end_ps = max(self._last_end_ps, self._begin_ps)
        after = self._memory.counts()
        total = max(1, self.end_ps - start + left_out_ps)
        times = self._times()
        busy, waited = shares(times, self._pace, self._queued_ps, total, self._gpu.sm.count)
        busy["hbm"] = (after[2] - before[2]) / total
        if self._gpu.l2 is not None:
            moved = self._fill_bytes - self.l1_hit_bytes + self._store_bytes
            busy["l2"] = moved / self._gpu.l2.bandwidth_bytes_per_s / seconds(total)
        clock, read = self._clock_hz, after[0] - before[0]
        if self._products:
            clock = clock_after(self._gpu, clock, seconds(total), self._fill_bytes, read, busy["tensor"])
        return LaunchTiming(
            name=self._plan.name,
            time_s=seconds(self.end_ps - start + left_out_ps),
            fill_bytes=self._fill_bytes,
            store_bytes=self._store_bytes,
            hbm_read_bytes=read,
            hbm_write_bytes=after[1] - before[1],
            busy=busy,
            waited=waited,
            waiting_for_memory=waiting_share(times, self._pace, self._queued_ps / (total * self._slots)),
            clock_hz=clock,
            replayed_by="instructions",
            dirty_bytes_at_end=self._memory.dirty_bytes,
            tallies=self._memory.tallies,
            l1_hit_bytes=self.l1_hit_bytes,
            blocks_left_out=leap.last - leap.first if leap is not None else 0,
        )

    def _slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        env, units = self._env, self._units
        timeout, start_ps, drain_ps = env.timeout, self._start_ps, self._drain_ps
        step = self._blocks
        block = self._next_block()
        ready = self._begin_ps
        first = True
        if block is not None:
            yield timeout(ready - int(env.now))
        while block is not None:
            # An SM starts one warp after the other.
            ready = max(sm.started_ps, ready) + start_ps
            sm.started_ps = ready
            yield timeout(ready - int(env.now))
            sm.resident += not first
            first = False
            for index in range(block, units.count, step):
                yield from self._unit(sm, units[index], block)
            # A block's place is free when what it stored has been taken; until the next one runs it takes no pipe. Who
            # ends first gets the next block first, so that may be said now.
            sm.resident -= 1
            ready = int(env.now) + drain_ps
            self._last_end_ps = max(self._last_end_ps, ready)
            block = self._next_block()

    def _short_slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        """`_slot` for blocks without a loop, of which launches have very many: the same with nothing called twice."""
        env: Any = self._env
        units, l2, hbm, plain = self._units, self._memory.l2, self._memory.hbm, self._plain
        assert l2 is not None
        timeout, start_ps, drain_ps, side = env.timeout, self._start_ps, self._drain_ps, sm.side
        latency, pipe, l1_take = hbm.latency_ps, hbm.pipe, sm.l1.take
        # Without a loop there is no ring, and moves are numbered in the order of their steps.
        moves = [
            (code == STORE, access, access.shared, l2.tally(access.tensor))
            for (code, _), access in zip(self._block_steps, self._accesses, strict=True)
        ]
        read_shared, read_once, write = l2.read_shared, l2.read_once, l2.write
        spills = self._compiled.spilled_bytes > 0
        step = self._blocks
        block = self._next_block()
        ready = self._begin_ps
        first = True
        if block is not None:
            yield timeout(ready - env.now)
        while block is not None:
            ready = (sm.started_ps if sm.started_ps > ready else ready) + start_ps
            sm.started_ps = ready
            yield timeout(ready - env.now)
            sm.resident += not first
            first = False
            for index in range(block, units.count, step):
                cold, late, now = False, 0, env.now
                for (stores, access, shared, tally), (address, n_bytes) in zip(moves, units[index].moves, strict=True):
                    if not n_bytes:
                        continue
                    if stores:
                        self._store_bytes += n_bytes
                        if plain:
                            l1_take(address, n_bytes)
                        write(now, access, address, n_bytes)
                        queued = pipe.free_ps - now - latency
                    else:
                        self._fill_bytes += n_bytes
                        if plain and shared:
                            found = l1_take(address, n_bytes)
                            self.l1_hit_bytes += found
                            n_bytes -= found
                            if not n_bytes:
                                continue
                        tally.read_bytes += n_bytes
                        if shared:
                            missed, arrival = read_shared(now, address, n_bytes, side)
                        else:
                            missed, arrival = read_once(now, access, address, n_bytes)
                        tally.missed_bytes += missed
                        queued = arrival - now - latency
                        cold = cold or missed > 0 or arrival > now
                    if queued > late:
                        late = queued
                if spills:
                    late = max(late, self._spill(block))
                steps = self._steps.get(2 * sm.resident + cold) or self._step(sm, cold)
                duration = steps.exit + steps.enter
                steps.time_ps += duration
                yield timeout(duration + late)
                self._queued_ps += late
            sm.resident -= 1
            ready = env.now + drain_ps
            if ready > self._last_end_ps:
                self._last_end_ps = ready
            block = self._next_block()

    def _next_block(self) -> int | None:
        """The next block; it may show that others can be left out."""
        block = self._handout.take()
        if block is not None and self._leaps is not None:
            leap = self._leaps.see(block, int(self._env.now))
            if leap is not None:
                self._handout.leave_out(leap.last - leap.first)
        return block

    def _sums(self) -> Sums:
        """What blocks have added to so far."""
        memory = self._memory
        sums: dict[object, float] = {
            READ: memory.hbm.read_bytes,
            WRITTEN: memory.hbm.write_bytes,
            STORED: self._store_bytes,
            QUEUED: self._queued_ps,
            UNEVEN: sum(self._uneven_ps(key) for key in self._steps),
            HELD: self.l1_hit_bytes,
        }
        sums |= {("time", key): steps.time_ps for key, steps in self._steps.items()}
        for tensor, tally in memory.tallies.items():
            sums["missed", tensor] = tally.missed_bytes
            sums["read", tensor] = tally.read_bytes
        return sums

    def _uneven_ps(self, key: int) -> float:
        """By how much blocks that went at a pace would have taken more or less with all slots taken and tiles in the
        L2: as long as they drift apart, that changes."""
        steps, usual = self._steps[key], self._steps.get(2 * self._per_sm)
        if usual is None:
            return steps.time_ps
        of, than = (each.trips[0] or each.enter + each.exit for each in (steps, usual))
        return steps.time_ps * abs(1.0 - than / max(1, of))

    def _account(self, leap: Leap) -> None:
        """Add what blocks that were left out would have."""
        memory, sums = self._memory, leap.sums
        filled, store = self._units.totals(leap.first, leap.last)
        fill = sum(filled.values())
        self._fill_bytes += fill
        self._store_bytes += store
        self._queued_ps += round(sums[QUEUED])
        # Who finds what in its L1 is a matter of who takes which block, so that share goes on.
        hits = self._hits(leap, filled) if self._plain else {}
        held = sum(hits.values()) if memory.l2 is not None else round(sums[HELD])
        self.l1_hit_bytes += held
        for key, steps in self._steps.items():
            steps.time_ps += round(sums.get(("time", key), 0))
        for tensor, tally in memory.tallies.items():
            # What a launch touches once was asked for without a clock.
            if not leap.in_l2 or tensor in self._shared:
                tally.read_bytes += filled.get(tensor, 0) - hits.get(tensor, 0)
            if not leap.in_l2:
                tally.missed_bytes += round(sums.get(("missed", tensor), 0))
        if memory.l2 is None:
            memory.hbm.owe(fill - held, store)
        elif not leap.in_l2:
            # What is stored is written, sooner or later: a sector of two tiles once, and what spills besides.
            written = round(sums[WRITTEN])
            if not self._units.parts_sectors:
                written = max(store, written) if self._compiled.spilled_bytes else store
            memory.hbm.owe(round(sums[READ]), written)

    def _hits(self, leap: Leap, filled: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each tensor that blocks ask for and their L1s have, of blocks that were left out: what the L2 was
        not asked for of those before them."""
        return {
            tensor: min(
                filled.get(tensor, 0), max(0, filled.get(tensor, 0) - round(leap.sums.get(("read", tensor), 0)))
            )
            for tensor in self._shared
        }

    def _unit(self, sm: Sm, unit: Unit, block: int) -> Generator[simpy.Event, Any, None]:
        """What a block does for one place in the grid."""
        timeout = self._env.timeout
        entered = False
        cold, late = False, 0
        loop = 0
        accesses = self._accesses
        for code, number in self._block_steps:
            if code == ISSUE:
                source, queued = self._load(sm, accesses[number], *unit.moves[number])
                cold, late = cold or source != FOUND, max(late, queued)
            elif code == LOOP:
                if not entered:
                    entered = True
                    steps = self._step(sm, cold)
                    steps.time_ps += steps.enter
                    yield timeout(steps.enter + late)
                    cold, late = False, 0
                taken = unit.loops[loop]
                run = self._pair_loop if taken.pair and self._copies else self._loop
                yield from run(sm, taken, loop, self._slowness(block))
                loop += 1
            else:
                late = max(late, self._store(sm, accesses[number], *unit.moves[number]))
        late = max(late, self._spill(block))
        steps = self._step(sm, cold)
        duration = steps.exit + (0 if entered else steps.enter)
        steps.time_ps += duration
        yield timeout(duration + late)
        self._queued_ps += late

    def _stride(self, body: BodyPlan, shared_bytes: int) -> int:
        """Trips of a loop that are taken in one step, each of which asks for so many bytes that others ask for too."""
        longest = most_of(body.stop, dict(self._plan.axes))
        l2 = self._gpu.l2
        stays = l2 is not None and shared_bytes * longest * l2.partitions <= l2.capacity_bytes
        most = min(MOST_STEPS if stays else MOST_STEPS_BEYOND_L2, STEPS_OF_ALL_BLOCKS // max(1, self._blocks))
        return max(1, -(-longest // max(FEWEST_STEPS, most)))

    def _step(self, sm: Sm, cold: bool) -> Steps:
        key = 2 * sm.resident + cold
        steps = self._steps.get(key)
        if steps is None:
            pace = self._pace(sm.resident, cold)
            trips = tuple(map(self._ps, pace.trips)) or (0,)
            steps = self._steps[key] = Steps(self._ps(pace.enter), self._ps(pace.exit), trips)
        return steps

    def _times(self) -> dict[tuple[int, bool], int]:
        """How long blocks were at the pace of so many resident blocks, with tiles from HBM or not."""
        return {(key // 2, key % 2 == 1): steps.time_ps for key, steps in self._steps.items()}

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
