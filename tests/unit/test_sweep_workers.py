"""Are the rows the same whoever runs the points, does a worker's death cost time alone, and are workers that cannot be
had refused in a sentence?"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from memsim import MemsimError, _sweep_cluster, _sweep_workers, sweep
from memsim._sweep_points import Done, Point, run_points
from memsim.gpu import template
from memsim.sweep import HeldRows, SweepPlan, read_results, run

from .sweeps import POINTS, csv_of, plan, swept


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The rows of a run in one process."""
    return csv_of(swept())


# ---- processes of this computer


def test_processes_find_the_same_rows(tmp_path: Path, undisturbed: str) -> None:
    pytest.importorskip("joblib")
    path = str(tmp_path / "results.db")
    assert csv_of(swept(jobs=2, out=path)) == undisturbed == csv_of(read_results(path))


def test_replays_with_an_l2_are_the_same_in_processes() -> None:
    pytest.importorskip("joblib")
    axes = {"algorithm": "flash,naive", "seq-len": "64,128", "l2-state": "cold,warm"}
    one, two = (sweep("flash", axes, {"heads": 2, "head-dim": 64}, jobs=jobs) for jobs in (1, 2))
    assert one.rows == two.rows and all(row.time_s for row in one.rows)


def test_a_process_that_dies_costs_time_alone(undisturbed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    opened: list[Any] = []
    killed: list[int] = []
    real = _sweep_workers._Processes.open

    def open_(self: Any) -> None:
        real(self)
        opened.append(self._executor)

    monkeypatch.setattr(_sweep_workers._Processes, "open", open_)

    def kill(done: int, _: int) -> None:
        if done and not killed:
            killed.append(next(iter(opened[0]._processes)))
            os.kill(killed[0], signal.SIGKILL)

    assert csv_of(swept(jobs=2, progress=kill)) == undisturbed
    assert len(opened) >= 2


def test_the_processes_end_with_the_one_that_asks(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    code = """
import os, sys
from memsim import sweep
from memsim import _sweep_workers
real = _sweep_workers._Processes.open
def open_(self):
    real(self)
    self.pool = self._executor
    opened.append(self._executor)
opened = []
_sweep_workers._Processes.open = open_
def say(done, _):
    print(*opened[0]._processes, flush=True)
    sys.stdin.read()
sweep("flash", {"heads": "1:64:+1"}, {"seq-len": 64}, count_only=True, jobs=2, progress=say)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(_runs(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(worker) for worker in workers)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A process that has ended and that nobody asked for its code.
    stat = Path(f"/proc/{process}/stat")
    return not (stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")


def test_a_worker_needs_no_file_of_a_gpu(tmp_path: Path) -> None:
    mine = tmp_path / "my.toml"
    mine.write_text(template(), encoding="utf-8")
    of = SweepPlan("flash", [("gpu", [str(mine)])], {"heads": "1", "seq-len": "64"}, {}, count_only=True)
    pickled = of.pickled()
    mine.unlink()
    _, [(values, _)] = run_points(pickled, [of.point(0)])
    assert values[0] == "ok"


class Fake:
    """A pool that runs points here and at once, and whose worker dies of some of them."""

    dead: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, deadly: Sequence[Point], deaths: int = 100, digest: str | None = None) -> None:
        self._deadly, self._deaths, self._digest = list(deadly), deaths, digest
        self.restarts = 0

    def open(self) -> None: ...

    def close(self) -> None: ...

    def slots(self) -> int:
        return 3

    def submit(self, pickled: bytes, points: Sequence[Point]) -> Future[Done]:
        future: Future[Done] = Future()
        if self._deaths and any(point in self._deadly for point in points):
            self._deaths -= 1
            future.set_exception(BrokenProcessPool())
        else:
            digest, rows = run_points(pickled, points)
            future.set_result((self._digest or digest, rows))
        return future

    def look_after(self, died: bool) -> None:
        self.restarts += died


def test_a_point_that_ends_its_worker_ends_the_sweep_last_and_by_name(undisturbed: str) -> None:
    of = plan()
    rows = HeldRows(of)
    with pytest.raises(MemsimError, match=r"the point sram 33KiB, tile 16x16, causal true ends every worker"):
        list(run(of, rows, _sweep_workers._Spread(Fake([of.point(7)]))))
    assert sum(rows.done) == POINTS - 1 and not rows.done[7]


def test_a_worker_that_died_by_chance_is_forgiven(undisturbed: str) -> None:
    of = plan()
    rows, pool = HeldRows(of), Fake([of.point(7), of.point(40)], deaths=3)
    assert list(run(of, rows, _sweep_workers._Spread(pool)))[-1] == POINTS
    assert csv_of(of.table(rows.rows())) == undisturbed and pool.restarts >= 2


def test_a_worker_with_another_memsim_is_refused() -> None:
    of = plan()
    with pytest.raises(MemsimError, match="a worker has another memsim than this one"):
        list(run(of, HeldRows(of), _sweep_workers._Spread(Fake([], digest="another"))))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"jobs": 0}, "jobs is 0; give a whole number from 1 to 1024."),
        ({"jobs": 1025}, "jobs is 1025; give"),
        ({"jobs": 2, "cluster": "tcp://127.0.0.1:1"}, "jobs and cluster are both given: give one of them."),
    ],
)
def test_workers_that_cannot_be(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(MemsimError) as caught:
        swept(**arguments)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("module", "arguments", "part"),
    [
        ("joblib", {"jobs": 2}, "more than one job needs joblib, which is not installed: "),
        ("distributed", {"cluster": "tcp://h:1"}, "a cluster needs Dask's distributed, which is not installed: "),
    ],
)
def test_without_the_extra_it_is_named_and_one_job_runs(
    monkeypatch: pytest.MonkeyPatch, undisturbed: str, module: str, arguments: dict[str, Any], part: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MemsimError) as caught:
        swept(**arguments)
    assert str(caught.value) == f"{part}pip install 'memsim[sweeps]'."
    assert csv_of(swept(jobs=1)) == undisturbed


def test_one_job_imports_nothing_of_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys, memsim; memsim.sweep('flash', {'heads': '1,2'}, {'seq-len': 64}, count_only=True, out=sys.argv[1])"
        "; sys.exit(bool({'joblib', 'distributed', 'pyarrow'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "results.db")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# ---- a Dask cluster


Started = tuple[str, list[subprocess.Popen[bytes]]]


@contextlib.contextmanager
def dask(folder: Path, workers: int) -> Iterator[Started]:
    """The address of a scheduler on this computer, and the processes: it and its workers."""
    distributed = pytest.importorskip("distributed")
    started: list[subprocess.Popen[bytes]] = []
    with open(folder / "log", "wb") as log, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()

        def start(module: str, *arguments: str) -> None:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))

        start("dask_scheduler", "--host", address, "--dashboard-address", "127.0.0.1:0")
        for _ in range(workers):
            start("dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
        try:
            with distributed.Client(address, timeout=40, set_as_default=False) as client:
                if workers:
                    client.wait_for_workers(workers, timeout=40)
            yield address, started
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A scheduler and two workers."""
    with dask(tmp_path_factory.mktemp("dask"), 2) as started:
        yield started


def test_a_cluster_finds_the_same_rows_though_a_worker_is_killed(
    cluster: Started, tmp_path: Path, undisturbed: str
) -> None:
    address, (_, *workers) = cluster
    path = str(tmp_path / "results.db")
    assert csv_of(swept(cluster=address)) == undisturbed
    seen: list[int] = []

    def kill(done: int, _: int) -> None:
        seen.append(done)
        if done > POINTS // 4 and workers[0].poll() is None:
            workers[0].kill()
            workers[0].wait()

    assert csv_of(swept(cluster=address, out=path, progress=kill)) == undisturbed == csv_of(read_results(path))
    assert workers[0].poll() is not None and workers[1].poll() is None and seen[-1] == POINTS


def test_a_cluster_that_is_not_there_is_refused_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(_sweep_cluster, "_CONNECT_S", 1.0)
    path = tmp_path / "results.db"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        mute = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        silent.listen()
        for address in (mute, "tcp://127.0.0.1:1", "nonsense", "", "tcp://h h:1"):
            with pytest.raises(MemsimError) as caught:
                swept(cluster=address, out=str(path))
            (fault,) = caught.value.faults
            assert fault.startswith(f'cluster is "{address}", where no Dask scheduler answers (')
            assert fault.endswith("start one there, or give --jobs instead.")
    assert not path.exists()


def test_a_scheduler_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_sweep_cluster, "_CONNECT_S", 1.0)
    with dask(tmp_path, 0) as (address, _), pytest.raises(MemsimError) as caught:
        swept(cluster=address)
    assert str(caught.value) == (f'cluster is "{address}", which has no workers: start some, or give --jobs instead.')


def test_a_scheduler_that_goes_is_missed_and_its_rows_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, undisturbed: str
) -> None:
    monkeypatch.setattr(_sweep_cluster, "_CONNECT_S", 2.0)
    path = str(tmp_path / "results.db")
    with dask(tmp_path, 1) as (address, (scheduler, _)):

        def kill(done: int, _: int) -> None:
            if done > POINTS // 4 and scheduler.poll() is None:
                scheduler.kill()
                scheduler.wait()

        with pytest.raises(MemsimError, match="whose scheduler is gone: start it again, or give --jobs instead"):
            swept(cluster=address, out=path, progress=kill)
    assert POINTS // 4 < len(read_results(path).rows) < POINTS
    assert csv_of(swept(out=path)) == undisturbed
