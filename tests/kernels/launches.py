"""Attention launches for the tests of recorded accesses: a problem, its tensors in some layout, program and calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from hypothesis import strategies as st
from memsim_kernels.calls import Call
from memsim_kernels.flash import flash_calls
from memsim_kernels.naive import naive_calls

from memsim import Attention, Tile, load_gpu
from memsim.language import Program
from memsim.programs import build_program
from memsim.resources import room_of

ROOM = room_of(load_gpu("h200"))
LAYOUTS = ("contiguous", "seq first", "gaps in rows", "gaps in columns", "columns first", "one head for all")
# Columns contiguous, rows a multiple of 16 bytes apart: what descriptors take.
DESCRIPTOR_LAYOUTS = ("contiguous", "seq first", "gaps in rows", "one head for all")


@dataclass(frozen=True)
class Made:
    """One problem ready to be recorded: what the simulator says of it, and the kernel's launches."""

    problem: Attention
    program: Program
    calls: tuple[Call, ...]


def laid_out(layout: str, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor (batch, heads, seq, head_dim) of zeros in one of the layouts."""
    batch, heads, seq, d = shape

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.zeros(sizes, dtype=dtype, device=device)

    if layout == "seq first":
        return zeros(seq, batch, heads, d).permute(1, 2, 0, 3)
    if layout == "gaps in rows":
        return zeros(batch, heads, 2 * seq, d)[:, :, ::2]
    if layout == "gaps in columns":
        return zeros(batch, heads, seq, 2 * d)[..., ::2]
    if layout == "columns first":
        return zeros(batch, heads, d, seq).transpose(2, 3)
    if layout == "one head for all":
        return zeros(batch, 1, seq, d).expand(shape)
    if match := re.fullmatch(r"rows (\d+) apart", layout):
        return zeros(batch, heads, seq, int(match[1]))[..., :d]
    assert layout == "contiguous"
    return zeros(*shape)


def make(
    algorithm: str,
    problem: Attention,
    tile: Tile,
    *,
    lse: bool = False,
    layouts: Sequence[str] = ("contiguous",) * 4,
    device: str = "cpu",
    allow_tf32: bool = False,
) -> Made:
    """Program and calls of a problem; `layouts` are those of Q, K, V and O. On device "meta" tensors have no memory,
    nor have S and P ever."""
    p, dtype = problem, getattr(torch, problem.dtype)
    q_shape, k_shape = (p.batch, p.heads, p.seq_len_q, p.head_dim), (p.batch, p.kv_head_count, p.seq_len_k, p.head_dim)
    shapes = (q_shape, k_shape, k_shape, q_shape)
    q, k, v, o = (
        laid_out(layout, shape, dtype, device) for layout, shape in zip(layouts, shapes, strict=True)
    )  # fmt: skip
    sums = torch.zeros(q_shape[:3], device=device) if lse else None
    program = build_program(algorithm, p, tile, ROOM, lse=lse)
    if algorithm == "flash":
        return Made(p, program, flash_calls(p, q, k, v, o, sums, tile, allow_tf32=allow_tf32))
    s, weights = (torch.empty(*q_shape[:3], p.seq_len_k, dtype=dtype, device="meta") for _ in range(2))
    return Made(p, program, naive_calls(p, q, k, v, s, weights, o, sums, tile, allow_tf32=allow_tf32))


@st.composite
def launches(draw: st.DrawFn, algorithm: str, load_path: str = "pointer") -> Made:
    """A random problem, up to 70 rows and keys, in random layouts."""
    pointer = load_path == "pointer"
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    problem = Attention(
        batch=draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads,
        seq_len_q=draw(st.sampled_from((0, 1, 16, 32)) | st.integers(1, 70)),
        seq_len_k=draw(st.sampled_from((0, 1, 16, 64)) | st.integers(1, 70)),
        head_dim=draw(st.sampled_from((1, 16, 20, 40, 59, 64, 72) if pointer else (8, 16, 40, 64, 72))),
        dtype=draw(st.sampled_from(("float16", "bfloat16", "float32") if pointer else ("float16", "bfloat16"))),
        causal=load_path != "descriptor-ws" and draw(st.booleans()), scale=draw(st.sampled_from((None, 0.0, -0.25))),
    )  # fmt: skip
    shape = draw(st.sampled_from(((16, 16), (32, 16), (16, 32), (64, 32))))
    tile = Tile(*shape, num_warps=4, num_stages=draw(st.integers(1, 3)), load_path=load_path)
    inputs = st.sampled_from(LAYOUTS if pointer else DESCRIPTOR_LAYOUTS)
    # What is written has a place for each element.
    output = st.sampled_from(("contiguous", "seq first", "gaps in rows"))
    return make(
        algorithm, problem, tile, lse=load_path != "descriptor-ws" and draw(st.booleans()),
        layouts=[*(draw(inputs) for _ in range(3)), draw(output)],
    )  # fmt: skip


def some_blocks(seed: int) -> Callable[[tuple[int, ...]], Iterable[tuple[int, ...]]]:
    """The first and the last block of a grid, and two in between."""

    def choose(grid: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        last = prod(grid) - 1
        for number in {0, last, seed % (last + 1), seed * 7919 % (last + 1)}:
            block = []
            for size in grid:
                number, at = divmod(number, size)
                block.append(at)
            yield tuple(block)

    return choose
