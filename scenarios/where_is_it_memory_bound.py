"""Where is attention memory-bound, on a machine of two levels and on one with an L2?"""

from textwrap import fill

from memsim import Attention, Launch, simulate

GPUS = ("two-level", "h200")
LENGTHS = (256, 512, 1024, 2048)
HEADS, D = 16, 64
MEMORY = ("hbm", "l2", "latency")


def bound_of(launch: Launch) -> str:
    """What holds a launch back, and how long its math waits for memory."""
    return f"{launch.bound} {launch.waiting_for_memory:.0%}"


def main() -> None:
    print(
        f"{HEADS} heads, d = {D}, float16, default tiles. What each launch is held back by, and the share of the time"
    )
    print(
        "in which its math waits for memory. HBM: bytes it moves over those that cross between it or an L2 and the SMs."
    )
    seen: dict[tuple[str, str, int], str] = {}
    for gpu in GPUS:
        print(f"\n{gpu}\n      N  {'qk':14}{'softmax':14}{'pv':14}{'HBM':>6}   {'flash':14}{'HBM':>6}")
        for n in LENGTHS:
            problem = Attention(heads=HEADS, seq_len_q=n, seq_len_k=n, head_dim=D)
            line = f"{n:7,}  "
            for algorithm in ("naive", "flash"):
                result = simulate(algorithm, problem, gpu=gpu)
                for launch in result.launches:
                    seen[gpu, launch.name, n] = launch.bound
                    line += f"{bound_of(launch):14}"
                t = result.total
                line += f"{t.hbm_bytes / (t.sram_fill_bytes + t.sram_store_bytes):6.0%}   "
            print(line.rstrip())
    kernels = ("qk", "softmax", "pv", "flash")
    by_memory = {
        gpu: sum(seen[gpu, name, n] in MEMORY for name in kernels for n in LENGTHS) for gpu in GPUS
    }  # fmt: skip
    apart = [
        f"{name} at N = {n:,}"
        for name in kernels
        for n in LENGTHS
        if len({seen[gpu, name, n] in MEMORY for gpu in GPUS}) > 1
    ]
    flash = {gpu: sum(seen[gpu, "flash", n] in MEMORY for n in LENGTHS) for gpu in GPUS}
    count = len(kernels) * len(LENGTHS)
    print("\n" + fill(
        f"Answer: memory holds back {by_memory['two-level']} of {count} launches on two levels and {by_memory['h200']}"
        f" on the H200, flash {flash['two-level']} and {flash['h200']} of {len(LENGTHS)} times; the two machines"
        f" disagree on {len(apart)}{': ' if apart else ''}{', '.join(apart)}.", 110,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
