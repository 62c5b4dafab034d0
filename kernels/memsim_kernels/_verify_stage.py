"""One stage of `memsim verify` in a process of its own: cases on standard input, an outcome a line on standard output.

Interpreting, compiling and launching do not go together in one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from memsim.errors import MemsimError
from memsim.gpu import load_gpu
from memsim_kernels._verify_cases import DIFFERS, Outcome, case_of, unexpected


def outcomes(stage: str, request: dict[str, Any]) -> Iterator[Outcome]:
    """The outcomes of a stage: "interpret", "compile", "gpu-numbers" or "gpu-counters"."""
    gpu = load_gpu(request["gpu"])
    cases = [(number, case_of(data)) for number, data in request["cases"]]
    if stage == "compile":
        from memsim_kernels._verify_compile import check_resources

        yield from check_resources(cases, gpu, request["jobs"])
    elif stage == "gpu-counters":
        from memsim_kernels._verify_gpu import check_counters

        yield from check_counters(cases, request["gpu"])
    for number, case in cases if stage in ("interpret", "gpu-numbers") else ():
        left = list(request["checks"])
        try:
            if stage == "interpret":
                from memsim_kernels._verify_interpret import check_case

                for outcome in check_case(number, case, request["checks"], gpu):
                    left.remove(outcome.check)
                    yield outcome
            else:
                from memsim_kernels._verify_gpu import check_numbers

                yield check_numbers(number, case, gpu)
        except MemsimError as error:
            yield from (Outcome(number, check, DIFFERS, " ".join(error.faults), {}) for check in left)
        except Exception as error:
            # A kernel that raises is a finding about that case; the rest are still to be checked.
            yield from (unexpected(number, check, error) for check in left)


def main() -> None:
    """Read a request, write outcomes as they come."""
    request = json.load(sys.stdin)
    for outcome in outcomes(sys.argv[1], request):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
