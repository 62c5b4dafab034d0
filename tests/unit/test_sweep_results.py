"""A sweep's results file: what is in it, what it refuses, and that what it refuses stays as it was."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memsim
from memsim import MemsimError, _sweep_sqlite, _sweep_store, cli, sweep
from memsim.gpu import template
from memsim.sweep import COLUMNS, read_results

from .sweeps import AXES, OPTIONS, POINTS, csv_of, plan, swept


def memsim_(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(args)
    return code, out.getvalue(), err.getvalue()


COMMAND = (
    "sweep", "flash", *(part for name, text in AXES.items() for part in ("--vary", f"{name}={text}")),
    *(part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))), "--count-only",
)  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    swept(out=str(path))
    return path


def test_a_file_shows_and_exports_what_the_sweep_did(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = {name: str(tmp_path / name) for name in ("a.csv", "b.csv", "a.parquet", "b.parquet")}
    one = memsim_(*COMMAND, "--csv", names["a.csv"], "--parquet", names["a.parquet"])
    other = memsim_("sweep", "--from", str(results), "--csv", names["b.csv"], "--parquet", names["b.parquet"])
    assert one[:2] == other[:2] and one[0] == 0 and f"{POINTS} of {POINTS} rows" in other[2]
    for kind in ("csv", "parquet"):
        assert Path(names[f"a.{kind}"]).read_bytes() == Path(names[f"b.{kind}"]).read_bytes()
    as_json = memsim_(*COMMAND, "--json")[1]
    assert memsim_("sweep", "--from", str(results), "--json")[1] == as_json
    with open(names["a.csv"], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(names["a.parquet"])
    assert table.column_names == list(rows[0])
    for from_csv, from_parquet in zip(rows, table.to_pylist(), strict=True):
        assert from_csv == {name: "" if value is None else str(value) for name, value in from_parquet.items()}
    assert {row["status"] for row in rows} == {"ok", "does-not-fit"}


def test_every_row_says_what_it_was_made_with(results: Path) -> None:
    connection = sqlite3.connect(results)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute("SELECT * FROM results ORDER BY point")]
    connection.close()
    assert len(rows) == POINTS
    table = read_results(str(results))
    for number, (stored, row) in enumerate(zip(rows, table.rows, strict=True)):
        assert stored["point"] == number and {name: stored[name] for name in AXES} == row.point
        assert all(stored[name] == getattr(row, name) for name in COLUMNS if name != "notes")
        assert json.loads(stored["schema"]) == _sweep_store.RESULTS_SCHEMA
        assert json.loads(stored["memsim_version"]) == memsim.__version__
        assert json.loads(stored["options"]) == {name: str(value) for name, value in OPTIONS.items()}
        assert stored["of_gpu"] == "two-level" and stored["gpu_digest"] == table.provenance.gpu_digests["two-level"]
        assert stored["made_at"].startswith("20") and stored["made_seconds"] > 0
    assert not {"made_at", "made_seconds"} & set(table.columns())


def test_two_runs_differ_in_nothing_but_when_they_were_made(results: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    swept(out=str(other))

    def content(path: Path) -> list[Any]:
        connection = sqlite3.connect(path)
        tables = [connection.execute(f"SELECT * FROM {name}").fetchall() for name in ("rows", "gpus")]
        facts = connection.execute("SELECT * FROM sweep WHERE name != 'created_at'").fetchall()
        connection.close()
        return [*tables, facts]

    assert content(results) == content(other)


def test_numbers_beyond_64_bits_are_kept_digit_by_digit(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    options = {"gpu": "two-level", "heads": 1, "head-dim": 1024, "hbm-capacity": "1e15", "block-m": 16, "block-n": 16}
    axes = {"seq-len-q": "1,16Mi", "seq-len-k": "1,1024Mi"}
    path = str(tmp_path / "results.db")
    table = sweep("flash", axes, options, count_only=True)
    assert max(row.flops or 0 for row in table.rows) > 2**63
    assert tuple(sweep("flash", axes, options, count_only=True, out=path).rows) == table.rows
    assert memsim_("sweep", "--from", path, "--parquet", f"{path}.parquet")[0] == 0
    assert parquet.read_table(f"{path}.parquet")["flops"].to_pylist() == [str(row.flops) for row in table.rows]


# ---- what is refused, and stays


def execute(path: Path, statement: str) -> None:
    """Change a results file behind the back of those who keep it."""
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def another_schema(path: Path) -> None:
    execute(path, "UPDATE sweep SET value = '\"memsim.sweep-results/9\"' WHERE name = 'schema'")


def another_application(path: Path) -> None:
    execute(path, "PRAGMA application_id = 7")


def another_value(path: Path) -> None:
    execute(path, "UPDATE rows SET hbm_bytes = hbm_bytes + 1 WHERE point = 3")


def no_facts(path: Path) -> None:
    execute(path, "DELETE FROM sweep WHERE name = 'axes'")


def zeros_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = bytes(len(data) // 2 - 4096)
    path.write_bytes(data)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "which holds no results of a sweep"),
    "text": (lambda path: path.write_text("block-m,status\n", encoding="utf-8"), "which holds no results of a sweep"),
    "another database": (another_application, "which holds no results of a sweep"),
    "another schema": (another_schema, 'whose schema is "memsim.sweep-results/9"; this memsim knows'),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:5000]), "which is damaged and was left as it is"),
    "zeros": (zeros_in_the_middle, "which is damaged and was left as it is"),
    "another value": (another_value, "which is damaged and was left as it is"),
    "no facts": (no_facts, "which is damaged and was left as it is"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_file_that_is_none_or_damaged_is_refused_and_left(results: Path, bad: str) -> None:
    spoil, part = BAD[bad]
    spoil(results)
    before = results.read_bytes()
    for command in ((*COMMAND, "--out", str(results)), ("sweep", "--from", str(results))):
        code, out, err = memsim_(*command)
        assert (code, out) == (2, "") and err.count("\n") == 1 and part in err, err
    assert results.read_bytes() == before
    assert list(results.parent.iterdir()) == [results]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (("--lse",), "its options are others"),
        (("--set", "sm.max_blocks=3"), "its GPU fields are others"),
        (("--vary", "num-warps=4"), "its axes or their values are others"),
    ],
)
def test_a_file_of_another_sweep_is_refused_and_left(results: Path, changes: tuple[str, ...], part: str) -> None:
    before = results.read_bytes()
    code, out, err = memsim_(*COMMAND, *changes, "--out", str(results))
    assert (code, out) == (2, "") and err.count("\n") == 1 and f"which holds another sweep ({part})" in err
    assert results.read_bytes() == before


def test_rows_of_two_simulators_or_two_gpus_do_not_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, path = tmp_path / "my.toml", str(tmp_path / "results.db")
    gpu.write_text(template(), encoding="utf-8")

    def again() -> None:
        sweep("flash", {"heads": "1,2", "gpu": [str(gpu)]}, {"seq-len": 64}, count_only=True, out=path)

    again()
    again()
    gpu.write_text(template().replace("count = 132", "count = 66"), encoding="utf-8")
    with pytest.raises(MemsimError, match="its GPUs are described otherwise"):
        again()
    # The file describes the GPU that its rows are of.
    assert len(read_results(path).rows) == 2
    gpu.write_text(template(), encoding="utf-8")
    monkeypatch.setattr("memsim._sweep_plan.simulator_digest", lambda: "another")
    with pytest.raises(MemsimError, match="a memsim with other sources made it"):
        again()


def test_ranges_and_the_values_that_they_are_name_one_sweep(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    first = sweep("flash", {"heads": "1:4:x2"}, {"seq-len": 64, "head-dim": 64}, count_only=True, out=path)
    again = sweep("flash", {"heads": [1, 2, 4]}, {"head-dim": 64, "seq-len": 64}, count_only=True, out=path)
    assert csv_of(first) == csv_of(again)


def test_a_file_in_use_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sweep_sqlite, "_BUSY_S", 0.01)
    with _sweep_store.Results(str(results), plan()):
        for command in ((*COMMAND, "--out", str(results)), ("sweep", "--from", str(results))):
            code, _, err = memsim_(*command)
            assert code == 2 and "which a running sweep has in use" in err and err.count("\n") == 1
    assert memsim_("sweep", "--from", str(results))[0] == 0


def test_what_was_left_beside_another_file_is_not_taken_for_rows(tmp_path: Path) -> None:
    (tmp_path / "results.db-wal").write_bytes(b"rows of another file")
    code, _, err = memsim_(*COMMAND, "--out", str(tmp_path / "results.db"))
    assert code == 2 and "is there without its results file" in err
    assert [path.name for path in tmp_path.iterdir()] == ["results.db-wal"]


def test_paths_that_cannot_be(tmp_path: Path, results: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "x.db", Path("/dev/null"), tmp_path / ("x" * 300)):
        code, out, err = memsim_(*COMMAND, "--out", str(path))
        assert (code, out) == (2, "") and err.startswith("memsim: out is ") and err.count("\n") == 1
    code, _, err = memsim_("sweep", "--from", str(tmp_path / "none.db"))
    assert code == 2 and "from is" in err and "no such file" in err
    before = results.read_bytes()
    for option in ("--csv", "--parquet"):
        code, _, err = memsim_(*COMMAND, "--out", str(results), option, str(results))
        assert code == 2 and f"{option[2:]} and out are the same file: give two." in err
    code, _, err = memsim_("sweep", "naive", "--from", str(results), "--vary", "heads=1", "--jobs", "2")
    assert code == 2 and "--from shows the rows that a file holds: give it without --jobs, --vary, naive." in err
    assert results.read_bytes() == before


def test_nothing_is_made_for_a_sweep_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    assert memsim_(*COMMAND, "--vary", "haeds=1", "--out", str(path))[0] == 2
    assert memsim_(*COMMAND, "--vary", "seq-len-q=1:1000000000000:+1", "--out", str(path))[0] == 2
    assert not path.exists()


def test_an_unfinished_file_shows_what_it_has(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    with _sweep_store.Results(path, plan()):
        pass
    table = read_results(path)
    assert len(table.rows) == 0 and table.points == POINTS and table.axes == plan().axes
    assert memsim_("sweep", "--from", path, "--csv", f"{path}.csv")[2].startswith(f"memsim: 0 of {POINTS} rows are in")
    assert memsim_(*COMMAND, "--out", path)[2].startswith(f"memsim: {POINTS} of {POINTS} rows are in ")


def test_points_that_all_fail_alike_are_kept_and_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    command = ("sweep", "--heads", "33", "--kv-heads", "2", "--vary", "block-m=16,32", "--count-only", "--out", path)
    code, out, err = memsim_(*command)
    assert (code, out) == (2, "") and "multiple of kv-heads" in err
    code, out, _ = memsim_("sweep", "--from", path, "--json")
    assert code == 0 and [row["status"] for row in json.loads(out)["rows"]] == ["refused"] * 2


def test_rows_are_read_by_number_and_by_slice(results: Path) -> None:
    stored, held = read_results(str(results)).rows, swept().rows
    assert len(stored) == POINTS and stored[3] == held[3] and stored[-1] == held[-1]
    assert stored[5:9] == held[5:9] and stored[:2] == held[:2] and stored[::-7] == held[::-7]
    with pytest.raises(IndexError):
        stored[POINTS]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    code, _, err = memsim_(*COMMAND, "--parquet", str(tmp_path / "x.parquet"))
    assert code == 2 and "needs pyarrow, which is not installed: pip install 'memsim[sweeps]'." in err
    assert list(tmp_path.iterdir()) == []
