"""From a machine description to what a core takes: rates of one sub-partition, and the memory as an SM sees it."""

from __future__ import annotations

from functools import lru_cache

from memsim.gpu import Gpu
from memsim.machine.parts import BUFFER_REUSE, COLD_MISSES
from memsim.machine.steps import WORD_OF_WARP_BYTES, CoreTimes, MemoryTimes

WARP_LANES = 32
_COPY_WORDS = 4
# Multiplications and additions of one warp's mma.m16n8k16, twice their number (PTX ISA, mma.sync).
_MMA_FLOP = 2 * 16 * 8 * 16


@lru_cache(maxsize=64)
def core_times(gpu: Gpu, dtype: str) -> CoreTimes:
    """The core of a machine that has [sm.core] and [calibrated]. A pipe that runs `n` lanes a clock in the whole SM
    takes a warp's instruction for 32 · sub-partitions / n cycles."""
    core, fitted = gpu.sm.core, gpu.calibrated
    assert core is not None and fitted is not None
    parts = core.sub_partitions
    lanes = WARP_LANES * parts
    word = WORD_OF_WARP_BYTES * parts / gpu.sm.sram.bandwidth_bytes_per_clock
    return CoreTimes(
        sub_partitions=parts,
        fma=lanes / gpu.sm.pipes.alu_per_clock["float32"],
        integer_multiply=lanes / core.multiply_per_clock,
        alu=lanes / core.integer_per_clock,
        convert=lanes / core.conversion_per_clock,
        exp=lanes / gpu.sm.pipes.exp_per_clock["float32"],
        uniform=1.0,
        lsu_word=word,
        copy=word * _COPY_WORDS,
        mma=_MMA_FLOP * parts / core.mma_flop_per_clock,
        product_flop_per_cycle=gpu.sm.pipes.dot_flop_per_clock(dtype),
        sram_bytes_per_cycle=gpu.sm.sram.bandwidth_bytes_per_clock,
        exp_latency=fitted.exp_cycles,
        shuffle_latency=fitted.shuffle_cycles,
        sram_latency=fitted.sram_cycles,
        uniform_latency=fitted.uniform_cycles,
        operand_latency=fitted.operand_cycles,
        product_start=fitted.product_start_cycles,
        product_latency=fitted.product_end_cycles,
        barrier=fitted.barrier_cycles,
        fence=fitted.fence_cycles,
        spill_latency=fitted.spill_cycles,
        copies_at_banks=fitted.copies_at_banks,
        tensor_contention=fitted.tensor_contention_cycles,
    )


def memory_times(
    gpu: Gpu, sm_clocks: float, spill_miss_share: float, without: frozenset[str], *, cold: bool, lockstep: bool
) -> MemoryTimes:
    """What lies behind an SM of as many as share `sm_clocks` cycles a second, for tiles from HBM (`cold`) or from the
    L2. The requests of blocks in `lockstep` are merged before the L2, so that each SM has all that fits in."""
    assert gpu.calibrated is not None and gpu.sm.core is not None
    fitted, inward = gpu.calibrated, gpu.sm.core.inward_bytes_per_clock
    if gpu.l2 is None:
        rate = out = min(inward, gpu.hbm.bandwidth_bytes_per_s * fitted.hbm_efficiency / sm_clocks)
    else:
        l2 = gpu.l2.bandwidth_bytes_per_s / sm_clocks
        rate = inward if lockstep else min(inward, l2 / fitted.merged_share)
        out = min(inward, l2) / fitted.store_cost
    far = (cold or gpu.l2 is None) and COLD_MISSES not in without
    copy = fitted.hbm_copy_cycles if far else fitted.copy_cycles
    return MemoryTimes(
        bytes_per_cycle=rate,
        store_bytes_per_cycle=out,
        copy_latency=copy,
        box_latency=copy + fitted.box_cycles,
        load_latency=fitted.load_cycles if far else fitted.copy_cycles,
        descriptor_latency=fitted.descriptor_cycles,
        spill_miss_share=spill_miss_share,
        spill_miss_latency=fitted.spill_miss_cycles if gpu.l2 is not None else copy,
        reuse=BUFFER_REUSE not in without,
    )
