"""Is a kernel's stream what its SASS says: schedule, kinds, loops, and the way of a specialised warp group?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from memsim_kernels import _sass
from memsim_kernels._plan import plan_calls
from memsim_kernels._sass import find_loops, read_sass
from memsim_kernels._stream import encode, packed, stream_of, unpacked
from memsim_kernels.probe import Compiled, compile_calls

from memsim import Attention, Tile, stream
from memsim.stream import Segment, Stream

from .test_sass import TWO_LOOPS, listing

# Of a kernel for sm_120, where cuobjdump also spells out the schedule: barriers waited for (req), set by the result
# (wr) and by the reading of the operands (rd), and cycles to the next instruction (WAIT, trans).
SPELLED_OUT = """
        /*12f0*/                   HMMA.16816.F32 R52, R44, R88, RZ       &req={2}     ?WAIT15_END_GROUP; /* 0x000000582c34723c */
                                                                                                          /* 0x004fde00000018ff */
        /*1330*/                   HMMA.16816.F32 R132, R44, R56, RZ      &req={4}     ?WAIT15_END_GROUP; /* 0x000000382c84723c */
                                                                                                          /* 0x010fde00000018ff */
        /*03c0*/              @!P4 LDG.E.128 R20, desc[UR14][R6.64]       &req={3} &rd=0x3 &wr=0x5 ?trans2; /* 0x0000000e0614c981 */
                                                                                                          /* 0x008764000c1e1d00 */
        /*0450*/              @!P1 LDG.E.128 R28, desc[UR14][R14.64]      &rd=0x2 &wr=0x5          ?trans1; /* 0x0000000e0e1c9981 */
                                                                                                          /* 0x000562000c1e1d00 */
        /*04a0*/                   MUFU.RCP R9, R9                        &req={1} &wr=0x3         ?trans2; /* 0x0000000900097308 */
                                                                                                          /* 0x002ee40000001000 */
