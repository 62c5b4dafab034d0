"""What does the block size of the FlashAttention paper's Algorithm 1 do to its HBM bytes?"""

from math import ceil
from textwrap import fill

from memsim import Attention, Launch, MemsimError, Tile, simulate

PROBLEM = Attention(batch=64, heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=64)
PAPER_SRAM = 192 * 1024


def count(gpu: str, block_n: int, block_m: int = 64, **gpu_options: str) -> Launch:
    """The one launch, its bytes counted between SRAM and HBM without an L2, as the paper does."""
    tile = Tile(block_m, block_n, num_stages=1)
    result = simulate("flash1", PROBLEM, gpu=gpu, gpu_options=gpu_options, tile=tile, count_only=True)
    return result.launch("flash1")


def show(block_n: int, launch: Launch) -> float:
    """Print one block size; its bytes in GB."""
    read, written = launch.fill_bytes_by_tensor, launch.store_bytes_by_tensor
    groups = ("KV", "Q", "O", "ml")
    parts = [sum(read.get(name, 0) + written.get(name, 0) for name in group) / 1e9 for group in groups]
    print(f"{block_n:7}" + "".join(f"{gb:8.2f}" for gb in parts) + f"{sum(parts):9.2f}", end="")
    print(f"{launch.sram_bytes / 1024:14.1f}")
    return sum(parts)


def main() -> None:
    print("Forward, batch 64, 16 heads, N = 1,024, d = 64, float16, m and l float32; block_m = 64; 1 GB = 10^9 bytes.")
    print("O, m and l are written once to initialise them, then read and written again for every block of K and V.\n")
    print("block_n    K, V       Q       O    m, l   all, GB  SRAM, KiB of a block")
    moved = {n: show(n, count("a100-40gb", n, l2="none")) for n in (64, 128, 256, 512)}
    smallest, largest = min(moved), max(moved)

    elements, d = PAPER_SRAM // PROBLEM.dtype_bytes, PROBLEM.head_dim
    paper_n = ceil(elements / (4 * d))
    paper_m = min(paper_n, d)
    print(f"\nThe paper's choice for M = {elements:,} elements (192 KiB): ", end="")
    print(f"block_n = M / 4d = {paper_n}, block_m = {paper_m}.")
    for gpu in ("a100-40gb", "two-level"):
        try:
            count(gpu, paper_n, paper_m)
        except MemsimError as refusal:
            print(fill(f"{gpu} refuses it: {refusal}", 110))
    print("Counted on two-level with SRAM enough:\n")
    paper = show(paper_n, count("two-level", paper_n, paper_m, sram="1MiB"))

    falls = moved[smallest] / moved[largest]
    answer = f"from block_n = {smallest} to {largest} the bytes fall {falls:.1f} times, from {moved[smallest]:.2f} to"
    answer += f" {moved[largest]:.2f} GB, because each block of K and V costs one more pass over Q, O, m and l; "
    answer += f"the paper's own block moves {paper:.2f} GB."
    print("\n" + fill(f"Answer: {answer}", 110))


if __name__ == "__main__":
    main()
