"""What each instruction of a stream is to a core: its pipe, how long that takes it, what its result waits for.

Worked out once for a stream, a core and the memory behind it, so that a run of the core only goes through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from memsim import stream as s
from memsim.stream import Instruction, Stream

# Pipes of a sub-partition by number; BANKS is the SRAM's own bandwidth, LSU the way of single lanes to it.
FMA, ALU, EXP, UNIFORM, LSU, TENSOR, BANKS = range(7)
PIPES = ("fma", "alu", "exp", "uniform", "lsu", "tensor", "sram")
WAITS = ("tensor", "exp", "alu", "sram", "memory", "order")
FOR_TENSOR, FOR_EXP, FOR_ALU, FOR_SRAM, FOR_MEMORY, FOR_ORDER = range(6)
WAIT_OF_PIPE = (FOR_ALU, FOR_ALU, FOR_EXP, FOR_ALU, FOR_SRAM, FOR_TENSOR, FOR_SRAM)
WORD_OF_WARP_BYTES = 128
_PRODUCT_ROWS, _PRODUCT_DEPTH, _ELEMENT_BYTES = 64, 16, 2
_BY_WORDS = (s.SRAM, s.LOAD, s.STORE, s.SPILL_LOAD, s.SPILL_STORE)
# Of these nothing is left behind but the use of a pipe, and a result.
_PLAIN = (
    s.FMA, s.INTEGER_MULTIPLY, s.ALU, s.CONVERT, s.EXP, s.UNIFORM, s.SHUFFLE, s.SRAM, s.MMA, s.OTHER, s.BOX_STORE,
)  # fmt: skip
_CAUSES = {
    s.EXP: FOR_EXP, s.CONVERT: FOR_EXP, s.SHUFFLE: FOR_SRAM, s.SRAM: FOR_SRAM, s.MMA: FOR_TENSOR, s.LOAD: FOR_MEMORY,
    s.SPILL_LOAD: FOR_MEMORY,
}  # fmt: skip


@dataclass(frozen=True)
class CoreTimes:
    """What a sub-partition takes, in cycles: a warp's instruction on a pipe, and latencies. Of what the whole SM
    shares, `sub_partitions` times what the SM takes. `tensor_contention` is what arithmetic beside a running product
    costs more; `depend` off leaves the compiler's waits out, `share` off gives each block pipes of its own."""

    sub_partitions: int
    fma: float
    integer_multiply: float
    alu: float
    convert: float
    exp: float
    uniform: float
    lsu_word: float
    copy: float
    mma: float
    product_flop_per_cycle: float
    sram_bytes_per_cycle: float
    exp_latency: float
    shuffle_latency: float
    sram_latency: float
    uniform_latency: float
    operand_latency: float
    product_start: float
    product_latency: float
    barrier: float
    fence: float
    spill_latency: float
    copies_at_banks: float
    tensor_contention: float
    depend: bool = True
    share: bool = True


@dataclass(frozen=True)
class MemoryTimes:
    """What lies behind the SM, as its copies see it: bytes a cycle into the SM or out of it, latencies in cycles (of
    a block's first boxes that of their descriptors besides; of spilled words, which stay in the L2, where the L1 no
    longer holds them), the share of spilled words that it no longer holds."""

    bytes_per_cycle: float
    store_bytes_per_cycle: float
    copy_latency: float
    box_latency: float
    load_latency: float
    descriptor_latency: float = 0.0
    spill_miss_share: float = 0.0
    spill_miss_latency: float = 0.0
    reuse: bool = True


Result = tuple[int, float, int, int]
"""(barrier of the result, its latency, what waiting for it is put down to, barrier of the operands' reading)."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What an instruction of `kind` sets going beside its pipe: `amount` bytes on their way, a product that takes so
    many `cycles` and those `at_banks`, a wait for all groups but `argument`. Of a load also its `result`, whose
    latency depends on the way in."""

    kind: int
    argument: int
    amount: float
    result: Result
    cycles: float = 0.0
    at_banks: float = 0.0
    commits: bool = False


