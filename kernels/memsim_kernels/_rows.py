"""The launches of a point as rows of a measurement file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from memsim.columns import KEYS
from memsim.errors import MemsimError
from memsim.measurements import Measurement, read_measurements
from memsim.ncu import softmax_step
from memsim.units import quoted
from memsim_kernels._grids import Point


def rows_of_point(point: Point, gpu: str) -> tuple[Measurement, ...]:
    """The launches of a point as rows without figures."""
    tile, problem = point.tile, point.problem
    naive = ("qk", "softmax", "pv") if problem.seq_len_k else ("softmax", "pv")
    names = ("flash",) if point.algorithm == "flash" else naive
    shapes = {"softmax": (1, softmax_step(problem))}
    return tuple(
        Measurement(
            name, gpu, problem, point.lse, *shapes.get(name, (tile.block_m, tile.block_n)), tile.num_warps,
            tile.num_stages, tile.load_path, "keys-fast" if name == "qk" else tile.grid_order, point.cache_state,
        )
        for name in names
    )  # fmt: skip


def identity(row: Measurement) -> tuple[str, ...]:
    """What a row is about, as its file has it."""
    cells = row.cells()
    return tuple(cells[name] for name in KEYS)


def add_figures(rows: dict[tuple[str, ...], Measurement], found: Iterable[Measurement]) -> None:
    """Add rows to those of a file; one that is there already keeps its figures and gains the new ones."""
    for row in found:
        key = identity(row)
        old = rows.get(key)
        values = {**old.values, **row.values} if old is not None else row.values
        rows[key] = replace(row, values=values, line=0)


def rows_to_keep(path: Path) -> dict[tuple[str, ...], Measurement]:
    """The rows of a file that is to be written again, by what they are about. Raises `MemsimError` for what would be
    lost: columns that are not in memsim.columns, and a row that is there twice."""
    found = read_measurements(path)
    faults = [
        f"{quoted(path)} has the column {quoted(name)}, which is not one of a measurement: take it out, or give "
        "another --out." for name in found.unknown_columns
    ]  # fmt: skip
    rows: dict[tuple[str, ...], Measurement] = {}
    for row in found.rows:
        if identity(row) in rows:
            faults.append(f"{row.place} of {quoted(path)} is there twice: keep one of them.")
        rows[identity(row)] = replace(row, line=0)
    if faults:
        raise MemsimError(faults)
    return rows
