"""Reads what cuobjdump prints of a compiled kernel: its resources, its loops and the instructions of the main one.

A loop is a natural loop of the control-flow graph: an edge back to an instruction that every way to the edge passes,
and all that can reach that edge without passing it. Waits that ptxas moves behind the last EXIT and that jump back are
thereby no loops of the kernel's.

The main loop is the first whose share of tensor instructions is at least three quarters of the largest such share; in
a kernel without tensor instructions in a loop, the share of float32 and exp ones. So of flash's two loops it is the
one without masks, which comes first, and of a warp-specialised kernel the loop of the first math warp group, not the
one of the copies nor the dispatch loop around both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CLASSES = (
    "tensor", "exp", "fp32", "conversion", "shared_memory", "tensor_memory", "async_copy", "global_memory",
    "local_memory", "control", "other",
)  # fmt: skip
"""Classes of instructions: `exp` is the MUFU unit, `local_memory` spills, `control` branches, barriers and waits,
`other` integer arithmetic, moves, selects and shuffles."""

_OPCODES: dict[str, str] = {
    "exp": "MUFU",
    "fp32": "FADD FADD2 FMUL FMUL2 FFMA FFMA2 FFMA32I FADD32I FMUL32I FMNMX FMNMX3 FSEL FSET FSETP FCHK FSWZADD",
    "conversion": "F2F F2FP F2I F2IP I2F I2FP I2IP I2I FRND",
    "shared_memory": "LDS LDSM STS STSM ATOMS",
    "tensor_memory": "LDTM STTM LDT STT UTCCP UTCSHIFT UTCATOMSWS",
    "async_copy": "LDGSTS UTMALDG UTMASTG UTMAREDG UTMAPF UBLKCP UBLKPF UBLKRED",
    "global_memory": "LD LDG ST STG ATOM ATOMG RED REDG CCTL",
    "local_memory": "LDL STL",
    "control": "ARRIVES BAR BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL DEPBAR ENDCOLLECTIVE ERRBAR EXIT FENCE JMP JMX "
    "JMXU KILL LDGDEPBAR MEMBAR NANOSLEEP RET SYNCS USETMAXREG UTCBAR UTMACCTL UTMACMDFLUSH WARPGROUP WARPGROUPSET "
    "WARPSYNC YIELD",
}
_CLASS_OF = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
# HMMA, HGMMA, IMMA, QGMMA, UTCHMMA, …: matrix products, whatever their type.
_TENSOR = re.compile(r"(?:UTC)?[A-Z]G?MMA$")

# The instruction, its address before it, its 128 bits of encoding after it in two words, the lower first. For sm_120
# scheduling marks stand between the operands and the semicolon: `BRA 0xa70   &req={1} ?WAIT5;`.
_LINE = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;&?]*)[^;]*;"
    r"\s*/\* 0x[0-9a-f]{16} \*/\s*\n\s*/\* 0x([0-9a-f]{16}) \*/",
    re.MULTILINE,
)
# From bit 105 on: 4 bits of stall, 1 to yield, 3 and 3 for the barriers that are set, 6 for those waited for.
_SCHEDULE_BIT = 41
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `target` is the address that it may jump to, `falls` whether the next one may follow it.

    `opcode` is the name's first part ("HGMMA" of "HGMMA.64x64x16.F32"), `predicate` what it depends on ("@!P0") or
    empty. The compiler's schedule: `stall` cycles before the next one may issue, the barrier of six (7: none) that its
    result releases (`writes`) and that reading its operands releases (`reads`), and those that it waits for, a bit each
    (`waits`). Where they are in the encoding: Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture, section
    2.1.
    """

    address: int
    opcode: str
    target: int | None
    falls: bool
    name: str
    operands: str
    predicate: str
    stall: int
    writes: int
    reads: int
    waits: int


@dataclass(frozen=True)
class Loop:
    """One loop by the address of its first instruction, and how often each opcode occurs in it."""

    address: int
    opcodes: Mapping[str, int]

    @property
    def classes(self) -> dict[str, int]:
        """How often each class of instructions occurs in it."""
        return by_class(self.opcodes)

    def share(self, classes: Iterable[str]) -> float:
        """The share of its instructions that are of these classes."""
        mix = self.classes
        return sum(mix[name] for name in classes) / sum(mix.values())


def class_of(opcode: str) -> str:
    """The class of an opcode without its modifiers."""
    return "tensor" if _TENSOR.match(opcode) else _CLASS_OF.get(opcode, "other")


def by_class(opcodes: Mapping[str, int]) -> dict[str, int]:
    """Instructions by class, every class named."""
    mix = dict.fromkeys(CLASSES, 0)
    for opcode, times in opcodes.items():
        mix[class_of(opcode)] += times
    return mix


def read_usage(text: str) -> tuple[int, int]:
    """(registers, bytes of stack) per thread from `cuobjdump -res-usage`."""
    found = _USAGE.search(text)
    if found is None:
        raise ValueError("cuobjdump -res-usage names no registers")
    return int(found[1]), int(found[2])


