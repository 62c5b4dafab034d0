"""Does `--full` reach the replay from every command, and does the report say how many blocks were left out?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from .test_cli import json_of, memsim_

# A machine of few SMs, on which a small launch has many waves.
FEW = ("--gpu", "h200", "--set", "sm.count=1", "--set", "l2.capacity_bytes=1048576", "--set",
       "l2.dirty_limit_bytes=471859")  # fmt: skip
PROBLEM = ("--heads", "200", "--seq-len", "256", "--head-dim", "64", "--block-m", "64", "--block-n", "64",
           "--num-warps", "4", "--num-stages", "2")  # fmt: skip


def left_out(result: dict[str, Any]) -> int:
    return sum(launch["blocks_left_out"] for launch in result["launches"])


def test_full_replays_every_block() -> None:
    fast, full = (json_of("simulate", "flash", *PROBLEM, *FEW, *more) for more in ((), ("--full",)))
    assert left_out(fast) > 0 and left_out(full) == 0
    for name in ("sram_fill_bytes", "sram_store_bytes"):
        assert fast["total"][name] == full["total"][name]
    assert fast["total"]["time_s"] == pytest.approx(full["total"]["time_s"], rel=0.01)
    assert fast["total"]["hbm_bytes"] == pytest.approx(full["total"]["hbm_bytes"], rel=0.01)


def test_the_report_says_how_many_were_left_out() -> None:
    _, said, _ = memsim_("simulate", "flash", *PROBLEM, *FEW)
    assert "blocks left out" in said
    _, said, _ = memsim_("simulate", "flash", *PROBLEM, *FEW, "--full")
    assert "blocks left out" not in said


def test_compare_takes_it() -> None:
    both = json_of("compare", *PROBLEM, *FEW, "--full")
    assert left_out(both["naive"]) == left_out(both["flash"]) == 0


@pytest.mark.parametrize("command", ["simulate", "compare", "sweep"])
def test_help_names_it(command: str) -> None:
    _, said, _ = memsim_(command, "--help")
    assert "--full" in said and "left out" in said


def test_sweep_takes_it_as_an_option_and_as_an_axis(tmp_path: Path) -> None:
    rows = {}
    for name, more in (("axis", ("--vary", "full=true,false")), ("option", ("--full", "--vary", "l2-state=cold"))):
        file = tmp_path / f"{name}.csv"
        code, _, error = memsim_("sweep", *PROBLEM, *FEW, *more, "--csv", str(file))
        assert code == 0, error
        with open(file, newline="", encoding="utf-8") as lines:
            rows[name] = list(csv.DictReader(lines))
    full, fast = rows["axis"]
    assert (full["full"], fast["full"]) == ("true", "false")
    assert full["sram_fill_bytes"] == fast["sram_fill_bytes"] and full["time_s"] != fast["time_s"]
    assert rows["option"][0]["time_s"] == full["time_s"]


def test_what_is_no_yes_or_no_is_refused_in_a_sentence() -> None:
    code, _, error = memsim_("sweep", *PROBLEM, *FEW, "--vary", "full=maybe")
    assert code == 2 and "full" in error and "Traceback" not in error
