"""What one recorded launch did so far: accesses turned into records, block by block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt

from memsim.errors import MemsimError
from memsim.trace import Index, Ints, Load, Record, Store, TileRef, Work
from memsim_kernels._record_arguments import REGION_BITS, Argument
from memsim_kernels._record_layout import OutsideTensor, sorted_once

Block = tuple[int, int, int]
Direction = Literal["load", "store"]
Lanes = npt.NDArray[np.bool_]
Addresses = npt.NDArray[np.uint64]

_LOAD: tuple[Direction, ...] = ("load",)


class Watch:
    """Collects the records of one launch; belongs to the thread that made it."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.arguments: tuple[Argument, ...] = ()
        self.blocks: dict[Block, tuple[Record, ...]] = {}
        self.grid: Block | None = None
        self.thread = threading.get_ident()
        self._block: Block = (0, 0, 0)
        self._records: list[Record] = []
        self._joining: dict[tuple[Direction, int], list[Ints]] | None = None

    @contextmanager
    def block(self, block: Block) -> Iterator[None]:
        """What happens inside is done by this block."""
        self._block, self._records = block, []
        yield
        self.blocks[block] = tuple(self._records)

    @contextmanager
    def one_access(self) -> Iterator[None]:
        """What the interpreter does inside in several steps is one access: each element counts once."""
        if self._joining is not None:
            yield
            return
        self._joining = {}
        try:
            yield
            joined = self._joining
        finally:
            self._joining = None
        for (direction, number), parts in joined.items():
            self._emit(direction, self.arguments[number], sorted_once(np.concatenate(parts)))

    def access(
        self, addresses: Addresses, lanes: Lanes, lane_bytes: int, directions: tuple[Direction, ...] = _LOAD
    ) -> tuple[Addresses, Lanes]:
        """Record what the active lanes touch; returns real addresses, and the lanes that have memory behind them.

        Raises `MemsimError` where a lane touches no element of its tensor.
        """
        active = addresses[lanes].view(np.int64)
        if not active.size:
            return addresses, lanes
        regions = _region(active)
        if (regions == regions[0]).all():
            argument = self._touch(int(regions[0]) - 1, active, lane_bytes, directions)
            if argument.real is None:
                return addresses, np.zeros_like(lanes)
            return addresses + np.uint64((argument.real - argument.made_up) % 2**64), lanes
        # Lanes of one access in several tensors, each of them on its own.
        real_addresses, real_lanes = addresses.copy(), np.zeros_like(lanes)
        every = _region(np.ascontiguousarray(addresses).view(np.int64))
        for region in dict.fromkeys(regions.tolist()):
            argument = self._touch(region - 1, active[regions == region], lane_bytes, directions)
            if argument.real is not None:
                mine = lanes & (every == region)
                real_lanes |= mine
                real_addresses[mine] += np.uint64((argument.real - argument.made_up) % 2**64)
        return real_addresses, real_lanes

    def work(self, pipe: str, amount: int, operation: str, dtype: str) -> None:
        """Record work on a pipe."""
        self._records.append(Work(pipe, amount, operation, dtype, (), ""))

    def fault(self, what: str) -> MemsimError:
        """A fault of the kernel in the block that runs now."""
        return MemsimError(f"{self.kernel}, block {self._block}: {what}")

    def _touch(self, number: int, active: Ints, lane_bytes: int, directions: tuple[Direction, ...]) -> Argument:
        if not 0 <= number < len(self.arguments):
            address = int(active[0]) % 2**64
            raise self.fault(
                f"a {_named(directions)} at address {address:#x}, which belongs to no tensor argument of the launch; "
                "a kernel may only follow pointers that it was given."
            )
        argument = self.arguments[number]
        try:
            elements = argument.layout.elements(active - argument.made_up, lane_bytes)
        except OutsideTensor as outside:
            raise self._outside(argument, outside, active.size, directions) from None
        for direction in directions:
            if self._joining is None:
                self._emit(direction, argument, elements)
            else:
                self._joining.setdefault((direction, number), []).append(elements)
        return argument

    def _outside(
        self, argument: Argument, outside: OutsideTensor, lanes: int, directions: tuple[Direction, ...]
    ) -> MemsimError:
        layout = argument.layout
        wrapped = [n for n in (outside.offset + 2**32, outside.offset - 2**32) if layout.holds(n)]
        right = (
            f"a 32-bit offset that wrapped once would give that for element offset {wrapped[0]}: compute it in 64 bits."
            if wrapped
            else "mask such lanes or mend the offset."
        )
        return self.fault(
            f"a {_named(directions)} of {argument.name} touches element offset {outside.offset}, where shape "
            f"{layout.shape} and strides {layout.strides} have no element ({outside.lanes} of {lanes} lanes); {right}"
        )

    def _emit(self, direction: Direction, argument: Argument, elements: Ints) -> None:
        tensor = argument.layout.tensor
        for r in argument.layout.rectangles(elements):
            batch, head, row, col = (Index(offset=n) for n in (r.batch, r.head, r.row, r.col))
            tile = TileRef(tensor, batch, head, row, col, r.rows, r.cols)
            self._records.append(Load(tile, tensor.name) if direction == "load" else Store(tile, tensor.name))


def _region(addresses: Ints) -> Ints:
    """Number of the argument, from 1, whose made-up address is nearest."""
    return (addresses + (1 << (REGION_BITS - 1))) >> REGION_BITS


def _named(directions: tuple[Direction, ...]) -> str:
    return directions[0] if len(directions) == 1 else "read-modify-write"
