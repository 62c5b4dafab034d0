"""The link between the host's memory and HBM."""

from __future__ import annotations

from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps


def host_transfer_ps(gpu: Gpu, n_bytes: int) -> int:
    """Picoseconds that inputs of `n_bytes` take to cross into HBM before the first launch; 0 for no bytes."""
    if n_bytes == 0:
        return 0
    return duration_ps(gpu.host.latency_s, 1.0) + duration_ps(n_bytes, gpu.host.bandwidth_bytes_per_s)
