"""Standard attention on a GPU: S and P go to memory and come back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from memsim.attention import Attention
from memsim.gpu import Gpu
from memsim.programs.naive import CHUNK_COLUMNS, WHOLE_ROW_COLUMNS
from memsim.tile import Tile, cdiv
from memsim_kernels._checks import (
    capability_of,
    check_device,
    check_grids,
    check_tensors,
    check_tile,
    machine_of_capability,
    wide_offsets,
)
from memsim_kernels._naive_kernels import pv_kernel, qk_kernel, softmax_kernel, softmax_two_pass_kernel
from memsim_kernels.calls import Call
from memsim_kernels.costs import padded_width
from memsim_kernels.ops import attend, launch_on, outputs, register
from memsim_kernels.tiles import first_that_fits

DEFAULT_TILE = Tile(64, 64, 4, 3)


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
    return attend(
        _OPERATOR, q, k, v, causal=causal, scale=scale, tile=tile, return_lse=return_lse, allow_tf32=allow_tf32
    )


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, tile: Tile | None,
    lse: bool, allow_tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    problem = check_tensors(q, k, v, causal=causal, scale=scale)
    check_device(q.device, qk_kernel, q.dtype)
    chosen = _tile_for(problem, capability_of(q.device), tile)
    o, sums = outputs(q, lse=lse)
    if o.numel():
        s = torch.empty((*q.shape[:3], k.shape[2]), dtype=q.dtype, device=q.device)
        p = torch.empty_like(s)
        calls = naive_calls(problem, q, k, v, s, p, o, sums if lse else None, chosen, allow_tf32=allow_tf32)
        launch_on(q.device, calls)
    return o, sums


_OPERATOR = register("naive_attention", _run)


def default_tile(problem: Attention, gpu: Gpu) -> Tile:
    """`DEFAULT_TILE` for 16-bit heads of up to 128, where it fits; else float32's own, or the machine's first."""
    suits = problem.head_dim <= 128 and problem.dtype_bytes == 2
    return first_that_fits("naive", problem, gpu, DEFAULT_TILE if suits else None)


@lru_cache(maxsize=4096)
def _tile_for(problem: Attention, capability: tuple[int, int], tile: Tile | None) -> Tile:
    """The tile to launch, checked, with the grids that it gives."""
    gpu = machine_of_capability(capability)
    chosen = default_tile(problem, gpu) if tile is None else tile
    check_tile("naive", problem.dtype, problem.head_dim, problem.causal, chosen, gpu)
    check_grids(_grids(problem, chosen))
    return chosen


def _grids(problem: Attention, tile: Tile) -> dict[str, tuple[int, ...]]:
    row_tiles, key_tiles = cdiv(problem.seq_len_q, tile.block_m), cdiv(problem.seq_len_k, tile.block_n)
    return {
        "qk": (key_tiles, row_tiles, problem.heads * problem.batch),
        "softmax": (problem.batch * problem.heads * problem.seq_len_q,),
        "pv": (row_tiles, problem.heads, problem.batch),
    }


def naive_calls(
    problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, p: torch.Tensor,
    o: torch.Tensor, lse: torch.Tensor | None, tile: Tile, *, allow_tf32: bool = False,
) -> tuple[Call, ...]:  # fmt: skip
    """`qk`, `softmax` and `pv` on checked tensors (none if O is empty, no `qk` without keys); s, p and o, and lse if
    there is one, are written whole."""
    if not o.numel():
        return ()
    width = padded_width(problem.head_dim)
    grids = _grids(problem, tile)
    sizes = (problem.group, problem.heads, problem.seq_len_q, problem.seq_len_k)
    dots: dict[str, Any] = {
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": width,
        "IEEE": not allow_tf32,
    }
    shape: dict[str, Any] = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    qk = Call(
        name="qk",
        kernel=qk_kernel,
        grid=grids["qk"],
        args=(q, k, s, *q.stride(), *k.stride(), *sizes, problem.scale_value),
        constants=dots | {"CAUSAL": problem.causal, "WIDE": wide_offsets((q, k), tile, width)},
        tensors={"q_ptr": "Q", "k_ptr": "K", "s_ptr": "S"},
        **shape,
    )
    columns = padded_width(max(1, problem.seq_len_k))
    whole = columns <= WHOLE_ROW_COLUMNS
    softmax = Call(
        name="softmax",
        kernel=softmax_kernel if whole else softmax_two_pass_kernel,
        grid=grids["softmax"],
        args=(s, p, lse if lse is not None else o, problem.seq_len_k),
        constants={"STORE_LSE": lse is not None} | ({"COLUMNS": columns} if whole else {"CHUNK": CHUNK_COLUMNS}),
        tensors={"s_ptr": "S", "p_ptr": "P"} | ({"lse_ptr": "LSE"} if lse is not None else {}),
        **shape,
    )
    pv = Call(
        name="pv",
        kernel=pv_kernel,
        grid=grids["pv"],
        args=(p, v, o, *v.stride(), *o.stride(), *sizes),
        constants=dots | {"STAGES": tile.num_stages, "WIDE": wide_offsets((v, o), tile, width)},
        tensors={"p_ptr": "P", "v_ptr": "V", "o_ptr": "O"},
        **shape,
    )
    return (qk, softmax, pv) if problem.seq_len_k else (softmax, pv)
