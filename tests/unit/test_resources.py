"""SRAM, registers and blocks per SM, by hand; the H200's own figures are in tests/fidelity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsim import Attention, Gpu, MemsimError, Tile, TileDoesNotFit, compare, load_gpu, simulate
from memsim._compiled import CompiledKernel, from_table, key_of, shipped
from memsim.gpu import apply_options, override
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import Resources, blocks_per_sm, resources_of, room_of, spelled_sum
from memsim.tile import RingRule, Room
from memsim.trace import Buffer, LaunchTrace

H200 = load_gpu("h200")
ROOMY = {"sm.sram.capacity_bytes": 2**21, "sm.sram.block_limit_bytes": 2**20}


def on(architecture: str) -> Gpu:
    """A machine of this architecture with more SRAM than any tile needs."""
    return override(load_gpu("rtx-4090"), {**ROOMY, "architecture": architecture})


def trace_of(gpu: Gpu, algorithm: str, problem: Attention, tile: Tile, launch: str) -> LaunchTrace:
    program = build_program(algorithm, problem, tile, room_of(gpu))
    return trace_launch(next(spec for spec in program.launches if spec.name == launch), program.room)


def resources(gpu: Gpu, algorithm: str, problem: Attention, tile: Tile, launch: str = "") -> Resources:
    return resources_of(gpu, trace_of(gpu, algorithm, problem, tile, launch or algorithm), problem, tile)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("tile, d", [((128, 64), 64), ((64, 32), 64), ((128, 128), 128), ((64, 64), 128)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sram_of_flash_by_architecture(tile: tuple[int, int], d: int, stages: int, dtype: str) -> None:
    m, n = tile
    problem = Attention(head_dim=d, dtype=dtype)
    single = 2 * d * (m + n)
    hopper = single if stages == 1 else 2 * d * (m + 2 * stages * n)
    ampere = single if stages == 1 else 2 * d * (m + 2 * (stages - 1) * n)
    p_too = 2 * m * n if m < d else 0
    for architecture, expected in (
        ("sm_90", hopper),
        *((name, ampere + p_too) for name in ("sm_80", "sm_86", "sm_89", "sm_120")),
    ):
        found = resources(on(architecture), "flash", problem, Tile(m, n, 4, stages)).sram_bytes
        assert found == expected, architecture
    blackwell = resources(on("sm_100"), "flash", problem, Tile(m, n, 4, stages)).sram_bytes
    assert hopper + 8 <= blackwell <= hopper + 1024


@pytest.mark.parametrize("head_dim, width", [(1, 16), (16, 16), (40, 64), (59, 64), (80, 128), (96, 128), (160, 256)])
def test_sram_is_counted_at_the_padded_width(head_dim: int, width: int) -> None:
    found = resources(on("sm_90"), "flash", Attention(head_dim=head_dim), Tile(64, 32, 4, 2))
    assert found.sram_bytes == 2 * width * (64 + 2 * 2 * 32)


def test_sram_of_a_machine_without_registers() -> None:
    """Q and the ring in the input's type; O, S, m and l in float32; P over S; any width."""
    textbook = load_gpu("two-level")
    found = resources(textbook, "flash", Attention(head_dim=40), Tile(30, 20, 4, 3))
    q, ring, o, s, sums = 30 * 40 * 2, 2 * 3 * 20 * 40 * 2, 30 * 40 * 4, 30 * 20 * 4, 2 * 30 * 4
    assert found.sram_bytes == q + ring + o + s + sums
    assert (found.registers, found.registers_from) == (None, "none")
    assert found.blocks_per_sm == 196608 // found.sram_bytes and found.limited_by == "sram"


def test_sram_of_the_naive_launches() -> None:
    gpu, tile = on("sm_90"), Tile(64, 32, 8, 3)
    problem = Attention(seq_len_q=512, seq_len_k=512, head_dim=64)
    assert resources(gpu, "naive", problem, tile, "qk").sram_bytes == 2 * 64 * (64 + 32)
    assert resources(gpu, "naive", problem, tile, "softmax").sram_bytes == 4 * 8
    assert resources(gpu, "naive", problem, tile, "pv").sram_bytes == 2 * 3 * (64 * 32 + 32 * 64)
    # Rows of P that are not known to be multiples of 16 elements pass through registers into one buffer.
    ragged = replace(problem, seq_len_k=500)
    assert resources(gpu, "naive", ragged, tile, "pv").sram_bytes == 2 * (64 * 32 + 3 * 32 * 64)
    assert resources(gpu, "naive", problem, Tile(64, 32, 1, 3), "softmax").sram_bytes == 0


