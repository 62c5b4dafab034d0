"""When is attention compute-bound, when memory-bound, when I/O-bound, and why?"""

from textwrap import fill

from memsim import Attention, Result, Tile, load_gpu, simulate

GPU = load_gpu("two-level")
PREFILL = Attention(heads=40, seq_len_q=1024, seq_len_k=1024, head_dim=128)
DECODE = Attention(batch=4, heads=40, seq_len_q=1, seq_len_k=4096, head_dim=128)
WORKLOADS = {
    "prefill": (PREFILL, Tile(128, 32), "hbm"),
    "decode": (DECODE, Tile(1, 64), "hbm"),
    "decode from host": (DECODE, Tile(1, 64), "host"),
}
FLOP_PER_CLOCK = GPU.sm.pipes.tensor_flop_per_clock["float16"]
HBM, HOST = GPU.hbm.bandwidth_bytes_per_s, GPU.host.bandwidth_bytes_per_s
FLOP_PER_S = FLOP_PER_CLOCK * GPU.sm.count * GPU.sm.clock_hz
TWICE = {
    "tensor": {"sm.pipes.tensor_flop_per_clock.float16": f"{2 * FLOP_PER_CLOCK}"},
    "hbm": {"hbm-bandwidth": f"{2 * HBM}"},
    "host": {"host-bandwidth": f"{2 * HOST}"},
}
WORDS = {"tensor": "compute-bound", "hbm": "memory-bound", "host": "I/O-bound"}
PARTS = {"tensor": "tensor pipe", "hbm": "HBM", "host": "host link"}


def run(name: str, options: dict[str, str] | None = None) -> Result:
    problem, tile, inputs = WORKLOADS[name]
    return simulate("flash", problem, gpu="two-level", gpu_options=options, tile=tile, inputs=inputs)


def main() -> None:
    balance = FLOP_PER_S / HBM
    print(f"two-level: {FLOP_PER_S / 1e12:.1f} TFLOP/s, HBM {HBM / 1e9:.0f} GB/s, host link {HOST / 1e9:.1f} GB/s.")
    print(f"Math and HBM are in balance at {balance:.0f} FLOP per byte of HBM. flash, 40 heads, d = 128, float16.")
    print("prefill: batch 1, 1,024 rows of Q, 1,024 keys. decode: batch 4, 1 row of Q, 4,096 keys.")
    print("from host: Q, K and V cross the host link before the kernel starts.\n")
    print("                   FLOP    time each alone would take, us           busy          time, us")
    print("                  /byte    tensor       HBM      host    tensor   HBM   host     in all  bound")
    results = {name: run(name).total for name in WORKLOADS}
    for name, t in results.items():
        alone = (t.flops / FLOP_PER_S, t.hbm_bytes / HBM, t.host_bytes / HOST)
        print(f"{name:16} {t.arithmetic_intensity:6.1f}" + "".join(f"{1e6 * s:10,.1f}" for s in alone), end="   ")
        print("".join(f"{t.busy[what]:7.0%}" for what in TWICE) + f"{1e6 * t.time_s:11,.1f}  {t.bound}")
    print("\n                  the SMs wait for memory,    time saved by twice the rate of")
    print("                  share of the kernel time    tensor       HBM      host")
    said = []
    for name, t in results.items():
        saved = {what: 1 - run(name, faster).total.time_s / t.time_s for what, faster in TWICE.items()}
        print(f"{name:16} {t.waiting_for_memory:12.0%}{'':13}" + "".join(f"{saved[what]:10.1%}" for what in TWICE))
        helps = max(saved, key=lambda what: saved[what])
        said.append(
            f"{name} is {WORDS.get(t.bound, t.bound)}: {t.arithmetic_intensity:.0f} FLOP per byte of HBM against"
            f" {balance:.0f}, {t.busy['host']:.0%} of the time on the host link, most saved by a faster {PARTS[helps]}"
        )
    print("\n" + fill(f"Answer: {'; '.join(said)}.", 110))


if __name__ == "__main__":
    main()
