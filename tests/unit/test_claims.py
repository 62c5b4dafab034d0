"""Is each figure claimed as far as the way its kernel reaches memory allows, and no further?"""

from __future__ import annotations

import pytest

from memsim.claims import RELATIONS, Claim, claim_of
from memsim.measurements import Measurement

from .measured import row_of


@pytest.mark.parametrize(
    ("row", "column", "relation"),
    [
        (row_of(), "sram_fill_bytes", "exact"),
        (row_of(num_stages=1), "sram_fill_bytes", "at most"),
        (row_of(num_stages=1, load_path="descriptor"), "sram_fill_bytes", "exact"),
        (row_of(head_dim=80), "sram_fill_bytes", "exact"),
        (row_of(head_dim=40), "sram_fill_bytes", "none"),
        (row_of(head_dim=40, dtype="float32"), "sram_fill_bytes", "at most"),
        (row_of(seq_len_k=1000), "sram_fill_bytes", "exact"),
        (row_of("pv", seq_len_k=1000), "sram_fill_bytes", "none"),
        (row_of("pv"), "sram_fill_bytes", "exact"),
        (row_of("qk"), "sram_fill_bytes", "at most"),
        (row_of("softmax"), "sram_fill_bytes", "exact"),
        (row_of("softmax", seq_len_k=1000), "sram_fill_bytes", "at most"),
        (row_of(values={"stack_bytes": 8}), "sram_fill_bytes", "at least"),
        (row_of("qk", values={"stack_bytes": 8}), "sram_fill_bytes", "none"),
        (row_of(values={}), "sram_fill_bytes", "at least"),
        (row_of(values={"spill_load_instructions": 0, "spill_store_instructions": 0}), "sram_fill_bytes", "exact"),
        (row_of(values={"spill_load_instructions": 9, "spill_store_instructions": 0}), "sram_fill_bytes", "at least"),
        (row_of(), "sram_store_bytes", "exact"),
        (row_of(head_dim=40), "sram_store_bytes", "at least"),
        (row_of("qk", seq_len_k=1000), "sram_store_bytes", "at least"),
        (row_of("softmax", seq_len_k=1000), "sram_store_bytes", "at least"),
        (row_of("pv", seq_len_k=1000), "sram_store_bytes", "exact"),
        (row_of(lse=True), "sram_store_bytes", "exact"),
        (row_of("softmax", lse=True), "sram_store_bytes", "at least"),
        (row_of(block_m=128, load_path="descriptor-ws"), "sram_store_bytes", "exact"),
        (row_of(block_m=64, load_path="descriptor-ws"), "sram_store_bytes", "at least"),
        (row_of(lse=True, seq_len_q=1001), "sram_store_bytes", "at least"),
        (row_of(values={"stack_bytes": 8}), "sram_store_bytes", "at least"),
        (row_of(), "sram_bytes", "exact"),
        (row_of(block_m=32), "sram_bytes", "none"),
        (row_of(dtype="float32"), "sram_bytes", "none"),
        (row_of("qk"), "sram_bytes", "exact"),
        (row_of("qk", block_m=128, head_dim=32), "sram_bytes", "none"),
        (row_of("pv"), "sram_bytes", "exact"),
        (row_of("pv", block_m=128, block_n=32, num_stages=1, head_dim=256), "sram_bytes", "none"),
        (row_of(load_path="descriptor"), "sram_bytes", "at most"),
        (row_of(), "blocks_per_sm", "exact"),
        (row_of(block_m=16), "blocks_per_sm", "exact"),
        (row_of(values={"registers": 100}), "blocks_per_sm", "exact"),
        (row_of(block_m=16, values={"registers": 100}), "blocks_per_sm", "none"),
        (row_of(values={"sram_bytes": 1}), "blocks_per_sm", "none"),
        (row_of(load_path="descriptor-ws"), "blocks_per_sm", "exact"),
        (row_of(), "hbm_read_bytes", "none"),
        (row_of(), "duration_s", "none"),
        (row_of(), "registers", "none"),
    ],
)  # fmt: skip
def test_the_claim_on_a_figure(row: Measurement, column: str, relation: str) -> None:
    claim = claim_of(column, row)
    assert claim.relation == relation and relation in RELATIONS
    assert bool(claim.why) == (relation != "exact")


@pytest.mark.parametrize(("heads", "rows", "slack"), [(8, 1000, 64), (32, 3000, 576)])
def test_the_counters_own_slack_grows_with_what_it_counts(heads: int, rows: int, slack: int) -> None:
    """64 B up to 64 MB of S, a millionth beyond."""
    claim = claim_of("sram_fill_bytes", row_of("softmax", heads=heads, seq_len_q=rows, seq_len_k=rows + 1))
    assert claim.slack_bytes == slack
    assert claim.holds(10**9, 10**9 + slack) and not claim.holds(10**9, 10**9 + slack + 1)


def test_a_compiled_stack_says_whether_it_spills_where_the_row_does_not() -> None:
    row = row_of(values={})
    assert claim_of("sram_fill_bytes", row, compiled_stack_bytes=0).relation == "exact"
    assert claim_of("sram_fill_bytes", row, compiled_stack_bytes=8).relation == "at least"


@pytest.mark.parametrize(
    ("relation", "below", "equal", "above"),
    [
        ("exact", False, True, False),
        ("at most", True, True, False),
        ("at least", False, True, True),
        ("none", None, None, None),
    ],
)
def test_when_a_claim_holds(relation: str, below: bool | None, equal: bool | None, above: bool | None) -> None:
    claim = Claim(relation)
    assert [claim.holds(100, measured) for measured in (99, 100, 101)] == [below, equal, above]
    # A figure of few digits is off by no more than they leave open.
    assert [claim.holds(100, measured, 1) for measured in (99, 101)] == ([None] * 2 if below is None else [True] * 2)
