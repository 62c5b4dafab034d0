"""Does `memsim validate` tell a simulator that is right from one that is not, and say what it did not check?"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memsim import MemsimError, _simulated, load_gpu
from memsim.measurements import Measurement, Measurements, read_measurements
from memsim.trace import LaunchTrace, Load, Loop, Record
from memsim.validate import Validation, validate

from .measured import COUNTERS, measured_rows, memsim_, row_of, saved
from .ncu_exports import FLASH, NAIVE, Launch, long_format, wide_format


@pytest.fixture(autouse=True)
def _no_kept_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "cache"))


SMALL = {"seq_len_q": "1000", "cache_state": "cold"}
FLASH_ROW = {**SMALL, "kernel": "flash", "causal": "1", "block_m": "128", "num_warps": "8"}


def test_every_claim_holds_on_the_measured_file() -> None:
    code, out, err = memsim_("validate", str(COUNTERS), "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["schema"] == "memsim.validate/1" and data["holds"] is True
    assert len(data["rows"]) == 288
    summaries = {(s["kernel"], s["column"]): s for s in data["summaries"]}
    flash = summaries["flash", "sram_fill_bytes"]
    # 224 of 240 rows have no stack, and are equal to the byte.
    assert (flash["rows"], flash["exact"], flash["claimed"], flash["missed"]) == (240, 224, 240, 0)
    assert summaries["flash", "blocks_per_sm"]["exact"] == 240
    assert summaries["qk", "sram_fill_bytes"]["claimed"] == 16
    # Nothing is known of HBM bytes below an L2 without a replay.
    assert ("flash", "hbm_read_bytes") not in summaries
    assert data["unchecked_columns"] == ["event_time_s"]
    assert len(data["spills"]) == 20


FAULTS: list[tuple[str, dict[str, str], str, int]] = [
    ("flash", FLASH_ROW, "sram_fill_bytes", 32),
    ("flash", FLASH_ROW, "sram_fill_bytes", -32),
    ("flash", FLASH_ROW, "sram_store_bytes", 32),
    ("flash", FLASH_ROW, "sram_bytes", 8),
    ("flash", FLASH_ROW, "blocks_per_sm", 1),
    ("flash", FLASH_ROW, "blocks_per_sm", -1),
    ("pv", {**SMALL, "kernel": "pv", "seq_len_q": "2048"}, "sram_fill_bytes", 32),
    # A kernel whose loads are plain cannot take in more than it asks for.
    ("qk", {**SMALL, "kernel": "qk", "block_m": "128"}, "sram_fill_bytes", 32),
    ("softmax", {**SMALL, "kernel": "softmax"}, "sram_fill_bytes", 96),
    # And rows off sectors cannot be stored with less.
    ("softmax", {**SMALL, "kernel": "softmax"}, "sram_store_bytes", -18226720 + 15999968),
]


@pytest.mark.parametrize(("kernel", "which", "column", "off"), FAULTS)
def test_a_figure_that_is_off_is_named(
    tmp_path: Path, kernel: str, which: dict[str, str], column: str, off: int
) -> None:
    rows = measured_rows(**which)
    assert rows and memsim_("validate", saved(tmp_path, rows))[0] == 0
    rows[0][column] = str(int(rows[0][column]) + off)
    code, out, err = memsim_("validate", saved(tmp_path, rows))
    assert (code, err) == (1, "")
    said = " ".join(out.split())
    assert f"Does not hold: line 2 ({kernel} " in said and f"{column} is {int(rows[0][column]):,} measured" in said
    assert said.count("Does not hold") == 1 and "MISSED" in said
    data = json.loads(memsim_("validate", saved(tmp_path, rows), "--json")[1])
    missed = [
        (row["line"], check["column"]) for row in data["rows"] for check in row["checks"] if check["holds"] is False
    ]
    assert missed == [(2, column)] and data["holds"] is False


def changed(trace: LaunchTrace, change: Callable[[Record], Record | None]) -> LaunchTrace:
    def within(records: tuple[Record, ...]) -> tuple[Record, ...]:
        mended = (change(dataclasses.replace(r, body=within(r.body)) if isinstance(r, Loop) else r) for r in records)
        return tuple(record for record in mended if record is not None)

    return dataclasses.replace(trace, body=within(trace.body))


def forget_v(record: Record) -> Record | None:
    return None if isinstance(record, Load) and record.tile.tensor.name == "V" else record


def test_a_simulator_that_forgets_the_tiles_of_v_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    count = _simulated.count
    monkeypatch.setattr(_simulated, "count", lambda trace: count(changed(trace, forget_v)))
    validation = validate(read_measurements(COUNTERS))
    missed = {(row.measurement.kernel, c.column) for row in validation.missed for c in row.checks if c.holds is False}
    assert missed == {("flash", "sram_fill_bytes"), ("pv", "sram_fill_bytes")}
    assert sum(row.measurement.kernel == "flash" for row in validation.missed) == 224


def test_occupancy_follows_from_the_registers_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them many rows come out wrong, so they are really used; and then nothing is claimed."""
    file = read_measurements(COUNTERS)
    without = [
        dataclasses.replace(row, values={n: v for n, v in row.values.items() if n != "registers"}) for row in file.rows
    ]
    checks = [
        c for row in validate(Measurements(tuple(without))).rows for c in row.checks if c.column == "blocks_per_sm"
    ]
    assert len(checks) == 288 and all(check.relation == "none" for check in checks)
    monkeypatch.setattr(_simulated, "_blocks_per_sm", lambda gpu, row, resources: 2)
    assert validate(file).count(False) > 100


