"""Is an export of ncu read as what it says, in both formats, and is every fault in one named?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memsim import Attention, MemsimError, Tile, load_gpu
from memsim.measurements import Measurements, read_measurements, write_measurements
from memsim.ncu import import_ncu, kernel_of

from .ncu_exports import FLASH, NAIVE, OTHER, Launch, long_format, wide_format

H200 = load_gpu("h200")
FLASH_PROBLEM, FLASH_TILE = Attention(heads=16, seq_len_q=4096, seq_len_k=4096), Tile(128, 64, 8, 3)
NAIVE_PROBLEM = Attention(heads=8, seq_len_q=1000, seq_len_k=1000, head_dim=64)
NAIVE_TILE = Tile(64, 64, 8, 3)
FORMATS = pytest.mark.parametrize("form", [long_format, wide_format])
Form = Callable[[list[Launch]], str]


def imported(tmp_path: Path, text: str, problem: Attention = FLASH_PROBLEM, tile: Tile = FLASH_TILE) -> Measurements:
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    return import_ncu(path, problem, tile, H200, gpu_name="h200", cache_state="cold", grid_order="rows-fast")


def with_metric(launch: Launch, name: str, value: str | None, unit: str = "byte") -> Launch:
    """The launch with one metric replaced, or without it."""
    metrics = {**launch[3], name: (unit, value or "")}
    if value is None:
        del metrics[name]
    return (*launch[:3], metrics)


@FORMATS
def test_a_flash_launch_reads_as_the_row_that_was_measured(tmp_path: Path, form: Form) -> None:
    (row,) = imported(tmp_path, form([FLASH])).rows
    file = read_measurements(Path(__file__).parents[1] / "fidelity/data/counters.csv")
    measured = next(other for other in file.rows if other.line == 154)
    assert {name: row.values[name] for name in measured.values if name != "stack_bytes"} == {
        name: value for name, value in measured.values.items() if name != "stack_bytes"
    }
    assert "stack_bytes" not in row.values and row.values["spill_load_instructions"] == 0
    assert (row.kernel, row.problem, row.tile, row.gpu) == ("flash", measured.problem, measured.tile, "h200")
    assert not row.rounded


@FORMATS
def test_naive_launches_are_told_by_name_and_others_left_out(tmp_path: Path, form: Form) -> None:
    read = imported(tmp_path, form([*NAIVE, OTHER]), NAIVE_PROBLEM, NAIVE_TILE)
    assert [row.kernel for row in read.rows] == ["qk", "softmax", "pv"]
    assert [row.values["blocks_per_sm"] for row in read.rows] == [5, 8, 4]
    assert (read.rows[1].block_m, read.rows[1].block_n) == (1, 0)
    assert read.other_kernels == ("vectorized_elementwise_kernel",)


def test_columns_and_lines_of_rules_are_passed_over(tmp_path: Path) -> None:
    assert imported(tmp_path, long_format([FLASH], rules=True)).rows[0].values == (
        imported(tmp_path, long_format([FLASH])).rows[0].values
    )


def test_imported_rows_can_be_written_and_read_again(tmp_path: Path) -> None:
    rows = imported(tmp_path, long_format([FLASH])).rows
    write_measurements(tmp_path / "out.csv", rows)
    (back,) = read_measurements(tmp_path / "out.csv").rows
    assert (back.values, back.problem, back.tile) == (rows[0].values, rows[0].problem, rows[0].tile)


@FORMATS
def test_a_metric_that_is_not_there_leaves_its_column_empty(tmp_path: Path, form: Form) -> None:
    without = with_metric(FLASH, "dram__bytes_read.sum", None)
    assert "hbm_read_bytes" not in imported(tmp_path, form([without])).rows[0].values
    # Three of four limits do not say which is the smallest.
    without = with_metric(FLASH, "launch__occupancy_limit_registers", None)
    assert "blocks_per_sm" not in imported(tmp_path, form([without])).rows[0].values
    barriers = with_metric(FLASH, "launch__occupancy_limit_barriers", "0", "block")
    assert imported(tmp_path, form([barriers])).rows[0].values["blocks_per_sm"] == 0


@pytest.mark.parametrize(
    ("unit", "value", "bytes_", "off"),
    [
        ("byte", "16,777,216", 16_777_216, 0),
        ("byte", "16777216.00", 16_777_216, 0),
        ("Kbyte", "16,777.22", 16_777_220, 5),
        ("Mbyte", "16.78", 16_780_000, 5_000),
        ("MB", "16.78", 16_780_000, 5_000),
        ("Gbyte", "0.0168", 16_800_000, 50_000),
    ],
)
def test_scaled_units_are_known_to_their_last_digit(
    tmp_path: Path, unit: str, value: str, bytes_: int, off: float
) -> None:
    launch = with_metric(FLASH, "l1tex__m_l1tex2xbar_write_bytes.sum", value, unit)
    (row,) = imported(tmp_path, long_format([launch])).rows
    assert row.values["sram_store_bytes"] == bytes_
    assert row.rounded.get("sram_store_bytes", 0) == off
    if off:
        # A file of measurements has no place for how far off a figure may be.
        with pytest.raises(MemsimError, match="--print-units base"):
            write_measurements(tmp_path / "out.csv", [row])


def test_a_persistent_launch_has_at_most_a_block_a_unit(tmp_path: Path) -> None:
    persistent = replace(FLASH_TILE, grid_order="persistent")
    fewer = (*FLASH[:2], "(132, 1, 1)", FLASH[3])
    assert imported(tmp_path, long_format([fewer]), tile=persistent).rows[0].grid_order == "persistent"
    more = (*FLASH[:2], "(513, 1, 1)", FLASH[3])
    with pytest.raises(MemsimError, match="flash ran 513 blocks, but with this problem and tile it has 512 at most"):
        imported(tmp_path, long_format([more]), tile=persistent)


SECTORS = "lts__t_sectors_op_read.sum"


@pytest.mark.parametrize(
    ("unit", "value", "bytes_", "off"),
    [("sector", "161,945", 32 * 161_945, 0), ("", "161945", 32 * 161_945, 0), ("Ksector", "161.95", 5_182_400, 160)],
)
def test_sectors_are_bytes(tmp_path: Path, unit: str, value: str, bytes_: int, off: float) -> None:
    (row,) = imported(tmp_path, long_format([with_metric(FLASH, SECTORS, value, unit)])).rows
    assert row.values["l2_slice_read_bytes"] == bytes_ and "l2_read_bytes" not in row.values
    assert row.rounded.get("l2_slice_read_bytes", 0) == off


def test_bytes_are_no_sectors(tmp_path: Path) -> None:
    with pytest.raises(MemsimError, match='has the unit "byte", which is none for sectors'):
        imported(tmp_path, long_format([with_metric(FLASH, SECTORS, "161,945", "byte")]))


@pytest.mark.parametrize(
    ("unit", "value"),
    [("nsecond", "309,824"), ("ns", "309824"), ("usecond", "309.82"), ("us", "309.82"), ("ms", "0.31")],
)
def test_times_are_read_in_every_unit(tmp_path: Path, unit: str, value: str) -> None:
    launch = with_metric(FLASH, "gpu__time_duration.sum", value, unit)
    assert imported(tmp_path, long_format([launch])).rows[0].values["duration_s"] == pytest.approx(
        309.824e-6, rel=0.001
    )


def test_processes_may_count_their_launches_alike(tmp_path: Path) -> None:
    text = long_format([FLASH])
    other = text.replace('"4242"', '"4243"').replace("1,090,519,040", "1,090,519,072")
    read = imported(tmp_path, text + other.split('"CC"', 1)[1].split("\n", 1)[1])
    assert [row.values["sram_fill_bytes"] for row in read.rows] == [1_090_519_040, 1_090_519_072]


FILLS = "l1tex__m_xbar2l1tex_read_bytes.sum"
BAD_METRICS = [
    ("n/a", "byte", 'is "n/a", so it was not measured'),
    ("nan", "byte", 'is "nan", so it was not measured'),
    ("-5", "byte", 'is "-5"; give a number as ncu prints it'),
    ("1.090.519.040", "byte", 'is "1.090.519.040"; give a number'),
    ("1,09", "byte", 'is "1,09"; give a number'),
    ("12.5", "byte", 'is "12.5"; it must be a whole number'),
    ("1e99", "byte", "which is too large"),
    ("85.5", "%", 'has the unit "%"'),
    ("5", "sector", 'has the unit "sector"'),
]


@FORMATS
@pytest.mark.parametrize(("value", "unit", "sentence"), BAD_METRICS)
def test_a_figure_that_is_none_is_a_fault_with_its_line(
    tmp_path: Path, form: Form, value: str, unit: str, sentence: str
) -> None:
    with pytest.raises(MemsimError) as error:
        imported(tmp_path, form([with_metric(FLASH, FILLS, value, unit)]))
    (fault,) = error.value.faults
    assert re.match(rf'line \d+: {re.escape(FILLS)} of "flash_pointer_kernel" ', fault) and sentence in fault


@FORMATS
@pytest.mark.parametrize(
    ("problem", "tile", "sentence"),
    [
        (FLASH_PROBLEM, Tile(64, 64, 8, 3), "flash ran 512 blocks, but with this problem and tile it has 1024"),
        (Attention(heads=8, seq_len_q=4096, seq_len_k=4096), FLASH_TILE, "flash ran 512 blocks"),
        (FLASH_PROBLEM, Tile(128, 64, 4, 3), "flash ran 256 threads a block, but num-warps is 4, 128 threads"),
    ],
)
def test_a_problem_or_tile_that_it_did_not_run_with_is_refused(
    tmp_path: Path, form: Form, problem: Attention, tile: Tile, sentence: str
) -> None:
    with pytest.raises(MemsimError) as error:
        imported(tmp_path, form([FLASH]), problem, tile)
    assert sentence in str(error.value)


def test_another_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemsimError, match="flash ran on sm_80, but h200-sxm is sm_90"):
        imported(tmp_path, long_format([FLASH], cc="8.0"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace('"Metric Value"', '"Value"'), 'lacks the column "Metric Value"'),
        (lambda text: text.replace('"Context"', '"Stream"', 1), 'has the column "Stream" twice'),
        (lambda text: text.split("\n", 4)[3] + "\n", "has no launch in it"),
        (lambda text: text.replace("flash_pointer_kernel", "ampere_sgemm"), "none of the kernels is one of those"),
        (lambda text: text.replace('"1,090,519,040"', ""), "so it was not measured"),
        (lambda text: text + text.split("\n")[4].replace('"50,353,664"', '"1"') + "\n", "but \"50,353,664\" on line"),
        (lambda text: re.sub(r'"(?:dram|gpu|l1tex|launch|sm|smsp)__', '"x__', text), "has none of the metrics"),
    ],
)  # fmt: skip
def test_a_broken_export_is_one_sentence(tmp_path: Path, change: Callable[[str], str], sentence: str) -> None:
    with pytest.raises(MemsimError) as error:
        imported(tmp_path, change(long_format([FLASH])))
    assert len(error.value.faults) == 1 and sentence in error.value.faults[0]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("flash_pointer_kernel", "flash"),
        ("flash_descriptor_kernel", "flash"),
        ("softmax_two_pass_kernel", "softmax"),
        ("void qk<128, 64>(float*)", "qk"),
        ("pv_kernel_0d1d2d", "pv"),
        ("cunn_SoftMaxForward", None),
        ("pvalue_kernel", None),
        ("", None),
    ],
)
def test_kernels_are_known_by_a_word_of_their_names(name: str, kernel: str | None) -> None:
    assert kernel_of(name) == kernel
