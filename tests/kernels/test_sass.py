"""Does the probe read a compiled kernel's resources, loops and main loop as they are?"""

from __future__ import annotations

import pytest
from memsim_kernels._sass import by_class, class_of, find_loops, main_loop, opcodes_of, read_sass, read_usage


def listing(*lines: str) -> str:
    """Instructions as cuobjdump -sass prints them, 16 bytes apart, each with its two words of encoding."""
    word = "/* 0x000fe200000018ff */"
    shown = [
        f"        /*{16 * n:04x}*/ {line:>40} ;   {word}\n                                    {word}"
        for n, line in enumerate(lines)
    ]
    return "\n".join(["\tcode for sm_90a", "\t\tFunction : kernel", '\t.headerflags\t@"EF_CUDA_SM90"', *shown])


# A steady loop at 0x10, one with masks at 0x60, a wait that ptxas moved behind EXIT, and the trap at the end.
TWO_LOOPS = listing(
    "MOV R1, c[0x0][0x28]",
    "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24",  # 0x10
    "@!P0 BRA 0xe0",  # 0x20: waits behind EXIT if need be
    "MUFU.EX2 R3, R3",
    "FADD R5, R6, R7",
    "@P1 BRA 0x10",  # 0x50
    "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24",  # 0x60
    "MUFU.EX2 R3, R3",
    "FADD R5, R6, R7",
    "FSEL R5, R6, R7, P4",
    "ISETP.GE.AND P4, PT, R3, R4, PT",
    "@P2 BRA 0x60",  # 0xb0
    "STG.E.128 desc[UR4][R2.64], R4",
    "EXIT",  # 0xd0
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R9",  # 0xe0
    "@!P0 BRA 0xe0",
    "BRA 0x30",  # 0x100
    "BRA 0x110",  # 0x110
    "NOP",
)


def test_instructions_and_usage() -> None:
    instructions = read_sass(TWO_LOOPS)
    assert len(instructions) == 19
    assert [i.address for i in instructions] == list(range(0, 19 * 16, 16))
    assert opcodes_of(instructions)["BRA"] == 6 and opcodes_of(instructions)["HGMMA"] == 2
    conditional, always, call = read_sass(listing("BRA.U !UP0, 0x0", "BRA 0x0", "@!P2 CALL.REL.NOINC 0x0"))
    assert (conditional.falls, always.falls, call.falls) == (True, False, True)
    assert {i.target for i in (conditional, always, call)} == {0}
    (marked,) = read_sass(listing("@!P5 BRA 0x0           &req={1,2}    ?WAIT15_END_GROUP"))
    assert (marked.opcode, marked.target, marked.falls) == ("BRA", 0, True)
    with pytest.raises(ValueError, match="a BRA that names no address: 'R4'"):
        read_sass(listing("BRA R4"))
    usage = " Function kernel:\n  REG:168 STACK:24 SHARED:1024 LOCAL:0 CONSTANT[0]:648"
    assert read_usage(usage) == (168, 24)
    for bad in ("", "cuobjdump fatal   : no kernel"):
        with pytest.raises(ValueError, match="registers"):
            read_usage(bad)
        with pytest.raises(ValueError, match="instructions"):
            read_sass(bad)


def test_loops_and_the_main_one() -> None:
    loops = find_loops(read_sass(TWO_LOOPS))
    assert [loop.address for loop in loops] == [0x10, 0x60, 0xE0]
    # The wait belongs to the loop that jumps to it; the way back from behind EXIT makes no loop of all in between.
    assert dict(loops[0].opcodes) == {"BRA": 4, "FADD": 1, "HGMMA": 1, "MUFU": 1, "SYNCS": 1}
    assert dict(loops[1].opcodes) == {"BRA": 1, "FADD": 1, "FSEL": 1, "HGMMA": 1, "ISETP": 1, "MUFU": 1}
    assert main_loop(loops) is loops[0]


def test_the_main_loop_is_where_the_math_is() -> None:
    """Not a loop of copies, nor the dispatch loop around the loops of a warp-specialised kernel; of FP32 where there
    are no tensor instructions; none where there is no arithmetic."""
    specialized = find_loops(read_sass(listing(
        "NOP", "NOP", "NOP", "NOP",  # 0x0
        "BAR.SYNC 0x1", "@P0 BRA 0xb0",  # 0x40: dispatch
        "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24", "FADD R1, R1, R1", "@P1 BRA 0x60",  # 0x60: math
        *["NOP"] * 2,
        "UTMALDG.4D [UR8], [UR4]", "SYNCS.ARRIVE RZ", "@P3 BRA 0xb0",  # 0xb0: copies
        "@P4 BRA 0x40", "EXIT",
    )))  # fmt: skip
    assert [loop.address for loop in specialized] == [0x40, 0x60, 0xB0]
    main = main_loop(specialized)
    assert main is specialized[1] and main.classes["async_copy"] == 0
    plain = find_loops(
        read_sass(listing("LDG.E R1, [R2]", "@P0 BRA 0x0", "FFMA R1, R1, R1, R1", "@P0 BRA 0x20", "EXIT"))
    )
    assert main_loop(plain) is plain[1]
    assert main_loop(find_loops(read_sass(listing("NOP", "IADD3 R1, R1, 0x1, RZ", "@P0 BRA 0x0", "EXIT")))) is None
    assert main_loop([]) is None


def test_nested_loops_and_jumps_into_no_loop() -> None:
    nested = find_loops(read_sass(listing("NOP", "NOP", "FADD R1, R1, R1", "@P0 BRA 0x20", "@P1 BRA 0x10", "EXIT")))
    assert [(loop.address, sum(loop.opcodes.values())) for loop in nested] == [(0x10, 4), (0x20, 2)]
    # Two blocks that lead to each other, and are both entered from outside, are no loop.
    assert find_loops(read_sass(listing("@P0 BRA 0x30", "NOP", "NOP", "NOP", "@P1 BRA 0x10", "EXIT"))) == []
    # A loop that ends by calling what follows it, as ptxas writes for sm_80.
    called = find_loops(read_sass(listing(
        "HMMA.16816.F32 R4, R4, R6, R8", "@!P2 CALL.REL.NOINC 0x30", "BRA 0x0",
        "FADD R1, R1, R1", "@P0 BRA 0x30", "EXIT",
    )))  # fmt: skip
    assert [loop.address for loop in called] == [0x0, 0x30]


@pytest.mark.parametrize(
    "opcode, name",
    [
        ("HGMMA", "tensor"), ("HMMA", "tensor"), ("UTCHMMA", "tensor"), ("IMMA", "tensor"), ("QGMMA", "tensor"),
        ("MUFU", "exp"), ("FFMA", "fp32"), ("FMNMX", "fp32"), ("FADD2", "fp32"), ("F2FP", "conversion"),
        ("LDSM", "shared_memory"), ("STS", "shared_memory"), ("LDTM", "tensor_memory"), ("LDGSTS", "async_copy"),
        ("UTMALDG", "async_copy"), ("STG", "global_memory"), ("LDL", "local_memory"), ("STL", "local_memory"),
        ("BAR", "control"), ("BRA", "control"), ("WARPGROUP", "control"), ("LDGDEPBAR", "control"),
        ("IADD3", "other"), ("SHFL", "other"), ("FANCY", "other"), ("HFMA2", "other"), ("UIMAD", "other"),
    ],
)  # fmt: skip
def test_classes(opcode: str, name: str) -> None:
    assert class_of(opcode) == name
    mix = by_class({opcode: 3})
    assert mix[name] == 3 and sum(mix.values()) == 3
