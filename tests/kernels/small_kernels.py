"""Small kernels that are not attention, for the tests of the recorder."""

# Argument lists stay in groups that belong together.
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x + y, mask=at < n)


@triton.jit
def copy(x_ptr, out_ptr, first, step, BLOCK: tl.constexpr):
    """BLOCK elements of x, from `first` in steps; unmasked."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + first + at * step))


@triton.jit
def load_some(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The first n of x, and what the other lanes hold."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n).to(tl.float32))


@triton.jit
def copy_tile(x_ptr, out_ptr, x_row, x_col, out_row, out_col, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside)
    tl.store(out_ptr + row * out_row + col * out_col, x, mask=inside)


@triton.jit
def matmul_through_block_pointers(
    a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK
    j = tl.program_id(1) * BLOCK
    a_tile = tl.make_block_ptr(a_ptr, (m, k), (k, 1), (i, 0), (BLOCK, BLOCK), (1, 0))
    b_tile = tl.make_block_ptr(b_ptr, (k, n), (n, 1), (0, j), (BLOCK, BLOCK), (1, 0))
    c = tl.zeros([BLOCK, BLOCK], tl.float32)
    for _ in range(0, k, BLOCK):
        a = tl.load(a_tile, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_tile, boundary_check=(0, 1), padding_option="zero")
        c = tl.dot(a, b, c, input_precision=PRECISION)
        a_tile = tl.advance(a_tile, (0, BLOCK))
        b_tile = tl.advance(b_tile, (BLOCK, 0))
    tl.store(tl.make_block_ptr(c_ptr, (m, n), (n, 1), (i, j), (BLOCK, BLOCK), (1, 0)), c, boundary_check=(0, 1))


@triton.jit
def copy_through_device_descriptors(x_ptr, out_ptr, rows, cols, stride, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [stride, 1], [BLOCK, BLOCK])
    out = tl.make_tensor_descriptor(out_ptr, [rows, cols], [stride, 1], [BLOCK, BLOCK])
    i = tl.program_id(0) * BLOCK
    j = tl.program_id(1) * BLOCK
    out.store([i, j], x.load([i, j]))


@triton.jit
def copy_through_host_descriptors(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK
    j = tl.program_id(1) * BLOCK
    out.store([i, j], x.load([i, j]))


@triton.jit
def gather_rows_through_descriptor(x_ptr, at_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr, COLS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [1, COLS])
    at = tl.load(at_ptr + tl.arange(0, BLOCK))
    out = tl.arange(0, BLOCK)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + out, x.gather(at, 0))


@triton.jit
def gather(x_ptr, at_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.load(at_ptr + lane, mask=lane < n)
    tl.store(out_ptr + lane, tl.load(x_ptr + at, mask=lane < n), mask=lane < n)


@triton.jit
def scatter(x_ptr, at_ptr, out_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(at_ptr + lane), tl.load(x_ptr + lane))


@triton.jit
def atomics(add_ptr, max_ptr, int_max_ptr, x_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane, mask=lane < n, other=0.0)
    tl.atomic_add(add_ptr + lane % 4, x, mask=lane < n)
    tl.atomic_max(max_ptr + lane, x, mask=lane < n)
    tl.atomic_max(int_max_ptr + lane, lane, mask=lane < n)


@triton.jit
def compare_and_swap(lock_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_cas(lock_ptr + tl.program_id(0), 0, 7))


@triton.jit
def _scaled(x, factor):
    return x * factor


@triton.jit
def control_flow(x_ptr, out_ptr, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """A while loop of loads, a helper, and an unrolled loop of stores."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    at = 0
    while at < n:
        total += _scaled(tl.load(x_ptr + at + lane, mask=at + lane < n, other=0.0), 2.0)
        at += BLOCK
    for part in tl.static_range(PARTS):
        tl.store(out_ptr + part * BLOCK + lane, tl.exp(total) + tl.log(total + 1.0))


@triton.jit
def either(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    """The first half from a, the second from b, in one access."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(tl.where(lane < BLOCK // 2, a_ptr + lane, b_ptr + lane)))


@triton.jit
def of_tuple(tensors, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(tensors[1] + lane, tl.load(tensors[0] + lane))


@triton.jit
def as_bytes(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """The bytes of 2-byte elements, and pairs of elements as one."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr.to(tl.pointer_type(tl.uint8)) + lane))
    tl.store(out_ptr.to(tl.pointer_type(tl.uint32)) + lane, tl.load(x_ptr.to(tl.pointer_type(tl.uint32)) + lane))


@triton.jit
def between(x_ptr, out_ptr):
    """An element that starts in the middle of another."""
    tl.store(out_ptr, tl.load((x_ptr.to(tl.pointer_type(tl.uint8)) + 3).to(tl.pointer_type(tl.int16))))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION)
    tl.store(c_ptr + at, c)


@triton.jit
def scaled_product(a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, BLOCK: tl.constexpr, K: tl.constexpr):
    """Operands of two 4-bit elements a byte, packed along K."""
    block = tl.arange(0, BLOCK)
    packed = tl.arange(0, K // 2)
    group = tl.arange(0, K // 32)
    a = tl.load(a_ptr + block[:, None] * (K // 2) + packed[None, :])
    b = tl.load(b_ptr + packed[:, None] * BLOCK + block[None, :])
    scales = block[:, None] * (K // 32) + group[None, :]
    c = tl.dot_scaled(a, tl.load(a_scale_ptr + scales), "e2m1", b, tl.load(b_scale_ptr + scales), "e2m1")
    tl.store(c_ptr + block[:, None] * BLOCK + block[None, :], c)


@triton.jit
def product_offset(x_ptr, out_ptr, a, b):
    tl.store(out_ptr, tl.load(x_ptr + a * b))


@triton.jit
def follow(table_ptr, out_ptr, BLOCK: tl.constexpr):
    x_ptr = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane))
