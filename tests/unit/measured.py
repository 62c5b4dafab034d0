"""Measured rows for tests: those of the H200's file as text, and made-up ones."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path
from typing import Any

from memsim import Attention, cli
from memsim.measurements import Measurement

COUNTERS = Path(__file__).parents[1] / "fidelity/data/counters.csv"
Row = dict[str, str]


def memsim_(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(args)
    return code, out.getvalue(), err.getvalue()


def measured_rows(**which: str) -> list[Row]:
    """Rows of the H200's file, as text, that have these cells."""
    with open(COUNTERS, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if all(row[name] == text for name, text in which.items())]


def saved(tmp_path: Path, rows: list[Row]) -> str:
    path = tmp_path / "measured.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def row_of(
    kernel: str = "flash",
    *,
    block_n: int | None = None,
    load_path: str = "pointer",
    num_stages: int = 2,
    lse: bool = False,
    values: dict[str, Any] | None = None,
    block_m: int = 64,
    **problem: Any,
) -> Measurement:
    fields = {"seq_len_q": 1024, "seq_len_k": 1024, "head_dim": 64} | problem
    block_n = block_n if block_n is not None else 0 if kernel == "softmax" else 64
    known = {"stack_bytes": 0, "registers": 100, "sram_bytes": 1} if values is None else values
    return Measurement(
        kernel, "h200", Attention(**fields), lse, block_m, block_n, 4, num_stages, load_path, values=known
    )  # fmt: skip
