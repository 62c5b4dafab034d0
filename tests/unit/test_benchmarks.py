"""Do the benchmarks measure what they say: a process of its own, its memory, and rows that differ from single runs?"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = """
import sys, time
def double(x): return 2 * x
def hold(size_bytes):
    held = b"x" * size_bytes
    return len(held)
def spin(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def fail(): raise ValueError("no such thing")
def sleep(seconds): time.sleep(seconds)
def hold_a_while(size_bytes):
    held = b"x" * size_bytes
    time.sleep(1)
def family(file):
    from _bench import FamilyMemory, of_its_own
    with FamilyMemory() as alone:
        time.sleep(0.3)
    with FamilyMemory() as memory:
        of_its_own(file, "hold_a_while", 100_000_000)
    return alone.processes, memory.processes, memory.peak_bytes - alone.peak_bytes
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "functions.py").write_text(MEASURED, encoding="utf-8")
    return str(tmp_path / "functions.py")


def test_a_process_of_its_own_returns_and_costs_what_its_function_does(load, functions: str) -> None:
    bench = load("_bench")
    assert bench.of_its_own(functions, "double", 21).value == 42
    slow = bench.of_its_own(functions, "spin", 0.3)
    assert 0.3 <= slow.processor_s < 3 and slow.seconds >= 0.3
    held = bench.of_its_own(functions, "hold", 100_000_000)
    # Pages that the interpreter had to spare count for a few MB less.
    assert 95e6 < held.peak_bytes - held.bytes_before < 120e6


def test_what_fails_or_takes_too_long_is_said(load, functions: str) -> None:
    bench = load("_bench")
    with pytest.raises(bench.Failed, match="no such thing"):
        bench.of_its_own(functions, "fail")
    with pytest.raises(bench.TookLonger, match="more than 1 s"):
        bench.of_its_own(functions, "sleep", 60, limit_s=1)


def test_memory_of_a_family_counts_its_children(load, functions: str) -> None:
    # In a process of its own, which has no other children.
    alone, processes, grown_bytes = load("_bench").of_its_own(functions, "family", functions).value
    assert (alone, processes) == (1, 2)
    assert grown_bytes > 100e6


@pytest.mark.parametrize("points", (50, 500, 1_000, 2_500, 10_000))
def test_the_large_sweep_has_the_points_asked_for(load, points: int) -> None:
    axes = load("sweep_rate").axes_of(points)
    assert math.prod(map(len, axes.values())) == points
    assert all(len({*values}) == len(values) for values in axes.values())
    assert max(map(int, axes["seq-len"])) == 16_384


@pytest.mark.parametrize("points", (0, 75, 10_050))
def test_points_that_are_no_product_are_refused(load, points: int) -> None:
    with pytest.raises(SystemExit, match=rf"--points is {points}: give a multiple of 50"):
        load("sweep_rate").axes_of(points)


def test_a_row_that_is_not_what_a_single_run_says_is_seen(load) -> None:
    sweep_rate = load("sweep_rate")
    axes = {name: [values[0]] for name, values in sweep_rate.axes_of(50).items()}
    (row,) = sweep_rate.run({**axes, "tile": ["64x32"]}, 1, True).rows
    (refused,) = sweep_rate.run({**axes, "tile": ["256x128"]}, 1, True).rows
    assert (row.status, refused.status) == ("ok", "does-not-fit")
    assert sweep_rate.differences(row, True) == sweep_rate.differences(refused, True) == []
    for wrong in (
        replace(row, hbm_bytes=row.hbm_bytes + 1), replace(row, status="does-not-fit"),
        replace(refused, reason="it is too large."), replace(refused, status="ok"),
    ):  # fmt: skip
        assert len(sweep_rate.differences(wrong, True)) == 1


def test_the_readme_names_every_benchmark_and_every_stored_figure_has_its_script() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("[a-z]*.py")}
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| \[(\w+)\]\(\1\.py\)", readme, flags=re.MULTILINE)} == scripts
    figures = list((BENCHMARKS / "figures").iterdir())
    assert figures
    for path in figures:
        name = path.stem.split("-")[0]
        question, made, *_ = path.read_text(encoding="utf-8").splitlines()
        assert (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8").startswith(f'"""{question}\n')
        assert re.match(r"\d{4}-\d\d-\d\d, Python [\d.]+, \d+ cores of ", made)
