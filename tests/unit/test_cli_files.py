"""CSV files and streams: whole or not at all, closed pipes, ASCII, interrupts, and who sees a progress bar."""

import contextlib
import csv
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memsim import _cli_progress, _sweep_points, cli
from memsim._options import read_request
from memsim.sweep import SweepPlan

SMALL = ("--heads", "2", "--seq-len", "128", "--head-dim", "64")
COUNTED = (*SMALL, "--count-only")


def memsim_(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(args)
    return code, out.getvalue(), err.getvalue()


def process(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[bytes]:
    env = os.environ | kwargs.pop("env", {})
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
    return subprocess.run([sys.executable, "-m", "memsim", *args], env=env, timeout=60, check=False, **kwargs)


# ---- CSV files

SWEEP = ("sweep", *COUNTED, "--vary", "block-m=16,32,64")


def test_csv_is_written_beside_the_table(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    code, out, err = memsim_(*SWEEP, "--csv", str(path))
    assert code == 0 and "block-m" in out and "3 of 3 rows" in err
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["block-m"] for row in rows] == ["16", "32", "64"]
    assert list(tmp_path.iterdir()) == [path]
    code, out, _ = memsim_(*SWEEP, "--csv", str(path), "--json")
    assert code == 0 and json.loads(out)["points"] == 3


def test_csv_path_is_checked_before_the_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SweepPlan, "row", lambda *_: pytest.fail("the sweep ran"))
    for path in (tmp_path / "none" / "x.csv", tmp_path, Path("/dev/null/x.csv"), tmp_path / ("x" * 300)):
        code, _, err = memsim_(*SWEEP, "--csv", str(path))
        assert code == 2 and err.count("\n") == 1


def fail_at(point: int, error: type[BaseException]) -> Callable[..., Any]:
    calls = []

    def read_request(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == point:
            raise error
        return real(*args, **kwargs)

    real = _sweep_points.read_request
    return read_request


def test_a_failed_sweep_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(_sweep_points, "read_request", fail_at(2, MemoryError))
    code, out, err = memsim_(*SWEEP, "--csv", str(path))
    assert (code, out) == (2, "") and err.count("\n") == 1 and "memory" in err
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_sweep_writes_its_rows_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    monkeypatch.setattr(_sweep_points, "read_request", fail_at(3, KeyboardInterrupt))
    code, out, err = memsim_(*SWEEP, "--csv", str(path), "--json")
    assert code == 130 and "interrupted: 2 of 3 points were finished" in err
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
    data = json.loads(out)
    assert len(data["rows"]) == 2 and data["points"] == 3


def test_interrupts_before_anything_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(_sweep_points, "read_request", fail_at(1, KeyboardInterrupt))
    code, out, err = memsim_(*SWEEP, "--csv", str(path))
    assert (code, out, err) == (130, "", "memsim: interrupted, nothing was finished.\n")
    assert path.read_text(encoding="utf-8") == "old"
    monkeypatch.setattr(cli, "read_request", fail_at(1, KeyboardInterrupt))
    assert memsim_("simulate", "flash")[::2] == (130, "memsim: interrupted, nothing was finished.\n")


def test_csv_keeps_mode_and_symlink_of_the_file_it_replaces(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    code, _, _ = memsim_(*SWEEP, "--csv", str(link))
    assert code == 0 and link.is_symlink()
    assert target.read_text(encoding="utf-8").startswith("block-m,") and stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="no /dev/null")
def test_csv_may_be_a_device() -> None:
    assert memsim_(*SWEEP, "--csv", "/dev/null")[0] == 0
    assert Path("/dev/null").is_char_device()


def test_csv_may_be_the_pipe_of_standard_output() -> None:
    done = process(*SWEEP, "--csv", "/dev/stdout")
    assert done.returncode == 0 and done.stdout.startswith(b"block-m,status,reason,block_m,")


# ---- streams


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_closed_pipe_in_process() -> None:
    err = io.StringIO()
    with contextlib.redirect_stdout(Closed()), contextlib.redirect_stderr(err):
        assert cli.run(["compare", *COUNTED]) == 2
    assert err.getvalue() == "memsim: standard output was closed before everything was written to it.\n"


@pytest.mark.parametrize("args", [("compare", *COUNTED), ("gpus", "--json"), ("--help",)])
def test_closed_pipe(args: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process(*args, stdout=writing)
    os.close(writing)
    assert done.returncode == 2
    assert done.stderr == b"memsim: standard output was closed before everything was written to it.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk() -> None:
    with open("/dev/full", "wb") as full:
        done = process("gpus", stdout=full)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"no space left" in done.stderr


def test_python_m_memsim_in_a_terminal_that_only_has_ascii() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    for args in (("compare", *SMALL), ("gpus",), ("gpus", "--json"), ("simulate", "--help")):
        done = process(*args, env=plain)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode("ascii").count("?") == 0
    done = process("compare", "--gpu", "né", env=plain)
    assert done.returncode == 2 and b"Traceback" not in done.stderr


def test_width_is_100_when_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = memsim_("simulate", "--help")
    assert max(map(len, out.splitlines())) == 100


def test_a_bar_is_drawn_only_for_a_person_and_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for err, moment, drawn in ((Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)):
        monkeypatch.setattr(_cli_progress, "_A_MOMENT_S", moment)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert cli.run(["simulate", "flash", *SMALL, "--json"]) == 0
        assert bool(err.getvalue()) is drawn
        json.loads(out.getvalue())


def test_the_bar_of_a_sweep_says_how_many_points_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_cli_progress, "_A_MOMENT_S", 0.0)
    err = Terminal()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        assert cli.run([*SWEEP, "--vary", "seq-len-q=64,128", "--json"]) == 0
    assert "points" in err.getvalue() and "points/s" in err.getvalue() and "6/6" in err.getvalue()


def test_a_long_replay_off_a_terminal_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = json.loads(memsim_("simulate", "naive", *COUNTED, "--json")[1])["total"]["tile_operations"]
    monkeypatch.setattr(_cli_progress, "_MANY_OPERATIONS", operations - 1)
    said = "memsim: replaying 0 million tile operations; --count-only answers at once.\n"
    for args in (("simulate", "naive"), ("compare",), ("sweep", "naive", "--vary", "causal=false,true")):
        code, out, err = memsim_(*args, *SMALL, "--json")
        assert (code, err) == (0, said) and json.loads(out)
        assert memsim_(*args, *COUNTED)[2] == ""
    monkeypatch.setattr(_cli_progress, "_MANY_OPERATIONS", operations)
    assert memsim_("simulate", "naive", *SMALL)[2] == ""
    # Points of a sweep add up.
    assert memsim_("sweep", "naive", "--vary", "lse=false,true", *SMALL)[2] == said
    err = Terminal()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        assert cli.run(["compare", *SMALL]) == 0
    assert err.getvalue() == ""


def test_the_announcement_counts_millions() -> None:
    request = read_request({"seq-len": "8Ki", "heads": "64", "block-m": "16", "block-n": "16"}, {})
    millions = request.tile_operations("flash") / 1e6
    assert millions > 5
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        _cli_progress.ReplayNotice().about(request, "flash")
    assert (
        err.getvalue() == f"memsim: replaying {millions:,.0f} million tile operations; --count-only answers at once.\n"
    )


def test_gpus_does_not_import_what_it_does_not_need() -> None:
    code = "import sys, memsim.cli; memsim.cli.run(['gpus']); sys.exit('rich.progress' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
