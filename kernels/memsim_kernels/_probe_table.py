"""The table of compiled kernels that ships with memsim: which kernels are in it, and its columns.

For each architecture the tiles that people try, as far as their SRAM fits one, at the length 1,024 and, for naive
attention on fewer tiles, 1,000, which is no multiple of 16; 8 heads, one sequence. A tile of a machine file is in it
for every head_dim of the table. On sm_90 there is also what `memsim measure` runs (`memsim_kernels._grids`).
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from memsim._compiled import KEY_COLUMNS, Key, key_of
from memsim.attention import Attention
from memsim.gpu import gpu_names, load_gpu
from memsim.tile import SPECIALIZED_SEEN_RIGHT, Tile
from memsim_kernels._grids import GRIDS, NAIVE_TILES
from memsim_kernels._plan import plan_calls
from memsim_kernels._sass import CLASSES
from memsim_kernels.calls import Call
from memsim_kernels.costs import padded_width
from memsim_kernels.probe import Compiled
from memsim_kernels.tiles import measured_tiles

COLUMNS = (
    *KEY_COLUMNS, "registers", "sram_bytes", "stack_bytes", "block_warps", "loops",
    *(f"main_{name}" for name in CLASSES), "triton",
)  # fmt: skip
"""The key, the resources, how many loops with arithmetic there are, the instructions of the main one by class, and
the version of Triton that compiled it."""

HEADS = 8
EVEN, ODD = 1024, 1000
_MEASURED_HEAD_DIMS = (64, 96, 128)
_NAIVE_LENGTHS = (*(2**exponent for exponent in range(7, 17)), ODD, 1536, 3000)
_SRAM_LIMITS = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448}
_SMALL = ((16, 16), (16, 32), (16, 64), (32, 32), (32, 64))
_MEDIUM = ((64, 32), (64, 64), (64, 128))
_LARGE = ((128, 32), (128, 64), (128, 128))
_HUGE = ((256, 32), (256, 64), (256, 128))


@dataclass(frozen=True)
class Entry:
    """One kernel of the table: its key, and what to compile for what."""

    key: Key
    call: Call
    architecture: str


def entries() -> list[Entry]:
    """Every kernel of the table, each once, in the table's order."""
    found: dict[Key, Entry] = {}
    for architecture, algorithm, problem, tile, lse in _launches():
        for call in plan_calls(algorithm, problem, tile, lse=lse):
            key = key_of(call.name, architecture, problem, tile, lse)
            found.setdefault(key, Entry(key, call, architecture))
    return sorted(found.values(), key=lambda entry: [(len(part), part) for part in entry.key])


def write_table(file: IO[str], rows: Iterable[tuple[Key, Compiled]]) -> None:
    """Write the table as CSV."""
    from triton import __version__

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, kernel in rows:
        mix = kernel.main_mix
        writer.writerow((
            *key, kernel.registers, kernel.sram_bytes, kernel.stack_bytes, kernel.block_warps, len(kernel.math_loops),
            *(mix[name] for name in CLASSES), __version__,
        ))  # fmt: skip


def _launches() -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    for architecture in _SRAM_LIMITS:
        yield from _flash(architecture)
        yield from _naive(architecture)
    yield from _descriptors("sm_90", (*_MEDIUM[1:], *_LARGE[1:], _HUGE[1]), (1, 2, 3))
    yield from _descriptors("sm_100", (*_MEDIUM[1:], *_LARGE[1:]), (2,))
    for tile, d in itertools.product(sorted(SPECIALIZED_SEEN_RIGHT, key=str), (64, 128)):
        yield from (("sm_90", "flash", _problem(d, n=n), tile, False) for n in (EVEN, ODD))
    for found in measured_tiles():
        if found.tile.load_path != "descriptor-ws":
            for n in (EVEN, ODD):
                yield "sm_90", "flash", _problem(found.head_dim, found.causal, n, found.dtype), found.tile, False
    yield from _listed()
    yield from _measured()


def _flash(architecture: str) -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    """Pointer loads. Most on sm_90, where there are measurements to compare with."""
    hopper = architecture == "sm_90"
    shapes = (*_SMALL, *_MEDIUM, *_LARGE, *_HUGE) if hopper else (_SMALL[0], _SMALL[3], *_MEDIUM, *_LARGE)
    for d, causal in itertools.product((64, 128), (False, True)):
        for shape, stages in itertools.product(shapes, (1, 2, 3, 4) if hopper else (2, 3)):
            # Most stages where blocks are of a usual size.
            if (stages == 4 and shape not in (_MEDIUM[1], _LARGE[1])) or (shape in _HUGE and stages == 1):
                continue
            for warps in _warps(shape, hopper and stages < 4):
                if _fits(architecture, d, shape, stages) and (hopper or stages == 2 or shape in _MEDIUM):
                    yield architecture, "flash", _problem(d, causal), _tile(shape, warps, stages), False
        for shape, stages in itertools.product((*_MEDIUM[1:], *_LARGE[1:]), (2, 3) if hopper else (2,)):
            tile = _tile(shape, _warps(shape, hopper)[-1], stages)
            if _fits(architecture, d, shape, stages):
                yield architecture, "flash", _problem(d, causal), tile, True
    for shape, causal in itertools.product(((16, 16), (32, 32), (64, 32), (64, 64), (128, 32)), (False, True)):
        for stages in (1, 2):
            if _fits(architecture, 256, shape, stages):
                yield architecture, "flash", _problem(256, causal), _tile(shape, _warps(shape, False)[0], stages), False
    for d, shape, causal in itertools.product((64, 128), ((16, 16), (32, 32)), (False, True)):
        yield architecture, "flash", _problem(d, causal, dtype="float32"), _tile(shape, 4, 1), False


