"""The command `memsim probe`: what the compiler makes of a problem's kernels, and the table that ships with memsim."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim._cli_output import print_json, print_report, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar
from memsim._option_list import MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults, Request, in_option_names, read_request
from memsim.api import prepare
from memsim.errors import MemsimError, TileDoesNotFit
from memsim.gpu import Gpu
from memsim.resources import blocks_per_sm
from memsim.tile import Tile
from memsim.units import quoted
from memsim_kernels._needs import need_torch, read_jobs
from memsim_kernels._plan import ALGORITHMS, plan_calls

if TYPE_CHECKING:
    from memsim_kernels.probe import Compiled

SCHEMA = "memsim.probe/1"

_JOBS = Option("jobs", "Run", "Compilers at once.", "N", "2", 1)
_TABLE = Option(
    "table", "Output", "Compile every kernel of the shipped table and write it to this file, and what those of sm_90 "
    "execute to streams.npz beside it.", "FILE",
)  # fmt: skip
_OPTIONS = (*PROBLEM.values(), *TILE.values(), MACHINE["gpu"], RUN["lse"])

SPEC = Spec(
    "probe",
    "What the compiler makes of the real kernels: SRAM, registers, stack, instructions. Needs no GPU.",
    (*_OPTIONS, _JOBS, _TABLE, Option("json", "Output", "Print JSON, alone on standard output.", flag=True)),
    Option("algorithm", "", f"One of {', '.join(ALGORITHMS)}.", default="flash"),
    "[ALGORITHM]",
)


@dataclass(frozen=True)
class Probed:
    """One launch as compiled, and the blocks of it that one SM of the GPU holds."""

    kernel: Compiled
    blocks_per_sm: int
    limited_by: str


def run(line: Line) -> int:
    """Compile and print; or write the table."""
    faults = Faults(line.faults)
    jobs = faults.attempt(read_jobs, line.options.get("jobs", "2")) or 1
    if "table" in line.options:
        others = sorted(line.options.keys() - {"table", "jobs"})
        if others or line.positional is not None:
            faults.append(
                f"--table compiles kernels of its own: give it without {', '.join(others) or 'an algorithm'}."
            )
        faults.raise_any()
        return _write_table(line.options["table"], jobs)
    request = faults.attempt(lambda: _request(line))
    faults.raise_any()
    assert request is not None and request.gpu.architecture is not None
    try:
        tile = _tile_of(request)
        probed = _probe(request, tile, jobs)
    except MemsimError as error:
        raise MemsimError(map(in_option_names, error.faults)) from None
    if line.flag("json"):
        print_json(_data(request, tile, probed))
    else:
        from memsim_kernels._report_probe import probe_report

        print_report(probe_report(request, tile, probed))
    return 0


def _request(line: Line) -> Request:
    algorithm = line.positional or "flash"
    if algorithm not in ALGORITHMS:
        raise MemsimError(f"there is no kernel of {quoted(algorithm)}: choose one of {', '.join(ALGORITHMS)}.")
    names = {option.name for option in _OPTIONS}
    options = {name: text for name, text in line.options.items() if name in names}
    request = read_request(options, {}, algorithm=algorithm, count_only=True)
    if request.gpu.architecture is None:
        raise MemsimError(f"{request.gpu.name} names no architecture to compile for: choose a real GPU.")
    return request


def _tile_of(request: Request) -> Tile:
    """The tile that a simulation takes; where what was asked for does not fit, that on the GPU's first tile."""
    try:
        return prepare(request.algorithm, request.problem, request.gpu, request.tile or None, lse=request.lse).tile
    except TileDoesNotFit:
        first = request.gpu.tiles[0]
        whole = Tile(first.block_m, first.block_n, first.num_warps, first.num_stages)
        return replace(whole, **request.tile)


def _probe(request: Request, tile: Tile, jobs: int) -> list[Probed]:
    need_torch("probe")
    from memsim_kernels.probe import compile_calls

    gpu = request.gpu
    assert gpu.architecture is not None
    with ProgressBar() as bar:
        calls = plan_calls(request.algorithm, request.problem, tile, lse=request.lse)
        kernels = compile_calls(calls, gpu.architecture, jobs=jobs, progress=bar)
    return [Probed(kernel, *_room(gpu, kernel)) for kernel in kernels]


def _room(gpu: Gpu, kernel: Compiled) -> tuple[int, str]:
    if kernel.sram_bytes > gpu.sm.sram.block_limit_bytes:
        return 0, "sram"
    return blocks_per_sm(gpu.sm, kernel.sram_bytes, kernel.registers, kernel.block_warps)


def _data(request: Request, tile: Tile, probed: Sequence[Probed]) -> Mapping[str, Any]:
    from triton import __version__

    return {
        "schema": SCHEMA,
        "algorithm": request.algorithm,
        "gpu": request.gpu_name,
        "architecture": request.gpu.architecture,
        "triton": __version__,
        "problem": asdict(request.problem),
        "tile": asdict(tile),
        "lse": request.lse,
        "launches": [
            {
                "name": p.kernel.kernel,
                "sram_bytes": p.kernel.sram_bytes,
                "registers": p.kernel.registers,
                "stack_bytes": p.kernel.stack_bytes,
                "block_warps": p.kernel.block_warps,
                "blocks_per_sm": p.blocks_per_sm,
                "limited_by": p.limited_by,
                "opcodes": p.kernel.opcodes,
                "loops": [
                    {
                        "address": loop.address,
                        "main": loop is p.kernel.main_loop,
                        "classes": loop.classes,
                        "opcodes": dict(loop.opcodes),
                    }
                    for loop in p.kernel.loops
                ],
            }
            for p in probed
        ],
    }


def _write_table(path: str, jobs: int) -> int:
    need_torch("probe")
    from memsim._stream_table import write_streams
    from memsim_kernels._probe_table import by_key, entries, write_table
    from memsim_kernels.probe import compile_each

    found: dict[int, Compiled] = {}
    listed = entries()
    target = Path(path)
    streams = target.with_name("streams.npz")
    draft, streams_draft = (file.with_name(f".{file.name}.{os.getpid()}") for file in (target, streams))
    failures = []
    try:
        # Tried before the long work, not after it.
        draft.touch()
        with ProgressBar() as bar:
            for n, result in compile_each([(e.call, e.architecture) for e in listed], jobs=jobs, progress=bar):
                if isinstance(result, MemsimError):
                    failures.append(str(result))
                else:
                    found[n] = result
        rows = by_key(found, listed)
        with draft.open("w", encoding="utf-8", newline="") as file:
            write_table(file, rows)
        with streams_draft.open("wb") as binary:
            write_streams(binary, {key: kernel.stream for key, kernel in rows if kernel.stream is not None})
        draft.replace(target)
        streams_draft.replace(streams)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MemsimError(f"table is {quoted(path)}, which cannot be written ({reason}): give another file.") from None
    finally:
        draft.unlink(missing_ok=True)
        streams_draft.unlink(missing_ok=True)
    for failure in failures:
        say(failure)
    say(f"{len(found)} of {len(listed)} kernels are in {quoted(path)}.")
    return 1 if failures else 0


COMMAND = Command(SPEC, run)
