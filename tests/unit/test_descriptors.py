"""What tensor descriptors move: whole boxes, and themselves."""

from __future__ import annotations

import pytest

from memsim import Attention, MemsimError, Tile, simulate
from memsim.result import Launch


def flash(problem: Attention, tile: Tile, *, lse: bool = False) -> Launch:
    return simulate("flash", problem, tile=tile, lse=lse, count_only=True).launch("flash")


def test_a_ragged_problem_as_an_h200_counted_it() -> None:
    """4 heads of 300 × 410 (2 of K and V), d = 128, 64×64: fills that ncu counted, full and causal."""
    for causal, counted in ((False, 4_925_440), (True, 3_614_720)):
        p = Attention(heads=4, kv_heads=2, seq_len_q=300, seq_len_k=410, head_dim=128, causal=causal)
        assert flash(p, Tile(64, 64, 4, 3, "descriptor"), lse=True).sram_fill_bytes == counted
    p = Attention(heads=4, kv_heads=2, seq_len_q=300, seq_len_k=410, head_dim=128)
    specialised = flash(p, Tile(128, 128, 4, 2, "descriptor-ws"))
    assert (specialised.sram_fill_bytes, specialised.sram_store_bytes) == (3_546_624, 314_880)


def test_zeros_are_what_lies_beyond_the_tensors() -> None:
    """One head of 10 × 20 in tiles of 16 × 16, 24 of 32 columns: each box is 16 rows of 64 bytes."""
    p = Attention(heads=1, seq_len_q=10, seq_len_k=20, head_dim=24)
    launch = flash(p, Tile(16, 16, 4, 2, "descriptor"))
    boxes, rows = 1 + 2 * 2, 10 + 2 * 20
    assert launch.sram_fill_bytes == boxes * 16 * 64 + 4 * 128
    assert launch.sram_zero_fill_bytes == boxes * 16 * 64 - rows * 48
    assert launch.sram_fill_requested_bytes == rows * 48 + 4 * 128
    assert launch.hbm_read_bytes == launch.sram_fill_bytes - launch.sram_zero_fill_bytes
    assert launch.sram_store_bytes == 10 * 64 - 10 * 16 + 4 * 128


@pytest.mark.parametrize(("path", "descriptors"), [("descriptor", 4), ("descriptor-ws", 5)])
def test_where_nothing_is_ragged_only_the_descriptors_are_added(path: str, descriptors: int) -> None:
    p = Attention(heads=3, seq_len_q=256, seq_len_k=512, head_dim=64)
    tile = Tile(64, 64, 4, 2)
    plain, boxed = flash(p, tile), flash(p, Tile(64, 64, 4, 2, path))
    added = 3 * 4 * descriptors * 128
    assert boxed.sram_zero_fill_bytes == 0
    assert boxed.sram_fill_bytes - plain.sram_fill_bytes == added == boxed.sram_store_bytes - plain.sram_store_bytes
    assert simulate("flash", p, tile=Tile(64, 64, 4, 2, path)).total.time_s is not None


@pytest.mark.parametrize(("rows", "keys"), [(0, 0), (0, 64), (64, 0), (1, 1)])
def test_lengths_of_nothing(rows: int, keys: int) -> None:
    p = Attention(heads=2, seq_len_q=rows, seq_len_k=keys, head_dim=64)
    launch = flash(p, Tile(64, 64, 4, 2, "descriptor"))
    boxes = 2 * (rows > 0) * (1 + 2 * (keys > 0))
    assert launch.sram_fill_bytes == boxes * 64 * 128 + 2 * (rows > 0) * 512
    assert launch.hbm_read_bytes == 2 * (rows > 0) * (rows + 2 * keys) * 128 + 2 * (rows > 0) * 512


def test_what_descriptors_cannot_load_is_refused() -> None:
    tile = Tile(64, 64, 4, 2, "descriptor")
    for problem, gpu in (
        (Attention(head_dim=20), "h200"),
        (Attention(dtype="float32"), "h200"),
        (Attention(), "a100-80gb"),
    ):
        with pytest.raises(MemsimError, match="take pointer"):
            simulate("flash", problem, gpu=gpu, tile=tile, count_only=True)
