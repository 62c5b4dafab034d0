"""Does the recorder see what any kernel does: which tensor, which tile, how many bytes, in which order?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st
from memsim_kernels.record import AddressOnly, Recording, record
from triton.runtime.interpreter import InterpreterBuilder
from triton.tools.tensor_descriptor import TensorDescriptor

from memsim import MemsimError
from memsim.trace import Load, Store, Tensor, Work

from . import small_kernels as kernels

Seen = tuple[Any, ...]


def seen(recording: Recording, block: tuple[int, int, int] = (0, 0, 0)) -> list[Seen]:
    """A block's records in short: (direction, tensor, batch, head, row, col, rows, cols) or (pipe, amount, dtype)."""
    short: list[Seen] = []
    for one in recording.blocks[block]:
        if isinstance(one, Load | Store):
            t = one.tile
            at = (t.batch.offset, t.head.offset, t.row.offset, t.col.offset, t.rows, t.cols)
            short.append(("load" if isinstance(one, Load) else "store", t.tensor.name, *at))
        else:
            assert isinstance(one, Work)
            short.append((one.pipe, one.amount, one.dtype))
    return short


def test_vectors() -> None:
    x, y, out = torch.randn(100), torch.randn(100), torch.full((100,), 7.0)
    recording = record(kernels.add, (3,), x, y, out, 100, BLOCK=64, names={"x_ptr": "X", "out_ptr": "sum"})
    assert torch.equal(out, x + y)
    assert seen(recording) == [
        ("load", "X", 0, 0, 0, 0, 1, 64), ("load", "y_ptr", 0, 0, 0, 0, 1, 64), ("store", "sum", 0, 0, 0, 0, 1, 64),
    ]  # fmt: skip
    assert [tile[-1] for tile in seen(recording, (1, 0, 0))] == [36, 36, 36]
    # The third block has no lane in bounds.
    assert seen(recording, (2, 0, 0)) == []
    assert recording.loaded_bytes == {"X": 400, "y_ptr": 400} and recording.stored_bytes == {"sum": 400}
    assert recording.tensors["X"] == Tensor("X", 1, 1, 1, 100, "float32")
    assert recording.grid == (3, 1, 1) and recording.kernel == "add"


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    (
        ((), (), (0, 0, 0, 0)),
        ((10,), (2,), (0, 0, 0, 7)),
        ((3, 5), (5, 1), (0, 0, 1, 2)),
        ((3, 5), (1, 3), (0, 0, 2, 1)),
        ((2, 3, 5), (15, 5, 1), (0, 1, 2, 4)),
        ((2, 3, 5), (40, 12, 2), (0, 1, 0, 3)),
        ((2, 3, 4, 5), (60, 20, 5, 1), (1, 2, 3, 4)),
        ((2, 2, 3, 4, 5), (120, 60, 20, 5, 1), (3, 2, 3, 4)),
        ((2, 4, 5), (0, 5, 1), (0, 0, 3, 2)),
    ),
)
def test_an_address_is_one_element_of_a_tensor_in_any_layout(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, int, int, int]
) -> None:
    x = AddressOnly(shape, torch.float32, strides)
    # The index of the element in the tensor's own axes: leading ones are folded into the batch.
    index = np.unravel_index(wanted[0], shape[:-3]) if len(shape) > 3 else ()
    index = (*index, *wanted[-min(3, len(shape)) :]) if shape else ()
    offset = sum(int(i) * stride for i, stride in zip(index, strides, strict=True))
    recording = record(kernels.copy, (1,), x, torch.empty(1), offset, 1, BLOCK=1)
    assert seen(recording)[0] == ("load", "x_ptr", *wanted, 1, 1)
    assert recording.shared.get("x_ptr", set()) == ({"head"} if 0 in strides else set())


