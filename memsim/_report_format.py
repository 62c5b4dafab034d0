"""Figures as a reader wants them: three to four digits, with their unit; and tables of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from memsim.units import format_bytes, format_count, format_seconds

NONE = "–"

BOUND_BY = {
    "tensor": "its matrix products (the tensor pipe)",
    "exp": "its exponentials (the exp pipe)",
    "alu": "its element-wise arithmetic (the ALU pipe)",
    "sram": "what it moves through SRAM",
    "l2": "the bandwidth of the L2",
    "hbm": "the bandwidth of HBM",
    "latency": "the latency of memory",
    "launch": "starting kernels",
    "host": "the host link",
}
"""What a run is held back by, to stand after "by"."""


def percent(share: float | None) -> str:
    """0.853 as "85.3 %"."""
    return NONE if share is None else f"{100 * share:.1f} %"


def times(ratio: float | None) -> str:
    """2.44 as "2.44×"."""
    return NONE if ratio is None else f"{number(ratio)}×"


def number(value: float | None) -> str:
    """A plain number to three digits, thousands in full."""
    if value is None:
        return NONE
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else format_count(value)


def size(size_bytes: float | None) -> str:
    """Bytes in steps of 1000."""
    return NONE if size_bytes is None else format_bytes(size_bytes)


def seconds(time_s: float | None) -> str:
    """A time to three digits."""
    return NONE if time_s is None else format_seconds(time_s)


def kib(size_bytes: int) -> str:
    """The size of a memory on the chip, in steps of 1024: "228 KiB", "60 MiB"."""
    if size_bytes < 1024 or size_bytes >= 2**30:
        return format_bytes(size_bytes)
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:.3g} MiB"
    return f"{size_bytes / 1024:.{4 if size_bytes >= 100 * 1024 else 3}g} KiB"


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Paragraph:
    """Sentences, wrapped to the width there is; no line ends between a number and its unit."""

    def __init__(self, text: str, style: str = "") -> None:
        self._style = style
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in wrapped(self._text, options.max_width):
            yield Text(line, style=self._style)


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most that many characters; none ends between a number and its unit."""
    unbroken = re.sub(r"(?<=\d) (?=(%|[KMGTP]?i?B|[mµnp]?s)(?!\w))", "\xa0", text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(unbroken, width, break_on_hyphens=False)]


class Figures:
    """A table with labels at the left and a column of figures for each heading.

    Where not all columns fit the width they stand in several tables, one under the other; no figure is ever cut.
    """

    def __init__(self, headings: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], label: str = "") -> None:
        self._rows = [(name, tuple(cells)) for name, cells in rows]
        self._label = (label, *(name for name, _ in self._rows))
        self._columns = [
            (heading, *cells)
            for heading, cells in zip(headings, zip(*(cells for _, cells in self._rows), strict=True), strict=False)
        ] or [(heading,) for heading in headings]

    @property
    def width(self) -> int:
        """Columns of text that the whole table takes."""
        return self._width(self._columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self._columns)
        for tables in range(1, count + 1):
            each = -(-count // tables)
            parts = [self._columns[start : start + each] for start in range(0, count, each)]
            if max(map(self._width, parts)) <= options.max_width:
                break
        for number, part in enumerate(parts):
            yield from [""] if number else []
            width = max(options.max_width, self._width(part))
            yield from console.render(self._table(part), options.update(max_width=width))

    def _width(self, columns: Sequence[tuple[str, ...]]) -> int:
        cells = ("\n".join(column).split("\n") for column in (self._label, *columns))
        return sum(max(map(cell_len, lines)) for lines in cells) + 2 * len(columns)

    def _table(self, columns: Sequence[tuple[str, ...]]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", collapse_padding=True)
        table.add_column(escape(self._label[0]), no_wrap=True)
        for heading, *_ in columns:
            table.add_column(escape(heading), justify="right", no_wrap=True)
        for row, name in enumerate(self._label[1:], start=1):
            cells = [column[row] for column in columns]
            if any(cells) or len(columns) == len(self._columns):
                table.add_row(escape(name), *map(escape, cells))
        return table
