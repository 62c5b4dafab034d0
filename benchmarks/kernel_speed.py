"""How fast are the kernels beside torch's own? Needs a CUDA GPU.

Times flash (its default tile, and with --all every candidate), naive, and torch's FLASH and CUDNN backends on random
data: CUDA events, L2 flushed between repetitions, median. TFLOP/s count the FLOPs that visible pairs need.

python benchmarks/kernel_speed.py [--all] [--json FILE] [--jobs N]
python benchmarks/kernel_speed.py --tiles FILE.json     the default tiles that follow, as the CSV that the kernels read
python benchmarks/kernel_speed.py --show FILE.json      the rows of a file as a table, flash with its default tile
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator

from memsim import Attention, MemsimError, Tile
from memsim.tile import LOAD_PATHS

PROBLEMS = [
    Attention(heads=heads, seq_len_q=n, seq_len_k=n, head_dim=d, dtype=dtype, causal=causal)
    for heads, n, d in ((16, 4096, 128), (64, 4096, 128), (16, 16384, 128), (64, 4096, 64))
    for causal in (False, True)
    for dtype in ("float16", "bfloat16")
]
# More problems to choose default tiles by.
MORE = [
    *(
        Attention(heads=16, seq_len_q=4096, seq_len_k=4096, head_dim=d, dtype=dtype, causal=causal)
        for d in (64, 256) for causal in (False, True) for dtype in ("float16", "bfloat16")
    ),
    *(
        Attention(heads=16, seq_len_q=2048, seq_len_k=2048, head_dim=d, dtype="float32", causal=causal)
        for d in (64, 128, 256) for causal in (False, True)
    ),
]  # fmt: skip
SHAPES = {
    64: [
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (64, 128, 4, 3), (128, 64, 8, 2),
        (128, 64, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3), (64, 32, 4, 3), (128, 32, 8, 3),
    ],
    128: [
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3),
        (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3), (64, 32, 4, 3), (128, 32, 8, 3),
    ],
    256: [
        (64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2),
        (128, 64, 8, 1), (64, 32, 8, 3), (64, 32, 4, 1),
    ],
}  # fmt: skip
FLOAT32_SHAPES = [
    (64, 32, 8, 2), (32, 32, 8, 2), (32, 32, 4, 2), (32, 16, 8, 2), (64, 16, 8, 2), (16, 32, 4, 2), (64, 64, 8, 2),
]  # fmt: skip


def candidates(problem: Attention) -> Iterator[Tile]:
    """Tiles worth trying, whether they fit or not."""
    from memsim_kernels.tiles import SPECIALIZED_SEEN_RIGHT

    if problem.dtype == "float32":
        yield from (Tile(*shape) for shape in FLOAT32_SHAPES)
        return
    for shape in SHAPES[problem.head_dim]:
        for path in ("pointer", "descriptor"):
            yield Tile(*shape, path)
    if not problem.causal:
        yield from sorted(SPECIALIZED_SEEN_RIGHT, key=str)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="time every candidate tile, not the default alone")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--jobs", type=int, default=16, help="kernels compiled side by side")
    parser.add_argument("--tiles", help="measure nothing: print the default tiles that this file's rows lead to")
    parser.add_argument("--show", help="measure nothing: print this file's rows as a table")
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return 0
    if options.tiles:
        print_tiles(options.tiles)
        return 0
    try:
        import torch
        from memsim_kernels import flash_attention
    except ImportError:
        print("kernel_speed needs torch, triton and a CUDA GPU: pip install 'memsim[kernels]'.", file=sys.stderr)
        return 0
    if not torch.cuda.is_available():
        print("no CUDA GPU here: nothing was timed.", file=sys.stderr)
        return 0
    from memsim_kernels.inputs import random_inputs
    from memsim_kernels.timing import time_median_s
    from memsim_kernels.warm import warm
    from triton.runtime.errors import OutOfResources

    def run(p: Attention, tile: Tile | None) -> Callable[[], object]:
        q, k, v = inputs[p]
        return lambda: flash_attention(q, k, v, causal=p.causal, tile=tile)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = []
    for d in (128, 64, 256):
        problems = [p for p in [*PROBLEMS, *(MORE if options.all else [])] if p.head_dim == d]
        inputs = {p: random_inputs(p, 0, device="cuda") for p in problems}
        if options.all:
            small = {(p.dtype, p.causal): p for p in problems}
            warm([run(p, t) for p in small.values() for t in candidates(p)], options.jobs)
        for p in problems:
            row = {"heads": p.heads, "seq_len": p.seq_len_q, "head_dim": d, "causal": p.causal, "dtype": p.dtype}
            times = {}
            for name, call in peers(p, inputs[p]).items():
                try:
                    times[name] = time_median_s(call)
                except RuntimeError:
                    continue  # a backend that does not take this problem
            times["flash"] = time_median_s(run(p, None))
            for tile in candidates(p) if options.all else ():
                try:
                    times[str(tile)] = time_median_s(run(p, tile))
                except (MemsimError, OutOfResources):
                    continue
            row["tflops"] = {name: p.useful_flops / t / 1e12 for name, t in times.items()}
            rows.append(row)
            print(line(row), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


def peers(p: Attention, tensors: tuple[object, ...]) -> dict[str, Callable[[], object]]:
    """torch's backends and the naive kernels, on the same tensors."""
    import torch
    from memsim_kernels import naive_attention
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def backend(which: SDPBackend) -> Callable[[], object]:
        def call() -> object:
            with sdpa_kernel(which), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=p.causal)

        return call

    found = {"FLASH": backend(SDPBackend.FLASH_ATTENTION), "CUDNN": backend(SDPBackend.CUDNN_ATTENTION)}
    score_bytes = 2 * p.heads * p.seq_len_q * p.seq_len_k * p.dtype_bytes
    if score_bytes < 40e9:
        found["naive"] = lambda: naive_attention(*tensors, causal=p.causal)
    return found


