"""Results, comparisons, sweeps and machines as text for a person: tables that fit 80 columns, and sentences.

Every function gives something for a `rich` console to print; what stands in it says all of it without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from memsim._report_format import NONE, Paragraph, figures, kib, number, percent, plural, seconds, size, times
from memsim._report_story import story
from memsim.gpu import Gpu
from memsim.result import Comparison, Launch, Result, Total, ratio
from memsim.sweep import SweepRow, SweepTable
from memsim.units import format_count, format_rate

MOST_SWEEP_ROWS = 200
"""Rows of a sweep that are shown as text."""

_Part = Launch | Total
_Row = tuple[str, Sequence[str]]


def comparison_report(comparison: Comparison, gpu: Gpu, asked: Collection[str] = ()) -> RenderableType:
    """Naive attention's launches and total beside flash's total, their ratio, and what the numbers say.

    `gpu` is the machine of the comparison; `asked` names the fields of the tile that were asked for, not chosen.
    """
    naive, flash = comparison.naive, comparison.flash
    headings = [*(launch.name for launch in naive.launches), "naive", "flash", "ratio"]
    return Group(
        _heading("Naive attention and FlashAttention", naive, gpu),
        *_tile_lines([naive, flash], asked),
        "",
        figures(headings, _comparison_rows(comparison)),
        Text("ratio: naive / flash; qk, softmax and pv are naive's launches.", style="dim"),
        *(line for paragraph in story(comparison, gpu) for line in ("", Paragraph(paragraph))),
        *_notes(naive, flash),
    )


def result_report(result: Result, gpu: Gpu, asked: Collection[str] = ()) -> RenderableType:
    """One algorithm's launches and their total; arguments as for `comparison_report`."""
    headings = [*(launch.name for launch in result.launches), "total"]
    return Group(
        _heading(result.algorithm, result, gpu),
        *_tile_lines([result], asked),
        "",
        figures(headings, _result_rows(result)),
        *_notes(result),
    )


def sweep_report(table: SweepTable) -> RenderableType:
    """A sweep's points and main figures, as many as the width takes, and why points have none."""
    reasons = list(dict.fromkeys(row.reason for row in table.rows if row.reason))
    ending = reasons[:5]
    if len(reasons) > 5:
        ending.append(f"{plural(len(reasons) - 5, 'more reason')} in --csv and --json.")
    if len(table.rows) > MOST_SWEEP_ROWS:
        ending.append(f"These are the first {MOST_SWEEP_ROWS} of {len(table.rows):,} rows; --csv and --json have all.")
    return Group(_SweepFigures(table), *(line for text in ending for line in ("", Paragraph(text))))


class _SweepFigures:
    """The table of a sweep: the axes, and of the columns the first that fit the width."""

    # The most wanted first; shown in the order of _ORDER.
    _COLUMNS: ClassVar[Mapping[str, Callable[[SweepRow], str]]] = {
        "status": lambda row: row.status,
        "HBM": lambda row: size(row.hbm_bytes),
        "time": lambda row: seconds(row.time_s),
        "waits": lambda row: percent(row.waiting_for_memory),
        "× compulsory": lambda row: number(row.over_compulsory),
        "bound": lambda row: row.bound or NONE,
        "blocks/SM": lambda row: number(row.blocks_per_sm),
        "SRAM": lambda row: size(row.sram_bytes),
    }
    _ORDER = ("status", "blocks/SM", "SRAM", "HBM", "time", "bound", "waits", "× compulsory")

    def __init__(self, table: SweepTable) -> None:
        self._axes = list(table.axes)
        self._rows = table.rows[:MOST_SWEEP_ROWS]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = {name: [show(row) for row in self._rows] for name, show in self._COLUMNS.items()}
        columns = {name: cells for name, cells in columns.items() if set(cells) - {NONE, "ok"}}
        while len(columns) > 2 and self._width(self._shown(columns)) > options.max_width:
            columns.popitem()
        yield self._table(self._shown(columns))

    def _shown(self, columns: Mapping[str, list[str]]) -> dict[str, list[str]]:
        axes = {axis: [row.point[axis] for row in self._rows] for axis in self._axes}
        return axes | {name: columns[name] for name in self._ORDER if name in columns}

    def _width(self, shown: Mapping[str, list[str]]) -> int:
        widths = [max(cell_len(text) for text in (name, *cells)) for name, cells in shown.items()]
        return sum(widths) + 2 * (len(widths) - 1)

    def _table(self, shown: Mapping[str, list[str]]) -> Table:
        first, *others = shown
        table = figures(others, zip(shown[first], zip(*(shown[name] for name in others), strict=True), strict=True))
        table.columns[0].header = first
        return table


def _heading(title: str, result: Result, gpu: Gpu) -> RenderableType:
    p = result.problem
    heads = plural(p["heads"], "head") + (f" ({p['kv_heads']} of K and V)" if p["kv_heads"] != p["heads"] else "")
    rows = f"{p['seq_len_q']:,} × {p['seq_len_k']:,}" if p["seq_len_q"] != p["seq_len_k"] else f"{p['seq_len_q']:,}"
    what = [
        *([plural(p["batch"], "sequence")] if p["batch"] != 1 else []), heads, f"seq_len {rows}",
        f"head_dim {p['head_dim']}", p["dtype"], *(["causal"] if p["causal"] else []),
        *(["with LSE"] if result.lse else []), *(["inputs from the host"] if result.inputs == "host" else []),
    ]  # fmt: skip
    changed = ", ".join(f"{name} {text}" for name, text in result.gpu_options.items())
    sm = f"{plural(gpu.sm.count, 'SM')} with {kib(gpu.sm.sram.capacity_bytes)} of SRAM each"
    machine = (
        f"{result.gpu}{f' ({changed})' if changed else ''}: {sm}, HBM {format_rate(gpu.hbm.bandwidth_bytes_per_s)}"
    )
    text = Text(f"{title}: ", style="bold")
    return Group(text.append(", ".join(what), style="not bold"), Text(machine))