@given(
    rows=st.integers(1, 40), cols=st.integers(1, 40), layout=st.permutations((0, 1)), gap=st.integers(1, 3),
    before=st.integers(0, 5),
)  # fmt: skip
def test_tiles_of_matrices_in_any_layout(rows: int, cols: int, layout: list[int], gap: int, before: int) -> None:
    sizes = [(rows, cols)[axis] for axis in layout]
    x = torch.randn(sizes[0] + before, sizes[1] * gap)[before:, ::gap].permute(layout)
    out = torch.zeros(rows, cols)
    grid = (-(-rows // 16), -(-cols // 16))
    recording = record(kernels.copy_tile, grid, x, out, *x.stride(), *out.stride(), rows, cols, BLOCK=16)
    assert torch.equal(out, x)
    for (i, j, _), records in recording.blocks.items():
        tile = (0, 0, 16 * i, 16 * j, min(16, rows - 16 * i), min(16, cols - 16 * j))
        assert seen(recording, (i, j, 0)) == [("load", "x_ptr", *tile), ("store", "out_ptr", *tile)], records


def test_blocks_come_in_the_order_in_which_hardware_hands_them_out() -> None:
    x = torch.randn(40, 40)
    arguments = (x, torch.empty_like(x), 40, 1, 40, 1, 40, 40)
    everything = record(kernels.copy_tile, (3, 3), *arguments, BLOCK=16)
    assert list(everything.blocks) == [(i, j, 0) for j in range(3) for i in range(3)]
    assert [everything.number_of(block) for block in everything.blocks] == list(range(9))
    some = record(kernels.copy_tile, (3, 3), *arguments, BLOCK=16, blocks=[(2, 2), (1, 0), (0, 1), (1, 0)])
    assert list(some.blocks) == [(1, 0, 0), (0, 1, 0), (2, 2, 0)]
    assert all(everything.blocks[block] == records for block, records in some.blocks.items())


@pytest.mark.skipif(not hasattr(InterpreterBuilder, "create_make_block_ptr"), reason="removed from Triton by 3.9")
def test_block_pointers() -> None:
    a, b, c = torch.randn(20, 40), torch.randn(40, 24), torch.empty(20, 24)
    recording = record(
        kernels.matmul_through_block_pointers, (2, 2), a, b, c, 20, 24, 40, BLOCK=16, PRECISION="ieee"
    )  # fmt: skip
    assert torch.allclose(c, a @ b, atol=1e-4)
    dot = ("tensor", 2 * 16**3, "float32")
    assert seen(recording, (1, 1, 0)) == [
        ("load", "a_ptr", 0, 0, 16, 0, 4, 16), ("load", "b_ptr", 0, 0, 0, 16, 16, 8), dot,
        ("load", "a_ptr", 0, 0, 16, 16, 4, 16), ("load", "b_ptr", 0, 0, 16, 16, 16, 8), dot,
        ("load", "a_ptr", 0, 0, 16, 32, 4, 8), ("load", "b_ptr", 0, 0, 32, 16, 8, 8), dot,
        ("store", "c_ptr", 0, 0, 16, 16, 4, 8),
    ]  # fmt: skip
    assert recording.flops == 4 * 3 * 2 * 16**3


@pytest.mark.parametrize("made_on", ("host", "device"))
def test_tensor_descriptors(made_on: str) -> None:
    x, out = torch.randn(20, 40).half(), torch.zeros(20, 40).half()
    if made_on == "host":
        arguments: tuple[Any, ...] = tuple(TensorDescriptor.from_tensor(t, [16, 16]) for t in (x, out))
        names = {"x": "X", "out": "Y"}
    else:
        arguments, names = (x, out, 20, 40, 40), {"x_ptr": "X", "out_ptr": "Y"}
    kernel = getattr(kernels, f"copy_through_{made_on}_descriptors")
    recording = record(kernel, (2, 3), *arguments, BLOCK=16, names=names)
    assert torch.equal(out, x)
    assert seen(recording, (1, 2, 0)) == [("load", "X", 0, 0, 16, 32, 4, 8), ("store", "Y", 0, 0, 16, 32, 4, 8)]


def test_a_host_descriptor_without_memory() -> None:
    x, out = (TensorDescriptor.from_tensor(AddressOnly((2**20, 2**20), "bfloat16"), [16, 16]) for _ in range(2))
    recording = record(kernels.copy_through_host_descriptors, (2**16, 2**16), x, out, BLOCK=16, blocks=[(65535, 65535)])
    assert seen(recording, (65535, 65535, 0))[0] == ("load", "x", 0, 0, 2**20 - 16, 2**20 - 16, 16, 16)


def test_gathers_are_as_many_tiles_as_they_touch() -> None:
    x, out = torch.randn(50), torch.zeros(8)
    at = torch.tensor([30, 7, 8, 9, 30, 31, 2], dtype=torch.int64)
    recording = record(kernels.gather, (1,), x, at, out, 7, BLOCK=8)
    assert torch.equal(out[:7], x[at])
    assert seen(recording) == [
        ("load", "at_ptr", 0, 0, 0, 0, 1, 7),
        # An element asked for twice counts once.
        ("load", "x_ptr", 0, 0, 0, 2, 1, 1), ("load", "x_ptr", 0, 0, 0, 7, 1, 3), ("load", "x_ptr", 0, 0, 0, 30, 1, 2),
        ("store", "out_ptr", 0, 0, 0, 0, 1, 7),
    ]  # fmt: skip
    assert recording.loaded_bytes == {"at_ptr": 56, "x_ptr": 24}


def test_rows_gathered_through_a_descriptor_are_one_access() -> None:
    x, out, at = torch.randn(50, 16), torch.zeros(8, 16), torch.tensor([4, 5, 6, 9, 9, 0, 1, 40], dtype=torch.int32)
    recording = record(kernels.gather_rows_through_descriptor, (1,), x, at, out, 50, 16, BLOCK=8, COLS=16)
    assert torch.equal(out, x[at.long()])
    assert seen(recording)[1:-1] == [
        ("load", "x_ptr", 0, 0, row, 0, rows, 16) for row, rows in ((0, 2), (4, 3), (9, 1), (40, 1))
    ]


def test_scatters() -> None:
    x, out, at = torch.randn(4), torch.zeros(3, 10), torch.tensor([25, 3, 4, 12])
    recording = record(kernels.scatter, (1,), x, at, out, BLOCK=4)
    assert torch.equal(out.flatten()[at], x)
    assert seen(recording)[2:] == [
        ("store", "out_ptr", 0, 0, *tile) for tile in ((0, 3, 1, 2), (1, 2, 1, 1), (2, 5, 1, 1))
    ]


def test_every_second_column_and_a_triangle() -> None:
    x = torch.randn(4, 8)
    recording = record(kernels.copy, (1,), x, torch.empty(16), 0, 2, BLOCK=16)
    assert seen(recording)[:4] == [("load", "x_ptr", 0, 0, 0, col, 4, 1) for col in (0, 2, 4, 6)]
    at = torch.tensor([0, 8, 9, 16, 17, 18, 24, 25])
    recording = record(kernels.gather, (1,), x, at, torch.empty(8), 8, BLOCK=8)
    tiles = [tile[4:] for tile in seen(recording) if tile[1] == "x_ptr"]
    assert tiles == [(0, 0, 1, 1), (1, 0, 1, 2), (2, 0, 1, 3), (3, 0, 1, 2)]


def test_atomics_are_a_load_and_a_store_of_the_same_tile() -> None:
    sums, largest, whole = torch.zeros(4), torch.zeros(16), torch.zeros(16, dtype=torch.int32)
    x = torch.tensor([1.0, -2.0] * 8)
    recording = record(kernels.atomics, (1,), sums, largest, whole, x, 11, BLOCK=16)
    assert sums.tolist() == [3.0, -6.0, 3.0, -4.0]
    assert largest.tolist() == [1.0, 0.0] * 5 + [1.0] + [0.0] * 5
    assert whole.tolist() == [*range(11), 0, 0, 0, 0, 0]
    assert seen(recording)[1:] == [
        (direction, name, 0, 0, 0, 0, 1, n)
        # A float's maximum is two atomics, of disjoint lanes.
        for name, n in (("add_ptr", 4), ("max_ptr", 11), ("int_max_ptr", 11)) for direction in ("load", "store")
    ]  # fmt: skip


def test_compare_and_swap() -> None:
    lock, out = torch.tensor([0, 3], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    recording = record(kernels.compare_and_swap, (2,), lock, out)
    assert lock.tolist() == [7, 3] and out.tolist() == [3]
    assert seen(recording, (1, 0, 0)) == [
        ("load", "lock_ptr", 0, 0, 0, 1, 1, 1), ("store", "lock_ptr", 0, 0, 0, 1, 1, 1),
        ("store", "out_ptr", 0, 0, 0, 0, 1, 1),
    ]  # fmt: skip
    record(kernels.compare_and_swap, (1,), AddressOnly((2,), "int32"), out)
    assert out.tolist() == [0]


def test_loops_helpers_exponentials_and_logarithms() -> None:
    x, out = torch.rand(70), torch.zeros(64)
    recording = record(kernels.control_flow, (1,), x, out, 70, BLOCK=32, PARTS=2)
    works = [("exp", 32, "float32")] * 2
    assert seen(recording) == [
        *(("load", "x_ptr", 0, 0, 0, col, 1, cols) for col, cols in ((0, 32), (32, 32), (64, 6))),
        *works, ("store", "out_ptr", 0, 0, 0, 0, 1, 32), *works, ("store", "out_ptr", 0, 0, 0, 32, 1, 32),
    ]  # fmt: skip
    assert recording.exps == 128 and recording.flops == 0


def test_tensors_that_share_memory_stay_apart() -> None:
    both = torch.randn(2, 8)
    recording = record(kernels.add, (1,), both[1], both[1], both[0], 8, BLOCK=8)
    assert torch.equal(both[0], 2 * both[1])
    assert [tile[1] for tile in seen(recording)] == ["x_ptr", "y_ptr", "out_ptr"]


def test_one_access_to_two_tensors() -> None:
    a, b, out = torch.randn(16), torch.randn(16), torch.zeros(16)
    recording = record(kernels.either, (1,), a, b, out, BLOCK=16)
    assert torch.equal(out, torch.cat((a[:8], b[8:])))
    assert seen(recording)[:2] == [("load", "a_ptr", 0, 0, 0, 0, 1, 8), ("load", "b_ptr", 0, 0, 0, 8, 1, 8)]
    record(kernels.either, (1,), AddressOnly((16,), "float32"), b, out, BLOCK=16)
    assert torch.equal(out, torch.cat((torch.zeros(8), b[8:])))


def test_tensors_in_a_tuple() -> None:
    x, out = torch.randn(8), torch.zeros(8)
    recording = record(kernels.of_tuple, (1,), (x, out), BLOCK=8, names={"tensors[0]": "X"})
    assert torch.equal(out, x) and [tile[1] for tile in seen(recording)] == ["X", "tensors[1]"]


def test_casts_of_pointers() -> None:
    x, out = torch.arange(16, dtype=torch.int16), torch.zeros(64, dtype=torch.uint8)
    recording = record(kernels.as_bytes, (1,), x, out, BLOCK=8)
    assert [tile[1:] for tile in seen(recording)] == [
        # Eight bytes of four elements; eight pairs of two, one of them twice as wide as four bytes of `out`.
        ("x_ptr", 0, 0, 0, 0, 1, 4), ("out_ptr", 0, 0, 0, 0, 1, 8),
        ("x_ptr", 0, 0, 0, 0, 1, 16), ("out_ptr", 0, 0, 0, 0, 1, 32),
    ]  # fmt: skip
    assert torch.equal(out[:32].view(torch.int16), x)


@pytest.mark.parametrize(
    ("dtype", "precision", "multiplied"),
    (
        (torch.float32, "ieee", "float32"), (torch.float32, "tf32", "tf32"), (torch.float32, "tf32x3", "tf32"),
        (torch.float16, "tf32", "float16"), (torch.bfloat16, "ieee", "bfloat16"),
    ),
)  # fmt: skip
def test_products_name_what_is_multiplied(dtype: torch.dtype, precision: str, multiplied: str) -> None:
    a, c = torch.zeros(16, 16, dtype=dtype), torch.zeros(16, 16)
    recording = record(kernels.product, (1,), a, a.clone(), c, BLOCK=16, PRECISION=precision)
    assert seen(recording)[2] == ("tensor", 2 * 16**3, multiplied)


@pytest.mark.skipif(not hasattr(InterpreterBuilder, "create_dot_scaled"), reason="not interpreted by Triton 3.6")
def test_products_of_scaled_operands() -> None:
    # Pairs of 4-bit elements, a scale for 32 of them.
    a, b = torch.zeros(16, 32, dtype=torch.uint8), torch.zeros(32, 16, dtype=torch.uint8)
    scale = torch.full((16, 2), 127, dtype=torch.uint8)
    recording = record(kernels.scaled_product, (1,), a, scale, b, scale.clone(), torch.empty(16, 16), BLOCK=16, K=64)
    assert seen(recording)[4] == ("tensor", 2 * 16 * 16 * 64, "float4_e2m1")
    assert recording.loaded_bytes == {"a_ptr": 512, "b_ptr": 512, "a_scale_ptr": 32, "b_scale_ptr": 32}


@pytest.mark.parametrize(
    ("dtype", "held"),
    (
        (torch.float32, torch.nan), (torch.float16, torch.nan), (torch.bfloat16, torch.nan),
        (torch.int32, -(2**31)), (torch.uint8, 255),
    ),
)  # fmt: skip
def test_masked_lanes_hold_what_would_show(dtype: torch.dtype, held: float) -> None:
    out = torch.zeros(16)
    record(kernels.load_some, (1,), torch.ones(8, dtype=dtype), out, 5, BLOCK=16)
    assert out[:5].tolist() == [1.0] * 5
    garbage = out[5:]
    assert garbage.isnan().all() if math.isnan(held) else (garbage == held).all()


def test_tensors_without_memory() -> None:
    out = torch.full((100,), 7.0)
    recording = record(kernels.add, (2,), AddressOnly((2**40,), "float32"), torch.ones(100), out, 100, BLOCK=64)
    assert out.tolist() == [1.0] * 100
    assert recording.tensors["x_ptr"].total_bytes == 2**42
    meta = torch.empty(2**40, device="meta")
    recording = record(kernels.add, (2,), meta, torch.ones(100), meta, 100, BLOCK=64)
    assert recording.stored_bytes == {"out_ptr": 400}


def test_decorated_kernels() -> None:
    doubled = triton.heuristics({"BLOCK": lambda given: 2 * given["n"]})(kernels.add)
    x = torch.randn(8)
    recording = record(doubled, lambda given: (given["BLOCK"] // 16,), x, x, torch.empty(8), 8)
    assert recording.grid == (1, 1, 1) and seen(recording)[0] == ("load", "x_ptr", 0, 0, 0, 0, 1, 8)


def test_given_logical_tensors_are_used_as_they_are() -> None:
    wanted = Tensor("sums", 2, 3, 4, 1, "float32", 5120)
    out = torch.zeros(2, 3, 4)
    recording = record(
        kernels.copy, (1,), torch.ones(24), out, 0, 1, BLOCK=16, names={"out_ptr": "sums"}, tensors={"sums": wanted}
    )
    assert recording.tensors["sums"] is wanted
    assert recording.tensors["x_ptr"].address >= wanted.address + wanted.total_bytes
    assert [tile[2:] for tile in seen(recording)[1:]] == [(0, head, 0, 0, 4, 1) for head in range(3)] + [
        (1, 0, 0, 0, 4, 1)
    ]
    with pytest.raises(MemsimError, match="must be the same but for axes of size 1"):
        record(kernels.copy, (1,), torch.ones(24), out.flatten(), 0, 1, BLOCK=16, tensors={"out_ptr": wanted})
