"""Which replay by trace a launch gets: all of it, or one that leaves out what is alike."""

from __future__ import annotations

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.levels import Memory
from memsim.machine.plan import LOOP, BodyPlan, LaunchPlan
from memsim.machine.timing import Progress
from memsim.machine.traced import TracedRun
from memsim.machine.trip_leaps import TripLeaps
from memsim.machine.unit_leaps import UnitLeaps
from memsim.machine.windows import MEASURED, SETTLING
from memsim.machine.work import main_loop, shared_in_flight, tile_operations
from memsim.trace import LaunchTrace

LEAST_OPERATIONS = 1_500_000
"""Steps of tile programs (`memsim.machine.work.tile_operations`), of which a trip of flash has 10: what takes less than
two or three seconds is replayed in full."""
FEWEST_WAVES = 4
"""How the blocks of the last wave meet on SMs is chance: with fewer waves than this it is too much of the whole."""
LEAST_NESTED = 24
ROOMY = 0.6
"""What share of the L2 tiles may take that slots ask for in common: beyond it who finds what is chance, too."""


def traced_run(
    env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int, progress: Progress | None,
    order: GridOrder, trace: LaunchTrace | None,
) -> TracedRun:  # fmt: skip
    """The replay of a launch, in leaps where they are worth it and a trace is given."""
    if trace is None or tile_operations(plan) < LEAST_OPERATIONS:
        return TracedRun(env, gpu, memory, plan, per_sm, progress, order)
    slots = min(gpu.sm.count * per_sm, plan.blocks)
    work = main_loop(plan, trace)
    if work is not None and work.total >= 4 * work.units:
        windows = slots * (SETTLING + MEASURED) * (1 if not work.nested else work.mean_weight / 5)
        crowded = _crowded(gpu, plan, order, trace, slots)
        if work.nested:
            foreseeable = work.mean_trips >= LEAST_NESTED
        else:
            foreseeable = work.units >= FEWEST_WAVES * slots and not crowded and not memory.dirty_bytes
        if work.total > 4 * windows and foreseeable:
            return TripLeaps(env, gpu, memory, plan, per_sm, progress, order, trace, work, crowded=crowded)
    elif gpu.l2 is None and order.name != "persistent" and _alike(plan.body) and plan.blocks > 40 * slots:
        return UnitLeaps(env, gpu, memory, plan, per_sm, progress, order, trace)
    return TracedRun(env, gpu, memory, plan, per_sm, progress, order)


def _crowded(gpu: Gpu, plan: LaunchPlan, order: GridOrder, trace: LaunchTrace, slots: int) -> bool:
    """Whether the L2 has no room for what slots share."""
    if gpu.l2 is None:
        return False
    return shared_in_flight(trace, plan, order, slots) * gpu.l2.partitions > ROOMY * gpu.l2.capacity_bytes


def _alike(body: BodyPlan) -> bool:
    """Whether all blocks do as much: no loop depends on where a block is."""
    loops = [step[1] for step in body.steps if step[0] == LOOP]
    return all(isinstance(b, int) for loop in loops for b in (loop.start, loop.stop)) and all(map(_alike, loops))
