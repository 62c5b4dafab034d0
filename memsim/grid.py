"""Grid orders: in which order the blocks of a launch go over its units of work, and so what meets in the L2.

A unit is one place in a launch's grid: for flash a block of rows of one (batch, head) plane. Hardware hands blocks out
in the order of their linear number, as room gets free; which unit a number stands for is the kernel's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memsim.errors import MemsimError

if TYPE_CHECKING:
    from memsim.attention import Attention
    from memsim.gpu import Gpu

Ints = npt.NDArray[np.int64]
Axes = Sequence[tuple[str, int]]
"""A grid's axes and sizes, as a trace has them: the rows first, then what numbers the planes, the fastest first."""

ORDERS: Mapping[str, str] = {
    "rows-fast": "the rows of a plane, then the next plane",
    "heads-fast": "a block of rows of every plane, then the next rows",
    "rows-reversed": "rows-fast, but the last rows of a plane first",
    "longest-first": "heads-fast, but the last rows first, which see the most keys under a causal mask",
    "head-sections": "sections of as many planes as have K and V in half the L2, longest-first in each",
    "persistent": "as many blocks as are resident at once, each taking every so-many-th unit in rows-fast order",
}
"""Every order and what it is."""
ROWS_FAST = "rows-fast"
BY_PLANES = ("rows-fast", "rows-reversed")
"""The orders that go over all rows of a plane before the next."""
_SECTIONS, _PERSISTENT = "head-sections", "persistent"


@dataclass(frozen=True, slots=True)
class GridOrder:
    """One of `ORDERS`, with what it needs to be known: for head-sections `planes`, how many (batch, head) planes a
    section has; for persistent `resident`, how many blocks there are room for at once. Raises `MemsimError` without."""

    name: str = ROWS_FAST
    planes: int = 0
    resident: int = 0

    def __post_init__(self) -> None:
        faults = []
        if self.name not in ORDERS:
            faults.append(f"grid_order is {self.name!r}; it must be one of {', '.join(ORDERS)}.")
        if self.name == _SECTIONS and self.planes < 1:
            faults.append(f"planes is {self.planes}; a section has at least 1.")
        if self.name == _PERSISTENT and self.resident < 1:
            faults.append(f"resident is {self.resident}; there is room for at least 1 block.")
        if faults:
            raise MemsimError(faults)

    def blocks(self, axes: Axes) -> int:
        """The blocks that are launched."""
        units = prod(size for _, size in axes)
        return min(self.resident, units) if self.name == _PERSISTENT else units

    def unit(self, axes: Axes, index: int) -> dict[str, int]:
        """The unit at a place in the order: a coordinate for each axis."""
        (rows_name, rows), *others = axes
        row, plane = self._place(rows, prod(size for _, size in others), index)
        unit = {rows_name: row}
        for name, size in others:
            plane, unit[name] = divmod(plane, size)
        return unit

    def places(self, axes: Axes, indices: Ints) -> dict[str, Ints]:
        """The units at many places in the order: the values of each coordinate."""
        (rows_name, rows), *others = axes
        row, plane = self._place(rows, prod(size for _, size in others), indices)
        places = {rows_name: row}
        for name, size in others:
            plane, places[name] = plane // size, plane % size
        return places

    def units_of_block(self, axes: Axes, block: int) -> Iterator[dict[str, int]]:
        """What one block works on, in its order: one unit, unless it is persistent."""
        units, step = prod(size for _, size in axes), self.blocks(axes)
        return (self.unit(axes, index) for index in range(block, units, step))

    def _place(self, rows: int, planes: int, index: Any) -> tuple[Any, Any]:
        """(row, plane) of a place in the order, or of an array of them."""
        if self.name in (ROWS_FAST, _PERSISTENT):
            return index % rows, index // rows
        if self.name == "rows-reversed":
            return rows - 1 - index % rows, index // rows
        if self.name == "heads-fast":
            return index // planes, index % planes
        if self.name == "longest-first":
            return rows - 1 - index // planes, index % planes
        first = index // (rows * self.planes) * self.planes
        left = planes - first
        size = left - (left - self.planes) * (left > self.planes)
        rest = index - first * rows
        return rows - 1 - rest // size, first + rest % size


def grid_order(name: str, problem: Attention, gpu: Gpu, blocks_per_sm: int) -> GridOrder:
    """An order as flash takes it for a problem on a machine. `blocks_per_sm` are those of its kernel.

    Heads of Q that share a head of K and V stay in one section. A machine without an L2 has one section.
    """
    if name == _SECTIONS:
        planes = problem.batch * problem.heads
        if gpu.l2 is not None:
            of_one_head = 2 * problem.seq_len_k * problem.head_dim * problem.dtype_bytes
            fitting = gpu.l2.capacity_bytes // 2 // max(1, of_one_head)
            planes = min(planes, max(1, fitting) * problem.group)
        return GridOrder(name, planes=max(1, planes))
    if name == _PERSISTENT:
        return GridOrder(name, resident=gpu.sm.count * blocks_per_sm)
    return GridOrder(name)
