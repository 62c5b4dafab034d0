"""Are the stored replays of the judged rows those of the simulator as it is, and the documentation's tables theirs?

`python benchmarks/fidelity.py --write` makes both anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from memsim._accuracy import Judged, Line, accuracy
from memsim._simulated import REPLAYED, Simulator, replay_chain
from memsim.measurements import Measurement

from ..benchmark_modules import benchmark as benchmark_module

ROOT = Path(__file__).parents[2]
MOST_SAMPLED = 64
# Of a launch with more blocks a replay takes seconds.
MOST_BLOCKS = 1_600

NOT_MET = {"hbm_reads_full", "order"}
"""The bars that the judged rows do not meet, by the keys of their lines; docs/validation.md has by how much."""
NOT_MET_BY_COUNTERS = {"hbm_reads_full"}


def fidelity() -> ModuleType:
    return benchmark_module("fidelity")


Stored = dict[tuple[str, str, int], dict[str, float]]


@pytest.fixture(scope="module")
def stored() -> Stored:
    return dict(fidelity().read_stored())


def test_every_row_is_stored(stored: Stored) -> None:
    wanted = {("", name, row.line) for name in fidelity().FILES for row in fidelity().rows_of(name)}
    judge = fidelity().JUDGE
    wanted |= {(part, judge, row.line) for part in fidelity().WITHOUT for row in fidelity().rows_without()}
    assert {*stored} == wanted
    assert all(set(figures) == set(REPLAYED) for figures in stored.values())


def sample() -> list[tuple[str, Measurement]]:
    """Rows that are quick to replay: one of each kernel, tile and cache state, of changing problems."""
    found: dict[object, list[tuple[str, Measurement]]] = {}
    for name in fidelity().FILES:
        simulator = Simulator()
        for row in fidelity().rows_of(name):
            blocks = simulator.launch(row).blocks
            if blocks <= MOST_BLOCKS and row.problem.seq_len_k <= 4096:
                tile = {fidelity().JUDGE: row.tile, fidelity().ORDERED: row.tile.grid_order}.get(name)
                found.setdefault((row.kernel, tile, row.cache_state), []).append((name, row))
    return [rows[7 * number % len(rows)] for number, rows in enumerate(found.values())]


def stale(name: str, row: Measurement, stored: Stored, without: str = "") -> list[str]:
    """The figures of a row that are not those that a replay has now."""
    rows = fidelity().rows_of(name)
    simulator = Simulator()
    # Those before it in the file are what a chained launch finds.
    before = [r for r in rows if r.line < row.line and r.problem == row.problem and r.cache_state == "chained"]
    chained = before if row.cache_state == "chained" and row.kernel != "flash" else []
    *_, launch = [simulator.launch(r) for r in (*chained, row)]
    now = replay_chain([launch], frozenset([without]) if without else frozenset())[0]
    was = stored[without, name, row.line]
    return [figure for figure in REPLAYED if now[figure] != was[figure]]


def test_the_sample_has_every_kind_of_row() -> None:
    rows = [row for name, row in sample() if name == fidelity().JUDGE]
    judge = fidelity().rows_of(fidelity().JUDGE)
    assert {(r.kernel, r.cache_state) for r in rows} == {(r.kernel, r.cache_state) for r in judge}
    assert {r.tile for r in rows if r.kernel == "flash"} == {r.tile for r in judge if r.kernel == "flash"}
    assert {name for name, _ in sample()} == {*fidelity().FILES}
    assert len({row.problem for row in rows}) >= 8 and 40 <= len(sample()) <= MOST_SAMPLED


@pytest.mark.parametrize("number", range(0, MOST_SAMPLED, 8))
def test_what_is_stored_is_what_a_replay_says_now(number: int, stored: Stored) -> None:
    for name, row in sample()[number : number + 8]:
        assert stale(name, row, stored) == [], f"{name}: {row.place}: run benchmarks/fidelity.py --write"


def test_what_is_stored_without_parts_is_what_a_replay_says_now(stored: Stored) -> None:
    rows = fidelity().rows_without()
    for number, part in enumerate(fidelity().WITHOUT):
        row = rows[25 * number % len(rows)]
        assert stale(fidelity().JUDGE, row, stored, part) == [], f"without {part}: {row.place}"


@pytest.mark.parametrize("figure", REPLAYED)
def test_a_stale_figure_is_caught(figure: str, stored: Stored) -> None:
    name, row = min(sample(), key=lambda pair: pair[1].problem.seq_len_q * pair[1].problem.heads)
    key = ("", name, row.line)
    # A unit in the last place of a byte or picosecond.
    off = 1 if "bytes" in figure or "cycles" in figure else 1e-12
    changed = stored | {key: stored[key] | {figure: stored[key][figure] + off}}
    assert stale(name, row, changed) == [figure]


# ---- the tables


@pytest.fixture(scope="module")
def judged(stored: Stored) -> list[Judged]:
    return [row.judged for row in fidelity().validation_of(fidelity().JUDGE, stored).rows]


@pytest.fixture(scope="module")
def lines(judged: list[Judged]) -> dict[str, Line]:
    return {line.key: line for line in accuracy(judged)}


def test_the_documentation_has_the_tables_of_what_is_stored(stored: Stored) -> None:
    text = fidelity().TEXT.read_text(encoding="utf-8")
    made = fidelity().blocks(stored)
    assert set(made) == {"accuracy", "accuracy of counters", "grid orders", "parts"}
    assert fidelity().with_blocks(text, made) == text, "run benchmarks/fidelity.py --tables"


def test_every_judged_row_is_in_the_table(lines: dict[str, Line]) -> None:
    rows = fidelity().rows_of(fidelity().JUDGE)
    naive = [row for row in rows if row.kernel != "flash"]
    assert lines["time_waves"].count + lines["time_small"].count == len(rows) == 918
    assert lines["hbm_reads_full"].count + lines["hbm_reads_causal"].count == len(rows) - len(naive)
    assert lines["fills_naive"].count == lines["hbm_reads_naive"].count == len(naive)
    assert lines["order"].count == lines["pick"].count == 36


def test_the_bars_that_are_met(lines: dict[str, Line]) -> None:
    assert {key for key, line in lines.items() if line.met is False} == NOT_MET


def test_counters_of_other_kernels_are_met_too(stored: Stored) -> None:
    found = {line.key: line for line in fidelity().validation_of(fidelity().COUNTERS, stored).accuracy}
    for key in fidelity().HBM_LINES:
        assert found[key].count == 120 and found[key].met == (key not in NOT_MET_BY_COUNTERS)


def missed(judged: list[Judged]) -> set[str]:
    return {line.key for line in accuracy(judged) if line.met is False}


@pytest.mark.parametrize(
    ("one", "other", "keys"),
    [
        ("hbm_read_bytes", "hbm_write_bytes", {"hbm_reads_full", "hbm_reads_causal", "hbm_reads_naive"}),
        ("sram_fill_bytes", "hbm_read_bytes", {"fills_flash", "fills_naive", "hbm_reads_full"}),
        ("sram_store_bytes", "sram_fill_bytes", {"stores_flash", "fills_flash", "fills_naive"}),
        ("time_s", "sm_cycles", {"time_waves", "time_small"}),
    ],
)
def test_columns_that_changed_places_show(one: str, other: str, keys: set[str], judged: list[Judged]) -> None:
    swapped = [
        replace(j, simulated={**j.simulated, one: j.simulated[other], other: j.simulated[one]}) for j in judged
    ]  # fmt: skip
    assert keys <= missed(swapped)


def test_figures_of_other_rows_show(judged: list[Judged]) -> None:
    """Each row's figures at the next row of the file."""
    shifted = [replace(j, simulated=n.simulated) for j, n in zip(judged, (*judged[1:], judged[0]), strict=True)]
    assert {"fills_flash", "time_waves", "order"} <= missed(shifted)


@pytest.mark.parametrize("factor", [1.15, 0.85])
def test_times_that_are_off_by_a_seventh_show(judged: list[Judged], factor: float) -> None:
    off = [replace(j, simulated={**j.simulated, "sm_cycles": factor * j.simulated["sm_cycles"]}) for j in judged]
    assert "time_waves" in missed(off)


def test_a_text_without_marks_is_refused(stored: Stored) -> None:
    with pytest.raises(SystemExit, match="lacks the marks of 'accuracy'"):
        fidelity().with_blocks("# Validation\n", {"accuracy": "table"})
