"""The levels below the SMs' SRAM, each a shared pipe. A level answers with times, so a further level (an L2) is one
more object in the list and no change above it."""

from __future__ import annotations

from typing import Protocol

from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps


class Level(Protocol):
    """One level of memory. Times are absolute picoseconds; calls come in order of `now`."""

    name: str
    read_bytes: int
    write_bytes: int
    busy_ps: int
    latency_ps: int

    def read(self, now: int, address: int, n_bytes: int) -> int:
        """When the bytes have arrived at the SM that asks for them now."""
        ...

    def write(self, now: int, address: int, n_bytes: int) -> int:
        """When bytes that leave an SM now have landed."""
        ...


class Hbm:
    """Device memory: one bandwidth that reads and writes of all SMs share in order of request, and a latency.

    A transfer holds the pipe for its bytes; its latency passes beside the transfers of others.
    """

    name = "hbm"

    def __init__(self, gpu: Gpu) -> None:
        self._bandwidth = gpu.hbm.bandwidth_bytes_per_s
        self._durations: dict[int, int] = {}
        self._free_ps = 0
        self.latency_ps = duration_ps(gpu.hbm.latency_s, 1.0)
        self.read_bytes = 0
        self.write_bytes = 0
        self.busy_ps = 0

    def _transfer(self, now: int, n_bytes: int) -> int:
        duration = self._durations.get(n_bytes)
        if duration is None:
            duration = self._durations[n_bytes] = duration_ps(n_bytes, self._bandwidth)
        self.busy_ps += duration
        self._free_ps = (self._free_ps if self._free_ps > now else now) + duration
        return self._free_ps + self.latency_ps

    def read(self, now: int, address: int, n_bytes: int) -> int:
        """When the bytes have arrived at the SM that asks for them now."""
        self.read_bytes += n_bytes
        return self._transfer(now, n_bytes)

    def write(self, now: int, address: int, n_bytes: int) -> int:
        """When bytes that leave an SM now have landed."""
        self.write_bytes += n_bytes
        return self._transfer(now, n_bytes)


def levels_of(gpu: Gpu) -> list[Level]:
    """The machine's levels, from the one next to the SMs down to HBM."""
    return [Hbm(gpu)]
