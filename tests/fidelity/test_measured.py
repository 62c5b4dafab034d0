"""Do the kernels move on a real H200 what the simulator says? (measurements/h200.csv, no row left out)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsim.measurements import Measurements, read_measurements
from memsim.validate import Check, Row, Validation, validate

FILE = Path(__file__).parents[2] / "measurements" / "h200.csv"


@pytest.fixture(scope="module")
def measured() -> Validation:
    return validate(read_measurements(FILE))


def checks(rows: Iterator[Row] | list[Row], column: str) -> list[tuple[Row, Check]]:
    return [(row, check) for row in rows for check in row.checks if check.column == column]


def flash(found: Validation, *, spilling: bool) -> list[Row]:
    return [
        row for row in found.rows
        if row.measurement.kernel == "flash" and (row.measurement.values["stack_bytes"] > 0) == spilling
    ]  # fmt: skip


def test_the_grid_is_the_one_that_was_asked_for(measured: Validation) -> None:
    rows = [row.measurement for row in measured.rows]
    of_flash = [row for row in rows if row.kernel == "flash"]
    assert len({(row.problem, row.problem.causal) for row in of_flash}) == 20
    assert len({row.tile for row in of_flash}) == 16
    assert {row.tile.load_path for row in of_flash} == {"pointer", "descriptor", "descriptor-ws"}
    assert {row.problem.dtype for row in of_flash} == {"float16", "bfloat16"}
    assert {kernel: sum(row.kernel == kernel for row in rows) for kernel in ("flash", "qk", "softmax", "pv")} == {
        "flash": 310, "qk": 20, "softmax": 20, "pv": 20,
    }  # fmt: skip
    assert not measured.failed_launches


def test_every_claim_holds(measured: Validation) -> None:
    assert [row.measurement.name for row in measured.missed] == []


@pytest.mark.parametrize("column", ["sram_fill_bytes", "sram_store_bytes"])
def test_flash_without_stack_is_exact_on_every_row(measured: Validation, column: str) -> None:
    rows = checks(flash(measured, spilling=False), column)
    assert len(rows) == 258
    assert [(row.measurement.name, check.simulated, check.measured) for row, check in rows if not check.exact] == []


def test_a_spilling_rows_excess_is_its_spill_instructions(measured: Validation) -> None:
    """A spill of a warp writes 128 to 512 B through to the L2, whether it is read back there or in the L1."""
    rows = flash(measured, spilling=True)
    assert len(rows) == 52
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
    of = {name: [row for row in measured.rows if row.measurement.kernel == name] for name in ("qk", "softmax", "pv")}
    aligned = [row for row in of["pv"] if row.measurement.problem.seq_len_k % 16 == 0]
    for _, check in checks(aligned, "sram_fill_bytes"):
        assert check.exact
    for _, check in checks(of["qk"], "sram_fill_bytes"):
        assert check.simulated is not None and 0.7 * check.simulated <= check.measured <= check.simulated
    for row, check in checks(of["softmax"], "sram_fill_bytes"):
        assert check.simulated is not None and abs(check.simulated - check.measured) <= 64, row.measurement.name
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


def test_where_it_came_from_is_beside_it() -> None:
    told = json.loads(FILE.with_suffix(".provenance.json").read_text(encoding="utf-8"))
    (run,) = told["runs"]
    assert run["gpu"] == "h200" and run["nvidia_smi"]["name"] == "NVIDIA H200"
    assert run["versions"]["triton"] == "3.6.0" and run["date"].startswith("2026-11-30")