def read_sass(text: str) -> list[Instruction]:
    """The instructions of the one kernel in the output of `cuobjdump -sass`."""
    instructions = []
    for address, predicate, name, operands, high in _LINE.findall(text):
        opcode = name.split(".")[0]
        jumps = opcode in ("BRA", "CALL", "JMP")
        target = _TARGET.search(operands) if jumps else None
        if target is None and opcode in ("BRA", "JMP"):
            raise ValueError(f"cuobjdump -sass shows a {name} that names no address: {operands.strip()!r}")
        # `BRA.U !UP0, 0x140` has its condition among the operands. A CALL comes back, or is a jump that need not.
        always = not predicate and "," not in operands and opcode in ("BRA", "JMP", "EXIT", "RET", "KILL")
        schedule = int(high, 16) >> _SCHEDULE_BIT
        instructions.append(Instruction(
            int(address, 16), opcode, int(target[1], 16) if target else None, not always, name, operands.strip(),
            predicate.strip(), stall=schedule & 15, writes=schedule >> 5 & 7, reads=schedule >> 8 & 7,
            waits=schedule >> 11 & 63,
        ))  # fmt: skip
    if not instructions:
        raise ValueError("cuobjdump -sass shows no instructions")
    return instructions


def opcodes_of(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How often each opcode occurs, by name."""
    return dict(sorted(Counter(instruction.opcode for instruction in instructions).items()))


def find_loops(instructions: list[Instruction]) -> list[Loop]:
    """Every natural loop, in the order of their first instructions. Loops that are one endless branch are left out."""
    starts, successors = _blocks(instructions)
    order = _reverse_postorder(successors)
    dominator = _dominators(successors, order)
    predecessors: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for follower in successors[block]:
            predecessors[follower].append(block)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for head in successors[block]:
            if _dominates(head, block, dominator):
                body = bodies.setdefault(head, {head})
                waiting = [block]
                while waiting:
                    member = waiting.pop()
                    if member not in body:
                        body.add(member)
                        waiting += predecessors[member]
    loops = []
    for head, body in sorted(bodies.items()):
        members = [i for block in sorted(body) for i in instructions[starts[block] : starts[block + 1]]]
        if len(members) > 1:
            loops.append(Loop(instructions[starts[head]].address, opcodes_of(members)))
    return loops


def main_loop(loops: list[Loop]) -> Loop | None:
    """The main loop by the module's rule; None where there is no loop with arithmetic in it."""
    for classes in (("tensor",), ("fp32", "exp")):
        shares = [loop.share(classes) for loop in loops]
        if any(shares):
            return next(loop for loop, share in zip(loops, shares, strict=True) if share >= 0.75 * max(shares))
    return None


def _blocks(instructions: list[Instruction]) -> tuple[list[int], list[list[int]]]:
    """(where each basic block starts, with the end; which blocks may follow each)."""
    position = {instruction.address: n for n, instruction in enumerate(instructions)}
    leaders = {0}
    for n, instruction in enumerate(instructions):
        if instruction.target is not None:
            leaders.add(position[instruction.target])
        if instruction.target is not None or not instruction.falls:
            leaders.add(n + 1)
    starts = sorted(leaders - {len(instructions)})
    number = {start: block for block, start in enumerate(starts)}
    starts.append(len(instructions))
    successors = []
    for block in range(len(starts) - 1):
        last = instructions[starts[block + 1] - 1]
        following = [number[position[last.target]]] if last.target is not None else []
        if last.falls and starts[block + 1] < len(instructions):
            following.append(block + 1)
        successors.append(following)
    return starts, successors


def _reverse_postorder(successors: list[list[int]]) -> list[int]:
    """The blocks that can be reached, each after those that lead to it but for loops."""
    seen, order, stack = {0}, [], [(0, iter(successors[0]))]
    while stack:
        block, following = stack[-1]
        step = next((follower for follower in following if follower not in seen), None)
        if step is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(successors[step])))
    return order[::-1]


def _dominators(successors: list[list[int]], order: list[int]) -> dict[int, int]:
    """Each block's immediate dominator (Cooper, Harvey & Kennedy, A Simple, Fast Dominance Algorithm, figure 3)."""
    rank = {block: n for n, block in enumerate(order)}
    predecessors: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for follower in successors[block]:
            predecessors[follower].append(block)
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [p for p in predecessors[block] if p in dominator]
            common = known[0]
            for other in known[1:]:
                while common != other:
                    if rank[common] > rank[other]:
                        common = dominator[common]
                    else:
                        other = dominator[other]
            if dominator.get(block) != common:
                dominator[block] = common
                changed = True
    return dominator


def _dominates(head: int, block: int, dominator: Mapping[int, int]) -> bool:
    while block != head and dominator[block] != block:
        block = dominator[block]
    return block == head
