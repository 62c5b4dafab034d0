"""A file of a table, CSV or another, that appears whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TextIO, TypeVar

from memsim.errors import MemsimError
from memsim.units import quoted


class CsvTable(Protocol):
    """What can be written as a CSV file."""

    def write_csv(self, file: TextIO) -> None: ...


Table = TypeVar("Table", contravariant=True)


def same_file(one: str, other: str) -> bool:
    """Whether two paths lead to one file, there or not."""
    return os.path.realpath(one) == os.path.realpath(other)


class TableFile(Generic[Table]):
    """The place of a file, checked when made. As a context it leaves nothing of an unfinished file behind.

    Rows go into a new file beside the old one, which then takes its name; a device or a pipe is written directly.
    Raises `MemsimError` if the path cannot be written. `option` is what named it.
    """

    option = ""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._target = Path(os.path.realpath(path))
            if not self._target.exists() and os.path.exists(path):
                self._target = Path(path)  # /dev/stdout of a pipe leads to no path
            mode = self._mode()
            if path in ("", "-") or (mode is not None and stat.S_ISDIR(mode)):
                raise MemsimError(
                    f"{self.option} is {quoted(path)}, which is no file: give the path of a file to write."
                )
            if mode is not None and not os.access(self._target, os.W_OK):
                raise PermissionError(13, "permission denied")
            self._temporary: Path | None = None
            if mode is None or stat.S_ISREG(mode):
                temporary = self._target.with_name(f".memsim-{os.urandom(6).hex()}.{self.option}")
                with open(temporary, "x", encoding="utf-8"):
                    self._temporary = temporary
                if mode is not None:
                    os.chmod(temporary, stat.S_IMODE(mode))
        except MemsimError:
            raise
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def write(self, table: Table) -> None:
        """Write the table and put the file in its place."""
        try:
            self._fill(self._temporary or self._target, table)
            if self._temporary is not None:
                os.replace(self._temporary, self._target)
                self._temporary = None
        except OSError as error:
            raise self._unwritable(error) from None

    def _fill(self, path: Path, table: Table) -> None:
        raise NotImplementedError

    def _mode(self) -> int | None:
        try:
            return self._target.stat().st_mode
        except FileNotFoundError:
            return None

    def _unwritable(self, error: Exception) -> MemsimError:
        reason = (getattr(error, "strerror", None) or str(error)).lower().rstrip(".")
        return MemsimError(
            f"{self.option} is {quoted(self.path)}, which cannot be written ({reason}): "
            "give the path of a writable file."
        )


class CsvFile(TableFile[CsvTable]):
    """The place of a CSV file."""

    option = "csv"

    def _fill(self, path: Path, table: CsvTable) -> None:
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            table.write_csv(file)
