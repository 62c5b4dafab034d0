"""What genz-llm says of attention alone: its operators Logit and Attend, S staying on the chip where they are fused."""

from __future__ import annotations

import importlib.metadata
import time

from GenZ import System
from GenZ.analyse_model import analysis_model
from GenZ.Models import OpType, ResidencyInfo

REPEATS = 5


def run(heads: int, n: int, head_dim: int, tensor_flop_per_s: float, hbm_bytes_per_s: float, fused: bool) -> dict:
    """Seconds that it predicts, bytes that it has cross the chip's edge, what bounds each operator, and the processor
    time that an answer takes (the least of some)."""
    # Its GB/s are 2^30 bytes/s: what a data sheet says is scaled so that it means the same.
    system = System(flops=tensor_flop_per_s / 1e12, offchip_mem_bw=hbm_bytes_per_s / 2**30, bits="bf16")
    kept = (ResidencyInfo.C_onchip, ResidencyInfo.A_onchip) if fused else (ResidencyInfo.All_offchip,) * 2
    operators = [
        ["Logit", 1, heads, n, n, head_dim, heads, kept[0], OpType.Logit],
        ["Attend", 1, heads, n, n, head_dim, heads, kept[1], OpType.Attend],
    ]
    took = []
    for _ in range(REPEATS):
        since = time.process_time()
        found = analysis_model(operators, system)
        took.append(time.process_time() - since)
    on_chip = ("Output (MB)", "Input_a (MB)") if fused else ()
    outside = found[["Input_a (MB)", "Input_w (MB)", "Output (MB)"]].to_numpy().sum()
    if fused:
        outside -= sum(found.loc[at, column] for at, column in enumerate(on_chip))
    return {
        "version": importlib.metadata.version("genz-llm"),
        "time_s": float(found["Latency (msec)"].sum()) / 1e3,
        "hbm_bytes": float(outside) * 2**20,
        "bound": ", ".join(found["Bound"]),
        "seconds": min(took),
    }
