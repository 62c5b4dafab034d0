"""Where a measurement file's rows came from: written beside it, one entry a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memsim import __version__
from memsim.measurements import Measurement
from memsim_kernels._ncu import FLAGS, ncu_version

SCHEMA = "memsim.provenance/1"


def path_beside(measurements: str | Path) -> Path:
    """The provenance file of a measurement file: `x.csv` has `x.provenance.json`."""
    return Path(measurements).with_suffix(".provenance.json")


def provenance_here(gpu: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What is here: GPU, driver, versions, flags, settings, date."""
    import numpy
    import torch
    import triton

    asked = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "nvidia_smi": dict(zip(asked.split(","), _nvidia_smi(asked), strict=False)),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "versions": {
            "memsim": __version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
            "ncu": ncu_version(),
        },
        "ncu_flags": {state: " ".join(flags) for state, flags in FLAGS.items()},
        "times": "CUDA events around one launch, L2 flushed before it, median; event_time_spread is (90th - 10th "
        "percentile) / median",
        "inputs": "normal random numbers, seed 0, contiguous",
        **settings,
    }


def add_run(measurements: str | Path, run: dict[str, Any]) -> None:
    """Add a run to the file beside the measurements."""
    path = path_beside(measurements)
    runs = []
    if path.exists():
        runs = json.loads(path.read_text(encoding="utf-8")).get("runs", [])
    text = json.dumps({"schema": SCHEMA, "runs": [*runs, run]}, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def clocks_in_launches(rows: Iterable[Measurement]) -> dict[str, float] | None:
    """The lowest and highest SM clock of the launches that ncu counted: their cycles over their time."""
    clocks = [
        row.values["sm_cycles"] / row.values["duration_s"] / 1e6
        for row in rows
        if row.values.get("sm_cycles") and row.values.get("duration_s")
    ]
    return {"lowest": round(min(clocks)), "highest": round(max(clocks))} if clocks else None


def sm_clock_mhz() -> float | None:
    """The SM clock at this moment, where nvidia-smi says."""
    found = _nvidia_smi("clocks.sm")
    try:
        return float(found[0].split()[0])
    except (IndexError, ValueError):
        return None


def _nvidia_smi(asked: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [part.strip() for part in run.stdout.strip().split(",")] if run.returncode == 0 else []


def command_line() -> str:
    """The command as it was given, without the folders of its paths."""
    return " ".join(["memsim", *(Path(word).name if "/" in word else word for word in sys.argv[1:])])
