"""The checks that interpret the real kernels on the CPU: their numbers and their accesses, from one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.language import Program, trace_launch
from memsim.numerics import run_program
from memsim.programs import build_program
from memsim.resources import room_of
from memsim_kernels._plan import plan_calls
from memsim_kernels._ready import Inputs, Ready, ready
from memsim_kernels._verify_cases import AGREES, DIFFERS, NOT_RUN, Case, Outcome, tile_operations
from memsim_kernels.accesses import first_difference
from memsim_kernels.calls import Call
from memsim_kernels.inputs import as_array, random_inputs
from memsim_kernels.record import Recording, record_call
from memsim_kernels.tolerance import Expected, expected

# Beyond this many, blocks are picked from all over the grid; a tile takes the interpreter about 8 ms when recorded.
MOST_OPERATIONS = 12_000
_SAMPLED_BLOCKS = 12
# Interpreted in float16, a kernel that rounds where the simulator does gives the same bits on 99.7 % of O or more in
# the default cases; one that rounds O between tiles, or the weights before they are divided, on 85 % or fewer.
LEAST_EQUAL_SHARE = 0.93
# Multiplications of one matrix product up to which float64 and 16-bit references take seconds on a CPU.
_MOST_PRODUCTS = 2**31


def check_case(number: int, case: Case, checks: Sequence[str], gpu: Gpu) -> Iterator[Outcome]:
    """The outcomes of "numbers" and "accesses", as far as they are asked for."""
    point = case.point
    program = build_program(point.algorithm, point.problem, point.tile, room_of(gpu), lse=True)
    if not point.lse:
        recorded_program = build_program(point.algorithm, point.problem, point.tile, room_of(gpu), lse=False)
    else:
        recorded_program = program
    if case.far:
        yield from _far(number, case, checks, recorded_program)
        return
    sampled = tile_operations(point) > MOST_OPERATIONS
    if sampled and point.algorithm == "naive":
        minutes = tile_operations(point) * 8e-3 / 60
        why = f"it would interpret tiles for about {minutes:.0f} minutes; give a smaller problem."
        yield from (Outcome(number, check, NOT_RUN, why, {}) for check in checks)
        return
    inputs = random_inputs(point.problem, seed=number + 1, layouts=case.layouts, sizes=case.sizes)
    made = ready(point.algorithm, point.problem, point.tile, inputs, lse=point.lse)
    try:
        recordings = [record_call(c, tensors=program.tensors, blocks=_blocks(c, sampled)) for c in made.calls]
    except MemsimError as error:
        yield from (Outcome(number, check, DIFFERS, " ".join(error.faults), {}) for check in checks)
        return
    for check in checks:
        if check == "accesses":
            yield _accesses(number, recorded_program, made.calls, recordings)
        elif _products(point.problem) > _MOST_PRODUCTS:
            why = "its references would take minutes on a CPU; give fewer heads or shorter sequences."
            yield Outcome(number, check, NOT_RUN, why, {})
        elif point.problem.dtype == "bfloat16":
            yield Outcome(number, check, NOT_RUN, "Triton's interpreter multiplies bfloat16 as bit patterns.", {})
        else:
            yield numbers(number, case, program, inputs, made, recordings if sampled else None)


def _products(p: Attention) -> int:
    return p.batch * p.heads * p.seq_len_q * p.seq_len_k * p.head_dim


def _blocks(call: Call, sampled: bool) -> list[tuple[int, ...]] | None:
    """Some blocks of a launch, the first and the last among them; None for all."""
    total = prod(call.grid)
    if not sampled or total <= _SAMPLED_BLOCKS:
        return None
    chosen = np.unique(np.linspace(0, total - 1, _SAMPLED_BLOCKS).astype(np.int64))
    return [_coordinates(call.grid, int(number)) for number in chosen]


def _coordinates(grid: tuple[int, ...], number: int) -> tuple[int, ...]:
    at = []
    for size in grid:
        number, here = divmod(number, size)
        at.append(here)
    return tuple(at)


def _far(number: int, case: Case, checks: Sequence[str], program: Program) -> Iterator[Outcome]:
    point = case.point
    if "numbers" in checks:
        yield Outcome(number, "numbers", NOT_RUN, "its tensors are addresses only.", {})
    if "accesses" not in checks:
        return
    calls = plan_calls(point.algorithm, point.problem, point.tile, lse=point.lse)
    try:
        recordings = []
        for call in calls:
            last = tuple(size - 1 for size in call.grid)
            ends = {tuple(0 for _ in last), last}
            recordings.append(record_call(call, tensors=program.tensors, blocks=sorted(ends)))
    except MemsimError as error:
        yield Outcome(number, "accesses", DIFFERS, " ".join(error.faults), {})
        return
    yield _accesses(number, program, calls, recordings)


def _accesses(number: int, program: Program, calls: Sequence[Call], recordings: Sequence[Recording]) -> Outcome:
    traces = {launch.name: trace_launch(launch, program.room) for launch in program.launches}
    wanted = [name for name, trace in traces.items() if trace.blocks]
    names = [call.name for call in calls if prod(call.grid)]
    blocks = sum(len(recording.blocks) for recording in recordings)
    records = sum(len(done) for recording in recordings for done in recording.blocks.values())
    figures: dict[str, Any] = {
        "blocks": blocks,
        "of_blocks": sum(trace.blocks for trace in traces.values()),
        "records": records,
        "loaded_bytes": sum(sum(recording.loaded_bytes.values()) for recording in recordings),
        "stored_bytes": sum(sum(recording.stored_bytes.values()) for recording in recordings),
    }
    if names != wanted:
        return Outcome(number, "accesses", DIFFERS, f"the program launches {wanted}, the kernels {names}.", figures)
    made = (pair for pair in zip(calls, recordings, strict=True) if prod(pair[1].grid))
    for call, recording in made:
        found = first_difference(traces[call.name], recording, call.order)
        if found is not None:
            return Outcome(number, "accesses", DIFFERS, found, figures)
    return Outcome(number, "accesses", AGREES, "", figures)


def numbers(
    number: int, case: Case, program: Program, inputs: Inputs, made: Ready, recordings: Sequence[Recording] | None,
    check: str = "numbers",
) -> Outcome:  # fmt: skip
    """A run's O and LSE against float64 and the simulator's; of some blocks of flash where only those were run."""
    p = case.point.problem
    some: set[tuple[int, ...]] | None = None
    if recordings is not None:
        ((call, recording),) = zip(made.calls, recordings, strict=True)
        numbers_run = map(recording.number_of, recording.blocks)
        axes = program.launches[0].axes
        some = {tuple(unit.values()) for n in numbers_run for unit in call.order.units_of_block(axes, n)}
    wanted = expected(p, *inputs, case.point.algorithm)
    order = None if some is None else (lambda _, blocks: [block for block in blocks if block in some])
    simulated, simulated_lse = run_program(program, p, *(as_array(x) for x in inputs), block_order=order)
    assert simulated_lse is not None
    ran = _rows_run(case, some, made.o.shape[:3])
    o = made.o.cpu()
    of_simulator = torch.from_numpy(simulated.astype(np.float64))
    reference = Expected(wanted.o.cpu(), wanted.lse.cpu(), wanted.o_allowed, wanted.lse_allowed)
    figures: dict[str, Any] = {
        "o_error": _most((o.double() - reference.o).abs()[ran]),
        "o_allowed": reference.o_allowed,
        "o_from_simulator": _most((o.double() - of_simulator).abs()[ran]),
    }
    if some is not None:
        figures |= {"blocks": len(some), "of_blocks": prod(size for _, size in program.launches[0].axes)}
    wrong = reference.wrong_o(o) & ran[..., None]
    found = _where(case, wrong, o, reference.o, "O", "float64 gives")
    if found is None:
        # Both are within the bound of the right numbers.
        apart = ~((o.double() - of_simulator).abs() <= 2 * reference.o_allowed) & ran[..., None]
        found = _where(case, apart, o, of_simulator, "O", "the simulator gives")
    if check == "numbers" and p.dtype == "float16" and ran.any():
        unequal = (o.double() != of_simulator) & ran[..., None]
        share = 1 - float(unequal.sum()) / float(ran.sum() * o.shape[-1])
        figures["o_equal_share"] = share
        if found is None and share < LEAST_EQUAL_SHARE:
            where = _where(case, unequal, o, of_simulator, "O", "the simulator gives")
            found = f"only {share:.0%} of O has the simulator's bits: it is rounded elsewhere; {where}"
    if found is None and made.lse is not None:
        lse, of_lse = made.lse.cpu(), torch.from_numpy(simulated_lse.astype(np.float64))
        figures |= {"lse_error": _most((lse.double() - reference.lse).abs()[ran & ~reference.lse.isneginf()])}
        figures |= {"lse_allowed": reference.lse_allowed}
        found = _where(case, (reference.wrong_lse(lse) & ran), lse, reference.lse, "LSE", "float64 gives")
        if found is None:
            apart = torch.where(
                of_lse.isneginf(), ~lse.isneginf(), ~((lse.double() - of_lse).abs() <= 2 * reference.lse_allowed)
            )
            found = _where(case, apart & ran, lse, of_lse, "LSE", "the simulator gives")
    return Outcome(number, check, AGREES if found is None else DIFFERS, found or "", figures)


def _rows_run(case: Case, some: set[tuple[int, ...]] | None, shape: Sequence[int]) -> torch.Tensor:
    """Which (batch, head, row) were computed."""
    if some is None:
        return torch.ones(tuple(shape), dtype=torch.bool)
    ran = torch.zeros(tuple(shape), dtype=torch.bool)
    step = case.point.tile.block_m
    for i, head, batch in some:
        ran[batch, head, i * step : (i + 1) * step] = True
    return ran


def _most(x: torch.Tensor) -> float | None:
    """The largest; None where there is none or it is no number."""
    largest = float(x.max()) if x.numel() else 0.0
    return largest if np.isfinite(largest) else None


def _where(
    case: Case, wrong: torch.Tensor, got: torch.Tensor, right: torch.Tensor, name: str, source: str
) -> str | None:
    """The first wrong element, with its block and its tile, in a sentence."""
    places = wrong.nonzero()
    if not len(places):
        return None
    at = tuple(int(n) for n in places[0])
    batch, head, row = at[:3]
    block = row // case.point.tile.block_m
    first = block * case.point.tile.block_m
    last = min(first + case.point.tile.block_m, case.point.problem.seq_len_q) - 1
    return (
        f"{name}[{', '.join(map(str, at))}] is {float(got[at]):.6g} where {source} {float(right[at]):.6g} "
        f"({len(places)} of {wrong.numel()} elements are wrong; the first is in block i {block}, head {head}, "
        f"batch {batch}, the tile of rows {first}–{last})."
    )