"""  # noqa: E501

# What takes no pipe whose time is known: branches and their stacks, waits and fences between instructions, votes, an
# exchange to invalidate a descriptor.
OTHER_OPCODES = {
    "BRA", "NOP", "WARPGROUP", "SYNCS", "VOTEU", "BSSY", "BSYNC", "BREAK", "EXIT", "WARPSYNC", "FENCE", "ELECT",
    "ATOMG", "DEPBAR", "CCTL",
}  # fmt: skip


def marks(line: str) -> tuple[int, int, int, int]:
    """(stall, writes, reads, waits) as cuobjdump spells them out."""
    required, written, read = (re.search(mark, line) for mark in (r"req=\{([\d,]+)\}", r"wr=0x(\d)", r"rd=0x(\d)"))
    cycles = re.search(r"\?(?:WAIT|trans)(\d+)", line)
    assert cycles is not None
    return (
        int(cycles[1]), int(written[1]) if written else 7, int(read[1]) if read else 7,
        sum(1 << int(barrier) for barrier in required[1].split(",")) if required else 0,
    )  # fmt: skip


def test_the_schedule_is_read_as_cuobjdump_spells_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> list[tuple[int, int, int, int]]:
        return [(i.stall, i.writes, i.reads, i.waits) for i in read_sass(SPELLED_OUT)]

    spelled = [marks(line) for line in SPELLED_OUT.strip("\n").splitlines()[::2]]
    assert read() == spelled and len(set(spelled)) == len(spelled)
    for beside in (-1, 1):
        with monkeypatch.context() as patch:
            patch.setattr(_sass, "_SCHEDULE_BIT", _sass._SCHEDULE_BIT + beside)
            assert read() != spelled


@pytest.mark.parametrize(
    "line, kind, argument, flags",
    [
        ("FFMA R1, R2, R3, R4", "fma", 0, 0),
        ("HFMA2.MMA R10, -RZ, RZ, -INF , -INF", "fma", 0, 0),
        ("IMAD.MOV.U32 R4, RZ, RZ, R5", "integer_multiply", 0, 0),
        ("FMNMX R1, R2, R3, !PT", "alu", 0, 0),
        ("@P0 ISETP.GE.AND P0, PT, R23, UR14, PT", "alu", 0, 0),
        ("F2FP.F16.F32.PACK_AB R88, R113, R112", "convert", 0, 0),
        ("MUFU.EX2 R3, R3", "exp", 0, 0),
        ("F2I.FTZ.U32.TRUNC.NTZ R3, R2", "exp", 0, 0),
        ("UIMAD.WIDE.U32 UR4, UR22, UR6, URZ", "uniform", 0, 0),
        ("S2R R0, SR_TID.X", "uniform", 0, 0),
        ("SHFL.BFLY PT, R106, R113, 0x2, 0x1f", "shuffle", 0, 0),
        ("LDS R7, [R4+UR19]", "sram", 1, 0),
        ("STS.64 [UR9+0x30198], R2", "sram", 2, 0),
        ("STS.128 [R39+0xc000], R24", "sram", 4, 0),
        ("LDSM.16.M88.4 R4, [R0+UR45]", "sram", 4, 0),
        ("STSM.16.MT88.2 [R90+0x6000], R32", "sram", 2, 0),
        ("@!PT LDS RZ, [RZ]", "other", 0, 0),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R37], desc[UR10][R2.64], !P3", "copy", 4, 0),
        ("LDGSTS.E [R37], desc[UR10][R2.64], !P3", "copy", 1, 0),
        ("LDGDEPBAR", "copy_commit", 0, 0),
        ("DEPBAR.LE SB0, 0x2", "copy_wait", 2, 0),
        ("DEPBAR {5,4,3,2,1,0}", "other", 0, 0),
        ("HGMMA.64x64x16.F32 R24, gdesc[UR44], RZ, !UPT", "product", 8, 0),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR20], R24, gsb0", "product", 16, stream.COMMITS),
        (
            "HGMMA.64x32x16.F32 R88, R48, gdesc[UR20].tnspB, R88, gsb0", "product", 4,
            stream.COMMITS | stream.FROM_REGISTERS,
        ),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x1", "product_wait", 1, 0),
        ("WARPGROUP.ARRIVE", "other", 0, 0),
        ("HMMA.16816.F32 R40, R40, R32, RZ", "mma", 0, 0),
        ("BAR.SYNC.DEFER_BLOCKING 0x2, 0x80", "barrier", 0, 0),
        ("@UP0 UTMALDG.2D [UR24], [UR20]", "box_copy", 0, 0),
        ("UTMASTG.2D [UR8], [UR4]", "box_store", 0, 0),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R9", "box_wait", 0, 0),
        ("SYNCS.ARRIVE.TRANS64 RZ, [UR5], R9", "other", 0, 0),
        ("LDG.E.U16 R24, desc[UR10][R28.64]", "load", 1, 0),
        ("STG.E.128 desc[UR10][R2.64], R4", "store", 4, 0),
        ("LDL.LU.64 R176, [R1+0x50]", "spill_load", 2, 0),
        ("STL [R1+0x8], R30", "spill_store", 1, 0),
        ("UTMACCTL.IV [UR6]", "fence", 0, 0),
        ("MEMBAR.ALL.CTA", "fence", 0, 0),
        ("BRA 0x0", "other", 0, 0),
    ],
)  # fmt: skip
def test_kinds(line: str, kind: str, argument: int, flags: int) -> None:
    (instruction,) = read_sass(listing(line))
    assert encode(instruction)[:3] == (stream.KINDS.index(kind), argument, flags)


def streamed(sass: str, num_stages: int = 1) -> Stream:
    instructions = read_sass(sass)
    found = stream_of(instructions, find_loops(instructions), num_stages)
    assert found is not None
    return found


def kinds(segment: Segment) -> list[str]:
    return [stream.KINDS[kind] for kind, *_ in segment.instructions]


def test_a_stream_is_cut_at_its_loops_and_ends_at_its_exit() -> None:
    found = streamed(TWO_LOOPS)
    assert [segment.loop for segment in found.segments] == [False, True, False, True, False]
    assert [len(segment.instructions) for segment in found.segments] == [1, 5, 0, 6, 2]
    first, second = found.loops
    assert kinds(first) == ["product", "other", "exp", "fma", "other"]
    assert kinds(second) == ["product", "exp", "fma", "alu", "alu", "other"]
    assert kinds(found.segments[-1]) == ["store", "other"]
    assert unpacked(packed(found)) == found and unpacked(None) is None
    # Only what comes behind EXIT differs: waits that try again.
    assert streamed(TWO_LOOPS.replace("0x110 ;", "0x100 ;")) == found
    assert streamed(TWO_LOOPS.replace("MUFU.EX2", "MUFU.RCP")) == found
    assert streamed(TWO_LOOPS.replace("64x64x16", "64x32x16")) != found


def test_where_no_loop_multiplies_it_is_cut_at_those_with_arithmetic() -> None:
    found = streamed(listing(
        "NOP", "LDG.E R1, [R2]", "@P0 BRA 0x10", "FFMA R1, R1, R1, R1", "@P0 BRA 0x30", "EXIT",
    ))  # fmt: skip
    assert [len(segment.instructions) for segment in found.segments] == [3, 2, 1]
    nested = streamed(listing("NOP", "NOP", "FADD R1, R1, R1", "@P0 BRA 0x20", "@P1 BRA 0x10", "EXIT"))
    assert [len(segment.instructions) for segment in nested.segments] == [2, 2, 2]


def test_a_kernel_that_never_ends_has_no_stream() -> None:
    instructions = read_sass(listing("NOP", "BRA 0x0"))
    assert stream_of(instructions, find_loops(instructions)) is None


# Groups of warps as Triton 3.6 lays them out: the first math group right behind the dispatch, the copies last.
MATH_FIRST = listing(
    "S2R R0, SR_TID.X", "@!P0 BRA 0x1a0",  # 0x0
    "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8", "@P0 BRA 0x140",  # 0x20: the dispatch
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR7+0x30130], RZ",
    "@P1 BRA 0x80", "CS2R R2, SRZ", "BRA 0x100",  # 0x50: no keys
    "MOV R6, R7",  # 0x80
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR6+0x30110], R7",  # 0x90: the loop
    "HGMMA.64x128x16.F32 R24, gdesc[UR20], R24, gsb0",
    "@!P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR14+0x30140], R68",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR14+0x30100], R7",
    "HGMMA.64x128x16.F32 R88, R48, gdesc[UR20].tnspB, R88, gsb0",
    "@!P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR14+0x30160], R5", "@!P3 BRA 0x90",
    "@P0 BRA 0x120",  # 0x100
    "FMUL R1, R1, R2", "UTMASTG.2D [UR16], [UR4]", "BRA 0x20",
    "HGMMA.64x128x16.F32 R24, gdesc[UR20], R24, gsb0", *["NOP"] * 3, "@P3 BRA 0x140", "BRA 0x20",  # 0x140: another
    "UTMACCTL.IV [UR20]",  # 0x1a0: the copies
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x30180], R6", "UTMALDG.2D [UR24], [UR20]",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x30190], R6", "UTMALDG.2D [UR24], [UR20]",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8+0x30150], R3", "UTMALDG.2D [UR12], [UR10]",  # 0x1f0: their loop
    "UTMALDG.2D [UR12], [UR10]", "@!P0 BRA 0x1f0", "EXIT",
)  # fmt: skip
# And as Triton 3.9 does: the copies first, and what is done instead of the loop behind it.
COPIES_FIRST = listing(
    "S2R R0, SR_TID.X", "@P0 BRA 0xd0",  # 0x0
    "UTMACCTL.IV [UR20]",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x30180], R6", "UTMALDG.2D [UR24], [UR20]",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x30190], R6", "UTMALDG.2D [UR24], [UR20]", "@!P0 BRA 0xc0",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8+0x30150], R3", "UTMALDG.2D [UR12], [UR10]",  # 0x80: their loop
    "UTMALDG.2D [UR12], [UR10]", "@!P0 BRA 0x80", "EXIT",
    "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8",  # 0xd0: the dispatch
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR7+0x30130], RZ",
    "@P0 BRA 0x1d0", "@!P1 BRA 0x1a0",
    "MOV R6, R7",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR6+0x30110], R7",  # 0x120: the loop
    "HGMMA.64x128x16.F32 R24, gdesc[UR20], R24, gsb0",
    "@!P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR14+0x30140], R68",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR14+0x30100], R7",
    "HGMMA.64x128x16.F32 R88, R48, gdesc[UR20].tnspB, R88, gsb0",
    "@!P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR14+0x30160], R5", "@!P3 BRA 0x120", "BRA 0x1b0",
    "CS2R R2, SRZ",  # 0x1a0: no keys
    "UTMASTG.2D [UR16], [UR4]", "BRA 0xd0",
    "HGMMA.64x128x16.F32 R24, gdesc[UR20], R24, gsb0", *["NOP"] * 3, "@P3 BRA 0x1d0", "BRA 0xd0",  # 0x1d0: another
    "EXIT",
)  # fmt: skip


@pytest.mark.parametrize("sass", [MATH_FIRST, COPIES_FIRST], ids=["math first", "copies first"])
def test_a_specialised_kernel_is_the_way_of_one_math_group(sass: str) -> None:
    """Descriptors, its box of Q, a box for each buffer, its own way but for that of no keys; its loop; its O."""
    found = streamed(sass, num_stages=2)
    before, loop, after = map(kinds, found.segments)
    assert [segment.loop for segment in found.segments] == [False, True, False]
    assert before.count("fence") == 1 and before.count("box_wait") == 1 and before.count("product") == 0
    assert before.count("box_copy") == 1 + 2 * 2 and before.count("alu") == 1
    assert before.index("fence") < before.index("box_copy") < before.index("box_wait") < before.index("alu")
    assert loop == ["box_wait", "product", "box_copy", "box_wait", "product", "box_copy", "other"]
    assert after.count("box_store") == 1 and after[-1] == "other" and "alu" not in after and "product" not in after
    assert kinds(streamed(sass, num_stages=3).segments[0]).count("box_copy") == 1 + 2 * 3


def test_specialised_in_another_way_has_no_stream() -> None:
    instructions = read_sass(
        listing("USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8", "FADD R1, R1, R1", "@P0 BRA 0x10", "EXIT")
    )
    assert stream_of(instructions, find_loops(instructions)) is None


PLAIN = Attention(1, 8, None, 1024, 1024, 64)
TILES = (
    Tile(64, 64, 4, 3), Tile(128, 64, 8, 2), Tile(128, 32, 4, 1), Tile(64, 64, 4, 2, "descriptor"),
    Tile(128, 64, 4, 2, "descriptor-ws"), Tile(32, 32, 4, 2),
)  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[object, Compiled]]:
    """Flash with each of the tiles, and naive's three kernels on rows that are whole, padded and too long to hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        named: dict[object, object] = {}
        for tile in TILES:
            named[tile] = plan_calls("flash", PLAIN, tile)[0]
        for length in (1024, 1000, 65_536):
            for call in plan_calls("naive", replace(PLAIN, seq_len_k=length), Tile(64, 64, 4, 3)):
                named[call.name, length] = call
        found = compile_calls(list(named.values()), "sm_90")  # type: ignore[arg-type]
        yield dict(zip(named, found, strict=True))


