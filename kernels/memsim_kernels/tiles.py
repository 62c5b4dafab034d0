"""Which tile a kernel takes when none is asked for, and which it refuses."""

from __future__ import annotations

from dataclasses import replace

from memsim.attention import Attention
from memsim.errors import MemsimError, TileDoesNotFit
from memsim.gpu import Gpu
from memsim.tile import Tile
from memsim_kernels._checks import check_tile

_POINTER_64 = Tile(64, 64, 4, 3)
_DESCRIPTOR_64 = Tile(64, 64, 4, 3, "descriptor")

# The fastest of those tried on an H200 (Triton 3.6, float16 and bfloat16, 4,096 and 16,384 keys), by padded head width
# and causal: where descriptors suit the tensors, then where only pointers do.
MEASURED_SM90: dict[tuple[int, bool], tuple[Tile, Tile]] = {
    (64, False): (Tile(64, 128, 4, 2, "descriptor"), Tile(128, 64, 8, 3)),
    (64, True): (_POINTER_64, _POINTER_64),
    (128, False): (Tile(128, 128, 4, 2, "descriptor-ws"), _POINTER_64),
    (128, True): (_DESCRIPTOR_64, _POINTER_64),
}

# Warp-specialised kernels seen right on an H200, full attention without LSE. With 3 stages or more they return NaN;
# causal masks and the LSE come out wrong (see flash_descriptor_kernel).
SPECIALIZED_SEEN_RIGHT = frozenset(
    Tile(*shape, "descriptor-ws")
    for shape in ((128, 128, 4, 2), (128, 64, 4, 2), (64, 128, 4, 2), (64, 64, 4, 2), (128, 128, 4, 1))
)


def choose(problem: Attention, gpu: Gpu, tile: Tile | None, *, descriptors: bool, lse: bool) -> Tile:
    """The tile to launch: the one asked for, else the measured best, else the machine's first that fits.

    `descriptors` says whether they suit the tensors. Raises `MemsimError` for a load path that does not suit.
    """
    if tile is None:
        return _default(problem, gpu, descriptors, lse)
    if tile.load_path != "pointer" and not descriptors:
        raise MemsimError(
            f"the {tile.load_path} load path needs a Hopper GPU or later and 16-bit tensors whose columns are "
            "contiguous and whose rows start on multiples of 16 bytes; take load_path='pointer'."
        )
    if tile.load_path == "descriptor-ws":
        _check_specialized(problem, tile, lse)
    return tile


def _check_specialized(problem: Attention, tile: Tile, lse: bool) -> None:
    faults = []
    if tile not in SPECIALIZED_SEEN_RIGHT:
        right = "; ".join(sorted(str(replace(seen, load_path="pointer")) for seen in SPECIALIZED_SEEN_RIGHT))
        faults.append(f"tile {tile} is none of the warp-specialised ones seen right: {right}.")
    if problem.causal or lse:
        faults.append("warp-specialised kernels are right only for full attention without LSE; take 'descriptor'.")
    if faults:
        raise MemsimError(faults)


def _default(problem: Attention, gpu: Gpu, descriptors: bool, lse: bool) -> Tile:
    width = max(16, 1 << (problem.head_dim - 1).bit_length())
    measured = MEASURED_SM90.get((max(64, width), problem.causal)) if gpu.architecture == "sm_90" else None
    if measured is not None and problem.dtype_bytes == 2:
        chosen = measured[0 if descriptors else 1]
        return _DESCRIPTOR_64 if lse and chosen.load_path == "descriptor-ws" else chosen
    refusals = []
    for listed in gpu.tiles:
        tile = Tile(listed.block_m, listed.block_n, listed.num_warps, listed.num_stages)
        try:
            check_tile("flash", problem.dtype, problem.head_dim, problem.causal, tile, gpu)
        except TileDoesNotFit as refusal:
            refusals.append(refusal)
            continue
        return tile
    raise refusals[-1]
