"""The launches of a point as rows of a measurement file."""

from __future__ import annotations

from memsim.columns import KEYS
from memsim.measurements import Measurement
from memsim.programs.naive import CHUNK_COLUMNS, WHOLE_ROW_COLUMNS
from memsim_kernels._grids import Point

CACHE_STATE = "cold"


def rows_of_point(point: Point, gpu: str) -> tuple[Measurement, ...]:
    """The launches of a point as rows without figures."""
    tile, problem = point.tile, point.problem
    naive = ("qk", "softmax", "pv") if problem.seq_len_k else ("softmax", "pv")
    names = ("flash",) if point.algorithm == "flash" else naive
    whole = 1 << max(0, problem.seq_len_k - 1).bit_length() <= WHOLE_ROW_COLUMNS
    shapes = {"softmax": (1, 0 if whole else CHUNK_COLUMNS)}
    return tuple(
        Measurement(
            name, gpu, problem, point.lse, *shapes.get(name, (tile.block_m, tile.block_n)), tile.num_warps,
            tile.num_stages, tile.load_path, "keys-fast" if name == "qk" else "rows-fast", CACHE_STATE,
        )
        for name in names
    )  # fmt: skip


def identity(row: Measurement) -> tuple[str, ...]:
    """What a row is about, as its file has it."""
    cells = row.cells()
    return tuple(cells[name] for name in KEYS)
