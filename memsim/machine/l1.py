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
        tiles = self._tiles
        held = tiles.pop(address, 0)
        tiles[address] = n_bytes
        over = self._used + n_bytes - held - self._capacity
        if over <= 0:
            self._used += n_bytes - held
        else:
            self._used = self._capacity
            while over > 0:
                oldest, size = tiles.popitem(last=False)
                if size > over:
                    tiles[oldest] = size - over
                    tiles.move_to_end(oldest, last=False)
                over -= size
        return held if held < n_bytes else n_bytes
