"""What one block takes of an SM: SRAM, registers, warps; and so how many blocks an SM holds at once.

SRAM comes from the program's own buffers by the rules of docs/design.md ("SRAM of a block"); registers from a table
of compiled kernels where it has the tile, else from a stated estimate. Where the kernel was compiled for the very
problem (`memsim._compiled.compile_now`), all of it comes from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memsim._compiled import CompiledKernel, from_table
from memsim.attention import Attention
from memsim.errors import TileDoesNotFit
from memsim.gpu import Gpu, Sm
from memsim.stream import Stream
from memsim.tile import Room, Tile, cdiv
from memsim.trace import Buffer, LaunchTrace

WARP_THREADS = 32
_TENSOR_MEMORY = ("sm_100", "sm_103")

# Registers a thread where the table has no row: (base, per float32 accumulator), for flash and for the products alone,
# where warp groups read their operands from SRAM and where each warp holds its own. Fitted to the table's float16
# kernels.
_REGISTERS_OF_FLASH = {True: (48, 1.2), False: (42, 2.2)}
_REGISTERS_OF_PRODUCTS = {True: (22, 1.3), False: (28, 1.6)}
# How far that is off over those kernels, but for warp-specialised ones (tests/fidelity/test_compiled_table.py).
ESTIMATE_MEAN_ERROR = 0.12
ESTIMATE_WORST_ERROR = 0.75


@dataclass(frozen=True, slots=True)
class Resources:
    """What one block of a launch takes, and how many such blocks an SM holds.

    `registers` are per thread (None on a machine without them), `registers_from` is "compiled", "table", "estimate"
    or "none". `stack_bytes` per thread is what the compiled kernel spills (None where no compiled kernel is known),
    `accumulators` the registers per thread that the values of a block take at least. `limited_by` names what keeps
    a further block out: sram, registers, warps or blocks; `block_warps` are the tile's, and those that the compiler
    adds to specialise warps. `stream` is what the compiled kernel executes, where that is known.
    """

    sram_bytes: int
    registers: int | None
    registers_from: str
    stack_bytes: int | None
    accumulators: int
    blocks_per_sm: int
    limited_by: str
    block_warps: int
    stream: Stream | None = None


def room_of(gpu: Gpu) -> Room:
    """Where a block of this machine may keep things."""
    return Room(
        registers=gpu.sm.registers is not None,
        sram_limit_bytes=gpu.sm.sram.block_limit_bytes,
        mma_tiles=gpu.architecture is not None,
        architecture=gpu.architecture,
    )


def blocks_per_sm(sm: Sm, sram_bytes: int, registers: int | None, num_warps: int) -> tuple[int, str]:
    """Blocks that fit on one SM together, and the limit that decides.

    Registers per thread are rounded up to `thread_unit`, allocated per warp in units of `warp_unit`, for the block's
    warps rounded up to `sm.warp_unit`; SRAM per block counts what the machine reserves for it.
    """
    limits = {
        "sram": sm.sram.capacity_bytes // max(1, sram_bytes + sm.sram.reserved_per_block_bytes),
        "warps": sm.max_warps // num_warps,
        "blocks": sm.max_blocks,
    }
    if sm.registers is not None and registers is not None:
        per_thread = cdiv(registers, sm.registers.thread_unit) * sm.registers.thread_unit
        per_warp = cdiv(per_thread * WARP_THREADS, sm.registers.warp_unit) * sm.registers.warp_unit
        warps = cdiv(num_warps, sm.warp_unit) * sm.warp_unit
        limits["registers"] = sm.registers.per_sm // (per_warp * warps)
    limiter = min(limits, key=lambda name: limits[name])
    return limits[limiter], limiter


def resources_of(
    gpu: Gpu, trace: LaunchTrace, problem: Attention, tile: Tile, *, lse: bool = False,
    compiled: Mapping[str, CompiledKernel] | None = None,
) -> Resources:  # fmt: skip
    """The resources of one launch, from `compiled` where it has the launch, else by rule, table and estimate.

    Raises `TileDoesNotFit`, with the sum spelled out, if not one block fits.
    """
    kernel = (compiled or {}).get(trace.name)
    source = "compiled"
    if kernel is None and gpu.architecture is not None:
        kernel, source = from_table(trace.name, gpu.architecture, problem, tile, lse), "table"
    if kernel is not None and (source == "compiled" or tile.load_path != "pointer"):
        sram_parts = [Buffer("compiled kernel", 1, kernel.sram_bytes)]
    else:
        sram_parts = [*trace.buffers, *_compiler_sram(gpu, trace, problem, tile)]
    sram_bytes = sum(b.count * b.bytes for b in sram_parts)
    limit = gpu.sm.sram.block_limit_bytes
    if sram_bytes > limit:
        raise TileDoesNotFit(
            f"{trace.name} with tile {tile} needs {sram_bytes} B of {limit} B: {spelled_sum(sram_parts)}; "
            "take a smaller tile or fewer stages."
        )
    accumulators = sum(b.count * b.bytes for b in trace.accumulators) // (4 * tile.num_warps * WARP_THREADS)
    warps = kernel.block_warps if kernel is not None else _block_warps(tile)
    registers = _registers(gpu, trace, problem, tile, kernel, accumulators)
    blocks, limiter = blocks_per_sm(gpu.sm, sram_bytes, registers, warps)
    if blocks == 0:
        raise TileDoesNotFit(
            f"{trace.name} with tile {tile} does not fit on an SM of {gpu.name}: "
            + {
                "warps": f"it has {warps} warps and an SM holds {gpu.sm.max_warps}",
                "registers": f"{warps} warps of {registers} registers a thread need more than the SM's "
                f"{gpu.sm.registers.per_sm if gpu.sm.registers else 0} registers",
            }.get(limiter, f"it needs {sram_bytes} B of SRAM and the reserve of {gpu.sm.sram.capacity_bytes} B")
            + "; take fewer warps or a smaller tile."
        )
    return Resources(
        sram_bytes=sram_bytes,
        registers=registers,
        registers_from="none" if registers is None else source if kernel is not None else "estimate",
        stack_bytes=None if kernel is None or registers is None else kernel.stack_bytes,
        accumulators=accumulators,
        blocks_per_sm=blocks,
        limited_by=limiter,
        block_warps=warps,
        stream=None if kernel is None else kernel.stream,
    )


def spelled_sum(parts: list[Buffer]) -> str:
    """`Q 32768 + K 4×32768 + V 4×32768`."""
    return " + ".join(f"{b.name} {b.bytes}" if b.count == 1 else f"{b.name} {b.count}×{b.bytes}" for b in parts)


def _compiler_sram(gpu: Gpu, trace: LaunchTrace, problem: Attention, tile: Tile) -> list[Buffer]:
    """SRAM that Triton adds to a program's own buffers (compiled with 3.6 and 3.9; docs/design.md)."""
    if gpu.architecture is None:
        return []
    extra = _descriptor_extra(gpu, problem, tile) if tile.load_path != "pointer" else []
    if trace.name == "softmax":
        # Each warp with columns of its own leaves its part of the row's maximum and sum for the others.
        columns = 1 << max(0, problem.seq_len_k - 1).bit_length()
        parts = min(tile.num_warps, columns // WARP_THREADS)
        extra += [Buffer("reduction", 1, 4 * parts)] if parts > 1 else []
    room = room_of(gpu)
    warp_groups = room.warp_group_products(tile, problem.dtype_bytes)
    width = room.padded_width(problem.head_dim)
    if trace.name == "flash":
        if warp_groups:
            extra += _blackwell_extra(tile) if gpu.architecture in _TENSOR_MEMORY else []
        elif tile.block_m < width or problem.dtype_bytes == 4:
            # Otherwise P goes from the first product's registers to the second's without touching SRAM.
            extra.append(Buffer("P", 1, problem.dtype_bytes * tile.block_m * tile.block_n))
    if trace.name == "pv":
        # O leaves through SRAM, up to 128 columns at a time, in the room of the buffers that are then done with.
        staged = problem.dtype_bytes * tile.block_m * min(width, 128)
        beyond = staged - sum(b.count * b.bytes for b in trace.buffers)
        extra += [Buffer("O", 1, beyond)] if beyond > 0 else []
    if trace.name in ("qk", "pv") and warp_groups and gpu.architecture in _TENSOR_MEMORY:
        extra.append(Buffer("barriers", 1, 8 if trace.name == "qk" else 16))
    return extra


def _descriptor_extra(gpu: Gpu, problem: Attention, tile: Tile) -> list[Buffer]:
    """Barriers that copies by descriptor arrive at, with the alignment they cause: at most so much (docs/design.md).

    A warp-specialised kernel never lets K and V take turns, and stages O by 64 rows in each of its two math warp
    groups.
    """
    extra = [Buffer("barriers", 1, 1024)]
    if tile.load_path == "descriptor-ws":
        row_bytes = problem.dtype_bytes * room_of(gpu).padded_width(problem.head_dim)
        if tile.num_stages == 1:
            extra.append(Buffer("V", 1, tile.block_n * row_bytes))
        extra.append(Buffer("O", 2, 64 * row_bytes))
    return extra


def _blackwell_extra(tile: Tile) -> list[Buffer]:
    """Barriers of the asynchronous matrix products, and the row sums that two warpgroups exchange."""
    if tile.num_stages == 1:
        # The sums then share room with K and V; what is left over varies by tile.
        return [Buffer("barriers", 1, 4096 if tile.num_warps > 4 else 1024 if tile.block_n >= 128 else 8)]
    extra = [Buffer("barriers", 1, 32)]
    if tile.num_warps > 4:
        extra.append(Buffer("reduction", 1, 4 * tile.block_m))
    return extra


def _registers(
    gpu: Gpu, trace: LaunchTrace, problem: Attention, tile: Tile, kernel: CompiledKernel | None, accumulators: int
) -> int | None:
    """Registers per thread: the compiled kernel's, else an estimate; None on a machine without them."""
    file = gpu.sm.registers
    if file is None:
        return None
    if kernel is not None:
        count: float = kernel.registers
    elif tile.load_path == "descriptor-ws":
        # A warp-specialised block starts with all registers dealt out evenly, and then moves them between its groups.
        count = file.per_sm // (_block_warps(tile) * WARP_THREADS) // file.thread_unit * file.thread_unit
    elif trace.name == "softmax":
        # 20, 23 and 32 registers at 4, 8 and 16 elements a thread (ncu on an H200).
        count = 16 + accumulators
    else:
        constants = _REGISTERS_OF_PRODUCTS if trace.name in ("qk", "pv") else _REGISTERS_OF_FLASH
        base, per_accumulator = constants[room_of(gpu).warp_group_products(tile, problem.dtype_bytes)]
        count = base + per_accumulator * accumulators
    return min(int(count), file.per_thread_limit)


def _block_warps(tile: Tile) -> int:
    """Warps of a block. A warp-specialised one has three groups (Triton 3.6 and 3.9, sm_90): copies, and math twice."""
    return 3 * tile.num_warps if tile.load_path == "descriptor-ws" else tile.num_warps