Step = tuple[tuple[int, ...], int | None, float, float, tuple[Deed | None, Result] | None]
"""(barriers that are waited for, pipe, cycles on it, stall, what is left behind, if anything) of an instruction."""


@lru_cache(maxsize=64)
def steps_of(stream: Stream, core: CoreTimes, memory: MemoryTimes) -> tuple[tuple[Step, ...], ...]:
    """The steps of each segment."""
    steps: dict[Instruction, Step] = {}
    for segment in stream.segments:
        for instruction in segment.instructions:
            if instruction not in steps:
                steps[instruction] = _step(instruction, core, memory)
    return tuple(tuple(steps[i] for i in segment.instructions) for segment in stream.segments)


def _step(instruction: Instruction, core: CoreTimes, memory: MemoryTimes) -> Step:
    kind, argument, _, stall, writes, reads, waits = instruction
    pipe, cycles, latency = _pipe(kind, argument, core)
    if kind == s.LOAD:
        latency = memory.load_latency
    elif kind == s.SPILL_LOAD:
        latency = core.spill_latency + memory.spill_miss_share * memory.spill_miss_latency
    # A barrier that no latency is known for is released as SRAM answers.
    result = (writes, latency or core.sram_latency, _CAUSES.get(kind, FOR_ALU), reads)
    deed = _deed(instruction, result, core, memory)
    if deed is not None and kind in (s.LOAD, s.SPILL_LOAD):
        result = (s.NO_BARRIER, *result[1:])
    awaited = tuple(bit for bit in range(waits.bit_length()) if waits >> bit & 1) if core.depend else ()
    leaves = deed is not None or writes != s.NO_BARRIER or reads != s.NO_BARRIER
    return awaited, pipe, cycles, float(max(1, stall)), (deed, result) if leaves else None


def _pipe(kind: int, words: int, core: CoreTimes) -> tuple[int | None, float, float]:
    """(pipe, cycles on it, latency of the result, 0 where that is as SRAM's) of an instruction."""
    if kind in _BY_WORDS:
        return LSU, core.lsu_word * words, 0.0
    pipes: dict[int, tuple[int, float, float]] = {
        s.FMA: (FMA, core.fma, 0.0),
        s.INTEGER_MULTIPLY: (FMA, core.integer_multiply, 0.0),
        s.ALU: (ALU, core.alu, 0.0),
        s.CONVERT: (ALU, core.convert, core.exp_latency),
        s.EXP: (EXP, core.exp, core.exp_latency),
        s.UNIFORM: (UNIFORM, core.uniform, core.uniform_latency),
        s.SHUFFLE: (LSU, core.lsu_word, core.shuffle_latency),
        s.MMA: (TENSOR, core.mma, 0.0),
        s.COPY: (LSU, core.copy, core.sram_latency),
    }
    return pipes.get(kind, (None, 0.0, 0.0))


def _deed(instruction: Instruction, result: Result, core: CoreTimes, memory: MemoryTimes) -> Deed | None:
    kind, argument, flags, *_ = instruction
    words_bytes = float(argument * WORD_OF_WARP_BYTES * core.sub_partitions)
    if kind in _PLAIN:
        return None
    if kind in (s.LOAD, s.STORE, s.COPY):
        return Deed(kind, argument, words_bytes, result) if words_bytes or kind != s.LOAD else None
    if kind in (s.SPILL_LOAD, s.SPILL_STORE):
        missed = words_bytes * memory.spill_miss_share
        return Deed(kind, argument, missed, result) if missed else None
    if kind == s.PRODUCT:
        columns = 8 * argument
        rows = columns + (0 if flags & s.FROM_REGISTERS else _PRODUCT_ROWS)
        return Deed(
            kind, argument, 0.0, result,
            cycles=2.0 * _PRODUCT_ROWS * columns * _PRODUCT_DEPTH / core.product_flop_per_cycle,
            at_banks=rows * _PRODUCT_DEPTH * _ELEMENT_BYTES / core.sram_bytes_per_cycle,
            commits=bool(flags & s.COMMITS),
        )  # fmt: skip
    return Deed(kind, argument, 0.0, result)
