"""How fast the blocks of an SM go when so many of them share it: what a core of the SM, run on its own, shows.

A block enters (everything up to its loops and after them, but for its stores' way out) and then takes so many cycles
a trip of each of its loops. Both are differences between runs of a core with few trips and with more, so they hold for
any number of trips. A further loop has to fill its buffers again, which the trips that a block makes of it share.

Blocks that share a core fall into step with one another, and which step depends on how far apart they start: a trip can
take a tenth longer in one than in another. On a machine they start at all distances: a pace is the mean over several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from memsim.machine.core import PIPES, WAITS, CoreRun, CoreTimes, MemoryTimes, run_core
from memsim.stream import Segment, Stream

_FEW, _MORE = 3, 9
# How far apart blocks start, in trips of one that is alone; the last starts that much after the first. Two by
# themselves lock the hardest, so they are tried at more distances.
_APART, _TWO_APART = (0.25, 0.85), (0.1, 0.35, 0.6, 0.85)


@dataclass(frozen=True)
class Pace:
    """Cycles of one block among `resident`: to `enter`, to leave (`exit`), and per trip of each loop (`trips`).

    `busy` is the share of time that each of `PIPES` is in use while all are in the first loop (in the whole of a block
    that has none), `waited` the share of a warp's time by what it waits for (`WAITS`).
    """

    enter: float
    exit: float
    trips: tuple[float, ...]
    busy: dict[str, float]
    waited: dict[str, float]


@lru_cache(maxsize=8192)
def pace_of(
    stream: Stream, resident: int, warps: int, core: CoreTimes, memory: MemoryTimes, box_bytes: int, groups: int = 1,
    further_trips: tuple[int, ...] = (),
) -> Pace:  # fmt: skip
    """The pace of a stream; `warps` are a block's in one sub-partition, which meet at barriers in `groups` apart, and
    `further_trips` those that a block makes of each loop after the first."""

    def run(apart_cycles: float, *trips: int) -> CoreRun:
        return run_core(stream, trips, resident, warps, core, memory, box_bytes, groups, apart_cycles)

    if not stream.loops:
        # Block after block, as on a machine, where they run side by side at all distances.
        each = pace_of(_repeated(stream), resident, warps, core, memory, box_bytes, groups)
        return Pace(each.trips[0], each.enter + each.exit, (), each.busy, each.waited)
    further = len(stream.loops) - 1
    distances: tuple[float, ...] = (0.0,)
    if resident > 1:
        alone = pace_of(stream, 1, warps, core, memory, box_bytes, groups).trips[0]
        distances = tuple(share * alone / (resident - 1) for share in (_TWO_APART if resident == 2 else _APART))
    few, more = (_mean([run(apart, n, *[0] * further) for apart in distances]) for n in (_FEW, _MORE))
    trips = [max(0.0, (more.ended - few.ended) / (_MORE - _FEW))]
    for number in range(further):
        counts = [_FEW, *[0] * further]
        made = min(_MORE, max(1, further_trips[number])) if number < len(further_trips) else _FEW
        counts[1 + number] = made
        longer = _mean([run(apart, *counts) for apart in distances])
        trips.append(max(0.0, (longer.ended - few.ended) / made))
    both = max(0.0, few.ended - _FEW * trips[0])
    enter = min(few.entered, both)
    return Pace(enter, both - enter, tuple(trips), *_shares(more, few, warps * resident))


@cache
def _repeated(stream: Stream) -> Stream:
    """A stream without loops, over and over."""
    whole = Segment(True, tuple(i for segment in stream.segments for i in segment.instructions))
    return Stream(f"{stream.name} repeated", (Segment(False, ()), whole, Segment(False, ())))


def _mean(runs: Sequence[CoreRun]) -> CoreRun:
    def of(values: Iterable[float]) -> float:
        return math.fsum(values) / len(runs)

    return CoreRun(
        of(run.entered for run in runs),
        of(run.ended for run in runs),
        tuple(map(of, zip(*(run.busy for run in runs), strict=True))),
        tuple(map(of, zip(*(run.waited for run in runs), strict=True))),
    )


def _shares(run: CoreRun, before: CoreRun, warps: int) -> tuple[dict[str, float], dict[str, float]]:
    busy = [more - few for few, more in zip(before.busy, run.busy, strict=True)]
    waited = [more - few for few, more in zip(before.waited, run.waited, strict=True)]
    time = max(run.ended - before.ended, 1e-9)
    return (
        {name: min(1.0, b / time) for name, b in zip(PIPES, busy, strict=True)},
        {name: max(0.0, w) / (time * warps) for name, w in zip(WAITS, waited, strict=True)},
    )
