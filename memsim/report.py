"""Results, comparisons, sweeps and machines as text for a person: tables that fit 80 columns, and sentences.

Every function gives something for a `rich` console to print; what stands in it says all of it without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._report_format import Figures, kib, number, percent, seconds, size, times
from memsim._report_heading import heading, notes, spaced, tile_lines
from memsim._report_story import story
from memsim._report_sweep import MOST_SWEEP_ROWS, sweep_report
from memsim._report_tune import tuning_report
from memsim.gpu import Gpu
from memsim.result import Comparison, Launch, Result, Total, ratio
from memsim.units import format_count

__all__ = ["MOST_SWEEP_ROWS", "comparison_report", "result_report", "sweep_report", "tuning_report"]

_Part = Launch | Total
_Row = tuple[str, Sequence[str]]


def comparison_report(comparison: Comparison, gpu: Gpu, asked: Collection[str] = ()) -> RenderableType:
    """Naive attention's launches and total beside flash's total, their ratio, and what the numbers say.

    `gpu` is the machine of the comparison; `asked` names the fields of the tile that were asked for, not chosen.
    """
    naive, flash = comparison.naive, comparison.flash
    headings = [*(launch.name for launch in naive.launches), "naive", "flash", "ratio"]
    return Group(
        heading("Naive attention and FlashAttention", naive, gpu),
        *tile_lines([naive, flash], asked),
        "",
        Figures(headings, _comparison_rows(comparison)),
        Text("ratio: naive / flash; qk, softmax and pv are naive's launches.", style="dim"),
        *spaced(story(comparison, gpu)),
        *notes(naive, flash),
    )


def result_report(result: Result, gpu: Gpu, asked: Collection[str] = ()) -> RenderableType:
    """One algorithm's launches and their total; arguments as for `comparison_report`."""
    headings = [*(launch.name for launch in result.launches), "total"]
    return Group(
        heading(result.algorithm, result, gpu),
        *tile_lines([result], asked),
        "",
        Figures(headings, _result_rows(result)),
        *notes(result),
    )


def _of(name: str) -> Callable[[_Part], Any]:
    """The field of this name, None where a launch or a total does not have it."""
    return lambda part: getattr(part, name, None)


def _busy(resource: str) -> Callable[[_Part], Any]:
    return lambda part: (part.busy or {}).get(resource)


def _clock(clock_hz: float) -> str:
    return f"{clock_hz / 1e9:.3g} GHz"


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


_WAVES = _Figure("waves", format_count, _of("waves"))
_BLOCKS_PER_SM = _Figure("blocks per SM", str, _of("blocks_per_sm"))
_SRAM = _Figure("SRAM per block", kib, _of("sram_bytes"))
_ROOM = (
    _Figure("blocks", format_count, _of("blocks")),
    _WAVES,
    _BLOCKS_PER_SM,
    _Figure("limited by", str, _of("limited_by")),
    _SRAM,
    _Figure("registers a thread", str, _of("registers")),
    _Figure("registers from", str, lambda part: _of("registers_from")(part) if _of("registers")(part) else None),
)
_REQUESTED = _Figure("of it asked for", size, _of("sram_fill_requested_bytes"))
_ZEROS = _Figure("of it zeros", size, lambda part: part.sram_zero_fill_bytes or None)
_BYTES = (
    _Figure("SRAM filled", size, _of("sram_fill_bytes")),
    _Figure("found in L1", size, lambda part: part.l1_hit_bytes or None),
    _Figure("SRAM stored", size, _of("sram_store_bytes")),
    _Figure("L2 hit rate", percent, _of("l2_hit_rate"), compared=False),
    _Figure("HBM read", size, _of("hbm_read_bytes")),
    _Figure("HBM written", size, _of("hbm_write_bytes")),
    _Figure("HBM total", size, _hbm_bytes),
    _Figure("yet in L2 only", size, lambda part: part.l2_dirty_bytes_at_end or None, compared=False),
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
_REPLAY = (
    _Figure("L2 busy", percent, lambda part: _busy("l2")(part) or None),
    _Figure("clock", _clock, _of("clock_hz")),
    _Figure("replayed by", str, _of("replayed_by")),
    _Figure("blocks left out", format_count, lambda part: _of("blocks_left_out")(part) or None),
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


def _beside(figure: _Figure, result: Result) -> tuple[_Figure, ...]:
    """The rows that stand below one in the table of a single algorithm: what it is made of."""
    if figure.label == "SRAM filled":
        return _REQUESTED, _ZEROS
    if figure.label != "L2 hit rate":
        return ()
    tensors = dict.fromkeys(name for launch in result.launches for name in launch.l2_hit_rate_by_tensor or ())
    return tuple(_Figure(f"of {name}", percent, _hit_rate_of(name)) for name in tensors)


def _hit_rate_of(tensor: str) -> Callable[[_Part], Any]:
    return lambda part: (getattr(part, "l2_hit_rate_by_tensor", None) or {}).get(tensor)


def _result_rows(result: Result) -> Iterator[_Row]:
    bytes_ = [figure for row in _BYTES for figure in (row, *_beside(row, result))]
    for figure in (*_ROOM, *bytes_, *_TIMES, *_OTHER_PIPES, *_REPLAY, *_WORK, *_SUMMARY):
        cells = figure.cells([*result.launches, result.total])
        if any(cells):
            yield figure.label, cells


def _comparison_rows(comparison: Comparison) -> Iterator[_Row]:
    naive, flash = comparison.naive, comparison.flash
    for figure in (_BLOCKS_PER_SM, _WAVES, _SRAM):
        # What only a launch has: naive attention as a whole has none, and flash is a single launch.
        yield figure.label, [*figure.cells(naive.launches), "", *figure.cells(flash.launches), ""]
    for figure in (*_BYTES, *_TIMES, *_SUMMARY):
        cells = figure.cells([*naive.launches, naive.total, flash.total])
        if any(cells):
            over = ratio(figure.value(naive.total), figure.value(flash.total)) if figure.compared else None
            yield figure.label, [*cells, times(over) if over is not None else ""]
