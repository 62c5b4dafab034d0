"""What blocks do to the memory, without a clock: of the blocks that a replay leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from memsim.grid import Ints
from memsim.machine.l2 import L2, Access
from memsim.machine.units import Moved, Units
from memsim.trace import SECTOR_BYTES


@dataclass
class Ledger:
    """Stands for HBM where no time passes: counts, and answers at once."""

    read_bytes: int = 0
    write_bytes: int = 0

    def read(self, now: int, n_bytes: int) -> int:
        """Count bytes read; they are there."""
        self.read_bytes += n_bytes
        return 0

    def write(self, now: int, n_bytes: int) -> int:
        """Count bytes written; they have landed."""
        self.write_bytes += n_bytes
        return 0


class PassOver:
    """Has an L2 seen blocks that no time is spent on, a row of units after another.

    Tiles that several blocks ask for are touched once from each of so many `sides`, in the order in which they are
    asked for last; what a launch touches once, in stretches of memory. `spill` does what a block does that runs out of
    registers.
    """

    def __init__(self, l2: L2, units: Units, sides: int, spill: Callable[[int], object] = lambda block: None) -> None:
        self._l2, self._units, self._sides, self._spill = l2, units, range(sides), spill
        # Tiles of the row before: blocks that ask for them again keep them young meanwhile.
        self._young: set[int] = set()

    def units(self, first: int, last: int) -> Ledger:
        """The units from the first to before the last; what HBM was asked for."""
        ledger = Ledger()
        touched: set[int] = set()
        with self._l2.beside(ledger):
            for moved in self._units.moved(first, last):
                if moved.access.shared:
                    touched |= self._touch(moved, ledger)
                else:
                    for address, n_bytes in _runs(moved.access, moved.addresses, moved.bytes):
                        (self._l2.write if moved.stores else self._l2.read)(0, moved.access, address, n_bytes)
            for block in range(first, last):
                self._spill(block)
        self._young = touched
        return ledger

    def ask(self, first: int, last: int) -> Ledger:
        """Ask for the tiles that units share, and for nothing else."""
        ledger = Ledger()
        with self._l2.beside(ledger):
            for moved in self._units.moved(first, last):
                if moved.access.shared and not moved.stores:
                    for address, n_bytes in _tiles(moved):
                        for side in self._sides:
                            self._l2.read_shared(0, address, n_bytes, side)
        return ledger

    def _touch(self, moved: Moved, ledger: Ledger) -> set[int]:
        """Tiles that several blocks ask for: the L2 has them from now on."""
        l2, touched = self._l2, set()
        tally = l2.tally(moved.access.tensor)
        for address, n_bytes in _tiles(moved):
            touched.add(address)
            if moved.stores:
                l2.write(0, moved.access, address, n_bytes)
                continue
            before = ledger.read_bytes
            missed = sum(l2.read_shared(0, address, n_bytes, side)[0] for side in self._sides)
            if address in self._young:
                ledger.read_bytes = before
            else:
                tally.missed_bytes += missed
        return touched


def _tiles(moved: Moved) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each different tile, in the order in which they are asked for last."""
    places: dict[int, list[int]] = {}
    for place, address in enumerate(moved.addresses.tolist()):
        places.setdefault(address, []).append(place)
    for base, of in sorted(places.items(), key=lambda item: item[1][-1]):
        # Under a mask some blocks ask for fewer of them.
        place = max(of, key=lambda at: int(moved.bytes[at]))
        for value, n_bytes in [(0, int(moved.bytes[place]))] if moved.pieces is None else moved.pieces(place):
            yield base + value * moved.step, n_bytes


def _runs(access: Access, addresses: Ints, sizes: Ints) -> list[tuple[int, int]]:
    """(address, bytes) of tiles, those that follow each other in memory or lie in the same rows as one."""
    keep = sizes > 0
    addresses, sizes = addresses[keep], sizes[keep]
    if not len(addresses):
        return []
    strided = access.row_bytes != access.row_stride
    if strided and (access.row_bytes % SECTOR_BYTES or access.row_stride % SECTOR_BYTES):
        # Tiles share sectors, which may be written twice.
        return list(zip(addresses.tolist(), sizes.tolist(), strict=True))
    if strided:
        addresses -= (addresses - access.origin) % access.row_stride
    order = np.argsort(addresses, kind="stable")
    addresses, sizes = addresses[order], sizes[order]
    if strided:
        apart = addresses[1:] != addresses[:-1]
    else:
        apart = addresses[1:] != addresses[:-1] + sizes[:-1]
    starts = np.flatnonzero(np.concatenate(([True], apart)))
    found: list[Any] = list(zip(addresses[starts].tolist(), np.add.reduceat(sizes, starts).tolist(), strict=True))
    return found