@pytest.mark.parametrize(
    ("columns", "num_warps", "parts"),
    [(16, 8, 0), (33, 8, 2), (128, 16, 4), (256, 8, 8), (256, 16, 8), (4096, 16, 16), (40_000, 4, 4), (0, 4, 0)],
)
def test_only_warps_with_columns_of_their_own_reduce_through_sram(columns: int, num_warps: int, parts: int) -> None:
    """As compiled for sm_90 by Triton 3.6."""
    problem = Attention(seq_len_q=128, seq_len_k=columns, head_dim=64)
    assert resources(H200, "naive", problem, Tile(64, 32, num_warps, 3), "softmax").sram_bytes == 4 * parts


def test_sram_of_flash1() -> None:
    """One tile each of Q, K and V."""
    found = resources(on("sm_90"), "flash1", Attention(head_dim=64), Tile(64, 128, 8, 1))
    assert found.sram_bytes == 2 * 64 * (64 + 128 + 128)


def test_rings() -> None:
    def rings(architecture: str | None, block_m: int = 64, warps: int = 4, dtype_bytes: int = 2) -> list[RingRule]:
        room = Room(True, 1, architecture is not None, architecture)
        return [room.ring(Tile(block_m, 16, warps, stages), dtype_bytes) for stages in (1, 2, 3, 4)]

    taking_turns = RingRule(1, shared=True)
    full = [taking_turns, *(RingRule(n, shared=False) for n in (2, 3, 4))]
    one_fewer = [taking_turns, *(RingRule(n, shared=False) for n in (1, 2, 3))]
    for architecture in ("sm_90", "sm_100"):
        assert rings(architecture) == full
        # Fewer than 64 rows or 4 warps, and float32, are not for warp-group products.
        for other in (
            rings(architecture, block_m=32),
            rings(architecture, warps=2),
            rings(architecture, dtype_bytes=4),
        ):
            assert other == one_fewer
    assert rings("sm_80") == rings("sm_89") == rings("sm_120") == one_fewer
    assert rings(None) == full


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sram_of_flash_without_warp_group_products(architecture: str) -> None:
    """A buffer fewer, and P beside it where the block is lower than it is wide; float32 has P there always."""
    found = resources(on(architecture), "flash", Attention(head_dim=64), Tile(32, 16, 4, 3))
    assert found.sram_bytes == 2 * 64 * (32 + 2 * 2 * 16) + 2 * 32 * 16
    square = resources(on(architecture), "flash", Attention(head_dim=32), Tile(32, 16, 4, 1))
    assert square.sram_bytes == 2 * 32 * (32 + 16)
    wide = resources(on(architecture), "flash", Attention(head_dim=64, dtype="float32"), Tile(128, 32, 8, 2))
    assert wide.sram_bytes == 4 * 64 * (128 + 2 * 32) + 4 * 128 * 32


# (SRAM, registers, warps) of a block on an H200: 233,472 B with 1,024 reserved a block, 65,536 registers, 64 warps.
@pytest.mark.parametrize(
    "sram, registers, warps, blocks, limit",
    [
        (0, 16, 1, 32, "blocks"),
        (0, 16, 4, 16, "warps"),
        (0, 32, 8, 8, "warps"),
        (115_712, 32, 4, 2, "sram"),  # exactly twice, with the reserve
        (115_713, 32, 4, 1, "sram"),
        (232_448, 32, 4, 1, "sram"),
        (232_449, 32, 4, 0, "sram"),
        (0, 128, 4, 4, "registers"),
        (0, 129, 4, 3, "registers"),  # 136 a thread, 4,352 a warp: 15.05 warps
        (0, 255, 8, 1, "registers"),
        (0, 255, 16, 0, "registers"),
        # Two warps are counted as four: 65,536 / (4 · 255 up to 256 · 32).
        (0, 255, 2, 2, "registers"),
        (0, 64, 1, 8, "registers"),
    ],
)
def test_blocks_per_sm(sram: int, registers: int, warps: int, blocks: int, limit: str) -> None:
    assert blocks_per_sm(H200.sm, sram, registers, warps) == (blocks, limit)


