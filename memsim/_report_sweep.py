"""A sweep as text: what its points share, its rows, and why points have no figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult

from memsim._option_list import FLASH_ONLY, PROBLEM, TILE
from memsim._report_format import NONE, Figures, Paragraph, kib, number, percent, plural, seconds, size
from memsim._report_heading import COUNTED, machine_facts, machine_line, problem_facts, spaced, tile_origin, titled
from memsim._sweep_axes import options_set
from memsim._sweep_table import SweepRow, SweepTable
from memsim.gpu import SHORT_OPTIONS
from memsim.grid import ROWS_FAST
from memsim.tile import Tile

MOST_SWEEP_ROWS = 200
"""Rows of a sweep that are shown as text."""
_MOST_REASONS = 5
_MOST_POINTS_NAMED = 3


def sweep_report(table: SweepTable) -> RenderableType:
    """What all points share, the points and their main figures, as many as the width takes, and why some have none."""
    reasons = list(dict.fromkeys(row.reason for row in table.rows if row.reason))
    ending = reasons[:_MOST_REASONS]
    if len(reasons) > _MOST_REASONS:
        ending.append(f"{plural(len(reasons) - _MOST_REASONS, 'more reason')} in --csv and --json.")
    if len(table.rows) > MOST_SWEEP_ROWS:
        ending.append(f"These are the first {MOST_SWEEP_ROWS} of {len(table.rows):,} rows; --csv and --json have all.")
    if table.counted_only:
        ending.append(COUNTED)
    ending += [*table.notes, *_notes_of_some(table)]
    return Group(*_heading(table), "", _SweepFigures(table), *spaced(ending))


def _heading(table: SweepTable) -> Iterator[RenderableType]:
    shared = table.options
    problem = {name.replace("-", "_"): _value(shared[name]) for name in PROBLEM if name in shared}
    facts = problem_facts(problem, lse=shared.get("lse") == "true", inputs=shared.get("inputs", ""))
    yield titled(" ".join(("Sweep", *(["of", shared["algorithm"]] if "algorithm" in shared else []))), facts)
    changed = {name: text for name, text in shared.items() if name in SHORT_OPTIONS or "." in name}
    if table.gpu is not None:
        no_l2 = table.gpu.l2 is not None and table.counted_only and "l2" not in table.axes
        warm = shared.get("l2-state") == "warm"
        machine = machine_facts(table.gpu, table.axes, warm=warm, counted=table.counted_only)
        yield Paragraph(machine_line(shared.get("gpu", table.gpu.name), changed, machine, without_l2=no_l2))
    elif changed:
        yield Paragraph(machine_line("every GPU", changed, (), without_l2=False))
    tiles = _tiles(table)
    asked, varied = ([name for name in TILE if name in names] for names in (shared, options_set(table.axes)))
    origin = tile_origin(shared.get("algorithm"), asked, varied)
    if len(tiles) == 1:
        yield Paragraph(f"tile {tiles.pop()} ({origin})")
    elif tiles:
        yield Paragraph(f"tile (block-m × block-n, warps, stages): {origin}")


def _short_tile(tile: Tile | None) -> str:
    if tile is None:
        return NONE
    path = "" if tile.load_path == "pointer" else f", {tile.load_path}"
    order = "" if tile.grid_order == ROWS_FAST else f", {tile.grid_order}"
    return f"{tile.block_m}×{tile.block_n}, {tile.num_warps}, {tile.num_stages}{path}{order}"


def _value(text: str) -> int | bool | str:
    return int(text) if text.isdecimal() else text == "true" if text in ("true", "false") else text


def _tiles(table: SweepTable) -> set[Tile]:
    return {row.tile for row in table.rows if row.tile is not None}


def _notes_of_some(table: SweepTable) -> Iterator[str]:
    """Notes that hold for some points only, with these points."""
    shared = table.notes
    of_points: dict[str, list[str]] = {}
    for row in table.rows:
        for note in row.notes:
            if note not in shared:
                of_points.setdefault(note, []).append(", ".join(f"{axis} {text}" for axis, text in row.point.items()))
    for note, points in list(of_points.items())[:_MOST_REASONS]:
        more = len(points) - _MOST_POINTS_NAMED
        named = [*points[:_MOST_POINTS_NAMED], *([f"{plural(more, 'more point')} (see --csv)"] if more > 0 else [])]
        yield f"At {'; '.join(named)}: {note}"
    if len(of_points) > _MOST_REASONS:
        yield f"{plural(len(of_points) - _MOST_REASONS, 'more note')} in --csv and --json."


class _SweepFigures:
    """The table of a sweep: the axes, and of the columns the first that fit the width; it names the others."""

    # The most wanted first; shown in the order of _ORDER.
    _COLUMNS: ClassVar[Mapping[str, Callable[[SweepRow], str]]] = {
        "status": lambda row: row.status,
        "HBM": lambda row: size(row.hbm_bytes),
        "time": lambda row: seconds(row.time_s),
        "tile": lambda row: _short_tile(row.tile),
        "L2 hits": lambda row: percent(row.l2_hit_rate),
        "waits": lambda row: percent(row.waiting_for_memory),
        "× compulsory": lambda row: number(row.over_compulsory),
        "bound": lambda row: row.bound or NONE,
        "blocks/SM": lambda row: number(row.blocks_per_sm),
        "SRAM/block": lambda row: NONE if row.sram_bytes is None else kib(row.sram_bytes),
    }
    _ORDER = ("status", "tile", "blocks/SM", "SRAM/block", "L2 hits", "HBM", "time", "bound", "waits", "× compulsory")

    def __init__(self, table: SweepTable) -> None:
        self._axes = list(table.axes)
        self._rows = table.rows[:MOST_SWEEP_ROWS]
        # It stands in the heading where it is the same everywhere, and in the axes where they vary all of it.
        self._tile_is_elsewhere = len(_tiles(table)) == 1 or {*TILE} - {*FLASH_ONLY} <= options_set(table.axes)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = {name: [show(row) for row in self._rows] for name, show in self._COLUMNS.items()}
        columns = {name: cells for name, cells in columns.items() if set(cells) - {NONE, "ok"}}
        if self._tile_is_elsewhere and "tile" in columns:
            columns["tile"] = columns.pop("tile")
        left_out = []
        while len(columns) > 2 and self._table(columns).width > options.max_width:
            left_out.append(columns.popitem()[0])
        table = self._table(columns)
        yield from console.render(table, options.update(max_width=max(options.max_width, table.width)))
        if left_out:
            names = ", ".join(name for name in self._ORDER if name in left_out)
            yield Paragraph(f"Left out at this width: {names}; --csv and --json have all columns.")

    def _table(self, columns: Mapping[str, list[str]]) -> Figures:
        shown = {axis: [row.point[axis] for row in self._rows] for axis in self._axes}
        shown |= {name: columns[name] for name in self._ORDER if name in columns}
        first, *others = shown
        rows = zip(shown[first], zip(*(shown[name] for name in others), strict=True), strict=True)
        return Figures(others, rows, first)
