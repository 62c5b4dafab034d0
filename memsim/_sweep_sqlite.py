"""The file under a sweep's results: SQLite, known by its header, with every error as a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from urllib.parse import quote

from memsim.errors import MemsimError
from memsim.units import quoted

SIDE_FILES = ("-wal", "-journal")
"""What SQLite keeps beside a file until it is closed in order."""
_APPLICATION_ID = 0x6D656D73  # "mems"
# https://www.sqlite.org/fileformat.html, section 1.3
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION_ID_AT = 68
_BUSY_S = 1.0


def is_ours(path: str) -> bool:
    """Whether the header of the file says that it holds results of a sweep. Read without SQLite, which would put other
    files in order too."""
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    application_id = int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big")
    return header.startswith(_MAGIC) and application_id == _APPLICATION_ID


def mark_as_ours(connection: sqlite3.Connection) -> None:
    """Say so in the header."""
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


def connect(path: str, mode: str) -> sqlite3.Connection:
    """A connection in autocommit; the file must be there."""
    uri = f"file:{quote(os.fsencode(os.path.realpath(path)))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)


def reader(path: str) -> sqlite3.Connection:
    """A connection that reads; it may write only where a killed sweep left something to put in order."""
    left_over = any(os.path.exists(f"{os.path.realpath(path)}{suffix}") for suffix in SIDE_FILES)
    return connect(path, "rw" if left_over else "ro")


def right(option: str) -> str:
    """How a sentence about a file that is the wrong one ends."""
    if option == "from":
        return "give a file that memsim sweep --out wrote"
    return "give a new path, or the command that made it"


def damaged(option: str, path: str) -> MemsimError:
    """That a file is ours and not whole."""
    return MemsimError(
        f"{option} is {quoted(path)}, which is damaged and was left as it is: "
        f"{'give a whole file' if option == 'from' else 'give a new path, or a whole copy of it'}."
    )


@contextlib.contextmanager
def in_sentences(option: str, path: str) -> Iterator[None]:
    """Errors of SQLite and the file system as a sentence about the option that named the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise damaged(option, path) from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise MemsimError(
                f"{option} is {quoted(path)}, which a running sweep has in use: wait for it, or stop it first."
            ) from None
        reason = _plain(str(error))
        if option == "from":
            raise MemsimError(f"from is {quoted(path)}, which cannot be read ({reason}): make it readable.") from None
        raise MemsimError(
            f"out is {quoted(path)}, which cannot be written ({reason}): make room or give another path; the rows that "
            "are in it stay, and the same command goes on after them."
        ) from None
    except MemsimError:
        raise
    except json.JSONDecodeError:
        raise damaged(option, path) from None
    except (OSError, ValueError) as error:
        reason = _plain(getattr(error, "strerror", None) or str(error))
        raise MemsimError(f"{option} is {quoted(path)}, which cannot be used ({reason}): {right(option)}.") from None


def _plain(reason: str) -> str:
    return reason.lower().rstrip(".")
