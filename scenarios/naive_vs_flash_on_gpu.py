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


def total(rows: list[Measurement], *names: str) -> float:
    return sum(row.values[name] for row in rows for name in names)


def main() -> None:
    found = [row for row in read_measurements(measurements()).rows if not row.error and not row.problem.causal]
    cold, chained = ([row for row in found if row.cache_state == state] for state in ("cold", "chained"))
    print("naive / flash with the same tile, full attention: measured, and simulated. Caches are cold at first;")
    print("naive's launches run one after the other, so that they find in the L2 what is left of S and P there.")
    print("                                         SRAM bytes      HBM bytes            time")
    print("problem          dtype     tile        meas.    sim.   meas.    sim.    meas.    sim.")
    faster, fewer, off, exact = [], [], [], True
    for flash in (row for row in cold if row.kernel == "flash" and row.load_path == "pointer"):
        p, tile = flash.problem, flash.tile
        alone, in_turn = (
            [r for r in rows if r.problem == p and r.kernel in ("qk", "softmax", "pv") and r.num_warps == tile.num_warps
             and (r.tile == tile or r.kernel == "softmax")] for rows in (cold, chained)
        )  # fmt: skip
        if len(in_turn) < 3 or p.batch * p.heads * p.seq_len_q * p.seq_len_k > 2**26:
            continue
        both = compare(p, gpu=load_gpu(flash.gpu), tile=tile)
        sram, hbm = ("sram_fill_bytes", "sram_store_bytes"), ("hbm_read_bytes", "hbm_write_bytes")
        measured = [total(alone, *sram) / total([flash], *sram)]
        measured += [total(in_turn, *names) / total([flash], *names) for names in (hbm, ("duration_s",))]
        ours = [[t.sram_fill_bytes + t.sram_store_bytes, t.hbm_bytes, t.time_s - t.launch_overhead_s]
                for t in (both.naive.total, both.flash.total)]  # fmt: skip
        simulated = [one / other for one, other in zip(*ours, strict=True)]
        shape = f"{p.batch * p.heads}x{p.seq_len_q}{f'/{p.seq_len_k}' * (p.seq_len_k != p.seq_len_q)}x{p.head_dim}"
        pairs = [f"{a:8.2f} {b:7.2f}" for a, b in zip(measured, simulated, strict=True)]
        print(f"{shape:16} {p.dtype:9} {tile.block_m}x{tile.block_n}   {''.join(pairs)}")
        faster.append(measured[2])
        fewer.append(measured[1])
        off.append(abs(simulated[2] / measured[2] - 1))
        exact &= total([flash], *sram) == ours[1][0]
    print("\n" + fill(
        f"Answer: flash takes {min(faster):.1f} to {max(faster):.1f} times less time than naive and moves"
        f" {min(fewer):.1f} to {max(fewer):.1f} times fewer bytes through HBM, its bytes into and out of SRAM are"
        f" {'' if exact else 'not '}simulated exactly, and the ratio of times is simulated within {max(off):.0%}.", 110,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
