"""The blocks of a launch as the hardware hands them out: in linear order, to whoever has room."""

from __future__ import annotations

from memsim.grid import Axes, GridOrder
from memsim.machine.timing import Progress

_REPORTS = 200


class Handout:
    """The blocks of a grid in an order, each handed out once; `progress` is told some 200 times on the way."""

    def __init__(self, name: str, axes: Axes, order: GridOrder, progress: Progress | None) -> None:
        self.blocks = order.blocks(axes)
        self._name = name
        self._progress = progress
        self._next = 0
        self._report_every = max(1, self.blocks // _REPORTS)

    def leave_out(self, blocks: int) -> None:
        """Hand out so many blocks fewer: the last ones."""
        self.blocks -= blocks
        if self._progress is not None and self._next:
            self._progress(self._name, self._next - 1, self.blocks)

    def take(self) -> int | None:
        """The next block in linear order, or None when all are handed out."""
        block = self._next
        if block >= self.blocks:
            return None
        self._next = block + 1
        if self._progress is not None and block % self._report_every == 0:
            self._progress(self._name, block, self.blocks)
        return block

    @property
    def given(self) -> int:
        """The blocks handed out or left out so far."""
        return self._next

    def skip(self, blocks: int) -> None:
        """Leave so many blocks out."""
        self._next += blocks
