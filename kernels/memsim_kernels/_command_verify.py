"""The command `memsim verify`: numbers, accesses, SRAM and counters of the real kernels against the simulator."""

from __future__ import annotations

from memsim._cli_output import print_json, print_report
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar
from memsim._option_list import MACHINE, Option
from memsim._options import Faults
from memsim.errors import MemsimError
from memsim.gpu import load_gpu
from memsim.units import quoted
from memsim_kernels._grids import Point
from memsim_kernels._needs import need_torch, read_jobs
from memsim_kernels._points import ALGORITHM, POINT_OPTIONS, points_of

_CHECKS = ("numbers", "accesses", "resources", "gpu-numbers", "gpu-counters")
SPEC = Spec(
    "verify",
    "The real kernels against the simulator: numbers, accesses, SRAM and, on a GPU, the hardware's counters. Without "
    "an option of the problem or the tile, on a grid of small problems that reach every corner.",
    (
        Option(
            "checks", "Checks", "Which checks to run; those that need a GPU or ncu are left out where there is none.",
            ",".join(_CHECKS), "all",
        ),
        Option("jobs", "Checks", "Processes that interpret and compile side by side.", "N", "2", 1),
        *POINT_OPTIONS,
        MACHINE["gpu"],
        Option("json", "Output", "Print JSON, alone on standard output.", flag=True),
    ),
    ALGORITHM,
    "[ALGORITHM]",
)  # fmt: skip


def run(line: Line) -> int:
    """Verify; 0 when all that ran agrees, 1 when anything does not."""
    faults = Faults(line.faults)
    checks = faults.attempt(_checks, line.options.get("checks"))
    jobs = faults.attempt(read_jobs, line.options.get("jobs", "2"))
    gpu = line.options.get("gpu", "h200")
    faults.attempt(_check_gpu, gpu)
    faults.raise_any()
    need_torch("verify")
    from memsim_kernels._report_verify import verification_report
    from memsim_kernels._verify_cases import cases_of
    from memsim_kernels.verify import verify

    assert checks is not None and jobs is not None
    points = points_of(line, gpu, ())
    for point in points:
        faults.attempt(_check_offered, point, gpu)
    faults.raise_any()
    with ProgressBar() as bar:
        cases = list(cases_of(points)) if points else None
        found = verify(cases, algorithm=line.positional, gpu=gpu, checks=checks, jobs=jobs, progress=bar)
    if all(outcome.status == "not run" for outcome in found.outcomes):
        reasons = {f"{name}: {why}" for name, why in found.skipped.items()}
        reasons |= {f"{outcome.check}: {outcome.detail}" for outcome in found.outcomes}
        raise MemsimError("none of these checks can run here: " + " ".join(sorted(reasons)))
    if line.flag("json"):
        print_json(found.as_dict())
    else:
        print_report(verification_report(found))
    return 0 if found.holds else 1


COMMAND = Command(SPEC, run)


def _checks(text: str | None) -> tuple[str, ...]:
    if text is None:
        return _CHECKS
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in _CHECKS]
    if unknown:
        raise MemsimError(
            f"checks names {quoted(unknown[0])}; it must be of {', '.join(_CHECKS)}, with commas between."
        )
    return names


def _check_offered(point: Point, gpu: str) -> None:
    """Refuse what the kernels refuse before a launch."""
    from memsim_kernels.tiles import choose

    if point.algorithm == "flash":
        choose(point.problem, load_gpu(gpu), point.tile, descriptors=True, lse=point.lse)


def _check_gpu(name: str) -> None:
    if load_gpu(name).architecture is None:
        raise MemsimError(f"gpu is {quoted(name)}, which names no architecture; kernels are compiled for a real GPU.")
