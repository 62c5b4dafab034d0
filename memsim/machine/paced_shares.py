"""What a run at the pace of instructions says beside bytes and time: what was busy, what blocks waited for, the
clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from memsim.gpu import Gpu
from memsim.machine.clock import PS_PER_S
from memsim.machine.pace import Pace
from memsim.machine.sm import PIPE_NAMES
from memsim.machine.timing import WAITED_FOR

Times = Mapping[tuple[int, bool], int]
"""How long blocks were at the pace of so many resident blocks, with tiles from HBM or not, in picoseconds."""
PaceOf = Callable[[int, bool], Pace]
_PIPES_OF = (("tensor", ("tensor",)), ("exp", ("exp",)), ("alu", ("fma", "alu")), ("sram", ("sram",)))


def shares(
    times: Times, pace_of: PaceOf, queued_ps: int, total_ps: int, sms: int
) -> tuple[dict[str, float], dict[str, float]]:
    """(each resource's share of the launch's time over all SMs, block-seconds by what blocks stood still for)."""
    busy = dict.fromkeys(PIPE_NAMES, 0.0)
    waited = dict.fromkeys(WAITED_FOR, 0.0)
    for (resident, cold), ps in times.items():
        pace = pace_of(resident, cold)
        share = ps / resident / (total_ps * sms)
        for name, names in _PIPES_OF:
            busy[name] += share * max(pace.busy[n] for n in names)
        for name in PIPE_NAMES:
            waited[name] += ps / PS_PER_S * pace.waited[name]
        waited["latency"] += ps / PS_PER_S * (pace.waited["memory"] + pace.waited["order"])
    waited["hbm"] += queued_ps / PS_PER_S
    return busy, waited


def waiting_share(times: Times, pace_of: PaceOf, queued_share: float) -> float:
    """The share of the SMs' time in which none of their blocks can go on for want of data: what blocks wait in HBM's
    queue, and else how likely it is that all that are resident wait at once."""
    queued = min(1.0, queued_share)
    each = {key: ps / key[0] for key, ps in times.items()}
    together = sum(share * pace_of(*key).waited["memory"] ** key[0] for key, share in each.items())
    return queued + (1.0 - queued) * together / max(1.0, sum(each.values()))


def clock_after(
    gpu: Gpu, clock_hz: float, time_s: float, fill_bytes: int, hbm_read_bytes: int, tensor_busy: float
) -> float:
    """The mean clock of a launch with products, in Hz. Power is short where products run while more is read than
    saturates HBM or the L2 alone; such a launch waits for memory, so that its time stays as it is."""
    fitted = gpu.calibrated
    if fitted is None or time_s <= 0 or gpu.l2 is None or not fitted.throttle_s:
        return clock_hz
    hbm = hbm_read_bytes / (gpu.hbm.bandwidth_bytes_per_s * fitted.hbm_efficiency)
    l2 = fill_bytes / gpu.l2.bandwidth_bytes_per_s
    lost = fitted.throttle_share * min(1.0, max(0.0, (hbm + l2) / time_s - 1.0)) * tensor_busy
    return clock_hz * max(0.5, 1.0 - lost * (1.0 - math.exp(-time_s / fitted.throttle_s)))
