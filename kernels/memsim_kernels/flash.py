"""FlashAttention on a GPU: the public function, and the one rule that picks its load path."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton

from memsim.api import prepare
from memsim.attention import Attention
from memsim.grid import ROWS_FAST, GridOrder, grid_order
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
from memsim_kernels._flash_kernels import flash_descriptor_kernel, flash_pointer_kernel
from memsim_kernels.calls import Call
from memsim_kernels.costs import padded_width
from memsim_kernels.ops import attend, launch_on, outputs, register
from memsim_kernels.tiles import choose

LOG2E = 1.4426950408889634
# The least normal float32: a smaller scale can become 0 on its way to the kernel.
_LEAST_SCALE = 2.0**-126


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
    any strides. O has q's shape and order of strides; LSE, if asked for, is `(batch, heads, seq_q)` float32, natural
    logarithm. Causal is aligned bottom-right; a row that sees no key gives 0 and -inf. float32 is IEEE unless
    `allow_tf32`. Forward only: inputs that require gradients are refused outside `torch.no_grad()`.

    The tile's `load_path` is "pointer" (takes everything), "descriptor" or "descriptor-ws" (warp-specialised), its
    `grid_order` one of `memsim.grid.ORDERS`. Without a `tile` it is the one measured best for this problem of those
    that suit the tensors (`memsim_kernels.tiles`), rows-fast. Raises `MemsimError` before any launch where shapes,
    dtypes or the tile do not suit.
    """
    return attend(
        _OPERATOR, q, k, v, causal=causal, scale=scale, tile=tile, return_lse=return_lse, allow_tf32=allow_tf32
    )


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, tile: Tile | None,
    lse: bool, allow_tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    problem = check_tensors(q, k, v, causal=causal, scale=scale)
    check_device(q.device, flash_pointer_kernel, q.dtype)
    o, sums = outputs(q, lse=lse)
    chosen = _tile_for(problem, capability_of(q.device), tile, descriptors_suit(q, k, v, o), lse)
    calls = flash_calls(problem, q, k, v, o, sums if lse else None, chosen, allow_tf32=allow_tf32)
    launch_on(q.device, calls)
    return o, sums


_OPERATOR = register("flash_attention", _run)


@lru_cache(maxsize=4096)
def _tile_for(problem: Attention, capability: tuple[int, int], tile: Tile | None, descriptors: bool, lse: bool) -> Tile:
    """The tile to launch, checked, with the grid that it gives."""
    gpu = machine_of_capability(capability)
    chosen = choose(problem, gpu, tile, descriptors=descriptors, lse=lse)
    check_tile("flash", problem.dtype, problem.head_dim, problem.causal, chosen, gpu)
    check_grids({"flash": _grid(problem, chosen, order_of(problem, chosen, capability, lse=lse))})
    return chosen


@lru_cache(maxsize=4096)
def order_of(problem: Attention, tile: Tile, capability: tuple[int, int], *, lse: bool) -> GridOrder:
    """The tile's grid order on this machine. Where it is persistent, the blocks that there is room for are those of
    the kernel of one unit a block."""
    gpu = machine_of_capability(capability)
    blocks_per_sm = 1
    if tile.grid_order == "persistent":
        blocks_per_sm = prepare("flash", problem, gpu, tile, lse=lse).resources[0].blocks_per_sm
    return grid_order(tile.grid_order, problem, gpu, blocks_per_sm)


def _grid(problem: Attention, tile: Tile, order: GridOrder) -> tuple[int, ...]:
    axes = (cdiv(problem.seq_len_q, tile.block_m), problem.heads, problem.batch)
    return axes if order.name == ROWS_FAST else (order.blocks([("", size) for size in axes]),)


def descriptors_suit(*tensors: torch.Tensor) -> bool:
    """Whether tensor descriptors can describe the tensors: on Hopper or later, 16-bit elements, columns contiguous,
    rows and starts a multiple of 16 bytes apart, and something in every dimension."""
    q = tensors[0]
    if q.device.type != "cuda" or torch.cuda.get_device_capability(q.device)[0] < 9 or q.element_size() != 2:
        return False
    return all(
        x.numel() > 0
        and x.stride(3) == 1
        and all(x.stride(n) % 8 == 0 for n in range(3))
        and x.stride(2) > 0
        and x.shape[3] % 8 == 0
        and x.data_ptr() % 16 == 0
        for x in tensors
    )


def flash_calls(
    problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None,
    tile: Tile, *, allow_tf32: bool = False,
) -> tuple[Call, ...]:  # fmt: skip
    """The one launch on checked tensors (none if O is empty); o, and lse if there is one, are written whole."""
    if not o.numel():
        return ()
    width = padded_width(problem.head_dim)
    order = order_of(problem, tile, capability_of(q.device), lse=lse is not None)
    constants: dict[str, Any] = {
        "HEAD_DIM": problem.head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": width,
        "STAGES": tile.num_stages,
        "CAUSAL": problem.causal,
        "STORE_LSE": lse is not None,
        "SCALE_FIRST": problem.scale_value * LOG2E < _LEAST_SCALE,
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
    planes = problem.batch * problem.heads if order.name == "persistent" else order.planes
    constants |= {"ORDER": order.name, "PLANES": planes}
    call = Call(
        name="flash",
        kernel=flash_pointer_kernel if tile.load_path == "pointer" else flash_descriptor_kernel,
        grid=_grid(problem, tile, order),
        args=(
            q, k, v, o, lse if lse is not None else o, *(n for s in strides for n in s),
            problem.group, problem.heads, problem.seq_len_q, problem.seq_len_k, problem.scale_value * LOG2E,
        ),
        constants=constants,
        tensors={"q_ptr": "Q", "k_ptr": "K", "v_ptr": "V", "o_ptr": "O"} | ({} if lse is None else {"lse_ptr": "LSE"}),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        order=order,
    )  # fmt: skip
    return (call,)


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Room for descriptors that a kernel makes on the device."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
