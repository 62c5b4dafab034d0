"""How do FlashAttention's HBM bytes fall as SRAM grows, and how far above the lower bound do they stay?"""

from textwrap import fill

from memsim import Attention, MemsimError, Result, Tile, simulate
from memsim.bounds import io_lower_bound_bytes

SRAM_KIB = (16, 32, 64, 128, 192, 256, 512, 1024)
BLOCK_M = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
BLOCK_N = (16, 32, 64, 128, 256)
TILES = [Tile(m, n, num_stages=1) for m in BLOCK_M for n in BLOCK_N]
PROBLEM = Attention(heads=1, seq_len_q=65536, seq_len_k=65536, head_dim=64)


def best(algorithm: str, options: dict[str, str]) -> Result:
    """The result with the fewest HBM bytes over all tiles that fit."""
    results = []
    for tile in TILES:
        try:
            r = simulate(algorithm, PROBLEM, gpu="two-level", gpu_options=options, tile=tile, count_only=True)
            results.append(r)
        except MemsimError:  # it does not fit
            continue
    return min(results, key=lambda r: r.total.hbm_bytes)


def share_of_scores(result: Result) -> float:
    """The share of the bytes that S and P are."""
    moves = [of for launch in result.launches for of in (launch.fill_bytes_by_tensor, launch.store_bytes_by_tensor)]
    return sum(of.get(name, 0) for of in moves for name in "SP") / result.total.hbm_bytes


def main() -> None:
    print("Forward, 1 head, N = 65,536, d = 64, float16, on two-level (no L2; S and O take SRAM, in float32).")
    print(f"The best of {len(TILES)} tiles at each SRAM size, counted; MB = 10^6 bytes across HBM.")
    print("Lower bound, M = elements of one SRAM: 2 bytes * M * (N^2 d / (M^2/d + sqrt(3) M^1.5) - 1).\n")
    print("SRAM, KiB    flash tile   flash MB  bound MB  flash/bound   naive tile   naive MB  of it S, P  naive/flash")
    flash_mb, naive_mb, over = [], [], []
    for kib in SRAM_KIB:
        flash, naive = (best(algorithm, {"sram": f"{kib}KiB"}) for algorithm in ("flash", "naive"))
        bound = io_lower_bound_bytes(PROBLEM, kib * 1024)
        flash_mb.append(flash.total.hbm_bytes / 1e6)
        naive_mb.append(naive.total.hbm_bytes / 1e6)
        over.append(flash.total.hbm_bytes / bound)
        tiles = [f"{r.tile['block_m']} x {r.tile['block_n']}" for r in (flash, naive)]
        print(
            f"{kib:9,} {tiles[0]:>13} {flash_mb[-1]:10,.0f} {bound / 1e6:9,.0f} {over[-1]:12.1f} {tiles[1]:>12}", end=""
        )
        print(f" {naive_mb[-1]:10,.0f} {share_of_scores(naive):11.0%} {naive_mb[-1] / flash_mb[-1]:12.1f}")
    print(f"\nQ, K, V read once and O written once: {flash.total.compulsory_bytes / 1e6:,.0f} MB.")
    answer = f"with {SRAM_KIB[-1] / SRAM_KIB[0]:.0f} times the SRAM flash moves {flash_mb[0] / flash_mb[-1]:.0f} times"
    answer += f" fewer bytes, {min(over):.1f} to {max(over):.1f} times the lower bound; naive moves"
    answer += (
        f" {naive_mb[0] / naive_mb[-1]:.1f} times fewer, S and P being {share_of_scores(naive):.0%} of what is left."
    )
    print("\n" + fill(f"Answer: {answer}", 110))


if __name__ == "__main__":
    main()
