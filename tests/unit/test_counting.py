"""Are small counts the ones made by hand? Thousands of random ones are in tests/laws/test_bytes.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memsim import Attention, Tile, simulate
from memsim.counting import Counts, bytes_of_class, class_of_position, count, tile_bytes
from memsim.trace import Bound, Index, LaunchTrace, Load, Loop, Store, Tensor, TileRef, Work, symbol

ZERO = Index()
ROW = Tensor("T", 1, 1, 100, 16, "float16")  # rows of exactly one sector
ODD = Tensor("T", 1, 1, 100, 20, "float16")  # rows of 40 bytes: they start 8 bytes later in a sector each


@pytest.mark.parametrize(
    "first, row_bytes, rows, width, sectors",
    [
        (0, 32, 1, 32, 1),
        (1, 32, 1, 32, 2),
        (31, 64, 1, 2, 2),
        (0, 64, 3, 32, 3),  # every second sector
        (0, 40, 4, 40, 5),  # whole rows lie one after the other
        (0, 40, 4, 8, 4),  # at 0, 40, 80, 120: sectors 0, 1, 2, 3
        (0, 8, 8, 2, 2),  # four rows a sector
        (30, 8, 2, 4, 2),  # at 30 and 38: the second row begins where the first ended
        (0, 2, 100, 2, 7),
        (0, 40, 0, 8, 0),
        (0, 40, 4, 0, 0),
        (0, 40, -1, 8, 0),
    ],
)
def test_sectors_of_a_tile(first: int, row_bytes: int, rows: int, width: int, sectors: int) -> None:
    assert tile_bytes(first, row_bytes, rows, width) == 32 * sectors


def test_the_class_of_a_position() -> None:
    tensor = Tensor("T", 2, 3, 10, 9, "float16")  # rows of 18 bytes, heads of 180
    tile = TileRef(tensor, ZERO, ZERO, ZERO, ZERO, 4, 8)
    assert class_of_position(tile, 0, 0, 0, 0) == (0, 4, 8)
    assert class_of_position(tile, 1, 2, 8, 4) == ((5 * 180 + 8 * 18 + 8) % 32, 2, 5)
    assert class_of_position(tile, 0, 0, 10, 20) == ((180 + 40) % 32, 0, 0)
    assert bytes_of_class(tile, (0, 4, 8)) == (tile_bytes(0, 18, 4, 16), 64)
    assert bytes_of_class(tile, (0, 0, 8)) == (0, 0)


def of(tensor: Tensor, **parts: Index | int) -> TileRef:
    return replace(TileRef(tensor, ZERO, ZERO, ZERO, ZERO, 10, tensor.cols), **parts)


def test_a_ragged_grid() -> None:
    """Rows 0-29, 30-59, 60-89 and 90-99 of one sector each."""
    trace = LaunchTrace("t", (("i", 4),), (Load(of(ROW, row=symbol("i") * 30, rows=30), "a"),))
    assert count(trace) == Counts(3200, 3200, tile_operations=4, fill_bytes_by_tensor=(("T", 3200),))


def test_rows_that_start_within_sectors() -> None:
    """Two rows of 40 bytes from 0, 80, …, each three sectors but where they start 16 bytes in: 16 + 80 = 96."""
    trace = LaunchTrace("t", (("i", 50),), (Store(of(ODD, row=symbol("i") * 2, rows=2), "a"),), values=("a",))
    counts = count(trace)
    assert counts.sram_store_requested_bytes == 50 * 80
    # Starts modulo 32: 0, 16, 0, 16, …; from 0: 80 bytes end in the third sector; from 16: exactly in the third.
    assert counts.sram_store_bytes == 50 * 96
    assert counts.store_bytes_by_tensor == (("T", 4800),) and counts.sram_fill_bytes == 0


def test_a_staircase_of_trips() -> None:
    """Block i makes i + 1 trips; in trip j it loads rows 10·j to 10·j + 9."""
    trips = Bound("i", lambda values: np.asarray(values + 1))
    body = (Load(of(ROW, row=symbol("j") * 10), "a"), Work("tensor", 7, "dot", "float16", ("a",)))
    trace = LaunchTrace("t", (("i", 5), ("head", 3)), (Loop("j", 0, trips, body), Work("exp", 2, "exp", "float32", ())))
    counts = count(trace)
    assert counts.sram_fill_bytes == 3 * (1 + 2 + 3 + 4 + 5) * 320
    assert (counts.flops, counts.exps, counts.alu_ops) == (3 * 15 * 7, 3 * 5 * 2, 0)
    assert counts.tile_operations == 3 * (2 * 15 + 5)


def test_a_start_above_the_stop_is_no_trip() -> None:
    start = Bound("j", lambda values: np.asarray(values * 2))
    inner = Loop("i", start, 5, (Work("alu", 1, "add", "float32", ()),))
    trace = LaunchTrace("t", (("head", 2),), (Loop("j", 0, 4, (inner,)),))
    assert count(trace).alu_ops == 2 * (5 + 3 + 1 + 0)


def test_no_trip_at_all_below_a_loop_that_has_none() -> None:
    inner = Loop("i", Bound("j", lambda values: values), 5, (Load(of(ROW, row=symbol("i")), "a"),))
    trace = LaunchTrace("t", (("head", 2),), (Loop("j", 0, 0, (inner,)), Work("alu", 3, "add", "float32", ())))
    assert count(trace) == Counts(alu_ops=6, tile_operations=2, fill_bytes_by_tensor=(("T", 0),)) or (
        count(trace) == Counts(alu_ops=6, tile_operations=2)
    )


def test_an_empty_grid_does_nothing() -> None:
    trace = LaunchTrace("t", (("i", 0), ("head", 3)), (Load(of(ROW), "a"),))
    assert count(trace) == Counts()


def test_grouped_heads_share_their_tiles_address() -> None:
    """Heads 0, 1, 2 read K/V head 0 and 3, 4, 5 read head 1, whose rows start 8 bytes into a sector."""
    tensor = Tensor("K", 1, 2, 1, 20, "float16")
    trace = LaunchTrace("t", (("head", 6),), (Load(of(tensor, head=symbol("head") // 3, rows=1), "a"),))
    assert count(trace).sram_fill_bytes == 3 * 64 + 3 * 64
    narrow = replace(tensor, cols=12)  # 24 bytes: one sector from 0, two from 24
    trace = LaunchTrace("t", (("head", 6),), (Load(of(narrow, head=symbol("head") // 3, rows=1), "a"),))
    assert count(trace).sram_fill_bytes == 3 * 32 + 3 * 64
    assert count(trace).sram_fill_requested_bytes == 6 * 24


def test_a_long_axis_of_grouped_heads() -> None:
    """Rows of 24 bytes start at 0, 24, 16, 8 in a sector and touch 1, 2, 2, 1; three query heads read each."""
    tensor = Tensor("K", 1, 64, 1, 12, "float16")
    trace = LaunchTrace("t", (("head", 192),), (Load(of(tensor, head=symbol("head") // 3, rows=1), "a"),))
    assert count(trace).sram_fill_bytes == 3 * 16 * (1 + 2 + 2 + 1) * 32


def test_a_long_axis_costs_no_more_than_a_short_one() -> None:
    """A billion blocks, by period."""
    tensor = Tensor("T", 1, 1, 2**31, 20, "float16")
    trace = LaunchTrace("t", (("i", 2**30),), (Load(of(tensor, row=symbol("i") * 2, rows=2), "a"),))
    assert count(trace).sram_fill_bytes == 2**30 * 96
    assert count(trace).sram_fill_requested_bytes == 2**30 * 80


def test_a_group_of_very_many_heads_is_counted_at_once() -> None:
    p = Attention(heads=2**30, kv_heads=2**20, seq_len_q=1, seq_len_k=1, head_dim=1)
    total = simulate("flash", p, count_only=True, tile=Tile(16, 16, 4, 1)).total
    assert total.sram_fill_bytes == 3 * 32 * 2**30
