"""How few HBM bytes can attention move with a given SRAM, and which SRAM is enough?"""

from math import log2
from textwrap import fill

from memsim import Attention, load_gpu, sweep
from memsim.bounds import compulsory_bytes, io_lower_bound_bytes
from memsim.gpu import apply_options

N, D = 4096, 64
PROBLEM = Attention(heads=1, seq_len_q=N, seq_len_k=N, head_dim=D)
AXES = {
    "algorithm": ["flash", "naive"],
    "sram": "1KiB:4MiB:x2",
    "tile": [f"{m}x{n}" for m in (2**power for power in range(13)) for n in sorted({1, 16, max(1, m // 2), m})],
}
OPTIONS = {"gpu": "two-level", "heads": 1, "seq-len": N, "head-dim": D, "num-stages": 1}
LEFT, DOUBLING, WIDTH = 2**20, 4, 52


def picture(marks: dict[str, int]) -> str:
    """Marks where the bytes lie right of LEFT, DOUBLING columns for a factor of two; the first of equals is seen."""
    line = [" "] * (WIDTH + 1)
    for mark, size_bytes in reversed(marks.items()):
        line[round(DOUBLING * log2(size_bytes / LEFT))] = mark
    return "".join(line).rstrip()


def main() -> None:
    table = sweep("flash", AXES, OPTIONS, count_only=True)
    floor = compulsory_bytes(PROBLEM)
    print(f"1 head, N = {N:,}, d = {D}, float16, on two-level (no L2; all of a block is in SRAM). Counted: the fewest")
    print(f"bytes across HBM of {len(table.axes['tile'])} tiles, as far as they fit. MB = 10^6 bytes.\n")
    print("SRAM, KiB  flash tile  flash MB  naive MB  bound MB  over bound  from 1 MiB, every doubling 4 columns")
    over, moved, sizes = [], [], []
    for sram in table.axes["sram"]:
        least = {}
        for algorithm in AXES["algorithm"]:
            at = {"algorithm": algorithm, "sram": sram}
            rows = [row for row in table.rows if row.status == "ok" and row.point.items() >= at.items()]
            least[algorithm] = min(rows, key=lambda row: row.hbm_bytes)
        size = apply_options(load_gpu("two-level"), {"sram": sram}).sm.sram.capacity_bytes
        bound = max(floor, io_lower_bound_bytes(PROBLEM, size))
        flash, naive = least["flash"], least["naive"]
        over, moved, sizes = [*over, flash.hbm_bytes / bound], [*moved, flash.hbm_bytes], [*sizes, size]
        figures = "".join(f"{b / 1e6:10,.1f}" for b in (flash.hbm_bytes, naive.hbm_bytes, bound))
        print(f"{size / 1024:9,.0f}{f'{flash.block_m} x {flash.block_n}':>12}{figures}{over[-1]:12.1f}", end="  ")
        print(picture({"f": flash.hbm_bytes, "n": naive.hbm_bytes, "b": bound}))
    print(
        f"\nf flash, n naive, b what no algorithm beats: Saha-Ye's bound, or Q, K, V and O once, {floor / 1e6:.1f} MB."
    )
    print(f"Saha-Ye: Theta(N^2 d / sqrt(M)) for M < d^2 elements ({2 * D * D // 1024} KiB), Theta(N^2 d^2 / M) beyond.")
    slope = moved[0] / moved[sizes.index(2**16)]
    enough = min(size for size, b in zip(sizes, moved, strict=True) if b == floor)
    knee, late = sizes.index(2 * D * D), sizes.index(2**16)
    answer = (
        f"flash's fewest bytes fall {slope:.0f} times from {sizes[0] // 1024} to 64 KiB, and from {over[0]:.0f} times"
    )
    answer += (
        f" the bound to {over[knee]:.0f} at {sizes[knee] // 1024} KiB (M = d^2) and {over[late]:.0f} at 64 KiB; from"
    )
    answer += (
        f" {enough // 1024:,} KiB on, when all rows of Q stay, they are the {floor / 1e6:.1f} MB that none can avoid,"
    )
    answer += f" where naive still moves {least['naive'].hbm_bytes / floor:.0f} times as many for S and P"
    print("\n" + fill(f"Answer: {answer}.", 110))


if __name__ == "__main__":
    main()
