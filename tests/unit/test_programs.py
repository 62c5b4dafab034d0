"""Do the algorithms do what their papers say?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memsim import Attention, MemsimError, Tile, compute, simulate
from memsim.language import trace_launch
from memsim.numerics import Step, blocks_of, run_program
from memsim.programs import PROGRAMS, build_program
from memsim.programs.flash1 import paper_tile
from memsim.programs.parts import key_tiles_of_rows, needs_mask, visible
from memsim.tile import Room
from memsim.trace import Bound, Load, Loop, Work, walk

TEXTBOOK = Room(registers=False, sram_limit_bytes=2**40, mma_tiles=False, architecture=None)
HOPPER = Room(registers=True, sram_limit_bytes=2**40, mma_tiles=True, architecture="sm_90")

# FlashAttention's own setting: Dao et al. 2022, section 3 (forward).
PAPER = Attention(batch=64, heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=64)


@pytest.mark.parametrize("block_n, gigabytes", [(64, 7.12), (128, 3.77), (256, 2.09), (512, 1.25)])
def test_bytes_of_algorithm_1_by_block_size(block_n: int, gigabytes: float) -> None:
    """float16 tensors, m and l in float32, the writes that initialise O, m and l counted."""
    trips = 1024 // block_n
    rows = 64 * 16 * 1024
    by_hand = (2 * rows * 128) + rows * (128 + 8) + trips * rows * (128 + 2 * 128 + 2 * 8)
    total = simulate("flash1", PAPER, gpu="h200", tile=Tile(64, block_n, 8, 1), count_only=True).total
    assert total.hbm_bytes == by_hand
    assert total.hbm_bytes / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_the_papers_tile() -> None:
    """M = 192 KB of float16, d = 64: block_n = 384, block_m = 64, and 1.67 GB."""
    assert paper_tile(PAPER, 192 * 1024) == Tile(64, 384, 8, 1)
    program = build_program("flash1", PAPER, Tile(64, 384, 8, 1), TEXTBOOK)
    trace = trace_launch(program.launches[0], TEXTBOOK)
    from memsim.counting import count

    counts = count(trace)
    assert (counts.sram_fill_bytes + counts.sram_store_bytes) / 1e9 == pytest.approx(1.67, abs=0.005)
    assert paper_tile(replace(PAPER, head_dim=100), 1000) == Tile(2, 2, 8, 1)  # ⌈500 / 400⌉
    assert paper_tile(replace(PAPER, head_dim=1000), 1000) == Tile(1, 1, 8, 1)


def test_bytes_of_naive_and_flash_by_hand() -> None:
    """N = 1024, d = 64, 64 · 16 heads: S and P, two ways each."""
    heads, tensor, scores = 64 * 16, 1024 * 64 * 2, 1024 * 1024 * 2
    naive = simulate("naive", PAPER, gpu="h200", tile=Tile(64, 64, 4, 2), count_only=True)
    by_launch = {launch.name: (launch.hbm_read_bytes, launch.hbm_write_bytes) for launch in naive.launches}
    assert by_launch == {
        "qk": (heads * 16 * 2 * tensor, heads * scores),
        "softmax": (heads * scores, heads * scores),
        "pv": (heads * (scores + 16 * tensor), heads * tensor),
    }
    flash = simulate("flash", PAPER, gpu="h200", tile=Tile(64, 64, 4, 2), count_only=True)
    assert flash.total.hbm_read_bytes == heads * (1 + 2 * 16) * tensor
    assert flash.total.hbm_write_bytes == heads * tensor


@pytest.mark.parametrize("algorithm", sorted(PROGRAMS))
def test_the_worked_example(algorithm: str) -> None:
    """Online softmax by hand: q = [1, 2], two tiles of two keys, no scaling; O / l = 5.551."""
    problem = Attention(1, 1, None, 1, 4, 2, "float32", scale=1.0)
    q = np.array([1, 2], np.float32).reshape(1, 1, 1, 2)
    k = np.array([[0, 1], [1, 0], [1, 1], [1, 0]], np.float32).reshape(1, 1, 4, 2)
    v = np.repeat(np.array([4, 5, 6, 7], np.float32), 2).reshape(1, 1, 4, 2)
    seen: dict[str, list[float]] = {"l": [], "O": []}

    def watch(step: Step) -> None:
        if step.operation in ("add", "dot") and step.name in seen:
            seen[step.name].append(float(step.values.flat[0]))

    tile = Tile(1, 2, 1, 1)
    o, lse = compute(algorithm, problem, q, k, v, gpu="two-level", tile=tile, watch=watch)
    assert o[0, 0, 0] == pytest.approx([5.551, 5.551], abs=5e-4)
    assert lse[0, 0, 0] == pytest.approx(np.log(np.exp([2.0, 1, 3, 1]).sum()))
    if algorithm != "naive":
        assert seen["l"] == pytest.approx([1.368, 1.639], abs=5e-4)
    if algorithm == "flash":
        assert seen["O"] == pytest.approx([5.839, 9.096], abs=1e-3)


@pytest.mark.parametrize("rows, keys", [(0, 5), (5, 0), (7, 7), (20, 33), (33, 20), (16, 16), (100, 3)])
@pytest.mark.parametrize("block_m, block_n", [(1, 1), (4, 3), (16, 8), (7, 64)])
def test_causal_trips(rows: int, keys: int, block_m: int, block_n: int) -> None:
    """As many tiles of keys as hold one that some row of the block sees."""
    problem = Attention(1, 1, None, rows, keys, 8, causal=True)
    trips = key_tiles_of_rows(problem, block_m, block_n)
    assert isinstance(trips, Bound) and trips.symbol == "i"
    blocks = -(-rows // block_m)
    for i, found in zip(range(blocks), trips.of_values(np.arange(blocks)).tolist(), strict=True):
        own = range(i * block_m, min((i + 1) * block_m, rows))
        starts = range(0, keys, block_n)
        assert found == sum(any(start <= row + keys - rows for row in own) for start in starts)
    assert key_tiles_of_rows(replace(problem, causal=False), block_m, block_n) == -(-keys // block_n)


def test_which_pairs_are_visible() -> None:
    """Two rows of three keys in a 2×4 tile: the last row sees all three, the one before two, the rest is padding."""
    rows, keys = np.arange(2)[:, None], np.arange(4)[None, :]
    problem = Attention(seq_len_q=2, seq_len_k=3, causal=True)
    assert visible(problem)(rows, keys).tolist() == [[True, True, False, False], [True, True, True, False]]
    full = visible(replace(problem, causal=False))(rows, keys)
    assert full.tolist() == [[True, True, True, False]] * 2


def test_a_kernel_masks_where_it_must() -> None:
    square = Attention(seq_len_k=128)
    assert not needs_mask(square, 64) and needs_mask(square, 48)
    assert needs_mask(replace(square, causal=True), 64)


@pytest.mark.parametrize("algorithm", sorted(PROGRAMS))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len_k", [64, 60])
def test_masks_are_traced_where_numbers_need_them(algorithm: str, causal: bool, seq_len_k: int) -> None:
    problem = Attention(1, 1, None, 64, seq_len_k, 16, causal=causal)
    program = build_program(algorithm, problem, Tile(16, 16), HOPPER)
    masks = {
        launch.name: sum(
            isinstance(record, Work) and record.operation == "mask"
            for record, _ in walk(trace_launch(launch, HOPPER).body)
        )
        for launch in program.launches
    }
    ragged = seq_len_k % 16 != 0
    if algorithm == "naive":
        # `qk` masks what causal hides and `softmax` its padding; S of padded keys is not stored.
        assert masks == {"qk": int(causal), "softmax": int(seq_len_k not in (16, 32, 64)), "pv": 0}
    else:
        assert masks == {algorithm: int(causal or ragged)}


def test_the_ring_of_one_stage_is_shared() -> None:
    def rings(algorithm: str, stages: int) -> list[tuple[str, int]]:
        launch = build_program(algorithm, Attention(head_dim=32), Tile(64, 16, 4, stages), HOPPER).launches[-1]
        loads = [record for record, _ in walk(trace_launch(launch, HOPPER).body) if isinstance(record, Load)]
        return [(load.ring.name, load.ring.buffers) for load in loads if load.ring is not None]

    assert rings("flash", 1) == [("K/V", 1), ("K/V", 1)]
    assert rings("flash", 3) == [("K", 3), ("V", 3)]
    assert rings("naive", 1) == [("P", 1), ("V", 1)]  # of different shapes
    assert rings("naive", 3) == [("P", 3), ("V", 3)]


def test_the_trace_of_a_long_problem_is_as_short() -> None:
    def records(problem: Attention) -> int:
        program = build_program("flash", problem, Tile(64, 64), HOPPER)
        return sum(1 for _ in walk(trace_launch(program.launches[0], HOPPER).body))

    assert records(Attention(seq_len_q=2**20, seq_len_k=2**20)) == records(Attention(seq_len_q=64, seq_len_k=64)) < 40


def test_softmax_takes_rows_whole_or_in_two_passes() -> None:
    def loops(columns: int, room: Room) -> int:
        problem = Attention(1, 1, None, 2, columns, 16)
        launch = build_program("naive", problem, Tile(16, 16), room).launches[1]
        assert launch.name == "softmax"
        return sum(isinstance(record, Loop) for record in trace_launch(launch, room).body)

    assert [loops(columns, HOPPER) for columns in (1000, 32_768, 32_769, 65_536)] == [0, 0, 2, 2]
    # 4 bytes a column and 8 for m and l.
    assert loops(1000, replace(TEXTBOOK, sram_limit_bytes=4008)) == 0
    assert loops(1000, replace(TEXTBOOK, sram_limit_bytes=4007)) == 2


def test_two_passes_compute_what_one_does() -> None:
    problem = Attention(1, 2, None, 5, 37, 8, "float32")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (5, 37, 37)]
    results = []
    for limit in (2**20, 200):  # 1,024 or 48 columns
        room = replace(TEXTBOOK, sram_limit_bytes=limit)
        program = build_program("naive", problem, Tile(5, 37), room, lse=True)
        program = replace(program, room=replace(room, sram_limit_bytes=2**20))
        results.append(run_program(program, problem, *arrays))
    for one, two in zip(*results, strict=True):
        assert one is not None and two is not None
        assert np.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_the_grid_runs_over_rows_fastest() -> None:
    program = build_program("flash", Attention(2, 3, None, 32, 16, 16), Tile(16, 16), HOPPER)
    launch = program.launches[0]
    assert launch.axes == (("i", 2), ("head", 3), ("batch", 2))
    assert list(blocks_of(launch))[:4] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    naive = build_program("naive", Attention(2, 3, None, 32, 48, 16), Tile(16, 16), HOPPER)
    assert [launch.axes[:2] for launch in naive.launches] == [
        (("j", 3), ("i", 2)), (("r", 32), ("head", 3)), (("i", 2), ("head", 3)),
    ]  # fmt: skip


def test_useful_flops_are_split_over_the_two_products() -> None:
    problem = Attention(1, 2, None, 30, 50, 16, causal=True)
    naive = simulate("naive", problem, gpu="two-level", count_only=True)
    assert [launch.useful_flops for launch in naive.launches] == [
        problem.useful_flops // 2, 0, problem.useful_flops // 2,
    ]  # fmt: skip
    assert simulate("flash", problem, gpu="two-level", count_only=True).total.useful_flops == problem.useful_flops


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(MemsimError, match="no algorithm 'flash2'; choose one of naive, flash, flash1"):
        build_program("flash2", Attention(), Tile(16, 16), HOPPER)
    with pytest.raises(MemsimError, match="no algorithm 'flash2'"):
        simulate("flash2", Attention())
    with pytest.raises(MemsimError, match="leave --lse out"):
        simulate("flash1", Attention(), lse=True)
    with pytest.raises(MemsimError, match="inputs is 'disk'; it must be one of hbm, host"):
        simulate("flash", Attention(), inputs="disk")


def test_arrays_of_another_shape_or_dtype_are_refused() -> None:
    problem = Attention(1, 2, 1, 8, 9, 4)
    q = np.zeros((1, 2, 8, 4), np.float16)
    k = np.zeros((1, 1, 9, 4), np.float16)
    compute("flash", problem, q, k, k, gpu="two-level")
    with pytest.raises(MemsimError) as fault:
        compute("flash", problem, q[:, :1], k.astype(np.float32), k, gpu="two-level")
    assert len(fault.value.faults) == 2
    assert "Q has shape (1, 1, 8, 4); this problem needs (1, 2, 8, 4)" in fault.value.faults[0]
    assert "K holds float32; this problem needs float16" in fault.value.faults[1]
