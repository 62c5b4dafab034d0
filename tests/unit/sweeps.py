"""Sweeps of small points that tests run, stop and compare."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from memsim.sweep import SweepPlan, SweepTable, sweep

AXES: dict[str, Any] = {"sram": "32KiB:40KiB:+1KiB", "tile": "16x16,32x32,128x64", "causal": "false,true"}
"""54 points, some of which do not fit."""
OPTIONS: dict[str, Any] = {"gpu": "two-level", "heads": 1, "seq-len": 64, "head-dim": 64}
POINTS = 54

# Arguments: the results file, a log, and how the store is at fault, if it is. The log has a line when a point is begun
# and one when its row was kept; lines are written at once, so that they outlive the process.
_CHILD = """
import json, os, sys
from memsim import _sweep_store, sweep
from memsim._sweep_points import Points

path, log, fault, axes, options = sys.argv[1:]
to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
row, add = Points.row, _sweep_store.Results.add
late = []

def logged_row(self, point, before=None):
    os.write(to, f"run {json.dumps(point)}\\n".encode())
    return row(self, point, before)

def logged_add(self, rows):
    if fault == "loses its last commit":
        rows, late[:] = list(late), rows
        added = late
    else:
        added = rows
    add(self, rows)
    for number, _, _ in added:
        os.write(to, f"kept {json.dumps(self._plan.point(number))}\\n".encode())

Points.row, _sweep_store.Results.add = logged_row, logged_add
sweep("flash", json.loads(axes), json.loads(options), count_only=True, out=path)
"""


def plan(**options: Any) -> SweepPlan:
    """The plan of these points."""
    axes = [(name, text.split(",")) for name, text in AXES.items()]
    texts = {name: str(value) for name, value in (OPTIONS | options).items()}
    return SweepPlan("flash", axes, texts, {}, count_only=True)


def swept(**more: Any) -> SweepTable:
    """The table of these points, counted."""
    return sweep("flash", AXES, OPTIONS, count_only=True, **more)


def csv_of(table: SweepTable) -> str:
    text = io.StringIO()
    table.write_csv(text)
    return text.getvalue()


def start(path: Path, log: Path, fault: str = "") -> subprocess.Popen[bytes]:
    """A process that sweeps these points into a file, and logs what it does."""
    arguments = [str(path), str(log), fault, json.dumps(AXES), json.dumps(OPTIONS)]
    return subprocess.Popen([sys.executable, "-c", _CHILD, *arguments], env=os.environ, stderr=subprocess.PIPE)


def run_twice(log: Path) -> list[str]:
    """The points that were run again after their rows had been kept."""
    kept: set[str] = set()
    again = []
    for line in log.read_text(encoding="utf-8").splitlines():
        what, _, point = line.partition(" ")
        if what == "kept":
            kept.add(point)
        elif point in kept:
            again.append(point)
    return again
