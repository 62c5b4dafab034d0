"""FlashAttention on a GPU: the public function, and the one rule that picks its load path."""

from __future__ import annotations

from typing import Any

import torch
import triton

from memsim.attention import Attention
from memsim.tile import Tile
from memsim_kernels._checks import check_tensors, check_tile, machine_of, wide_offsets
from memsim_kernels._flash_kernels import flash_descriptor_kernel, flash_pointer_kernel
from memsim_kernels.calls import Call
from memsim_kernels.tiles import choose

LOG2E = 1.4426950408889634


def flash_attention(
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
    """softmax(q·kᵀ·scale)·v without S or P ever leaving the SM.

    q `(batch, heads, seq_q, head_dim)`, k and v `(batch, kv_heads, seq_k, head_dim)`, float16, bfloat16 or float32,
    any strides. O has q's shape; LSE, if asked for, is `(batch, heads, seq_q)` float32, natural logarithm. Causal is
    aligned bottom-right; a row that sees no key gives 0 and -inf. float32 is IEEE unless `allow_tf32`.

    The tile's `load_path` is "pointer" (takes everything), "descriptor" or "descriptor-ws" (warp-specialised). Without
    a `tile` it is the one measured best for this problem of those that suit the tensors (`memsim_kernels.tiles`).
    Raises `MemsimError` before any launch where shapes, dtypes or the tile do not suit.
    """
    problem = check_tensors(q, k, v, causal=causal, scale=scale)
    gpu = machine_of(q.device)
    chosen = choose(problem, gpu, tile, descriptors=descriptors_suit(q, k, v), lse=return_lse)
    check_tile("flash", problem.dtype, problem.head_dim, causal, chosen, gpu)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    for call in flash_calls(problem, q, k, v, o, lse, chosen, allow_tf32=allow_tf32):
        call.launch()
    return (o, lse) if lse is not None else o


def descriptors_suit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether tensor descriptors can describe the inputs: on Hopper or later, 16-bit elements, columns contiguous,
    rows and starts a multiple of 16 bytes apart, and something in every dimension."""
    if q.device.type != "cuda" or torch.cuda.get_device_capability(q.device)[0] < 9 or q.element_size() != 2:
        return False
    return all(
        x.numel() > 0
        and x.stride(3) == 1
        and all(x.stride(n) % 8 == 0 for n in range(3))
        and x.stride(2) > 0
        and x.shape[3] % 8 == 0
        and x.data_ptr() % 16 == 0
        for x in (q, k, v)
    )


def flash_calls(
    problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None,
    tile: Tile, *, allow_tf32: bool = False,
) -> tuple[Call, ...]:  # fmt: skip
    """The one launch on checked tensors (none if O is empty); o, and lse if there is one, are written whole."""
    if not o.numel():
        return ()
    width = max(16, 1 << (problem.head_dim - 1).bit_length())
    constants: dict[str, Any] = {
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": width,
        "STAGES": tile.num_stages,
        "CAUSAL": problem.causal,
        "STORE_LSE": lse is not None,
        "SCALE_FIRST": problem.scale_value <= 0,
    }
    strides: tuple[tuple[int, ...], ...] = tuple(x.stride() for x in (q, k, v, o))
    if tile.load_path == "pointer":
        constants |= {"IEEE": not allow_tf32, "WIDE": wide_offsets((q, k, v, o), tile, width)}
    else:
        # The columns of a descriptor are contiguous.
        strides = tuple(s[:3] for s in strides)
        constants |= {
            "EVEN_KEYS": problem.seq_len_k % tile.block_n == 0,
            "SPECIALIZE": tile.load_path == "descriptor-ws",
        }
        triton.set_allocator(_scratch)
    call = Call(
        name="flash",
        kernel=flash_pointer_kernel if tile.load_path == "pointer" else flash_descriptor_kernel,
        grid=(triton.cdiv(problem.seq_len_q, tile.block_m), problem.heads, problem.batch),
        args=(
            q, k, v, o, lse if lse is not None else o, *(n for s in strides for n in s),
            problem.group, problem.heads, problem.seq_len_q, problem.seq_len_k, problem.scale_value * LOG2E,
        ),
        constants=constants,
        tensors={"q_ptr": "Q", "k_ptr": "K", "v_ptr": "V", "o_ptr": "O"} | ({} if lse is None else {"lse_ptr": "LSE"}),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return (call,)


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Room for descriptors that a kernel makes on the device."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
