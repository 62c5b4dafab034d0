"""How does memsim compare with packages that do a part of the same, side by side on this machine?

triton-viz traces the loads and stores of an interpreted Triton kernel, as memsim's recorder does: the same kernel
(flash, 528 loads), the same environment with Triton 3.6, processor time. genz-llm estimates the time of attention on a
GPU: on an H200, beside memsim's simulation and what was measured, for problems that nothing in memsim was fitted to.

python benchmarks/peers.py --install      first makes their environments (some GB, from PyPI), where they are missing
python benchmarks/peers.py                compares with those that there are
--folder, else MEMSIM_PEERS, else memsim-peers in the cache folder: where the environments are
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from _bench import ROOT, Failed, heading, of_its_own, seconds, table

from memsim import Attention, Tile, load_gpu, simulate

TRITON_VIZ = ("triton-viz==3.0", "torch==2.13.0", "numpy<2.4")
# Its interpreter is what triton-viz 3.0 was written for; torch and triton-viz name no version of their own.
TRITON = "triton==3.6.0"
GENZ = ("genz-llm==0.0.16",)
TRACED = (1024, 64, 64)
# Problems that only judge the model: measurements/README.md.
MEASURED = ROOT / "measurements" / "h200_judge.csv"
PROBLEMS = ((1, 1024, 128), (4, 512, 128), (12, 2048, 64), (40, 1536, 128), (16, 8192, 128))


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MEMSIM_PEERS") or Path(cache) / "memsim-peers")


def install(folder: Path) -> None:
    """Make what is missing. A peer that cannot be had is named, and the others go on."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        memsim_needs = tomllib.load(file)["project"]["dependencies"]
    for name, steps in {
        "triton-viz": ((*TRITON_VIZ, *memsim_needs), ("--no-deps", TRITON)),
        "genz-llm": (GENZ,),
    }.items():
        environment = folder / name
        if (environment / "ready").exists():
            continue
        print(f"installing {name} into {environment}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True, capture_output=True)
            for step in steps:
                command = [
                    python_of(environment),
                    "-m",
                    "pip",
                    "--disable-pip-version-check",
                    "install",
                    "--quiet",
                    *step,
                ]
                subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            print(f"{name} cannot be installed: {said[-1] if said else error}", file=sys.stderr)
            continue
        (environment / "ready").touch()


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def missing(folder: Path, name: str) -> bool:
    """Whether a peer is not there, which is said."""
    if (folder / name / "ready").exists():
        return False
    print(f"\n{name} is not installed in {folder}: python benchmarks/peers.py --install makes its environment.")
    return True


def traced(folder: Path) -> None:
    """The recorder beside triton-viz."""
    if missing(folder, "triton-viz"):
        return
    try:
        found = of_its_own(
            str(Path(__file__).with_name("_peer_triton_viz.py")), "run", *TRACED,
            python=python_of(folder / "triton-viz"),
        ).value  # fmt: skip
    except Failed as error:
        print(f"\ntriton-viz did not trace the kernel: {error}")
        return
    n, d, side = TRACED
    print(f"\nflash, 1 head, N = {n:,}, d = {d}, tile {side}×{side}, on the CPU; {found['versions']}")
    memsim = found["memsim"]["seconds"]
    rows = [
        [name, *(f"{found[name].get(kind, '')}" for kind in ("loads", "stores")), seconds(s), f"{s / memsim:.2f}"]
        for name in ("memsim", "triton-viz", "interpreter")
        for s in [found[name]["seconds"]]
    ]
    table(("", "loads", "stores", "time", "× memsim"), rows)


def measured_of(heads: int, n: int, d: int) -> tuple[float, int, Tile] | None:
    """Seconds, HBM bytes and tile of the fastest measured flash of that problem, cold, from pointers."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_of(row, heads, n, d)]
    if not rows:
        return None
    row = min(rows, key=lambda row: float(row["duration_s"]))
    tile = Tile(*(int(row[name]) for name in ("block_m", "block_n", "num_warps", "num_stages")))
    return float(row["duration_s"]), int(row["hbm_read_bytes"]) + int(row["hbm_write_bytes"]), tile


def _is_of(row: dict[str, str], heads: int, n: int, d: int) -> bool:
    wanted = {
        "kernel": "flash", "dtype": "float16", "batch": "1", "heads": str(heads), "seq_len_q": str(n),
        "seq_len_k": str(n), "head_dim": str(d), "causal": "0", "lse": "0", "load_path": "pointer",
        "grid_order": "rows-fast", "cache_state": "cold",
    }  # fmt: skip
    return bool(row["duration_s"]) and all(row[name] == value for name, value in wanted.items())


def ask_memsim(heads: int, n: int, d: int, tile: Sequence[int]) -> list[float]:
    """memsim's seconds and HBM bytes of flash on an H200 with that tile; a process of its own takes the time."""
    problem = Attention(heads=heads, seq_len_q=n, seq_len_k=n, head_dim=d)
    result = simulate("flash", problem, gpu="h200", tile=Tile(*tile))
    return [result.launches[0].time_s or 0.0, float(result.total.hbm_bytes)]


def estimated(folder: Path) -> None:
    """memsim's time of flash beside genz-llm's estimate and the time measured."""
    if missing(folder, "genz-llm"):
        return
    gpu = load_gpu("h200")
    flops = gpu.sm.pipes.tensor_flop_per_clock["float16"] * gpu.sm.count * gpu.sm.clock_hz
    rows, version = [], ""
    for heads, n, d in PROBLEMS:
        measured = measured_of(heads, n, d)
        if measured is None:
            continue
        took, moved, tile = measured
        try:
            genz = of_its_own(
                str(Path(__file__).with_name("_peer_genz.py")), "run", heads, n, d, flops,
                gpu.hbm.bandwidth_bytes_per_s, True, python=python_of(folder / "genz-llm"),
            ).value  # fmt: skip
        except Failed as error:
            print(f"\ngenz-llm did not answer: {error}")
            return
        version = genz["version"]
        shape = (tile.block_m, tile.block_n, tile.num_warps, tile.num_stages)
        asked = [of_its_own(__file__, "ask_memsim", heads, n, d, shape) for _ in range(2)]
        ours, ours_bytes = asked[0].value
        answer_s = min(one.processor_s for one in asked)
        rows.append([
            f"{heads} × {n:,} × {d}, {shape[0]}×{shape[1]}", f"{1e6 * took:,.0f}", f"{ours / took:.2f}",
            f"{genz['time_s'] / took:.2f}", f"{moved / 1e6:,.1f}", f"{ours_bytes / moved:.2f}",
            f"{genz['hbm_bytes'] / moved:.2f}", seconds(answer_s), seconds(genz["seconds"]),
            f"{answer_s / genz['seconds']:,.0f}",
        ])  # fmt: skip
    print(f"\nflash on an H200 (heads × N × d, fastest tile measured): time and HBM bytes; genz-llm {version}")
    names = (
        "measured µs",
        "memsim /",
        "genz-llm /",
        "HBM MB",
        "memsim /",
        "genz-llm /",
        "memsim takes",
        "genz-llm takes",
    )
    table(("problem, tile", *names, "ratio"), rows)
    print("/: over what was measured. takes: processor time of an answer, imports left out.")
    print("genz-llm answers with the longer of FLOPs at the peak rate and Q, K, V and O once at HBM's bandwidth; tile,")
    print("SRAM size, L2, softmax, causal mask and the number of blocks and SMs are not in it.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make the environments that are missing")
    parser.add_argument("--folder", type=Path, default=default_folder())
    options = parser.parse_args()
    heading(__doc__ or "")
    if options.install:
        install(options.folder)
    traced(options.folder)
    estimated(options.folder)


if __name__ == "__main__":
    main()
