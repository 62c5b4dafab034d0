"""Having NVIDIA's profiler count what launches do: a process of its own under ncu, its export read back as rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from memsim.attention import Attention
from memsim.columns import metrics_to_collect
from memsim.errors import MemsimError
from memsim.gpu import load_gpu
from memsim.measurements import Measurement
from memsim.ncu import ExportedLaunch, measurements_from, read_export, read_file
from memsim.tile import Tile
from memsim_kernels._grids import CHAINED, COLD, WARM, Point
from memsim_kernels._rows import rows_of_point

# The clock is left as it is, since a GPU that others use must not be locked; cycles are there to compare.
_CLOCK = ("--clock-control", "none")
FLAGS = {COLD: (*_CLOCK, "--cache-control", "all")} | dict.fromkeys(
    (CHAINED, WARM), (*_CLOCK, "--cache-control", "none")
)
"""What ncu is told to do with clock and caches, by cache state."""
# The raw page has it unasked.
_PASSES = "profiler__replayer_passes"
_EXPORT = ("--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off")


def ncu_here() -> str | None:
    """The path of ncu, or None where it is not installed."""
    return shutil.which("ncu")


@lru_cache(maxsize=1)
def ncu_version() -> str:
    """ncu's version, as it prints it; empty without one."""
    path = ncu_here()
    if path is None:
        return ""
    lines = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")
    return next((line.removeprefix("Version ").strip() for line in lines if line.startswith("Version")), "")


def profile(points: Sequence[Point], gpu: str) -> list[Measurement]:
    """The counters of every launch of the points, in order; all cold, or none.

    Raises `MemsimError` with what ncu says if it fails, if a counter does not resolve, if the launches are not those
    that were to be profiled, or if launches that find the caches as they are were replayed.
    """
    (flags,) = {FLAGS[point.cache_state] for point in points}
    single_pass = points[0].cache_state != COLD
    path = ncu_here()
    if path is None:
        raise MemsimError("ncu is not installed here: put NVIDIA Nsight Compute's ncu on the PATH.")
    with tempfile.TemporaryDirectory() as folder:
        spec, export = Path(folder, "points.json"), Path(folder, "export.csv")
        spec.write_text(json.dumps([asdict(point) for point in points]), encoding="utf-8")
        command = [
            path, *_EXPORT, *flags, "--metrics", ",".join(metrics_to_collect(single_pass=single_pass)),
            "--log-file", str(export), sys.executable, "-m", "memsim_kernels._profiled", str(spec),
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        said = export.read_text(encoding="utf-8") if export.exists() else ""
        problems = [line for line in said.split("\n") if line.startswith(("==ERROR==", "==WARNING=="))]
        if run.returncode or any("==ERROR==" in line for line in problems):
            reason = " ".join([*problems, *run.stderr.strip().split("\n")[-1:]])[:500]
            raise MemsimError(f"ncu could not count these launches: {reason}")
        header, lines = read_file(export)
        launches = read_export(header, lines, str(export))
        if single_pass:
            _check_passes(launches)
    return _assigned(points, launches, gpu)


def _check_passes(launches: Sequence[ExportedLaunch]) -> None:
    for launch in launches:
        passes = launch.metrics.get(_PASSES)
        if passes is None or passes.text != "1":
            many = "an unknown number of" if passes is None else passes.text
            raise MemsimError(
                f"ncu took {many} passes over {launch.kernel_name}: what a launch finds in the caches can be counted "
                "in a single one only."
            )


def _assigned(points: Sequence[Point], launches: Sequence[ExportedLaunch], gpu: str) -> list[Measurement]:
    wanted = [(point, row) for point in points for row in rows_of_point(point, gpu)]
    if len(wanted) != len(launches):
        raise MemsimError(f"{len(wanted)} launches were to be profiled, and ncu's export has {len(launches)}.")
    measured = []
    for (point, row), launch in zip(wanted, launches, strict=True):
        found = measurements_from(
            [launch], point.problem, point.tile, load_gpu(gpu), gpu_name=gpu, lse=point.lse,
            cache_state=point.cache_state,
        )  # fmt: skip
        if [r.kernel for r in found.rows] != [row.kernel]:
            raise MemsimError(f"{row.kernel} was to be profiled, and ncu's export has {found.other_kernels} there.")
        needed = ("sram_fill_bytes",) if point.cache_state != COLD else ("sram_fill_bytes", "sram_store_bytes")
        missing = [name for name in needed if name not in found.rows[0].values]
        if missing:
            raise MemsimError(f"ncu's export lacks {', '.join(missing)} of {row.kernel}.")
        measured.append(replace(row, values=found.rows[0].values))
    return measured


def _environment() -> dict[str, str]:
    """The same, and compiled kernels."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def point_of(data: dict[str, object]) -> Point:
    """A point as it was written to JSON."""
    return Point(
        str(data["algorithm"]), Attention(**data["problem"]), Tile(**data["tile"]), bool(data["lse"]),  # type: ignore[arg-type]
        str(data["cache_state"]),
    )  # fmt: skip
