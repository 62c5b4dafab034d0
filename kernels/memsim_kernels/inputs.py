"""Random inputs in every layout that strides can express, with NaN wherever a kernel must not look."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from memsim.attention import Attention

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _contiguous(batch: int, heads: int, seq: int, dim: int) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    return (batch, heads, seq, dim), lambda x: x


def _rows_first(batch: int, heads: int, seq: int, dim: int) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    return (batch, seq, heads, dim), lambda x: x.transpose(1, 2)


def _every_second_row(
    batch: int, heads: int, seq: int, dim: int
) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    return (batch, heads, 2 * seq + 2, dim), lambda x: x[:, :, 1 : 2 * seq + 1 : 2]


def _every_second_column(
    batch: int, heads: int, seq: int, dim: int
) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    return (batch, heads, seq + 1, 2 * dim), lambda x: x[:, :, :seq, ::2]


def _odd_strides(batch: int, heads: int, seq: int, dim: int) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    # Every stride but the columns' is odd, so nothing is aligned.
    rows, width, planes = seq + 1 - seq % 2, dim + 1 + dim % 2, heads + 1 - heads % 2
    return (batch, planes, rows, width), lambda x: x[:, :heads, :seq, :dim]


def _columns_first(batch: int, heads: int, seq: int, dim: int) -> tuple[tuple[int, ...], Callable[..., torch.Tensor]]:
    return (batch, heads, dim, seq + 3), lambda x: x[..., :seq].transpose(2, 3)


LAYOUTS = {
    "contiguous": _contiguous,
    "rows-first": _rows_first,
    "every-second-row": _every_second_row,
    "every-second-column": _every_second_column,
    "odd-strides": _odd_strides,
    "columns-first": _columns_first,
}
"""Ways to lay out (batch, heads, seq, head_dim): the room a layout takes, and the view of it that is the tensor."""


def random_tensor(
    shape: tuple[int, int, int, int], dtype: str, layout: str, generator: torch.Generator, *, size: float = 1.0
) -> torch.Tensor:
    """A tensor of normal random numbers times `size`, on the generator's device; around it, in what the layout leaves
    out, NaN."""
    room, view = LAYOUTS[layout](*shape)
    around = torch.full(room, math.nan, dtype=DTYPES[dtype], device=generator.device)
    x = view(around)
    x.copy_((size * torch.randn(shape, generator=generator, device=generator.device)).to(x.dtype))
    assert tuple(x.shape) == shape
    return x


def random_inputs(
    problem: Attention, seed: int, *, layouts: tuple[str, str, str] = ("contiguous",) * 3, device: str = "cpu",
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """q, k and v of a problem, each in a layout of `LAYOUTS`; the same seed gives the same numbers in any layout."""
    generator = torch.Generator(device).manual_seed(seed)
    p = problem
    kv = (p.batch, p.kv_head_count, p.seq_len_k, p.head_dim)
    shapes = ((p.batch, p.heads, p.seq_len_q, p.head_dim), kv, kv)
    q, k, v = (
        random_tensor(shape, p.dtype, layout, generator, size=size)
        for shape, layout, size in zip(shapes, layouts, sizes, strict=True)
    )
    return q, k, v


def as_array(x: torch.Tensor) -> npt.NDArray[np.generic]:
    """A contiguous NumPy copy, bfloat16 as `ml_dtypes.bfloat16`."""
    x = x.detach().contiguous().cpu()
    bits = x.view(torch.int16) if x.dtype == torch.bfloat16 else x
    array: npt.NDArray[np.generic] = bits.numpy().copy()
    return array.view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else array
