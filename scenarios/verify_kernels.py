"""Is what the simulator says of attention what a real kernel does?

Needs torch and triton, and no GPU.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

from memsim import Attention, Tile, simulate
from memsim.measurements import read_measurements
from memsim.validate import validate

MEASURED = Path(__file__).parents[1] / "measurements" / "h200.csv"
SMALL = Attention(batch=1, heads=2, kv_heads=1, seq_len_q=90, seq_len_k=70, head_dim=40, causal=True)
TILES = {"flash": Tile(32, 16, 4, 3), "naive": Tile(16, 32, 4, 2)}


def closed_forms() -> bool:
    """What each kernel declares of itself, written apart from the simulator, beside what is counted."""
    from memsim_kernels.costs import costs_of

    print("\n1. bytes asked for and FLOPs: the kernel's closed form, and the simulator's count")
    same = True
    for name, tile in TILES.items():
        launches = simulate(name, SMALL, tile=tile, count_only=True).launches
        for cost, launch in zip(costs_of(name, SMALL, tile), launches, strict=True):
            declared = (cost.total_read_bytes, cost.total_written_bytes, cost.flops)
            counted = (launch.sram_fill_requested_bytes, launch.sram_store_requested_bytes, launch.flops)
            print(
                f"   {cost.name:8} " + "  ".join(f"{a:>10,} {b:>10,}" for a, b in zip(declared, counted, strict=True))
            )
            same &= declared == counted
    return same


def main() -> None:
    if find_spec("torch") is None or find_spec("triton") is None:
        sys.exit("verify_kernels needs torch and triton: pip install 'memsim[kernels]'.")
    from memsim_kernels.verify import CHECKS, Case, Point, verify

    print(f"Causal attention, 2 heads of 90 x 40 on 1 head of 70 x 40, {SMALL.dtype}")
    held = [closed_forms()]
    cases = [Case(Point(name, SMALL, tile, lse=True)) for name, tile in TILES.items()]
    large = Attention(heads=16, seq_len_q=4096, seq_len_k=4096, head_dim=128)
    compiled = [Case(Point("flash", large, Tile(128, 64, 8, 3))), Case(Point("naive", large, Tile(64, 64, 4, 3)))]
    for number, (check, of) in enumerate((("numbers", cases), ("accesses", cases), ("resources", compiled)), 2):
        found = verify(of, checks=[check])
        print(f"\n{number}. {CHECKS[check]}")
        for o in found.outcomes:
            said = f"{o.figures['records']} records of {o.figures['blocks']} blocks" if check == "accesses" else ""
            print(f"   {found.cases[o.case].label}: {o.status} {said}{o.detail}".rstrip())
        held.append(found.holds)
    print("\n5. the hardware's own counters of an H200, as they are stored")
    stored = validate(read_measurements(MEASURED))
    of = [s for s in stored.summaries if s.column in ("sram_fill_bytes", "sram_store_bytes")]
    for s in of:
        print(
            f"   {s.kernel:8} {s.column:17} {s.rows:3} rows, {s.exact:3} to the byte, {s.missed} beyond what is claimed"
        )
    held.append(not stored.missed)
    said = f"{sum(held)} of {len(held)} ways of asking agree: closed form, numbers, accesses, SRAM, hardware counters"
    print("\n" + fill(f"Answer: {said}.", 110))


if __name__ == "__main__":
    main()
