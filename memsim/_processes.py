"""Work in processes side by side; with one job in none but this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import TypeVar

Task = TypeVar("Task")
Done = TypeVar("Done")


class Processes:
    """A context in which `map` runs a function over tasks in `jobs` processes, no more than there are cores.

    The function and the tasks must be what pickle takes. On Ctrl-C this process alone hears it, and ends the others.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = max(1, min(jobs, os.cpu_count() or 1))
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        if self.jobs > 1:
            # Started anew: what this process holds may have threads, which a fork would lose.
            self._pool = ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _ignore_interrupts)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            if error is not None:
                for process in list(getattr(self._pool, "_processes", {}).values()):
                    process.terminate()
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Task], Done], tasks: Sequence[Task]) -> Iterator[tuple[int, Done]]:
        """(number of a task, what the function makes of it), as they get done."""
        if self._pool is None:
            yield from ((number, function(task)) for number, task in enumerate(tasks))
            return
        futures = {self._pool.submit(function, task): number for number, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
