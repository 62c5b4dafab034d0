"""One SM: pipes that its resident blocks share, and who of them waits for memory."""

from __future__ import annotations

TENSOR, EXP, ALU, SRAM = range(4)
PIPE_NAMES = ("tensor", "exp", "alu", "sram")


class Sm:
    """Pipes as the times at which each is next free, in picoseconds; a block that needs one waits until then.

    `side` is the partition of the L2 that it lies beside. `stalled_ps` is the time in which every resident block waited
    for memory, so that no math ran.
    """

    __slots__ = ("busy_ps", "free_ps", "resident", "side", "stall_began_ps", "stalled_ps", "waiting")

    def __init__(self, side: int = 0) -> None:
        self.side = side
        self.free_ps = [0, 0, 0, 0]
        self.busy_ps = [0, 0, 0, 0]
        self.resident = 0
        self.waiting = 0
        self.stalled_ps = 0
        self.stall_began_ps = 0

    def enter(self, now: int) -> None:
        """A block becomes resident, and has something to do."""
        if self.resident and self.waiting == self.resident:
            self.stalled_ps += now - self.stall_began_ps
        self.resident += 1

    def leave(self, now: int) -> None:
        """A block ends; those that remain may all be waiting."""
        self.resident -= 1
        if self.resident and self.waiting == self.resident:
            self.stall_began_ps = now

    def begin_wait(self, now: int) -> None:
        """A block starts to wait for memory."""
        self.waiting += 1
        if self.waiting == self.resident:
            self.stall_began_ps = now

    def end_wait(self, now: int) -> None:
        """Its data is there."""
        if self.waiting == self.resident:
            self.stalled_ps += now - self.stall_began_ps
        self.waiting -= 1
