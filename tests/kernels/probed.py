"""Small kernels for the tests of the probe."""

# Argument lists stay in groups that belong together.
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(3)


@triton.jit
def helper(x):
    return x * FACTOR


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, helper(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


@triton.jit
def unfit(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 64, "blocks of more than 64, please")
    tl.store(out_ptr, tl.load(x_ptr))
