"""Which block moves at each step, and how often do K and V pass?"""

from collections import Counter
from textwrap import fill

import numpy as np

from memsim import Attention, Tile, compute, simulate
from memsim.numerics import Step

N, D, BLOCK = 128, 128, 32
PROBLEM = Attention(heads=1, seq_len_q=N, seq_len_k=N, head_dim=D)
TILE = Tile(block_m=BLOCK, block_n=BLOCK)
ENDS_LINE = {"flash": ("load Q", "load V", "store O"), "naive": ("store S", "store P", "store O")}


def name(step: Step) -> str:
    """Q0 is rows 0 to 31 of Q; S01 is rows 0 to 31 and columns 32 to 63 of S. What is stored has an arrow."""
    row, col = step.at[2] // BLOCK, step.at[3] // BLOCK
    in_blocks = step.name in "SP" and step.values.shape[1] == BLOCK
    return f"{'-> ' * (step.operation == 'store')}{step.name}{row}{col if in_blocks else ''}"


def walk(algorithm: str) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Print the moves, some to a line; bytes by tensor, and how often each block of Q met each block."""
    steps: list[Step] = []
    array = np.ones((1, 1, N, D), dtype=np.float16)
    compute(algorithm, PROBLEM, array, array, array, gpu="two-level", tile=TILE, watch=steps.append)
    print(f"\n{algorithm}\nmoves   KiB  so far  blocks")
    moved, met, shown, count, words, q = Counter(), Counter(), 0, 0, [], ""
    for step in (s for s in steps if s.operation in ("load", "store") and s.name != "LSE"):
        q = name(step) if step.name == "Q" else q
        met[q, name(step)] += 1
        count, moved[step.name] = count + 1, moved[step.name] + step.values.size * PROBLEM.dtype_bytes
        if name(step) not in words[-2:]:  # softmax goes row by row: S0 -> P0 stands for all rows of the block
            words.append(name(step))
        last_part = step.name not in "SP" or step.at[3] + BLOCK == N or step.at[2] % BLOCK == BLOCK - 1
        if last_part and f"{step.operation} {step.name}" in ENDS_LINE[algorithm]:
            print(f"{count:5} {(moved.total() - shown) / 1024:5.0f} {moved.total() / 1024:7.0f}  {' '.join(words)}")
            shown, count, words = moved.total(), 0, []
    counted = simulate(algorithm, PROBLEM, gpu="two-level", tile=TILE, count_only=True).total
    print(f"The same, counted without running: {counted.hbm_bytes / 1024:.0f} KiB; ", end="")
    print(f"Q, K, V read once and O written once: {counted.compulsory_bytes / 1024:.0f} KiB.")
    return moved, met


def main() -> None:
    print(f"One head; Q, K, V and O are {N} x {D}, float16, in blocks of {BLOCK} rows ({BLOCK * D * 2 // 1024} KiB).")
    print("Blocks named are fetched from HBM into SRAM, those after an arrow are written back, in program order (K and")
    print(f"V are in fact fetched ahead). S00 is {BLOCK} x {BLOCK} scores, S0 is {BLOCK} whole rows, one at a time.")
    (flash, met), (naive, _) = walk("flash"), walk("naive")
    passes, blocks = {n for (_, block), n in met.items() if block[0] in "KV"}, len({q for q, _ in met})
    answer = f"each block of K and V passes {'once' if passes == {1} else f'{passes} times'} for each of the {blocks}"
    answer += f" blocks of Q; flash moves {flash.total() // 1024} KiB, naive {naive.total() // 1024} KiB, S and P being"
    answer += f" {(naive['S'] + naive['P']) // 1024} KiB of it."
    print("\n" + fill(f"Answer: {answer}", 110))


if __name__ == "__main__":
    main()