def _tile_lines(results: Sequence[Result], asked: Collection[str]) -> list[RenderableType]:
    tiles = {result.algorithm: _tile(result.tile) for result in results}
    same = len(set(tiles.values())) == 1
    if len(asked) == 4:
        how = "as asked for"
    elif asked:
        how = f"{', '.join(sorted(asked))} as asked for, the rest from the first of the GPU's tiles that fits"
    elif results[0].algorithm == "flash1":
        how = "chosen as its paper does"
    else:
        how = "the first of the GPU's tiles that fits"
    if same:
        return [Text(f"tile {next(iter(tiles.values()))} ({how})")]
    return [Text(f"tile of {name}: {tile} ({how})") for name, tile in tiles.items()]


def _tile(tile: dict[str, int]) -> str:
    sides = f"{tile['block_m']}×{tile['block_n']}"
    return f"{sides}, {plural(tile['num_warps'], 'warp')}, {plural(tile['num_stages'], 'stage')}"


def _notes(*results: Result) -> list[RenderableType]:
    notes = ["Counted without a replay, so there are no times."] if results[0].counted_only else []
    notes += [note for result in results for note in result.notes]
    return [line for note in dict.fromkeys(notes) for line in ("", Paragraph(note))]


def _of(name: str) -> Callable[[_Part], Any]:
    """The field of this name, None where a launch or a total does not have it."""
    return lambda part: getattr(part, name, None)


def _busy(resource: str) -> Callable[[_Part], Any]:
    return lambda part: (part.busy or {}).get(resource)


def _hbm_bytes(part: _Part) -> int:
    return part.hbm_read_bytes + part.hbm_write_bytes


@dataclass(frozen=True)
class _Figure:
    """One row: its value of a launch or a total, and how that is written. Rows without any value are left out."""

    label: str
    show: Callable[[Any], str]
    value: Callable[[_Part], Any]
    compared: bool = True

    def cells(self, parts: Iterable[_Part]) -> list[str]:
        values = [self.value(part) for part in parts]
        return ["" if value is None else self.show(value) for value in values]


_ROOM = (
    _Figure("blocks", format_count, _of("blocks")),
    _Figure("waves", format_count, _of("waves")),
    _Figure("blocks per SM", str, _of("blocks_per_sm")),
    _Figure("limited by", str, _of("limited_by")),
    _Figure("SRAM of a block", kib, _of("sram_bytes")),
    _Figure("registers a thread", str, _of("registers")),
    _Figure("registers from", str, lambda part: _of("registers_from")(part) if _of("registers")(part) else None),
)
_REQUESTED = _Figure("of it asked for", size, _of("sram_fill_requested_bytes"))
_BYTES = (
    _Figure("SRAM filled", size, _of("sram_fill_bytes")),
    _Figure("SRAM stored", size, _of("sram_store_bytes")),
    _Figure("HBM read", size, _of("hbm_read_bytes")),
    _Figure("HBM written", size, _of("hbm_write_bytes")),
    _Figure("HBM total", size, _hbm_bytes),
)
_TIMES = (
    _Figure("time", seconds, _of("time_s")),
    _Figure("of it launching", seconds, _of("launch_overhead_s")),
    _Figure("of it host link", seconds, lambda part: _of("host_s")(part) or None),
    _Figure("bound", str, _of("bound"), compared=False),
    _Figure("math waits for memory", percent, _of("waiting_for_memory"), compared=False),
    _Figure("HBM busy", percent, _busy("hbm"), compared=False),
    _Figure("tensor pipe busy", percent, _busy("tensor"), compared=False),
)
_OTHER_PIPES = (
    _Figure("exp pipe busy", percent, _busy("exp")),
    _Figure("ALU pipe busy", percent, _busy("alu")),
    _Figure("SRAM busy", percent, _busy("sram")),
)
_WORK = (
    _Figure("FLOP executed", format_count, _of("flops")),
    _Figure("FLOP needed", format_count, _of("useful_flops")),
    _Figure("exponentials", format_count, _of("exps")),
)
_SUMMARY = (
    _Figure("FLOP per HBM byte", number, lambda part: ratio(part.useful_flops, _hbm_bytes(part))),
    _Figure("× compulsory bytes", number, _of("over_compulsory")),
    _Figure("× Saha–Ye bound", number, _of("over_lower_bound")),
    _Figure("peak HBM", size, _of("peak_hbm_bytes")),
)


def _result_rows(result: Result) -> Iterator[_Row]:
    for figure in (*_ROOM, *_BYTES[:1], _REQUESTED, *_BYTES[1:], *_TIMES, *_OTHER_PIPES, *_WORK, *_SUMMARY):
        cells = figure.cells([*result.launches, result.total])
        if any(cells):
            yield figure.label, cells


def _comparison_rows(comparison: Comparison) -> Iterator[_Row]:
    naive, flash = comparison.naive, comparison.flash
    for figure in (*_BYTES, *_TIMES, *_SUMMARY):
        cells = figure.cells([*naive.launches, naive.total, flash.total])
        if any(cells):
            over = ratio(figure.value(naive.total), figure.value(flash.total)) if figure.compared else None
            yield figure.label, [*cells, times(over) if over is not None else ""]
