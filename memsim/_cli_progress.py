"""A progress bar on standard error, where a person watches and the run takes more than a moment."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from memsim._cli_output import console_for, is_terminal_stderr

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_A_MOMENT_S = 1.0


class ProgressBar:
    """A context in which calls of the object draw a bar: what is being done, how much is done, and of how much."""

    def __init__(self) -> None:
        self._watched = is_terminal_stderr()
        self._since = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, name: str, done: int, total: int) -> None:
        if not self._watched:
            return
        if self._progress is None:
            if time.monotonic() - self._since < _A_MOMENT_S:
                return
            # Only now, because importing it takes longer than most commands.
            from rich.progress import Progress

            self._progress = Progress(console=console_for(sys.stderr), transient=True)
            self._progress.start()
        if name not in self._tasks:
            for earlier in self._tasks.values():
                self._progress.update(earlier, visible=False)
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=done)
