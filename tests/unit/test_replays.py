"""Are replays of measured rows what each row's own replay says, and are kept ones those of the simulator as it is?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memsim import MemsimError, _replays, load_gpu
from memsim._replays import Kept, replay_rows
from memsim._simulated import REPLAYED, Simulator
from memsim.gpu import Gpu, override
from memsim.machine import PARTS, check_parts
from memsim.measurements import Measurement

from .measured import row_of

SMALL: dict[str, Any] = {"seq_len_q": 256, "seq_len_k": 256, "heads": 2}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "cache"))


def row(kernel: str, state: str = "cold", **more: Any) -> Measurement:
    return dataclasses.replace(row_of(kernel, **(SMALL | more)), cache_state=state)


CHAIN = [row(kernel, "chained") for kernel in ("qk", "softmax", "pv")]
ROWS = [row("flash"), row("flash", "warm"), *CHAIN, row("softmax"), row("pv")]


def replayed(rows: list[Measurement], gpu: Gpu | None = None, **options: Any) -> list[dict[str, float]]:
    simulator = Simulator(gpu)
    return replay_rows(rows, [simulator.launch(row) for row in rows], **options)


def test_each_row_is_as_its_own_replay_has_it() -> None:
    simulator = Simulator()
    alone = [simulator.launch(row).replayed() for row in ROWS]
    assert replayed(ROWS) == alone and all(set(figures) == set(REPLAYED) for figures in alone)


def test_processes_find_what_one_finds() -> None:
    assert replayed(ROWS, jobs=2) == replayed(ROWS)


def test_a_warm_launch_and_a_chained_one_find_what_was_left() -> None:
    flash, warm, qk, softmax, pv, cold_softmax, cold_pv = (figures["hbm_read_bytes"] for figures in replayed(ROWS))
    assert warm == 0 < flash
    assert softmax < cold_softmax and pv < cold_pv and qk > 0
    # A chained row whose forerunners are not in the file is alone.
    assert replayed([CHAIN[2]])[0]["hbm_read_bytes"] == cold_pv


def test_a_chain_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    replay_chain = _replays.replay_chain

    def counted(chain: Any, without: frozenset[str]) -> list[dict[str, float]]:
        lengths.append(len(chain))
        return replay_chain(chain, without)

    monkeypatch.setattr(_replays, "replay_chain", counted)
    assert len(replayed([*CHAIN, *CHAIN])) == 6
    assert lengths == [3]


def kept_figures(
    monkeypatch: pytest.MonkeyPatch, rows: list[Measurement], gpu: Gpu | None = None, **options: Any
) -> int:
    """How many of the rows take a replay, what was kept being taken."""
    made: list[str] = []
    replay = _replays._replay

    def counted(task: Any) -> dict[str, Any]:
        found = replay(task)
        made.extend(found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(_replays, "_replay", counted)
        replayed(rows, gpu, keep=True, **options)
    return len(made)


def test_what_was_found_is_kept_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = replayed(ROWS[:3], keep=True)
    assert kept_figures(monkeypatch, ROWS[:3]) == 0 and replayed(ROWS[:3], keep=True) == first
    assert kept_figures(monkeypatch, ROWS) == len(ROWS) - 3 + 1  # the chain is replayed whole


OTHERS: list[Callable[[], tuple[Measurement, Gpu | None, dict[str, Any]]]] = [
    lambda: (row("flash"), override(load_gpu("h200"), {"calibrated.launch_cycles": 1234}), {}),
    lambda: (row("flash"), override(load_gpu("h200"), {"hbm.latency_s": 1e-6}), {}),
    lambda: (row("flash"), None, {"without": frozenset(["l2"])}),
    lambda: (row("flash", "warm"), None, {}),
    lambda: (row("flash", block_n=32), None, {}),
    lambda: (row("flash", causal=True), None, {}),
    lambda: (row("flash", seq_len_q=128), None, {}),
    # Registers that were measured decide the blocks per SM.
    lambda: (row("flash", values={"registers": 250, "sram_bytes": 1}), None, {}),
]


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_another_launch_is_not_taken_from_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[], tuple[Measurement, Gpu | None, dict[str, Any]]]
) -> None:
    replayed([row("flash")], keep=True)
    of, gpu, options = other()
    assert kept_figures(monkeypatch, [of], gpu, **options) == 1


def test_what_another_simulator_found_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed([row("flash")], keep=True)
    monkeypatch.setattr(_replays, "simulator_digest", lambda: "another" * 3)
    assert kept_figures(monkeypatch, [row("flash")]) == 1


def test_the_digest_is_of_all_that_a_replay_runs_through() -> None:
    left_out = {*_replays._OTHER_MODULES}
    assert not left_out & {"api", "replay", "paced", "core", "l2", "trace", "grid", "resources", "stream", "counting"}
    assert not any(
        name.startswith(_replays._OTHER_SOURCES) for name in ("_simulated.py", "_kernels.py", "_compiled.py")
    )


def test_damaged_lines_count_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    first = replayed([row("flash")], keep=True)
    path = Kept().path
    line = path.read_text(encoding="utf-8")
    for damage in (
        "{",
        "[]\n",
        json.dumps({"key": "a"}) + "\n",
        line.replace('"figures": {', '"figures": {"x": "y", '),
    ):
        path.write_text(damage, encoding="utf-8")
        assert kept_figures(monkeypatch, [row("flash")]) == 1
        path.write_text(damage.rstrip("\n") + "\n" + line, encoding="utf-8")
        assert replayed([row("flash")], keep=True) == first


def test_a_run_that_was_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("flash", seq_len_q=64 * n) for n in range(1, 9)]
    seen: list[int] = []

    def stop(name: str, done: int, total: int) -> None:
        seen.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replayed(rows, keep=True, progress=stop)
    assert 0 < seen[-1] < len(rows)
    assert kept_figures(monkeypatch, rows) == len(rows) - seen[-1]


def test_a_folder_that_cannot_be_written_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "file" / "below"))
    assert replayed([row("flash")], keep=True) == replayed([row("flash")])


# ---- parts left out


def times_without(row: Measurement) -> dict[str, dict[str, float]]:
    return {name: replayed([row], without=frozenset([name]))[0] for name in PARTS}


def test_every_part_left_out_changes_a_launch_for_which_it_is_there() -> None:
    """And what goes without it takes no longer, but for the L2."""
    # Two blocks an SM, so that there is something to contend for.
    flash = row("flash", seq_len_q=2048, seq_len_k=1024, heads=16, values={"registers": 120, "sram_bytes": 41_000})
    whole, without = replayed([flash])[0], times_without(flash)
    for name in ("contention", "buffer-reuse", "dependences", "pipes", "block-start", "cold-misses"):
        assert without[name]["sm_cycles"] < whole["sm_cycles"], name
    assert without["l2"]["hbm_read_bytes"] > 2 * whole["hbm_read_bytes"]
    assert without["l1"] == whole
    # 132 tiles of keys, one for each SM, which then has those of two rows.
    qk = row("qk", seq_len_q=128, seq_len_k=132 * 64, heads=1, values={"registers": 100, "sram_bytes": 16_384})
    found = replayed([qk])[0]
    assert found["sram_fill_bytes"] < times_without(qk)["l1"]["sram_fill_bytes"]


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(MemsimError, match="'l3' is no part of the model; give any of l2, contention"):
        check_parts(frozenset(["l3", "l2"]))
