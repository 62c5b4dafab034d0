"""Exports of NVIDIA's profiler as measurements: `ncu --csv` (a metric a line), `--page raw --csv` (a launch a line).

An export names kernels, grids and metrics; what was computed (problem, tile) must be given. Which metric is which
column stands in memsim.columns. Figures that are printed scaled ("1.09 Gbyte") are known to their last digit only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from memsim._csv_text import Line, read_lines
from memsim._ncu_cells import Cell, read_cell
from memsim.attention import Attention
from memsim.columns import KERNELS, MEASURED, Column
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.measurements import Measurement, Measurements, raise_first
from memsim.programs import build_program
from memsim.programs.naive import CHUNK_COLUMNS, WHOLE_ROW_COLUMNS
from memsim.resources import WARP_THREADS, room_of
from memsim.tile import Tile
from memsim.trace import SECTOR_BYTES
from memsim.units import quoted

KERNEL_NAMES: Mapping[str, str] = {
    "softmax": "softmax",
    "flash": "flash",
    "qk": "qk",
    "pv": "pv",
}
"""What a kernel's name must contain, as a word of its own between underscores, to be taken for a launch; the first
that fits."""

_IDENTITY = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "CC")
_HEADER = re.compile(r'"?ID"?,.*\bKernel Name\b')
_LONG = ("Metric Name", "Metric Unit", "Metric Value")


@dataclass
class ExportedLaunch:
    """One launch in an export. `block` and `grid` are its threads and blocks, None where the export does not say, and
    `architecture` is as "sm_90", empty where it does not."""

    identity: str
    kernel_name: str
    line: int
    block: int | None = None
    grid: int | None = None
    architecture: str = ""
    metrics: dict[str, Cell] = field(default_factory=dict)


def is_export(header: Line) -> bool:
    """Whether a CSV file with this header is an export of ncu."""
    return "Kernel Name" in header.cells


def read_file(path: str | Path) -> tuple[Line, list[Line]]:
    """The header and lines of a CSV file; of an export without ncu's messages, and without what the profiled program
    printed before it."""
    return read_lines(path, lambda line: line.startswith("=="), lambda line: _HEADER.match(line) is not None)


def import_ncu(
    path: str | Path,
    problem: Attention,
    tile: Tile,
    gpu: Gpu,
    *,
    gpu_name: str | None = None,
    lse: bool = False,
    cache_state: str = "",
    grid_order: str = "",
) -> Measurements:
    """The measurements in an export of launches that all had this problem and tile, on this GPU.

    `gpu_name` is what the rows call it. A launch is told by its kernel's name (`KERNEL_NAMES`); its grid and its
    threads, where the export has them, must be those of the problem and tile. A metric that the export lacks leaves its
    column empty. Raises `MemsimError`: a sentence for each fault, with its line.
    """
    header, lines = read_file(path)
    launches = read_export(header, lines, str(path))
    return measurements_from(
        launches, problem, tile, gpu, gpu_name=gpu_name, lse=lse, cache_state=cache_state, grid_order=grid_order
    )


def read_export(header: Line, lines: Sequence[Line], path: str) -> list[ExportedLaunch]:
    """The launches of an export, in its order."""
    names = header.cells
    shown = quoted(path)
    faults = [
        f"line {header.number} of {shown} has the column {quoted(name)} twice: leave it there once."
        for name in dict.fromkeys(names) if name and names.count(name) > 1
    ]  # fmt: skip
    is_long = any(name in names for name in _LONG)
    needed = ("ID", "Kernel Name", *(_LONG if is_long else ()))
    faults += [
        f"line {header.number} of {shown} lacks the column {quoted(name)}: export with ncu --csv, or --page raw --csv."
        for name in needed if name not in names
    ]  # fmt: skip
    # Beneath the columns of its rules ncu leaves the last cells of a line away.
    least = 1 + max((names.index(name) for name in needed if name in names), default=0) if is_long else len(names)
    faults += [
        f"line {line.number} of {shown} has {len(line.cells)} cells, but the header has {len(names)}."
        for line in lines if not least <= len(line.cells) <= len(names)
    ]  # fmt: skip
    raise_first(faults)
    launches = _long(names, lines) if is_long else _wide(names, lines)
    if not launches:
        raise MemsimError(f"{shown} has no launch in it: profile one, and export with ncu --csv.")
    return launches


def measurements_from(
    launches: Iterable[ExportedLaunch], problem: Attention, tile: Tile, gpu: Gpu, *, gpu_name: str | None = None,
    lse: bool = False, cache_state: str = "", grid_order: str = "", kernels: Sequence[str] = KERNELS,
) -> Measurements:  # fmt: skip
    """Launches of an export as measurements of this problem and tile; see `import_ncu`. Of `kernels` only."""
    rows, others = [], []
    faults: list[str] = []
    blocks: dict[str, int] = {}
    launches = list(launches)
    for launch in launches:
        kernel = kernel_of(launch.kernel_name)
        if kernel is None or kernel not in kernels:
            others.append(launch.kernel_name)
            continue
        try:
            values, rounded = _values(launch)
            algorithm = "flash" if kernel == "flash" else "naive"
            if algorithm not in blocks:
                program = build_program(algorithm, problem, tile, room_of(gpu), lse=lse)
                blocks |= {algorithm: 0} | {spec.name: prod(size for _, size in spec.axes) for spec in program.launches}
            _check_shape(launch, kernel, tile, blocks[kernel], gpu)
            block_m, block_n = (1, softmax_step(problem)) if kernel == "softmax" else (tile.block_m, tile.block_n)
            order = tile.grid_order if kernel == "flash" else grid_order
            rows.append(
                Measurement(
                    kernel, gpu_name or gpu.name, problem, lse, block_m, block_n, tile.num_warps, tile.num_stages,
                    tile.load_path, order, cache_state, values, line=launch.line, rounded=rounded,
                )
            )  # fmt: skip
        except MemsimError as error:
            faults += error.faults
    if not rows and not faults:
        faults.append(
            f"none of the kernels is one of those asked for ({_named(others)}): a name must have one of "
            f"{', '.join(kernels)} in it."
        )
    raise_first(list(dict.fromkeys(faults)))
    return Measurements(tuple(rows), (), tuple(dict.fromkeys(others)))


def kernel_of(kernel_name: str) -> str | None:
    """The launch that a kernel of this name makes; None if it is none of ours."""
    words = re.split(r"[^a-z0-9]+", kernel_name.partition("(")[0].lower())
    return next((kernel for word, kernel in KERNEL_NAMES.items() if word in words), None)


def _named(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(map(quoted, unique[:3])) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")


def softmax_step(problem: Attention) -> int:
    """The columns that a block of our softmax takes at once, as a row's block_n has them."""
    return 0 if 1 << max(0, problem.seq_len_k - 1).bit_length() <= WHOLE_ROW_COLUMNS else CHUNK_COLUMNS


