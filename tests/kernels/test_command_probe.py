"""Does `memsim probe` say what the compiler said, and `--resources compiled` use it?"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from memsim_kernels import _probe_table
from memsim_kernels._grids import GRID_NAMES, measured_points
from memsim_kernels._plan import plan_calls
from memsim_kernels._probe_table import COLUMNS, Entry, entries
from memsim_kernels.probe import compile_call
from triton import __version__

from memsim import Attention, Tile, load_gpu, simulate
from memsim._compiled import from_table, key_of, read_table, shipped
from memsim._stream_table import read_streams
from memsim.cli import run
from memsim.resources import blocks_per_sm

PLAIN = Attention(1, 8, None, 1024, 1024, 128)
PROBLEM = Attention(1, 4, None, 96, 96, 32)
TILE = Tile(32, 32, 4, 2)
OPTIONS = (
    "--heads=4", "--seq-len=96", "--head-dim=32", "--block-m=32", "--block-n=32", "--num-warps=4", "--num-stages=2",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "100")
        yield


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "flash", *OPTIONS, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "memsim.probe/1"
    assert (shown["gpu"], shown["architecture"], shown["triton"]) == ("h200", "sm_90", __version__)
    assert shown["tile"]["block_m"] == 32 and shown["problem"]["seq_len_k"] == 96
    kernel = compile_call(plan_calls("flash", PROBLEM, TILE)[0], "sm_90")
    (launch,) = shown["launches"]
    room = blocks_per_sm(load_gpu("h200").sm, kernel.sram_bytes, kernel.registers, 4)
    assert (launch["blocks_per_sm"], launch["limited_by"]) == room
    for name in ("sram_bytes", "registers", "stack_bytes", "block_warps", "opcodes"):
        assert launch[name] == getattr(kernel, name)
    (main,) = [loop for loop in launch["loops"] if loop["main"]]
    assert main["classes"] == kernel.main_mix and main["opcodes"] == kernel.main_opcodes


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "naive", *OPTIONS, "--gpu=a100-80gb"]) == 0
    shown = capsys.readouterr().out
    kernels = [compile_call(call, "sm_80") for call in plan_calls("naive", PROBLEM, TILE)]
    assert shown.startswith("naive compiled for sm_80: 4 heads, seq-len 96, head-dim 32, float16, tile 32×32")
    lines = {line[:20].strip(): line.split() for line in shown.splitlines()}
    assert lines["registers a thread"][-3:] == [str(kernel.registers) for kernel in kernels]
    assert lines["together"][-3:] == [f"{sum(kernel.main_mix.values()):,}" for kernel in kernels]
    assert "qk and softmax: the whole kernel" in shown


def test_a_tile_that_would_not_start_is_compiled_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--heads=1", "--seq-len=64", "--head-dim=256", "--block-m=64", "--block-n=128", "--num-stages=3")
    assert run(["probe", *options]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "0 (SRAM)" in shown
    assert f"flash needs {2 * 256 * (64 + 6 * 128):,} B of SRAM and a block may have 232,448 B" in shown


@pytest.mark.parametrize(
    "line, words",
    [
        (["flash1"], 'there is no kernel of "flash1": choose one of flash, naive.'),
        (["--gpu=two-level"], "two-level names no architecture to compile for: choose a real GPU."),
        (["--head-dim=512", "--block-m=16", "--block-n=16"], "head-dim is 512; the kernels take up to 256."),
        (["--jobs=0"], "jobs is 0"),
        (["--load-path=descriptor", "--gpu=a100-80gb"], "sm_80 has no tensor descriptors"),
        (["--table=x.csv", "--lse"], "--table compiles kernels of its own: give it without lse."),
        (["--table=/nowhere/at/all.csv"], 'table is "/nowhere/at/all.csv", which cannot be written'),
    ],
)
def test_faults(line: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", *line]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1


def test_the_simulator_takes_what_the_compiler_says(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = compile_call(plan_calls("flash", PROBLEM, TILE)[0], "sm_90")
    found = simulate("flash", PROBLEM, gpu="h200", tile=TILE, resources="compiled", count_only=True).launches[0]
    assert (found.sram_bytes, found.registers, found.stack_bytes) == (
        kernel.sram_bytes, kernel.registers, kernel.stack_bytes,
    )  # fmt: skip
    assert found.registers_from == "compiled"
    assert run(["simulate", "flash", *OPTIONS, "--resources=compiled", "--count-only"]) == 0
    assert "compiled" in capsys.readouterr().out
    assert run(["simulate", "flash1", *OPTIONS, "--resources=compiled"]) == 2
    assert capsys.readouterr().err == "memsim: there is no kernel of flash1; flash and naive have some.\n"


def test_a_table_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = key_of("flash", "sm_90", PROBLEM, TILE, False)
    call = plan_calls("flash", PROBLEM, TILE)[0]
    listed = [Entry(key, call, "sm_90"), Entry(key, call, "sm_1")]
    monkeypatch.setattr(_probe_table, "entries", lambda: listed)
    path = tmp_path / "table.csv"
    assert run(["probe", f"--table={path}"]) == 1  # one of the two does not compile
    assert "1 of 2 kernels are in" in capsys.readouterr().err
    streams = tmp_path / "streams.npz"
    assert sorted(tmp_path.iterdir()) == [streams, path]
    with path.open(encoding="utf-8") as lines:
        found = read_table(lines)
    compiled = compile_call(call, "sm_90").resources
    assert found == {key: replace(compiled, stream=None)}
    with streams.open("rb") as file:
        assert read_streams(file).get(key) == compiled.stream is not None
    (row,) = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert tuple(row) == COLUMNS and row["triton"] == __version__
    assert int(row["main_tensor"]) == compile_call(call, "sm_90").main_mix["tensor"]


def test_the_shipped_table_is_what_the_compiler_says() -> None:
    """All of its kernels are in it; of a few, every figure where Triton is the table's, else what does not vary."""
    listed = {entry.key: entry for entry in entries()}
    assert set(listed) <= set(shipped())
    rows = files("memsim").joinpath("data/compiled.csv").read_text(encoding="utf-8").splitlines()
    (table_triton,) = {row["triton"] for row in csv.DictReader(rows)}
    picked = [
        ("flash", "sm_90", PLAIN, Tile(64, 64, 4, 3)), ("flash", "sm_90", PLAIN, Tile(128, 128, 4, 2, "descriptor-ws")),
        ("flash", "sm_80", PLAIN, Tile(64, 32, 8, 2)), ("pv", "sm_90", PLAIN, Tile(64, 64, 4, 3)),
    ]  # fmt: skip
    for kernel, architecture, problem, tile in picked:
        entry = listed[key_of(kernel, architecture, problem, tile, False)]
        found = compile_call(entry.call, architecture).resources
        said = from_table(kernel, architecture, problem, tile, False)
        assert said is not None
        if __version__ == table_triton:
            assert found == said
        elif tile.load_path == "pointer":
            assert (found.sram_bytes, found.block_warps) == (said.sram_bytes, said.block_warps)
        assert abs(found.sram_bytes - said.sram_bytes) < 1024 and abs(found.registers - said.registers) <= 24


def test_every_launch_of_the_measured_grids_is_in_the_table_with_its_stream() -> None:
    missing = {
        (launch, point.tile, point.problem)
        for grid in GRID_NAMES
        for point in measured_points(grid)
        for launch in (("flash",) if point.algorithm == "flash" else ("qk", "softmax", "pv"))
        for found in [from_table(launch, "sm_90", point.problem, point.tile, point.lse)]
        if found is None or found.stream is None
    }
    assert missing == set()
