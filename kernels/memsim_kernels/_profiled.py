"""The process that runs under ncu: launches each point of a JSON file once, warmed up, and only that is profiled."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from memsim_kernels._ncu import point_of
from memsim_kernels._ready import ready
from memsim_kernels.inputs import random_inputs


def main() -> None:
    """Run the points of the file that the command line names."""
    for data in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        point = point_of(data)
        inputs = random_inputs(point.problem, seed=0, device="cuda")
        made = ready(point.algorithm, point.problem, point.tile, inputs, lse=point.lse)
        made.launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        made.launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