def total(segments: Sequence[Segment], kind: int) -> int:
    """The sum of the arguments of a kind."""
    return sum(i[1] for segment in segments for i in segment.instructions if i[0] == kind)


def number(segments: Sequence[Segment], kind: int) -> int:
    return sum(i[0] == kind for segment in segments for i in segment.instructions)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_trip_does_what_a_trip_of_flash_is(tile: Tile, compiled: dict[object, Compiled]) -> None:
    """Both products of a tile, its K and V in copies, an exponential for each element and row."""
    found = compiled[tile].stream
    assert found is not None and found.segments
    threads = 32 * tile.num_warps
    rows = 64 if tile.load_path == "descriptor-ws" else tile.block_m  # of one math group
    for loop in found.loops:
        pairs = rows * tile.block_n * PLAIN.head_dim
        if tile.block_m >= 64:
            groups = tile.num_warps // 4
            steps = total([loop], stream.PRODUCT) * 8 * 64 * 16 * groups
            assert steps == 2 * pairs and number([loop], stream.MMA) == 0
        else:
            assert number([loop], stream.MMA) * tile.num_warps * 16 * 8 * 16 == 2 * pairs
        assert number([loop], stream.EXP) >= rows * tile.block_n // threads
        if tile.load_path == "pointer" and tile.num_stages > 1:
            assert total([loop], stream.COPY) * 4 * threads == 2 * tile.block_n * PLAIN.head_dim * 2
        elif tile.load_path != "pointer":
            assert loop.copies == 2 and number([loop], stream.BOX_WAIT) == 2
    if tile.load_path == "pointer":
        assert total(found.segments, stream.STORE) * 4 * threads == tile.block_m * PLAIN.head_dim * 2
    else:
        assert number(found.segments, stream.BOX_STORE) == 1
        q, ring = 1, tile.num_stages if tile.load_path == "descriptor-ws" else tile.num_stages - 1
        assert number(found.segments[:1], stream.BOX_COPY) == q + 2 * ring
    assert number(found.segments, stream.SPILL_LOAD) == 0 == compiled[tile].stack_bytes


