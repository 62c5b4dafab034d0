"""Does each kernel declare the bytes, FLOPs and exponentials that the simulator counts for it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memsim_kernels import costs
from memsim_kernels.costs import Cost, costs_of

from memsim import Attention, MemsimError, Tile, simulate
from memsim.result import Launch

KERNELS = ("flash", "naive")
# No two rows of a multiple of these share a sector, so the bytes of whole sectors are those asked for.
SECTOR_BYTES = 32


@st.composite
def problems(draw: st.DrawFn) -> Attention:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    lengths = st.one_of(st.integers(0, 2), st.integers(0, 300), st.integers(0, 5_000))
    keys = st.one_of(lengths, st.integers(32_700, 32_800), st.integers(32_769, 50_000))
    return Attention(
        batch=draw(st.integers(1, 3)), heads=kv_heads * group, kv_heads=kv_heads, seq_len_q=draw(lengths),
        seq_len_k=draw(keys), head_dim=draw(st.one_of(st.integers(1, 256), st.sampled_from((16, 64, 128)))),
        dtype=draw(st.sampled_from(("float16", "bfloat16", "float32"))), causal=draw(st.booleans()),
    )  # fmt: skip


sides = st.sampled_from((16, 32, 64, 128))
tiles = st.builds(Tile, sides, sides, st.sampled_from((4, 8)), st.just(1))


def declared(cost: Cost) -> tuple[Any, ...]:
    return cost.name, cost.flops, cost.useful_flops, cost.exps, cost.total_read_bytes, cost.total_written_bytes


def counted(launch: Launch) -> tuple[Any, ...]:
    return (
        launch.name, launch.flops, launch.useful_flops, launch.exps,
        launch.sram_fill_requested_bytes, launch.sram_store_requested_bytes,
    )  # fmt: skip


def disagreements(kernel: str, p: Attention, tile: Tile, lse: bool) -> list[str]:
    """The launches whose declared cost is not what the simulator counts, in total or, where rows fill whole
    sectors, by tensor."""
    # Room is not the question here: a block may use all the SRAM that the largest tile takes.
    launches = simulate(kernel, p, gpu_options={"sram": "2MiB"}, tile=tile, lse=lse, count_only=True).launches
    wrong = []
    for launch, cost in zip(launches, costs_of(kernel, p, tile, lse=lse), strict=True):
        if declared(cost) != counted(launch):
            wrong.append(f"{cost.name}: declared {declared(cost)}, counted {counted(launch)}")
        for asked, found in (
            (cost.read_bytes, launch.fill_bytes_by_tensor),
            (cost.written_bytes, launch.store_bytes_by_tensor),
        ):
            row_bytes = dict.fromkeys("QKVO", p.head_dim * p.dtype_bytes)
            row_bytes |= dict.fromkeys("SP", p.seq_len_k * p.dtype_bytes)
            for name, rows in row_bytes.items():
                if rows % SECTOR_BYTES == 0 and asked.get(name, 0) != found.get(name, 0):
                    wrong.append(f"{cost.name}: declared {asked} by tensor, counted {found}")
    return wrong


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=400)
@given(p=problems(), tile=tiles, lse=st.booleans())
@example(p=Attention(heads=2, seq_len_q=0, seq_len_k=0), tile=Tile(16, 16, 4, 1), lse=True)
@example(p=Attention(heads=2, seq_len_q=7, seq_len_k=0, causal=True), tile=Tile(16, 16, 4, 1), lse=True)
@example(p=Attention(heads=2, seq_len_q=1, seq_len_k=1, causal=True), tile=Tile(16, 16, 4, 1), lse=False)
@example(p=Attention(heads=2, seq_len_q=64, seq_len_k=1, causal=True), tile=Tile(16, 64, 4, 1), lse=False)
@example(p=Attention(heads=2, seq_len_q=100_003, seq_len_k=100_001, causal=True), tile=Tile(64, 16, 4, 1), lse=False)
def test_declared_is_counted(kernel: str, p: Attention, tile: Tile, lse: bool) -> None:
    assert not disagreements(kernel, p, tile, lse)


@settings(max_examples=300)
@given(
    seq_q=st.integers(0, 500), seq_k=st.integers(0, 500), block_m=sides, block_n=sides, causal=st.booleans()
)  # fmt: skip
def test_the_keys_that_row_blocks_visit_are_those_of_a_plain_walk(
    seq_q: int, seq_k: int, block_m: int, block_n: int, causal: bool
) -> None:
    p = Attention(seq_len_q=seq_q, seq_len_k=seq_k, causal=causal)
    visited = rows = 0
    for first in range(0, seq_q, block_m):
        last_row = min(first + block_m, seq_q) - 1
        for key in range(0, seq_k, block_n):
            if not causal or key <= last_row + seq_k - seq_q:
                visited += 1
                rows += min(block_n, seq_k - key)
    assert costs.visited_keys(p, Tile(block_m, block_n)) == (visited, rows)


def ragged(causal: bool, seq_len_k: int = 333) -> Attention:
    return Attention(
        batch=2, heads=6, kv_heads=2, seq_len_q=201, seq_len_k=seq_len_k, head_dim=80, dtype="float16", causal=causal
    )


FAULTS: dict[str, Any] = {
    "the diagonal aligned top-left": ("visited_keys", lambda p, t: _visited(replace(p, seq_len_k=p.seq_len_q), t)),
    "one row block too many": ("visited_keys", lambda p, t: _visited(replace(p, seq_len_q=p.seq_len_q + 64), t)),
    "the last tile counted whole": ("visited_keys", lambda p, t: (_visited(p, t)[0], _visited(p, t)[0] * t.block_n)),
    "no padding": ("padded_width", lambda columns: columns),
    "masked pairs counted as useful": ("useful_flops", lambda p: _useful(replace(p, causal=False))),
    "LSE in 16 bits": ("LSE_BYTES", 2),
    "chunks of another size": ("CHUNK_COLUMNS", 2048),
    "rows of any length held whole": ("WHOLE_ROW_COLUMNS", 2**20),
    "⌈x⌉ as ⌊x⌋": ("cdiv", lambda a, b: a // b),
}
_visited, _useful = costs.visited_keys, costs.useful_flops


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (kernel, p, tile)
        for kernel in KERNELS
        for p in (ragged(False), ragged(True), ragged(True, seq_len_k=50), ragged(False, seq_len_k=40_000))
        for tile in (Tile(64, 32, 4, 1), Tile(32, 64, 4, 1))
    ]
    assert not any(disagreements(*case, True) for case in cases)
    monkeypatch.setattr(costs, *FAULTS[fault])
    assert any(disagreements(*case, True) for case in cases)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_has_no_declared_cost_is_refused(kernel: str) -> None:
    for tile in (Tile(48, 16), Tile(16, 8)):
        with pytest.raises(MemsimError, match="powers of two of at least 16"):
            costs_of(kernel, ragged(False), tile)
    with pytest.raises(MemsimError, match="choose flash or naive"):
        costs_of(kernel + "1", ragged(False), Tile(64, 64))
