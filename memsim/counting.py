"""Exact counting from a trace with its loops kept: bytes, FLOPs and operations without replaying anything.

A record's bytes depend on its position only through a few numbers: how far the tile's first byte lies into a
sector, and how many of its rows and columns lie inside the tensor. So the executions of a record are sorted into
classes by those numbers, symbol by symbol, and each class is counted once. A loop whose trip count depends on a
block's coordinate is a difference of prefix sums. Cost grows with the number of tiles along an axis, not with
their product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, lcm

import numpy as np

from memsim.trace import (
    ELEMENT_BYTES,
    SECTOR_BYTES,
    Bound,
    Index,
    Ints,
    LaunchTrace,
    Load,
    Loop,
    Store,
    TileRef,
    Work,
    walk,
)


@dataclass(frozen=True)
class Counts:
    """Totals of one launch. Fills and stores in bytes of whole sectors, `*_requested_bytes` as the program asked;
    `sram_zero_fill_bytes` are those fills that are zeros beyond a tensor's end, for which no memory is read.

    `flops` are those of the matrix products as executed, padding and masked parts included; `exps` the operations
    on the exp pipe (exponentials and logarithms), `alu_ops` on the ALU pipe; `tile_operations` executed records.
    """

    sram_fill_bytes: int = 0
    sram_fill_requested_bytes: int = 0
    sram_store_bytes: int = 0
    sram_store_requested_bytes: int = 0
    flops: int = 0
    exps: int = 0
    alu_ops: int = 0
    tile_operations: int = 0
    fill_bytes_by_tensor: tuple[tuple[str, int], ...] = ()
    store_bytes_by_tensor: tuple[tuple[str, int], ...] = ()
    sram_zero_fill_bytes: int = 0


@lru_cache(maxsize=65536)
def tile_bytes(first_byte: int, row_bytes: int, rows: int, width_bytes: int) -> int:
    """Bytes of the sectors that a tile touches, each counted once.

    The tile is `rows` runs of `width_bytes`, `row_bytes` apart, the first at `first_byte` (only its remainder by
    the sector size matters). Neighbouring rows can meet in a sector.
    """
    if rows <= 0 or width_bytes <= 0:
        return 0
    if width_bytes == row_bytes:
        rows, width_bytes = 1, rows * width_bytes
    period = SECTOR_BYTES // gcd(row_bytes, SECTOR_BYTES)
    # After `period` rows the pattern repeats `period · row_bytes` later, a whole number of sectors.
    cycles, rest = divmod(rows - 1, period)
    new = [_new_sectors(first_byte, row_bytes, width_bytes, r) for r in range(1, period + 1)] if rows > 1 else []
    first = _sectors_end(first_byte, width_bytes) - first_byte // SECTOR_BYTES
    return SECTOR_BYTES * (first + cycles * sum(new) + sum(new[:rest]))


def _sectors_end(first_byte: int, width_bytes: int) -> int:
    return -(-(first_byte + width_bytes) // SECTOR_BYTES)


def _new_sectors(first_byte: int, row_bytes: int, width_bytes: int, row: int) -> int:
    """Sectors of a row that the row before it does not touch. Rows ascend, so only the last one can overlap."""
    start = first_byte + row * row_bytes
    end_before = _sectors_end(start - row_bytes, width_bytes)
    return _sectors_end(start, width_bytes) - max(start // SECTOR_BYTES, end_before)


def class_of_position(tile: TileRef, batch: int, head: int, row: int, col: int) -> tuple[int, int, int]:
    """(bytes into a sector, rows inside the tensor, columns inside the tensor) of a tile at a position."""
    t = tile.tensor
    into_sector = ((batch * t.heads + head) * t.head_bytes + row * t.row_bytes + col * ELEMENT_BYTES[t.dtype]) % 32
    return into_sector, _inside(t.rows - row, tile.rows), _inside(t.cols - col, tile.cols)


def _inside(left: int, size: int) -> int:
    return max(0, min(left, size))


def bytes_of_class(tile: TileRef, key: tuple[int, int, int]) -> tuple[int, int]:
    """(bytes of whole sectors, bytes requested) of a tile of this class."""
    into_sector, rows, cols = key
    width = cols * ELEMENT_BYTES[tile.tensor.dtype]
    return tile_bytes(into_sector, tile.tensor.row_bytes, rows, width), rows * width


def zeros_of_class(tile: TileRef, key: tuple[int, int, int]) -> int:
    """Bytes of zeros that a box of this class fills the SM with, beside what it reads; none without a box."""
    _, rows, cols = key
    if not tile.box or not rows or not cols:
        return 0
    return tile.box_bytes - rows * cols * ELEMENT_BYTES[tile.tensor.dtype]


def count(trace: LaunchTrace) -> Counts:
    """Exact totals of a launch."""
    if trace.blocks == 0:
        return Counts()
    total: dict[str, int] = dict.fromkeys(
        ("fill", "fill_requested", "zeros", "store", "store_requested", "tensor", "exp", "alu", "operations"), 0
    )
    by_tensor: dict[str, dict[str, int]] = {"fill": {}, "store": {}}
    executions: dict[tuple[str, ...], int] = {}
    for record, loops in walk(trace.body):
        nest = tuple(loop.symbol for loop in loops)
        if nest not in executions:
            executions[nest] = sum(_histogram(trace, loops, None).values())
        total["operations"] += executions[nest]
        if isinstance(record, Work):
            total[record.pipe] += record.amount * executions[nest]
        elif isinstance(record, Load | Store):
            kind = "fill" if isinstance(record, Load) else "store"
            for key, times in _histogram(trace, loops, record.tile).items():
                whole, requested = bytes_of_class(record.tile, key)
                if kind == "fill":
                    zeros = zeros_of_class(record.tile, key)
                    total["zeros"] += times * zeros
                    whole += zeros
                total[kind] += times * whole
                total[f"{kind}_requested"] += times * requested
                name = record.tile.tensor.name
                by_tensor[kind][name] = by_tensor[kind].get(name, 0) + times * whole
    return Counts(
        sram_fill_bytes=total["fill"],
        sram_fill_requested_bytes=total["fill_requested"],
        sram_zero_fill_bytes=total["zeros"],
        sram_store_bytes=total["store"],
        sram_store_requested_bytes=total["store_requested"],
        flops=total["tensor"],
        exps=total["exp"],
        alu_ops=total["alu"],
        tile_operations=total["operations"],
        fill_bytes_by_tensor=tuple(by_tensor["fill"].items()),
        store_bytes_by_tensor=tuple(by_tensor["store"].items()),
    )


# A class key that says nothing yet: no bytes into a sector, rows and columns unrestricted.
_OPEN = (0, -1, -1)


def _histogram(trace: LaunchTrace, loops: tuple[Loop, ...], tile: TileRef | None) -> dict[tuple[int, int, int], int]:
    """How often a record inside `loops` is executed, by the class of its tile's position (one class without a tile)."""
    children: dict[str | None, list[Loop]] = {}
    for loop in loops:
        children.setdefault(_parent(loop), []).append(loop)
    joint = {_constant_class(tile): 1}
    for name, size in trace.axes:
        joint = _join(joint, _root(name, 0, size, tile, children))
    for loop in children.get(None, []):
        start, stop = loop.start, loop.stop
        assert isinstance(start, int) and isinstance(stop, int)
        joint = _join(joint, _root(loop.symbol, start, stop, tile, children))
    return joint


