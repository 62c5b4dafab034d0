"""How fast the blocks of an SM go when so many of them share it: what a core of the SM, run on its own, shows.

A block enters (everything up to its loops and after them, but for its stores' way out) and then takes so many cycles
a trip of each of its loops. Both are differences between runs of a core with few trips and with more, so they hold for
any number of trips.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from memsim.machine.core import PIPES, WAITS, CoreRun, CoreTimes, MemoryTimes, run_core
from memsim.stream import Stream

_FEW, _MORE, _OF_A_FURTHER_LOOP = 6, 18, 3


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
    stream: Stream, resident: int, warps: int, core: CoreTimes, memory: MemoryTimes, box_bytes: int, groups: int = 1
) -> Pace:  # fmt: skip
    """The pace of a stream; `warps` are a block's in one sub-partition, which meet at barriers in `groups` apart."""

    def run(*trips: int) -> CoreRun:
        return run_core(stream, trips, resident, warps, core, memory, box_bytes, groups)

    loops = len(stream.loops)
    if not loops:
        only = run()
        return Pace(only.ended, 0.0, (), *_shares(only, None, warps * resident))
    few, more = run(_FEW), run(_MORE)
    first = max(0.0, (more.ended - few.ended) / (_MORE - _FEW))
    trips = [first]
    for number in range(1, loops):
        counts = [_FEW, *[0] * (loops - 1)]
        counts[number] = _OF_A_FURTHER_LOOP
        trips.append(max(0.0, (run(*counts).ended - few.ended) / _OF_A_FURTHER_LOOP))
    both = max(0.0, few.ended - _FEW * first)
    enter = min(few.entered, both)
    return Pace(enter, both - enter, tuple(trips), *_shares(more, few, warps * resident))


def _shares(run: CoreRun, before: CoreRun | None, warps: int) -> tuple[dict[str, float], dict[str, float]]:
    busy, waited, time = run.busy, run.waited, run.ended
    if before is not None:
        busy = tuple(b - a for a, b in zip(before.busy, busy, strict=True))
        waited = tuple(b - a for a, b in zip(before.waited, waited, strict=True))
        time -= before.ended
    time = max(time, 1e-9)
    return (
        {name: min(1.0, b / time) for name, b in zip(PIPES, busy, strict=True)},
        {name: max(0.0, w) / (time * warps) for name, w in zip(WAITS, waited, strict=True)},
    )
