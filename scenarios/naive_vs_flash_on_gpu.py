"""What do naive and flash move and take on a real GPU, beside what is simulated of them?"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

from memsim import compare, load_gpu
from memsim.measurements import Measurement, read_measurements

STORED = Path(__file__).parents[1] / "measurements" / "h200.csv"
TILE = ["--block-m=64", "--block-n=64", "--num-warps=4", "--num-stages=3"]


def measurements() -> Path:
    """The file that is named, else what this machine's GPU measures now, else the stored H200."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    asked = "import torch; exit(not torch.cuda.is_available())"
    if find_spec("torch") is None or subprocess.run([sys.executable, "-c", asked]).returncode:
        return STORED
    here = ["measure", "--vary=seq-len=1Ki,4Ki", "--vary=head-dim=64,128", *TILE, "--out=measured_here.csv"]
    subprocess.run([sys.executable, "-m", "memsim", *here], check=True, stdout=sys.stderr)
    return Path("measured_here.csv")


def sums(rows: list[Measurement]) -> list[float]:
    """Bytes into and out of SRAM, HBM bytes, seconds of the kernels."""
    groups = (("sram_fill_bytes", "sram_store_bytes"), ("hbm_read_bytes", "hbm_write_bytes"), ("duration_s",))
    return [sum(row.values[name] for row in rows for name in group) for group in groups]


def main() -> None:
    found = read_measurements(measurements()).rows
    rows = [row for row in found if row.cache_state == "cold" and not row.error and not row.problem.causal]
    print("naive / flash with the same tile, full attention, caches cold: measured, and simulated (two levels)")
    print("                                         SRAM bytes      HBM bytes            time")
    print("problem          dtype     tile        meas.    sim.   meas.    sim.    meas.    sim.")
    faster, exact = [], True
    for flash in (row for row in rows if row.kernel == "flash" and row.load_path == "pointer"):
        p, tile = flash.problem, flash.tile
        naive = [r for r in rows if r.problem == p and r.kernel in ("qk", "pv") and r.tile == tile]
        naive += [r for r in rows if r.problem == p and r.kernel == "softmax" and r.num_warps == tile.num_warps]
        if len(naive) < 3:
            continue
        replayed = p.heads * p.seq_len_q * p.seq_len_k <= 2**24
        both = compare(p, gpu=load_gpu(flash.gpu), tile=tile, count_only=not replayed)
        ours = [[t.sram_fill_bytes + t.sram_store_bytes, t.hbm_bytes] for t in (both.naive.total, both.flash.total)]
        (moved, hbm, took), (moved_1, hbm_1, took_1) = sums(naive), sums([flash])
        shape = f"{p.batch * p.heads}x{p.seq_len_q}{f'/{p.seq_len_k}' * (p.seq_len_k != p.seq_len_q)}x{p.head_dim}"
        line = f"{shape:16} {p.dtype:9} {tile.block_m}x{tile.block_n} {moved / moved_1:10.2f}"
        line += (
            f" {ours[0][0] / ours[1][0]:7.2f} {hbm / hbm_1:7.1f} {ours[0][1] / ours[1][1]:7.2f} {took / took_1:8.2f}"
        )
        print(line + (f" {both.ratios['time_s']:7.2f}" if replayed else "       -"))
        faster.append(took / took_1)
        exact &= moved_1 == ours[1][0]
    said = (
        f"flash takes {min(faster):.1f} to {max(faster):.1f} times less time than naive, and its bytes into and out of"
    )
    said += (
        f" SRAM are {'' if exact else 'not '}simulated exactly; naive's are fewer than asked for where blocks meet in"
    )
    said += " an L1, and HBM bytes show the L2, which keeps K and V and is not simulated yet"
    print("\n" + fill(f"Answer: {said}.", 110))


if __name__ == "__main__":
    main()
