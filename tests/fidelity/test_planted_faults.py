"""Would the comparisons with the H200 notice? Each fault is planted in the simulator's side, and must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memsim.attention import Attention
from memsim.counting import count
from memsim.gpu import override
from memsim.language import trace_launch
from memsim.resources import blocks_per_sm, resources_of, room_of
from memsim.tile import RingRule, Room, Tile
from memsim.trace import Bound, Index, LaunchTrace, Load, Loop, Record, Store

from . import rows

ROWS = [row for row in rows.measured_rows() if not row.spills]


def changed(trace: LaunchTrace, change: Callable[[Record], Record]) -> LaunchTrace:
    """The trace with every record changed, loops after what is in them."""

    def within(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(change(replace(r, body=within(r.body)) if isinstance(r, Loop) else r) for r in records)

    return replace(trace, body=within(trace.body))


def moved(tensor: str, kind: type, **parts: Any) -> Callable[[Record], Record]:
    def change(record: Record) -> Record:
        if isinstance(record, Load | Store) and isinstance(record, kind) and record.tile.tensor.name == tensor:
            return replace(record, tile=replace(record.tile, **parts))
        return record

    return change


def every_tile(record: Record) -> Record:
    """Causal as if every block saw what the last one sees."""
    if isinstance(record, Loop) and isinstance(record.stop, Bound):
        last = int(record.stop.of_values(np.array([2**20]))[0])
        return replace(record, stop=last)
    return record


def a_trip_less(record: Record) -> Record:
    if isinstance(record, Loop):
        if isinstance(record.stop, Bound):
            limit = record.stop
            return replace(record, stop=Bound(limit.symbol, lambda values: limit.of_values(values) - 1))
        return replace(record, stop=record.stop - 1)
    return record


def once_for_two_blocks(record: Record) -> Record:
    """K of every second block is free: its row lies beyond the tensor."""
    if isinstance(record, Load) and record.tile.tensor.name == "K":
        beyond = Index("head", 1, record.tile.tensor.rows, 0)
        return replace(record, tile=replace(record.tile, row=beyond))
    return record


TRACE_FAULTS: list[tuple[str, str, Callable[[Record], Record]]] = [
    ("flash", "sram_fill_bytes", every_tile),
    ("flash", "sram_fill_bytes", a_trip_less),
    ("flash", "sram_fill_bytes", once_for_two_blocks),
    ("flash", "sram_fill_bytes", moved("Q", Load, rows=8)),
    ("flash", "sram_store_bytes", moved("O", Store, cols=32)),
    ("softmax", "sram_fill_bytes", moved("S", Load, cols=496)),
    ("softmax", "sram_store_bytes", moved("P", Store, cols=496)),
    ("pv", "sram_fill_bytes", a_trip_less),
    ("pv", "sram_fill_bytes", moved("V", Load, rows=32)),
    ("pv", "sram_store_bytes", moved("O", Store, cols=32)),
    ("qk", "sram_store_bytes", moved("S", Store, rows=64)),
]


@pytest.mark.parametrize("kernel, figure, fault", TRACE_FAULTS)
def test_a_program_that_moves_other_bytes_differs_from_the_counters(
    kernel: str, figure: str, fault: Callable[[Record], Record]
) -> None:
    def measured(row: rows.Row) -> int | None:
        return row.fills if figure == "sram_fill_bytes" else row.stores

    exact = [row for row in ROWS if row.kernel == kernel and measured(row) == getattr(row.counts, figure)]
    assert exact
    wrong = [row for row in exact if getattr(count(changed(row.trace, fault)), figure) != measured(row)]
    assert len(wrong) >= 0.4 * len(exact)


@pytest.mark.parametrize("fault", [{"block_m": 2}, {"block_n": 2}])
def test_another_tile_differs_from_the_counters(fault: dict[str, int]) -> None:
    """One row's tile twice as high; a tile twice as wide shows where causal visits fewer or lengths are ragged."""
    noticed = 0
    for row in (row for row in ROWS if row.kernel == "flash"):
        sizes = {"block_m": row.tile.block_m, "block_n": row.tile.block_n}
        tile = Tile(**{n: size * fault.get(n, 1) for n, size in sizes.items()}, num_warps=row.tile.num_warps)
        trace = trace_launch(rows.launch_of("flash", row.problem, tile), room_of(rows.H200))
        noticed += count(trace).sram_fill_bytes != row.fills
    assert noticed >= 30


@pytest.mark.parametrize(
    "field, value",
    [
        ("sm.registers.thread_unit", 64),
        ("sm.registers.warp_unit", 1024),
        ("sm.registers.per_sm", 65536 - 4096),
        ("sm.warp_unit", 8),
        ("sm.max_warps", 32),
        ("sm.max_blocks", 8),
    ],
)
def test_another_register_file_or_sram_gives_other_blocks_per_sm(field: str, value: int) -> None:
    gpu = override(rows.H200, {field: value})
    assert any(
        blocks_per_sm(gpu.sm, row.sram_bytes, row.registers, row.tile.num_warps)[0] != row.blocks_per_sm for row in ROWS
    )


@pytest.mark.parametrize(
    "rule",
    [
        lambda stages: RingRule(stages, shared=False),
        lambda stages: RingRule(max(1, stages - 1), shared=stages == 1),
        lambda stages: RingRule(stages + 1, shared=False),
    ],
    ids=["never shared", "one buffer fewer", "one buffer more"],
)
def test_another_ring_takes_other_sram(rule: Callable[[int], RingRule], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = [row for row in rows.read("compiled_sm90.csv") if int(row["block_m"]) >= 64]
    monkeypatch.setattr(Room, "ring", lambda self, tile, dtype_bytes: rule(tile.num_stages))
    gpu = rows.gpu_of("sm_90")
    wrong = 0
    for row in compiled:
        problem = Attention(head_dim=int(row["head_dim"]), causal=row["causal"] == "1")
        tile = Tile(int(row["block_m"]), int(row["block_n"]), int(row["num_warps"]), int(row["num_stages"]))
        trace = trace_launch(rows.launch_of("flash", problem, tile), room_of(gpu))
        wrong += resources_of(gpu, trace, problem, tile).sram_bytes != int(row["sram_bytes"])
    assert wrong >= 10
