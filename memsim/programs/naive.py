"""Standard attention in three launches: S and P go to HBM and come back.

`qk`: one block per tile of S, grid key tiles fastest, then row tiles, heads, batch. `softmax`: one block per row,
the whole row at once up to `WHOLE_ROW_COLUMNS`, in two passes (S read twice) beyond that or where a machine
without registers has no room for a row. `pv`: one block per block_m rows of O, streaming P and V in block_n steps.
Causal computes S whole and masks it. S and P are stored in the input dtype.
"""

from __future__ import annotations

import math
from typing import Any

from memsim.attention import Attention
from memsim.language import LaunchSpec, Program, TileMachine
from memsim.programs.parts import tensors, visible
from memsim.tile import Room, Tile, cdiv

WHOLE_ROW_COLUMNS = 32_768
CHUNK_COLUMNS = 4_096


def build(problem: Attention, tile: Tile, room: Room, lse: bool, whole_row_columns: int = WHOLE_ROW_COLUMNS) -> Program:
    """The naive program; `softmax` stores the LSE if asked for."""
    hbm = tensors(problem, scores=True, lse=lse)
    width = room.padded_width(problem.head_dim)
    ring = room.ring(tile, problem.dtype_bytes)
    # Triton copies a row of P asynchronously only if it knows its stride to be a multiple of 16 elements; otherwise
    # P passes through registers into a single buffer (seen in the SRAM of compiled kernels at N = 1000).
    p_buffers = 1 if room.mma_tiles and problem.seq_len_k % 16 else ring.buffers
    row_tiles, key_tiles = cdiv(problem.seq_len_q, tile.block_m), cdiv(problem.seq_len_k, tile.block_n)

    def qk(t: TileMachine, j: Any, i: Any, head: Any, batch: Any) -> None:
        row, key = i * tile.block_m, j * tile.block_n
        q = t.load(hbm["Q"], (batch, head, row, 0), t.buffer("Q", (tile.block_m, width), problem.dtype))
        k = t.load(
            hbm["K"], (batch, head // problem.group, key, 0), t.buffer("K", (tile.block_n, width), problem.dtype)
        )
        s = t.new("S", (tile.block_m, tile.block_n), 0.0)
        t.dot(q, k, s, transpose_b=True)
        t.mul(s, problem.scale_value, s)
        if problem.causal:
            t.mask(s, row, key, visible(problem))
        t.store(hbm["S"], (batch, head, row, key), s)

    def pv(t: TileMachine, i: Any, head: Any, batch: Any) -> None:
        row = i * tile.block_m
        # P and V differ in shape, so they never take turns in one buffer.
        p_ring = t.ring("P", (tile.block_m, tile.block_n), problem.dtype, p_buffers)
        v_ring = t.ring("V", (tile.block_n, width), problem.dtype, ring.buffers)
        o = t.new("O", (tile.block_m, width), 0.0)
        for j in t.loop("j", 0, key_tiles):
            p = t.load(hbm["P"], (batch, head, row, j * tile.block_n), p_ring)
            v = t.load(hbm["V"], (batch, head // problem.group, j * tile.block_n, 0), v_ring)
            t.dot(p, v, o, accumulate=True)
        t.store(hbm["O"], (batch, head, row, 0), o)

    heads = (("head", problem.heads), ("batch", problem.batch))
    launches = (
        LaunchSpec("qk", (("j", key_tiles), ("i", row_tiles), *heads), qk, problem.useful_flops // 2),
        LaunchSpec(
            "softmax", (("r", problem.seq_len_q), *heads), _softmax(problem, hbm, room, lse, whole_row_columns),
            useful_flops=0,
        ),
        LaunchSpec("pv", (("i", row_tiles), *heads), pv, problem.useful_flops // 2),
    )  # fmt: skip
    return Program("naive", hbm, launches, room)


def _softmax(problem: Attention, hbm: dict[str, Any], room: Room, lse: bool, whole_row_columns: int) -> Any:
    # A row of float32 beside its m and l is what a machine without registers holds in SRAM.
    fits = math.inf if room.registers else (room.sram_limit_bytes - 8) // 4
    whole = room.padded_width(max(1, problem.seq_len_k))
    rule = visible(problem)

    def whole_row(t: TileMachine, r: Any, head: Any, batch: Any) -> None:
        s, m, l = t.new("S", (1, whole), 0.0), t.new("m", (1,), -math.inf), t.new("l", (1,), 0.0)
        t.load(hbm["S"], (batch, head, r, 0), s)
        if whole != problem.seq_len_k:
            t.mask(s, r, 0, rule)
        t.assign(t.row_max(s), m)
        safe = t.finite(m)
        t.sub(s, safe, s)
        t.exp(s, s)
        t.assign(t.row_sum(s), l)
        t.divide_rows(s, l, s)
        t.store(hbm["P"], (batch, head, r, 0), s)
        finish(t, r, head, batch, m, l)

    chunk = min(CHUNK_COLUMNS, whole)
    while chunk > 1 and chunk > fits:
        chunk //= 2

    def two_passes(t: TileMachine, r: Any, head: Any, batch: Any) -> None:
        s, m, l = t.new("S", (1, chunk), 0.0), t.new("m", (1,), -math.inf), t.new("l", (1,), 0.0)
        chunks = cdiv(problem.seq_len_k, chunk)
        for c in t.loop("c", 0, chunks):
            t.load(hbm["S"], (batch, head, r, c * chunk), s)
            if problem.seq_len_k % chunk:
                t.mask(s, r, c * chunk, rule)
            larger = t.maximum(m, t.row_max(s))
            safe = t.finite(larger)
            lower = t.sub(m, safe)
            t.assign(larger, m)
            t.sub(s, safe, s)
            factor = t.exp(lower)
            t.exp(s, s)
            t.mul(l, factor, l)
            t.add(l, t.row_sum(s), l)
        safe = t.finite(m)
        for c in t.loop("c2", 0, chunks):
            t.load(hbm["S"], (batch, head, r, c * chunk), s)
            t.sub(s, safe, s)
            t.exp(s, s)
            t.divide_rows(s, l, s)
            t.store(hbm["P"], (batch, head, r, c * chunk), s)
        finish(t, r, head, batch, m, l)

    def finish(t: TileMachine, r: Any, head: Any, batch: Any, m: Any, l: Any) -> None:
        if lse:
            t.add(t.finite(m), t.log(l), m)
            t.store(hbm["LSE"], (batch, head, r, 0), m)

    return whole_row if whole <= min(whole_row_columns, fits) else two_passes
