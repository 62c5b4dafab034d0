"""Is `bound` the resource whose relief saves most? Doubles each resource in turn on random problems."""

from __future__ import annotations

import random

import memsim
from memsim.gpu import override

PROBLEMS = 40
TWICE = {
    "hbm": ("hbm.bandwidth_bytes_per_s", 2.0),
    "l2": ("l2.bandwidth_bytes_per_s", 2.0),
    "latency": ("hbm.latency_s", 0.5),
    "tensor": ("sm.pipes.tensor_flop_per_clock.float16", 2.0),
    "exp": ("sm.pipes.exp_per_clock.float32", 2.0),
    "alu": ("sm.pipes.alu_per_clock.float32", 2.0),
    "sram": ("sm.sram.bandwidth_bytes_per_clock", 2.0),
}


def relieved(gpu: memsim.Gpu, key: str, factor: float) -> memsim.Gpu:
    value = gpu.model_dump()
    for part in key.split("."):
        value = value[part]
    return override(gpu, {key: value * factor})


def main() -> None:
    rng = random.Random(0)
    misses: list[tuple[float, str]] = []
    launches = 0
    for _ in range(PROBLEMS):
        gpu = memsim.load_gpu(rng.choice(("two-level", "h200", "a100-40gb")))
        algorithm = rng.choice(("flash", "flash", "naive"))
        problem = memsim.Attention(
            heads=rng.choice((4, 16, 40)), seq_len_q=rng.choice((1, 128, 1024, 2048)),
            seq_len_k=rng.choice((128, 1024, 2048)), head_dim=rng.choice((32, 64, 128)), causal=rng.random() < 0.3,
        )  # fmt: skip
        tile = memsim.Tile(
            rng.choice((16, 32, 64, 128)), rng.choice((16, 32, 64, 128)), rng.choice((4, 8)), rng.choice((1, 2, 3))
        )
        try:
            base = memsim.simulate(algorithm, problem, gpu=gpu, tile=tile)
        except memsim.TileDoesNotFit:
            continue
        changed = {
            name: memsim.simulate(algorithm, problem, gpu=relieved(gpu, *change), tile=tile)
            for name, change in TWICE.items()
            if name != "l2" or gpu.l2 is not None
        }
        for index, launch in enumerate(base.launches):
            gains = {name: 1 - (r.launches[index].time_s or 0) / (launch.time_s or 1) for name, r in changed.items()}
            best = max(gains, key=lambda name: gains[name])
            launches += 1
            lost = gains[best] - gains[launch.bound or best]
            if lost > 0.03:
                misses.append((lost, f"{gpu.name} {algorithm}/{launch.name} {tile}: {launch.bound}, but {best}"))
    print(f"{launches} launches; relief of another resource saves over 3 points more in {len(misses)}:")
    for lost, what in sorted(misses, reverse=True):
        print(f"  {100 * lost:5.1f} points  {what}")


if __name__ == "__main__":
    main()
