"""Compiled kernels: from a table that ships with memsim, or compiled now by a package that can.

A package offers to compile by an entry point named "compiled" of the group "memsim.resources": a `Provider`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.resources import files

from memsim._stream_table import stream_of_key
from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.stream import Stream
from memsim.tile import Tile

SOURCES = ("table", "compiled")

KEY_COLUMNS = (
    "kernel", "architecture", "dtype", "head_dim", "causal", "lse", "block_m", "block_n", "num_warps", "num_stages",
    "load_path", "multiples_of_16", "whole_tiles", "columns",
)  # fmt: skip
"""What a row of the table is of. A column is empty where the kernel does not depend on it."""

# Rows of S up to which `softmax` holds one whole; the table has one entry for all that are longer.
_WHOLE_ROW_COLUMNS = 32_768
_LONGER = 65_536

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a compiler made of a kernel: `sram_bytes` of a block, `registers` and `stack_bytes` a thread.

    `block_warps` are the warps of a block with those that the compiler adds to the tile's, `stream` its instructions,
    None where they are not known.
    """

    sram_bytes: int
    registers: int
    stack_bytes: int
    block_warps: int
    stream: Stream | None = None


Provider = Callable[[str, Attention, Tile, str, bool], Mapping[str, CompiledKernel]]
"""(algorithm, problem, tile, architecture, lse) → its compiled launches by name."""


def key_of(kernel: str, architecture: str, problem: Attention, tile: Tile, lse: bool) -> Key:
    """The key of a launch in the table.

    bfloat16 is looked up as float16. `multiples_of_16` says that the length of a row of S is one, which Triton compiles
    for; flash has no S, and one kernel for all lengths, or by descriptor two: one where every tile of keys is whole.
    """
    values: dict[str, object] = {
        "kernel": kernel,
        "architecture": architecture,
        "dtype": "float16" if problem.dtype == "bfloat16" else problem.dtype,
        "num_warps": tile.num_warps,
    }
    if kernel != "flash":
        values["multiples_of_16"] = int(problem.seq_len_k % 16 == 0)
    if kernel == "softmax":
        row = max(16, 1 << (problem.seq_len_k - 1).bit_length())
        values |= {"columns": row if row <= _WHOLE_ROW_COLUMNS else _LONGER, "lse": int(lse)}
    else:
        values |= {"head_dim": problem.head_dim, "block_m": tile.block_m, "block_n": tile.block_n}
    if kernel in ("flash", "qk"):
        values["causal"] = int(problem.causal)
    if kernel in ("flash", "pv"):
        values["num_stages"] = tile.num_stages
    if kernel == "flash":
        values |= {"lse": int(lse), "load_path": tile.load_path}
        if tile.load_path != "pointer":
            values["whole_tiles"] = int(problem.seq_len_k % tile.block_n == 0)
    return tuple(str(values.get(name, "")) for name in KEY_COLUMNS)


def from_table(kernel: str, architecture: str, problem: Attention, tile: Tile, lse: bool) -> CompiledKernel | None:
    """The table's row of a launch with its stream, None if it has none.

    One without LSE stands in where one with it is not there.
    """
    for with_lse in dict.fromkeys((lse, False)):
        key = key_of(kernel, architecture, problem, tile, with_lse)
        found = shipped().get(key)
        if found is not None:
            return replace(found, stream=stream_of_key(key))
    return None


@lru_cache(maxsize=1)
def shipped() -> Mapping[Key, CompiledKernel]:
    """The table, memsim/data/compiled.csv, by key, without streams."""
    with files("memsim").joinpath("data/compiled.csv").open(encoding="utf-8") as lines:
        return read_table(lines)


@lru_cache(maxsize=1)
def table_triton() -> str:
    """The version of Triton that compiled the table."""
    with files("memsim").joinpath("data/compiled.csv").open(encoding="utf-8") as lines:
        return next(csv.DictReader(lines))["triton"]


def read_table(lines: Iterable[str]) -> dict[Key, CompiledKernel]:
    """The rows of a table by key."""
    return {
        tuple(row[name] for name in KEY_COLUMNS): CompiledKernel(
            int(row["sram_bytes"]), int(row["registers"]), int(row["stack_bytes"]), int(row["block_warps"])
        )
        for row in csv.DictReader(lines)
    }


def compile_now(gpu: Gpu, algorithm: str, problem: Attention, tile: Tile, *, lse: bool) -> Mapping[str, CompiledKernel]:
    """The launches of an algorithm, compiled for this very problem and tile.

    Raises `MemsimError` where that cannot be: no architecture, no kernel, no compiler installed.
    """
    if gpu.architecture is None:
        raise MemsimError(
            f"resources is compiled, but {gpu.name} names no architecture to compile for; take resources table."
        )
    points = [point for point in entry_points(group="memsim.resources") if point.name == "compiled"]
    try:
        provider: Provider | None = points[0].load() if points else None
        if provider is not None:
            return provider(algorithm, problem, tile, gpu.architecture, lse)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in ("torch", "triton", "memsim_kernels"):
            raise
    raise MemsimError(
        "resources is compiled, but the kernels' compiler is not installed: pip install 'memsim[kernels]', or take "
        "resources table."
    )
