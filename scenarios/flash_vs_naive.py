"""How much less does FlashAttention move and wait than standard attention as the sequence grows?"""

from textwrap import fill

from memsim import Attention, OutOfMemory, compare, simulate

REPLAYED = (512, 1024, 2048)
COUNTED = (4096, 8192, 16384, 32768, 65536)


def problem(n: int) -> Attention:
    return Attention(heads=16, seq_len_q=n, seq_len_k=n, head_dim=128)


def table(gpu: str) -> str:
    """Print one machine's table; what the answer says of it."""
    first = compare(problem(REPLAYED[0]), gpu=gpu, count_only=True)
    l2 = "l2" in simulate("flash", problem(16), gpu=gpu).levels
    shapes = ", ".join(f"{r.algorithm} {r.tile['block_m']} x {r.tile['block_n']}" for r in (first.naive, first.flash))
    print(f"\n{gpu}, tile: {shapes}")
    print("         HBM bytes, MB            naive / flash      time, us               waits for memory")
    print("      N      naive     flash  moved  written  held     naive  flash  ratio  naive  flash")
    moved, writes, faster, refused = {}, {}, [], []
    for n in (*REPLAYED, *COUNTED):
        if l2 and n == COUNTED[0]:
            print(*first.flash.notes, sep="\n")
        try:
            both = compare(problem(n), gpu=gpu, count_only=n not in REPLAYED)
        except OutOfMemory as refusal:
            refused.append(n)
            flash = simulate("flash", problem(n), gpu=gpu, count_only=True).total
            print(f"{n:7,} {'-':>10} {flash.hbm_bytes / 1e6:9,.0f}  {str(refusal).split(': Q')[0]}")
            continue
        naive, flash, ratios = both.naive.total, both.flash.total, both.ratios
        if n in REPLAYED or not l2:
            moved[n] = ratios["hbm_bytes"]
        writes[n] = naive.sram_store_bytes / flash.sram_store_bytes
        line = f"{n:7,} {naive.hbm_bytes / 1e6:10,.0f} {flash.hbm_bytes / 1e6:9,.0f} {ratios['hbm_bytes']:6.2f}"
        line += f" {writes[n]:8.0f} {ratios['peak_hbm_bytes']:5.0f}"
        if n in REPLAYED:
            faster.append(ratios["time_s"])
            line += f" {naive.time_s * 1e6:9,.0f} {flash.time_s * 1e6:6,.0f} {faster[-1]:6.2f}"
            line += f" {naive.waiting_for_memory:6.0%} {flash.waiting_for_memory:6.0%}"
        print(line)
    return (
        f"on {gpu} it moves {min(moved.values()):.2f} to {max(moved.values()):.2f} times fewer bytes (of those written"
        f" {writes[max(writes)]:.0f} times fewer at N = {max(writes):,}), takes {min(faster):.2f} to {max(faster):.2f}"
        f" times less time" + (f" and still runs at N = {refused[0]:,}, where naive does not fit" if refused else "")
    )


def main() -> None:
    print("Forward, batch 1, 16 heads, d = 128, float16, not causal; 1 MB = 10^6 bytes.")
    print("moved: reads and writes. held: all tensors, in HBM at once. waits for memory: share of the SMs' time in")
    print("which no resident block could go on for want of data. Without a time: bytes counted, not replayed.")
    said = [table(gpu) for gpu in ("two-level", "h200")]
    print("\n" + fill(f"Answer: flash beside naive: {'; '.join(said)}.", 110))


if __name__ == "__main__":
    main()
