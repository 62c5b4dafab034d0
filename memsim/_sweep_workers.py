"""Who runs the points of a sweep: this process, processes of this computer (joblib's), or workers of a Dask cluster.

The latter two are one thing here, an executor of concurrent.futures that takes chunks of points; a chunk whose worker
died is given out again. Both need the extra `sweeps`.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from memsim._options import Request
from memsim._sweep_plan import SweepPlan
from memsim._sweep_points import Done, Point, Values, run_points, values_of
from memsim.errors import MemsimError

Rows = list[tuple[int, Values, float]]
Before = Callable[[Request], None]

MOST_JOBS = 1024
_CHUNK_S = 0.1
_MOST_POINTS_A_CHUNK = 64
_MOST_DEATHS = 4
_LOOK_S = 2.0


class Workers(Protocol):
    """A context in which points are run: batches of rows as they get done, in any order."""

    def __enter__(self) -> Workers: ...
    def __exit__(self, *_: object) -> None: ...
    def rows(self, plan: SweepPlan, numbers: Iterator[int], before: Before | None) -> Iterator[Rows]: ...


def workers_for(jobs: int, cluster: str | None) -> Workers:
    """Those that are asked for. Raises `MemsimError` if they cannot be had: no such number, what runs them is not
    installed."""
    if not 1 <= jobs <= MOST_JOBS:
        raise MemsimError(f"jobs is {jobs}; give a whole number from 1 to {MOST_JOBS}.")
    if cluster is not None:
        if jobs > 1:
            raise MemsimError("jobs and cluster are both given: give one of them.")
        from memsim._sweep_cluster import Cluster

        return _Spread(Cluster(cluster))
    return Here() if jobs == 1 else _Spread(_Processes(jobs))


class Here:
    """This process, point by point."""

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def rows(self, plan: SweepPlan, numbers: Iterator[int], before: Before | None) -> Iterator[Rows]:
        for number in numbers:
            since = time.perf_counter()
            row = plan.row(number, before)
            yield [(number, values_of(row), time.perf_counter() - since)]


class _Pool(Protocol):
    """Workers that take calls. `dead` are the errors of a call whose worker died. `look_after` is told whether some
    did, or else that all take long; it raises if nobody is left to wait for."""

    dead: tuple[type[BaseException], ...]

    def open(self) -> None: ...
    def slots(self) -> int: ...
    def submit(self, pickled: bytes, points: Sequence[Point]) -> Future[Done]: ...
    def look_after(self, died: bool) -> None: ...
    def close(self) -> None: ...


class _Spread:
    """Points in chunks over a pool, few enough at a time that little is lost with the process that asks."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool

    def __enter__(self) -> _Spread:
        self._pool.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def rows(self, plan: SweepPlan, numbers: Iterator[int], before: Before | None) -> Iterator[Rows]:
        pickled, digest = plan.pickled(), plan.provenance.simulator_digest
        queue = _Queue(plan, numbers)
        running: dict[Future[Done], list[int]] = {}
        while True:
            while len(running) < 2 * self._pool.slots() and (taken := queue.take(len(running))):
                running[self._pool.submit(pickled, [plan.point(number) for number in taken])] = taken
            if not running:
                return
            done, _ = wait(running, _LOOK_S, FIRST_COMPLETED)
            died: list[int] = []
            for future in done:
                taken = running.pop(future)
                try:
                    found, rows = future.result()
                except self._pool.dead:
                    died += taken
                    continue
                if found != digest:
                    raise MemsimError("a worker has another memsim than this one: install the same on all of them.")
                queue.timed([seconds for _, seconds in rows])
                yield [(number, values, seconds) for number, (values, seconds) in zip(taken, rows, strict=True)]
            if died:
                queue.died(died)
            if died or not done:
                self._pool.look_after(bool(died))


class _Queue:
    """Chunks of the points that are left. Points in the hands of a worker that died come again, one by one; those that
    died twice come last and alone, so that one that ends its worker is known."""

    def __init__(self, plan: SweepPlan, numbers: Iterator[int]) -> None:
        self._plan, self._numbers = plan, numbers
        self._again: deque[int] = deque()
        self._alone: deque[int] = deque()
        self._deaths: dict[int, int] = {}
        self._size = 1

    def take(self, running: int) -> list[int]:
        """The next chunk while so many are running, or nothing for now."""
        if self._again:
            return [self._again.popleft()]
        chunk = list(itertools.islice(self._numbers, self._size))
        if not chunk and self._alone and not running:
            return [self._alone.popleft()]
        return chunk

    def timed(self, seconds: Sequence[float]) -> None:
        """What the points of a chunk took: the next has as many as take a moment, half as many again at most."""
        wanted = int(_CHUNK_S / max(1e-6, sum(seconds) / len(seconds)))
        self._size = max(1, min(wanted, self._size + 1 + self._size // 2, _MOST_POINTS_A_CHUNK))

    def died(self, numbers: Sequence[int]) -> None:
        """These were lost with their worker. Raises for one that was lost alone, and again."""
        for number in numbers:
            deaths = self._deaths[number] = self._deaths.get(number, 0) + 1
            if deaths >= _MOST_DEATHS:
                point = ", ".join(f"{name} {text}" for name, text in self._plan.point(number).items())
                raise MemsimError(
                    f"the point {point} ends every worker that runs it, perhaps for lack of memory: leave it out, or "
                    "take a computer with more."
                )
            (self._again if deaths < 2 else self._alone).append(number)


class _Processes:
    """Processes of this computer, as joblib starts them."""

    def __init__(self, jobs: int) -> None:
        try:
            from joblib.externals import loky
        except ModuleNotFoundError:
            raise MemsimError(
                "more than one job needs joblib, which is not installed: pip install 'memsim[sweeps]'."
            ) from None
        self._loky, self._jobs = loky, jobs
        # When one dies, the others of its pool are ended too.
        self.dead: tuple[type[BaseException], ...] = (
            BrokenProcessPool, CancelledError, loky.process_executor.ShutdownExecutorError,
        )  # fmt: skip
        self._executor: Any = None

    def open(self) -> None:
        self._executor = self._loky.ProcessPoolExecutor(self._jobs, initializer=_follow, initargs=(os.getpid(),))

    def slots(self) -> int:
        return self._jobs

    def submit(self, pickled: bytes, points: Sequence[Point]) -> Future[Done]:
        try:
            future: Future[Done] = self._executor.submit(run_points, pickled, points)
        except BrokenProcessPool as error:
            # As if it had died a moment later.
            future = Future()
            future.set_exception(error)
        return future

    def look_after(self, died: bool) -> None:
        if died:
            self.close()
            self.open()

    def close(self) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)


def _follow(parent: int) -> None:
    """In a worker: leave Ctrl-C to the process that asks, and end when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
