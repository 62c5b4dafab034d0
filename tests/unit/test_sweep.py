"""Sweeps: the product in order, points that cannot run kept with their reason, and what is refused as a whole."""

import csv
import io
import itertools
from collections.abc import Sequence

import pytest

import memsim
from memsim.errors import MemsimError
from memsim.sweep import COLUMNS, MOST_POINTS, sweep

SMALL = {"heads": "2", "seq-len": "128", "head-dim": "64"}


def test_points_are_the_product_in_the_order_given() -> None:
    axes = {"block-m": ["64", "32"], "causal": ["true", "false"], "gpu": ["two-level", "h200"]}
    table = sweep("flash", axes, SMALL, count_only=True)
    assert [tuple(row.point.values()) for row in table.rows] == list(itertools.product(*axes.values()))
    assert all(tuple(row.point) == tuple(axes) and row.status == "ok" for row in table.rows)
    assert table.points == 8
    assert table.options == {"algorithm": "flash", **SMALL}


@pytest.mark.parametrize("count_only", [True, False])
def test_a_row_says_what_simulate_says(count_only: bool) -> None:
    table = sweep("naive", {"seq-len": ["64", "96"]}, {"heads": 2, "gpu": "two-level"}, count_only=count_only)
    for row, rows in zip(table.rows, (64, 96), strict=True):
        problem = memsim.Attention(heads=2, seq_len_q=rows, seq_len_k=rows)
        result = memsim.simulate("naive", problem, gpu="two-level", count_only=count_only)
        for name in set(COLUMNS) - {"status", "reason", "blocks_per_sm", "sram_bytes"}:
            assert getattr(row, name) == getattr(result.total, name), name
        assert row.blocks_per_sm == min(launch.blocks_per_sm for launch in result.launches)
        assert row.sram_bytes == max(launch.sram_bytes for launch in result.launches)
        assert (row.time_s is None) is count_only


def test_any_option_or_field_may_be_an_axis() -> None:
    for axis, values in {
        "algorithm": ["naive", "flash", "flash1"], "lse": ["true", "false"], "dtype": ["float16", "float32"],
        "num_stages": ["1", "2"], "sram": ["96KiB", "192KiB"], "hbm-bandwidth": ["1TB/s", "2TB/s"],
        "inputs": ["hbm", "host"], "scale": ["-1", "0.5"], "sm.count": ["1", "2"], "hbm.latency_s": ["1us", "1ns"],
    }.items():  # fmt: skip
        table = sweep("flash", {axis: values}, SMALL)
        assert [row.status for row in table.rows] == ["ok"] * len(values), axis
    assert table.axes == {"hbm.latency_s": ("1us", "1ns")}
    assert table.rows[0].time_s > table.rows[1].time_s  # type: ignore[operator]


def test_numbers_and_booleans_are_taken_as_well_as_texts() -> None:
    table = sweep("flash", {"seq-len": [64, 128], "causal": [True, False]}, {"heads": 2}, count_only=True)
    assert [row.point["causal"] for row in table.rows] == ["true", "false"] * 2


def test_points_that_cannot_run_are_rows_that_say_why() -> None:
    table = sweep(
        "naive",
        {"seq-len": ["64", "128Ki"], "kv-heads": ["8", "3"], "block-m": ["64", "8Ki", "8"]},
        {"heads": "8", "hbm-capacity": "1GB", "block-n": "1Ki"},
        count_only=True,
    )
    by_point = {tuple(row.point.values()): row for row in table.rows}
    assert len(by_point) == 12
    assert by_point["64", "8", "64"].status == "does-not-fit"
    assert by_point["128Ki", "8", "64"].status == "out-of-memory"
    assert by_point["64", "3", "64"].status == "refused"
    assert by_point["64", "8", "8"].status == "refused"
    for row in table.rows:
        assert row.reason.endswith(".") and row.hbm_bytes is None and row.blocks_per_sm is None


