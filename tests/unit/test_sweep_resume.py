"""Does a sweep that is killed at any moment go on where it was: nothing lost, nothing run twice, the same rows?"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memsim import MemsimError, _sweep_store
from memsim._sweep_points import Values
from memsim.sweep import read_results

from .sweeps import AXES, OPTIONS, POINTS, csv_of, run_twice, start, swept

KILLS = 10


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The rows of a run that nothing disturbed, in memory."""
    return csv_of(swept())


def killed_and_resumed(folder: Path, seed: int, fault: str = "") -> tuple[Path, Path]:
    """A results file and a log of a sweep that was killed `KILLS` times at random moments, then left alone."""
    moments = random.Random(seed)
    path, log = folder / "results.db", folder / "log"
    for more in sorted(moments.sample(range(2, 2 * POINTS - 10), KILLS)):
        process = start(path, log, fault)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < more):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.004))
        process.kill()
        process.communicate()
    last = start(path, log, fault)
    _, err = last.communicate(timeout=60)
    assert fault or last.returncode == 0, err.decode()
    return path, log


def test_killed_at_ten_random_moments(tmp_path: Path, undisturbed: str) -> None:
    path, log = killed_and_resumed(tmp_path, 5)
    assert run_twice(log) == []
    assert csv_of(read_results(str(path))) == undisturbed
    assert list(tmp_path.glob("results.db*")) == [path]
    # Run once more, it has nothing to run.
    before = log.read_bytes()
    start(path, log).communicate(timeout=60)
    assert log.read_bytes() == before
    assert csv_of(swept(out=str(path))) == undisturbed


def test_a_store_that_loses_its_last_commit_is_caught(tmp_path: Path) -> None:
    _, log = killed_and_resumed(tmp_path, 5, "loses its last commit")
    assert len(run_twice(log)) >= KILLS // 2


def test_rows_that_were_not_kept_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _sweep_store.Results.add

    def forgets(self: _sweep_store.Results, rows: list[tuple[int, Values, float]]) -> None:
        real(self, [row for row in rows if row[0] != POINTS - 1])
        self.done[rows[-1][0]] = 1

    monkeypatch.setattr(_sweep_store.Results, "add", forgets)
    path = str(tmp_path / "results.db")
    with pytest.raises(MemsimError, match=rf"holds {POINTS - 1} of the {POINTS} rows that were written to it"):
        swept(out=path)
    monkeypatch.undo()
    assert len(swept(out=path).rows) == POINTS


def test_a_store_that_changes_a_figure_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: str
) -> None:
    real = _sweep_store._cell
    monkeypatch.setattr(_sweep_store, "_cell", lambda value: float(f"{value:.6g}") if value == 1.5 else real(value))
    assert csv_of(swept(out=str(tmp_path / "same.db"))) == undisturbed
    monkeypatch.setattr(_sweep_store, "_cell", lambda value: 1.25 if value == 1.5 else real(value))
    assert csv_of(swept(out=str(tmp_path / "changed.db"))) != undisturbed


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of a process there")
def test_a_full_disk_keeps_what_there_is(tmp_path: Path, undisturbed: str) -> None:
    path = tmp_path / "results.db"
    options = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]
    axes = [part for name, text in AXES.items() for part in ("--vary", f"{name}={text}")]
    command = ["sweep", "flash", *axes, *options, "--count-only", "--out", str(path)]
    # A file that may not grow any more is what a full disk is like.
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)); "
    code = f"{limited}from memsim import cli; cli.main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, timeout=60, check=False)
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"") and err.count("\n") == 1
    assert "which cannot be written" in err and "the same command goes on after them" in err
    kept = len(read_results(str(path)).rows)
    assert 0 < kept < POINTS
    assert csv_of(swept(out=str(path))) == undisturbed


def test_ctrl_c_keeps_what_there_is(tmp_path: Path, undisturbed: str) -> None:
    path = str(tmp_path / "results.db")

    def stop(done: int, _: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(out=path, progress=stop)
    assert len(read_results(path).rows) == 7
    seen: list[int] = []
    assert csv_of(swept(out=path, progress=lambda done, _: seen.append(done))) == undisturbed
    assert seen == list(range(7, POINTS + 1))