def _long(names: Sequence[str], lines: Sequence[Line]) -> list[ExportedLaunch]:
    """One metric a line. A line without one holds the result of one of ncu's rules."""
    launches: dict[str, ExportedLaunch] = {}
    faults = []
    for line in lines:
        cells = dict(zip(names, (cell.strip() for cell in line.cells), strict=False))
        launch = _launch_at(cells, line.number)
        launch = launches.setdefault(launch.identity, launch)
        metric, cell = cells["Metric Name"], Cell(cells["Metric Value"], cells["Metric Unit"], line.number)
        before = launch.metrics.get(metric)
        if before is not None and (before.text, before.unit) != (cell.text, cell.unit):
            faults.append(
                f"line {line.number}: {quoted(metric)} of {quoted(launch.kernel_name)} is {quoted(cell.text)}, but "
                f"{quoted(before.text)} on line {before.line}: keep one of them."
            )
        elif metric:
            launch.metrics[metric] = cell
    raise_first(faults)
    return list(launches.values())


def _wide(names: Sequence[str], lines: Sequence[Line]) -> list[ExportedLaunch]:
    """One launch a line, beneath the header a line of units."""
    units = dict.fromkeys(names, "")
    if lines and not dict(zip(names, lines[0].cells, strict=True))["ID"].strip():
        units = dict(zip(names, (cell.strip() for cell in lines[0].cells), strict=True))
        lines = lines[1:]
    launches = []
    for line in lines:
        cells = dict(zip(names, (cell.strip() for cell in line.cells), strict=True))
        launch = _launch_at(cells, line.number)
        launch.metrics = {
            name: Cell(text, units[name], line.number) for name, text in cells.items() if text and name not in _IDENTITY
        }
        launches.append(launch)
    return launches


