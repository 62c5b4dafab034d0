"""What a sweep found: its rows, and they as JSON (`memsim.sweep/1`), as CSV and as the cells of any other table."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TextIO

from memsim._option_list import PROBLEM, TILE
from memsim._options import settings_of
from memsim.gpu import Gpu
from memsim.grid import ROWS_FAST
from memsim.tile import Tile

SWEEP_SCHEMA = "memsim.sweep/1"


@dataclass(frozen=True)
class SweepRow:
    """One point. `status` is "ok", or why there are no figures: "does-not-fit" (the tile), "out-of-memory" (HBM) or
    "refused" (a value that cannot be, or values that do not go together), with the sentence in `reason`.

    `block_m` to `grid_order` are the tile that was taken. Of an algorithm with several launches `blocks_per_sm` is
    the smallest and `sram_bytes` (of a block) the largest; the rest are its totals. Figures of time are None when only
    counted, and so is what an L2 does. `notes` are those of the result.
    """

    point: dict[str, str]
    """The value of each axis, as text."""
    status: str
    """"ok", "does-not-fit", "out-of-memory" or "refused"."""
    reason: str = ""
    """Why there are no figures, in a sentence."""
    block_m: int | None = None
    """Rows of Q of a block."""
    block_n: int | None = None
    """Rows of K and V of one step."""
    num_warps: int | None = None
    """Warps of a block."""
    num_stages: int | None = None
    """Stages of the K/V pipeline."""
    load_path: str | None = None
    """How tiles are asked for."""
    grid_order: str | None = None
    """The order of the blocks."""
    blocks_per_sm: int | None = None
    """Blocks that an SM holds; of several launches the smallest."""
    sram_bytes: int | None = None
    """SRAM of a block; of several launches the largest."""
    sram_fill_bytes: int | None = None
    """Bytes that arrive in the SMs."""
    sram_store_bytes: int | None = None
    """Bytes that leave the SMs."""
    hbm_bytes: int | None = None
    """Bytes read from and written to HBM."""
    l2_hit_rate: float | None = None
    """Share of what the L2 was asked for which it had; None where there was none."""
    flops: int | None = None
    """Floating-point operations, as executed."""
    time_s: float | None = None
    """Seconds, with what starting the launches takes; None when only counted."""
    bound: str | None = None
    """The resource that held it back."""
    waiting_for_memory: float | None = None
    """Share of the used SMs' time in which no block could go on for want of data."""
    over_compulsory: float | None = None
    """HBM bytes over the compulsory ones."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the row."""

    @property
    def tile(self) -> Tile | None:
        """The tile that was taken, if the point has figures."""
        if self.block_m is None or self.block_n is None or self.num_warps is None or self.num_stages is None:
            return None
        named = (self.load_path or "pointer", self.grid_order or ROWS_FAST)
        return Tile(self.block_m, self.block_n, self.num_warps, self.num_stages, *named)


COLUMNS = tuple(column.name for column in fields(SweepRow))[1:]
"""The columns of a sweep's CSV after those of its axes and before those of what its points share."""


COLUMN_TYPES: Mapping[str, type] = {
    column.name: int if "int" in str(column.type) else float if "float" in str(column.type) else str
    for column in fields(SweepRow)[1:]
}
"""What each of `COLUMNS` holds where it is not empty; notes are one text."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Provenance:
    """What made rows: memsim's version, a digest of its sources and tables, and one of each GPU's numbers, by its name
    as given. Rows of two simulators or two GPUs do not go together."""

    memsim_version: str = ""
    simulator_digest: str = ""
    gpu_digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepTable:
    """The rows of a sweep, in the order of its axes' product, the last axis fastest.

    `options` are the values that all points share, those that were not given too, but for what depends on the GPU or
    on an axis. `points` is how many rows a finished sweep has, `gpu` the machine before the axes change it, if all
    points share one. `rows` may lie in a file, and are then read each time that they are asked for.
    """

    options: dict[str, str]
    axes: dict[str, tuple[str, ...]]
    points: int
    rows: Sequence[SweepRow]
    counted_only: bool = False
    gpu: Gpu | None = field(default=None, repr=False)
    provenance: Provenance = field(default=Provenance(), repr=False)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What holds for every point that has figures; what holds for some only is in their rows."""
        shared: dict[str, None] | None = None
        for row in self.rows:
            if row.status == "ok":
                shared = dict.fromkeys(note for note in (row.notes if shared is None else shared) if note in row.notes)
        return tuple(shared or ())

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON-ready data, with its schema first."""
        axes = [{"name": name, "values": list(values)} for name, values in self.axes.items()]
        notes = self.notes
        return {
            "schema": SWEEP_SCHEMA,
            "options": self.options,
            "counted_only": self.counted_only,
            "memsim_version": self.provenance.memsim_version,
            "simulator_digest": self.provenance.simulator_digest,
            "gpu_digests": dict(self.provenance.gpu_digests),
            "axes": axes,
            "points": self.points,
            "notes": list(notes),
            "rows": [
                {"point": row.point}
                | {name: getattr(row, name) for name in COLUMNS}
                | {"notes": [note for note in row.notes if note not in notes]}
                for row in self.rows
            ],
        }

    def write_csv(self, file: TextIO) -> None:
        """The table as CSV: `columns` and `cells`, what a row does not have left empty."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns())
        writer.writerows(self.cells())

    def columns(self) -> dict[str, type]:
        """The columns of a table of the rows and what they hold: the axes, then `COLUMNS`, then the problem, the GPU
        and what else was given, then what made the rows. Sizes of the problem are numbers, however they were written.
        """
        axes = dict.fromkeys(self.axes, str)
        numbers = [name for name, value in settings_of({}).items() if type(value) is int]
        shared = {name: int if name in numbers else str for name in self._shared()}
        return {**axes, **COLUMN_TYPES, **shared, **_MADE}

    def cells(self) -> Iterator[tuple[Cell, ...]]:
        """The rows of that table, each value as its column says, or None."""
        shared = self._shared()
        provenance = self.provenance
        of_problem = [name for name in self.axes if name in PROBLEM]
        known: dict[tuple[str, ...], dict[str, str | int]] = {}
        for row in self.rows:
            options = self.options | row.point
            problem = tuple(row.point[name] for name in of_problem)
            if problem not in known:
                found = settings_of(options).items()
                known[problem] = {name: value if type(value) is int else as_text(value) for name, value in found}
            given = options | known[problem]
            figures = [" ".join(row.notes) if name == "notes" else getattr(row, name) for name in COLUMNS]
            digest = provenance.gpu_digests.get(options.get("gpu", ""), "")
            yield (
                *row.point.values(), *figures, *(given.get(name) for name in shared),
                SWEEP_SCHEMA, provenance.memsim_version, provenance.simulator_digest, digest,
            )  # fmt: skip

    def _shared(self) -> list[str]:
        """The columns of the problem, the GPU and what else was given that are no axes."""
        shared = [name for name in ("algorithm", "gpu", *settings_of({})) if name.replace("_", "-") not in self.axes]
        return shared + [name for name in self.options if name not in (*shared, *PROBLEM, *TILE) or name == "scale"]


_MADE = dict.fromkeys(("schema", "memsim_version", "simulator_digest", "gpu_digest"), str)


def as_text(value: str | int | float) -> str:
    """A value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
