"""Law 1: bytes are conserved level by level, are integers, and equal the closed form of the algorithm.

The counts are held against three things written without them: formulas (thousands of random problems of any size),
an enumeration of every access in plain loops with its sectors as sets (small problems), and a walk over random traces
that no program makes. The replay moves what was counted, and the numbers are computed from the same accesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memsim import Attention, Tile, api, load_gpu, simulate
from memsim.counting import Counts, count, tile_bytes
from memsim.machine import plan, replay
from memsim.numerics import Step, run_program
from memsim.programs import build_program
from memsim.tile import Room
from memsim.trace import LaunchTrace, Load, Store, Work, check_trace

from .closed_forms import CLOSED_FORMS, Sums
from .enumeration import accesses, requested_bytes, sector_bytes, shapes
from .problems import (
    ALGORITHMS,
    HOPPER,
    ROOMS,
    TEXTBOOK,
    problems,
    random_arrays,
    scaled,
    tiles,
    traces_of,
    two_levels,
)  # fmt: skip
from .random_traces import executed, random_traces, tile_sectors

Case = tuple[str, Attention, Tile, Room, bool]

# Without registers a row of naive's softmax may not fit; limits of a few bytes and of a few hundred force two passes.
SMALL_SRAM = (9, 12, 40, 100)


@st.composite
def cases(draw: st.DrawFn, longest: int, widest: int, largest_block: int, sram: tuple[int, ...]) -> Case:
    algorithm = draw(st.sampled_from(ALGORITHMS))
    room = draw(st.sampled_from(ROOMS))
    if not room.registers:
        room = replace(room, sram_limit_bytes=draw(st.sampled_from((*sram, room.sram_limit_bytes))))
    lse = algorithm != "flash1" and draw(st.booleans())
    return algorithm, draw(problems(longest, (1, widest))), draw(tiles(room, largest_block)), room, lse


def check_formulas(counts: dict[str, Counts], expected: dict[str, Sums]) -> None:
    """Counts of each launch against its formulas."""
    assert counts.keys() == expected.keys()
    for name, found in counts.items():
        wanted = expected[name]
        assert found.sram_fill_requested_bytes == wanted.fills.total(), name
        assert found.sram_store_requested_bytes == wanted.stores.total(), name
        assert (found.flops, found.exps, found.alu_ops) == (wanted.flops, wanted.exps, wanted.alu), name
        assert found.sram_fill_bytes >= wanted.fills.total() and found.sram_fill_bytes % 32 == 0, name
        assert found.sram_store_bytes >= wanted.stores.total() and found.sram_store_bytes % 32 == 0, name
        assert sum(dict(found.fill_bytes_by_tensor).values()) == found.sram_fill_bytes, name
        assert sum(dict(found.store_bytes_by_tensor).values()) == found.sram_store_bytes, name
        for field in fields(found):
            assert isinstance(getattr(found, field.name), int | tuple), f"{name}: {field.name} is no integer"


@settings(max_examples=scaled(2000))
@given(cases(6000, 260, 256, (300, 4000)))
@example(("flash1", Attention(seq_len_q=0, seq_len_k=0, causal=True), Tile(16, 16), HOPPER, False))
@example(("naive", Attention(1, 1, None, 2, 40_000, 8), Tile(16, 64), HOPPER, True))  # two passes beyond 32,768 columns
@example(("flash", Attention(7, 15, 5, 131_072, 99_999, 128, "float32", True), Tile(128, 64), HOPPER, True))
def test_counts_equal_the_formulas(case: Case) -> None:
    algorithm, problem, tile, room, lse = case
    traces = traces_of(algorithm, problem, tile, room, lse=lse)
    check_formulas(
        {name: count(trace) for name, trace in traces.items()}, CLOSED_FORMS[algorithm](problem, tile, room, lse)
    )


@settings(max_examples=scaled(100))
@given(cases(600, 260, 256, ()), st.data())
def test_a_wrong_formula_would_be_noticed(case: Case, data: st.DataObject) -> None:
    algorithm, problem, tile, room, lse = case
    counts = {name: count(trace) for name, trace in traces_of(algorithm, problem, tile, room, lse=lse).items()}
    wrong = CLOSED_FORMS[algorithm](problem, tile, room, lse)
    launch = wrong[data.draw(st.sampled_from(sorted(wrong)))]
    field = data.draw(st.sampled_from(("flops", "exps", "alu", "fills", "stores")))
    if field in ("fills", "stores"):
        getattr(launch, field)["Q"] += 1
    else:
        setattr(launch, field, getattr(launch, field) + 1)
    with pytest.raises(AssertionError):
        check_formulas(counts, wrong)


@settings(max_examples=scaled(300))
@given(cases(6000, 260, 256, ()))
def test_sectors_equal_requests_where_rows_are_aligned(case: Case) -> None:
    algorithm, problem, tile, room, lse = case
    expected = CLOSED_FORMS[algorithm](problem, tile, room, lse)
    row_bytes = {name: shape.cols * shape.element for name, shape in shapes(problem).items()}
    # Tiles of S and P also start within rows, every block_n columns.
    steps = {"S": tile.block_n * problem.dtype_bytes, "P": tile.block_n * problem.dtype_bytes}
    for name, trace in traces_of(algorithm, problem, tile, room, lse=lse).items():
        counts = count(trace)
        for counted, wanted in (
            (counts.fill_bytes_by_tensor, expected[name].fills),
            (counts.store_bytes_by_tensor, expected[name].stores),
        ):
            for tensor, whole in counted:
                if row_bytes[tensor] % 32 == 0 and steps.get(tensor, 0) % 32 == 0:
                    assert whole == wanted[tensor], (name, tensor)


@settings(max_examples=scaled(250))
@given(cases(40, 40, 32, SMALL_SRAM))
def test_sectors_equal_the_enumeration(case: Case) -> None:
    algorithm, problem, tile, room, lse = case
    tensors = shapes(problem)
    whole: Counter[tuple[str, str, str]] = Counter()
    requested: Counter[tuple[str, str]] = Counter()
    for access in accesses(algorithm, problem, tile, room, lse):
        shape = tensors[access.tensor]
        whole[access.launch, access.kind, access.tensor] += sector_bytes(access, shape)
        requested[access.launch, access.kind] += requested_bytes(access, shape)
    for name, trace in traces_of(algorithm, problem, tile, room, lse=lse).items():
        counts = count(trace)
        found = {(name, "load", tensor): n for tensor, n in counts.fill_bytes_by_tensor}
        found |= {(name, "store", tensor): n for tensor, n in counts.store_bytes_by_tensor}
        assert {key: n for key, n in found.items() if n} == {k: n for k, n in whole.items() if k[0] == name and n}
        assert counts.sram_fill_requested_bytes == requested[name, "load"]
        assert counts.sram_store_requested_bytes == requested[name, "store"]


@settings(max_examples=scaled(60))
@given(cases(30, 12, 16, (100,)))
def test_the_numbers_come_from_the_same_accesses(case: Case) -> None:
    """What the program reads and writes on arrays, access by access, in order."""
    algorithm, problem, tile, room, lse = case
    seen: list[tuple[str, str, Any]] = []

    def watch(step: Step) -> None:
        if step.operation in ("load", "store"):
            seen.append((step.operation, step.name, step.at))

    # Two passes of a softmax without registers; otherwise there is room.
    room = room if room.sram_limit_bytes > 100 or algorithm == "naive" else TEXTBOOK
    program = build_program(algorithm, problem, tile, room, lse=lse)
    # The limit itself is law 5's.
    program = replace(program, room=replace(program.room, sram_limit_bytes=2**40))
    run_program(program, problem, *random_arrays(problem, 0), watch=watch)

    def order(access: tuple[str, str, Any]) -> Any:
        return access

    # Within a block the order is the program's own; which accesses there are is the algorithm's.
    expected = [(a.kind, a.tensor, a.at) for a in accesses(algorithm, problem, tile, room, lse)]
    assert sorted(seen, key=order) == sorted(expected, key=order)


@settings(max_examples=scaled(1000))
@given(first=st.integers(0, 200), gap=st.integers(0, 100), rows=st.integers(0, 70), width=st.integers(0, 150))
def test_sectors_of_a_tile(first: int, gap: int, rows: int, width: int) -> None:
    touched = {
        byte // 32
        for row in range(rows)
        for byte in range(first + row * (width + gap), first + row * (width + gap) + width)
    }
    assert tile_bytes(first, width + gap, rows, width) == 32 * len(touched)


def sums_of_walk(trace: LaunchTrace) -> Counts:
    """What a trace does, from a walk over every record of every block."""
    sums: Counter[str] = Counter()
    loaded: dict[str, int] = {}
    stored: dict[str, int] = {}
    for record, values in executed(trace):
        sums["operations"] += 1
        if isinstance(record, Work):
            sums[record.pipe] += record.amount
        elif isinstance(record, Load | Store):
            sectors, requested = tile_sectors(record.tile, values)
            kind, by_tensor = ("load", loaded) if isinstance(record, Load) else ("store", stored)
            name = record.tile.tensor.name
            by_tensor[name] = by_tensor.get(name, 0) + 32 * len(sectors)
            sums[kind] += requested
    return Counts(
        sum(loaded.values()), sums["load"], sum(stored.values()), sums["store"], sums["tensor"], sums["exp"],
        sums["alu"], sums["operations"], _nonzero(loaded), _nonzero(stored),
    )  # fmt: skip


def _nonzero(by_tensor: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, n) for name, n in by_tensor.items() if n))


def check_walk(trace: LaunchTrace) -> None:
    walked, counted = sums_of_walk(check_trace(trace)), count(trace)
    assert walked == replace(
        counted,
        fill_bytes_by_tensor=_nonzero(dict(counted.fill_bytes_by_tensor)),
        store_bytes_by_tensor=_nonzero(dict(counted.store_bytes_by_tensor)),
    )
    timing = replay(load_gpu("two-level"), [(trace, 2)]).launches[0]
    assert (timing.fill_bytes, timing.store_bytes) == (walked.sram_fill_bytes, walked.sram_store_bytes)
    assert (timing.hbm_read_bytes, timing.hbm_write_bytes) == (timing.fill_bytes, timing.store_bytes)


@settings(max_examples=scaled(200))
@given(random_traces())
def test_counts_and_replay_equal_a_walk_over_any_trace(trace: LaunchTrace) -> None:
    check_walk(trace)


@settings(max_examples=scaled(60))
@given(cases(40, 20, 32, (100,)))
def test_counts_and_replay_equal_a_walk_over_a_programs_trace(case: Case) -> None:
    algorithm, problem, tile, room, lse = case
    for trace in traces_of(algorithm, problem, tile, room, lse=lse).values():
        check_walk(trace)


@settings(max_examples=scaled(60))
@given(cases(300, 128, 64, ()))
def test_the_levels_hand_on_what_they_get(case: Case) -> None:
    """On two levels what fills SRAM is read from HBM, and what leaves it is written there, launch by launch."""
    algorithm, problem, tile, room, lse = case
    gpu = two_levels(load_gpu("h200" if room.registers else "two-level"))
    if tile.block_m * tile.block_n * tile.num_stages > 64 * 64 * 2 or problem.head_dim > 64:
        tile = Tile(16, 16, 1, 1)
    result = simulate(algorithm, problem, gpu=gpu, tile=tile, lse=lse)
    for launch in (*result.launches, result.total):
        assert launch.hbm_read_bytes == launch.sram_fill_bytes
        assert launch.hbm_write_bytes == launch.sram_store_bytes
    for field in ("sram_fill_bytes", "sram_store_bytes", "flops", "exps", "alu_ops", "tile_operations"):
        assert getattr(result.total, field) == sum(getattr(launch, field) for launch in result.launches)
    assert result.total.hbm_bytes == result.total.hbm_read_bytes + result.total.hbm_write_bytes
    assert 0 <= result.total.useful_flops <= result.total.flops
    assert result.total.peak_hbm_bytes == sum(
        np.prod((problem.batch, shape.heads, shape.rows, shape.cols), dtype=object) * shape.element
        for name, shape in shapes(problem).items()
        if name in tensors_of(algorithm, lse)
    )


def tensors_of(algorithm: str, lse: bool) -> set[str]:
    own = {"naive": {"S", "P"}, "flash": set(), "flash1": {"m", "l"}}[algorithm]
    return {"Q", "K", "V", "O"} | own | ({"LSE"} if lse else set())


PROBLEM = Attention(1, 2, None, 100, 70, 41, causal=True)
FAULTS = {
    "a sector too many": lambda right: lambda *a: right(*a) + 32,
    "a row left out": lambda right: lambda first, row, rows, width: right(first, row, rows - 1, width),
    "no alignment": lambda right: lambda first, row, rows, width: right(0, row, rows, width),
    "everything": lambda right: lambda first, row, rows, width: right(first, row, 32, row),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_replay_that_moves_other_bytes_is_caught(algorithm: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "tile_bytes", FAULTS[fault](tile_bytes))
    with pytest.raises(AssertionError, match=r"counted .* bytes filled and stored, replayed"):
        simulate(algorithm, PROBLEM, gpu="two-level", tile=Tile(16, 16))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_count_that_differs_from_the_replay_is_caught(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = api.count

    def wrong(trace: LaunchTrace) -> Counts:
        counts = right(trace)
        return replace(counts, sram_store_bytes=counts.sram_store_bytes - 32)

    monkeypatch.setattr(api, "count", wrong)
    with pytest.raises(AssertionError, match="replayed"):
        simulate(algorithm, PROBLEM, gpu="two-level", tile=Tile(16, 16))


def test_the_walk_finds_a_planted_fault() -> None:
    """A trace with one trip more, and one with a tile one row lower, do not count as the original does."""
    trace = traces_of("flash", replace(PROBLEM, causal=False), Tile(16, 16), TEXTBOOK)["flash"]
    for changed in _altered(trace):
        assert sums_of_walk(changed) != sums_of_walk(trace)


def _altered(trace: LaunchTrace) -> Iterator[LaunchTrace]:
    for position, record in enumerate(trace.body):
        if hasattr(record, "stop"):
            changed: Any = replace(record, stop=record.stop + 1)
        elif isinstance(record, Load | Store):
            changed = replace(record, tile=replace(record.tile, row=replace(record.tile.row, offset=1)))
        else:
            continue
        yield replace(trace, body=(*trace.body[:position], changed, *trace.body[position + 1 :]))
