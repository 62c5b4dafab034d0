"""The instruction stream of a compiled kernel, as the replay of an SM executes it (`memsim.stream`), from its SASS.

It is the instructions in the order of their addresses from the entry to the last EXIT that depends on nothing, cut at
the loops with matrix products, or, where there are none, with float32 or exp instructions. A loop reaches from its
head to its last branch back; what ptxas moved behind that EXIT (waits that try again) is left out.

A warp-specialised kernel has three warp groups in a loop that deals out work: one copies, two multiply. Its stream is
that of the first of these two as far as it waits. So what comes before its loop is, in this order:
- the copying group's way from the entry to its own loop: it makes the descriptors and fetches Q, for which the others
  wait. Of the boxes of Q, one a group, the stream keeps the one that its group waits for;
- copies of boxes into each of the num_stages buffers of K and V, which are empty at first;
- the group's own way to its loop, from where it parts from the other.
In the loop each arrival that gives a buffer back stands for the box that the copying group then fetches into it.
After the loop it follows the group to the branch back.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence

from memsim import stream
from memsim._stream_bytes import pack, stream_from, unpack
from memsim.stream import Segment, Stream
from memsim_kernels._sass import Instruction, Loop, main_loop

ARCHITECTURES_OF_STREAMS = ("sm_90",)
"""Those whose instructions are known here."""

_KINDS: dict[int, str] = {
    # Arithmetic in halves runs on the pipe of float32 multiply-adds.
    stream.FMA: "FADD FMUL FFMA HADD2 HMUL2 HFMA2",
    stream.INTEGER_MULTIPLY: "IMAD",
    stream.ALU: "FMNMX FMNMX3 FSEL FSETP FSET ISETP SEL LOP3 IADD IADD3 SHF PLOP3 LEA IABS SGXT PRMT VIADD VIMNMX "
    "VIADDMNMX P2R R2P BMSK FLO POPC MOV CS2R LOP ISCADD IMNMX",
    stream.CONVERT: "F2FP F2IP I2FP",
    stream.EXP: "MUFU F2F I2F F2I FRND",
    stream.UNIFORM: "S2R S2UR R2UR LDC",
    stream.SHUFFLE: "SHFL",
    stream.SRAM: "LDS LDSM STS STSM",
    stream.COPY: "LDGSTS",
    stream.COPY_COMMIT: "LDGDEPBAR",
    stream.MMA: "HMMA",
    stream.BARRIER: "BAR",
    stream.BOX_COPY: "UTMALDG",
    stream.BOX_STORE: "UTMASTG",
    stream.LOAD: "LDG LD",
    stream.STORE: "STG ST",
    stream.SPILL_LOAD: "LDL",
    stream.SPILL_STORE: "STL",
    stream.FENCE: "MEMBAR UTMACCTL ERRBAR",
}
_KIND_OF = {opcode: kind for kind, opcodes in _KINDS.items() for opcode in opcodes.split()}
_HAVE_WIDTH = (stream.SRAM, stream.COPY, stream.LOAD, stream.STORE, stream.SPILL_LOAD, stream.SPILL_STORE)
_COLUMNS_A_STEP = 8
_PRODUCT = re.compile(r"HGMMA\.64x(\d+)x\d+")
_BOX_WAIT = "SYNCS.PHASECHK"
_BOX: stream.Instruction = (stream.BOX_COPY, 0, 0, 1, stream.NO_BARRIER, stream.NO_BARRIER, 0)
_PENDING = re.compile(r"(?:SB0|gsb0), 0x([0-9a-f]+)")


def stream_of(instructions: Sequence[Instruction], loops: Sequence[Loop], num_stages: int = 1) -> Stream | None:
    """The stream of a kernel with so many stages, from all of its instructions and natural loops.

    None for a kernel that never ends, or whose warps are specialised in another way than the module says.
    """
    if any(i.opcode == "USETMAXREG" for i in instructions):
        return _specialised(instructions, loops, num_stages)
    end = max((i.address for i in instructions if i.opcode == "EXIT" and not i.falls), default=None)
    if end is None:
        return None
    segments, start = [], 0
    for head, last in _stretches(instructions, loops, end):
        segments += [
            Segment(False, _encoded(_between(instructions, start, head))),
            Segment(True, _encoded(_between(instructions, head, last + 1))),
        ]
        start = last + 1
    return stream_from([*segments, Segment(False, _encoded(_between(instructions, start, end + 1)))])


def packed(whole: Stream | None) -> list[tuple[bool, str]] | None:
    """A stream as JSON takes it: for each segment whether it is a loop, and its instructions."""
    if whole is None:
        return None
    return [(segment.loop, b64encode(pack(segment.instructions)).decode()) for segment in whole.segments]


def unpacked(segments: Sequence[tuple[bool, str]] | None) -> Stream | None:
    """The stream that was `packed`."""
    if segments is None:
        return None
    return stream_from(Segment(loop, unpack(b64decode(text))) for loop, text in segments)


def encode(i: Instruction) -> stream.Instruction:
    """An instruction by kind, argument and flags, with its schedule."""
    kind, argument, flags = _meaning(i)
    return kind, argument, flags, i.stall, i.writes, i.reads, i.waits


def _meaning(i: Instruction) -> tuple[int, int, int]:
    pending = _PENDING.search(i.operands)
    if i.opcode == "DEPBAR" and pending:
        return stream.COPY_WAIT, int(pending[1], 16), 0
    if i.opcode == "WARPGROUP" and pending:
        return stream.PRODUCT_WAIT, int(pending[1], 16), 0
    if product := _PRODUCT.match(i.name):
        flags = stream.COMMITS if "gsb0" in i.operands else 0
        if i.operands.split(",")[1].strip().startswith("R"):
            flags |= stream.FROM_REGISTERS
        return stream.PRODUCT, int(product[1]) // _COLUMNS_A_STEP, flags
    if i.name.startswith(_BOX_WAIT):
        return stream.BOX_WAIT, 0, 0
    kind = _KIND_OF.get(i.opcode)
    if kind is None:
        kind = stream.UNIFORM if i.opcode.startswith("U") else stream.OTHER
    if kind == stream.SRAM and i.predicate == "@!PT":
        return stream.OTHER, 0, 0
    return kind, _words(i.name) if kind in _HAVE_WIDTH else 0, 0


def _words(name: str) -> int:
    """32-bit words a lane that an access moves; matrices of LDSM and STSM are a word each."""
    parts = name.split(".")[1:]
    if "128" in parts:
        return 4
    if "64" in parts:
        return 2
    return int(parts[-1]) if parts and parts[-1] in ("2", "4") else 1


def _encoded(instructions: Sequence[Instruction]) -> tuple[stream.Instruction, ...]:
    return tuple(map(encode, instructions))


def _between(instructions: Sequence[Instruction], start: int, end: int) -> list[Instruction]:
    return [i for i in instructions if start <= i.address < end]


def _stretches(instructions: Sequence[Instruction], loops: Sequence[Loop], end: int) -> list[tuple[int, int]]:
    """(head, last branch back) of each loop to cut at; of loops in one another the inner one."""
    classes = ("tensor",) if any(loop.share(("tensor",)) for loop in loops) else ("fp32", "exp")
    found = []
    for loop in loops:
        last = _last_branch(instructions, loop.address, end)
        if last is not None and loop.share(classes):
            found.append((loop.address, last))
    return [a for a in found if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in found)]


def _last_branch(instructions: Sequence[Instruction], head: int, end: int) -> int | None:
    return max((i.address for i in instructions if i.target == head and head < i.address < end), default=None)


def _specialised(instructions: Sequence[Instruction], loops: Sequence[Loop], num_stages: int) -> Stream | None:
    math = main_loop(list(loops))
    fetching = [loop.address for loop in loops if "UTMALDG" in loop.opcodes and not loop.share(("tensor",))]
    last = _last_branch(instructions, math.address, instructions[-1].address) if math is not None else None
    if math is None or last is None or len(fetching) != 1:
        return None
    head = math.address
    copying = _way(instructions, 0, fetching[0])
    shared = {i.address for i in copying}
    own = [i for i in _way(instructions, 0, head) if i.address not in shared]
    fetched = sum(i.name.startswith(_BOX_WAIT) for i in own)
    before = [*_fetches(copying, fetched), *[_BOX] * (2 * num_stages), *_encoded(own)]
    loop = [
        (stream.BOX_COPY, *encode(i)[1:]) if i.name.startswith("SYNCS.ARRIVE") else encode(i)
        for i in _between(instructions, head, last + 1)
    ]
    after = _encoded(_way(instructions, last + 1))
    return stream_from([Segment(False, tuple(before)), Segment(True, tuple(loop)), Segment(False, after)])


def _way(instructions: Sequence[Instruction], start: int, end: int | None = None) -> list[Instruction]:
    """The instructions from an address to the one at `end`, without it, else to where the way ends or turns back.

    A branch that depends on something is taken only where `end` cannot be reached without; branches back never are.
    """
    leads: dict[int, bool] = {}
    following: dict[int, int | None] = {}
    after = None
    for i in reversed(instructions):
        ahead = i.target if i.target is not None and i.target > i.address else None
        falls = after if i.falls else None
        step = falls if falls is not None and (end is None or leads[falls] or ahead is None) else ahead
        following[i.address] = step
        leads[i.address] = i.address == end or (step is not None and leads[step])
        after = i.address
    by_address = {i.address: i for i in instructions}
    address: int | None = next(i.address for i in instructions if i.address >= start)
    found = []
    while address is not None and address != end:
        found.append(by_address[address])
        address = following[address]
    return found


def _fetches(instructions: Sequence[Instruction], boxes: int) -> list[stream.Instruction]:
    """The copying group's way to its loop, with so many boxes. Its waits for empty buffers are none."""
    found: list[stream.Instruction] = []
    for instruction in map(encode, instructions):
        kind = instruction[0]
        boxes -= kind == stream.BOX_COPY
        if kind == stream.BOX_WAIT or (kind == stream.BOX_COPY and boxes < 0):
            kind = stream.OTHER
        found.append((kind, *instruction[1:]))
    return found
