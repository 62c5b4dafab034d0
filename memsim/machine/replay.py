"""Replays launches on the machine in SimPy: blocks on SMs, copies through the levels, work on pipes.

Blocks are handed out in linear order as slots free; SM s gets blocks s, s + SMs, … first. Each slot of an SM is one
process that runs block after block. Pipes and memory are next-free times, so a block waits with one timeout
wherever it waits; calls come in order of simulated time, which makes every queue first come, first served and the
run repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.clock import duration_ps, seconds
from memsim.machine.compiled import Compiled
from memsim.machine.fast import traced_run
from memsim.machine.levels import Memory
from memsim.machine.link import host_transfer_ps
from memsim.machine.paced import PacedRun
from memsim.machine.parts import L2, PIPES, check_parts
from memsim.machine.plan import plan_launch
from memsim.machine.timing import LaunchTiming, Progress, RunTiming
from memsim.machine.traced import TracedRun
from memsim.trace import LaunchTrace

Launched = (
    tuple[LaunchTrace, int]
    | tuple[LaunchTrace, int, Compiled | None]
    | tuple[LaunchTrace, int, Compiled | None, GridOrder]
)
"""A launch: its trace, blocks per SM, compiled kernel where that is known, grid order where that is not rows-fast."""

# Of an instruction of sm_90 (cuobjdump); and what cold launches read of HBM beyond tensors and instructions, 2.2 to 2.7
# KB on an H200 (h200_judge.csv).
_INSTRUCTION_BYTES = 16
_DESCRIBED_BYTES = 2432


def replay(
    gpu: Gpu,
    launches: Sequence[Launched],
    *,
    host_bytes: int = 0,
    warm: bool = False,
    cold_launches: bool = False,
    without: frozenset[str] = frozenset(),
    full: bool = False,
    progress: Progress | None = None,
) -> RunTiming:
    """Replay launches, each with its blocks per SM, one after the other.

    A launch whose compiled kernel is given is replayed at the pace of its instructions (`memsim.machine.paced`), where
    the machine is calibrated for that, another by its trace. `host_bytes` cross the host link before the first launch.
    What a launch leaves in the L2 the next one finds, but with `cold_launches`; `warm` has the first find what the same
    run left. A launch of no blocks is not made.
    `full` replays every block, also those that go like those before them (memsim.machine.leaps, memsim.machine.fast).
    `without` names parts of the model to leave out (`memsim.machine.parts`).
    """
    check_parts(without)
    if L2 in without:
        gpu = gpu.model_copy(update={"l2": None})
    memory = Memory(gpu)
    if warm:
        _replay_once(gpu, launches, memory, 0, cold_launches, without, full, progress)
        memory.restart()
    return _replay_once(gpu, launches, memory, host_bytes, cold_launches, without, full, progress, warm)


def _replay_once(
    gpu: Gpu, launches: Sequence[Launched], memory: Memory, host_bytes: int, cold_launches: bool,
    without: frozenset[str], full: bool, progress: Progress | None, warm: bool = False,
) -> RunTiming:  # fmt: skip
    env = simpy.Environment(initial_time=0)
    host_ps = host_transfer_ps(gpu, host_bytes)
    overhead_ps = duration_ps(gpu.launch.overhead_s, 1.0)
    start = host_ps
    timings = []
    made = 0
    for trace, per_sm, *given in launches:
        compiled: Any = given[0] if given else None
        order: Any = given[1] if len(given) > 1 else GridOrder()
        if trace.blocks == 0:
            timings.append(LaunchTiming(trace.name, 0.0, 0, 0, 0, 0, {}, {}, 0.0))
            continue
        made += 1
        start += overhead_ps
        if start > env.now:
            env.run(until=start)
        if cold_launches:
            memory.forget()
        memory.begin_launch(_spilled_bytes(gpu, trace, per_sm, compiled))
        plan = plan_launch(trace, gpu)
        run: TracedRun | PacedRun
        has_core = compiled is not None and gpu.calibrated is not None and gpu.sm.core is not None
        if has_core and PIPES not in without:
            run = PacedRun(env, gpu, memory, plan, per_sm, compiled, progress, order, without, full)
        else:
            run = traced_run(env, gpu, memory, plan, per_sm, progress, order, None if full else trace)
        timing = run.run()
        if has_core and gpu.l2 is not None and not warm and (cold_launches or made == 1):
            code = _code_bytes(compiled)
            timing = replace(timing, hbm_read_bytes=timing.hbm_read_bytes + code, code_bytes=code)
        timings.append(timing)
        start = run.end_ps
    return RunTiming(tuple(timings), seconds(host_ps), host_bytes, seconds(made * overhead_ps))


def _code_bytes(compiled: Compiled) -> int:
    """What a launch on flushed caches reads of itself: its instructions, its parameters and what describes it."""
    instructions = sum(len(segment.instructions) for segment in compiled.stream.segments)
    return _INSTRUCTION_BYTES * instructions + _DESCRIBED_BYTES


def _spilled_bytes(gpu: Gpu, trace: LaunchTrace, per_sm: int, compiled: Compiled | None) -> int:
    """What the threads of the resident blocks spill beyond the L1, in all."""
    if compiled is None or gpu.sm.core is None:
        return 0
    resident = min(trace.blocks, gpu.sm.count * per_sm)
    return resident * compiled.spilled_bytes if compiled.spills_beyond_l1(gpu, per_sm) else 0
