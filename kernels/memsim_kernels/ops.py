"""The kernels as PyTorch operators, so that `torch.compile` traces through them: `memsim::flash_attention` and
`memsim::naive_attention`.

An operator takes a tile as plain numbers and returns (O, LSE), LSE empty unless asked for; neither aliases an input.
It checks everything before its first launch, also when it was traced: tracing itself only asks for shapes, so a bad
input raises `MemsimError` when the compiled function runs. Forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache

import torch

from memsim.errors import MemsimError
from memsim.grid import ROWS_FAST
from memsim.tile import Tile
from memsim_kernels._checks import check_arguments
from memsim_kernels.calls import Call

Run = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, bool, float | None, Tile | None, bool, bool],
    tuple[torch.Tensor, torch.Tensor],
]
"""(q, k, v, causal, scale, tile, lse, allow_tf32) to (O, LSE)."""

Operator = Callable[..., tuple[torch.Tensor, torch.Tensor]]

# The registrations live as long as this object.
_LIBRARY = torch.library.Library("memsim", "FRAGMENT")
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, int[]? tile=None, str load_path='pointer', "
    "str grid_order='rows-fast', bool lse=False, bool allow_tf32=False"
)


def register(name: str, run: Run) -> Operator:
    """The operator `memsim::name`. Its `tile` is (block_m, block_n, num_warps, num_stages), or none for the default."""

    def launch(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None,
        tile: Sequence[int] | None = None, load_path: str = "pointer", grid_order: str = ROWS_FAST, lse: bool = False,
        allow_tf32: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        _refuse_gradients(q, k, v)
        chosen = None if tile is None else _tile(tuple(tile), load_path, grid_order)
        return run(q, k, v, causal, scale, chosen, lse, allow_tf32)

    def trace(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None,
        tile: Sequence[int] | None = None, load_path: str = "pointer", grid_order: str = ROWS_FAST, lse: bool = False,
        allow_tf32: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        _refuse_gradients(q, k, v)
        return outputs(q, lse=lse)

    _LIBRARY.define(f"{name}({_ARGUMENTS}) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
    # Below autograd, for every device: which of them the kernels run on is for `run` to say.
    _LIBRARY.impl(name, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"memsim::{name}", trace, lib=_LIBRARY)
    operator: Operator = getattr(torch.ops.memsim, name).default
    return operator


def outputs(q: torch.Tensor, *, lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for O, with q's shape and order of strides, and for the LSE, `(batch, heads, seq_q)` float32 or empty.

    So the heads of O, like those of a q that is a view of (batch, seq, heads · head_dim), merge without a copy.
    """
    return torch.empty_like(q), torch.empty(q.shape[:-1] if lse else (0,), dtype=torch.float32, device=q.device)


def attend(
    operator: Operator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None,
    tile: Tile | None, return_lse: bool, allow_tf32: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What the public functions do: check what a schema cannot carry, call the operator, return O or (O, LSE)."""
    check_arguments(q, k, v, causal=causal, scale=scale, tile=tile, return_lse=return_lse, allow_tf32=allow_tf32)
    if tile is None:
        o, lse = operator(q, k, v, causal, scale, None, "pointer", ROWS_FAST, return_lse, allow_tf32)
    else:
        numbers = (tile.block_m, tile.block_n, tile.num_warps, tile.num_stages)
        paths = (tile.load_path, tile.grid_order)
        o, lse = operator(q, k, v, causal, scale, numbers, *paths, return_lse, allow_tf32)
    return (o, lse) if return_lse else o


def launch_on(device: torch.device, calls: tuple[Call, ...]) -> None:
    """Launch in order, on the device that holds the tensors."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for call in calls:
            call.launch()


@lru_cache(maxsize=1024)
def _tile(numbers: tuple[int, ...], load_path: str, grid_order: str) -> Tile:
    if len(numbers) != 4:
        raise MemsimError(f"tile is {numbers}; it must be (block_m, block_n, num_warps, num_stages).")
    return Tile(*numbers, load_path, grid_order)


def _refuse_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise MemsimError(
            "q, k or v requires gradients, and these kernels compute the forward pass only; "
            "call them under torch.no_grad(), or detach the tensors."
        )
