"""What the kernels refuse before a launch, in the simulator's own sentences."""

from __future__ import annotations

from functools import lru_cache

import torch

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu, load_gpu
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import resources_of, room_of
from memsim.tile import Tile

LARGEST_HEAD_DIM = 256
# Triton's grids: the second and third axes stop at 65,535 programs.
_MOST_PROGRAMS = 65_535

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# A machine file for each compute capability whose compiler rules are known.
_MACHINES = {(8, 0): "a100-80gb", (8, 9): "rtx-4090", (9, 0): "h200", (10, 0): "b200"}


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None) -> Attention:
    """The problem that three tensors pose. Raises `MemsimError`, a sentence per fault."""
    faults = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            faults.append(f"{name} has {x.dim()} dimensions; it must be (batch, heads, seq, head_dim).")
        elif x.dtype not in _DTYPES:
            faults.append(f"{name} is {x.dtype}; it must be float16, bfloat16 or float32.")
        elif x.dtype != q.dtype:
            faults.append(f"{name} is {x.dtype} and q is {q.dtype}; they must be the same.")
        elif x.device != q.device:
            faults.append(f"{name} is on {x.device} and q on {q.device}; they must be on the same device.")
    if not faults:
        if k.shape != v.shape:
            faults.append(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; they must be the same.")
        if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
            faults.append(f"q has shape {tuple(q.shape)} and k {tuple(k.shape)}; batch and head_dim must be the same.")
        if q.shape[3] > LARGEST_HEAD_DIM:
            faults.append(f"head_dim is {q.shape[3]}; these kernels take up to {LARGEST_HEAD_DIM}.")
        if q.shape[0] > _MOST_PROGRAMS or q.shape[1] > _MOST_PROGRAMS:
            faults.append(f"q has shape {tuple(q.shape)}; batch and heads may be {_MOST_PROGRAMS} at most.")
    if faults:
        raise MemsimError(faults)
    return Attention(
        batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seq_len_q=q.shape[2], seq_len_k=k.shape[2],
        head_dim=q.shape[3], dtype=_DTYPES[q.dtype], causal=causal, scale=scale,
    )  # fmt: skip


def machine_of(device: torch.device) -> Gpu:
    """The machine file whose compiler rules hold for a device; an H200's where there is no GPU."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    name = _MACHINES.get(capability) or _MACHINES.get((capability[0], 0))
    if name is None:
        raise MemsimError(
            f"this GPU has compute capability {capability[0]}.{capability[1]}; these kernels know 8.0, 8.9, 9.0, 10.0."
        )
    return load_gpu(name)


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
