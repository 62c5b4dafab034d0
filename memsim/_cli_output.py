"""Standard output and error: text that their encoding can hold, and a closed pipe as one sentence."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console, RenderableType

from memsim.errors import MemsimError

_PIPED_WIDTH = 100
# One character for one, so that tables keep their shape.
_PLAIN = str.maketrans("×µμ–−—…·", "xuu---.*")


class OutputClosed(MemsimError):
    """Standard output does not take what is written to it."""


class Page(io.StringIO):
    """Text on its way to a stream: rendered as for the stream, written nowhere yet."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as an attribute
        """The stream's, by which rich chooses the lines of a table."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return _is_terminal(self._stream)

    def text(self) -> str:
        """What was rendered, without spaces at the ends of lines."""
        return "\n".join(line.rstrip(" ") for line in self.getvalue().split("\n"))


def console_for(stream: TextIO) -> Console:
    """A console that renders for this stream: its terminal's width, or 100 columns (or COLUMNS) where it is none."""
    width = None
    if not _is_terminal(stream):
        columns = os.environ.get("COLUMNS", "")[:5]
        width = max(20, int(columns)) if columns.isascii() and columns.isdecimal() else _PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False)


def print_report(report: RenderableType) -> None:
    """Render a report to standard output; a table that is wider than it is printed as wide."""
    page = Page(sys.stdout)
    console_for(page).print(report, crop=False)
    write(page.text())


def print_json(data: Mapping[str, Any]) -> None:
    """Write data to standard output as JSON, in ASCII; NaN and infinities are errors of ours."""
    write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write(text: str) -> None:
    """Write to standard output, now. Raises `OutputClosed` with the reason if that does not take it."""
    if sys.stdout is None:
        raise OutputClosed("standard output is closed: nothing could be written.")
    try:
        sys.stdout.write(_fitting(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        raise OutputClosed("standard output was closed before everything was written to it.") from None
    except (OSError, ValueError) as error:
        _abandon_stdout()
        reason = (getattr(error, "strerror", None) or str(error)).lower().rstrip(".")
        raise OutputClosed(f"standard output cannot be written ({reason}): nothing more is printed.") from None


def say(sentence: str) -> None:
    """Write one sentence to standard error, on one line; silent if that is closed."""
    plain = "".join(char if char.isprintable() else "?" for char in sentence)
    try:
        sys.stderr.write(_fitting(f"memsim: {plain}\n", sys.stderr))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def is_terminal_stderr() -> bool:
    """Whether a person watches standard error."""
    return _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False


def _fitting(text: str, stream: TextIO) -> str:
    """The text in characters that the stream's encoding has."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _abandon_stdout() -> None:
    """Let what is left in the buffer go nowhere, or the interpreter would complain about it at exit."""
    try:
        target = sys.stdout.fileno()
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), target)
    except (OSError, ValueError, AttributeError):
        return
