"""The launches of a prepared algorithm as the machine replays them."""

from __future__ import annotations

from memsim.attention import Attention
from memsim.gpu import Gpu
from memsim.grid import grid_order
from memsim.machine import Compiled, Launched
from memsim.resources import Resources
from memsim.tile import Tile
from memsim.trace import LaunchTrace, Load, walk

_MATH_GROUPS = 2


def machine_launch(
    gpu: Gpu, trace: LaunchTrace, resources: Resources, problem: Attention, tile: Tile,
    blocks_per_sm: int | None = None,
) -> Launched:  # fmt: skip
    """(trace, blocks per SM, the compiled kernel if its instructions are known, the grid order) of one launch."""
    per_sm = resources.blocks_per_sm if blocks_per_sm is None else blocks_per_sm
    order = grid_order(tile.grid_order, problem, gpu, per_sm)
    if resources.stream is None:
        return trace, per_sm, None, order
    # A box of the loop: those that the block waits for again and again.
    boxes = [r.tile.box_bytes for r, loops in walk(trace.body) if isinstance(r, Load) and r.tile.box and loops]
    # Of a warp-specialised block the two groups that compute run its instructions.
    groups = _MATH_GROUPS if tile.load_path == "descriptor-ws" else 1
    warps = groups * tile.num_warps if groups > 1 else resources.block_warps
    compiled = Compiled(
        stream=resources.stream,
        warps=warps,
        stack_bytes=resources.stack_bytes or 0,
        sram_bytes=resources.sram_bytes,
        box_bytes=max(boxes, default=0),
        dtype=problem.dtype,
        groups=groups,
        copying_warps=resources.block_warps - warps,
    )
    return trace, per_sm, compiled, order
