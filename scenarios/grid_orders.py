"""What does the order of flash's blocks change, and does the simulator know it?"""

import sys
from pathlib import Path
from textwrap import fill

from memsim import simulate
from memsim.measurements import read_measurements

STORED = Path(__file__).parents[1] / "measurements" / "h200_grid_orders.csv"
PROBLEMS = ("16×4096×128 causal", "64×65536×128")
TILE = (64, 64, 4)


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else STORED
    print("flash on an H200, 64x64, 4 warps: measured, and simulated")
    print("                                              time, us             HBM read, MB")
    print("problem                order            measured  simulated    measured  simulated")
    off, reads, causal = [], {}, {}
    for row in read_measurements(file).rows:
        tile, name = row.tile, row.name.split(", ")[0].removeprefix("flash ")
        if name not in PROBLEMS or (tile.block_m, tile.block_n, tile.num_warps) != TILE or row.cache_state != "cold":
            continue
        launch = simulate("flash", row.problem, gpu="h200", tile=tile).launch("flash")
        seconds, read = row.values["duration_s"], row.values["hbm_read_bytes"]
        print(
            f"{name:22} {tile.grid_order:16} {seconds * 1e6:8,.0f} {launch.time_s * 1e6:10,.0f}"
            f"   {read / 1e6:9,.0f} {launch.hbm_read_bytes / 1e6:10,.0f}"
        )
        off.append(abs(launch.time_s / seconds - 1))
        if row.problem.causal:
            causal[tile.grid_order] = (launch.time_s, seconds)
        else:
            reads[tile.grid_order] = (launch.hbm_read_bytes, read)
    ours, theirs = (reads["heads-fast"][n] / reads["rows-fast"][n] for n in (0, 1))
    best, best_measured = (min(causal, key=lambda order: causal[order][n]) for n in (0, 1))
    print("\n" + fill(
        f"Answer: with 64 heads of 65,536 keys heads-fast reads {theirs:,.0f} times what rows-fast reads (simulated:"
        f" {ours:,.0f} times), under a causal mask {best_measured} is the fastest order (simulated: {best}), and the"
        f" times of all {len(off)} launches are simulated within {max(off):.0%}.", 110,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
