"""Attention in float64, attention computed plainly in the problem's dtype, and the bound that judges a result by both.

The bound is that of flash-attention's own tests: max|out - ref| <= 2·max|pt - ref| + 2·max|ref + 0.3 - 0.3 - ref|,
with ref computed in float64 and rounded to the dtype, pt the plain algorithm in the dtype, and the 0.3 added and
taken away in the dtype.
"""

from __future__ import annotations

import numpy as np

from memsim.attention import Attention

from .problems import DTYPES, Array


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


def rounding_of_o(p: Attention, block_n: int, q: Array, k: Array, v: Array) -> float:
    """What rounding O to the dtype after each tile of keys may add to the error.

    After each tile O is the average of V over the keys so far, and is rounded: at most half a unit in the last place.
    Later tiles shrink that error by the share of the sum of exponentials that those keys had. Taken together: all of
    them at most, or six standard deviations of as many independent uniform errors, whichever is less.
    """
    dtype = DTYPES[p.dtype]
    k64, v64 = (np.repeat(x.astype(np.float64), p.group, axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ k64.swapaxes(-1, -2) * p.scale
    scores = np.where(visible_pairs(p), scores, -np.inf)
    largest = scores.max(axis=-1, initial=-np.inf, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = np.where(weights.sum(-1, keepdims=True) == 0, 1, weights.sum(-1, keepdims=True))
    most, variance = np.zeros(q.shape), np.zeros(q.shape)
    for last in range(block_n, p.seq_len_k + block_n, block_n):
        so_far = weights[..., :last].sum(-1, keepdims=True)
        o = weights[..., :last] @ v64[..., :last, :] / np.where(so_far == 0, 1, so_far)
        half_unit = np.spacing(np.abs(o).astype(dtype)).astype(np.float64) / 2
        added = half_unit * so_far / total
        most += added
        variance += added**2 / 3
    return float(np.minimum(most, 6 * np.sqrt(variance)).max(initial=0.0))
