"""Standard attention on a GPU: S and P go to memory and come back."""

from __future__ import annotations

from typing import Any

import torch
import triton

from memsim.attention import Attention
from memsim.programs.naive import CHUNK_COLUMNS, WHOLE_ROW_COLUMNS
from memsim.tile import Tile
from memsim_kernels._checks import check_tensors, check_tile, machine_of, wide_offsets
from memsim_kernels._naive_kernels import pv_kernel, qk_kernel, softmax_kernel, softmax_two_pass_kernel
from memsim_kernels.calls import Call

DEFAULT_TILE = Tile(64, 64, 4, 3)
_SMALL_TILE = Tile(16, 16, 4, 1)


def naive_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    tile: Tile | None = None,
    return_lse: bool = False,
    allow_tf32: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v in three launches. Arguments and results as for `flash_attention`; takes S and P's
    room, twice batch · heads · seq_q · seq_k elements."""
    problem = check_tensors(q, k, v, causal=causal, scale=scale)
    gpu = machine_of(q.device)
    if tile is None:
        tile = DEFAULT_TILE if problem.head_dim <= 128 and problem.dtype_bytes == 2 else _SMALL_TILE
    check_tile("naive", problem.dtype, problem.head_dim, causal, tile, gpu)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if o.numel():
        s = torch.empty((*q.shape[:3], k.shape[2]), dtype=q.dtype, device=q.device)
        p = torch.empty_like(s)
        for call in naive_calls(problem, q, k, v, s, p, o, lse, tile, allow_tf32=allow_tf32):
            call.launch()
    return (o, lse) if lse is not None else o


def naive_calls(
    problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, p: torch.Tensor,
    o: torch.Tensor, lse: torch.Tensor | None, tile: Tile, *, allow_tf32: bool = False,
) -> tuple[Call, ...]:  # fmt: skip
    """`qk`, `softmax` and `pv` on checked tensors (none if O is empty, no `qk` without keys); s, p and o, and lse if
    there is one, are written whole."""
    if not o.numel():
        return ()
    width = max(16, 1 << (problem.head_dim - 1).bit_length())
    row_tiles = triton.cdiv(problem.seq_len_q, tile.block_m)
    sizes = (problem.group, problem.heads, problem.seq_len_q, problem.seq_len_k)
    dots: dict[str, Any] = {
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": width,
        "IEEE": not allow_tf32,
    }
    shape = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    qk = Call(
        name="qk",
        kernel=qk_kernel,
        grid=(triton.cdiv(problem.seq_len_k, tile.block_n), row_tiles, problem.heads * problem.batch),
        args=(q, k, s, *q.stride(), *k.stride(), *sizes, problem.scale_value),
        constants=dots | {"CAUSAL": problem.causal, "WIDE": wide_offsets((q, k), tile, width)},
        tensors={"q_ptr": "Q", "k_ptr": "K", "s_ptr": "S"},
        **shape,
    )
    columns = max(16, triton.next_power_of_2(problem.seq_len_k))
    whole = columns <= WHOLE_ROW_COLUMNS
    softmax = Call(
        name="softmax",
        kernel=softmax_kernel if whole else softmax_two_pass_kernel,
        grid=(problem.batch * problem.heads * problem.seq_len_q,),
        args=(s, p, lse if lse is not None else o, problem.seq_len_k),
        constants={"STORE_LSE": lse is not None} | ({"COLUMNS": columns} if whole else {"CHUNK": CHUNK_COLUMNS}),
        tensors={"s_ptr": "S", "p_ptr": "P"} | ({"lse_ptr": "LSE"} if lse is not None else {}),
        **shape,
    )
    pv = Call(
        name="pv",
        kernel=pv_kernel,
        grid=(row_tiles, problem.heads, problem.batch),
        args=(p, v, o, *v.stride(), *o.stride(), *sizes),
        constants=dots | {"STAGES": tile.num_stages, "WIDE": wide_offsets((v, o), tile, width)},
        tensors={"p_ptr": "P", "v_ptr": "V", "o_ptr": "O"},
        **shape,
    )
    return (qk, softmax, pv) if problem.seq_len_k else (softmax, pv)