def test_naive_kernels_do_a_row_or_a_tile(compiled: dict[object, Compiled]) -> None:
    """softmax loads and stores a row of 1,024 once; one that it cannot hold it reads twice, each time in a loop."""

    def segments(kernel: str, length: int) -> tuple[Segment, ...]:
        found = compiled[kernel, length].stream
        assert found is not None
        return found.segments

    row = segments("softmax", 1024)
    assert total(row, stream.LOAD) * 4 * 128 == total(row, stream.STORE) * 4 * 128 == 1024 * 2
    for length in (1024, 1000):
        assert [segment.loop for segment in segments("softmax", length)] == [False]
        assert number(segments("softmax", length), stream.EXP) >= 1024 // 128
        for kernel in ("qk", "pv"):
            found = segments(kernel, length)
            assert total(found, stream.PRODUCT) * 8 * 16 == 64 * PLAIN.head_dim
            assert [segment.loop for segment in found if number([segment], stream.PRODUCT)] == [kernel == "pv"]
    long = segments("softmax", 65_536)
    assert [segment.loop for segment in long] == [False, True, False, True, False]
    assert [number([segment], stream.STORE) > 0 for segment in long] == [False, False, False, True, False]
    assert [number([segment], stream.LOAD) > 0 for segment in long] == [False, True, False, True, False]


def test_every_opcode_is_known(compiled: dict[object, Compiled]) -> None:
    """What takes no pipe does so because it is named here, not because nobody has seen it."""
    seen = {opcode for kernel in compiled.values() for opcode in kernel.opcodes or {}}
    assert len(seen) > 50

    def unknown(opcodes: set[str]) -> set[str]:
        found = [i for opcode in opcodes - {"HGMMA"} for i in read_sass(listing(f"{opcode} R0, 0x0"))]
        return {i.opcode for i in found if encode(i)[0] == stream.OTHER} - OTHER_OPCODES

    assert unknown(seen) == set()
    assert unknown({"FADD", "FANCY", "NOP"}) == {"FANCY"}


def test_other_architectures_have_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        (found,) = compile_calls(plan_calls("flash", PLAIN, Tile(64, 32, 4, 2)), "sm_80")
        assert found.stream is None and found.resources.stream is None
