"""CSV files as numbered lines of cells, and the numbers in them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from memsim.errors import MemsimError
from memsim.units import LARGEST, quoted

_LARGEST_FILE_BYTES = 2**28
_NUMBER = re.compile(r"[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,2})?|\.[0-9]{1,40}([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True)
class Line:
    """One record of a CSV file and the number of the line it begins on, from 1."""

    number: int
    cells: tuple[str, ...]


def read_lines(
    path: str | Path, is_message: Callable[[str], bool] | None = None, is_header: Callable[[str], bool] | None = None
) -> tuple[Line, list[Line]]:
    """The header of a CSV file and its other lines, without blank ones.

    Lines for which `is_message` holds are skipped, as a tool prints them between its rows. Where `is_header` holds for
    a line, whatever stands before the first such line is skipped too. Raises `MemsimError` if the file cannot be read,
    or is no CSV.
    """
    shown = quoted(path)
    text = _text(path)
    kept = [(n, line) for n, line in enumerate(text.split("\n"), 1) if not (is_message and is_message(line))]
    if is_header is not None:
        kept = kept[next((at for at, (_, line) in enumerate(kept) if is_header(line)), 0) :]
    numbers = [n for n, _ in kept]
    reader = csv.reader(io.StringIO("\n".join(line for _, line in kept), newline=""), strict=True)
    lines = []
    begun = 0
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                lines.append(Line(numbers[begun], tuple(cells)))
            begun = reader.line_num
    except csv.Error as error:
        raise MemsimError(f"line {numbers[begun]} of {shown} is not CSV ({error}): correct it there.") from None
    if not lines:
        raise MemsimError(f"{shown} is empty: give a CSV file with a header and a row for each measured launch.")
    header = lines[0]
    return Line(header.number, tuple(cell.strip() for cell in header.cells)), lines[1:]


def _text(path: str | Path) -> str:
    shown = quoted(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE_BYTES + 1)
    except IsADirectoryError:
        raise MemsimError(f"{shown} is a directory: give the path of a CSV file in it.") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise MemsimError(f"there is no file called {shown}: give the path of a CSV file.") from None
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise MemsimError(f"{shown} cannot be read ({reason}): give the path of a readable CSV file.") from None
    if len(data) > _LARGEST_FILE_BYTES:
        raise MemsimError(f"{shown} is larger than {_LARGEST_FILE_BYTES} bytes: split it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MemsimError(f"{shown} is not UTF-8 text at byte {error.start}: give a CSV file.") from None
    if "\0" in text:
        raise MemsimError(f"{shown} is binary, it has a byte of zero: give a CSV file.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def whole_or_float(text: str) -> int | float | None:
    """A number from 0 to 2^62 as plain digits write it, an int where it is whole; None if the text is none."""
    if not _NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    if value > LARGEST:
        return None
    return int(value) if value == value.to_integral_value() else float(value)
