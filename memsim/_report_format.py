"""Figures as a reader wants them: three to four digits, with their unit; and tables of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich import box
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
    "sram": "the bandwidth of SRAM",
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
    return f"{size_bytes / 1024:.4g} KiB" if size_bytes < 2**20 else f"{size_bytes / 2**20:.3g} MiB"


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Paragraph:
    """Sentences, wrapped to the width there is; no line ends between a number and its unit."""

    def __init__(self, text: str) -> None:
        self._text = re.sub(r"(?<=\d) (?=(%|[KMGTP]?B|[mµnp]?s)(?!\w))", "\xa0", text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in textwrap.wrap(self._text, options.max_width):
            yield Text(line.replace("\xa0", " "))


def figures(headings: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """A table with labels at the left and a column of figures for each heading."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    for label, cells in rows:
        table.add_row(escape(label), *map(escape, cells))
    return table
