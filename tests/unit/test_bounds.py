"""Compulsory bytes and lower bounds, by hand; that they hold is law 2."""

from __future__ import annotations

import math

import pytest

from memsim import Attention, simulate
from memsim.bounds import compulsory_bytes, io_lower_bound_bytes


@pytest.mark.parametrize(
    "problem, q_rows, keys, o_rows",
    [
        (Attention(1, 1, None, 10, 20, 8), 10, 20, 10),
        (Attention(1, 1, None, 10, 20, 8, causal=True), 10, 20, 10),
        (Attention(1, 1, None, 20, 10, 8, causal=True), 10, 10, 20),  # ten rows see nothing
        (Attention(1, 1, None, 10, 0, 8), 0, 0, 10),
        (Attention(1, 1, None, 0, 10, 8), 0, 0, 0),
    ],
)
def test_compulsory_bytes(problem: Attention, q_rows: int, keys: int, o_rows: int) -> None:
    assert compulsory_bytes(problem) == 2 * 8 * (q_rows + 2 * keys + o_rows)
    assert compulsory_bytes(problem, lse=True) == compulsory_bytes(problem) + 4 * o_rows


def test_compulsory_bytes_of_grouped_heads() -> None:
    problem = Attention(3, 8, 2, 5, 7, 16, "float32")
    assert compulsory_bytes(problem) == 4 * 16 * 3 * (8 * 5 + 2 * 2 * 7 + 8 * 5)


@pytest.mark.parametrize("sram_bytes", [512, 4096, 65536])
def test_the_bound_is_its_formula(sram_bytes: int) -> None:
    """M·(W / F - 1) elements; F = M²/d + √3·M^1.5; W = visible pairs · d of all heads."""
    problem = Attention(2, 3, 1, 500, 700, 40, "float32", causal=True)
    m, work = sram_bytes // 4, 2 * 3 * problem.visible_pairs * 40
    expected = m * (work / (m**2 / 40 + math.sqrt(3) * m**1.5) - 1)
    assert io_lower_bound_bytes(problem, sram_bytes) == 4 * max(0, math.floor(expected))


def test_the_bound_of_what_sram_holds_is_nothing() -> None:
    assert io_lower_bound_bytes(Attention(1, 1, None, 16, 16, 16), 2**20) == 0
    assert io_lower_bound_bytes(Attention(1, 1, None, 16, 16, 16), 0) == 0
    assert io_lower_bound_bytes(Attention(1, 1, None, 16, 0, 16), 64) == 0


def test_a_result_has_the_ratios() -> None:
    problem = Attention(1, 4, None, 4096, 4096, 64)
    total = simulate("naive", problem, gpu="two-level", count_only=True).total
    assert total.over_compulsory == total.hbm_bytes / (4 * 4 * 4096 * 64 * 2)
    assert total.over_lower_bound == total.hbm_bytes / io_lower_bound_bytes(problem, 196608)
    assert total.arithmetic_intensity == 4 * 64 * 4096**2 * 4 / total.hbm_bytes
    nothing = simulate("flash", Attention(1, 1, None, 0, 0, 16), gpu="two-level").total
    assert (nothing.over_compulsory, nothing.over_lower_bound, nothing.arithmetic_intensity) == (None, None, None)
