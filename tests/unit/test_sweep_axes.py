"""Are ranges spelled out as written, are tiles and files axes, and is what cannot be an axis refused in a sentence?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim import MemsimError, sweep
from memsim._sweep_axes import count_of, read_values, spelled_out
from memsim._sweep_plan import MOST_POINTS, SweepPlan
from memsim.gpu import template
from memsim.units import parse_bytes, parse_count

SMALL = {"gpu": "two-level", "heads": "1", "seq-len": "64", "head-dim": "64"}


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("sram", "32KiB:256KiB:x2", "32KiB 64KiB 128KiB 256KiB"),
        ("sram", "96KiB:192KiB:+48KiB", "96KiB 144KiB 192KiB"),
        ("sram", "32KiB:1MiB:x32", "32KiB 1024KiB"),
        ("sram", "1MB:2MB:+500KB", "1MB 1.5MB 2MB"),
        ("seq-len", "1Ki:8Ki:x2", "1Ki 2Ki 4Ki 8Ki"),
        ("seq-len", "512:2Ki:x2", "512 1024 2048"),
        ("seq-len", "1:4:+1", "1 2 3 4"),
        ("seq-len", "7:7:x2", "7"),
        ("seq-len", "0:2:+1", "0 1 2"),
        ("hbm-latency", "0.5us:2us:x2", "0.5us 1us 2us"),
        ("hbm-bandwidth", "1TB/s:2.25TB/s:x1.5", "1TB/s 1.5TB/s 2.25TB/s"),
        ("clock", "1e3MHz:1.2GHz:+100MHz", "1000MHz 1100MHz 1200MHz"),
        ("l2.partitions", "1:2:+1", "1 2"),
    ],
)
def test_ranges_hold_both_ends_in_the_unit_of_the_first(name: str, text: str, values: str) -> None:
    read = read_values(name, [text])
    assert spelled_out(read) == tuple(values.split()) and count_of(read) == len(values.split())


def test_ranges_and_values_may_stand_side_by_side() -> None:
    assert spelled_out(read_values("l2", ["none", "1MiB:4MiB:x2", "9MiB"])) == ("none", "1MiB", "2MiB", "4MiB", "9MiB")


@given(st.integers(1, 10**6), st.integers(2, 9), st.integers(0, 12), st.sampled_from(["", "KiB", "KB"]))
def test_a_range_by_a_factor_is_a_geometric_row(start: int, factor: int, more: int, unit: str) -> None:
    stop = start * factor**more
    values = [parse_bytes(text) for text in spelled_out(read_values("sram", [f"{start}{unit}:{stop}{unit}:x{factor}"]))]
    first = parse_bytes(f"{start}{unit}")
    assert values == [first * factor**i for i in range(more + 1)]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 40), st.sampled_from(["", "Ki"]))
def test_a_range_by_steps_is_an_arithmetic_row(start: int, step: int, more: int, unit: str) -> None:
    text = f"{start}{unit}:{start + more * step}{unit}:+{step}{unit}"
    values = [parse_count(text) for text in spelled_out(read_values("seq-len", [text]))]
    assert values == [parse_count(f"{start + i * step}{unit}") for i in range(more + 1)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("32KiB:256KiB", "which is no range: give FROM:TO:xFACTOR or FROM:TO:+STEP, such as 32KiB:256KiB:x2."),
        ("32KiB:256KiB:2", "which is no range"),
        ("32KiB:256KiB:x", "which is no range"),
        (":256KiB:x2", "which is no range"),
        ("1:2:3:x2", "which is no range"),
        ("32KiB:200KiB:x2", "which does not come to 200KiB: end it at 128KiB or 256KiB."),
        ("1KiB:4KiB:+2KiB", "which does not come to 4KiB: end it at 3KiB or 5KiB."),
        ("64KiB:32KiB:x2", "which ends below its start"),
        ("0:32KiB:x2", "needs a start above zero and a factor above one"),
        ("32KiB:64KiB:x1", "needs a start above zero and a factor above one"),
        ("32KiB:64KiB:x2KiB", "needs a start above zero and a factor above one"),
        ("32KiB:64KiB:+0", "whose step is zero"),
        ("1:1e18:x1.000001", "too many digits"),
        ("a:b:x2", 'sram is "a", which is not a finite number'),
        ("1ki:2ki:x2", 'unknown unit "ki"'),
        ("-4:4:+1", 'sram is "-4", which is negative'),
        ("1us:4us:x2", 'sram is "1us", which has an unknown unit "us"'),
    ],
)
def test_what_is_no_range_of_an_axis_is_refused(text: str, part: str) -> None:
    with pytest.raises(MemsimError) as caught:
        sweep("flash", {"sram": text}, SMALL, count_only=True)
    assert part in caught.value.faults[0] and all(fault.endswith(".") for fault in caught.value.faults)


@pytest.mark.parametrize("points", [MOST_POINTS + 1, 10**12, 2**62])
def test_too_many_points_are_counted_and_not_made(points: int) -> None:
    since = time.process_time()
    with pytest.raises(MemsimError, match=f"the sweep has {points} points; take fewer values: at most {MOST_POINTS}"):
        SweepPlan("flash", [("seq-len", [f"1:{points}:+1"])], {}, {})
    million = ["1:1000000:+1"]
    with pytest.raises(MemsimError, match="the sweep has 1000000000000 points"):
        SweepPlan("flash", [("seq-len-q", million), ("seq-len-k", million)], {}, {})
    assert time.process_time() - since < 5


def test_ten_thousand_points_are_accepted() -> None:
    plan = SweepPlan("flash", [("seq-len", ["1:100:+1"]), ("heads", ["1:100:+1"])], {}, {})
    assert plan.points == 10_000
    assert plan.point(0) == {"seq-len": "1", "heads": "1"} and plan.point(9_999) == {"seq-len": "100", "heads": "100"}
    assert plan.point(101) == {"seq-len": "2", "heads": "2"}


def test_a_tile_is_block_m_by_block_n() -> None:
    table = sweep("flash", {"tile": "32x64,4Kix16", "num-warps": "4,8"}, SMALL, count_only=True)
    assert [(row.block_m, row.block_n, row.num_warps) for row in table.rows[:2]] == [(32, 64, 4), (32, 64, 8)]
    assert [row.status for row in table.rows] == ["ok", "ok", "does-not-fit", "does-not-fit"]
    assert table.rows[0].point == {"tile": "32x64", "num-warps": "4"}
    alone = sweep("flash", {"num-warps": [4]}, {**SMALL, "block-m": 32, "block-n": 64}, count_only=True)
    assert alone.rows[0].tile == table.rows[0].tile and alone.rows[0].hbm_bytes == table.rows[0].hbm_bytes


@pytest.mark.parametrize(
    ("axes", "options", "part"),
    [
        ({"tile": "64"}, {}, 'tile is "64": give BLOCK_MxBLOCK_N, such as 64x32.'),
        ({"tile": "64x"}, {}, 'tile is "64x": give'),
        ({"tile": "32x32", "block-m": "16"}, {}, "block-m and tile are both varied, and set the same: vary one of"),
        ({"tile": "32x32"}, {"block-n": 16}, "tile is varied and block-n has a value too: give one of them."),
        ({"tiel": "32x32"}, {}, 'there is no axis "tiel": did you mean tile?'),
        ({"dtype": "1:2:x2"}, {}, 'dtype is "1:2:x2"; it must be one of'),
    ],
)
def test_axes_that_cannot_be_are_refused(axes: dict[str, str], options: dict[str, int], part: str) -> None:
    with pytest.raises(MemsimError) as caught:
        sweep("flash", dict(sorted(axes.items())) if len(axes) > 1 else axes, {**SMALL, **options}, count_only=True)
    assert any(part in fault or part.replace("block-m and tile", "tile and block-m") in fault
               for fault in caught.value.faults)  # fmt: skip


def test_gpus_are_names_and_files(tmp_path: Path) -> None:
    mine = tmp_path / "my:own.toml"
    mine.write_text(template().replace("count = 132", "count = 66"), encoding="utf-8")
    options = {name: text for name, text in SMALL.items() if name != "gpu"}
    table = sweep("flash", {"gpu": f"h200,{mine}", "seq-len": "64:128:x2"}, {"heads": 1}, count_only=True)
    assert [row.status for row in table.rows] == ["ok"] * 4
    digests = table.provenance.gpu_digests
    assert list(digests) == ["h200", str(mine)] and digests["h200"] != digests[str(mine)]
    with pytest.raises(MemsimError, match="no file called"):
        sweep("flash", {"gpu": f"h200,{tmp_path}/none.toml"}, options, count_only=True)