def _root(
    name: str, start: int, stop: int, tile: TileRef | None, children: dict[str | None, list[Loop]]
) -> dict[tuple[int, int, int], int]:
    """Executions by class over all values of a symbol that depends on no other."""
    free = name not in children and start == 0
    divisors = {1} if tile is None else {x.divisor for x in _indices(tile) if x.symbol == name} or {1}
    group = lcm(*divisors)
    # Heads that share one head of K and V lie alike: one of each group stands for all.
    unit = group if free and divisors == {group} and stop % group == 0 else 1
    period = SECTOR_BYTES * group // unit
    # Positions inside a sector repeat; only values near the tensor's edge are clipped.
    repeats = max(0, _first_clipped(name, tile, stop)) // unit // period if free else 0
    joint: dict[tuple[int, int, int], int] = {}
    parts = [(start + repeats * period, stop // unit, unit)]
    if repeats:
        parts.append((0, period, repeats * unit))
    for low, high, times in parts:
        values = np.arange(low, max(low, high), dtype=np.int64) * unit
        weights, keys = _subtree(name, values, tile, children)
        for key, weight in zip(keys, weights.sum(axis=0), strict=True):
            joint[key] = joint.get(key, 0) + int(weight) * times
    return joint


def _first_clipped(name: str, tile: TileRef | None, stop: int) -> int:
    """A value below which the tile of every value lies wholly inside its tensor."""
    if tile is None:
        return stop
    for index, size, extent in ((tile.row, tile.rows, tile.tensor.rows), (tile.col, tile.cols, tile.tensor.cols)):
        if index.symbol == name and index.multiplier:
            fit = (extent - size - index.offset) // index.multiplier + 1
            stop = min(stop, max(0, fit) * index.divisor)
    return stop


def _indices(tile: TileRef) -> tuple[Index, Index, Index, Index]:
    return tile.batch, tile.head, tile.row, tile.col


def _parent(loop: Loop) -> str | None:
    symbols = {b.symbol for b in (loop.start, loop.stop) if isinstance(b, Bound)}
    assert len(symbols) <= 1, "a loop's bounds depend on one symbol at most"
    return symbols.pop() if symbols else None


def _subtree(
    name: str, values: Ints, tile: TileRef | None, children: dict[str | None, list[Loop]]
) -> tuple[Ints, list[tuple[int, int, int]]]:
    """For each value of a symbol, the executions by class over all loops whose bounds depend on it."""
    weights, keys = _classes(name, values, tile)
    for loop in children.get(name, []):
        start = _bound_values(loop.start, values)
        stop = np.maximum(_bound_values(loop.stop, values), start)
        inner_values = np.arange(int(stop.max(initial=0)), dtype=np.int64)
        inner, inner_keys = _subtree(loop.symbol, inner_values, tile, children)
        before = np.zeros((len(inner_values) + 1, inner.shape[1]), dtype=np.int64)
        np.cumsum(inner, axis=0, out=before[1:])
        trips = before[stop] - before[start]
        weights = (weights[:, :, None] * trips[:, None, :]).reshape(len(values), weights.shape[1] * trips.shape[1])
        keys = [_merge(a, b) for a in keys for b in inner_keys]
    return weights, keys


def _bound_values(bound: int | Bound, values: Ints) -> Ints:
    if isinstance(bound, Bound):
        return bound.of_values(values)
    return np.full(len(values), bound, dtype=np.int64)


def _classes(name: str, values: Ints, tile: TileRef | None) -> tuple[Ints, list[tuple[int, int, int]]]:
    """One-hot weights of each value over the classes that this symbol tells apart."""
    into = np.zeros(len(values), dtype=np.int64)
    rows = np.full(len(values), -1, dtype=np.int64)
    cols = np.full(len(values), -1, dtype=np.int64)
    if tile is not None:
        t = tile.tensor
        for index, step in ((tile.batch, t.heads * t.head_bytes), (tile.head, t.head_bytes)):
            if index.symbol == name:
                into += index.over(values) % SECTOR_BYTES * (step % SECTOR_BYTES)
        if tile.row.symbol == name:
            at = tile.row.over(values)
            into += at % SECTOR_BYTES * (t.row_bytes % SECTOR_BYTES)
            rows = np.clip(t.rows - at, 0, tile.rows)
        if tile.col.symbol == name:
            at = tile.col.over(values)
            into += at % SECTOR_BYTES * ELEMENT_BYTES[t.dtype]
            cols = np.clip(t.cols - at, 0, tile.cols)
    # One integer per class, so that equal ones sort together; tiles have at most 2^16 rows and 2^20 columns.
    codes = ((rows + 1) << 32) + ((cols + 1) << 8) + into % SECTOR_BYTES
    if not len(values):
        return np.ones((0, 1), dtype=np.int64), [_OPEN]
    if (codes == codes[0]).all():
        unique, weights = codes[:1], np.ones((len(values), 1), dtype=np.int64)
    else:
        unique, inverse = np.unique(codes, return_inverse=True)
        weights = np.zeros((len(values), len(unique)), dtype=np.int64)
        weights[np.arange(len(values)), inverse] = 1
    return weights, [(c & 0xFF, (c >> 32) - 1, (c >> 8 & 0xFFFFFF) - 1) for c in unique.tolist()]


def _constant_class(tile: TileRef | None) -> tuple[int, int, int]:
    """What the parts of a position that depend on no symbol say."""
    if tile is None:
        return _OPEN
    at = [index.offset if index.symbol is None else 0 for index in _indices(tile)]
    into, rows, cols = class_of_position(tile, *at)
    return into, rows if tile.row.symbol is None else -1, cols if tile.col.symbol is None else -1


def _merge(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return (a[0] + b[0]) % SECTOR_BYTES, max(a[1], b[1]), max(a[2], b[2])


def _join(a: dict[tuple[int, int, int], int], b: dict[tuple[int, int, int], int]) -> dict[tuple[int, int, int], int]:
    joint: dict[tuple[int, int, int], int] = {}
    for key_a, times_a in a.items():
        for key_b, times_b in b.items():
            key = _merge(key_a, key_b)
            joint[key] = joint.get(key, 0) + times_a * times_b
    return joint
