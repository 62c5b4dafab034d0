"""Plain PyTorch, one line an operation: what the kernels are judged by."""

from __future__ import annotations

import math

import torch


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) in the dtype of the inputs, step by step as standard attention: S, P and O rounded to it.

    q `(batch, heads, seq_q, head_dim)`, k and v `(batch, kv_heads, seq_k, head_dim)`; LSE `(batch, heads, seq_q)`.
    Give float64 tensors for a reference.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * scale
    if causal:
        row = torch.arange(q.shape[2], device=q.device)[:, None]
        col = torch.arange(k.shape[2], device=q.device)[None, :]
        s = s.masked_fill(col > row + k.shape[2] - q.shape[2], -math.inf)
    wide = s.double() if s.dtype == torch.float64 else s.float()
    lse = (
        torch.logsumexp(wide, -1)
        if k.shape[2]
        else torch.full(q.shape[:3], -math.inf, device=q.device, dtype=wide.dtype)
    )
    p = torch.exp(wide - lse.masked_fill(lse.isneginf(), 0)[..., None]).to(q.dtype)
    return p @ v, lse
