"""What a reader must know of a result: what is not simulated, what spills, what no kernel offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsim.attention import Attention
from memsim.gpu import Gpu
from memsim.resources import Resources
from memsim.tile import Tile
from memsim.trace import LaunchTrace


def notes_of(
    gpu: Gpu, problem: Attention, tile: Tile, traces: Sequence[LaunchTrace], resources: Sequence[Resources], *,
    lse: bool,
) -> tuple[str, ...]:  # fmt: skip
    """The notes of a result, a sentence or two each."""
    notes = []
    if gpu.l2 is not None:
        notes.append(
            "The L2 is not simulated: this is the two-level machine of `--l2 none`, "
            "in which every SRAM fill is an HBM read."
        )
    for trace, taken in zip(traces, resources, strict=True):
        notes += _spills(gpu, trace.name, taken)
    if tile.load_path == "descriptor-ws" and not _seen_right(problem, tile, lse=lse):
        notes.append(
            "Warp-specialised kernels were right on an H200 only for full attention without LSE, in blocks of 128 rows "
            "with 4 warps and 1 or 2 stages; memsim_kernels offers no others."
        )
    return tuple(notes)


def _spills(gpu: Gpu, name: str, taken: Resources) -> Iterator[str]:
    if taken.stack_bytes:
        yield (
            f"{name} spills: compiled with this tile it keeps {taken.stack_bytes} B of stack a thread, "
            "whose traffic is not simulated."
        )
    if taken.stack_bytes is not None or gpu.sm.registers is None:
        return
    limit = gpu.sm.registers.per_thread_limit
    if taken.accumulators > limit:
        yield (
            f"{name} would spill: with this tile its accumulators alone take {taken.accumulators} "
            f"registers a thread of {limit}; the spills' traffic is not simulated."
        )
    elif taken.registers == limit:
        yield (
            f"{name} may spill: its registers are estimated at the {limit} that a thread can have; "
            "memsim probe compiles it."
        )


def _seen_right(problem: Attention, tile: Tile, *, lse: bool) -> bool:
    return not problem.causal and not lse and (tile.block_m, tile.num_warps) == (128, 4) and tile.num_stages <= 2
