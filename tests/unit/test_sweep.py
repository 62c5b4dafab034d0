"""Sweeps: the product in order, points that cannot run kept with their reason, and what is refused as a whole."""

import csv
import io
import itertools
from collections.abc import Sequence
from typing import Any

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
    assert table.options == {
        "algorithm": "flash", "batch": "1", "heads": "2", "kv-heads": "2", "seq-len-q": "128", "seq-len-k": "128",
        "head-dim": "64", "dtype": "float16", "lse": "false", "inputs": "hbm", "l2-state": "cold",
    }  # fmt: skip
    again = sweep("flash", axes, {k: v for k, v in table.options.items() if k != "algorithm"}, count_only=True)
    assert again.rows == table.rows


@pytest.mark.parametrize("count_only", [True, False])
def test_a_row_says_what_simulate_says(count_only: bool) -> None:
    table = sweep("naive", {"seq-len": ["64", "96"]}, {"heads": 2, "gpu": "two-level"}, count_only=count_only)
    for row, rows in zip(table.rows, (64, 96), strict=True):
        problem = memsim.Attention(heads=2, seq_len_q=rows, seq_len_k=rows)
        result = memsim.simulate("naive", problem, gpu="two-level", count_only=count_only)
        for name in set(COLUMNS) - {"status", "reason", *result.tile, "blocks_per_sm", "sram_bytes", "notes"}:
            assert getattr(row, name) == getattr(result.total, name), name
        assert row.tile == memsim.Tile(**result.tile) and row.notes == result.notes
        assert row.blocks_per_sm == min(launch.blocks_per_sm for launch in result.launches)
        assert row.sram_bytes == max(launch.sram_bytes for launch in result.launches)
        assert (row.time_s is None) is count_only


def test_any_option_or_field_may_be_an_axis() -> None:
    for axis, values in {
        "algorithm": ["naive", "flash", "flash1"], "lse": ["true", "false"], "dtype": ["float16", "float32"],
        "num_stages": ["1", "2"], "sram": ["96KiB", "192KiB"], "hbm-bandwidth": ["1TB/s", "2TB/s"],
        "inputs": ["hbm", "host"], "scale": ["-1", "0.5"], "sm.count": ["1", "2"], "l2-state": ["cold", "warm"],
        "l2": ["none", "1MiB"], "l2.partitions": ["1", "2"],
        "hbm-latency": ["1us", "1ns"],
    }.items():  # fmt: skip
        table = sweep("flash", {axis: values}, SMALL)
        assert [row.status for row in table.rows] == ["ok"] * len(values), axis
    assert table.axes == {"hbm-latency": ("1us", "1ns")}
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
        ({"heads": ["1", "x", "0"]}, {"dtype": "int8"}, ['heads is "x"', 'dtype is "int8"']),
        ({"head-dim": ["64"]}, {"kv-heads": "0"}, ["kv-heads is 0"]),
        ({"dtype": ["float16", "int8"], "causal": ["maybe"]}, {}, ['dtype is "int8"', 'causal is "maybe"']),
        ({"sm.cuont": ["1"]}, {"sm.clock": "1"}, ['there is no axis "sm.cuont"', "sm.clock is not a field"]),
        ({"seq-len": ["1"]}, {"sram": "1KiB"}, ["sram is 1024 B, but must be more than the 1024 B"]),
        ({"l2": ["none", "50MB", "lots"]}, {}, ['l2 is "lots"']),
        ({"l2-state": ["cold", "hot"]}, {}, ['l2-state is "hot"; it must be one of cold, warm.']),
        ({"gpu": ["h200", "nope"]}, {}, ['no file called "nope"']),
        ({"algorithm": ["flash", "nope"]}, {}, ['there is no algorithm "nope"']),
        ({"lse": ["maybe"]}, {}, ['lse is "maybe": give true or false.']),
        ({"sram": ["96KiB", "much"], "sms": ["few"]}, {}, ['sram is "much"', 'sms is "few"']),
        ({"sm.count": ["1", "few"]}, {}, ['sm.count is "few"']),
        ({"heads": ["1"]}, {"sm.count": "few"}, ['sm.count is "few"']),
        ({"heads": ["1"]}, {"block-m": "0"}, ["block-m is 0"]),
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
    hundreds = [str(number) for number in range(1, 1002)]
    axes = {"seq-len-q": hundreds, "seq-len-k": hundreds, "gpu": ["nope"]}
    with pytest.raises(MemsimError) as caught:
        sweep("flash", axes, SMALL | {"heads": "x"})
    (fault,) = caught.value.faults
    assert "1002001 points" in fault and str(MOST_POINTS) in fault


def test_gpu_fields_that_are_right_only_together_are_judged_point_by_point() -> None:
    axes = {"sm.sram.capacity_bytes": ["192KiB", "512KiB"], "sm.sram.block_limit_bytes": ["96KiB", "400KiB"]}
    table = sweep("flash", axes, SMALL | {"gpu": "two-level"}, count_only=True)
    assert [row.status for row in table.rows] == ["ok", "refused", "ok", "ok"]


