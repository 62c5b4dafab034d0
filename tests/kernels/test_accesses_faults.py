"""Does the comparison of accesses catch a kernel that does something else than the trace says?

Each fault is planted in the source of a real kernel, and the sentence must name what was done where.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from memsim_kernels import _flash_kernels, _naive_kernels
from memsim_kernels.accesses import difference_from_program

from memsim import Attention, MemsimError, Tile

from .edited import edited
from .launches import Made, make

K_LOAD = "        k = tl.load(k_tile + at * k_row, mask=k_ok, other=0.0)\n"
V_LOAD = "        v = tl.load(v_tile + at * v_row, mask=v_ok, other=0.0)\n"
V_PLACE = "        # Columns of P beyond the last key are 0, and 0 times whatever lies there need not be.\n"
O_STORE = """    tl.store(
        o_ptr + batch * o_batch + head * o_head + row_start * o_row + (m_in[:, None] * o_row + d_in[None, :] * o_col),
        o.to(o_ptr.dtype.element_ty), mask=row_ok[:, None] & d_ok[None, :],
    )
"""
PROBLEM = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=40, seq_len_k=56, head_dim=24)


def with_kernel(made: Made, module: ModuleType, kernel: str) -> Made:
    """The launches with the copy of one kernel in its place."""
    calls = tuple(
        replace(call, kernel=getattr(module, kernel)) if call.kernel.__name__ == kernel else call for call in made.calls
    )
    assert calls != made.calls
    return replace(made, calls=calls)


def first_heads(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(0, 0, 0), (0, 2, 0)]


def flash_difference(folder: Path, *edits: tuple[str, str], allow_tf32: bool = False, dtype: str = "float16") -> str:
    made = make("flash", replace(PROBLEM, dtype=dtype), Tile(16, 32), lse=True, allow_tf32=allow_tf32)
    if edits:
        made = with_kernel(made, edited(_flash_kernels, folder, *edits), "flash_pointer_kernel")
    return str(difference_from_program(made.program, made.calls, choose=first_heads))


def test_an_unchanged_copy_agrees(tmp_path: Path) -> None:
    assert flash_difference(tmp_path, (K_LOAD, K_LOAD)) == "None"


def test_a_tile_of_k_loaded_twice(tmp_path: Path) -> None:
    assert flash_difference(tmp_path, (K_LOAD, 2 * K_LOAD)) == (
        "flash, block (0, 0, 0) (i 0, head 0, batch 0), step 3: the trace multiplies float16 matrices (32768 FLOPs), "
        "the kernel loads K[batch 0, head 0, rows 0–31, cols 0–23] (1536 B)."
    )


def test_o_stored_twice(tmp_path: Path) -> None:
    said = flash_difference(tmp_path, (O_STORE, 2 * O_STORE))
    assert "step 11: the trace stores LSE[" in said and "the kernel stores O[" in said


def test_a_missing_store(tmp_path: Path) -> None:
    said = flash_difference(tmp_path, ("    if STORE_LSE:\n", "    if False:\n"))
    assert "the trace stores LSE[batch 0, head 0, rows 0–15, cols 0–0] (64 B), the kernel has ended." in said


def test_another_order_of_k_and_v(tmp_path: Path) -> None:
    said = flash_difference(tmp_path, (V_PLACE + V_LOAD, ""), (K_LOAD, V_LOAD + K_LOAD))
    assert "step 2: the trace loads K[" in said and "the kernel loads V[" in said


def test_a_wrong_width_of_tiles() -> None:
    made = make("flash", PROBLEM, Tile(16, 32))
    (call,) = made.calls
    narrow = replace(call, constants=dict(call.constants) | {"BLOCK_N": 16})
    said = str(difference_from_program(made.program, (narrow,)))
    assert (
        "the trace loads K[batch 0, head 0, rows 0–31" in said
        and "the kernel loads K[batch 0, head 0, rows 0–15" in said
    )


def test_padding_that_is_read(tmp_path: Path) -> None:
    # Beyond head_dim lies the next row, in bounds but for the last.
    said = flash_difference(tmp_path, ("d_ok = d_in < HEAD_DIM", "d_ok = d_in < HEAD_DIM + 1"))
    # 16 rows of all columns, and the first element of the row after them.
    assert "step 2: the trace loads K[" in said and "the kernel loads Q[batch 0, head 0, rows 16–16, cols 0–0]" in said


def test_a_wrong_head(tmp_path: Path) -> None:
    said = flash_difference(tmp_path, ("(head // group) * v_head", "(head // (2 * group)) * v_head"))
    assert "block (0, 2, 0) (i 0, head 2, batch 0), step 4: the trace loads V[batch 0, head 1" in said
    assert "the kernel loads V[batch 0, head 0" in said


def test_tf32_in_place_of_float32(tmp_path: Path) -> None:
    said = flash_difference(tmp_path, allow_tf32=True, dtype="float32")
    assert "the trace multiplies float32 matrices (32768 FLOPs), the kernel multiplies tf32 matrices" in said
    assert flash_difference(tmp_path, allow_tf32=True) == "None"


def test_a_tile_too_many_under_the_diagonal(tmp_path: Path) -> None:
    made = make("flash", replace(PROBLEM, causal=True), Tile(16, 16))
    stop = "stop = tl.minimum(tl.maximum(last + shift, 0), seq_k)"
    copy = edited(_flash_kernels, tmp_path, (stop, "stop = seq_k"))
    said = str(difference_from_program(made.program, with_kernel(made, copy, "flash_pointer_kernel").calls))
    assert "the trace stores O[" in said and "the kernel loads K[" in said


def test_a_launch_left_out_and_another_grid() -> None:
    made = make("naive", PROBLEM, Tile(16, 32))
    said = difference_from_program(made.program, made.calls[1:])
    assert said == "naive: the program launches ['qk', 'softmax', 'pv'], the kernels ['softmax', 'pv']."
    other = make("naive", PROBLEM, Tile(16, 16))
    said = difference_from_program(made.program, other.calls)
    assert said == "qk: the trace has 48 blocks, the kernel's grid (4, 3, 8) has 96."


def test_scores_stored_transposed(tmp_path: Path) -> None:
    made = make("naive", replace(PROBLEM, seq_len_q=56), Tile(32, 32))
    copy = edited(_naive_kernels, tmp_path, ("i = tl.program_id(1)", "i = tl.program_id(0)"),
                  ("    j = tl.program_id(0)\n", "    j = tl.program_id(1)\n"))  # fmt: skip
    said = str(difference_from_program(made.program, with_kernel(made, copy, "qk_kernel").calls))
    assert (
        "qk, block (1, 0, 0) (j 1, i 0, head 0, batch 0), step 1: the trace loads Q[batch 0, head 0, rows 0–31" in said
    )


@pytest.mark.parametrize(
    ("problem", "layouts", "edit"),
    (
        (Attention(batch=4096, heads=8, seq_len_q=576, seq_len_k=16, head_dim=128), ("contiguous",) * 4,
         ("batch = tl.program_id(2).to(tl.int64)", "batch = tl.program_id(2)")),
        (Attention(heads=1, seq_len_q=300_000, seq_len_k=16, head_dim=16), ("rows 8192 apart",) * 4,
         ("row_start = (i * BLOCK_M).to(tl.int64)", "row_start = i * BLOCK_M")),
    ),
)  # fmt: skip
def test_offsets_in_32_bits(
    problem: Attention, layouts: tuple[str, ...], edit: tuple[str, str], tmp_path: Path
) -> None:
    made = make("flash", problem, Tile(64, 16), layouts=layouts, device="meta")
    faulty = with_kernel(made, edited(_flash_kernels, tmp_path, edit), "flash_pointer_kernel")
    with pytest.raises(MemsimError, match=r"touches element offset -.* 32-bit offset that wrapped .* in 64 bits"):
        difference_from_program(faulty.program, faulty.calls, choose=lambda grid: [tuple(n - 1 for n in grid)])
