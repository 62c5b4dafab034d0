"""FlashAttention as its 2022 paper's Algorithm 1: one block per head, the outer loop over K and V.

Each tile of K and V is fetched once and every block of Q streams past it; the running O, m and l of that block are
re-read, rescaled and re-written each time (Dao et al. 2022, Algorithm 1 and Theorem 2). O is kept normalised and in
the input dtype, m and l in float32. Their initial values are written first, and counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.language import LaunchSpec, Program, TileMachine
from memsim.programs.parts import needs_mask, tensors, visible
from memsim.tile import LARGEST_BLOCK, Room, Tile, cdiv
from memsim.trace import Ints


def paper_tile(problem: Attention, sram_bytes: int) -> Tile:
    """The paper's choice: block_n = ⌈M/4d⌉ and block_m = min(block_n, d), with M the elements one SRAM holds."""
    elements = sram_bytes // problem.dtype_bytes
    block_n = min(max(1, cdiv(elements, 4 * problem.head_dim)), LARGEST_BLOCK)
    return Tile(block_m=min(block_n, problem.head_dim), block_n=block_n, num_warps=8, num_stages=1)


def build(problem: Attention, tile: Tile, room: Room, lse: bool) -> Program:
    """The flash1 program."""
    if lse:
        raise MemsimError("flash1 stores m and l, from which the LSE follows; leave --lse out.")
    hbm = tensors(problem, sums=True)
    width = room.padded_width(problem.head_dim)
    row_blocks, key_blocks = cdiv(problem.seq_len_q, tile.block_m), cdiv(problem.seq_len_k, tile.block_n)
    masked = needs_mask(problem, tile.block_n)

    def first_row_block(j: Ints) -> Ints:
        # The first row that sees key j·block_n.
        row = j * tile.block_n - (problem.seq_len_k - problem.seq_len_q)
        return np.asarray(np.minimum(np.maximum(row, 0) // tile.block_m, row_blocks), dtype=np.int64)

    def body(t: TileMachine, head: Any, batch: Any) -> None:
        k_buffer = t.buffer("K", (tile.block_n, width), problem.dtype)
        v_buffer = t.buffer("V", (tile.block_n, width), problem.dtype)
        q_buffer = t.buffer("Q", (tile.block_m, width), problem.dtype)
        o = t.new("O", (tile.block_m, width), 0.0)
        s = t.new("S", (tile.block_m, tile.block_n), 0.0)
        m = t.new("m", (tile.block_m,), -math.inf)
        l = t.new("l", (tile.block_m,), 0.0)
        t.fill(o, 0.0)
        for i in t.loop("i0", 0, row_blocks):
            at = (batch, head, i * tile.block_m, 0)
            t.store(hbm["O"], at, o)
            t.store(hbm["m"], at, m)
            t.store(hbm["l"], at, l)
        for j in t.loop("j", 0, key_blocks):
            key = (batch, head // problem.group, j * tile.block_n, 0)
            k = t.load(hbm["K"], key, k_buffer)
            v = t.load(hbm["V"], key, v_buffer)
            for i in t.loop("i", t.bound(first_row_block, j) if problem.causal else 0, row_blocks):
                at = (batch, head, i * tile.block_m, 0)
                q = t.load(hbm["Q"], at, q_buffer)
                t.load(hbm["O"], at, o)
                t.load(hbm["m"], at, m)
                t.load(hbm["l"], at, l)
                t.dot(q, k, s, transpose_b=True)
                t.mul(s, problem.scale_value, s)
                if masked:
                    t.mask(s, i * tile.block_m, j * tile.block_n, visible(problem))
                larger = t.maximum(m, t.row_max(s))
                safe = t.finite(larger)
                lower = t.sub(m, safe)
                t.assign(larger, m)
                t.sub(s, safe, s)
                factor = t.exp(lower)
                t.exp(s, s)
                t.mul(l, factor, l)
                t.mul(o, l, o)
                t.add(l, t.row_sum(s), l)
                t.round(s, problem.dtype)
                t.dot(s, v, o, accumulate=True)
                t.divide_rows(o, l, o)
                t.store(hbm["O"], at, o)
                t.store(hbm["m"], at, m)
                t.store(hbm["l"], at, l)

    axes = (("head", problem.heads), ("batch", problem.batch))
    return Program("flash1", hbm, (LaunchSpec("flash1", axes, body, problem.useful_flops),), room)
