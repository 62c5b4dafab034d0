"""The memory below the SMs: HBM, and the L2 above it where the machine has one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps
from memsim.machine.hbm import Hbm, Pipe
from memsim.machine.l2 import L2, Access, Tally

BUSY = ("hbm", "l2")
"""The names of the pipes whose use `Memory.counts` says."""


class _Untimed(Pipe):
    """A pipe that everything is through at once."""

    def take(self, now: int, n_bytes: int) -> int:
        self.free_ps = 0
        super().take(0, n_bytes)
        return now


class Memory:
    """What an SM's copies go through: the L2, if there is one, and HBM."""

    def __init__(self, gpu: Gpu) -> None:
        self.hbm = Hbm(gpu)
        self.l2 = L2(gpu, self.hbm) if gpu.l2 is not None else None
        self.l2_pipe = Pipe(gpu.l2.bandwidth_bytes_per_s) if gpu.l2 is not None else None
        self._l2_latency_ps = duration_ps(gpu.l2.latency_s, 1.0) if gpu.l2 is not None else 0

    @property
    def sides(self) -> int:
        """The partitions of the L2, on whose sides SMs lie in turn."""
        return self.l2.partitions if self.l2 is not None else 1

    @property
    def dirty_bytes(self) -> int:
        """Stored bytes that are not yet in HBM."""
        return self.l2.dirty_bytes if self.l2 is not None else 0

    @property
    def tallies(self) -> dict[str, Tally]:
        """Per tensor what the L2 was asked for in this launch."""
        return self.l2.tallies if self.l2 is not None else {}

    def counts(self) -> tuple[int, ...]:
        """(bytes read from HBM, bytes written, how long HBM's pipe was in use, and the L2's if there is one)."""
        l2 = () if self.l2_pipe is None else (self.l2_pipe.busy_ps,)
        return self.hbm.read_bytes, self.hbm.write_bytes, self.hbm.pipe.busy_ps, *l2

    def forget(self) -> None:
        """What the L2 holds is written back, uncounted, and gone: as if a profiler flushed the caches."""
        if self.l2 is not None:
            self.l2.flush()

    def restart(self) -> None:
        """Time begins anew; what the L2 holds stays, and nothing is on its way."""
        self.hbm.pipe.free_ps = 0
        if self.l2 is not None and self.l2_pipe is not None:
            self.l2_pipe.free_ps = 0
            self.l2.settle()

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """What the L2 is asked for meanwhile moves its bytes, and takes HBM no time."""
        pipe = self.hbm.pipe
        self.hbm.pipe = _Untimed(pipe.bandwidth_bytes_per_s)
        try:
            yield
        finally:
            pipe.busy_ps += self.hbm.pipe.busy_ps
            self.hbm.pipe = pipe

    def begin_launch(self, local_bytes: int = 0) -> None:
        """A further launch starts; what the L2 holds stays, but for what makes room for the threads' spilled bytes."""
        if self.l2 is not None:
            self.l2.begin_launch(local_bytes)

    def fetch(self, now: int, access: Access, address: int, n_bytes: int, side: int = 0) -> tuple[int, int, bool]:
        """(arrival at the SM, of which queues and transfers, whether from HBM) of a copy that starts now, by an SM
        on that side of the L2."""
        if self.l2 is None or self.l2_pipe is None:
            arrival = self.hbm.read(now, n_bytes)
            return arrival, arrival - now - self.hbm.latency_ps, True
        missed, ready = self.l2.read(now, access, address, n_bytes, side)
        through = self.l2_pipe.take(now, n_bytes)
        hit = through + self._l2_latency_ps
        if ready > hit:
            # Still on its way from HBM, for this copy or for one before.
            return ready, max(0, ready - now - self.hbm.latency_ps), True
        return hit, through - now, missed > 0

    def put(self, now: int, access: Access, address: int, n_bytes: int) -> int:
        """When bytes that leave an SM now have landed."""
        if self.l2 is None or self.l2_pipe is None:
            return self.hbm.write(now, n_bytes)
        self.l2.write(now, access, address, n_bytes)
        return self.l2_pipe.take(now, n_bytes) + self._l2_latency_ps
