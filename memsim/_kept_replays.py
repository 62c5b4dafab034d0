"""Replays kept in memory while a sweep runs: points that differ in nothing that a replay sees share one.

How much SRAM an SM has decides how many blocks it holds, and no more; so along an axis of SRAM sizes few replays
differ.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from memsim.gpu import Gpu
from memsim.machine import Compiled, Launched, RunTiming

_MOST = 2048


@dataclass
class KeptReplays:
    """The last replays, by all that they depend on."""

    _kept: OrderedDict[Hashable, RunTiming] = field(default_factory=OrderedDict)
    _machines: dict[int, tuple[Gpu, str]] = field(default_factory=dict)

    def get(
        self, gpu: Gpu, program: Hashable, launches: Sequence[Launched], how: Hashable, make: Callable[[], RunTiming]
    ) -> RunTiming:
        """The replay of launches, made if it is not kept. `program` says what their traces are made from, but for the
        machine, `how` what else the replay is told."""
        key = (program, self._machine(gpu), tuple(_seen_of(gpu, launch) for launch in launches), how)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found

    def _machine(self, gpu: Gpu) -> str:
        """The numbers of a machine without those that only say how many blocks it holds."""
        known = self._machines.get(id(gpu))
        if known is None or known[0] is not gpu:
            if len(self._machines) > _MOST:
                self._machines.clear()
            # What a program may keep in SRAM is in its tile and trace.
            sizes = {"capacity_bytes": 1, "block_limit_bytes": 1, "reserved_per_block_bytes": 0}
            sram = gpu.sm.sram.model_copy(update=sizes)
            alike = gpu.model_copy(update={"sm": gpu.sm.model_copy(update={"sram": sram})})
            known = self._machines[id(gpu)] = (gpu, alike.model_dump_json())
        return known[1]


def _seen_of(gpu: Gpu, launch: Launched) -> Hashable:
    """What a replay sees of a launch's resources and order."""
    trace, per_sm, *given = launch
    resident = min(per_sm, -(-max(1, trace.blocks) // gpu.sm.count))
    compiled = given[0] if given else None
    order = given[1] if len(given) > 1 else None
    if not isinstance(compiled, Compiled) or gpu.sm.core is None:
        return trace.name, resident, None, order
    if not (compiled.loads_plainly or compiled.spilled_bytes):
        return trace.name, resident, compiled, order
    l1_bytes = compiled.l1_bytes(gpu, per_sm)
    return trace.name, resident, compiled, l1_bytes, compiled.spills_beyond_l1(gpu, per_sm), order
