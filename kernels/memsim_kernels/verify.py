"""Verifying the real kernels against the simulator: which checks can run here, and what each found.

Each stage runs in processes of its own (`memsim_kernels._verify_stage`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from queue import Queue
from typing import Any

from memsim_kernels._grids import Point
from memsim_kernels._verify_cases import (
    AGREES,
    CHECKS,
    DIFFERS,
    Case,
    Outcome,
    cases_of,
    default_cases,
    gpu_points,
    resource_points,
)

__all__ = ["CHECKS", "Case", "Outcome", "Point", "Verification", "verify", "versions"]

SCHEMA = "memsim.verify/1"
Progress = Callable[[str, int, int], None]
_STAGES = {
    "numbers": "interpret",
    "accesses": "interpret",
    "resources": "compile",
    "gpu-numbers": "gpu-numbers",
    "gpu-counters": "gpu-counters",
}


@dataclass(frozen=True)
class Verification:
    """All cases and outcomes; `skipped` says of each check that was not run at all why."""

    gpu: str
    versions: dict[str, str]
    cases: tuple[Case, ...]
    outcomes: tuple[Outcome, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def differing(self) -> tuple[Outcome, ...]:
        """The outcomes that disagree."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == DIFFERS)

    def count(self, status: str) -> int:
        """Outcomes of this status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def holds(self) -> bool:
        """Nothing disagrees, and something agrees."""
        return not self.differing and self.count(AGREES) > 0

    def as_dict(self) -> dict[str, Any]:
        """The verification as JSON-ready data, with its schema first."""
        return {
            "schema": SCHEMA,
            "holds": self.holds,
            "gpu": self.gpu,
            "versions": self.versions,
            "checks": CHECKS,
            "skipped": self.skipped,
            "cases": [str(case) for case in self.cases],
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }


def verify(
    cases: Sequence[Case] | None = None, *, algorithm: str | None = None, gpu: str = "h200",
    checks: Iterable[str] = tuple(CHECKS), jobs: int = 2, progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """Run the checks on the cases; without cases each check has its own grid of small problems, of an algorithm alone
    if it is given.

    `gpu` is the machine whose SRAM and registers are simulated and compiled for. Checks that need a GPU or ncu are
    left out where there is none, and the verification says so.
    """
    wanted = [check for check in CHECKS if check in set(checks)]
    skipped = _skipped(wanted, gpu)
    running = [check for check in wanted if check not in skipped]
    by_stage = _by_stage(running, cases, algorithm)
    every = list(dict.fromkeys(case for chosen in by_stage.values() for case in chosen))
    numbered = {case: number for number, case in enumerate(every)}
    found: list[Outcome] = []
    for stage, chosen in by_stage.items():
        of_stage = [check for check in running if _STAGES[check] == stage]
        requests = [
            {"gpu": gpu, "checks": of_stage, "jobs": jobs, "cases": part}
            for part in _parts([(numbered[case], case.as_dict()) for case in chosen], _processes(stage, jobs))
        ]
        total = len(chosen) * len(of_stage)
        for done, outcome in enumerate(_outcomes(stage, requests), 1):
            found.append(outcome)
            if progress is not None:
                progress(stage, done, total)
    order = {check: place for place, check in enumerate(CHECKS)}
    found.sort(key=lambda outcome: (outcome.case, order[outcome.check]))
    return Verification(gpu, versions(), tuple(every), tuple(found), skipped)


def versions() -> dict[str, str]:
    """Versions of what the checks rest on."""
    from importlib.metadata import version

    from memsim import __version__

    return {"memsim": __version__} | {name: version(name) for name in ("torch", "triton", "numpy")}


def _by_stage(checks: Sequence[str], cases: Sequence[Case] | None, algorithm: str | None) -> dict[str, list[Case]]:
    grids: Mapping[str, Callable[[], Iterable[Case]]] = {
        "interpret": default_cases,
        "compile": lambda: map(Case, resource_points()),
        "gpu-numbers": lambda: cases_of(gpu_points()),
        "gpu-counters": lambda: map(Case, gpu_points()),
    }
    by_stage = {}
    for stage in dict.fromkeys(_STAGES[check] for check in checks):
        chosen = list(grids[stage]()) if cases is None else list(cases)
        chosen = [case for case in chosen if algorithm in (None, case.point.algorithm)]
        if stage in ("compile", "gpu-counters"):
            # Contiguous tensors only: once a point.
            chosen = list(dict.fromkeys(Case(case.point) for case in chosen if not case.far))
        elif stage == "gpu-numbers":
            chosen = [case for case in chosen if not case.far]
        by_stage[stage] = chosen
    return by_stage


def _skipped(checks: Iterable[str], gpu: str) -> dict[str, str]:
    import torch

    from memsim_kernels._ncu import ncu_here

    reasons: dict[str, str] = {}
    broken = _interpreter_fault()
    for check in checks:
        if _STAGES[check] == "interpret" and broken:
            reasons[check] = broken
        elif check.startswith("gpu-") and not torch.cuda.is_available():
            reasons[check] = "there is no CUDA GPU here."
        elif check == "gpu-counters" and ncu_here() is None:
            reasons[check] = "ncu is not installed here."
    return reasons


def _interpreter_fault() -> str:
    """Why nothing can be interpreted with the versions that are installed; empty if it can."""
    from importlib.metadata import version

    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    if triton < (3, 9) and numpy >= (2, 4):
        return (
            f"the interpreter of Triton {version('triton')} fails on loops with NumPy {version('numpy')}: install "
            "numpy<2.4, or Triton 3.9 or newer, where there is no GPU."
        )
    return ""


def _processes(stage: str, jobs: int) -> int:
    return jobs if stage == "interpret" else 1


def _parts(cases: Sequence[tuple[int, dict[str, Any]]], parts: int) -> list[list[tuple[int, dict[str, Any]]]]:
    return [part for start in range(parts) if (part := list(cases[start::parts]))]


def _outcomes(stage: str, requests: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
    """Outcomes as the stage's processes print them; where one ends early, what it did not answer disagrees."""
    queue: Queue[Outcome | None] = Queue()
    processes: list[subprocess.Popen[str]] = []

    def follow(request: dict[str, Any]) -> None:
        missing = {(number, check) for number, _ in request["cases"] for check in request["checks"]}
        said = ""
        try:
            with subprocess.Popen(
                [sys.executable, "-m", "memsim_kernels._verify_stage", stage],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=_environment(stage),
            ) as process:  # fmt: skip
                processes.append(process)
                assert process.stdin is not None and process.stdout is not None and process.stderr is not None
                errors: list[str] = []
                stderr = process.stderr
                reader = threading.Thread(target=lambda: errors.extend(stderr))
                reader.start()
                process.stdin.write(json.dumps(request))
                process.stdin.close()
                for line in process.stdout:
                    outcome = Outcome(**json.loads(line))
                    missing.discard((outcome.case, outcome.check))
                    queue.put(outcome)
                code = process.wait()
                reader.join()
            last = next((line.strip() for line in reversed(errors) if line.strip()), "")
            said = f"its process ended with code {code} before it answered{f': {last}' if last else ''}."
        except (OSError, ValueError, TypeError) as error:
            said = f"its process could not be followed: {error}."
        finally:
            for number, check in sorted(missing):
                queue.put(Outcome(number, check, DIFFERS, said[:400], {}))
            queue.put(None)

    threads = [threading.Thread(target=follow, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            outcome = queue.get()
            if outcome is None:
                running -= 1
            else:
                yield outcome
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def _environment(stage: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if stage == "interpret":
        # Triton 3.9 warns where fusion is left open.
        return {"TRITON_DEFAULT_FP_FUSION": "1"} | kept | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return kept