def line(row: dict[str, object]) -> str:
    tflops = row["tflops"]
    ranked = sorted((name for name in tflops if "×" in name), key=lambda name: -tflops[name])
    best = "; ".join(f"{name}: {tflops[name]:.0f}" for name in ranked[:4])
    mask = "causal" if row["causal"] else "full"
    shape = f"{row['heads']:>3}×{row['seq_len']:<6}×{row['head_dim']:<4}{mask:<7}{row['dtype']:<9}"
    if "CUDNN" not in tflops or "FLASH" not in tflops:
        return f"{shape} flash {tflops['flash']:.1f} TFLOP/s  best {best}"
    named = "  ".join(f"{name} {tflops[name]:4.0f}" for name in ("naive", "FLASH", "CUDNN", "flash") if name in tflops)
    share = f"{tflops['flash'] / tflops['CUDNN']:.2f} of CUDNN, {tflops['flash'] / tflops['FLASH']:.2f} of FLASH"
    return f"{shape} {named}  TFLOP/s: {share}" + (f"  best {best}" if best else "")


def print_tiles(path: str) -> None:
    """Of each head_dim, dtype and mask the tile with the highest geometric mean of TFLOP/s over its problems: of all
    load paths, of those that also give the LSE, and of pointers alone."""
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    groups: dict[tuple[int, str, bool], list[dict[str, float]]] = {}
    for row in rows:
        tried = {name: speed for name, speed in row["tflops"].items() if "×" in name}
        groups.setdefault((row["head_dim"], row["dtype"], row["causal"]), []).append(tried)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("architecture", "head_dim", "dtype", "causal", "loads", *_TILE_COLUMNS, "tflops", "problems"))
    for (d, dtype, causal), tried in sorted(groups.items()):
        names = [name for name in tried[0] if all(name in speeds for speeds in tried)]
        for loads, out in (("any", ()), ("lse", ("descriptor-ws",)), ("pointer", ("descriptor-ws", "descriptor"))):
            left = [name for name in names if not name.endswith(out)] if out else names
            mean = {name: math.prod(speeds[name] for speeds in tried) ** (1 / len(tried)) for name in left}
            best = max(mean, key=lambda name: mean[name])
            tile = {str(t): t for t in _every_tile()}[best]
            figures = [getattr(tile, column) for column in _TILE_COLUMNS]
            writer.writerow(("sm_90", d, dtype, int(causal), loads, *figures, f"{mean[best]:.0f}", len(tried)))


def show(path: str) -> None:
    """Side by side in TFLOP/s: naive, torch's backends, and flash with the tile that it takes by default."""
    from memsim_kernels.tiles import measured_tiles

    defaults = {(t.head_dim, t.dtype, t.causal): t.tile for t in measured_tiles() if t.loads == "any"}
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    print("| heads × N × d | mask | dtype | naive | FLASH | CUDNN | flash | of CUDNN | of FLASH | its tile |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        speed = row["tflops"]
        tile = defaults[row["head_dim"], row["dtype"], row["causal"]]
        ours = speed[str(tile)]
        shares = [f"{ours / speed[peer]:.2f}" if peer in speed else "–" for peer in ("CUDNN", "FLASH")]
        peers = [f"{speed[peer]:.0f}" if peer in speed else "–" for peer in ("naive", "FLASH", "CUDNN")]
        shape = f"{row['heads']} × {row['seq_len']} × {row['head_dim']}"
        mask = "causal" if row["causal"] else "full"
        cells = [shape, mask, row["dtype"], *peers, f"{ours:.0f}", *shares, str(tile)]
        print("| " + " | ".join(cells) + " |")


_TILE_COLUMNS = ("block_m", "block_n", "num_warps", "num_stages", "load_path")


def _every_tile() -> Iterator[Tile]:
    for shape in [*FLOAT32_SHAPES, *(shape for shapes in SHAPES.values() for shape in shapes)]:
        yield from (Tile(*shape, path) for path in LOAD_PATHS)
    yield Tile(128, 128, 4, 2, "descriptor-ws")
    yield Tile(128, 128, 4, 1, "descriptor-ws")


if __name__ == "__main__":
    sys.exit(main())
