"""On standard error: a progress bar where a person watches and the run takes more than a moment, else a line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from memsim._cli_output import console_for, is_terminal_stderr, say
from memsim._options import Request

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID

_A_MOMENT_S = 1.0
_MANY_OPERATIONS = 5_000_000


class ProgressBar:
    """A context in which calls of the object draw a bar: what is being done, how much is done, and of how much.

    With `rate`, what is done is counted, and the bar says how many a second too.
    """

    def __init__(self, rate: str = "") -> None:
        self._rate = rate
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

            columns = _columns(self._rate) if self._rate else Progress.get_default_columns()
            self._progress = Progress(*columns, console=console_for(sys.stderr), transient=True)
            self._progress.start()
        if name not in self._tasks:
            for earlier in self._tasks.values():
                self._progress.update(earlier, visible=False)
            self._tasks[name] = self._progress.add_task(name, total=total, completed=done)
        self._progress.update(self._tasks[name], completed=done)


def _columns(rate: str) -> tuple[ProgressColumn, ...]:
    """A bar with the count and the rate of what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.3g} {rate}/s" if task.speed else f"- {rate}/s", style="progress.data.speed")

    named = TextColumn("{task.description}", style="progress.description")
    return (named, BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())


class ReplayNotice:
    """Says once, before it starts, that a replay is long, where no bar shows it. Runs that follow are added up."""

    def __init__(self) -> None:
        self._quiet = is_terminal_stderr()
        self._operations = 0

    def about(self, request: Request, *algorithms: str) -> None:
        """Say so if the replays of these algorithms, with all before them, are long."""
        if self._quiet or request.count_only:
            return
        self.operations(request.tile_operations(*algorithms))

    def operations(self, count: int, quicker: str = "--count-only answers at once") -> None:
        """Say so if this many tile operations, with all before them, take long; and what is quicker."""
        self._operations += count
        if not self._quiet and self._operations > _MANY_OPERATIONS:
            self._quiet = True
            millions = f"{self._operations / 1e6:,.0f} million tile operations"
            say(f"replaying {millions}; {quicker}.")
