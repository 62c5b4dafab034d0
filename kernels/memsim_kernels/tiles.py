"""Which tile a kernel takes when none is asked for, and which it refuses.

The rule: the tile that was measured fastest for this architecture, head width, dtype and mask among those that suit
(`data/measured_tiles.csv`, written by `benchmarks/kernel_speed.py --tiles`): of every load path where tensor
descriptors can describe the tensors, of those that also give the LSE if it is asked for, of pointers alone otherwise.
What was not measured takes the first tile of the machine's list that fits.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from memsim.attention import Attention
from memsim.errors import MemsimError, TileDoesNotFit
from memsim.gpu import Gpu
from memsim.grid import ROWS_FAST
from memsim.tile import SPECIALIZED_SEEN_RIGHT, Tile
from memsim_kernels._checks import check_tile
from memsim_kernels.costs import padded_width

# float32 products are FMAs, whose operands the threads hold in registers, and larger tiles spill: 64×64 with 4 warps
# takes 7,424 B of stack a thread at 128 columns. These, by padded head width, are the largest of those tried whose
# kernels (flash, qk, pv) have no stack on sm_80, sm_89, sm_90 and sm_100 (compiled by Triton 3.6). Where tiles were
# timed, the fastest is taken instead, stack or not.
FLOAT32: dict[int, Tile] = {64: Tile(64, 32, 8, 2), 128: Tile(32, 32, 8, 2), 256: Tile(32, 16, 8, 2)}


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
    if replace(tile, grid_order=ROWS_FAST) not in SPECIALIZED_SEEN_RIGHT:
        right = "; ".join(sorted(str(replace(seen, load_path="pointer")) for seen in SPECIALIZED_SEEN_RIGHT))
        faults.append(f"tile {tile} is none of the warp-specialised ones seen right: {right}.")
    if problem.causal or lse:
        faults.append("warp-specialised kernels are right only for full attention without LSE; take 'descriptor'.")
    if faults:
        raise MemsimError(faults)


@dataclass(frozen=True)
class MeasuredTile:
    """The fastest tile of a kind of problem: `loads` is "any", "lse" (every path that also gives the LSE) or "pointer";
    `tflops` the geometric mean over `problems` problems."""

    architecture: str
    head_dim: int
    dtype: str
    causal: bool
    loads: str
    tile: Tile
    tflops: float
    problems: int


@lru_cache(maxsize=1)
def measured_tiles() -> tuple[MeasuredTile, ...]:
    """The table of measured tiles."""
    with files("memsim_kernels").joinpath("data/measured_tiles.csv").open(encoding="utf-8") as lines:
        return tuple(
            MeasuredTile(
                row["architecture"], int(row["head_dim"]), row["dtype"], row["causal"] == "1", row["loads"],
                Tile(int(row["block_m"]), int(row["block_n"]), int(row["num_warps"]), int(row["num_stages"]),
                     row["load_path"]),
                float(row["tflops"]), int(row["problems"]),
            )
            for row in csv.DictReader(lines)
        )  # fmt: skip


def _default(problem: Attention, gpu: Gpu, descriptors: bool, lse: bool) -> Tile:
    loads = "pointer" if not descriptors else "lse" if lse else "any"
    wanted = (gpu.architecture, max(64, padded_width(problem.head_dim)), problem.dtype, problem.causal, loads)
    for found in measured_tiles():
        if (found.architecture, found.head_dim, found.dtype, found.causal, found.loads) == wanted:
            return first_that_fits("flash", problem, gpu, found.tile)
    return first_that_fits("flash", problem, gpu)


def first_that_fits(algorithm: str, problem: Attention, gpu: Gpu, preferred: Tile | None = None) -> Tile:
    """The preferred tile, for float32 its own; where that does not fit, the first of the machine's list that does."""
    tiles = [Tile(t.block_m, t.block_n, t.num_warps, t.num_stages) for t in gpu.tiles]
    if problem.dtype == "float32" and preferred is None:
        preferred = FLOAT32[max(64, padded_width(problem.head_dim))]
    refusals = []
    for tile in [preferred, *tiles] if preferred is not None else tiles:
        try:
            check_tile(algorithm, problem.dtype, problem.head_dim, problem.causal, tile, gpu)
        except TileDoesNotFit as refusal:
            refusals.append(refusal)
            continue
        return tile
    raise refusals[-1]