# ---- what is shown


def validation(*rows: Measurement) -> Validation:
    return validate(Measurements(rows))


def test_times_are_compared_where_the_replay_is_small_or_asked_for(tmp_path: Path) -> None:
    rows = measured_rows(**FLASH_ROW)[:1]
    rows[0]["event_time_s"] = "2e-5"
    path = saved(tmp_path, rows)
    checks = {c["column"]: c for c in json.loads(memsim_("validate", path, "--json")[1])["rows"][0]["checks"]}
    assert checks["duration_s"]["simulated"] > 0 and checks["duration_s"]["holds"] is None
    # The launch itself stands in one and not in the other.
    overhead = checks["event_time_s"]["simulated"] - checks["duration_s"]["simulated"]
    assert overhead == pytest.approx(load_gpu("h200").launch.overhead_s)
    calibrated = load_gpu("h200").calibrated
    assert calibrated is not None
    assert checks["sm_cycles"]["simulated"] == pytest.approx(checks["duration_s"]["simulated"] * calibrated.clock_hz)
    assert checks["hbm_read_bytes"]["holds"] is None
    assert 0 < checks["hbm_read_bytes"]["simulated"] < checks["sram_fill_bytes"]["simulated"]
    long = json.loads(memsim_("validate", str(COUNTERS), "--json")[1])
    assert long["not_replayed_tile_operations"] > 1e9
    assert "--times does it" in memsim_("validate", str(COUNTERS))[1]


def test_times_are_replayed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from memsim import validate as module

    rows = read_measurements(COUNTERS).rows[:1]
    monkeypatch.setattr(module, "MOST_OPERATIONS_UNASKED", 10)
    told: list[int] = []
    without = validate(Measurements(rows), before_replay=told.append)
    assert without.without_times > 10 and told == []
    asked = validate(Measurements(rows), times=True, before_replay=told.append)
    assert asked.without_times == 0 and told == [without.without_times]


def test_what_is_not_checked_is_said(tmp_path: Path) -> None:
    rows = measured_rows(**FLASH_ROW)[:2]
    for row in rows:
        del row["sm_cycles"]
        row["blocks_per_sm"] = ""
        row["temperature_c"] = "61"
    rows[0]["error"] = ""
    rows[1] |= {"error": "out of resources"} | dict.fromkeys(("registers", "sram_fill_bytes", "duration_s"), "")
    code, out, err = memsim_("validate", saved(tmp_path, rows))
    said = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "Not checked, because no row has a figure: blocks_per_sm, sm_cycles, event_time_s." in said
    assert 'Not read, because they are no columns of a measurement: "temperature_c".' in said
    assert "1 row had an error in place of figures, the first on line 3 (flash 8×1000×64" in said
    assert "it is what a replay comes to" in said
    assert "Not compared, because nothing of the kind is simulated: instructions, mufu_instructions" in said


