"""Law 2: every input byte is read at least once and every output byte written once; and on a machine without an L2,
HBM bytes are at least the I/O lower bound of its SRAM.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memsim import Attention, Gpu, MemsimError, Tile, TileDoesNotFit, load_gpu, simulate
from memsim.bounds import compulsory_bytes, io_lower_bound_bytes
from memsim.gpu import apply_options

from .enumeration import accesses, shapes
from .problems import ALGORITHMS, HOPPER, TEXTBOOK, problems, scaled, tiles
from .reference import visible_pairs


def needed_bytes(p: Attention, lse: bool) -> int:
    """Elements of Q, K, V that some visible pair needs, and all of O, one by one."""
    pairs = visible_pairs(p)
    per_row = p.head_dim * p.dtype_bytes
    read = int(pairs.any(axis=1).sum()) * p.heads + 2 * int(pairs.any(axis=0).sum()) * p.kv_head_count
    written = p.seq_len_q * p.heads
    return p.batch * (per_row * (read + written) + (4 * written if lse else 0))


@settings(max_examples=scaled(300))
@given(problems(60), st.booleans())
def test_compulsory_bytes_are_those_of_visible_pairs(problem: Attention, lse: bool) -> None:
    assert compulsory_bytes(problem, lse=lse) == needed_bytes(problem, lse)


@settings(max_examples=scaled(80))
@given(st.sampled_from(ALGORITHMS), problems(24, (1, 8)), st.data())
def test_every_needed_input_is_read_and_every_output_written(
    algorithm: str, problem: Attention, data: st.DataObject
) -> None:
    """Row by row, not only in sum: and what is written at the end is written exactly once but by flash1."""
    tile = data.draw(tiles(TEXTBOOK, 12))
    touched: dict[str, Counter[tuple[int, int, int]]] = {name: Counter() for name in shapes(problem)}
    for access in accesses(algorithm, problem, tile, TEXTBOOK, lse=False):
        if access.kind == "store" or access.tensor in "QKV":
            for row in access.rows:
                touched[access.tensor][access.batch, access.head, row] += len(access.cols)
    pairs = visible_pairs(problem)
    rows, keys = np.flatnonzero(pairs.any(axis=1)), np.flatnonzero(pairs.any(axis=0))
    for batch in range(problem.batch):
        for head in range(problem.heads):
            assert all(touched["Q"][batch, head, row] >= problem.head_dim for row in rows)
            written = [touched["O"][batch, head, row] for row in range(problem.seq_len_q)]
            if algorithm == "flash1":
                assert all(n >= problem.head_dim for n in written)
            else:
                assert set(written) <= {problem.head_dim}
        for head in range(problem.kv_head_count):
            assert all(touched[name][batch, head, key] >= problem.head_dim for name in "KV" for key in keys)


def textbook(sram_bytes: int) -> Gpu:
    return apply_options(load_gpu("two-level"), {"sram": str(sram_bytes), "hbm-capacity": "900TB"})


@settings(max_examples=scaled(400))
@given(
    st.sampled_from(ALGORITHMS),
    problems(3000),
    tiles(TEXTBOOK, 512),
    st.integers(5, 24).map(lambda power: 2**power),
    st.booleans(),
)
@example("flash", Attention(1, 1, None, 4096, 4096, 1), Tile(200, 1, 1, 1), 4096, False)
@example("flash", Attention(1, 1, None, 9000, 9000, 4), Tile(512, 1, 1, 1), 2**14, False)
def test_bytes_are_at_least_both_bounds_without_an_l2(
    algorithm: str, problem: Attention, tile: Tile, sram_bytes: int, lse: bool
) -> None:
    lse = lse and algorithm != "flash1"
    try:
        result = simulate(algorithm, problem, gpu=textbook(sram_bytes), tile=tile, lse=lse, count_only=True)
    except TileDoesNotFit:
        return
    total = result.total
    assert total.compulsory_bytes == compulsory_bytes(problem, lse=lse)
    assert total.io_lower_bound_bytes == io_lower_bound_bytes(problem, sram_bytes)
    assert total.hbm_bytes >= max(total.compulsory_bytes, total.io_lower_bound_bytes)
    assert total.sram_fill_requested_bytes + total.sram_store_requested_bytes >= total.compulsory_bytes


@settings(max_examples=scaled(150))
@given(st.sampled_from(ALGORITHMS), problems(3000), tiles(HOPPER), st.sampled_from(("h200", "a100-40gb", "rtx-4090")))
def test_a_machine_with_registers_has_them_in_its_bound(
    algorithm: str, problem: Attention, tile: Tile, name: str
) -> None:
    gpu = load_gpu(name)
    try:
        total = simulate(algorithm, problem, gpu=gpu, tile=tile, count_only=True).total
    except MemsimError:
        return
    assert gpu.sm.registers is not None
    on_chip = gpu.sm.sram.capacity_bytes + 4 * gpu.sm.registers.per_sm
    assert total.io_lower_bound_bytes == io_lower_bound_bytes(problem, on_chip)
    assert total.hbm_bytes >= max(total.compulsory_bytes, total.io_lower_bound_bytes)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_flash_at_its_best_tile_is_within_a_constant_of_the_bound(head_dim: int) -> None:
    """So that the bound says something: for a long sequence and an SRAM of d² elements and more."""
    sram_bytes = 2 * 64 * head_dim**2
    gpu, problem = textbook(sram_bytes), Attention(1, 1, None, 65536, 65536, head_dim)
    moved = []
    for block_m in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        try:
            total = simulate("flash", problem, gpu=gpu, tile=Tile(block_m, 1, 1, 1), count_only=True).total
        except TileDoesNotFit:
            continue
        moved.append(total.hbm_bytes)
    bound = io_lower_bound_bytes(problem, sram_bytes)
    assert compulsory_bytes(problem) < bound <= min(moved) < 16 * bound


def test_the_bound_by_hand() -> None:
    """M = 1,024 elements of float16, d = 16, 2,048² pairs."""
    problem = Attention(1, 1, None, 2048, 2048, 16)
    phase = 1024**2 / 16 + math.sqrt(3) * 1024**1.5
    assert io_lower_bound_bytes(problem, 2048) == 2 * math.floor(1024 * (2048**2 * 16 / phase - 1))
    assert io_lower_bound_bytes(problem, 1) == 0  # not one element


@settings(max_examples=scaled(200))
@given(problems(3000), st.integers(4, 2**24), st.integers(4, 2**24))
def test_the_bound_falls_with_sram_and_rises_with_the_problem(problem: Attention, one: int, other: int) -> None:
    less, more = sorted((one, other))
    # It is not monotone where SRAM approaches the problem and both are far below the compulsory bytes.
    if io_lower_bound_bytes(problem, more) > compulsory_bytes(problem):
        assert io_lower_bound_bytes(problem, less) >= io_lower_bound_bytes(problem, more)
    twice = replace(problem, batch=2 * problem.batch)
    assert io_lower_bound_bytes(twice, more) >= 2 * io_lower_bound_bytes(problem, more)
