"""The accesses of each algorithm, one by one, in plain loops; and the sectors that each touches, as sets.

Written from the algorithms alone: no trace, no memsim.counting. Slow, so for small problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memsim.attention import Attention
from memsim.tile import Room, Tile

ELEMENT = {"float16": 2, "bfloat16": 2, "float32": 4}
SECTOR = 32


@dataclass(frozen=True)
class Access:
    """One tile moved: the part of it that lies inside the tensor, as rows and columns of one head."""

    launch: str
    kind: str  # "load" or "store"
    tensor: str
    batch: int
    head: int
    rows: range
    cols: range

    @property
    def at(self) -> tuple[int, int, int, int]:
        """Where its first element would be."""
        return self.batch, self.head, self.rows.start, self.cols.start


@dataclass(frozen=True)
class Shape:
    """A contiguous tensor of (batch, heads, rows, cols)."""

    heads: int
    rows: int
    cols: int
    element: int

    def address(self, batch: int, head: int, row: int, col: int) -> int:
        """Bytes from the tensor's first element to this one."""
        return (((batch * self.heads + head) * self.rows + row) * self.cols + col) * self.element


def shapes(p: Attention) -> dict[str, Shape]:
    """Every tensor that an algorithm may touch."""
    e, kv_heads = ELEMENT[p.dtype], p.heads // (p.heads // (p.kv_heads or p.heads))
    rows = {"Q": p.seq_len_q, "K": p.seq_len_k, "V": p.seq_len_k, "O": p.seq_len_q}
    own = {n: Shape(kv_heads if n in "KV" else p.heads, r, p.head_dim, e) for n, r in rows.items()}
    scores = {n: Shape(p.heads, p.seq_len_q, p.seq_len_k, e) for n in "SP"}
    return own | scores | {n: Shape(p.heads, p.seq_len_q, 1, 4) for n in ("LSE", "m", "l")}


def sector_bytes(access: Access, shape: Shape) -> int:
    """Bytes of the sectors that one access touches, each once."""
    touched = set()
    for row in access.rows:
        for col in access.cols:
            first = shape.address(access.batch, access.head, row, col)
            touched |= {first // SECTOR, (first + shape.element - 1) // SECTOR}
    return SECTOR * len(touched)


def requested_bytes(access: Access, shape: Shape) -> int:
    """Bytes that one access asks for."""
    return len(access.rows) * len(access.cols) * shape.element


def sees(p: Attention, row: int, key: int) -> bool:
    """Whether the query row attends to the key."""
    return not p.causal or key <= row + p.seq_len_k - p.seq_len_q


def spans(total: int, size: int) -> list[range]:
    """[0, total) in pieces of `size`, the last one ragged."""
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


def accesses(algorithm: str, p: Attention, t: Tile, room: Room, lse: bool) -> Iterator[Access]:
    """Every load and store, in the order in which the blocks, run one after the other, make them."""
    yield from {"flash": _flash, "flash1": _flash1, "naive": _naive}[algorithm](p, t, room, lse)


def _heads(p: Attention) -> Iterator[tuple[int, int, int]]:
    for batch in range(p.batch):
        for head in range(p.heads):
            yield batch, head, head // (p.heads // (p.kv_heads or p.heads))


def _flash(p: Attention, t: Tile, room: Room, lse: bool) -> Iterator[Access]:
    wide, one = range(p.head_dim), range(1)
    for batch, head, kv_head in _heads(p):
        for rows in spans(p.seq_len_q, t.block_m):
            yield Access("flash", "load", "Q", batch, head, rows, wide)
            for keys in spans(p.seq_len_k, t.block_n):
                if any(sees(p, row, keys.start) for row in rows):
                    yield Access("flash", "load", "K", batch, kv_head, keys, wide)
                    yield Access("flash", "load", "V", batch, kv_head, keys, wide)
            yield Access("flash", "store", "O", batch, head, rows, wide)
            if lse:
                yield Access("flash", "store", "LSE", batch, head, rows, one)


def _flash1(p: Attention, t: Tile, room: Room, lse: bool) -> Iterator[Access]:
    wide, one = range(p.head_dim), range(1)
    for batch, head, kv_head in _heads(p):
        for rows in spans(p.seq_len_q, t.block_m):
            for name, cols in (("O", wide), ("m", one), ("l", one)):
                yield Access("flash1", "store", name, batch, head, rows, cols)
        for keys in spans(p.seq_len_k, t.block_n):
            yield Access("flash1", "load", "K", batch, kv_head, keys, wide)
            yield Access("flash1", "load", "V", batch, kv_head, keys, wide)
            for rows in spans(p.seq_len_q, t.block_m):
                if any(sees(p, row, keys.start) for row in rows):
                    for name, cols in (("Q", wide), ("O", wide), ("m", one), ("l", one)):
                        yield Access("flash1", "load", name, batch, head, rows, cols)
                    for name, cols in (("O", wide), ("m", one), ("l", one)):
                        yield Access("flash1", "store", name, batch, head, rows, cols)


def _naive(p: Attention, t: Tile, room: Room, lse: bool) -> Iterator[Access]:
    wide, one = range(p.head_dim), range(1)
    for batch, head, kv_head in _heads(p):
        for rows in spans(p.seq_len_q, t.block_m):
            for keys in spans(p.seq_len_k, t.block_n):
                yield Access("qk", "load", "Q", batch, head, rows, wide)
                yield Access("qk", "load", "K", batch, kv_head, keys, wide)
                yield Access("qk", "store", "S", batch, head, rows, keys)
    # A row of at most a few thousand columns: whole, unless it has no room as float32 beside its m and l.
    room_for = p.seq_len_k if room.registers else (room.sram_limit_bytes - 8) // 4
    chunk = max(1, p.seq_len_k)
    if whole := room_for >= chunk:
        passes = [spans(p.seq_len_k, chunk) or [range(0)]]
    else:
        while chunk > max(1, room_for):
            chunk //= 2
        passes = [spans(p.seq_len_k, chunk)] * 2
    for batch, head, _ in _heads(p):
        for row in range(p.seq_len_q):
            for number, pieces in enumerate(passes):
                for piece in pieces:
                    yield Access("softmax", "load", "S", batch, head, range(row, row + 1), piece)
                    if whole or number == 1:
                        yield Access("softmax", "store", "P", batch, head, range(row, row + 1), piece)
            if lse:
                yield Access("softmax", "store", "LSE", batch, head, range(row, row + 1), one)
    for batch, head, kv_head in _heads(p):
        for rows in spans(p.seq_len_q, t.block_m):
            for keys in spans(p.seq_len_k, t.block_n):
                yield Access("pv", "load", "P", batch, head, rows, keys)
                yield Access("pv", "load", "V", batch, kv_head, keys, wide)
            yield Access("pv", "store", "O", batch, head, rows, wide)