def _naive(architecture: str) -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    lengths = (EVEN, ODD) if architecture == "sm_90" else (EVEN,)
    for d, shape, n in itertools.product((64, 128), (_MEDIUM[1], *_LARGE[1:]), lengths):
        for causal in (False, True):
            yield architecture, "naive", _problem(d, causal, n), _tile(shape, 8 if shape[0] > 64 else 4, 3), False
    for exponent, warps in itertools.product(range(9, 17), (4, 8)):
        # Rows of 2^exponent columns, and rows that are padded to so many.
        for n in (2**exponent, 2**exponent - 24)[: len(lengths)]:
            yield architecture, "naive", _problem(64, n=n), Tile(64, 64, warps, 3), False


def _descriptors(
    architecture: str, shapes: tuple[tuple[int, int], ...], stages: tuple[int, ...]
) -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    for d, shape, count, causal in itertools.product((64, 128), shapes, stages, (False, True)):
        for warps in _warps(shape, architecture == "sm_90"):
            tile = _tile(shape, warps, count, "descriptor")
            if _fits(architecture, d, shape, count):
                yield from ((architecture, "flash", _problem(d, causal, n), tile, False) for n in (EVEN, ODD))
                if count == 2:
                    yield architecture, "flash", _problem(d, causal), tile, True


def _listed() -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    """The tiles of the machine files, on the architecture of each; those of sm_89 also on its like."""
    for gpu in map(load_gpu, gpu_names()):
        if gpu.architecture is None:
            continue
        alike = ("sm_86", "sm_89", "sm_120") if gpu.architecture == "sm_89" else (gpu.architecture,)
        for listed, d, causal in itertools.product(gpu.tiles, (64, 128, 256), (False, True)):
            tile = Tile(listed.block_m, listed.block_n, listed.num_warps, listed.num_stages)
            if _fits(gpu.architecture, d, (tile.block_m, tile.block_n), tile.num_stages, gpu.sm.sram.block_limit_bytes):
                yield from ((name, "flash", _problem(d, causal), tile, False) for name in alike)
                yield gpu.architecture, "naive", _problem(d, causal), tile, False


def _measured() -> Iterator[tuple[str, str, Attention, Tile, bool]]:
    """What the measured grids need, and lengths of naive's rows beyond theirs, on sm_90."""
    for tile in dict.fromkeys(tile for grid in GRIDS.values() for tile in grid.tiles):
        special = tile.load_path == "descriptor-ws"
        for d, causal, n in itertools.product(_MEASURED_HEAD_DIMS, (False,) if special else (False, True), (EVEN, ODD)):
            if _fits("sm_90", padded_width(d), (tile.block_m, tile.block_n), tile.num_stages):
                yield "sm_90", "flash", _problem(d, causal, n), tile, False
    for tile, d, n in itertools.product(NAIVE_TILES, _MEASURED_HEAD_DIMS, _NAIVE_LENGTHS):
        yield "sm_90", "naive", _problem(d, n=n), tile, False
    # Tiles that counters.csv has besides (tests/fidelity/data).
    for d, causal in itertools.product((64, 128), (False, True)):
        yield "sm_90", "flash", _problem(d, causal), Tile(64, 16, 4, 2), False
    yield "sm_90", "naive", _problem(128), Tile(64, 64, 8, 3), False


def _problem(d: int, causal: bool = False, n: int = EVEN, dtype: str = "float16") -> Attention:
    return Attention(1, HEADS, None, n, n, d, dtype, causal)


def _tile(shape: tuple[int, int], warps: int, stages: int, load_path: str = "pointer") -> Tile:
    return Tile(shape[0], shape[1], warps, stages, load_path)


def _warps(shape: tuple[int, int], hopper: bool) -> tuple[int, ...]:
    """Four warps for a tile of few rows, eight for one of many; both where they are in between."""
    if shape[0] < 64:
        return (4,)
    if shape[0] > 128:
        return (8,)
    return (4, 8) if hopper or shape == (64, 64) else (4,) if shape[0] == 64 else (8,)


def _fits(architecture: str, d: int, shape: tuple[int, int], stages: int, limit: int = 0) -> bool:
    ring = stages if architecture in ("sm_90", "sm_100") else max(1, stages - 1)
    needed = 2 * d * (shape[0] + (2 * ring * shape[1] if stages > 1 else shape[1]))
    return needed <= (limit or _SRAM_LIMITS[architecture])


def by_key(found: Mapping[int, Compiled], listed: list[Entry]) -> list[tuple[Key, Compiled]]:
    """Rows in the table's order, of those that compiled."""
    return [(entry.key, found[n]) for n, entry in enumerate(listed) if n in found]