def test_a_warps_registers_are_rounded_up_as_a_whole() -> None:
    """With units of one register a thread and 512 a warp, 17 registers take 544 and so 1,024."""
    gpu = override(H200, {"sm.registers.thread_unit": 1, "sm.registers.warp_unit": 512, "sm.warp_unit": 1})
    assert blocks_per_sm(gpu.sm, 0, 17, 8)[0] == min(64 // 8, 65536 // (1024 * 8))
    gpu = override(gpu, {"sm.max_warps": 1024, "sm.max_blocks": 1024})
    assert blocks_per_sm(gpu.sm, 0, 17, 1) == (64, "registers")
    assert blocks_per_sm(gpu.sm, 0, 16, 1) == (128, "registers")


SQUARE = Attention(1, 8, None, 1024, 1024, 64)


def test_registers_come_from_the_table_or_from_an_estimate() -> None:
    def found(gpu: Gpu, problem: Attention, tile: Tile) -> tuple[int | None, str]:
        taken = resources(gpu, "flash", problem, tile)
        return taken.registers, taken.registers_from

    tile = Tile(64, 64, 4, 3)
    row = shipped()[key_of("flash", "sm_90", SQUARE, tile, False)]
    assert found(H200, SQUARE, tile) == (row.registers, "table")
    assert found(H200, replace(SQUARE, dtype="bfloat16"), tile) == (row.registers, "table")
    causal = replace(SQUARE, causal=True)
    assert found(H200, causal, tile) == (shipped()[key_of("flash", "sm_90", causal, tile, False)].registers, "table")
    assert found(H200, causal, tile) != found(H200, SQUARE, tile)
    boxed, odd = replace(tile, load_path="descriptor"), replace(SQUARE, seq_len_k=1000)
    assert found(H200, odd, tile) == found(H200, SQUARE, tile) and found(H200, odd, boxed)[1] == "table"
    assert resources(H200, "flash", odd, boxed).sram_bytes > resources(H200, "flash", SQUARE, boxed).sram_bytes
    # Not in it: O 64×128 and S 64×64, m and l in float32 over 128 threads: 97; 48 + 1.2 · 97 = 164.4.
    wide, unlisted = Attention(head_dim=128), override(H200, {"architecture": "sm_103"})
    assert found(unlisted, wide, Tile(64, 64, 4, 2)) == (164, "estimate")
    # O 32×128 and S 32×32, m and l: 40; 42 + 2.2 · 40 = 130, because warps hold their own operands.
    assert found(unlisted, wide, Tile(32, 32, 4, 2)) == (130, "estimate")
    # S 32×32 alone: 8; 28 + 1.6 · 8 = 40.8.
    assert resources(unlisted, "naive", wide, Tile(32, 32, 4, 2), "qk").registers == 40
    assert found(H200, replace(wide, head_dim=256), Tile(128, 128, 4, 1)) == (255, "estimate")
    fewer = override(H200, {"sm.registers.per_thread_limit": 50})
    assert found(fewer, SQUARE, tile) == (50, "table")
    assert found(load_gpu("two-level"), SQUARE, tile) == (None, "none")


def test_a_row_without_lse_stands_in_for_one_with_it() -> None:
    tile = Tile(64, 64, 4, 4)
    assert key_of("flash", "sm_90", SQUARE, tile, True) not in shipped()
    without = from_table("flash", "sm_90", SQUARE, tile, False)
    assert without is not None and from_table("flash", "sm_90", SQUARE, tile, True) == without


def test_a_row_with_lse_is_taken_where_there_is_one() -> None:
    tile, problem = Tile(64, 64, 8, 2), replace(SQUARE, head_dim=128)
    with_lse, without = (shipped()[key_of("flash", "sm_90", problem, tile, lse)] for lse in (True, False))
    assert with_lse != without
    for lse, row in ((True, with_lse), (False, without)):
        found = from_table("flash", "sm_90", problem, tile, lse)
        assert found is not None and replace(found, stream=None) == row


def test_what_a_row_of_the_table_is_of() -> None:
    """Each kernel's key has what it depends on, and nothing else."""
    tile, other = Tile(64, 64, 4, 3), Tile(128, 32, 4, 2)

    def same(kernel: str, problem: Attention, changed: Tile = tile, lse: bool = False) -> bool:
        return key_of(kernel, "sm_90", SQUARE, tile, False) == key_of(kernel, "sm_90", problem, changed, lse)

    for kernel in ("flash", "qk", "softmax", "pv"):
        assert same(kernel, replace(SQUARE, batch=7, heads=16))
        assert same(kernel, replace(SQUARE, dtype="bfloat16")) and not same(kernel, replace(SQUARE, dtype="float32"))
        assert same(kernel, replace(SQUARE, seq_len_k=1000)) == (kernel == "flash")
        assert same(kernel, replace(SQUARE, causal=True)) == (kernel in ("softmax", "pv"))
        assert same(kernel, SQUARE, lse=True) == (kernel in ("qk", "pv"))
        assert same(kernel, SQUARE, replace(tile, num_stages=1)) == (kernel in ("qk", "softmax"))
        assert not same(kernel, SQUARE, replace(tile, num_warps=8))
        assert same(kernel, replace(SQUARE, head_dim=128), other) == (kernel == "softmax")
        assert same(kernel, replace(SQUARE, seq_len_k=2048)) == (kernel != "softmax")
    longest = [replace(SQUARE, seq_len_k=n) for n in (32_784, 65_536, 2**20)]
    assert len({key_of("softmax", "sm_90", problem, tile, False) for problem in longest}) == 1


KERNEL = CompiledKernel(sram_bytes=50_000, registers=100, stack_bytes=8, block_warps=12)


def test_a_compiled_kernel_is_taken_for_all_it_says() -> None:
    gpu, tile = H200, Tile(64, 64, 4, 3)
    trace = trace_of(gpu, "flash", SQUARE, tile, "flash")
    found = resources_of(gpu, trace, SQUARE, tile, compiled={"flash": KERNEL})
    assert (found.sram_bytes, found.registers, found.stack_bytes) == (50_000, 100, 8)
    assert found.registers_from == "compiled"
    assert (found.blocks_per_sm, found.limited_by) == blocks_per_sm(gpu.sm, 50_000, 100, 12)
    assert resources_of(gpu, trace, SQUARE, tile, compiled={"qk": KERNEL}).registers_from == "table"
    large = replace(KERNEL, sram_bytes=300_000)
    with pytest.raises(TileDoesNotFit, match="needs 300000 B of 232448 B: compiled kernel 300000; take"):
        resources_of(gpu, trace, SQUARE, tile, compiled={"flash": large})


def test_resources_compiled_asks_the_package_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def provider(algorithm: str, problem: Attention, tile: Tile, architecture: str, lse: bool) -> dict[str, object]:
        asked.append((algorithm, problem, tile, architecture, lse))
        return {"flash": KERNEL}

    class Point:
        name = "compiled"

        def load(self) -> object:
            return provider

    monkeypatch.setattr("memsim._compiled.entry_points", lambda group: [Point()] * (group == "memsim.resources"))
    tile = Tile(64, 64, 4, 3)
    result = simulate("flash", SQUARE, gpu="h200", tile=tile, lse=True, resources="compiled", count_only=True)
    assert asked == [("flash", SQUARE, tile, "sm_90", True)]
    launch = result.launches[0]
    assert (launch.sram_bytes, launch.registers, launch.registers_from) == (50_000, 100, "compiled")
    assert any("8 B of stack" in note for note in result.notes)
    compare(SQUARE, gpu="h200", tile=tile, resources="compiled", count_only=True)
    assert [algorithm for algorithm, *_ in asked[1:]] == ["naive", "flash"]
    asked.clear()
    simulate("flash", SQUARE, gpu="h200", tile=tile, count_only=True)
    assert asked == []


def test_resources_compiled_where_nothing_can_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**where: object) -> str:
        with pytest.raises(MemsimError) as caught:
            simulate("flash", SQUARE, resources="compiled", count_only=True, **where)  # type: ignore[arg-type]
        assert len(caught.value.faults) == 1
        return caught.value.faults[0]

    assert "two-level names no architecture to compile for; take resources table" in refusal(gpu="two-level")

    def missing(name: str) -> object:
        class Point:
            name = "compiled"

            def load(self) -> object:
                raise ModuleNotFoundError(f"No module named {missing_name!r}", name=missing_name)

        missing_name = name
        return lambda group: [Point()]

    for points in (lambda group: [], missing("torch"), missing("triton.compiler")):
        monkeypatch.setattr("memsim._compiled.entry_points", points)
        assert "pip install 'memsim[kernels]'" in refusal(gpu="h200")
    monkeypatch.setattr("memsim._compiled.entry_points", missing("something_else"))
    with pytest.raises(ModuleNotFoundError):
        simulate("flash", SQUARE, resources="compiled", count_only=True)
    with pytest.raises(MemsimError, match="resources is 'guess'; it must be one of table, compiled"):
        simulate("flash", SQUARE, resources="guess", count_only=True)


