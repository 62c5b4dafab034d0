"""Are the figures of docs/validation.md those that the commands print?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memsim.measurements import read_measurements
from memsim.validate import validate

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")


def test_the_speed_table_is_what_the_benchmark_shows() -> None:
    command = [sys.executable, "benchmarks/kernel_speed.py", "--show", "measurements/kernel_speed_h200.json"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() in TEXT


def test_the_bars_that_the_speed_table_is_to_reach() -> None:
    """At least 0.80 of cuDNN at d = 128 full, and never slower than torch's FLASH at d = 128."""
    rows = [line.split(" | ") for line in TEXT.splitlines() if " × 128 | " in line and "float16" in line]
    assert len(rows) == 12
    for _, mask, _, _, _, _, _, of_cudnn, of_flash, _ in rows:
        assert float(of_flash) >= 1 and (mask == "causal" or float(of_cudnn) >= 0.80)


@pytest.mark.parametrize("name", ["h200", "h200_judge"])
def test_the_counts_of_the_measured_file_are_what_validate_finds(name: str) -> None:
    found = validate(read_measurements(ROOT / "measurements" / f"{name}.csv"))
    columns = ("sram_bytes", "blocks_per_sm", "sram_fill_bytes", "sram_store_bytes")
    for kernel in ("flash", "qk", "softmax", "pv"):
        of = {s.column: s for s in found.summaries if s.kernel == kernel}
        rows = of["sram_bytes"].rows
        counts = " | ".join(
            f"{of[column].exact}" + (f" of {of[column].rows}" if of[column].rows < rows else "") for column in columns
        )
        assert f"| {name} | {kernel} | {rows} | {counts} |" in TEXT