def _launch_at(cells: Mapping[str, str], line: int) -> ExportedLaunch:
    identity = f"{cells.get('Process ID', '')}/{cells['ID']}"
    block, grid = (_size(cells.get(name, "")) for name in ("Block Size", "Grid Size"))
    capability = cells.get("CC", "")
    architecture = f"sm_{capability.replace('.', '')}" if re.fullmatch(r"[0-9]{1,3}\.[0-9]", capability) else ""
    return ExportedLaunch(identity, cells["Kernel Name"], line, block, grid, architecture)


def _size(text: str) -> int | None:
    """The product of "(128, 1, 1)"; None if that is not what it is."""
    numbers = re.findall(r"[0-9]{1,12}", text)
    return prod(map(int, numbers)) if numbers else None


def _check_shape(launch: ExportedLaunch, kernel: str, tile: Tile, blocks: int, gpu: Gpu) -> None:
    faults = []
    if launch.architecture and gpu.architecture and launch.architecture != gpu.architecture:
        faults.append(
            f"line {launch.line}: {kernel} ran on {launch.architecture}, but {gpu.name} is {gpu.architecture}: "
            "give the GPU that it ran on."
        )
    # Persistent, there are as many as there was room for.
    persistent = kernel == "flash" and tile.grid_order == "persistent"
    if launch.grid is not None and (launch.grid > blocks if persistent else launch.grid != blocks):
        faults.append(
            f"line {launch.line}: {kernel} ran {launch.grid} blocks, but with this problem and tile it has {blocks}"
            f"{' at most' if persistent else ''}: give those that it ran with."
        )
    threads = tile.num_warps * WARP_THREADS
    # Warp specialisation adds warps of its own.
    if launch.block is not None and launch.block != threads and tile.load_path != "descriptor-ws":
        faults.append(
            f"line {launch.line}: {kernel} ran {launch.block} threads a block, but num-warps is {tile.num_warps}, "
            f"{threads} threads: give what it ran with."
        )
    if faults:
        raise MemsimError(faults)


def _values(launch: ExportedLaunch) -> tuple[dict[str, int | float], dict[str, float]]:
    """What was measured, by column, and by how much a figure may be off for its few digits."""
    values: dict[str, int | float] = {}
    rounded: dict[str, float] = {}
    faults: list[str] = []
    for name, column in MEASURED.items():
        try:
            found = [
                read_cell(launch.metrics[metric], f"{metric} of {quoted(launch.kernel_name)}", column)
                for metric in _metrics(launch, column)
            ]
        except MemsimError as error:
            faults += error.faults
            continue
        if found:
            figures = [figure for figure, _ in found]
            scale = SECTOR_BYTES if column.sectors else 1
            values[name] = scale * (column.combine(figures) if column.combine else figures[0])
            if by := max(by for _, by in found):
                rounded[name] = scale * by
    if not values and not faults:
        faults.append(
            f"line {launch.line}: {quoted(launch.kernel_name)} has none of the metrics that are columns of a "
            "measurement: memsim validate --columns lists them."
        )
    if faults:
        raise MemsimError(faults)
    return values, rounded


def _metrics(launch: ExportedLaunch, column: Column) -> list[str]:
    """The metrics of an export that a column is made of: none unless it has all that the column needs."""
    there = [name for name in column.metrics if name in launch.metrics]
    if not column.combine:
        return there[:1]
    if len(there) < len(column.metrics):
        return []
    return there + [name for name in column.optional_metrics if name in launch.metrics]