def test_sram_of_descriptors_without_a_row_of_the_table() -> None:
    """The sum of the pointer path and room for barriers; warp-specialised also O by 64 rows twice, K and V apart."""
    unlisted, d = override(on("sm_90"), {"architecture": "sm_103"}), 64
    plain = resources(on("sm_90"), "flash", Attention(head_dim=32), Tile(64, 32, 4, 3, "descriptor"))
    assert plain.sram_bytes == 2 * 32 * (64 + 2 * 3 * 32) + 1024 and plain.registers_from == "estimate"
    special = resources(unlisted, "flash", Attention(head_dim=d), Tile(64, 32, 4, 1, "descriptor-ws"))
    barriers = 1024 + 8
    assert special.sram_bytes == 2 * d * (64 + 2 * 32) + 2 * 64 * 2 * d + barriers


def test_a_warp_specialised_block_has_three_groups_of_warps() -> None:
    tile = Tile(64, 32, 4, 2, "descriptor-ws")
    few = override(on("sm_90"), {"sm.max_warps": 8})
    with pytest.raises(TileDoesNotFit, match="it has 12 warps and an SM holds 8"):
        resources(few, "flash", Attention(head_dim=32), tile)


def test_registers_of_softmax_follow_its_row() -> None:
    def estimate(columns: int, warps: int) -> int | None:
        problem, tile = Attention(seq_len_k=columns), Tile(16, 16, warps, 1)
        return resources(override(H200, {"architecture": "sm_103"}), "naive", problem, tile, "softmax").registers

    # 16 and one a row element of each thread; m and l are one number a block.
    assert [estimate(columns, 8) for columns in (1024, 2048, 4096)] == [20, 24, 32]


