"""What a reader must know of a result: what is left out, what times rest on, what spills, what no kernel offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsim.attention import Attention
from memsim.gpu import Gpu, gpu_names, load_gpu
from memsim.resources import Resources
from memsim.tile import Tile
from memsim.trace import LaunchTrace

BY_INSTRUCTIONS = "instructions"


def notes_of(
    gpu: Gpu, problem: Attention, tile: Tile, traces: Sequence[LaunchTrace], resources: Sequence[Resources], *,
    lse: bool, replayed_by: Sequence[str | None] | None,
) -> tuple[str, ...]:  # fmt: skip
    """The notes of a result, a sentence or two each. `replayed_by` says it of each launch, None of a result that was
    only counted."""
    notes = []
    if gpu.l2 is not None and replayed_by is None:
        notes.append(
            "The L2 is not counted: these are the bytes of the machine of `--l2 none`, "
            "in which every SRAM fill is an HBM read."
        )
    if replayed_by is not None:
        notes += _times(gpu, [trace.name for trace in traces], replayed_by)
    for number, (trace, taken) in enumerate(zip(traces, resources, strict=True)):
        notes += _spills(
            gpu, trace.name, taken, timed=replayed_by is not None and replayed_by[number] == BY_INSTRUCTIONS
        )
    if tile.load_path == "descriptor-ws" and not _seen_right(problem, tile, lse=lse):
        notes.append(
            "Warp-specialised kernels were right on an H200 only for full attention without LSE, in blocks of 128 rows "
            "with 4 warps and 1 or 2 stages; memsim_kernels offers no others."
        )
    return tuple(notes)


def _times(gpu: Gpu, names: Sequence[str], replayed_by: Sequence[str | None]) -> Iterator[str]:
    """What the times of a real GPU rest on. A machine without an architecture is a textbook's."""
    by_trace = [name for name, by in zip(names, replayed_by, strict=True) if by == "trace"]
    by_instructions = [name for name, by in zip(names, replayed_by, strict=True) if by == BY_INSTRUCTIONS]
    if by_instructions:
        of = "" if not by_trace else f" of {_listed(by_instructions)}"
        rests = f"constants calibrated on {_an(gpu)}; docs/validation.md says how far off they are"
        if not _is_shipped(gpu):
            rests = "the constants of its [calibrated] table; they were held against no hardware like this"
        yield f"Times{of} are those of the compiled kernels' instructions, with {rests}."
    if by_trace and gpu.architecture is not None:
        why = ""
        if gpu.calibrated is not None:
            why = ", because no instructions of a kernel with this tile are known (--resources compiled may find some)"
        of = "" if not by_instructions else f" of {_listed(by_trace)}"
        yield f"Times{of} follow from the trace and data-sheet rates{why}: they were held against no hardware."


def _is_shipped(gpu: Gpu) -> bool:
    return gpu.name in gpu_names() and load_gpu(gpu.name) == gpu


def _an(gpu: Gpu) -> str:
    """A machine by the first part of its name: "an H200" for h200-sxm."""
    name = gpu.name.split("-")[0].upper()
    return f"{'an' if name[0] in 'AEFHILMNORSX8' else 'a'} {name}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _spills(gpu: Gpu, name: str, taken: Resources, *, timed: bool) -> Iterator[str]:
    traffic = "whose bytes are not counted, though they take their time" if timed else "whose traffic is not simulated"
    if taken.stack_bytes:
        yield f"{name} spills: compiled with this tile it keeps {taken.stack_bytes} B of stack a thread, {traffic}."
    if taken.stack_bytes is not None or gpu.sm.registers is None:
        return
    limit = gpu.sm.registers.per_thread_limit
    if taken.accumulators > limit:
        yield (
            f"{name} would spill: with this tile its accumulators alone take {taken.accumulators} "
            f"registers a thread of {limit}; the spills' traffic is not simulated."
        )
    elif taken.registers == limit:
        yield (
            f"{name} may spill: its registers are estimated at the {limit} that a thread can have; "
            "memsim probe compiles it."
        )


def _seen_right(problem: Attention, tile: Tile, *, lse: bool) -> bool:
    return not problem.causal and not lse and (tile.block_m, tile.num_warps) == (128, 4) and tile.num_stages <= 2
