"""Times of launches on a GPU, as CUDA events see them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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
    call()
    torch.cuda.synchronize()
    first = _once(call, flush)
    repetitions = max(LEAST_REPETITIONS, min(MOST_REPETITIONS, round(TARGET_S / max(first, 1e-6))))
    times = sorted(_once(call, flush) for _ in range(repetitions))
    low, high = (times[round(share * (len(times) - 1))] for share in (0.1, 0.9))
    median = statistics.median(times)
    return Timing(median, (high - low) / median, repetitions)


def time_median_s(call: Callable[[], object]) -> float:
    """The median time of a call, in seconds."""
    return time_launch(call).median_s


def _once(call: Callable[[], object], flush: bool) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if flush:
        _much_memory().zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@lru_cache(maxsize=1)
def _much_memory() -> Any:
    """More than any L2 holds, and enough that writing it takes longer than a launch: the next kernel is then queued
    before it ends, and no time of the host is measured."""
    return torch.empty(3 * 2**30, dtype=torch.int8, device="cuda")