def test_a_tile_that_spills_says_so() -> None:
    """By the compiled kernel's stack where there is one, else where the accumulators alone exceed a thread's limit."""
    problem = Attention(1, 1, None, 256, 256, 128)
    narrow, tile = replace(problem, head_dim=64), Tile(128, 128, 4, 1)
    stack = shipped()[key_of("flash", "sm_90", narrow, tile, False)].stack_bytes
    assert stack > 0
    spilling = simulate("flash", narrow, gpu="h200", tile=tile, count_only=True)
    assert spilling.launches[0].stack_bytes == stack
    notes = [note for note in spilling.notes if "spill" in note]
    assert len(notes) == 1 and notes[0].startswith("flash ") and f"{stack} B of stack" in notes[0]
    modest = simulate("flash", problem, gpu="h200", tile=Tile(64, 64, 4, 2), count_only=True)
    assert not any("spill" in note for note in modest.notes)
    # O 256×256 and S 256×16 in float32, m and l, over 128 threads: 548 registers.
    other = override(H200, {"architecture": "sm_103"})
    wide = simulate("flash", replace(problem, head_dim=256), gpu=other, tile=Tile(256, 16, 4, 1), count_only=True)
    assert any("548 registers a thread of 255" in note for note in wide.notes)


def test_what_does_not_fit_an_sm_is_refused() -> None:
    few = override(H200, {"sm.max_warps": 4, "tiles": [H200.tiles[0].model_dump()]})
    problem = Attention(head_dim=64)
    with pytest.raises(TileDoesNotFit, match="it has 8 warps and an SM holds 4; take fewer warps"):
        simulate("flash", problem, gpu=few, tile=Tile(64, 64, 8, 2))
    with pytest.raises(TileDoesNotFit, match=r"16 warps of 255 registers a thread need more than the SM's 65536"):
        simulate("flash", Attention(head_dim=256), gpu=H200, tile=Tile(256, 128, 16, 1))


