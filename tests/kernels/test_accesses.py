"""Does each kernel touch memory as the simulator's trace says, access by access?

Random problems, layouts and tiles; four blocks of each grid. The simulator's bytes are counted from the same traces,
so what holds here holds for them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memsim_kernels._naive_kernels import softmax_two_pass_kernel
from memsim_kernels.accesses import Access, Dot, difference_from_program, first_difference, steps_of_block
from memsim_kernels.record import record_call

from memsim import Attention, MemsimError, Tile, simulate
from memsim.language import trace_launch
from memsim.programs import naive
from memsim.programs.naive import CHUNK_COLUMNS

from .launches import ROOM, Made, launches, make, some_blocks

SEEDS = st.integers(0, 10**6)


# Some have nothing to launch; more than 200 of each do.
@settings(max_examples=270)
@given(made=launches("flash"), seed=SEEDS)
def test_flash_through_pointers(made: Made, seed: int) -> None:
    assert difference_from_program(made.program, made.calls, choose=some_blocks(seed)) is None


@settings(max_examples=250)
@given(made=launches("flash", "descriptor"), seed=SEEDS)
def test_flash_through_descriptors(made: Made, seed: int) -> None:
    assert difference_from_program(made.program, made.calls, choose=some_blocks(seed)) is None


@settings(max_examples=60)
@given(made=launches("flash", "descriptor-ws"), seed=SEEDS)
def test_flash_warp_specialised(made: Made, seed: int) -> None:
    assert difference_from_program(made.program, made.calls, choose=some_blocks(seed)) is None


@settings(max_examples=270)
@given(made=launches("naive"), seed=SEEDS)
def test_naive(made: Made, seed: int) -> None:
    assert difference_from_program(made.program, made.calls, choose=some_blocks(seed)) is None


@settings(max_examples=200)
@given(
    rows=st.integers(1, 4), keys=st.integers(1, 13_000) | st.sampled_from((CHUNK_COLUMNS, 2 * CHUNK_COLUMNS)),
    heads=st.integers(1, 3), dtype=st.sampled_from(("float16", "bfloat16", "float32")), lse=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_softmax_in_two_passes(rows: int, keys: int, heads: int, dtype: str, lse: bool, seed: int) -> None:
    problem, tile = Attention(heads=heads, seq_len_q=rows, seq_len_k=keys, head_dim=16, dtype=dtype), Tile(16, 16)
    whole = next(call for call in make("naive", problem, tile, lse=lse).calls if call.name == "softmax")
    chunk = min(CHUNK_COLUMNS, whole.constants["COLUMNS"])
    call = replace(whole, kernel=softmax_two_pass_kernel, constants={"CHUNK": chunk, "STORE_LSE": lse})
    program = naive.build(problem, tile, ROOM, lse, whole_row_columns=0)
    trace = trace_launch(program.launches[1], ROOM)
    recording = record_call(call, tensors=program.tensors, blocks=some_blocks(seed)(call.grid))
    assert first_difference(trace, recording) is None


def test_rows_too_long_for_one_pass() -> None:
    problem = Attention(heads=1, seq_len_q=2, seq_len_k=33_000, head_dim=16)
    made = make("naive", problem, Tile(16, 1024), lse=True, device="meta")
    call = made.calls[1]
    assert call.kernel is softmax_two_pass_kernel
    trace = trace_launch(made.program.launches[1], ROOM)
    assert first_difference(trace, record_call(call, tensors=made.program.tensors)) is None


@pytest.mark.parametrize("algorithm", ("flash", "naive"))
def test_whole_launches_ask_for_the_simulators_bytes_and_flops(algorithm: str) -> None:
    problem = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=37, seq_len_k=53, head_dim=40, causal=True)
    tile = Tile(16, 32)
    made = make(algorithm, problem, tile, lse=True)
    result = simulate(algorithm, problem, tile=tile, lse=True, count_only=True)
    for call, launch in zip(made.calls, result.launches, strict=True):
        recording = record_call(call, tensors=made.program.tensors)
        assert sum(recording.loaded_bytes.values()) == launch.sram_fill_requested_bytes
        assert sum(recording.stored_bytes.values()) == launch.sram_store_requested_bytes
        assert recording.flops == launch.flops


def test_a_recorded_run_writes_what_any_run_writes() -> None:
    problem = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=37, seq_len_k=53, head_dim=40, causal=True)
    (call,) = make("flash", problem, Tile(16, 32), lse=True).calls
    q, k, v, o, lse = call.args[:5]
    for x in (q, k, v):
        x.copy_(torch.randn(x.shape))
    record_call(call)
    recorded = o.clone(), lse.clone()
    for x in (o, lse):
        x.zero_()
    call.launch()
    assert o.any() and torch.equal(o, recorded[0]) and torch.equal(lse, recorded[1])


# Q and O have more than 2^31 elements: offsets of the last batches do not fit in 32 bits.
LONG_BATCH = Attention(batch=4096, heads=8, seq_len_q=576, seq_len_k=576, head_dim=128)
# So do rows that lie 8,192 elements apart where there are 262,144 of them.
LONG_SEQUENCE = Attention(heads=1, seq_len_q=270_000, seq_len_k=100, head_dim=16)


def ends(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(0,) * len(grid), tuple(n - 1 for n in grid)]


def last(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(n - 1 for n in grid)]


@pytest.mark.parametrize("load_path", ("pointer", "descriptor"))
def test_flash_over_more_elements_than_32_bits_count(load_path: str) -> None:
    batch = make("flash", LONG_BATCH, Tile(64, 64, load_path=load_path), lse=True, device="meta")
    assert difference_from_program(batch.program, batch.calls, choose=ends) is None
    tile, layouts = Tile(16, 64, load_path=load_path), ("rows 8192 apart",) * 4
    rows = make("flash", LONG_SEQUENCE, tile, layouts=layouts, device="meta")
    assert difference_from_program(rows.program, rows.calls, choose=last) is None


# The last keys lie beyond 2^31 elements; with 2^26 between rows, so do offsets inside one tile.
@pytest.mark.parametrize("far", (*range(4), None))
@pytest.mark.parametrize("apart", (2**20, 2**26))
@pytest.mark.parametrize("algorithm", ("flash", "naive"))
def test_rows_farther_apart_than_32_bits_count(algorithm: str, apart: int, far: int | None) -> None:
    """Those of all tensors, or of one of q, k, v and o alone."""
    problem = Attention(heads=1, seq_len_q=2_100 if far in (0, 3) else 20, seq_len_k=2_100, head_dim=16)
    layouts = tuple(f"rows {apart} apart" if far in (None, n) else "contiguous" for n in range(4))
    made = make(algorithm, problem, Tile(16, 64), layouts=layouts, device="meta")
    assert difference_from_program(made.program, made.calls, choose=last) is None


def test_naive_over_rows_that_32_bits_do_not_count() -> None:
    made = make("naive", LONG_SEQUENCE, Tile(16, 64), layouts=("rows 8192 apart",) * 4, device="meta")
    assert difference_from_program(made.program, made.calls, choose=last) is None


def test_naive_over_more_elements_than_32_bits_count() -> None:
    made = make("naive", LONG_BATCH, Tile(64, 64), lse=True, device="meta")
    assert difference_from_program(made.program, made.calls, choose=ends) is None


def test_an_access_is_counted_once() -> None:
    # A recorder that counts attempts and masked accesses would see twice the bytes; the closed form sees each once.
    problem = Attention(batch=1, heads=2, seq_len_q=40, seq_len_k=48, head_dim=16)
    (call,) = make("flash", problem, Tile(16, 16)).calls
    recording = record_call(call)
    key_bytes = 2 * 2 * 48 * 16
    assert recording.loaded_bytes == {"Q": 2 * 2 * 40 * 16, "K": 3 * key_bytes, "V": 3 * key_bytes}
    assert recording.stored_bytes == {"O": 2 * 2 * 40 * 16}


def test_a_trace_becomes_the_steps_of_a_block() -> None:
    problem = Attention(heads=4, kv_heads=2, seq_len_q=20, seq_len_k=40, head_dim=24, causal=True)
    made = make("flash", problem, Tile(16, 32), lse=True)
    trace = trace_launch(made.program.launches[0], ROOM)
    dot = Dot(2 * 16 * 32 * 32, "float16")
    # Block 7 of the grid (2 row blocks, 4 heads): rows 16 to 19 of head 3, which reads K and V of head 1.
    assert steps_of_block(trace, 7) == (
        Access("load", "Q", 0, 3, 16, 0, 4, 24, 192),
        Access("load", "K", 0, 1, 0, 0, 32, 24, 1536), dot,
        Access("load", "V", 0, 1, 0, 0, 32, 24, 1536), dot,
        Access("load", "K", 0, 1, 32, 0, 8, 24, 384), dot,
        Access("load", "V", 0, 1, 32, 0, 8, 24, 384), dot,
        Access("store", "O", 0, 3, 16, 0, 4, 24, 192),
        Access("store", "LSE", 0, 3, 16, 0, 4, 1, 16),
    )  # fmt: skip
    with pytest.raises(MemsimError, match="blocks 0 to 7; there is no block 8"):
        steps_of_block(trace, 8)


def test_shapes_that_cannot_be_compared_are_refused() -> None:
    made = make("flash", Attention(heads=2, seq_len_q=8, seq_len_k=8, head_dim=16), Tile(16, 16), lse=True)
    trace = trace_launch(made.program.launches[0], ROOM)
    with pytest.raises(
        MemsimError, match=r"LSE is \(1, 2, 8, 1, 'float32'\) in the trace and \(1, 1, 2, 8, 'float32'\)"
    ):
        first_difference(trace, record_call(made.calls[0]))
