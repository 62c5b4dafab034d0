"""The L1 of an SM: what SRAM leaves of the memory that the two share, for plain loads and stores."""

from __future__ import annotations

from collections import OrderedDict


class L1:
    """What it holds of tiles, by address. The oldest lines go first, so a tile may be there in part."""

    __slots__ = ("_capacity", "_tiles", "_used")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._tiles: OrderedDict[int, int] = OrderedDict()
        self._used = 0

    def take(self, address: int, n_bytes: int) -> int:
        """How much of a tile that is loaded or stored is there; all of it is from now on."""
        held = self._tiles.pop(address, 0)
        self._tiles[address] = n_bytes
        self._used += n_bytes - held
        while (over := self._used - self._capacity) > 0:
            oldest, size = next(iter(self._tiles.items()))
            if size > over:
                self._tiles[oldest] = size - over
            else:
                del self._tiles[oldest]
            self._used -= min(size, over)
        return min(held, n_bytes)
