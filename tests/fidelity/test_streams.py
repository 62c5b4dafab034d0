"""Do the shipped streams belong to the shipped table's kernels, and do they do what such kernels do?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from memsim import stream as s
from memsim._compiled import KEY_COLUMNS
from memsim._stream_table import shipped_streams
from memsim.stream import Segment, Stream

from .test_compiled_table import ROWS, Row

SM_90 = [row for row in ROWS if row.architecture == "sm_90"]


def key(row: Row) -> tuple[str, ...]:
    return tuple(row.texts[name] for name in KEY_COLUMNS)


def of(row: Row) -> Stream:
    found = shipped_streams().get(key(row))
    assert found is not None, row.texts
    return found


def number(segments: Sequence[Segment], *kinds: int) -> int:
    return sum(i[0] in kinds for segment in segments for i in segment.instructions)


def total(segments: Sequence[Segment], kind: int) -> int:
    """The sum of the arguments of a kind."""
    return sum(i[1] for segment in segments for i in segment.instructions if i[0] == kind)


def width(row: Row) -> int:
    return 1 << (row.problem.head_dim - 1).bit_length()


def special(row: Row) -> bool:
    return row.tile.load_path == "descriptor-ws"


def flash() -> list[Row]:
    """Flash in 16 bits."""
    return [row for row in SM_90 if row.kernel == "flash" and row.problem.dtype_bytes == 2]


def test_each_kernel_of_sm_90_has_a_stream_and_no_other_has() -> None:
    assert len(SM_90) > 700
    assert set(shipped_streams().numbers) == {key(row) for row in SM_90}


def test_a_stream_is_of_the_kernel_that_the_table_says() -> None:
    """As many loops; in the main one as many instructions, products and exponentials; spills where there is a stack.

    Left out of a stream are waits that try again, behind the kernel's end, with spills that they need, and what fills
    the code up there.
    Planted: the stream of the kernel before it.
    """

    def main(row: Row, segment: Segment) -> bool:
        left_out = sum(row.number(name) for name in row.texts if name.startswith("main_")) - len(segment.instructions)
        return (
            0 <= left_out <= (0 if segment.loop and row.tile.load_path == "pointer" else 16)
            and number([segment], s.PRODUCT, s.MMA) == row.number("main_tensor")
            and number([segment], s.EXP) >= row.number("main_exp")
            and 0 <= row.number("main_local_memory") - number([segment], s.SPILL_LOAD, s.SPILL_STORE) <= left_out
        )

    def fits(row: Row, stream: Stream) -> bool:
        return (
            len(stream.loops) == (1 if special(row) else row.number("loops"))
            and any(main(row, segment) for segment in stream.loops or stream.segments)
            and (number(stream.segments, s.SPILL_LOAD, s.SPILL_STORE) == 0 or row.number("stack_bytes") > 0)
        )

    assert [row.texts for row in SM_90 if not fits(row, of(row))] == []
    wrong = [fits(row, of(before)) for before, row in pairwise(SM_90) if of(before) != of(row)]
    assert len(wrong) > len(SM_90) / 2 and sum(wrong) < len(wrong) / 10


def test_a_trip_multiplies_a_tile() -> None:
    """Both products: 2 · block_m · block_n · head_dim multiply-adds in each loop, whichever unit does them.

    Where S has fewer parts than there are warps or warp groups (16×16 for four warps, 64 rows for eight) each part of
    it is made twice.
    """
    for row in flash():
        for loop in of(row).loops:
            pairs = row.tile.block_m * row.tile.block_n * width(row)
            groups = 2 if special(row) else row.tile.num_warps // 4
            if row.warp_groups:
                twice = row.tile.block_m < 64 * groups
                done = total([loop], s.PRODUCT) * 8 * 64 * 16 * groups
            else:
                twice = row.tile.block_m == row.tile.block_n == 16
                done = number([loop], s.MMA) * 16 * 8 * 16 * row.tile.num_warps
            assert done == (3 if twice else 2) * pairs, row.texts


def test_a_trip_copies_a_tile_of_k_and_of_v() -> None:
    """Through pointers as many bytes, where there is more than one stage; by descriptor two boxes, each waited for."""
    for row in flash():
        loops = of(row).loops
        if row.tile.load_path != "pointer":
            assert {(loop.copies, number([loop], s.BOX_WAIT)) for loop in loops} == {(2, 2)}, row.texts
        elif row.tile.num_stages > 1 and row.warp_groups:
            for loop in loops:
                copied = total([loop], s.COPY) * 4 * 32 * row.tile.num_warps
                assert copied == 2 * row.tile.block_n * width(row) * 2, row.texts


def test_o_is_stored_once() -> None:
    for row in flash():
        segments = of(row).segments
        if row.tile.load_path == "pointer":
            stored = total(segments, s.STORE) * 4 * 32 * row.tile.num_warps
            lse = 4 * row.tile.block_m if row.lse else 0
            assert stored >= row.tile.block_m * width(row) * 2, row.texts
            assert row.lse or stored == row.tile.block_m * width(row) * 2 + lse, row.texts
        else:
            assert number(segments, s.BOX_STORE) == 1, row.texts


@pytest.mark.parametrize("kind", [s.BOX_COPY, s.BOX_WAIT])
def test_boxes_before_the_loop(kind: int) -> None:
    """Q, and K and V of the tiles that are fetched ahead: each buffer where warps are specialised, else all but one."""
    for row in flash():
        if row.tile.load_path == "pointer":
            continue
        ahead = row.tile.num_stages if special(row) else row.tile.num_stages - 1
        found = number(of(row).segments[:1], kind)
        assert found == (1 + 2 * ahead if kind == s.BOX_COPY else 1), row.texts
