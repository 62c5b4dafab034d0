"""The checks that need a GPU: the compiled kernels' numbers, the same bits each time, and what ncu counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.measurements import Measurements
from memsim.programs import build_program
from memsim.resources import room_of
from memsim.validate import Check, Row, validate
from memsim_kernels._ncu import profile
from memsim_kernels._ready import ready
from memsim_kernels._rows import rows_of_point
from memsim_kernels._verify_cases import AGREES, DIFFERS, NOT_RUN, Case, Outcome, tile_operations
from memsim_kernels._verify_interpret import numbers
from memsim_kernels.inputs import random_inputs

REPEATS = 4
# The simulator computes a tile in about 0.2 ms.
MOST_OPERATIONS = 200_000


def check_numbers(number: int, case: Case, gpu: Gpu) -> Outcome:
    """One case launched, compared, and launched again."""
    point = case.point
    if tile_operations(point) > MOST_OPERATIONS:
        why = f"the simulator would compute {tile_operations(point)} tiles; give a smaller problem."
        return Outcome(number, "gpu-numbers", NOT_RUN, why, {})
    program = build_program(point.algorithm, point.problem, point.tile, room_of(gpu), lse=True)
    inputs = random_inputs(
        point.problem, seed=number + 1, layouts=case.layouts, sizes=case.sizes, device="cuda"
    )  # fmt: skip
    made = ready(point.algorithm, point.problem, point.tile, inputs, lse=point.lse)
    made.launch()
    outcome = numbers(number, case, program, inputs, made, None, "gpu-numbers")
    if outcome.status != AGREES:
        return outcome
    first = [x.clone() for x in (made.o, made.lse) if x is not None]
    for again in range(2, REPEATS + 1):
        made.launch()
        torch.cuda.synchronize()
        for name, x, before in zip(("O", "LSE"), (x for x in (made.o, made.lse) if x is not None), first, strict=False):
            places = (x.view(torch.uint8) != before.view(torch.uint8)).nonzero()
            if len(places):
                at = tuple(int(n) for n in places[0][:-1])
                why = f"{name}{list(at)} has other bits in run {again} than in the first, on the same inputs."
                return Outcome(number, "gpu-numbers", DIFFERS, why, outcome.figures)
    outcome.figures["runs_with_equal_bits"] = REPEATS
    return outcome


def check_counters(cases: Sequence[tuple[int, Case]], gpu_name: str) -> Iterator[Outcome]:
    """What ncu counts of each case, held against the simulator as `memsim validate` does."""
    try:
        rows = profile([case.point for _, case in cases], gpu_name)
    except MemsimError as error:
        yield from (Outcome(number, "gpu-counters", NOT_RUN, " ".join(error.faults), {}) for number, _ in cases)
        return
    place = 0
    for number, case in cases:
        launches = len(rows_of_point(case.point, gpu_name))
        validation = validate(Measurements(tuple(rows[place : place + launches])))
        place += launches
        figures = {row.measurement.kernel: _figures(row) for row in validation.rows}
        wrong = [f"{row.kernel}: {row.error}." for row in validation.failed_launches]
        wrong += [
            f"{row.measurement.kernel}: {_missed(check)}"
            for row in validation.missed
            for check in row.checks
            if check.holds is False
        ]
        claimed = any(check.holds for row in validation.rows for check in row.checks)
        status = DIFFERS if wrong else AGREES if claimed else NOT_RUN
        why = " ".join(wrong) or ("" if claimed else "nothing is claimed of its counters.")
        yield Outcome(number, "gpu-counters", status, why, figures)


def _missed(check: Check) -> str:
    simulated = "nothing" if check.simulated is None else f"{check.simulated:.0f}"
    detail = f" ({check.detail})" if check.detail else ""
    return f"{check.column} is {check.measured:.0f}, simulated {simulated}{detail}."


def _figures(row: Row) -> dict[str, dict[str, float | str | None]]:
    return {
        check.column: {"simulated": check.simulated, "measured": check.measured, "claim": check.relation}
        for check in row.checks
    }
