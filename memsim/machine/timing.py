"""What replays show: times, bytes and waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from memsim.machine.l2 import Tally
from memsim.machine.sm import PIPE_NAMES

Progress = Callable[[str, int, int], None]
"""Called with a launch's name, the blocks handed out and the blocks of the launch."""

WAITED_FOR = (*PIPE_NAMES, "hbm", "latency", "l2")


@dataclass(frozen=True)
class LaunchTiming:
    """What the replay of one launch showed. `tallies` say per tensor what the L2 was asked for and what it lacked;
    `code_bytes` of the HBM reads are the kernel itself, on flushed caches; `blocks_left_out` were not replayed, but are
    in all figures.

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
    clock_hz: float = 0.0
    dirty_bytes_at_end: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    l1_hit_bytes: int = 0
    replayed_by: str | None = None
    code_bytes: int = 0
    blocks_left_out: int = 0


@dataclass(frozen=True)
class RunTiming:
    """What the replay of all launches showed. `host_s` is the time of the inputs on the host link."""

    launches: tuple[LaunchTiming, ...]
    host_s: float
    host_bytes: int
    launch_overhead_s: float
