"""Which side of the tile decides FlashAttention's HBM bytes, and which tile is the fastest?"""

from textwrap import fill

from memsim import Attention, Launch, Tile, TileDoesNotFit, load_gpu, simulate

BLOCK_M = (32, 64, 96, 128, 192, 256)
BLOCK_N = (16, 32, 64, 128, 256)
PROBLEM = Attention(heads=20, seq_len_q=1024, seq_len_k=1024, head_dim=128)
SM = load_gpu("two-level").sm


def run(tile: Tile, **arguments: object) -> Launch:
    return simulate("flash", PROBLEM, gpu="two-level", tile=tile, **arguments).launch("flash")


def hbm_bytes(launch: Launch) -> int:
    return launch.hbm_read_bytes + launch.hbm_write_bytes


def full(launch: Launch) -> float:
    """The share of the places of all waves that blocks take."""
    return launch.blocks / (launch.waves * launch.blocks_per_sm * SM.count)


def main() -> None:
    grid = [(m, n) for m in BLOCK_M for n in BLOCK_N]
    fits: dict[tuple[int, int], Launch] = {}
    moved, took = {}, {}
    for at in grid:
        try:
            fits[at] = launch = run(Tile(*at))
            moved[at] = f"{hbm_bytes(launch) / 1e6:,.0f}"
            took[at] = f"{launch.time_s * 1e6:,.0f} ({launch.blocks_per_sm}, {launch.waves})"
        except TileDoesNotFit:
            ample = run(Tile(*at), gpu_options={"sram": "4MiB"}, count_only=True)
            moved[at] = took[at] = f"[{ample.sram_bytes / 1024:,.0f} KiB]"
    print("flash on two-level: 20 heads, N = 1,024, d = 128, float16, 2 stages.")
    print(f"[ KiB]: needs so much SRAM, and an SM has {SM.sram.block_limit_bytes / 1024:.0f} KiB.")
    for title, cells in (("HBM bytes, MB (10^6)", moved), ("Time of the kernel, us (blocks per SM, waves)", took)):
        print(f"\n{title}\nblock_m \\ block_n" + "".join(f"{n:>12}" for n in BLOCK_N))
        for m in BLOCK_M:
            print(f"{m:>17}" + "".join(f"{cells[m, n]:>12}" for n in BLOCK_N))

    def changes(side: int) -> bool:
        """Whether the bytes differ among tiles that differ in this side alone."""
        return any(hbm_bytes(fits[a]) != hbm_bytes(fits[b]) for a in fits for b in fits if a[1 - side] == b[1 - side])

    sides = " and ".join(name for side, name in enumerate(("block_m", "block_n")) if changes(side))
    leanest, fastest = min(fits, key=lambda at: hbm_bytes(fits[at])), min(fits, key=lambda at: fits[at].time_s)
    answer = f"{sides} alone decides the bytes; {leanest[0]} x {leanest[1]} moves the fewest, but takes"
    answer += f" {fits[leanest].time_s / fits[fastest].time_s:.2f} times as long as {fastest[0]} x {fastest[1]}, the"
    answer += f" fastest: its blocks fill {full(fits[leanest]):.0%} of the places of its waves, those of the fastest"
    print("\n" + fill(f"Answer: {answer} {full(fits[fastest]):.0%}.", 110))


if __name__ == "__main__":
    main()
