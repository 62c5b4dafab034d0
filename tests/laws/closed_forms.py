"""What each algorithm moves and computes, as formulas over integers: written from the algorithms, not from memsim.

Every function takes plain numbers and returns, per launch, what its blocks do: bytes asked for by tensor, FLOPs of
the matrix products, exponentials and logarithms, element-wise operations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from memsim.attention import Attention
from memsim.tile import Room, Tile

ELEMENT = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass
class Sums:
    """What one launch does."""

    fills: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    flops: int = 0
    exps: int = 0
    alu: int = 0


def up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return (a + b - 1) // b


def width_of(columns: int, room: Room) -> int:
    """Columns that a tile takes: tensor instructions want powers of two of at least 16."""
    if not room.mma_tiles:
        return columns
    width = 16
    while width < columns:
        width *= 2
    return width


def row_blocks(rows: int, block: int) -> list[int]:
    """Rows of each block of `block` rows, the last one ragged."""
    return [min(block, rows - first) for first in range(0, rows, block)]


def flash(p: Attention, t: Tile, room: Room, lse: bool) -> dict[str, Sums]:
    """Each block of Q once; past it, K and V up to the diagonal of its last row, in whole tiles; O once."""
    one, heads, width = Sums(), p.batch * p.heads, width_of(p.head_dim, room)
    row_bytes = p.head_dim * ELEMENT[p.dtype]
    half, masks = p.dtype != "float32", p.causal or p.seq_len_k % t.block_n > 0
    first = 0
    for rows in row_blocks(p.seq_len_q, t.block_m):
        keys = p.seq_len_k
        if p.causal:
            keys = min(max(first + rows + p.seq_len_k - p.seq_len_q, 0), p.seq_len_k)
        trips = up(keys, t.block_n)
        visited = min(trips * t.block_n, p.seq_len_k)
        one.fills["Q"] += rows * row_bytes
        one.fills["K"] += visited * row_bytes
        one.fills["V"] += visited * row_bytes
        one.stores["O"] += rows * row_bytes
        scores = t.block_m * t.block_n
        one.flops += trips * (2 * scores * width + 2 * scores * width)  # Q·Kᵀ and P·V
        one.exps += trips * (scores + t.block_m)  # P, and the factor on what was there before
        one.alu += trips * (
            # scale, maximum, minus the maximum, sum; mask and rounding where there are any
            (4 + masks + half) * scores
            # on m and l: maximum, finite, difference, times factor, plus sum; on O: times factor
            + 5 * t.block_m
            + t.block_m * width
        )
        one.alu += (1 + half) * t.block_m * width  # O / l, rounding to store it
        if lse:
            one.stores["LSE"] += 4 * rows
            one.exps += t.block_m
            one.alu += 2 * t.block_m
        first += rows
    return {"flash": _times(one, heads)}


def flash1(p: Attention, t: Tile, room: Room, lse: bool = False) -> dict[str, Sums]:
    """O, m and l initialised; each tile of K and V once; past it every block of Q that sees it, with its O, m, l."""
    one, heads, width = Sums(), p.batch * p.heads, width_of(p.head_dim, room)
    row_bytes = p.head_dim * ELEMENT[p.dtype]
    half, masks = p.dtype != "float32", p.causal or p.seq_len_k % t.block_n > 0
    blocks = up(p.seq_len_q, t.block_m)
    state = (("O", row_bytes), ("m", 4), ("l", 4))
    for name, size in state:
        one.stores[name] += p.seq_len_q * size
    one.alu += half * blocks * t.block_m * width
    for j, keys in enumerate(row_blocks(p.seq_len_k, t.block_n)):
        one.fills["K"] += keys * row_bytes
        one.fills["V"] += keys * row_bytes
        # The first row that sees the tile's first key; blocks that end above it are left out.
        first = max(0, j * t.block_n - (p.seq_len_k - p.seq_len_q)) if p.causal else 0
        left_out = min(first // t.block_m, blocks)
        trips, rows = blocks - left_out, max(0, p.seq_len_q - left_out * t.block_m)
        one.fills["Q"] += rows * row_bytes
        for name, size in state:
            one.fills[name] += rows * size
            one.stores[name] += rows * size
        scores = t.block_m * t.block_n
        one.flops += trips * 4 * scores * width
        one.exps += trips * (scores + t.block_m)
        one.alu += trips * ((4 + masks + half) * scores + 5 * t.block_m + (2 + half) * t.block_m * width)
    return {"flash1": _times(one, heads)}


def naive(p: Attention, t: Tile, room: Room, lse: bool) -> dict[str, Sums]:
    """S to memory, in and out again as P, in again: three launches."""
    element = ELEMENT[p.dtype]
    heads, width, row_bytes = p.batch * p.heads, width_of(p.head_dim, room), p.head_dim * element
    half = p.dtype != "float32"
    row_tiles, key_tiles = up(p.seq_len_q, t.block_m), up(p.seq_len_k, t.block_n)
    all_scores = p.seq_len_q * p.seq_len_k * element
    padded = row_tiles * key_tiles * t.block_m * t.block_n

    qk = Sums()
    qk.fills.update(Q=key_tiles * p.seq_len_q * row_bytes, K=row_tiles * p.seq_len_k * row_bytes)
    qk.stores.update(S=all_scores)
    qk.flops = 2 * padded * width
    qk.alu = (1 + p.causal + half) * padded

    softmax = Sums()
    softmax.stores.update(P=all_scores)
    row = width_of(max(1, p.seq_len_k), room)
    # Without registers a row of float32 lies in SRAM with its m and l.
    fits = None if room.registers else (room.sram_limit_bytes - 8) // 4
    if row <= 32768 and (fits is None or row <= fits):
        softmax.fills.update(S=all_scores)
        softmax.exps = p.seq_len_q * row
        # mask of the padding; maximum, minus it, sum, quotient; rounding; the maximum made finite
        softmax.alu = p.seq_len_q * (((row != p.seq_len_k) + 4 + half) * row + 1)
    else:
        chunk = min(row, 4096)
        while fits is not None and chunk > max(1, fits):
            chunk //= 2
        chunks = up(p.seq_len_k, chunk)
        softmax.fills.update(S=2 * all_scores)
        softmax.exps = p.seq_len_q * chunks * (2 * chunk + 1)
        masks = p.seq_len_k % chunk > 0
        first_pass = (masks + 3) * chunk + 5  # mask; maximum, minus it, sum; m and l as in flash
        second_pass = (2 + half) * chunk  # minus the maximum, quotient, rounding
        softmax.alu = p.seq_len_q * (chunks * (first_pass + second_pass) + 1)
    if lse:
        softmax.stores.update(LSE=4 * p.seq_len_q)
        softmax.exps += p.seq_len_q
        softmax.alu += 2 * p.seq_len_q

    pv = Sums()
    pv.fills.update(P=all_scores, V=row_tiles * p.seq_len_k * row_bytes)
    pv.stores.update(O=p.seq_len_q * row_bytes)
    pv.flops = 2 * padded * width
    pv.alu = half * row_tiles * t.block_m * width
    launches = {"qk": qk, "softmax": softmax, "pv": pv}
    if p.seq_len_k == 0:
        launches["qk"] = Sums()  # there is no tile of S, so no block
    return {name: _times(one, heads) for name, one in launches.items()}


CLOSED_FORMS = {"naive": naive, "flash": flash, "flash1": flash1}


def _times(one: Sums, heads: int) -> Sums:
    def scaled(by_tensor: Counter[str]) -> Counter[str]:
        return Counter({name: n * heads for name, n in by_tensor.items() if n})

    return Sums(scaled(one.fills), scaled(one.stores), one.flops * heads, one.exps * heads, one.alu * heads)
