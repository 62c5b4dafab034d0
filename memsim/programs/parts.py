"""What the programs share: the tensors of a problem and the causal rule."""

from __future__ import annotations

import numpy as np

from memsim.attention import Attention
from memsim.language import Visible
from memsim.tile import cdiv
from memsim.trace import Bound, Ints, Tensor, place_tensors

DESCRIPTORS = "descriptors"
# A tensor map is 128 bytes, here a row of 32 words (CUDA driver API, CUtensorMap).
_DESCRIPTOR_WORDS = 32


def tensors(
    problem: Attention, *, scores: bool = False, lse: bool = False, sums: bool = False, descriptors: int | None = None
) -> dict[str, Tensor]:
    """Q, K, V, O and, where asked, S and P, LSE, the running m and l (float32), or so many tensor descriptors a head,
    placed in HBM."""
    p, d = problem, problem.head_dim
    shapes = [
        ("Q", p.heads, p.seq_len_q, d, p.dtype),
        ("K", p.kv_head_count, p.seq_len_k, d, p.dtype),
        ("V", p.kv_head_count, p.seq_len_k, d, p.dtype),
        ("O", p.heads, p.seq_len_q, d, p.dtype),
    ]
    if scores:
        shapes += [(name, p.heads, p.seq_len_q, p.seq_len_k, p.dtype) for name in ("S", "P")]
    if lse:
        shapes += [("LSE", p.heads, p.seq_len_q, 1, "float32")]
    if sums:
        shapes += [(name, p.heads, p.seq_len_q, 1, "float32") for name in ("m", "l")]
    if descriptors is not None:
        shapes += [(DESCRIPTORS, p.heads, descriptors, _DESCRIPTOR_WORDS, "float32")]
    placed = place_tensors(tuple(Tensor(name, p.batch, h, rows, cols, dt) for name, h, rows, cols, dt in shapes))
    return {t.name: t for t in placed}


def visible(problem: Attention) -> Visible:
    """Which (row, key) pairs exist and, with `causal`, lie on or below the bottom-right diagonal."""
    shift = problem.seq_len_k - problem.seq_len_q

    def rule(rows: Ints, cols: Ints) -> np.ndarray:
        inside = cols < problem.seq_len_k
        return inside & (cols <= rows + shift) if problem.causal else inside & (rows >= 0)

    return rule


def needs_mask(problem: Attention, block_n: int) -> bool:
    """A kernel masks if it is causal or if the last tile of keys is ragged."""
    return problem.causal or problem.seq_len_k % block_n != 0


def key_tiles_of_rows(problem: Attention, block_m: int, block_n: int) -> int | Bound:
    """Tiles of K and V that query block `i` visits: all, or those up to the diagonal of its last row."""
    every = cdiv(problem.seq_len_k, block_n)
    if not problem.causal:
        return every

    def trips(i: Ints) -> Ints:
        # The keys that the block's last row sees; a ragged block ends with the last row of all, which sees every key.
        keys = np.clip((i + 1) * block_m + problem.seq_len_k - problem.seq_len_q, 0, problem.seq_len_k)
        return np.asarray(-(-keys // block_n), dtype=np.int64)

    return Bound("i", trips)


def unmasked_tiles_of_rows(problem: Attention, block_m: int, block_n: int) -> int | Bound:
    """Tiles of K and V of query block `i` that need no mask, which come first: whole ones that all its rows see."""
    whole = problem.seq_len_k // block_n
    if not problem.causal:
        return whole

    def trips(i: Ints) -> Ints:
        keys = np.clip(i * block_m + problem.seq_len_k - problem.seq_len_q + 1, 0, problem.seq_len_k)
        return np.asarray(keys // block_n, dtype=np.int64)

    return Bound("i", trips)
