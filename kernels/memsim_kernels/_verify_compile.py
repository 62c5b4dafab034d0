"""The check that compiles the real kernels, for a GPU that need not be here: SRAM and blocks per SM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from memsim._compiled import table_triton
from memsim.api import prepare
from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.resources import Resources, blocks_per_sm
from memsim.tile import Tile
from memsim_kernels._plan import plan_calls
from memsim_kernels._verify_cases import AGREES, DIFFERS, ESTIMATE, Case, Outcome
from memsim_kernels.probe import Compiled, Progress, compile_each

CHECK = "resources"


def check_resources(
    cases: Sequence[tuple[int, Case]], gpu: Gpu, jobs: int, progress: Progress | None = None
) -> Iterator[Outcome]:
    """An outcome for each case, in their order."""
    architecture = gpu.architecture
    if architecture is None:
        raise MemsimError(f"{gpu.name} names no architecture, so there is nothing to compile for; take another GPU.")
    launches = [
        (number, case, call)
        for number, case in cases
        for call in plan_calls(case.point.algorithm, case.point.problem, case.point.tile, lse=case.point.lse)
    ]
    found: list[Compiled | MemsimError | None] = [None] * len(launches)
    for place, result in compile_each([(call, architecture) for *_, call in launches], jobs=jobs, progress=progress):
        found[place] = result
    for number, case in cases:
        made = [result for (n, _, _), result in zip(launches, found, strict=True) if n == number]
        yield _outcome(number, case, [result for result in made if result is not None], gpu)


def _outcome(number: int, case: Case, made: Sequence[Compiled | MemsimError], gpu: Gpu) -> Outcome:
    point = case.point
    faults = [fault for result in made if isinstance(result, MemsimError) for fault in result.faults]
    if faults:
        return Outcome(number, CHECK, DIFFERS, " ".join(faults), {})
    try:
        ready = prepare(point.algorithm, point.problem, gpu, point.tile, lse=point.lse)
    except MemsimError as error:
        return Outcome(number, CHECK, DIFFERS, " ".join(error.faults), {})
    simulated = {trace.name: resources for trace, resources in zip(ready.traces, ready.resources, strict=True)}
    wrong: list[str] = []
    estimated: list[str] = []
    figures: dict[str, Any] = {}
    for compiled in (result for result in made if isinstance(result, Compiled)):
        resources = simulated[compiled.kernel]
        assert compiled.registers is not None
        blocks, _ = blocks_per_sm(gpu.sm, compiled.sram_bytes, compiled.registers, compiled.block_warps)
        figures[compiled.kernel] = _figures(compiled, resources, blocks)
        pairs = (
            (
                "B of SRAM",
                resources.sram_bytes,
                compiled.sram_bytes,
                _sram_is_exact(point.problem, point.tile, resources),
            ),
            ("blocks per SM", resources.blocks_per_sm, blocks, _from_same_compiler(resources)),
        )
        for what, ours, theirs, exact in pairs:
            if ours != theirs:
                sentence = f"{compiled.kernel}: simulated {ours} {what}, compiled {theirs}."
                (wrong if exact else estimated).append(sentence)
    status = DIFFERS if wrong else ESTIMATE if estimated else AGREES
    return Outcome(number, CHECK, status, " ".join([*wrong, *estimated]), figures)


def _sram_is_exact(problem: Attention, tile: Tile, resources: Resources) -> bool:
    """The rule of docs/design.md holds for 16-bit types and tiles of 64 rows or more; a descriptor kernel's SRAM is
    exact where the table has it."""
    if tile.load_path != "pointer":
        return _from_same_compiler(resources)
    return problem.dtype_bytes == 2 and tile.block_m >= 64


def _from_same_compiler(resources: Resources) -> bool:
    """Whether what is simulated was compiled by the Triton that compiles here; others take other registers, and other
    barriers for descriptors."""
    if resources.registers_from == "estimate":
        return False
    return version("triton").split(".")[:2] == table_triton().split(".")[:2]


def _figures(compiled: Compiled, resources: Resources, blocks: int) -> dict[str, Any]:
    return {
        "sram_bytes": {"simulated": resources.sram_bytes, "compiled": compiled.sram_bytes},
        "blocks_per_sm": {"simulated": resources.blocks_per_sm, "compiled": blocks},
        "registers": {"simulated": resources.registers, "compiled": compiled.registers},
        "registers_from": resources.registers_from,
        "stack_bytes": compiled.stack_bytes,
    }
