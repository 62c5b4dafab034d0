"""Do bytes, SRAM and blocks per SM equal what an H200's counters and the compiler say?"""

from __future__ import annotations

import dataclasses

import pytest

from memsim.attention import Attention
from memsim.counting import count
from memsim.gpu import Gpu
from memsim.language import trace_launch
from memsim.programs import flash
from memsim.resources import blocks_per_sm, resources_of, room_of
from memsim.tile import Tile
from memsim.trace import Bound, Index, LaunchTrace, Load, Loop, Record

from . import rows

ROWS = list(rows.measured_rows())


def of(kernel: str) -> list[rows.Row]:
    return [row for row in ROWS if row.kernel == kernel]


def disagreements(measured: list[rows.Row]) -> list[rows.Row]:
    """Flash rows without stack whose fills or stores differ by a byte."""
    return [
        row
        for row in measured
        if not row.spills
        and (row.fills != row.counts.sram_fill_bytes or row.stores not in (None, row.counts.sram_store_bytes))
    ]


def test_all_rows_are_there() -> None:
    assert {kernel: len(of(kernel)) for kernel in ("flash", "qk", "softmax", "pv")} == {
        "flash": 240, "qk": 16, "softmax": 16, "pv": 16,
    }  # fmt: skip
    assert sum(not row.spills for row in of("flash")) == 224


def test_flash_fills_and_stores_are_exact_without_stack() -> None:
    assert disagreements(of("flash")) == []


def test_flash_rows_that_spill_move_more_never_less() -> None:
    for row in of("flash"):
        if row.spills:
            assert row.fills >= row.counts.sram_fill_bytes
            assert row.fills <= 1.01 * row.counts.sram_fill_bytes
            assert row.stores is None or row.stores > row.counts.sram_store_bytes


def test_softmax_fills_are_exact_without_stack() -> None:
    off = [row.fills - row.counts.sram_fill_bytes for row in of("softmax") if not row.spills]
    # One chained row of 16 MB lies two sectors below: they were found in an L1.
    assert sorted(off) == [-64] + [0] * 11
    assert all(row.fills > row.counts.sram_fill_bytes for row in of("softmax") if row.spills)


def test_pv_fills_are_exact_where_rows_are_aligned() -> None:
    for row in of("pv"):
        if row.aligned:
            assert row.fills == row.counts.sram_fill_bytes
        else:
            # Neighbouring tiles share sectors, which an L1 gives back.
            assert 0.92 * row.counts.sram_fill_bytes < row.fills < row.counts.sram_fill_bytes
        assert row.stores in (None, row.counts.sram_store_bytes)


def test_qk_requests_are_the_closed_form_and_the_l1_gives_back_up_to_a_third() -> None:
    for row in of("qk"):
        p, t = row.problem, row.tile
        row_tiles, key_tiles = -(-p.seq_len_q // t.block_m), -(-p.seq_len_k // t.block_n)
        elements = (p.seq_len_q * key_tiles + p.seq_len_k * row_tiles) * p.head_dim * p.heads * p.batch
        assert row.counts.sram_fill_requested_bytes == row.counts.sram_fill_bytes == 2 * elements
        assert 0.66 * row.counts.sram_fill_bytes < row.fills <= row.counts.sram_fill_bytes


def test_naive_stores_are_exact_where_rows_are_aligned() -> None:
    for row in (*of("qk"), *of("softmax")):
        if row.stores is None or row.spills:
            continue
        if row.aligned:
            assert row.stores == row.counts.sram_store_bytes
        else:
            # Partial sectors are sent more than once.
            assert 1.05 * row.counts.sram_store_bytes < row.stores < 1.25 * row.counts.sram_store_bytes


def blocks_without_registers(row: rows.Row) -> int:
    return blocks_per_sm(rows.H200.sm, row.sram_bytes, None, row.tile.num_warps)[0]


def test_blocks_per_sm_on_every_row() -> None:
    assert [row for row in ROWS if row.simulated_blocks_per_sm != row.blocks_per_sm] == []
    # SRAM and warps alone get many wrong, so the registers are really used.
    without = [row for row in ROWS if blocks_without_registers(row) != row.blocks_per_sm]
    assert len(without) > 100


def test_sram_of_every_measured_kernel() -> None:
    for row in ROWS:
        assert row.simulated_sram_bytes == row.sram_bytes, row


def sram(gpu: Gpu, row: dict[str, str]) -> int:
    problem = Attention(head_dim=int(row["head_dim"]), causal=row["causal"] == "1", dtype=row.get("dtype", "float16"))
    tile = Tile(int(row["block_m"]), int(row["block_n"]), int(row["num_warps"]), int(row["num_stages"]))
    trace = trace_launch(flash.build(problem, tile, room_of(gpu), False).launches[0], room_of(gpu))
    return int(resources_of(gpu, trace, problem, tile).sram_bytes)


def test_sram_rule_of_sm90_on_every_compiled_tile() -> None:
    compiled = rows.read("compiled_sm90.csv")
    assert len(compiled) == 336
    gpu = rows.gpu_of("sm_90")
    assert [row for row in compiled if sram(gpu, row) != int(row["sram_bytes"])] == []


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_sram_rule_of_other_architectures(architecture: str) -> None:
    compiled = [row for row in rows.read("compiled_other.csv") if row["architecture"] == architecture]
    assert len(compiled) == 48
    gpu = rows.gpu_of(architecture)
    assert [row for row in compiled if sram(gpu, row) != int(row["sram_bytes"])] == []


def with_body(trace: LaunchTrace, change: object) -> LaunchTrace:
    def mend(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(
            dataclasses.replace(r, body=mend(r.body)) if isinstance(r, Loop) and change is not drop_limit
            else change(r) for r in records  # type: ignore[operator]
        )  # fmt: skip

    return dataclasses.replace(trace, body=mend(trace.body))


def shifted(record: Record) -> Record:
    """K one row late, so that a row of the last tile falls off."""
    if isinstance(record, Load) and record.tile.tensor.name == "K":
        row = record.tile.row
        late = Index(row.symbol, row.divisor, row.multiplier, row.offset + 1)
        return dataclasses.replace(record, tile=dataclasses.replace(record.tile, row=late))
    return record


def narrow(record: Record) -> Record:
    """V one row short."""
    if isinstance(record, Load) and record.tile.tensor.name == "V":
        return dataclasses.replace(record, tile=dataclasses.replace(record.tile, rows=record.tile.rows - 1))
    return record


def drop_limit(record: Record) -> Record:
    """Causal visits every tile."""
    if isinstance(record, Loop) and isinstance(record.stop, Bound):
        return dataclasses.replace(record, stop=10**3)
    return record


@pytest.mark.parametrize("fault", [shifted, narrow, drop_limit])
def test_a_planted_fault_is_caught(fault: object) -> None:
    wrong = [dataclasses.replace(row, counts=count(with_body(row.trace, fault))) for row in of("flash")]
    assert disagreements(wrong)
