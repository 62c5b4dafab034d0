"""FlashAttention, forward: one launch; S and P never leave the SM.

A block of Q stays in SRAM while K and V stream past it; the softmax is computed online with running maximum m, sum
l and output O (Milakov & Gimelshein 2018; Dao et al. 2022), with the outer loop over rows spread over the grid
(Dao 2023). Grid: row blocks fastest, then heads, then batch.
"""

from __future__ import annotations

import math
from typing import Any

from memsim.attention import Attention
from memsim.language import LaunchSpec, Program, TileMachine
from memsim.programs.parts import (
    DESCRIPTORS,
    key_tiles_of_rows,
    needs_mask,
    tensors,
    unmasked_tiles_of_rows,
    visible,
)
from memsim.tile import Room, Tile, cdiv
from memsim.trace import Bound

# Tensor descriptors that a block makes for itself: one each for Q, K, V and O, and specialised one more (the bytes that
# an H200 counts beyond the tiles are 4 and 5 times 128 a block, read and written, on every kernel measured).
_DESCRIPTORS_MADE = {"pointer": 0, "descriptor": 4, "descriptor-ws": 5}


def build(problem: Attention, tile: Tile, room: Room, lse: bool) -> Program:
    """The flash program; LSE is stored if asked for. The tile's load path says whether tiles are loaded as boxes of
    tensor descriptors, which each block makes for itself."""
    row_blocks = cdiv(problem.seq_len_q, tile.block_m)
    made = _DESCRIPTORS_MADE[tile.load_path]
    box = made > 0
    hbm = tensors(problem, lse=lse, descriptors=made * row_blocks if box else None)
    width = room.padded_width(problem.head_dim)
    ring = room.ring(tile, problem.dtype_bytes)
    key_tiles = key_tiles_of_rows(problem, tile.block_m, tile.block_n)
    whole_tiles = unmasked_tiles_of_rows(problem, tile.block_m, tile.block_n)
    masked = needs_mask(problem, tile.block_n)

    def body(t: TileMachine, i: Any, head: Any, batch: Any) -> None:
        kv_head = head // problem.group
        row = i * tile.block_m
        if box:
            t.describe(hbm[DESCRIPTORS], (batch, head, i * made, 0), made)
        q = t.load(hbm["Q"], (batch, head, row, 0), t.buffer("Q", (tile.block_m, width), problem.dtype), box=box)
        k_ring = t.ring("K/V" if ring.shared else "K", (tile.block_n, width), problem.dtype, ring.buffers)
        v_ring = k_ring if ring.shared else t.ring("V", (tile.block_n, width), problem.dtype, ring.buffers)
        o = t.new("O", (tile.block_m, width), 0.0)
        s = t.new("S", (tile.block_m, tile.block_n), 0.0)
        m = t.new("m", (tile.block_m,), -math.inf)
        l = t.new("l", (tile.block_m,), 0.0)
        trips = t.bound(key_tiles.of_values, i) if isinstance(key_tiles, Bound) else key_tiles
        unmasked = t.bound(whole_tiles.of_values, i) if isinstance(whole_tiles, Bound) else whole_tiles
        for j in t.loop("j", 0, trips, unmasked):
            k = t.load(hbm["K"], (batch, kv_head, j * tile.block_n, 0), k_ring, box=box)
            t.dot(q, k, s, transpose_b=True)
            t.mul(s, problem.scale_value, s)
            if masked:
                t.mask(s, row, j * tile.block_n, visible(problem))
            larger = t.maximum(m, t.row_max(s))
            safe = t.finite(larger)
            lower = t.sub(m, safe)
            t.assign(larger, m)
            t.sub(s, safe, s)
            factor = t.exp(lower)
            t.exp(s, s)
            t.mul(l, factor, l)
            t.add(l, t.row_sum(s), l)
            t.mul(o, factor, o)
            v = t.load(hbm["V"], (batch, kv_head, j * tile.block_n, 0), v_ring, box=box)
            t.round(s, problem.dtype)
            t.dot(s, v, o, accumulate=True)
        t.divide_rows(o, l, o)
        t.store(hbm["O"], (batch, head, row, 0), o)
        if lse:
            t.add(t.finite(m), t.log(l), m)
            t.store(hbm["LSE"], (batch, head, row, 0), m)

    axes = (("i", row_blocks), ("head", problem.heads), ("batch", problem.batch))
    return Program("flash", hbm, (LaunchSpec("flash", axes, body, problem.useful_flops),), room)
