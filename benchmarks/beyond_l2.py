"""What does an H200 read of HBM where K and V of a head outgrow its L2, in launches of many waves, and what the model?

Blocks that follow one another find in the L2 what the first of them fetched; where they have drifted apart they do not,
and the same kernel then reads tens of times as much. Rows of measurements/h200_beyond_l2.csv, which nothing is fitted
to and which are in no other table: d = 128, K and V of 25 to 67 MB a head, replayed in full.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from _bench import heading, table

from memsim import simulate
from memsim.measurements import read_measurements

MEASURED = Path(__file__).parents[1] / "measurements" / "h200_beyond_l2.csv"


def main() -> None:
    heading(__doc__ or "")
    rows = []
    for row in read_measurements(MEASURED).rows:
        problem, tile = row.problem, row.tile
        since = time.process_time()
        found = simulate("flash", problem, gpu="h200", tile=tile, full=True).launches[0]
        assert found.time_s is not None
        read_bytes, took_s = row.values["hbm_read_bytes"], row.values["duration_s"]
        rows.append([
            f"{problem.heads} × {problem.seq_len_q:,}", "causal" if problem.causal else "full",
            f"{tile.block_m}×{tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stages",
            f"{read_bytes / 1e9:,.1f} GB", f"{found.hbm_read_bytes / 1e9:,.1f} GB",
            f"{found.hbm_read_bytes / read_bytes:.2f}", f"{1e3 * took_s:,.0f} ms", f"{found.time_s / took_s:.2f}",
        ])  # fmt: skip
        print(f"{rows[-1][0]} {rows[-1][1]}: {time.process_time() - since:.0f} s", file=sys.stderr)
    table(
        ("heads × N", "mask", "tile", "read", "simulated", "ratio", "time", "simulated / measured"),
        rows,
    )


if __name__ == "__main__":
    main()
