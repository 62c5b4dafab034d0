"""What does an L2 save attention, and at which size does it stop?"""

from textwrap import fill

from memsim import Attention, load_gpu, simulate

GPU = load_gpu("h200")
D = 128
FLASH_N = (8192, 16384, 32768, 65536, 131072)
NAIVE_N = (1024, 2048, 3072, 4096, 6144, 8192)


def problem(n: int, heads: int = 1) -> Attention:
    return Attention(heads=heads, seq_len_q=n, seq_len_k=n, head_dim=D)


def mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f}"


def flash() -> str:
    """One head of flash: K and V pass again for each block of Q; what the L2 keeps of them."""
    print("flash, 1 head                           K and V from the L2    HBM reads, MB")
    print("      N    K and V, MB   x copies / L2       cold      warm        cold    x compulsory")
    over = {}
    for n in FLASH_N:
        cold, warm = (simulate("flash", problem(n), l2_state=state) for state in ("cold", "warm"))
        kept = 2 * n * D * 2
        rates = [result.launches[0].l2_hit_rate_by_tensor["K"] for result in (cold, warm)]
        over[n] = cold.total.hbm_read_bytes / (3 * n * D * 2)
        print(f"{n:7,} {mb(kept):>14} {kept * GPU.l2.partitions / GPU.l2.capacity_bytes:15.2f}", end="  ")
        print(f"{rates[0]:9.1%} {rates[1]:9.1%} {mb(cold.total.hbm_read_bytes):>11} {over[n]:15.2f}")
    most = max(over, key=lambda n: over[n])
    return (
        f"flash of one head reads HBM {over[FLASH_N[0]]:.2f} times as much as it must at N = {FLASH_N[0]:,} and"
        f" {over[most]:.2f} times at N = {most:,}"
    )


def naive() -> str:
    """The launches of naive, one after the other: what softmax and pv find of S and P."""
    print("\nnaive, 1 head     S found by    P found by    HBM, MB     of it without")
    print("      N    S, MB     softmax            pv     in all        an L2, MB")
    found = {}
    for n in NAIVE_N:
        result = simulate("naive", problem(n))
        counted = simulate("naive", problem(n), count_only=True)
        rates = [result.launch(at).l2_hit_rate_by_tensor[name] for at, name in (("softmax", "S"), ("pv", "P"))]
        found[n] = rates[0]
        print(f"{n:7,} {mb(2 * n * n):>8} {rates[0]:11.1%} {rates[1]:13.1%}", end=" ")
        print(f"{mb(result.total.hbm_bytes):>10} {mb(counted.total.hbm_bytes):>16}")
    whole = max((n for n in NAIVE_N if found[n] > 0.99), default=0)
    none = min((n for n in NAIVE_N if found[n] < 0.01), default=0)
    return (
        f"naive's softmax still finds all of S in the L2 up to N = {whole:,} ({mb(2 * whole**2)} MB) and none of it"
        f" from N = {none:,} on ({mb(2 * none**2)} MB)"
    )


def main() -> None:
    l2 = GPU.l2
    print(f"{GPU.name}, d = {D}, float16: an L2 of {mb(l2.capacity_bytes)} MB keeps shared data {l2.partitions} times.")
    print("cold: the L2 is empty at first. warm: it holds what the same run left. 1 MB = 10^6 bytes.\n")
    print("\n" + fill(f"Answer: {'; '.join([flash(), naive()])}.", 110))


if __name__ == "__main__":
    main()
