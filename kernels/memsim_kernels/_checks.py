"""What the kernels refuse before a launch, in the simulator's own sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import triton

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu, load_gpu
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import resources_of, room_of
from memsim.tile import Tile
from memsim_kernels.calls import LARGEST_HEAD_DIM

# CUDA's grids: programs along the first axis, and along the second and third.
_MOST_PROGRAMS = (2**31 - 1, 65_535, 65_535)

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# A machine file for each compute capability whose compiler rules are known.
_MACHINES = {(8, 0): "a100-80gb", (8, 9): "rtx-4090", (9, 0): "h200", (10, 0): "b200"}


def check_arguments(
    q: object, k: object, v: object, *, causal: object, scale: object, tile: object, **flags: object
) -> None:
    """Refuse arguments of the wrong type, and tensors on different devices. Raises `MemsimError`, a sentence each."""
    faults = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            faults.append(f"{name} is a {type(x).__name__}; it must be a torch.Tensor.")
        elif x.layout != torch.strided or x.is_nested:
            faults.append(f"{name} is a sparse or nested tensor; it must be dense.")
        elif isinstance(q, torch.Tensor) and x.device != q.device:
            faults.append(f"{name} is on {x.device} and q on {q.device}; they must be on the same device.")
    # A float, and an integer of a usual size, goes through; `check_tensors` looks at its value.
    if not (scale is None or isinstance(scale, float) or (type(scale) is int and abs(scale) < 2**63)):
        faults += _scale_faults(scale)
    if tile is not None and not isinstance(tile, Tile):
        faults.append(f"tile is {tile!r}; it must be a memsim.Tile, or None for the default.")
    for name, flag in (("causal", causal), *flags.items()):
        if not isinstance(flag, bool):
            faults.append(f"{name} is {flag!r}; it must be true or false.")
    if faults:
        raise MemsimError(faults)


def _scale_faults(scale: Any) -> tuple[str, ...]:
    try:
        Attention(scale=scale)
    except MemsimError as refusal:
        return refusal.faults
    return ()


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None) -> Attention:
    """The problem that three tensors pose. Raises `MemsimError`, a sentence per fault.

    An empty batch poses the problem of a batch of one, so that it is checked; nothing is launched for it.
    """
    faults = []
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            faults.append(f"{name} is {x.dtype} and q is {q.dtype}; they must be the same.")
        if x.device != q.device:
            faults.append(f"{name} is on {x.device} and q on {q.device}; they must be on the same device.")
    if q.dtype not in _DTYPES:
        faults.append(f"q is {q.dtype}; it must be float16, bfloat16 or float32.")
    if faults:
        raise MemsimError(faults)
    return _problem(q.shape, k.shape, v.shape, _DTYPES[q.dtype], causal, scale)


@lru_cache(maxsize=4096)
def _problem(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], dtype: str, causal: bool, scale: float | None
) -> Attention:
    faults = [
        f"{name} has {len(shape)} dimensions; it must be (batch, heads, seq, head_dim)."
        for name, shape in (("q", q), ("k", k), ("v", v))
        if len(shape) != 4
    ]
    if not faults:
        if k != v:
            faults.append(f"k has shape {tuple(k)} and v {tuple(v)}; they must be the same.")
        if (q[0], q[3]) != (k[0], k[3]):
            faults.append(f"q has shape {tuple(q)} and k {tuple(k)}; batch and head_dim must be the same.")
        if q[3] > LARGEST_HEAD_DIM:
            faults.append(f"head_dim is {q[3]}; these kernels take up to {LARGEST_HEAD_DIM}.")
    if faults:
        raise MemsimError(faults)
    return Attention(
        batch=max(1, q[0]), heads=q[1], kv_heads=k[1], seq_len_q=q[2], seq_len_k=k[2], head_dim=q[3],
        dtype=dtype, causal=causal, scale=scale,
    )  # fmt: skip


def capability_of(device: torch.device) -> tuple[int, int]:
    """The compute capability whose rules hold for a device; that of an H200 where the kernels are interpreted."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@lru_cache(maxsize=16)
def machine_of_capability(capability: tuple[int, int]) -> Gpu:
    """The machine file whose compiler rules hold for a compute capability."""
    name = _MACHINES.get(capability) or _MACHINES.get((capability[0], 0))
    if name is None:
        raise MemsimError(
            f"this GPU has compute capability {capability[0]}.{capability[1]}; these kernels know 8.0, 8.9, 9.0, 10.0."
        )
    return load_gpu(name)


def check_device(device: torch.device, kernel: object, dtype: torch.dtype) -> None:
    """Refuse tensors where the kernel cannot run: it takes those of a GPU, or those of the CPU if it is interpreted."""
    if device.type == "cuda":
        return
    if device.type != "cpu" or isinstance(kernel, triton.runtime.JITFunction):
        raise MemsimError(
            f"the tensors are on {device}; these kernels take those of a CUDA GPU, or, interpreted, those of a CPU "
            "(set TRITON_INTERPRET=1 before triton is imported)."
        )
    if dtype == torch.bfloat16:
        raise MemsimError(
            "the tensors are bfloat16 on a CPU, and Triton's interpreter multiplies bfloat16 as bit patterns; take "
            "float16, or a GPU."
        )


def check_grids(grids: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse launches, by name, whose grid has more programs along an axis than a launch can have."""
    faults = [
        f"{name} would take a grid of {' × '.join(map(str, grid))} blocks; a launch can have "
        f"{' × '.join(map(str, _MOST_PROGRAMS))} at most: take fewer heads or batches, or a larger block_m."
        for name, grid in grids.items()
        if any(size > most for size, most in zip(grid, _MOST_PROGRAMS, strict=False))
    ]
    if faults:
        raise MemsimError(faults)


@lru_cache(maxsize=4096)
def check_tile(algorithm: str, dtype: str, head_dim: int, causal: bool, tile: Tile, gpu: Gpu) -> None:
    """Refuse a tile as the simulator does: by shape, SRAM, registers and warps. Lengths do not matter for it."""
    room = room_of(gpu)
    problem = Attention(
        heads=1, seq_len_q=tile.block_m, seq_len_k=tile.block_n, head_dim=head_dim, dtype=dtype, causal=causal
    )
    for launch in build_program(algorithm, problem, tile, room).launches:
        resources_of(gpu, trace_launch(launch, room), problem, tile)


def wide_offsets(tensors: tuple[torch.Tensor, ...], tile: Tile, width: int) -> bool:
    """Whether an offset inside one tile can exceed 31 bits, so that it takes 64."""
    rows = max(tile.block_m, tile.block_n)
    return any(rows * x.stride(2) + width * x.stride(3) >= 2**31 for x in tensors)