def test_the_worst_rows_come_first_and_all_are_shown_when_asked_for() -> None:
    out = memsim_("validate", str(COUNTERS))[1]
    assert out.count("simulated        measured") <= 5 and "The 5 worst of 288 rows; --rows shows all." in out
    # Stores of a kernel that spills are 97 times what is simulated.
    assert out.index("line 210: flash") < out.index("line 212: flash")
    every = memsim_("validate", str(COUNTERS), "--rows")[1]
    assert all(f"line {line}: " in every for line in range(2, 290))


def test_spills_stand_beside_their_instructions(tmp_path: Path) -> None:
    rows = measured_rows(seq_len_q="4096", stack_bytes="48", cache_state="cold")
    rows[0] |= {"spill_load_instructions": "12345", "spill_store_instructions": "6789"}
    out = memsim_("validate", saved(tmp_path, rows))[1]
    line = next(line for line in out.splitlines() if line.startswith("line 2 "))
    assert line.split() == ["line", "2", "2,624,512", "B", "104,071,168", "B", "48", "B", "12,345", "6,789"]


def test_longer_rows_of_softmax_are_simulated_as_they_were_measured() -> None:
    whole = row_of("softmax", seq_len_q=2, seq_len_k=65_536, heads=1, values={"sram_fill_bytes": 1})
    passes = dataclasses.replace(whole, block_n=4096)
    (check,), (twice,) = (validation(row).rows[0].checks for row in (whole, passes))
    assert check.simulated == 2 * 65_536 * 2 and twice.simulated == 2 * check.simulated
    with pytest.raises(MemsimError, match="block_n of softmax is 64; give 0 where a row is taken whole, or 4096"):
        dataclasses.replace(whole, block_n=64)
    assert "4 rows of softmax took rows of more than 32,768 columns whole" in " ".join(
        memsim_("validate", str(COUNTERS))[1].split()
    )


def test_a_tile_that_ran_and_that_the_simulator_refuses_is_a_miss() -> None:
    row = row_of(block_m=256, block_n=128, num_stages=4, head_dim=128, values={"sram_bytes": 200_000, "registers": 255})
    (checked,) = validation(row).rows
    (miss,) = [check for check in checked.checks if check.holds is False]
    assert miss.column == "sram_bytes" and "needs 327680 B of 232448 B" in miss.detail


def test_a_gpu_file_stands_for_the_gpu_of_every_row(tmp_path: Path) -> None:
    template = memsim_("gpus", "--template")[1]
    smaller = template.replace("per_sm = 65_536", "per_sm = 32_768").replace("per_sm = 65536", "per_sm = 32768")
    assert smaller != template
    path = tmp_path / "half.toml"
    path.write_text(smaller, encoding="utf-8")
    rows = measured_rows(**FLASH_ROW)
    assert memsim_("validate", saved(tmp_path, rows), "--gpu", str(path))[0] == 1
    for row in rows:
        row["gpu"] = "one of ours"
    assert memsim_("validate", saved(tmp_path, rows), "--gpu", "h200")[0] == 0
    assert memsim_("validate", saved(tmp_path, rows))[0] == 2


@pytest.mark.parametrize(("name", "rows", "failed"), [("tile_times.csv", 272, 7), ("naive_chain.csv", 12, 0)])
def test_files_with_fewer_columns_are_read(name: str, rows: int, failed: int) -> None:
    code, out, err = memsim_("validate", str(COUNTERS.parent / name), "--json")
    data = json.loads(out)
    assert (code, err) == (0, "") and len(data["rows"]) == rows - len(data["failed_launches"])
    assert len(data["failed_launches"]) == failed
    assert "sram_fill_bytes" in data["unchecked_columns"] and data["spills"] == []


# ---- replays, several files, outputs


