"""The L2 between the SMs and HBM: what of memory it holds, in least recently used order, and what it still owes to HBM.

It is kept in pieces. Of a tensor each byte of which a launch touches once (Q, O, S, P) a piece is a stretch of its
rows; of those it matters how much is there from before, since that is what the next launch may find. A tile that
several blocks ask for (of K and V, in flash) is one piece where the L2 is whole. Where it is in partitions, every
partition is the home of an equal share of it, beside which each keeps a copy of what the others are home to once an SM
on its side has asked for it. So shared data takes room once a partition; but a copy that is gone is fetched from its
home, not from HBM, and keeps that young. Stores stay as dirty bytes, beyond a limit the oldest are written to HBM; what
is evicted dirty is written too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from memsim.gpu import Gpu
from memsim.machine.hbm import Hbm

LEAST_PIECE_BYTES = 1 << 16
MOST_PIECES = 1 << 13
# Keys of pieces lie above every address, those of a tensor side by side: tensors start on different addresses, and have
# fewer pieces than this.
_PIECES = 1 << 72
_PIECES_APART = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """How a load or store touches a tensor: `shared` if more than one block may ask for the same bytes, where the
    tensor starts, the size of its pieces, the rows of a tile and of a head, the bytes of a tile's row, and those from
    one row to the next."""

    tensor: str
    shared: bool
    origin: int
    piece_bytes: int
    rows: int
    rows_of_head: int
    row_bytes: int
    row_stride: int


@dataclass
class Tally:
    """Bytes of one tensor that SMs asked the L2 for, and those that it had to get from HBM."""

    read_bytes: int = 0
    missed_bytes: int = 0


class _Piece:
    __slots__ = ("bytes", "dirty", "launch", "left", "ready", "weight")

    def __init__(self, weight: int) -> None:
        self.bytes = 0
        # How many partitions' shares of its bytes it takes room for.
        self.weight = weight
        self.dirty = 0
        self.ready = 0
        # What is there from before the launch, and not yet read in it.
        self.launch = -1
        self.left = 0


class L2:
    """The L2 of a GPU above its HBM. Times are picoseconds; calls come in order of time."""

    def __init__(self, gpu: Gpu, hbm: Hbm) -> None:
        assert gpu.l2 is not None
        self._hbm = hbm
        self.partitions = gpu.l2.partitions
        # Room is counted in a partition's share of a byte.
        self._whole = self._capacity = gpu.l2.capacity_bytes * self.partitions
        self._dirty_limit = gpu.l2.dirty_limit_bytes or gpu.l2.capacity_bytes
        # The oldest first.
        self.pieces: OrderedDict[int, _Piece] = OrderedDict()
        self._dirty: OrderedDict[int, _Piece] = OrderedDict()
        self._used = 0
        self._launch = 0
        self.dirty_bytes = 0
        self.tallies: dict[str, Tally] = {}

    def begin_launch(self, local_bytes: int = 0) -> None:
        """A further launch starts; what is there stays, but for the room of `local_bytes` that its threads spill."""
        self._launch += 1
        self._capacity = max(1, self._whole - local_bytes * self.partitions)
        self._evict(0)
        self.tallies = {}

    def flush(self) -> None:
        """Nothing is held any more; what was dirty is written without being counted."""
        self.pieces.clear()
        self._dirty.clear()
        self._used = self.dirty_bytes = 0

    @property
    def room_bytes(self) -> int:
        """For how many bytes of tiles that all SMs ask for it has room."""
        return self._capacity // (self.partitions * self.partitions)

    @contextmanager
    def beside(self, memory: Any) -> Iterator[None]:
        """For a while another memory than HBM is below; it has its `read` and `write`."""
        hbm, self._hbm = self._hbm, memory
        try:
            yield
        finally:
            self._hbm = hbm

    def settle(self) -> None:
        """All that was on its way has arrived."""
        for piece in self.pieces.values():
            piece.ready = 0

    def read(self, now: int, access: Access, address: int, n_bytes: int, side: int = 0) -> tuple[int, int]:
        """(bytes that come from HBM, when they are in the L2) for a load that arrives now from an SM on the side of
        that partition. Tiles that follow each other along a loop may be loaded together; those of a shared tensor are
        then one piece."""
        tally = self.tally(access.tensor)
        tally.read_bytes += n_bytes
        if access.shared:
            missed, ready = self.read_shared(now, address, n_bytes, side)
            tally.missed_bytes += missed
            return missed, ready
        missed, ready = self.read_once(now, access, address, n_bytes)
        tally.missed_bytes += missed
        return missed, ready

    def tally(self, tensor: str) -> Tally:
        """What it was asked for of a tensor in this launch."""
        tally = self.tallies.get(tensor)
        if tally is None:
            tally = self.tallies[tensor] = Tally()
        return tally

    def write(self, now: int, access: Access, address: int, n_bytes: int) -> None:
        """A store that arrives now. Nothing is read for it: stores fill whole sectors."""
        partitions = self.partitions
        parts = [(address * 2 * partitions, n_bytes)] if access.shared else _parts(access, address, n_bytes)
        if access.shared:
            # What is dirty of it, the first of its homes counts.
            for key in range(parts[0][0] + 1, parts[0][0] + partitions):
                self._grow(self._piece(key, 1), n_bytes)
        weight, limit = (1, n_bytes) if access.shared else (partitions, access.piece_bytes)
        pieces, dirty = self.pieces, self._dirty
        for key, part in parts:
            piece = pieces.get(key)
            if piece is None:
                piece = pieces[key] = _Piece(weight)
            else:
                pieces.move_to_end(key)
            held = min(limit, piece.bytes + part)
            if held > piece.bytes:
                self._used += (held - piece.bytes) * piece.weight
                piece.bytes = held
            dirtied = min(limit, piece.dirty + part) - piece.dirty
            if dirtied > 0:
                piece.dirty += dirtied
                self.dirty_bytes += dirtied
            if key in dirty:
                dirty.move_to_end(key)
            else:
                dirty[key] = piece
        while self.dirty_bytes > self._dirty_limit and dirty:
            _, oldest = dirty.popitem(last=False)
            self._clean(now, oldest)
        if self._used > self._capacity:
            self._evict(now)

    def read_shared(self, now: int, address: int, n_bytes: int, side: int) -> tuple[int, int]:
        """`read` of a tile that several blocks may ask for, not added to its tensor's tally."""
        pieces, partitions = self.pieces, self.partitions
        key = address * 2 * partitions
        near, copied = key + side, key + partitions + side
        home, copy = pieces.get(near), pieces.get(copied)
        whole = (copy is not None and copy.bytes >= n_bytes) or partitions == 1
        if whole and home is not None and home.bytes >= n_bytes:
            pieces.move_to_end(near)
            if copy is None:
                return 0, home.ready
            pieces.move_to_end(copied)
            return 0, home.ready if home.ready > copy.ready else copy.ready
        # A copy that is gone is fetched from the homes of its shares, and keeps those young.
        shares, ready, used = 0, 0, 0
        for at in (near,) if whole else range(key, key + partitions):
            piece = pieces.get(at)
            if piece is None:
                piece = pieces[at] = _Piece(1)
            else:
                pieces.move_to_end(at)
                if piece.ready > ready:
                    ready = piece.ready
            if piece.bytes < n_bytes:
                shares += n_bytes - piece.bytes
                piece.bytes = n_bytes
        used = shares
        missed = -(-shares // partitions)
        if missed:
            arrival = self._hbm.read(now, missed)
            if arrival > ready:
                ready = arrival
        if partitions > 1:
            if copy is None:
                copy = pieces[copied] = _Piece(partitions - 1)
            else:
                pieces.move_to_end(copied)
            if copy.bytes < n_bytes:
                used += (n_bytes - copy.bytes) * (partitions - 1)
                copy.bytes = n_bytes
            copy.ready = ready
        for at in (near,) if whole else range(key, key + partitions):
            pieces[at].ready = ready
        self._used += used
        if self._used > self._capacity:
            self._evict(now)
        return missed, ready

    def _piece(self, key: int, weight: int) -> _Piece:
        """A piece, the youngest from now on."""
        piece = self.pieces.get(key)
        if piece is None:
            piece = self.pieces[key] = _Piece(weight)
        else:
            self.pieces.move_to_end(key)
        return piece

    def _grow(self, piece: _Piece, n_bytes: int) -> None:
        if n_bytes > piece.bytes:
            self._used += (n_bytes - piece.bytes) * piece.weight
            piece.bytes = n_bytes

    def read_once(self, now: int, access: Access, address: int, n_bytes: int) -> tuple[int, int]:
        """`read` of a tile that no other block asks for, not added to its tensor's tally."""
        pieces, launch, limit = self.pieces, self._launch, access.piece_bytes
        missed = 0
        for key, part in _parts(access, address, n_bytes):
            piece = pieces.get(key)
            if piece is None:
                piece = pieces[key] = _Piece(self.partitions)
            # What of it is not yet read grows no younger by this.
            if piece.launch != launch:
                piece.launch, piece.left = launch, piece.bytes
            found = part if part < piece.left else piece.left
            piece.left -= found
            # A sector that lies in two tiles or rows is fetched once.
            lacking = min(part - found, limit - piece.bytes)
            if lacking > 0:
                piece.bytes += lacking
                self._used += lacking * piece.weight
                missed += lacking
                if self._used > self._capacity:
                    self._evict(now)
        return missed, self._hbm.read(now, missed) if missed else now

    def _evict(self, now: int) -> None:
        while self._used > self._capacity and len(self.pieces) > 1:
            key, piece = self.pieces.popitem(last=False)
            self._used -= piece.bytes * piece.weight
            if piece.dirty:
                del self._dirty[key]
                self._clean(now, piece)

    def _clean(self, now: int, piece: _Piece) -> None:
        self._hbm.write(now, piece.dirty)
        self.dirty_bytes -= piece.dirty
        piece.dirty = 0


def piece_bytes_of(total_bytes: int, row_bytes: int) -> int:
    """How long the pieces of a tensor are: so that there are not too many, and whole rows where rows are short."""
    least = max(LEAST_PIECE_BYTES, -(-total_bytes // MOST_PIECES))
    return max(1, least // row_bytes) * row_bytes if row_bytes else least


def _parts(access: Access, address: int, n_bytes: int) -> list[tuple[int, int]]:
    """The pieces that tiles side by side touch, with the bytes in each."""
    size = access.piece_bytes
    at = address - access.origin
    key = _PIECES + access.origin * _PIECES_APART
    if access.row_bytes == access.row_stride:
        first, last = at // size, (at + n_bytes - 1) // size
        if first == last:
            return [(key + first, n_bytes)]
        between = [(key + n, size) for n in range(first + 1, last)]
        return [(key + first, (first + 1) * size - at), *between, (key + last, at + n_bytes - last * size)]
    # Pieces are whole rows, and each gets the share of its rows.
    row = at // access.row_stride
    return _rows_in_pieces(access, key, row, n_bytes)


@lru_cache(maxsize=1 << 14)
def _rows_in_pieces(access: Access, key: int, row: int, n_bytes: int) -> list[tuple[int, int]]:
    """The pieces that whole rows lie in, with the bytes in each."""
    per_piece = access.piece_bytes // access.row_stride
    rows = min(access.rows, access.rows_of_head - row % access.rows_of_head)
    first, last = row // per_piece, (row + rows - 1) // per_piece
    if first == last:
        return [(key + first, n_bytes)]
    parts, given = [], 0
    for n in range(first, last + 1):
        upto = n_bytes * (min(row + rows, (n + 1) * per_piece) - row) // rows
        parts.append((key + n, upto - given))
        given = upto
    return parts
