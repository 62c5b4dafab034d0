"""Is there one table of measured columns, does it agree with itself, and does the documentation print it?"""

import dataclasses
import re
from pathlib import Path

import pytest

from memsim import MemsimError, simulate
from memsim.attention import Attention
from memsim.columns import COLUMNS, KEYS, MEASURED, check_table, markdown_table, metrics_to_collect
from memsim.result import Launch, Total

ROOT = Path(__file__).parents[2]
SMALL = Attention(heads=2, seq_len_q=128, seq_len_k=128, head_dim=64)


def test_the_table_does_not_contradict_itself() -> None:
    check_table()


@pytest.mark.parametrize(
    ("column", "change", "sentence"),
    [
        ("sram_fill_bytes", {"claim": "about"}, "sram_fill_bytes claims 'about'"),
        ("sram_fill_bytes", {"result": ()}, "its result fields are ()"),
        ("instructions", {"claim": "exact"}, "instructions claims 'exact'"),
        ("hbm_read_bytes", {"metrics": ("dram__bytes_write.sum",)}, "dram__bytes_write.sum stands for"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(column: str, change: dict[str, object], sentence: str) -> None:
    wrong = dict(COLUMNS) | {column: dataclasses.replace(COLUMNS[column], **change)}  # type: ignore[arg-type]
    with pytest.raises(MemsimError) as error:
        check_table(wrong)
    assert sentence in str(error.value)


def test_every_result_field_is_one_of_a_launch_or_its_run() -> None:
    fields = {field.name for part in (Launch, Total) for field in dataclasses.fields(part)}
    assert {name for column in MEASURED.values() for name in column.result} <= fields
    # And each has a figure, on a problem of any size.
    result = simulate("flash", SMALL, tile={"block_m": 64, "block_n": 64})
    for column in MEASURED.values():
        for name in column.result:
            owner = result.launches[0] if hasattr(result.launches[0], name) else result.total
            assert getattr(owner, name) is not None or name == "stack_bytes", name


def test_the_columns_are_those_of_the_measured_file() -> None:
    header = (ROOT / "tests/fidelity/data/counters.csv").read_text(encoding="utf-8").splitlines()[0]
    assert [name for name, column in COLUMNS.items() if column.always_written] == header.split(",")
    assert not KEYS.keys() & MEASURED.keys()


def test_what_ncu_is_asked_for_is_what_is_read() -> None:
    asked = metrics_to_collect()
    assert len(set(asked)) == len(asked)
    assert {"l1tex__m_xbar2l1tex_read_bytes.sum", "launch__occupancy_limit_warps"} < set(asked)
    for name, column in MEASURED.items():
        assert not column.metrics or set(column.metrics) & set(asked), name


def test_one_pass_is_not_asked_for_what_takes_more() -> None:
    """Fills and stores together take three passes on an H200, either with the rest one."""
    asked = metrics_to_collect(single_pass=True)
    assert {"l1tex__m_xbar2l1tex_read_bytes.sum", "dram__bytes_read.sum", "sm__cycles_elapsed.max"} < set(asked)
    assert not {"l1tex__m_l1tex2xbar_write_bytes.sum", "smsp__inst_executed.sum"} & set(asked)
    assert set(asked) < set(metrics_to_collect())


def test_the_documentation_has_the_table() -> None:
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    assert markdown_table() in page
    # What it says beside the table is not a second one: no metric is named elsewhere on the page.
    rest = page.replace(markdown_table(), "")
    assert not re.findall(r"(?:dram|l1tex|launch|smsp|sm|gpu)__\w+", rest)