def test_csv_has_the_axes_first_and_parses_back() -> None:
    table = sweep("flash", {"block-m": ["32", "4Ki"], "sm.count": ["3"]}, SMALL)
    text = io.StringIO()
    table.write_csv(text)
    ok, bad = csv.DictReader(io.StringIO(text.getvalue()))
    assert tuple(ok) == (
        "block-m", "sm.count", *COLUMNS, "algorithm", "gpu", "batch", "heads", "kv_heads", "seq_len_q", "seq_len_k",
        "head_dim", "dtype", "causal", "lse", "inputs", "l2-state", "schema", "memsim_version", "simulator_digest",
        "gpu_digest",
    )  # fmt: skip
    assert COLUMNS == (
        "status", "reason", "block_m", "block_n", "num_warps", "num_stages", "load_path", "grid_order", "blocks_per_sm",
        "sram_bytes", "sram_fill_bytes", "sram_store_bytes", "hbm_bytes", "l2_hit_rate", "flops", "time_s", "bound",
        "waiting_for_memory", "over_compulsory", "notes",
    )  # fmt: skip
    assert (ok["block_m"], ok["block_n"], ok["num_stages"], bad["block_m"]) == ("32", "64", "3", "")
    assert ok["notes"] == table.notes[0] and bad["notes"] == ""
    assert int(ok["hbm_bytes"]) == table.rows[0].hbm_bytes and float(ok["time_s"]) == table.rows[0].time_s
    assert bad["status"] == "does-not-fit" and bad["reason"] == table.rows[1].reason and bad["hbm_bytes"] == ""


def csv_rows(*args: Any, **kwargs: Any) -> list[dict[str, str]]:
    text = io.StringIO()
    sweep(*args, **kwargs).write_csv(text)
    return list(csv.DictReader(io.StringIO(text.getvalue())))


def test_csv_stands_alone() -> None:
    axes = {"seq-len": ["64", "1Ki"], "heads": ["2", "3"], "causal": [True]}
    for row in csv_rows("naive", axes, {"gpu": "two-level", "sram": "96KiB", "scale": "2"}, count_only=True):
        rows = {"64": "64", "1Ki": "1024"}[row["seq-len"]]
        expected = {
            "algorithm": "naive", "gpu": "two-level", "batch": "1", "kv_heads": row["heads"], "seq_len_q": rows,
            "seq_len_k": rows, "head_dim": "128", "dtype": "float16", "sram": "96KiB", "scale": "2",
        }  # fmt: skip
        assert {name: row[name] for name in expected} == expected
        assert row["causal"] == "true" and list(row).count("causal") == list(row).count("heads") == 1
    axes = {"gpu": ["two-level"], "algorithm": ["flash"], "kv-heads": ["3"], "sms": ["0"]}
    (row,) = csv_rows("flash", axes, {"seq-len-q": "1", "block-m": "32"}, count_only=True)
    assert row["status"] == "refused" and "sm.count is 0" in row["reason"] and "kv-heads" in row["reason"]
    assert (row["seq_len_q"], row["seq_len_k"], row["heads"], row["block_m"]) == ("1", "2048", "16", "")
    assert "kv_heads" not in row and list(row)[:4] == list(axes)


def test_a_value_that_is_unusable_alone_is_a_row_and_not_the_end() -> None:
    for axis, bad, good, part in (
        ("sram", "1KiB", "96KiB", "sram is 1024 B, but must be more than the 1024 B"),
        ("heads", "0", "2", "heads is 0;"), ("kv-heads", "0", "2", "kv-heads is 0;"),
        ("block-m", "0", "32", "block-m is 0;"), ("num-warps", "3", "4", "num-warps is 3; it must be a power of two"),
        ("block-n", "8", "64", "block-n is 8; this GPU's tensor instructions"),
        ("sm.count", "0", "1", "sm.count is 0"), ("hbm-bandwidth", "0", "1TB/s", "hbm.bandwidth_bytes_per_s is 0"),
    ):  # fmt: skip
        options = {name: text for name, text in SMALL.items() if name != axis}
        refused, ok = sweep("flash", {axis: [bad, good]}, options, count_only=True).rows
        assert (refused.status, ok.status) == ("refused", "ok") and part in refused.reason, axis


def test_notes_that_hold_for_some_points_stay_with_them() -> None:
    table = sweep("flash", {"gpu": ["h200", "two-level"]}, SMALL, count_only=True)
    assert table.notes == () and [len(row["notes"]) for row in table.as_dict()["rows"]] == [1, 0]
    table = sweep("flash", {"heads": ["1", "2"]}, {"seq-len": 64}, count_only=True)
    assert len(table.notes) == 1 and all(row["notes"] == [] for row in table.as_dict()["rows"])


def test_progress_counts_the_points() -> None:
    seen: list[tuple[int, int]] = []
    sweep("flash", {"seq-len": ["1", "2", "3"]}, {"heads": 1}, count_only=True, progress=lambda *p: seen.append(p))
    assert seen == [(1, 3), (2, 3), (3, 3)]
