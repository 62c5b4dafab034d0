"""The process that runs under ncu: launches each point of a JSON file once, warmed up, and only that is profiled.

What the launches find in the caches is arranged here, except where ncu flushes them itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from memsim_kernels._grids import CHAINED, WARM
from memsim_kernels._ncu import point_of
from memsim_kernels._ready import ready
from memsim_kernels.inputs import random_inputs

# More than any L2 holds.
_MUCH_BYTES = 2**30


def main() -> None:
    """Run the points of the file that the command line names."""
    much = torch.zeros(_MUCH_BYTES // 4, dtype=torch.int32, device="cuda")
    for data in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        point = point_of(data)
        inputs = random_inputs(point.problem, seed=0, device="cuda")
        made = ready(point.algorithm, point.problem, point.tile, inputs, lse=point.lse)
        made.launch()
        if point.cache_state == CHAINED:
            # Drives out what the first launches left, dirty lines too, and leaves clean ones.
            much.amax()
        elif point.cache_state == WARM:
            made.launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        made.launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
