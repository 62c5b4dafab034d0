"""The instruction stream of a compiled kernel, as far as time depends on it: what the replay of one SM executes.

A stream is the instructions of one warp in the order of the program, cut where loops begin and end. Each has a kind,
an argument, and the compiler's own schedule: the cycles until the next may issue (`stall`), the barrier that its result
releases (`writes`) and the one that its operands' reading releases (`reads`), of six, 7 for none, and the set of
barriers that it waits for (`waits`, a bit each). Compilers for NVIDIA GPUs from Volta on put these in every
instruction (Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

KINDS = (
    "fma", "integer_multiply", "alu", "convert", "exp", "uniform", "shuffle", "sram", "copy", "copy_commit",
    "copy_wait", "product", "product_wait", "mma", "barrier", "box_copy", "box_wait", "load", "store", "spill_load",
    "spill_store", "fence", "other", "box_store",
)  # fmt: skip
"""What an instruction does. `product` is an asynchronous matrix product of a warp group (wgmma), `mma` one of a warp;
`copy` an asynchronous copy into SRAM through pointers, `box_copy` one by a tensor descriptor."""

(
    FMA, INTEGER_MULTIPLY, ALU, CONVERT, EXP, UNIFORM, SHUFFLE, SRAM, COPY, COPY_COMMIT, COPY_WAIT, PRODUCT,
    PRODUCT_WAIT, MMA, BARRIER, BOX_COPY, BOX_WAIT, LOAD, STORE, SPILL_LOAD, SPILL_STORE, FENCE, OTHER, BOX_STORE,
) = range(len(KINDS))  # fmt: skip

COMMITS, FROM_REGISTERS = 1, 2
"""Flags of a product: it ends a group that can be waited for; its first operand is in registers, not in SRAM."""

NO_BARRIER = 7

Instruction = tuple[int, int, int, int, int, int, int]
"""(kind, argument, flags, stall, writes, reads, waits). The argument is the 32-bit words a lane for sram, copy, load,
store and spills; an eighth of the columns of a product; the groups that may be pending after a wait."""


@dataclass(frozen=True)
class Segment:
    """Instructions that run once, or as the body of a loop."""

    loop: bool
    instructions: tuple[Instruction, ...]

    @cached_property
    def copies(self) -> int:
        """Asynchronous copies in it."""
        return sum(instruction[0] in (COPY, BOX_COPY) for instruction in self.instructions)


@dataclass(frozen=True)
class Stream:
    """A kernel's instructions. Loops lie between segments that run once; equal streams compare equal by `name`."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def loops(self) -> tuple[Segment, ...]:
        """The loops, in order."""
        return tuple(segment for segment in self.segments if segment.loop)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.name == other.name
