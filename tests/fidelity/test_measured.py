"""Do the kernels move on a real H200 what the simulator says? (measurements/h200*.csv, no row left out)"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsim.grid import ORDERS
from memsim.measurements import Measurements, read_measurements
from memsim.validate import Check, Row, Validation, validate

NAIVE = ("qk", "softmax", "pv")
FOLDER = Path(__file__).parents[2] / "measurements"
FILE = FOLDER / "h200.csv"
JUDGE = FOLDER / "h200_judge.csv"
ORDERED = FOLDER / "h200_grid_orders.csv"


@pytest.fixture(scope="module", params=[FILE, JUDGE], ids=["fit", "judge"])
def measured(request: pytest.FixtureRequest) -> Validation:
    return validate(read_measurements(request.param))


@pytest.fixture(scope="module")
def is_fit(measured: Validation) -> bool:
    return any(row.measurement.problem.seq_len_k == 65536 for row in measured.rows)


def checks(rows: Iterator[Row] | list[Row], column: str) -> list[tuple[Row, Check]]:
    return [(row, check) for row in rows for check in row.checks if check.column == column]


def flash(found: Validation, *, spilling: bool) -> list[Row]:
    return [
        row for row in found.rows
        if row.measurement.kernel == "flash" and (row.measurement.values["stack_bytes"] > 0) == spilling
    ]  # fmt: skip


def test_the_grid_is_the_one_that_was_asked_for(measured: Validation, is_fit: bool) -> None:
    rows = [row.measurement for row in measured.rows]
    of_flash = [row for row in rows if row.kernel == "flash"]
    assert len({row.problem for row in of_flash}) == (28 if is_fit else 36)
    assert len({row.tile for row in of_flash}) == (16 if is_fit else 20)
    assert {row.tile.load_path for row in of_flash} == {"pointer", "descriptor", "descriptor-ws"}
    assert {row.problem.dtype for row in of_flash} == {"float16", "bfloat16"}
    found = Counter((row.kernel, row.cache_state) for row in rows)
    naive = {(kernel, state): 28 if is_fit else 32 for kernel in NAIVE for state in ("cold", "chained")}
    cold, other = (434, 16) if is_fit else (702, 12)
    assert found == naive | {("flash", "cold"): cold, ("flash", "chained"): other, ("flash", "warm"): other}
    assert not measured.failed_launches


def test_no_problem_is_in_both() -> None:
    fit, judge = ({row.problem for row in read_measurements(file).rows} for file in (FILE, JUDGE))
    assert fit and judge and not fit & judge


def test_every_claim_holds(measured: Validation) -> None:
    assert [row.measurement.name for row in measured.missed] == []


@pytest.mark.parametrize("column", ["sram_fill_bytes", "sram_store_bytes"])
def test_flash_without_stack_is_exact_on_every_row(measured: Validation, is_fit: bool, column: str) -> None:
    rows = checks(flash(measured, spilling=False), column)
    # One pass over a launch counts no stores.
    assert len(rows) == {"sram_fill_bytes": (639, 396), "sram_store_bytes": (615, 364)}[column][is_fit]
    assert [(row.measurement.name, check.simulated, check.measured) for row, check in rows if not check.exact] == []


def test_a_spilling_rows_excess_is_its_spill_instructions(measured: Validation, is_fit: bool) -> None:
    """A spill of a warp writes 128 to 512 B through to the L2, whether it is read back there or in the L1."""
    rows = flash(measured, spilling=True)
    assert len(rows) == (70 if is_fit else 87)
    for row in rows:
        values = row.measurement.values
        fills, stores = (
            check.measured - (check.simulated or 0)
            for column in ("sram_fill_bytes", "sram_store_bytes") for _, check in checks([row], column)
        )  # fmt: skip
        written = values["spill_store_instructions"]
        assert 128 * written <= stores <= 512 * written, row.measurement.name
        assert 0 <= fills <= 512 * values["spill_load_instructions"], row.measurement.name


def test_naive_is_as_exact_as_plain_loads_allow(measured: Validation) -> None:
    of = {name: [row for row in measured.rows if row.measurement.kernel == name] for name in NAIVE}
    aligned = [row for row in of["pv"] if row.measurement.problem.seq_len_k % 16 == 0]
    for _, check in checks(aligned, "sram_fill_bytes"):
        assert check.exact
    for _, check in checks(of["qk"], "sram_fill_bytes"):
        assert check.simulated is not None and 0.63 * check.simulated <= check.measured <= check.simulated
    for row, check in checks(of["softmax"], "sram_fill_bytes"):
        assert check.simulated is not None
        off = check.measured - check.simulated
        if row.measurement.values["stack_bytes"]:
            assert 0 <= off <= 0.05 * check.simulated, row.measurement.name
        else:
            assert abs(off) <= max(64, check.simulated / 1e6), row.measurement.name
    for name in of:
        for row, check in checks(of[name], "sram_store_bytes"):
            ragged = row.measurement.problem.seq_len_k % 16 != 0 and name != "pv"
            spills = row.measurement.values["stack_bytes"] > 0
            assert check.exact or ragged or spills, row.measurement.name


@pytest.mark.parametrize("off", [32, -32])
def test_one_sector_more_or_less_is_noticed(off: int) -> None:
    rows = list(read_measurements(FILE).rows)
    place = next(n for n, row in enumerate(rows) if row.kernel == "flash" and row.values["stack_bytes"] == 0)
    changed = dict(rows[place].values)
    changed["sram_fill_bytes"] += off
    from dataclasses import replace

    rows[place] = replace(rows[place], values=changed)
    missed = validate(Measurements(tuple(rows))).missed
    assert [row.measurement.line for row in missed] == [rows[place].line]


def test_less_crosses_from_the_l2_than_arrives_where_sms_ask_for_the_same(measured: Validation) -> None:
    """And what one half of the L2 asks the other for is between half and all of what misses, where nothing is warm."""
    rows = [row.measurement for row in measured.rows if "l2_read_bytes" in row.measurement.values]
    assert {row.cache_state for row in rows} == {"chained", "warm"}
    for row in rows:
        v = row.values
        assert v["l2_read_bytes"] <= v["sram_fill_bytes"] + 1024 <= 5 * v["l2_read_bytes"], row.name
        if row.cache_state == "chained" and v["hbm_read_bytes"] > 2**24:
            crossed = v["l2_slice_read_bytes"] - v["l2_read_bytes"]
            assert 0.49 <= crossed / v["hbm_read_bytes"] <= 1.25, row.name


def test_s_of_a_few_mb_stays_in_the_l2_between_kernels(measured: Validation) -> None:
    chained = [row.measurement for row in measured.rows if row.measurement.cache_state == "chained"]
    softmax = [(row.problem, row.values["hbm_read_bytes"]) for row in chained if row.kernel == "softmax"]
    sizes = [(p.batch * p.heads * p.seq_len_q * p.seq_len_k * p.dtype_bytes, read) for p, read in softmax]
    assert all(read < 0.01 * size for size, read in sizes if size < 2**24)
    assert all(read > 0.98 * size for size, read in sizes if size > 2**26)


@pytest.fixture(scope="module")
def orders() -> Validation:
    return validate(read_measurements(ORDERED))


def test_every_grid_order_moves_the_same_bytes(orders: Validation) -> None:
    assert {row.measurement.tile.grid_order for row in orders.rows} == set(ORDERS) and len(orders.rows) == 50
    for column in ("sram_fill_bytes", "sram_store_bytes", "sram_bytes", "blocks_per_sm"):
        found = checks(list(orders.rows), column)
        assert len(found) == 50 and all(check.exact for _, check in found)


def test_orders_that_use_all_heads_at_once_do_not_find_them_in_the_l2(orders: Validation) -> None:
    """K and V of 64 heads are 268 MB at N = 8,192 and 2 GB at N = 65,536; those of a section fit."""
    rows = [row.measurement for row in orders.rows if row.measurement.problem.heads == 64]
    read = {(row.problem.seq_len_k, row.block_m, row.tile.grid_order): row.values["hbm_read_bytes"] for row in rows}
    for length, block_m in {key[:2] for key in read}:
        assert read[length, block_m, "heads-fast"] > 10 * read[length, block_m, "rows-fast"]
    for block_m in (64, 128):
        assert read[8192, block_m, "head-sections"] < 1.5 * read[8192, block_m, "rows-fast"]
        assert read[8192, block_m, "longest-first"] > 10 * read[8192, block_m, "rows-fast"]


@pytest.mark.parametrize("file", [FILE, JUDGE, ORDERED])
def test_where_it_came_from_is_beside_it(file: Path) -> None:
    told = json.loads(file.with_suffix(".provenance.json").read_text(encoding="utf-8"))
    assert len(told["runs"]) == (1 if file == ORDERED else 4 if file == FILE else 3)
    for run in told["runs"]:
        assert run["gpu"] == "h200" and run["nvidia_smi"]["name"] == "NVIDIA H200"
        assert run["versions"]["triton"] == "3.6.0" and run["date"].startswith("2026-11-30")
