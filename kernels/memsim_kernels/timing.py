"""Times of launches on a GPU, as CUDA events see them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

LEAST_REPETITIONS = 5
MOST_REPETITIONS = 50
# Enough repetitions to fill about this long, which evens out the clock.
TARGET_S = 0.15


@dataclass(frozen=True)
class Timing:
    """Seconds between two CUDA events around a launch, over `repetitions`; `spread` is (90th − 10th percentile) /
    median."""

    median_s: float
    spread: float
    repetitions: int


def time_launch(call: Callable[[], object], *, flush: bool = True) -> Timing:
    """Time a call that launches work, warmed up before; with `flush` the L2 holds something else at each start."""
    (timing,) = time_chain([call], flush=flush)
    return timing


def time_chain(calls: Sequence[Callable[[], object]], *, flush: bool = True) -> tuple[Timing, ...]:
    """Time calls that launch work one after the other, each by itself; with `flush` the L2 holds something else before
    the first of them, and only there. Only behind a flush are launches queued before the GPU is at them, so that no
    time of the host is measured."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    first = sum(_once(calls, flush))
    repetitions = max(LEAST_REPETITIONS, min(MOST_REPETITIONS, round(TARGET_S / max(first, 1e-6))))
    runs = [_once(calls, flush) for _ in range(repetitions)]
    return tuple(_timing(sorted(times)) for times in zip(*runs, strict=True))


def _timing(times: Sequence[float]) -> Timing:
    low, high = (times[round(share * (len(times) - 1))] for share in (0.1, 0.9))
    median = statistics.median(times)
    return Timing(median, (high - low) / median, len(times))


def time_median_s(call: Callable[[], object]) -> float:
    """The median time of a call, in seconds."""
    return time_launch(call).median_s


def _once(calls: Sequence[Callable[[], object]], flush: bool) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    if flush:
        _much_memory().zero_()
    events[0].record()
    for call, event in zip(calls, events[1:], strict=True):
        call()
        event.record()
    events[-1].synchronize()
    return [float(start.elapsed_time(end)) / 1e3 for start, end in pairwise(events)]


@lru_cache(maxsize=1)
def _much_memory() -> Any:
    """More than any L2 holds, and enough that writing it takes longer than a launch: the next kernel is then queued
    before it ends, and no time of the host is measured."""
    return torch.empty(3 * 2**30, dtype=torch.int8, device="cuda")
