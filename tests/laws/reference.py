"""Attention in float64, attention computed plainly in the problem's dtype, and the bound that judges a result by both.

The bound is that of flash-attention's own tests: max|out - ref| <= 2·max|pt - ref| + 2·max|ref + 0.3 - 0.3 - ref|,
with ref computed in float64 and rounded to the dtype, pt the plain algorithm in the dtype, and the 0.3 added and
taken away in the dtype.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from memsim.attention import Attention

Array = npt.NDArray[Any]

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def visible_pairs(p: Attention) -> Array:
    """(seq_len_q, seq_len_k) booleans: which key a row sees, the last row seeing them all."""
    rows, keys = np.arange(p.seq_len_q)[:, None], np.arange(p.seq_len_k)[None, :]
    return (keys <= rows + p.seq_len_k - p.seq_len_q) if p.causal else np.ones((p.seq_len_q, p.seq_len_k), bool)


def exact(p: Attention, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """(O, LSE) in float64; a row that sees nothing gives 0 and -inf."""
    k64, v64 = (np.repeat(x.astype(np.float64), p.group, axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ k64.swapaxes(-1, -2) * p.scale
    scores = np.where(visible_pairs(p), scores, -np.inf)
    largest = scores.max(axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest)[..., None])
    sums = weights.sum(axis=-1)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isneginf(largest), 0, largest) + np.log(sums)
    return weights @ v64 / np.where(sums == 0, 1, sums)[..., None], lse


def plain(p: Attention, q: Array, k: Array, v: Array) -> Array:
    """O of the plain algorithm in the problem's dtype: S, P and O are rounded to it, sums are made in float32."""
    dtype = DTYPES[p.dtype]
    k32, v32 = (np.repeat(x.astype(np.float32), p.group, axis=1) for x in (k, v))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = (q.astype(np.float32) @ k32.swapaxes(-1, -2) * np.float32(p.scale)).astype(dtype).astype(np.float32)
        scores = np.where(visible_pairs(p), scores, np.float32(-np.inf))
        largest = scores.max(axis=-1, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest)[..., None])
        sums = weights.sum(axis=-1, dtype=np.float32)
        weights = (weights / np.where(sums == 0, 1, sums)[..., None]).astype(dtype).astype(np.float32)
        return (weights @ v32).astype(dtype)


def error_and_bound(p: Attention, out: Array, q: Array, k: Array, v: Array) -> tuple[float, float]:
    """(max|out - ref|, what it may be)."""
    if out.size == 0:
        return 0.0, 0.0
    dtype = DTYPES[p.dtype]
    ref = exact(p, q, k, v)[0].astype(dtype)
    unit = (ref + dtype(0.3) - dtype(0.3)).astype(np.float64) - ref.astype(np.float64)
    ref64 = ref.astype(np.float64)
    pt = plain(p, q, k, v).astype(np.float64)
    return (
        float(np.abs(out.astype(np.float64) - ref64).max()),
        2 * float(np.abs(pt - ref64).max()) + 2 * float(np.abs(unit).max()),
    )


def random_inputs(p: Attention, seed: int, scales: tuple[float, float, float] = (1, 1, 1)) -> tuple[Array, ...]:
    """Q, K, V of the problem's dtype, normally distributed, each times its scale."""
    rng = np.random.default_rng(seed)
    shapes = [
        (p.batch, p.heads, p.seq_len_q, p.head_dim),
        *[(p.batch, p.kv_heads or p.heads, p.seq_len_k, p.head_dim)] * 2,
    ]
    return tuple(
        (rng.standard_normal(shape) * scale).astype(DTYPES[p.dtype])
        for shape, scale in zip(shapes, scales, strict=True)
    )
