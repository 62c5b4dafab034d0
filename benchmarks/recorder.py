"""How many accesses of an interpreted kernel does the recorder take in a second?

Flash and naive, in Triton's interpreter on the CPU, launched as they are ("interpreted") and recorded; results are
worked out in both. Processor time, the least of some runs. Needs torch and triton (extra `kernels`), no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time

# Read when a kernel is defined.
os.environ["TRITON_INTERPRET"] = "1"

from _bench import heading, line, seconds, table

from memsim import Attention, Tile

COLUMNS = ("kernel, N × d, tile", "loads", "stores", "interpreted", "recorded", "ratio", "accesses a second")
WIDTHS = (34, 6, 6, 11, 8, 5, 17)
PROBLEMS = [
    (Attention(heads=1, seq_len_q=1024, seq_len_k=1024, head_dim=64), Tile(64, 64, 4, 1)),
    (Attention(heads=2, seq_len_q=250, seq_len_k=300, head_dim=72, causal=True), Tile(32, 32, 4, 1)),
]
REPEATS = 2


def main() -> None:
    heading(__doc__ or "")
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        print("\nThe recorder needs torch and triton: pip install 'memsim[kernels]'.", file=sys.stderr)
        return
    import torch
    import triton
    from memsim_kernels.flash import flash_calls
    from memsim_kernels.inputs import random_inputs
    from memsim_kernels.naive import naive_calls
    from memsim_kernels.record import record_call

    from memsim.trace import Load, Store

    print(f"torch {torch.__version__}, Triton {triton.__version__}")
    table(COLUMNS, widths=WIDTHS)
    for problem, tile in PROBLEMS:
        q, k, v = random_inputs(problem, 0)
        o = torch.empty_like(q)
        s, p = (torch.empty(*q.shape[:3], problem.seq_len_k, dtype=q.dtype) for _ in range(2))
        calls = [
            *flash_calls(problem, q, k, v, o, None, tile),
            *naive_calls(problem, q, k, v, s, p, o, None, tile),
        ]
        for call in calls:
            recording = record_call(call)
            interpreted, recorded = [], []
            for _ in range(REPEATS):
                since = time.process_time()
                call.launch()
                between = time.process_time()
                recording = record_call(call)
                interpreted.append(between - since)
                recorded.append(time.process_time() - between)
            records = [record for block in recording.blocks.values() for record in block]
            loads, stores = (sum(isinstance(record, kind) for record in records) for kind in (Load, Store))
            n = f"{problem.heads} × {problem.seq_len_q} × {problem.head_dim}{', causal' if problem.causal else ''}"
            least = min(recorded)
            cost = (seconds(min(interpreted)), seconds(least), f"{least / min(interpreted):.2f}")
            label = f"{call.name}, {n}, {tile.block_m}×{tile.block_n}"
            line([label, f"{loads}", f"{stores}", *cost, f"{(loads + stores) / least:,.0f}"], WIDTHS)


if __name__ == "__main__":
    main()
