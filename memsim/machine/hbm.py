"""HBM: a bandwidth that all share, and a latency."""

from __future__ import annotations

from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps


class Pipe:
    """One bandwidth that all share in order of request: a next-free time, and how long it was in use."""

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._durations: dict[int, int] = {}
        self.free_ps = 0
        self.busy_ps = 0

    def duration_ps(self, n_bytes: int) -> int:
        """How long bytes have the pipe."""
        return duration_ps(n_bytes, self.bandwidth_bytes_per_s)

    def take(self, now: int, n_bytes: int) -> int:
        """When bytes that ask for the pipe now are through."""
        duration = self._durations.get(n_bytes)
        if duration is None:
            duration = self._durations[n_bytes] = duration_ps(n_bytes, self.bandwidth_bytes_per_s)
        self.busy_ps += duration
        self.free_ps = (self.free_ps if self.free_ps > now else now) + duration
        return self.free_ps


class Hbm:
    """Device memory: one bandwidth that reads and writes of all SMs share, and a latency.

    A transfer holds the pipe for its bytes; its latency passes beside the transfers of others.
    """

    def __init__(self, gpu: Gpu) -> None:
        efficiency = gpu.calibrated.hbm_efficiency if gpu.calibrated else 1.0
        self.pipe = Pipe(gpu.hbm.bandwidth_bytes_per_s * efficiency)
        self.latency_ps = duration_ps(gpu.hbm.latency_s, 1.0)
        self.read_bytes = 0
        self.write_bytes = 0

    def read(self, now: int, n_bytes: int) -> int:
        """When bytes that are asked for now have arrived."""
        self.read_bytes += n_bytes
        return self.pipe.take(now, n_bytes) + self.latency_ps

    def write(self, now: int, n_bytes: int) -> int:
        """When bytes that leave now have landed."""
        self.write_bytes += n_bytes
        return self.pipe.take(now, n_bytes) + self.latency_ps

    def owe(self, read_bytes: int, write_bytes: int) -> None:
        """Count bytes that are moved while nobody looks, and the time that the pipe is in use for them."""
        self.read_bytes += read_bytes
        self.write_bytes += write_bytes
        self.pipe.busy_ps += self.pipe.duration_ps(read_bytes + write_bytes)
