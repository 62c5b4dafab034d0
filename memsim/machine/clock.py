"""Simulated time: whole picoseconds, rounded up, here and nowhere else."""

from __future__ import annotations

import math

PS_PER_S = 10**12


def duration_ps(amount: float, rate_per_s: float) -> int:
    """Picoseconds that `amount` takes at `rate_per_s`, rounded up; 0 for nothing."""
    return math.ceil(amount * PS_PER_S / rate_per_s)


def seconds(ps: int) -> float:
    """Picoseconds as seconds."""
    return ps / PS_PER_S
