"""How does the cost of a simulation grow with N, heads and tiles?

Each size is simulated in a process of its own: flash, float16, d = 128, on an H200, after the imports. First with an
empty cache folder ("cold": the compiled kernel's instructions are run too), then with what that left ("warm"). The
factors are from the row before: of warm runs' processor time, and of memory. cold and warm are seconds on the clock.
The first rows are the problem that the project promises to answer.

python benchmarks/growth.py [--most-seconds S] [--gpu NAME]    no size that takes longer than S, which ends its series
"""

from __future__ import annotations

import argparse
import tempfile

from _bench import Failed, Measured, TookLonger, heading, line, megabytes, of_its_own, seconds, table

from memsim import Attention, Tile, simulate

COLUMNS = ("heads × N, tile", "cold", "warm", "processor", "factor", "peak memory", "factor", "simulated", "tile ops")
WIDTHS = (34, 8, 8, 9, 6, 11, 6, 10, 14)
SIDE = 64
PROMISED = (64, 131072, SIDE, SIDE)
SERIES = {
    "N": [(16, n, SIDE, SIDE) for n in (2048, 4096, 8192, 16384, 32768, 65536, 131072)],
    "heads": [(heads, 8192, SIDE, SIDE) for heads in (8, 16, 32, 64, 128)],
    "smaller tiles": [(16, 8192, m, n) for m, n in ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32))],
}


def run(heads: int, n: int, block_m: int, block_n: int, causal: bool, gpu: str) -> dict[str, float]:
    """What one simulation says, in short."""
    problem = Attention(heads=heads, seq_len_q=n, seq_len_k=n, head_dim=128, causal=causal)
    result = simulate("flash", problem, gpu=gpu, tile=Tile(block_m, block_n, 4, 2))
    return {"time_s": result.total.time_s or 0.0, "tile_operations": result.total.tile_operations}


def series(sizes: list[tuple[int, int, int, int]], causal: bool, gpu: str, most_s: float) -> None:
    before: Measured | None = None
    for size in sizes:
        heads, n, block_m, block_n = size
        label = f"{heads:>3} × {n:>7,}, {block_m}×{block_n}{', causal' if causal else ''}"
        with tempfile.TemporaryDirectory() as cache:
            try:
                cold, warm = (
                    of_its_own(__file__, "run", *size, causal, gpu, environment={"MEMSIM_CACHE": cache}, limit_s=most_s)
                    for _ in range(2)
                )
            except (TookLonger, Failed) as stop:
                line([label, str(stop)], [WIDTHS[0], 0])
                return
        factors = ("", "")
        if before is not None:
            factors = (f"{warm.processor_s / before.processor_s:.2f}", f"{warm.peak_bytes / before.peak_bytes:.2f}")
        line(
            [
                label, seconds(cold.seconds), seconds(warm.seconds), seconds(warm.processor_s), factors[0],
                megabytes(max(cold.peak_bytes, warm.peak_bytes)), factors[1], seconds(warm.value["time_s"]),
                f"{warm.value['tile_operations']:,}",
            ],
            WIDTHS,
        )  # fmt: skip
        before = warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-seconds", type=float, default=60, help="for one process, imports included")
    parser.add_argument("--gpu", default="h200")
    options = parser.parse_args()
    heading(__doc__ or "")
    given = (options.gpu, options.most_seconds)
    table(COLUMNS, widths=WIDTHS)
    for causal in (False, True):
        series([PROMISED], causal, *given)
    for name, sizes in SERIES.items():
        for causal in (False, True):
            print(f"\n{name}{', causal' if causal else ''}")
            series(sizes, causal, *given)


if __name__ == "__main__":
    main()