@pytest.mark.parametrize(
    ("axes", "options", "parts"),
    [
        ({}, {}, ["nothing is varied"]),
        ({"seq-len": []}, {}, ["seq-len is varied over an empty value"]),
        ({"seq-len": ["1", ""]}, {}, ["seq-len is varied over an empty value"]),
        ({"seqlen": ["1"]}, {}, ['there is no axis "seqlen": did you mean seq-len?']),
        ({"sm.cuont": ["1"]}, {}, ['there is no axis "sm.cuont": did you mean sm.count?']),
        ({"sm.sram": ["1"]}, {}, ["sm.sram is more than one value: vary one of capacity_bytes"]),
        ({"seq-len": ["1"], "seq_len": ["2"]}, {}, ["seq-len is varied twice"]),
        ({"heads": ["1"]}, {"heads": "2"}, ["heads is varied and has a value too"]),
        ({"sm.count": ["1"]}, {"sm.count": "2"}, ["sm.count is varied and has a value too"]),
        ({"heads": ["1"]}, {"haeds": "2"}, ['there is no option "haeds": did you mean heads?']),
        ({"heads": ["1", "x", "0"]}, {"dtype": "int8"}, ['heads is "x"', "heads is 0", "dtype is 'int8'"]),
        ({"kv-heads": ["0"]}, {}, ["kv_heads is 0"]),
        ({"gpu": ["h200", "nope"]}, {}, ['no file called "nope"']),
        ({"algorithm": ["flash", "nope"]}, {}, ['there is no algorithm "nope"']),
        ({"lse": ["maybe"]}, {}, ['lse is "maybe": give true or false.']),
        ({"sram": ["96KiB", "much"], "sms": ["few"]}, {}, ['sram is "much"', 'sms is "few"']),
        ({"sm.count": ["1", "few"]}, {}, ['sm.count is "few"']),
        ({"heads": ["1"]}, {"sm.count": "few"}, ['sm.count is "few"']),
        ({"block-m": ["0"]}, {}, ["block_m is 0"]),
    ],
)
def test_what_is_wrong_at_every_point_is_refused_at_once(
    axes: dict[str, Sequence[str]], options: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(MemsimError) as caught:
        sweep("flash", axes, options, count_only=True)
    assert len(caught.value.faults) == len(parts)
    for fault, part in zip(sorted(caught.value.faults), sorted(parts), strict=True):
        assert part in fault and fault[-1] in ".?"


def test_too_many_points_are_refused_before_any_value_is_read() -> None:
    hundreds = [str(number) for number in range(1, 1001)]
    axes = {"seq-len-q": hundreds, "seq-len-k": hundreds, "gpu": ["nope"]}
    with pytest.raises(MemsimError) as caught:
        sweep("flash", axes, SMALL | {"heads": "x"})
    (fault,) = caught.value.faults
    assert "1000000 points" in fault and str(MOST_POINTS) in fault


def test_gpu_fields_that_are_right_only_together_are_judged_point_by_point() -> None:
    axes = {"sm.sram.capacity_bytes": ["192KiB", "512KiB"], "sm.sram.block_limit_bytes": ["96KiB", "400KiB"]}
    table = sweep("flash", axes, SMALL | {"gpu": "two-level"}, count_only=True)
    assert [row.status for row in table.rows] == ["ok", "refused", "ok", "ok"]


def test_csv_has_the_axes_first_and_parses_back() -> None:
    table = sweep("flash", {"block-m": ["32", "4Ki"], "sm.count": ["3"]}, SMALL)
    text = io.StringIO()
    table.write_csv(text)
    ok, bad = csv.DictReader(io.StringIO(text.getvalue()))
    assert tuple(ok) == ("block-m", "sm.count", *COLUMNS)
    assert COLUMNS == (
        "status", "reason", "blocks_per_sm", "sram_bytes", "sram_fill_bytes", "sram_store_bytes", "hbm_bytes", "flops",
        "time_s", "bound", "waiting_for_memory", "over_compulsory",
    )  # fmt: skip
    assert int(ok["hbm_bytes"]) == table.rows[0].hbm_bytes and float(ok["time_s"]) == table.rows[0].time_s
    assert bad["status"] == "does-not-fit" and bad["reason"] == table.rows[1].reason and bad["hbm_bytes"] == ""


def test_progress_counts_the_points() -> None:
    seen: list[tuple[int, int]] = []
    sweep("flash", {"seq-len": ["1", "2", "3"]}, {"heads": 1}, count_only=True, progress=lambda *p: seen.append(p))
    assert seen == [(1, 3), (2, 3), (3, 3)]
