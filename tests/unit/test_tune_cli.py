"""`memsim tune`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import memsim
from memsim import _sweep_points
from memsim.cli import run

PROBLEM = ["--heads", "2", "--seq-len", "128", "--head-dim", "64", "--gpu", "two-level", "--sms", "2"]
FEW = [*PROBLEM, "--vary", "tile=16x16,32x32,64x64", "--num-stages", "1", "--grid-order", "rows-fast"]
ASKED = memsim.Attention(heads=2, seq_len_q=128, seq_len_k=128, head_dim=64)


def ran(capsys: pytest.CaptureFixture[str], *tokens: str, code: int = 0) -> tuple[str, str]:
    assert run(["tune", *tokens]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.out, printed.err


def by_hand(**more: Any) -> memsim.Tuning:
    tiles = [memsim.Tile(n, n, 4, 1) for n in (16, 32, 64)]
    return memsim.tune(ASKED, gpu="two-level", gpu_options={"sms": "2"}, tiles=tiles, **more)


def test_the_table_has_the_best_and_what_held_them_back(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = ran(capsys, *FEW)
    found = by_hand()
    assert err == "" and out.startswith(
        "Tiles for flash, by predicted time: 2 heads, seq-len 128, head-dim 64, float16\n"
    )
    labels = [f"{c.tile.block_m}×{c.tile.block_n}, 4, 1" for c in found.best]
    lines = [line for line in out.splitlines() if "×" in line and ", 4, 1 " in line]
    assert [next(label for label in labels if line.startswith(label)) for line in lines][:3] == labels
    text = " ".join(out.split())
    assert f"The best is {found.tile}. {found.best[0].why}" in text
    for heading in ("cost", "time", "HBM", "bound", "waits", "blocks/SM", "waves", "SRAM/block"):
        assert heading in out
    assert "3 of 3 candidates were tried." in text
    assert "memsim simulate flash --block-m " in text


def test_a_narrow_terminal_loses_no_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "60")
    out, _ = ran(capsys, *FEW)
    assert all(heading in out for heading in ("cost", "HBM", "bound", "blocks/SM", "SRAM/block"))
    assert max(map(len, out.splitlines())) <= 60


def test_json_is_what_python_has(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, err = ran(capsys, *FEW, "--json", "--best", "2", "--csv", str(tmp_path / "tried.csv"), "--by", "hbm-bytes")
    data, found = json.loads(out), by_hand(best=2, by="hbm-bytes").as_dict()
    for part in ("best", "refusals", "candidates", "problem", "gpu", "gpu_options", "by", "schema", "notes", "tried"):
        assert data[part] == json.loads(json.dumps(found[part])), part
    assert f"{data['tried']} candidates are in" in err
    with open(tmp_path / "tried.csv", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == data["tried"]
    assert [row["hbm_bytes"] for row in rows[:2]] == [str(c["hbm_bytes"]) for c in data["best"]]


def test_what_is_not_tried_is_counted_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--heads", "2", "--seq-len", "128", "--head-dim", "64"]
    varied = ["--vary", "num-warps=2,4", "--vary", "load-path=pointer,descriptor-ws", "--vary", "tile=64x64,256x256"]
    out, _ = ran(capsys, *small, *varied, "--num-stages", "3", "--block-sram", "100KiB", "--grid-order", "rows-fast")
    text = " ".join(out.split())
    assert "at most 100 KiB of SRAM a block" in text and "1 of 8 candidates were tried" in text
    assert "4 are warp-specialised kernels that are not offered" in text
    assert "2 take more SRAM than the limit on a block's." in text
    assert "1 are not compared, because no instructions of their kernels are known" in text
    assert "Times are those of the compiled kernels' instructions" in text


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--sram", "2KiB"], "no candidate is possible on two-level: 3 do not fit on an SM"),
        (["--block-sram", "much"], "block-sram is"),
        (["--block-sram", "0"], "the limit on a block's SRAM is 0 B; give at least 1 B."),
        (["--by", "luck"], "by is 'luck'; it must be one of time, hbm-bytes."),
        (["--count-only"], "a time takes a replay: rank by hbm-bytes, or leave count-only out."),
        (["--best", "5000"], "best is 5000; give a whole number from 1 to 1000."),
        (["--best", "some"], "best is"),
        (["--jobs", "0"], "jobs is"),
        (["--vary", "num-stages=2"], "num-stages is varied and has a value too: give one of them."),
        (["--vary", "seq-len=1,2"], "tune varies the tile, and seq-len is none of its fields"),
        (["--vary", "tile"], "give FIELD=V1,V2"),
        (["--block-m", "0"], "block-m is"),
        (["--csv", "/nowhere/at/all.csv"], "csv is"),
        (["--out", "/nowhere/at/all.db"], "out is"),
        (["--cluster", "tcp://127.0.0.1:1"], "cluster is"),
        (["--set", "sm.cuont=1"], "sm.cuont"),
        (["--seq-len-q", "0"], "no rows of Q"),
    ],
)  # fmt: skip
def test_bad_input_exits_with_2_and_sentences(
    tokens: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    given = [*FEW, *tokens] if tokens[0] != "--block-m" else [*PROBLEM, *tokens]
    out, err = ran(capsys, *given, code=2)
    assert out == "" and said in err
    assert all(line.startswith("memsim: ") for line in err.splitlines())


def test_all_faults_are_named_together(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = ran(capsys, *PROBLEM, "--vary", "gpu=h200", "--dtype", "int8", "--jobs", "0", "--csv", "", code=2)
    for said in ("gpu is none of its fields", "dtype is", "jobs is", "csv is"):
        assert said in err


def test_csv_and_out_may_not_be_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    _, err = ran(capsys, *FEW, "--csv", path, "--out", path, code=2)
    assert "csv and out are the same file: give two." in err


def test_a_results_file_of_something_else_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    path.write_bytes(b"something else")
    _, err = ran(capsys, *FEW, "--out", str(path), code=2)
    assert "holds no results of a sweep" in err and path.read_bytes() == b"something else"
    path.unlink()
    ran(capsys, *FEW, "--out", str(path))
    _, err = ran(capsys, *FEW, "--causal", "--out", str(path), code=2)
    assert "which holds another sweep" in err


def test_ctrl_c_shows_the_best_so_far_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "tuned.db")
    run_point, asked = _sweep_points.Points.row, []

    def interrupted(self: Any, point: Any, before: Any = None) -> Any:
        asked.append(point)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return run_point(self, point, before)

    monkeypatch.setattr(_sweep_points.Points, "row", interrupted)
    out, err = ran(capsys, *FEW, "--out", path, code=130)
    assert "2 of 3 candidates were tried." in " ".join(out.split())
    assert "interrupted: these are the best of the 2 candidates that were tried" in err and "goes on after them" in err
    monkeypatch.undo()
    monkeypatch.setattr(_sweep_points.Points, "row", lambda self, point, before=None: once(self, point, before))

    def once(self: Any, point: Any, before: Any) -> Any:
        assert point not in asked[:2]
        return run_point(self, point, before)

    out, _ = ran(capsys, *FEW, "--out", path, "--json")
    assert json.loads(out)["best"] == json.loads(json.dumps(by_hand().as_dict()["best"]))


def test_ctrl_c_before_anything_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sweep_points.Points, "row", interrupted)
    out, err = ran(capsys, *FEW, code=130)
    assert out == "" and "interrupted, nothing was finished" in err


def test_a_long_search_is_announced_where_no_bar_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all candidates together, before the first is replayed."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sweep_points.Points, "row", interrupted)
    long = ["--heads", "16", "--seq-len", "4096", "--gpu", "two-level", "--vary", "tile=16x16,32x32"]
    _, err = ran(capsys, *long, "--num-stages", "1", "--grid-order", "rows-fast", code=130)
    assert "million tile operations; --vary takes fewer candidates" in err and err.count("replaying") == 1


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "--help")
    for name in ("--by", "--block-sram", "--vary", "--best", "--out", "--jobs", "--cluster", "--csv", "--json"):
        assert name in out
