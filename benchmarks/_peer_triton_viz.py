"""One launch of flash traced by triton-viz, and recorded by memsim's recorder, in the environment of the former."""

from __future__ import annotations

import os
import time
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import torch
import triton
import triton_viz
from memsim_kernels.flash import flash_calls
from memsim_kernels.record import record_call
from triton_viz.core.trace import launches

from memsim import Attention, Tile
from memsim.trace import Load, Store

REPEATS = 3


def run(n: int, head_dim: int, side: int) -> dict:
    """Versions, and of each way seconds of processor time (the least), loads and stores."""
    problem = Attention(heads=1, seq_len_q=n, seq_len_k=n, head_dim=head_dim)
    q, k, v, o = (torch.zeros(1, 1, n, head_dim, dtype=torch.float16) for _ in range(4))
    (call,) = flash_calls(problem, q, k, v, o, None, Tile(side, side, 4, 1))
    bare, recorded, traced = [], [], []
    for _ in range(REPEATS):
        since = time.process_time()
        call.launch()
        bare.append(time.process_time() - since)
        since = time.process_time()
        recording = record_call(call)
        recorded.append(time.process_time() - since)
    # Last: triton-viz leaves something patched, so that the recorder's made-up addresses would be read.
    for _ in range(REPEATS):
        triton_viz.clear()
        wrapped = replace(call, kernel=triton_viz.trace("tracer")(call.kernel))
        since = time.process_time()
        wrapped.launch()
        traced.append(time.process_time() - since)
    records = [record for block in recording.blocks.values() for record in block]
    seen = [type(record).__name__ for record in launches[-1].records]
    return {
        "versions": f"triton-viz {triton_viz.__version__}, Triton {triton.__version__}, NumPy {numpy.__version__}",
        "interpreter": {"seconds": min(bare)},
        "memsim": {
            "seconds": min(recorded), "loads": sum(isinstance(one, Load) for one in records),
            "stores": sum(isinstance(one, Store) for one in records),
        },
        "triton-viz": {"seconds": min(traced), "loads": seen.count("Load"), "stores": seen.count("Store")},
    }  # fmt: skip