def test_what_the_l1_gives_back_is_simulated_and_the_claim_is_on_what_is_asked_for() -> None:
    """A replay may find too much in the L1, which is an error of it and breaks no claim on what is counted."""
    known = {"stack_bytes": 0}
    row = row_of("qk", seq_len_q=256, seq_len_k=256, heads=1, values=known | {"sram_fill_bytes": 200_000})
    (counted,) = (check for check in validation(row).rows[0].checks if check.column == "sram_fill_bytes")
    # 16 tiles of S, each of 64 rows of Q and of K.
    assert counted.relation == "at most" and counted.holds and counted.simulated == 16 * 2 * 64 * 64 * 2
    checked = validate(Measurements((row,)), known=[{"sram_fill_bytes": 150_000}]).rows[0].checks[-1]
    assert (checked.simulated, checked.counted, checked.holds) == (150_000, 262_144, True)
    assert "262,144 are asked for" in checked.detail
    more = dataclasses.replace(row, values=known | {"sram_fill_bytes": 262_176})
    checked = validate(Measurements((more,)), known=[{"sram_fill_bytes": 150_000}]).rows[0].checks[-1]
    assert checked.holds is False


def test_rows_of_several_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    rows = measured_rows(**FLASH_ROW)[:2]
    one = saved(tmp_path / "a", rows)
    rows[1]["sram_fill_bytes"] = str(int(rows[1]["sram_fill_bytes"]) + 32)
    other = saved(tmp_path / "b", rows)
    code, out, err = memsim_("validate", one, other, "--json")
    data = json.loads(out)
    assert (code, err) == (1, "") and [(row["file"], row["line"]) for row in data["rows"]] == [
        (one, 2), (one, 3), (other, 2), (other, 3),
    ]  # fmt: skip
    # Lines end where they are full, within a long path too.
    said = "".join(memsim_("validate", one, other)[1].split())
    assert f"Does not hold: line 3 of {other} (flash".replace(" ", "") in said
    assert memsim_("validate", one, exported(tmp_path, long_format([FLASH])))[0] == 2