def test_the_sum_is_spelled_out() -> None:
    parts = [Buffer("Q", 1, 32768), Buffer("K", 4, 32768), Buffer("V", 4, 32768)]
    assert spelled_sum(parts) == "Q 32768 + K 4×32768 + V 4×32768"


def test_waves() -> None:
    """396 blocks over 132 SMs of one each."""
    problem, tile = Attention(1, 12, None, 33 * 64, 64, 128), Tile(64, 64, 4, 3)
    launch = simulate("flash", problem, gpu=H200, tile=tile, count_only=True).launches[0]
    assert launch.blocks == 396
    assert launch.waves == -(-396 // (132 * launch.blocks_per_sm))
    single = override(H200, {"sm.max_blocks": 1})
    assert simulate("flash", problem, gpu=single, tile=tile, count_only=True).launches[0].waves == 3


def test_a_tile_is_taken_whole_or_in_part() -> None:
    problem = Attention(head_dim=64, seq_len_q=64, seq_len_k=64)
    first = H200.tiles[0]
    default = simulate("flash", problem, count_only=True).tile
    assert (default["block_m"], default["num_stages"]) == (first.block_m, first.num_stages)
    part = simulate("flash", problem, tile={"block_m": 128}, count_only=True).tile
    assert part == {**default, "block_m": 128}
    with pytest.raises(MemsimError, match="'block_x' is not a field of a tile; give any of block_m"):
        simulate("flash", problem, tile={"block_x": 3}, count_only=True)
    wide = Attention(head_dim=512, seq_len_q=64, seq_len_k=64, dtype="float32")
    fitting = simulate("flash", wide, count_only=True).tile
    assert fitting != default and fitting in [{**default, **tile.model_dump()} for tile in H200.tiles]


@pytest.mark.parametrize("size", [1, 8, 15, 24, 48, 100])
def test_tensor_instructions_take_powers_of_two(size: int) -> None:
    for tile in (Tile(size, 64), Tile(64, size)):
        with pytest.raises(MemsimError, match=f"block_[mn] is {size}; .* powers of two of at least 16"):
            simulate("flash", Attention(head_dim=16), gpu="h200", tile=tile)
        simulate("flash", Attention(1, 1, None, 10, 10, 16), gpu="two-level", tile=tile)


@pytest.mark.parametrize("sram", ["64KiB", "1MiB", "1GiB"])
@pytest.mark.parametrize("head_dim", [1, 64, 300, 100_000])
def test_flash1_finds_a_tile_of_its_own_on_any_sram(sram: str, head_dim: int) -> None:
    """The paper's choice, made smaller until it fits, and never larger than a tile may be."""
    problem, gpu = Attention(1, 1, None, 4, 4, head_dim), apply_options(load_gpu("two-level"), {"sram": sram})
    try:
        result = simulate("flash1", problem, gpu=gpu, count_only=True)
    except TileDoesNotFit:
        assert head_dim == 100_000 and sram != "1GiB"
        return
    assert result.launches[0].sram_bytes <= gpu.sm.sram.block_limit_bytes
    if (sram, head_dim) == ("64KiB", 64):
        # M = 32,768 elements: block_n = 32,768 / 256 and block_m = d, which with O and S in float32 does not fit;
        # half of it does: 2·64·(64 + 2·64) + 4·64·(64 + 64) + 2·4·64 B.
        assert (result.tile["block_m"], result.tile["block_n"]) == (64, 64)
        assert result.launches[0].sram_bytes == 57_856
