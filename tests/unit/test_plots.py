"""Do the numbers of each plot equal those that other commands print?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import memsim.plot
from memsim import Attention, MemsimError, compare, simulate
from memsim.plot import Plot

from .measured import memsim_

PROBLEM = ("--heads", "2", "--seq-len", "256", "--head-dim", "64")
SMALL = Attention(heads=2, seq_len_q=256, seq_len_k=256, head_dim=64)
OPTIONS: dict[str, str | int | float] = {"gpu": "two-level", "heads": 2, "seq-len": 256, "head-dim": 64}
ALGORITHMS = ("naive", "flash")
LEVELS = {
    "SRAM filled": "sram_fill_bytes", "SRAM stored": "sram_store_bytes", "HBM read": "hbm_read_bytes",
    "HBM written": "hbm_write_bytes",
}  # fmt: skip


def json_of(*args: str) -> dict[str, Any]:
    code, out, err = memsim_(*args, "--json")
    assert (code, err) == (0, "")
    data: dict[str, Any] = json.loads(out)
    return data


# ---- numbers


def check_bytes(plot: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    found: dict[tuple[str, str, str], int] = {
        (row["algorithm"], row["launch"], row["level"]): row["bytes"] for row in plot["rows"]
    }
    expected = {
        (name, launch["name"], level): launch[field]
        for name, result in results.items()
        for launch in result["launches"]
        for level, field in LEVELS.items()
    }
    assert {key: size for key, size in found.items() if key[2] != "L2 read"} == expected


@pytest.mark.parametrize("gpu", ["two-level", "h200"])
def test_bytes_are_those_that_simulate_prints(gpu: str) -> None:
    results = {name: json_of("simulate", name, *PROBLEM, "--gpu", gpu) for name in ALGORITHMS}
    plot = json_of("plot", "bytes", *PROBLEM, "--gpu", gpu)
    check_bytes(plot, results)
    l2 = sum(row["bytes"] for row in plot["rows"] if row["level"] == "L2 read")
    assert l2 == sum(result["total"]["l2_read_bytes"] or 0 for result in results.values())
    dirty = {name: result["total"]["l2_dirty_bytes_at_end"] for name, result in results.items()}
    assert plot["l2_dirty_bytes_at_end"] == dirty and ("dirty" in plot["caption"][-1]) is (gpu == "h200")
    for row in plot["rows"]:
        row["bytes"] += row["algorithm"] == "flash" and row["level"] == "HBM read"
    with pytest.raises(AssertionError):
        check_bytes(plot, results)


def test_counted_bytes_take_no_replay() -> None:
    plot = json_of("plot", "bytes", *PROBLEM, "--count-only")
    assert "L2 read" not in {row["level"] for row in plot["rows"]} and "without its L2" in plot["caption"][1]


def test_the_roofline_has_each_launch_and_no_launch_is_above_its_roof() -> None:
    plot = json_of("plot", "roofline", *PROBLEM, "--gpu", "two-level")
    machine = memsim.load_gpu("two-level")
    points = {row["launch"]: row for row in plot["rows"]}
    for name in ALGORITHMS:
        for launch in json_of("simulate", name, *PROBLEM, "--gpu", "two-level")["launches"]:
            row = points.pop(launch["name"])
            done = launch["flops"] or launch["alu_ops"]
            moved = launch["hbm_read_bytes"] + launch["hbm_write_bytes"]
            assert (row["flop"], row["hbm_bytes"], row["time_s"]) == (done, moved, launch["time_s"])
            assert (row["flop_per_byte"], row["flop_per_s"]) == (done / moved, done / launch["time_s"])
            peak = machine.tensor_flop_per_s("float16") if launch["flops"] else machine.alu_per_s
            assert row["roof_flop_per_s"] == min(peak, machine.hbm.bandwidth_bytes_per_s * done / moved)
            assert 0 < row["share_of_roof"] <= 1
    assert not points
    roofs = {roof["roof"]: roof.get("flop_per_s", roof.get("bytes_per_s")) for roof in plot["roofs"]}
    assert roofs == {
        "hbm": machine.hbm.bandwidth_bytes_per_s, "products": machine.tensor_flop_per_s("float16"),
        "element-wise": machine.alu_per_s,
    }  # fmt: skip


def test_a_launch_that_moves_no_hbm_bytes_is_named_and_left_out() -> None:
    result = simulate("naive", SMALL, gpu="two-level")
    still = replace(result.launches[2], hbm_read_bytes=0, hbm_write_bytes=0)
    plot = memsim.plot.roofline(replace(result, launches=(*result.launches[:2], still)))
    assert [row["launch"] for row in plot.rows] == ["qk", "softmax"] and "Without pv" in plot.caption[-1]
    with pytest.raises(MemsimError, match="no launch moved HBM bytes"):
        memsim.plot.roofline(replace(result, launches=(still,)))


def test_busy_shares_are_those_of_the_launches_one_after_the_other() -> None:
    plot = json_of("plot", "busy", *PROBLEM, "--inputs", "host")
    for name in ALGORITHMS:
        result = json_of("simulate", name, *PROBLEM, "--inputs", "host")
        at = result["total"]["host_s"]
        for launch in result["launches"]:
            rows = [row for row in plot["rows"] if row["launch"] == launch["name"]]
            shares = {row["resource"]: row["share"] for row in rows}
            assert shares == launch["busy"] | {"waiting_for_memory": launch["waiting_for_memory"]}
            (start,), (end,) = {row["start_s"] for row in rows}, {row["end_s"] for row in rows}
            assert start > at and end - start == pytest.approx(launch["time_s"])
            at = end
        assert at == pytest.approx(result["total"]["time_s"])


def test_bytes_against_sram_are_the_fewest_of_a_sweep_beside_the_bound() -> None:
    varied = ("--vary", "sram=16KiB:256KiB:x4", "--vary", "tile=16x16,32x64,128x64")
    plot = json_of("plot", "sram", *PROBLEM, "--gpu", "two-level", *varied)
    sweep = json_of("sweep", *PROBLEM, "--gpu", "two-level", *varied, "--vary", "algorithm=naive,flash",
                    "--num-stages", "1", "--count-only")  # fmt: skip
    assert [row["sram_bytes"] for row in plot["rows"]] == [16384, 65536, 262144]
    for row, text in zip(plot["rows"], ("16KiB", "64KiB", "256KiB"), strict=True):
        for name in ALGORITHMS:
            moved = [
                found["sram_fill_bytes"] + found["sram_store_bytes"]
                for found in sweep["rows"]
                if found["status"] == "ok" and (found["point"]["sram"], found["point"]["algorithm"]) == (text, name)
            ]
            assert row[f"{name}_bytes"] == min(moved)
            assert row["lower_bound_bytes"] <= min(moved)
        total = json_of("simulate", "flash", *PROBLEM, "--gpu", "two-level", "--sram", text, "--block-m", "16",
                        "--block-n", "16", "--count-only")["total"]  # fmt: skip
        assert row["lower_bound_bytes"] == max(total["compulsory_bytes"], total["io_lower_bound_bytes"])
    assert plot["rows"][0]["flash_bytes"] > plot["rows"][-1]["flash_bytes"]


def test_what_no_tile_of_fits_is_left_empty_and_all_of_it_refused() -> None:
    plot = memsim.plot.sram_sizes(OPTIONS, vary={"sram": "8KiB,64KiB", "tile": "64x64"})
    assert [row["flash_bytes"] is None for row in plot.rows] == [True, False]
    with pytest.raises(MemsimError, match="no tile fits in any of these SRAM sizes"):
        memsim.plot.sram_sizes(OPTIONS, vary={"sram": "1KiB", "tile": "64x64"})


@pytest.mark.parametrize("gpu", ["two-level", "h200"])
def test_the_map_of_tiles_has_what_simulate_prints_of_each(gpu: str) -> None:
    varied = ("--vary", "block-m=32,64,256", "--vary", "block-n=64,256")
    wide = (*PROBLEM[:-1], "128")
    plot = json_of("plot", "tiles", *wide, "--gpu", gpu, "--num-stages", "3", "--num-warps", "4", *varied)
    assert [(row["block_m"], row["block_n"]) for row in plot["rows"]] == [
        (m, n) for m in (32, 64, 256) for n in (64, 256)
    ]
    for row in plot["rows"]:
        tile = ("--block-m", str(row["block_m"]), "--block-n", str(row["block_n"]))
        args = ("simulate", "flash", *wide, "--gpu", gpu, "--num-stages", "3", "--num-warps", "4", *tile)
        if row["status"] == "ok":
            total = json_of(*args)["total"]
            assert (row["time_s"], row["hbm_bytes"]) == (total["time_s"], total["hbm_bytes"])
        else:
            code, _, err = memsim_(*args)
            assert code == 2 and row["status"] == "does-not-fit" and row["reason"] in err and row["time_s"] is None
    assert {row["status"] for row in plot["rows"]} == {"ok", "does-not-fit"}
    compared = [row for row in plot["rows"] if row["compared"]]
    assert [row["best"] for row in compared].count(True) == sum(row["best"] for row in plot["rows"]) == 1
    assert min(compared, key=lambda row: row["time_s"])["best"]
    # By instructions and by trace are not ranked together.
    assert len({row["replayed_by"] for row in compared}) == 1
    by_trace = [row for row in plot["rows"] if row["replayed_by"] == "trace" and not row["compared"]]
    assert bool(by_trace) is (gpu == "h200") and any("By trace" in line for line in plot["caption"]) is bool(by_trace)


def test_growth_is_that_of_simulate_at_each_length() -> None:
    plot = json_of("plot", "growth", "--heads", "2", "--head-dim", "64", "--vary", "seq-len=64,256")
    assert [(row["algorithm"], row["seq_len"]) for row in plot["rows"]] == [
        (name, n) for name in ALGORITHMS for n in (64, 256)
    ]
    for row in plot["rows"]:
        total = json_of("simulate", row["algorithm"], "--heads", "2", "--head-dim", "64", "--seq-len",
                        str(row["seq_len"]))["total"]  # fmt: skip
        for name in ("hbm_bytes", "l2_dirty_bytes_at_end", "time_s", "peak_hbm_bytes", "compulsory_bytes"):
            assert row[name] == total[name]


def test_a_length_that_does_not_fit_in_hbm_is_a_row_that_says_so() -> None:
    plot = memsim.plot.growth({"gpu": "two-level", "heads": 64, "count-only": True}, vary={"seq-len": "1Ki,128Ki"})
    status = {(row["algorithm"], row["seq_len"]): row["status"] for row in plot.rows}
    assert status["naive", 131072] == "out-of-memory" and status["flash", 131072] == "ok"
    assert all(row["time_s"] is None for row in plot.rows)
    assert len(plot.spec()["hconcat"]) == 2  # no times, no panel of them


def test_what_of_a_tile_is_flashs_alone_does_not_hinder_naive() -> None:
    options = {"heads": 2, "head-dim": 64, "load-path": "descriptor", "count-only": True}
    plot = memsim.plot.growth(options, vary={"seq-len": "256"})
    assert [row["status"] for row in plot.rows] == ["ok", "ok"]


def test_results_of_a_machine_that_has_no_name_take_it_as_an_argument() -> None:
    machine = memsim.load_gpu("two-level").model_copy(update={"name": "mine"})
    both = compare(SMALL, gpu=machine)
    makes: tuple[Callable[[], Plot], ...] = (
        lambda: memsim.plot.bytes_per_level(both, machine), lambda: memsim.plot.roofline(both.flash, gpu=machine),
    )  # fmt: skip
    for make in makes:
        assert "mine: 82 SMs" in make().caption[1]
    with pytest.raises(MemsimError, match="mine"):
        memsim.plot.roofline(both.flash)