def test_csv_has_a_line_for_every_column_of_every_row(tmp_path: Path) -> None:
    path, rows = tmp_path / "out.csv", measured_rows(**FLASH_ROW)[:1]
    code, out, _ = memsim_("validate", saved(tmp_path, rows), "--json", "--times", "--jobs", "1", "--csv", str(path))
    checks = json.loads(out)["rows"][0]["checks"]
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert code == 0 and [line["column"] for line in lines] == [check["column"] for check in checks]
    for line, check in zip(lines, checks, strict=True):
        assert float(line["simulated"]) == check["simulated"] and float(line["measured"]) == check["measured"]
        assert (float(line["error"]) if line["error"] else None) == check["error"]
    assert {line["block_m"] for line in lines} == {"128"} and {line["seq_len_q"] for line in lines} == {"1000"}


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_a_plot_has_every_row_that_was_replayed(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("vl_convert")
    from memsim.plot import measured

    rows = measured_rows(**FLASH_ROW)[:2]
    path = tmp_path / f"plot.{kind}"
    assert memsim_("validate", saved(tmp_path, rows), "--times", "--jobs", "1", "--plot", str(path))[0] == 0
    assert path.stat().st_size > 5_000
    found = measured(validate(read_measurements(saved(tmp_path, rows)), times=True))
    for quantity, column in (("time_s", "duration_s"), ("hbm_read_bytes", "hbm_read_bytes")):
        drawn = [row["measured"] for row in found.rows if row["quantity"] == quantity]
        assert drawn == pytest.approx([float(row[column]) for row in rows])
    assert len(found.spec()["hconcat"]) == 2


def test_the_command_plot_draws_the_same(tmp_path: Path) -> None:
    rows = saved(tmp_path, measured_rows(**FLASH_ROW)[:2])
    code, out, _ = memsim_("plot", "measured", rows, "--times", "--jobs", "1", "--json")
    checks = [row["checks"] for row in validate(read_measurements(rows), times=True).as_dict()["rows"]]
    pairs = [(c["simulated"], c["measured"]) for row in checks for c in row if c["column"] == "hbm_read_bytes"]
    drawn = [row for row in json.loads(out)["rows"] if row["quantity"] == "hbm_read_bytes"]
    assert code == 0 and [(row["simulated"], row["measured"]) for row in drawn] == pairs


def test_without_the_extra_a_plot_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    path = saved(tmp_path, measured_rows(**FLASH_ROW)[:1])
    code, out, err = memsim_("validate", path, "--plot", str(tmp_path / "a.svg"))
    assert (code, out) == (2, "") and "pip install 'memsim[plots]'" in err
    code, _, err = memsim_("validate", path, "--plot", str(tmp_path / "a.gif"))
    assert code == 2 and "give a file that ends in .svg, .png or .html" in err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--without", "l3"), "'l3' is no part of the model; give any of l2, contention"),
        (("--jobs", "0"), '--jobs is "0"; give a whole number from 1 to 1024.'),
        (("--json", "--markdown"), "--json and --markdown are two outputs: give one of them."),
        (("--csv", "/no/such/folder/x.csv"), "which cannot be written"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(tmp_path: Path, args: tuple[str, ...], sentence: str) -> None:
    code, out, err = memsim_("validate", saved(tmp_path, measured_rows(**FLASH_ROW)[:1]), *args)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memsim.validate.replay_rows", interrupted)
    code, out, err = memsim_("validate", saved(tmp_path, measured_rows(**FLASH_ROW)[:1]))
    assert (code, out) == (130, "") and "the same command goes on after them" in err


# ---- exports

TILE = ("--block-n", "64", "--num-warps", "8", "--num-stages", "3")
OF_FLASH = ("--seq-len", "4096", "--heads", "16", "--block-m", "128", *TILE)
OF_NAIVE = ("--seq-len", "1000", "--heads", "8", "--head-dim", "64", "--block-m", "64", *TILE)


def exported(tmp_path: Path, text: str) -> str:
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("form", [long_format, wide_format])
def test_an_export_is_validated_with_its_problem_and_tile(tmp_path: Path, form: Callable[[list[Launch]], str]) -> None:
    path = exported(tmp_path, form([FLASH]))
    code, out, err = memsim_("validate", path, *OF_FLASH, "--json")
    assert (code, err) == (0, "")
    checks = {check["column"]: check for check in json.loads(out)["rows"][0]["checks"]}
    assert checks["sram_fill_bytes"]["exact"] and checks["sram_fill_bytes"]["relation"] == "exact"
    path = exported(tmp_path, form([FLASH]).replace("1,090,519,040", "1,090,519,072"))
    assert memsim_("validate", path, *OF_FLASH)[0] == 1
    path = exported(tmp_path, form(list(NAIVE)))
    assert memsim_("validate", path, *OF_NAIVE)[0] == 0


def test_an_export_in_scaled_units_is_compared_within_their_digits(tmp_path: Path) -> None:
    exact = long_format([FLASH])
    fills = '"byte","1,090,519,040"'
    assert fills in exact
    near = exported(tmp_path, exact.replace(fills, '"Gbyte","1.09"'))
    code, out, _ = memsim_("validate", near, *OF_FLASH, "--json")
    checks = {check["column"]: check for check in json.loads(out)["rows"][0]["checks"]}
    assert code == 0 and "rounded by up to 5e+06" in checks["sram_fill_bytes"]["detail"]
    far = exported(tmp_path, exact.replace(fills, '"Gbyte","1.10"'))
    assert memsim_("validate", far, *OF_FLASH)[0] == 1


def test_columns_prints_the_table() -> None:
    from memsim.columns import markdown_table

    assert memsim_("validate", "--columns") == (0, markdown_table(), "")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (OF_FLASH[:-2], "an export of ncu does not say its tile: give --num-stages too."),
        ((*OF_FLASH, "--algorithm", "flsh"), 'algorithm is "flsh"; of an export it must be one of flash, naive.'),
        ((*OF_FLASH, "--algorithm", "naive"), "none of the kernels is one of those asked for"),
        ((*OF_FLASH, "--gpu", "a100-80gb"), "flash ran on sm_90, but a100-80gb is sm_80"),
        ((*OF_FLASH, "--causal=maybe"), '--causal is "maybe"'),
        ((*OF_FLASH[2:], "--seq-len", "2048"), "flash ran 512 blocks, but with this problem and tile it has 256"),
    ],
)
def test_an_export_with_the_wrong_options_is_one_sentence(tmp_path: Path, args: tuple[str, ...], sentence: str) -> None:
    code, out, err = memsim_("validate", exported(tmp_path, long_format([FLASH])), *args)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1
