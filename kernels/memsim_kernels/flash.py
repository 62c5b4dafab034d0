"""FlashAttention on a GPU: the public function, and the one rule that picks its load path."""

from __future__ import annotations

import torch
import triton

from memsim.attention import Attention
from memsim.tile import Tile
from memsim_kernels._checks import check_tensors, check_tile, machine_of, wide_offsets
from memsim_kernels._flash_kernels import flash_descriptor_kernel, flash_pointer_kernel
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
    load_path: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v without S or P ever leaving the SM.

    q `(batch, heads, seq_q, head_dim)`, k and v `(batch, kv_heads, seq_k, head_dim)`, float16, bfloat16 or float32,
    any strides. O has q's shape; LSE, if asked for, is `(batch, heads, seq_q)` float32, natural logarithm. Causal is
    aligned bottom-right; a row that sees no key gives 0 and -inf. float32 is IEEE unless `allow_tf32`.

    `load_path` is "pointer" (takes everything), "descriptor" or "descriptor-ws" (warp-specialised). Left out, it is
    the one measured best for this problem where tensors suit it (`descriptors_suit`), else "pointer"; with a `tile`
    given, "pointer". Raises `MemsimError` before any launch where shapes, dtypes or the tile do not suit.
    """
    problem = check_tensors(q, k, v, causal=causal, scale=scale)
    gpu = machine_of(q.device)
    chosen = choose(problem, gpu, tile, load_path, descriptors=descriptors_suit(q, k, v), lse=return_lse)
    check_tile("flash", problem.dtype, problem.head_dim, causal, chosen.tile, gpu)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if o.numel():
        launch_flash(problem, q, k, v, o, lse, chosen.tile, chosen.load_path, allow_tf32=allow_tf32)
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


def launch_flash(
    problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None,
    tile: Tile, load_path: str, *, allow_tf32: bool = False,
) -> None:  # fmt: skip
    """Launch the kernel of a load path on checked tensors; o, and lse if there is one, are written whole."""
    width = max(16, 1 << (problem.head_dim - 1).bit_length())
    grid = (triton.cdiv(problem.seq_len_q, tile.block_m), problem.heads, problem.batch)
    shared = {
        "GROUP": problem.group,
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": width,
        "STAGES": tile.num_stages,
        "CAUSAL": problem.causal,
        "STORE_LSE": lse is not None,
        "SCALE_FIRST": problem.scale_value <= 0,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
    sizes = (problem.heads, problem.seq_len_q, problem.seq_len_k, problem.scale_value * LOG2E)
    lse_or_o = lse if lse is not None else o
    if load_path == "pointer":
        flash_pointer_kernel[grid](
            q, k, v, o, lse_or_o, *q.stride(), *k.stride(), *v.stride(), *o.stride(), *sizes,
            IEEE=not allow_tf32, WIDE=wide_offsets((q, k, v, o), tile, width), **shared,
        )  # fmt: skip
        return
    triton.set_allocator(_scratch)
    flash_descriptor_kernel[grid](
        q, k, v, o, lse_or_o, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3], *sizes,
        EVEN_KEYS=problem.seq_len_k % tile.block_n == 0, SPECIALIZE=load_path == "descriptor-ws", **shared,
    )  # fmt: skip


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Room for descriptors that a kernel makes on the device."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
