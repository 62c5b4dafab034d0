"""Which tile and load path a kernel takes when none is asked for, and which it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from memsim.attention import Attention
from memsim.errors import MemsimError, TileDoesNotFit
from memsim.gpu import Gpu
from memsim.tile import Tile
from memsim_kernels._checks import check_tile

LOAD_PATHS = ("pointer", "descriptor", "descriptor-ws")


@dataclass(frozen=True)
class Choice:
    """A tile and the way its loads are made."""

    tile: Tile
    load_path: str


_POINTER_64 = Choice(Tile(64, 64, 4, 3), "pointer")

# The fastest of those tried on an H200 (Triton 3.6, float16 and bfloat16, 4,096 and 16,384 keys), by padded head width
# and causal: where descriptors suit the tensors, then where only pointers do.
MEASURED_SM90: dict[tuple[int, bool], tuple[Choice, Choice]] = {
    (64, False): (Choice(Tile(64, 128, 4, 2), "descriptor"), Choice(Tile(128, 64, 8, 3), "pointer")),
    (64, True): (_POINTER_64, _POINTER_64),
    (128, False): (Choice(Tile(128, 128, 4, 2), "descriptor-ws"), _POINTER_64),
    (128, True): (Choice(Tile(64, 64, 4, 3), "descriptor"), _POINTER_64),
}
# What takes the place of a warp-specialised choice when the LSE is asked for.
_WITH_LSE = Choice(Tile(64, 64, 4, 3), "descriptor")

# Warp-specialised kernels seen right on an H200, full attention without LSE. With 3 stages or more they return NaN;
# causal masks and the LSE come out wrong (see flash_descriptor_kernel).
SPECIALIZED_SEEN_RIGHT = frozenset(
    {(128, 128, 4, 2), (128, 64, 4, 2), (64, 128, 4, 2), (64, 64, 4, 2), (128, 128, 4, 1)}
)


def choose(
    problem: Attention, gpu: Gpu, tile: Tile | None, load_path: str | None, *, descriptors: bool, lse: bool
) -> Choice:
    """The tile and load path to launch: what was asked for, else the measured best, else the machine's first that
    fits. `descriptors` says whether they suit the tensors. Raises `MemsimError` for a load path that does not suit."""
    if load_path is not None and load_path not in LOAD_PATHS:
        raise MemsimError(f"load_path is {load_path!r}; it must be one of {', '.join(LOAD_PATHS)}.")
    if load_path not in (None, "pointer") and not descriptors:
        raise MemsimError(
            f"the {load_path} load path needs a Hopper GPU or later and 16-bit tensors whose columns are contiguous "
            "and whose rows start on multiples of 16 bytes; take load_path='pointer'."
        )
    if tile is not None:
        chosen = Choice(tile, load_path or "pointer")
    else:
        chosen = _default(problem, gpu, descriptors and load_path != "pointer", lse)
        if load_path is not None and load_path != chosen.load_path:
            chosen = Choice(Tile(128, 128, 4, 2) if load_path == "descriptor-ws" else _WITH_LSE.tile, load_path)
    if chosen.load_path == "descriptor-ws":
        _check_specialized(problem, chosen.tile, lse)
    return chosen


def _check_specialized(problem: Attention, t: Tile, lse: bool) -> None:
    faults = []
    if (t.block_m, t.block_n, t.num_warps, t.num_stages) not in SPECIALIZED_SEEN_RIGHT:
        right = "; ".join(str(Tile(*seen)) for seen in sorted(SPECIALIZED_SEEN_RIGHT))
        faults.append(f"tile {t} is none of the warp-specialised ones seen right: {right}.")
    if problem.causal or lse:
        faults.append("warp-specialised kernels are right only for full attention without LSE; take 'descriptor'.")
    if faults:
        raise MemsimError(faults)


def _default(problem: Attention, gpu: Gpu, descriptors: bool, lse: bool) -> Choice:
    width = max(16, 1 << (problem.head_dim - 1).bit_length())
    measured = MEASURED_SM90.get((max(64, width), problem.causal)) if gpu.architecture == "sm_90" else None
    if measured is not None and problem.dtype_bytes == 2:
        chosen = measured[0 if descriptors else 1]
        return _WITH_LSE if lse and chosen.load_path == "descriptor-ws" else chosen
    refusals = []
    for listed in gpu.tiles:
        tile = Tile(listed.block_m, listed.block_n, listed.num_warps, listed.num_stages)
        try:
            check_tile("flash", problem.dtype, problem.head_dim, problem.causal, tile, gpu)
        except TileDoesNotFit as refusal:
            refusals.append(refusal)
            continue
        return Choice(tile, "pointer")
    raise refusals[-1]
