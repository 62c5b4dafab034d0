"""Commands that a page shows: run where the build runs, their output and exit code kept."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SHOWN_FOLDERS = ("measurements", "scenarios", "tests")
"""What a command on a page may read of the checkout."""


class PageFault(Exception):
    """Something that a page says does not hold."""


@dataclass(frozen=True)
class Output:
    """What a command printed, and its exit code."""

    command: str
    code: int
    out: str
    err: str


@dataclass
class Page:
    """The commands of one page, run one after the other in a folder of their own that looks like the checkout."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    outputs: dict[str, Output] = field(default_factory=dict)
    last: str | None = None
    later: list[Callable[[], None]] = field(default_factory=list)
    """What is held against commands that may stand further down: called when all have run."""
    _data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in SHOWN_FOLDERS:
            Path(self.folder.name, name).symlink_to(ROOT / name)

    def run(self, command: str, name: str | None = None, code: int = 0) -> Output:
        """Run a command of this page. Raises `PageFault` if it ends with another exit code than is said."""
        words, _, path = command.partition(" > ")
        with self._inside():
            output = run(words)
            if path:
                Path(path.strip()).write_text(output.out, encoding="utf-8")
        if output.code != code:
            said = output.err.strip() or "nothing"
            raise PageFault(f"`{command}` ended with exit code {output.code}, not {code}, and said: {said}")
        name = name or f"#{len(self.outputs) + 1}"
        if name in self.outputs:
            raise PageFault(f"two commands of this page are called {name!r}.")
        self.outputs[name], self.last = output, name
        return output

    def write(self, path: str, text: str) -> None:
        """A file that the page's reader makes."""
        Path(self.folder.name, path).write_text(text, encoding="utf-8")

    def output(self, name: str | None) -> Output:
        """The output of the command of this name."""
        if name is None or name not in self.outputs:
            raise PageFault(f"no command {name!r} stands on this page, or none before this.")
        return self.outputs[name]

    def data(self, name: str) -> Any:
        """The JSON of a command, from the same command with --json."""
        if name not in self._data:
            with self._inside():
                output = run(f"{self.output(name).command} --json")
            if output.code:
                raise PageFault(f"`{output.command}` ended with exit code {output.code}: {output.err.strip()}")
            self._data[name] = json.loads(output.out)
        return self._data[name]

    def close(self) -> None:
        """Take the folder away."""
        self.folder.cleanup()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        with contextlib.chdir(self.folder.name):
            yield


def run(command: str) -> Output:
    """Run `memsim …`, by the function that the memsim command calls, or `python scenarios/NAME.py`, here and now.

    In this process: a new one for each would take longer than most of the commands.
    """
    words = shlex.split(command)
    out, err = io.StringIO(), io.StringIO()
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "88"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _run(words)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return Output(command, code, out.getvalue(), err.getvalue())


def _run(words: list[str]) -> int:
    if words[:1] == ["memsim"]:
        from memsim.cli import run as run_line

        return run_line(words[1:])
    if words[:1] == ["python"] and len(words) == 2:
        argv, sys.argv = sys.argv, words[1:]
        try:
            runpy.run_path(words[1], run_name="__main__")
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv = argv
        return 0
    raise PageFault(f"`{shlex.join(words)}` is neither `memsim …` nor `python scenarios/NAME.py`.")
