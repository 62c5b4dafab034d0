"""Measured kernels as rows of a CSV file: read with every fault named, written so that they read back the same.

The columns are those of memsim.columns. A cell that is empty, or a column that is absent, was not measured.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memsim._csv_text import Line, read_lines, whole_or_float
from memsim._gpu_files import ALIASES
from memsim.attention import Attention
from memsim.columns import COLUMNS, ERROR, KERNELS, KEYS, MEASURED
from memsim.errors import MemsimError
from memsim.gpu import Gpu, gpu_names
from memsim.grid import ORDERS, ROWS_FAST
from memsim.programs.naive import CHUNK_COLUMNS
from memsim.tile import LOAD_PATHS, Tile
from memsim.units import quoted

MOST_FAULTS = 20
"""Faults of a file that are named; the rest are counted."""

_PROBLEM = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "dtype", "causal")
_TILE = ("block_m", "block_n", "num_warps", "num_stages", "load_path")


@dataclass(frozen=True)
class Measurement:
    """One measured launch of one kernel.

    `values` holds what was measured, by the names of `memsim.columns.MEASURED`. `block_m` and `block_n` are the tile's
    for flash, qk and pv. A block of softmax takes `block_m` = 1 row, in steps of `block_n` columns: 0 is the whole row
    at once, `CHUNK_COLUMNS` the two passes that naive attention takes beyond 32,768 columns. `rounded` says how far
    off a figure may be that was printed with few digits. `error` says why a launch failed; then nothing was measured.
    `source` names the file where rows of several are together.
    """

    kernel: str
    gpu: str
    problem: Attention
    lse: bool
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    load_path: str = "pointer"
    grid_order: str = ""
    cache_state: str = ""
    values: Mapping[str, int | float] = field(default_factory=dict)
    error: str = ""
    line: int = 0
    rounded: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        faults = []
        if self.kernel not in KERNELS:
            faults.append(f"kernel is {quoted(self.kernel)}; it must be one of {', '.join(KERNELS)}.")
        elif self.kernel == "softmax" and self.block_n not in (0, CHUNK_COLUMNS):
            faults.append(
                f"block_n of softmax is {self.block_n}; give 0 where a row is taken whole, or {CHUNK_COLUMNS} where it "
                "is taken in two passes of such steps."
            )
        faults += [f"{name} is no measured column." for name in self.values if name not in MEASURED]
        if faults:
            raise MemsimError(faults)
        _ = self.tile

    @property
    def tile(self) -> Tile:
        """The tile of the launch; of softmax only its warps and stages mean anything."""
        rows, columns = (16, 16) if self.kernel == "softmax" else (self.block_m, self.block_n)
        order = (self.grid_order or ROWS_FAST) if self.kernel == "flash" else ROWS_FAST
        return Tile(rows, columns, self.num_warps, self.num_stages, self.load_path, order)

    @property
    def whole_rows(self) -> bool:
        """A block of softmax takes its row at once."""
        return self.block_n == 0

    @property
    def name(self) -> str:
        """What tells it apart from others, short: "flash 16×4096×128 causal, 128×64, 8 warps, 3 stages, cold"."""
        p = self.problem
        batch = f"{p.batch}×" if p.batch != 1 else ""
        heads = f"{p.heads}/{p.kv_head_count}" if p.kv_head_count != p.heads else f"{p.heads}"
        lengths = f"{p.seq_len_q}" if p.seq_len_q == p.seq_len_k else f"{p.seq_len_q}/{p.seq_len_k}"
        facts = [f"{self.kernel} {batch}{heads}×{lengths}×{p.head_dim}"]
        facts[0] += f"{' causal' if p.causal else ''}{' with LSE' if self.lse else ''}"
        facts[0] += "" if p.dtype == "float16" else f" {p.dtype}"
        if self.kernel != "softmax":
            facts.append(str(self.tile))
        elif not self.whole_rows:
            facts.append("two passes")
        return ", ".join((*facts, *([self.cache_state] if self.cache_state else [])))

    @property
    def place(self) -> str:
        """Where it is, for a sentence: "line 12 (flash 16×4096×128, …)", "line 12 of a.csv (…)"."""
        of = f" of {self.source}" if self.source else ""
        return f"line {self.line}{of} ({self.name})" if self.line else self.name

    def cells(self) -> dict[str, str]:
        """The row as text, by column; a figure that was not measured is empty."""
        fields = {name: getattr(self.problem, name) for name in _PROBLEM} | {
            name: getattr(self, name) for name in _TILE
        }
        fields |= {name: getattr(self, name) for name in ("kernel", "gpu", "lse", "grid_order", "cache_state", "error")}
        values = {name: self.values.get(name) for name in MEASURED}
        return {name: _cell(value) for name, value in (fields | values).items()}


@dataclass(frozen=True)
class Measurements:
    """The rows of a file, in its order; its columns that are not in memsim.columns; and of an export the names of its
    kernels that were not taken."""

    rows: tuple[Measurement, ...]
    unknown_columns: tuple[str, ...] = ()
    other_kernels: tuple[str, ...] = ()


def read_measurements(path: str | Path, gpu: Gpu | None = None) -> Measurements:
    """The measurements in a CSV file. With `gpu`, the file's column of that name says nothing and may be absent.

    Raises `MemsimError`: a file that cannot be read, and a sentence for each fault in it, with line and column.
    """
    header, lines = read_lines(path)
    return measurements_of(header, lines, str(path), gpu)


def measurements_of(header: Line, lines: Sequence[Line], path: str, gpu: Gpu | None = None) -> Measurements:
    """The measurements in lines that are read already."""
    names = header.cells
    needed = [name for name, column in KEYS.items() if column.needed and not (name == "gpu" and gpu is not None)]
    faults = [
        f"line {header.number} of {quoted(path)} has the column {quoted(name)} twice: leave it there once."
        for name in dict.fromkeys(names) if name and names.count(name) > 1
    ]  # fmt: skip
    if missing := [name for name in needed if name not in names]:
        faults.append(
            f"line {header.number} of {quoted(path)} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}: "
            "a row must say what was measured."
        )
    if faults:
        raise MemsimError(faults)
    rows = []
    for line in lines:
        if len(line.cells) != len(names):
            faults.append(f"line {line.number} has {len(line.cells)} cells, but the header has {len(names)}.")
            continue
        cells = dict(zip(names, (cell.strip() for cell in line.cells), strict=True))
        try:
            rows.append(_row(cells, line.number, gpu))
        except MemsimError as error:
            faults += [f"line {line.number}: {fault}" for fault in error.faults]
    if not lines:
        faults.append(f"{quoted(path)} has a header and no rows: there is nothing to compare.")
    raise_first(faults)
    unknown = tuple(name for name in names if name and name not in COLUMNS)
    return Measurements(tuple(rows), unknown)


def raise_first(faults: Sequence[str]) -> None:
    """Raise faults, if there are any: the first of them, and how many more there are."""
    if len(faults) > MOST_FAULTS:
        raise MemsimError([*faults[:MOST_FAULTS], f"there are {len(faults) - MOST_FAULTS} more faults after these."])
    if faults:
        raise MemsimError(faults)


def write_measurements(path: str | Path, rows: Iterable[Measurement]) -> None:
    """Write rows as a CSV file, which takes the place of an older one only when it is whole.

    Raises `MemsimError` if it cannot be written, or for a figure that was printed with too few digits to be kept.
    """
    text = measurements_csv(rows)
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        Path(temporary).write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        reason = (error.strerror or "unknown error").lower()
        raise MemsimError(f"{quoted(path)} cannot be written ({reason}): give the path of a writable file.") from None


def measurements_csv(rows: Iterable[Measurement]) -> str:
    """Rows as the text of a CSV file: the columns of memsim.columns, the rarer ones where a row has them."""
    rows = list(rows)
    raise_first([
        f"{row.name}: {name} is rounded by up to {by:g}: export it with ncu's --print-units base."
        for row in rows for name, by in row.rounded.items()
    ])  # fmt: skip
    table = [row.cells() for row in rows]
    names = [n for n, column in COLUMNS.items() if column.always_written or any(cells[n] for cells in table)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _row(cells: Mapping[str, str], number: int, gpu: Gpu | None) -> Measurement:
    faults: list[str] = []
    keys: dict[str, str | int | bool] = {}
    for name, column in KEYS.items():
        text = cells.get(name, "")
        if not text and column.needed and not (name == "gpu" and gpu is not None):
            faults.append(f"{name} is empty: a row must say what was measured.")
        elif column.kind == "text":
            keys[name] = text
        elif text:
            value = _read(faults, name, text, column.kind)
            if value is not None:
                keys[name] = bool(value) if column.kind == "flag" else int(value)
    values = {}
    for name, column in MEASURED.items():
        if cells.get(name):
            value = _read(faults, name, cells[name], column.kind)
            if value is not None:
                values[name] = value
    given = str(keys.get("gpu", ""))
    if gpu is None and given and given not in (*gpu_names(), *ALIASES):
        faults.append(
            f"gpu is {quoted(given)}, which does not come with memsim: give one that memsim gpus lists, or --gpu FILE."
        )
    if not faults and keys["load_path"] not in LOAD_PATHS:
        faults.append(f"load_path is {quoted(keys['load_path'])}; it must be one of {', '.join(LOAD_PATHS)}.")
    order = str(keys.get("grid_order", ""))
    if not faults and keys["kernel"] == "flash" and order and order not in ORDERS:
        faults.append(f"grid_order is {quoted(order)}; it must be one of {', '.join(ORDERS)}.")
    if faults:
        raise MemsimError(faults)
    problem = Attention(**{name: keys.pop(name) for name in _PROBLEM})  # type: ignore[arg-type]
    return Measurement(problem=problem, values=values, error=cells.get(ERROR.name, ""), line=number, **keys)  # type: ignore[arg-type]


# No kernel runs with none of them.
_AT_LEAST_ONE = ("registers", "blocks_per_sm")


def _read(faults: list[str], name: str, text: str, kind: str) -> int | float | None:
    """The number in a cell; None and a fault noted if there is none."""
    if kind == "flag":
        if text in ("0", "1"):
            return int(text)
        faults.append(f"{name} is {quoted(text)}; give 0 or 1.")
        return None
    value = whole_or_float(text)
    if value is None or (kind == "count" and not isinstance(value, int)):
        right = "a whole number" if kind == "count" else "a number"
        faults.append(f"{name} is {quoted(text)}; give {right} from 0 to 2^62, without a unit.")
        return None
    if name in _AT_LEAST_ONE and value < 1:
        faults.append(f"{name} is 0; give a whole number from 1 to 2^62, or leave it empty.")
        return None
    return value if kind == "count" else float(value)
