"""Tuning from Python: what the candidates are, which are compared, what is said of each, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import memsim
from memsim import Attention, MemsimError, OutOfMemory, Tile, Tuning, load_gpu, simulate, tune
from memsim.gpu import override
from memsim.grid import ORDERS
from memsim.sweep import read_results
from memsim.tile import SPECIALIZED_SEEN_RIGHT
from memsim.tune import plan_of

SMALL = Attention(heads=2, seq_len_q=128, seq_len_k=128, head_dim=64)
TEXTBOOK = override(load_gpu("two-level"), {"sm.count": 2})
FEW: dict[str, Any] = {"tile": "16x16,32x32,64x64", "num-stages": "1,2", "grid-order": "rows-fast"}


def few(**more: Any) -> Tuning:
    return tune(SMALL, **{"gpu": TEXTBOOK, "vary": FEW, **more})


def kinds(tuning: Tuning) -> dict[str, int]:
    found: dict[str, int] = {}
    for refusal in tuning.refusals:
        found[refusal.kind] = found.get(refusal.kind, 0) + refusal.count
    return found


def test_the_best_first_and_each_says_what_simulate_says_of_it() -> None:
    found = few(best=3)
    assert [c.rank for c in found.ranked] == [*range(1, len(found.ranked) + 1)]
    assert len(found.best) == 3 and found.tile == found.best[0].tile
    times = [c.time_s for c in found.ranked]
    assert times == sorted(times)  # type: ignore[type-var]
    for candidate in found.ranked:
        result = simulate("flash", SMALL, gpu=TEXTBOOK, tile=candidate.tile)
        (launch,) = result.launches
        for name in ("time_s", "hbm_bytes", "l2_hit_rate", "over_compulsory", "bound", "waiting_for_memory"):
            assert getattr(candidate, name) == getattr(result.total, name), name
        names = ("blocks_per_sm", "limited_by", "waves", "sram_bytes", "registers", "registers_from", "replayed_by")
        for name in names:
            assert getattr(candidate, name) == getattr(launch, name), name
        assert candidate.notes == result.notes
        assert candidate.over_best == candidate.time_s / found.best[0].time_s  # type: ignore[operator]
        room = TEXTBOOK.sm.count * launch.blocks_per_sm
        assert (launch.waves - 1 + candidate.last_wave) * room == pytest.approx(launch.blocks)
        assert candidate.occupancy == launch.blocks_per_sm * 4 / TEXTBOOK.sm.max_warps


def test_by_bytes_the_fewest_come_first_and_time_decides_between_equals() -> None:
    found = few(by="hbm-bytes")
    order = [(c.hbm_bytes, c.time_s) for c in found.ranked]
    assert order == sorted(order) and len({moved for moved, _ in order}) > 1
    assert found.best[0].over_best == 1
    counted = few(by="hbm-bytes", count_only=True)
    assert [c.hbm_bytes for c in counted.best] == [c.hbm_bytes for c in found.best]
    assert all(c.time_s is c.bound is c.replayed_by is None for c in counted.best)
    assert counted.best[0].why.startswith("3 blocks per SM, limited by sram")


def test_what_is_tried_where_nothing_is_said() -> None:
    """Sizes, warps, stages, load paths and orders, as far as the machine and the mask have a use for them."""
    full = plan_of(SMALL, gpu="h200").sweep.axes
    assert full["block-m"] == full["block-n"] == ("16", "32", "64", "128", "256")
    assert (full["num-warps"], full["num-stages"]) == (("4", "8"), ("1", "2", "3", "4"))
    assert full["load-path"] == ("pointer", "descriptor", "descriptor-ws")
    assert full["grid-order"] == ("rows-fast", "persistent")
    causal = plan_of(Attention(causal=True), gpu="h200").sweep.axes
    assert causal["grid-order"] == tuple(ORDERS)
    assert plan_of(SMALL, gpu="a100-80gb").sweep.axes["load-path"] == ("pointer",)
    assert plan_of(SMALL, gpu="two-level").sweep.axes["num-warps"] == ("4",)
    naive = plan_of(SMALL, algorithm="naive", gpu="h200").sweep.axes
    assert (naive["load-path"], naive["grid-order"]) == (("pointer",), ("rows-fast",))
    some = plan_of(SMALL, gpu="h200", vary={"tile": "64x32", "num_stages": [2, 3]}).sweep.axes
    assert "block-m" not in some and some["tile"] == ("64x32",) and some["num-stages"] == ("2", "3")


def test_kernels_of_known_instructions_are_compared_with_no_others() -> None:
    """On an H200 (64×64, 4 warps, 3 stages) is in the table, 2 warps are not: its time by trace would win."""
    known, unknown = Tile(64, 64, 4, 3), Tile(64, 64, 2, 3)
    times = {tile: simulate("flash", SMALL, tile=tile) for tile in (known, unknown)}
    assert [times[tile].launches[0].replayed_by for tile in (known, unknown)] == ["instructions", "trace"]
    assert times[unknown].total.time_s < times[known].total.time_s  # type: ignore[operator]
    found = tune(SMALL, tiles=[unknown, known])
    assert [c.tile for c in found.ranked] == [known] and kinds(found) == {"not-compared": 1}
    # Where none is known, those that are not are compared with one another.
    alone = tune(SMALL, tiles=[unknown, Tile(64, 32, 2, 3)])
    assert {c.replayed_by for c in alone.ranked} == {"trace"} and len(alone.ranked) == 2
    assert any("held against no hardware" in note for note in alone.notes)


def test_what_spills_is_compared_with_no_others_where_that_is_not_timed() -> None:
    """128×128 in 4 warps spills on an A100; a replay by trace does not know what that costs."""
    spilling, other = Tile(256, 256, 4, 1), Tile(64, 64, 4, 2)
    found = tune(SMALL, gpu="a100-80gb", tiles=[spilling, other])
    assert [c.tile for c in found.ranked] == [other] and kinds(found) == {"spills": 1}
    alone = tune(SMALL, gpu="a100-80gb", tiles=[spilling])
    assert alone.tile == spilling and alone.best[0].spills == "yes" and "spill" in alone.best[0].why


def test_warp_specialised_kernels_that_are_not_offered_are_none() -> None:
    tiles = [Tile(128, 128, 4, s, "descriptor-ws") for s in (1, 2, 3)] + [Tile(64, 64, 4, 3)]
    found = tune(SMALL, tiles=tiles)
    assert {c.tile for c in found.ranked} == {*tiles[:2], tiles[3]} and kinds(found) == {"not-offered": 1}
    for problem, lse in ((Attention(heads=2, seq_len_q=128, seq_len_k=128, causal=True), False), (SMALL, True)):
        found = tune(problem, tiles=tiles, lse=lse)
        assert {c.tile for c in found.ranked} == {tiles[3]} and kinds(found) == {"not-offered": 3}
    persistent = [Tile(128, 64, 4, 2, path, "persistent") for path in ("descriptor", "descriptor-ws")]
    assert kinds(tune(SMALL, tiles=persistent)) == {"not-offered": 1}
    assert {Tile(128, 128, 4, 2, "descriptor-ws"), Tile(128, 64, 4, 2, "descriptor-ws")} < SPECIALIZED_SEEN_RIGHT


def test_a_persistent_launch_of_one_wave_is_tried_once() -> None:
    found = few(vary={"tile": "64x64", "num-stages": "1", "grid-order": "rows-fast,persistent"}, gpu="two-level")
    assert [c.tile.grid_order for c in found.ranked] == ["rows-fast"] and kinds(found) == {"one-wave": 1}
    only = few(vary={"tile": "64x64", "num-stages": "1", "grid-order": "persistent"}, gpu="two-level")
    assert [c.tile.grid_order for c in only.ranked] == ["persistent"]


def test_a_limit_on_the_sram_of_a_block_or_of_an_sm() -> None:
    whole = few()
    limit = sorted(c.sram_bytes for c in whole.ranked)[2]
    found = few(block_sram_bytes=limit)
    assert {c.tile for c in found.ranked} == {c.tile for c in whole.ranked if c.sram_bytes <= limit}
    assert kinds(found) == {"over-limit": len(whole.ranked) - len(found.ranked)}
    # The machine is the same, so each candidate is as it was.
    assert {c.tile: c.time_s for c in found.ranked}.items() <= {c.tile: c.time_s for c in whole.ranked}.items()
    small = few(gpu_options={"sram": f"{limit}"})
    assert max(c.sram_bytes for c in small.ranked) <= limit and kinds(small).keys() == {"does-not-fit"}
    assert small.gpu_options == {"sram": f"{limit}"} and small.machine.sm.sram.capacity_bytes == limit  # type: ignore[union-attr]


def test_less_sram_never_makes_the_fewest_bytes_fewer() -> None:
    least = [
        tune(SMALL, gpu="two-level", gpu_options={"sram": size}, by="hbm-bytes", count_only=True).best[0].hbm_bytes
        for size in ("32KiB", "64KiB", "128KiB", "256KiB")
    ]
    assert least == sorted(least, reverse=True) and least[0] > least[-1]


def test_a_gpu_and_its_fields_are_taken_as_simulate_takes_them() -> None:
    changes = {"hbm-bandwidth": "100GB/s", "sm.max_blocks": "1"}
    found = tune(SMALL, gpu=TEXTBOOK, gpu_options=changes, tiles=[Tile(32, 32)], lse=True, inputs="host")
    result = simulate("flash", SMALL, gpu=TEXTBOOK, gpu_options=changes, tile=Tile(32, 32), lse=True, inputs="host")
    assert found.best[0].time_s == result.total.time_s and found.best[0].blocks_per_sm == 1
    scaled = Attention(2, 4, 2, 100, 60, 64, "bfloat16", True, -0.5)
    again = tune(scaled, gpu="h200", tiles=[Tile(64, 64, 4, 3)], l2_state="warm")
    assert again.problem == vars(scaled)
    same = simulate("flash", scaled, gpu="h200", tile=Tile(64, 64, 4, 3), l2_state="warm")
    assert again.best[0].time_s == same.total.time_s and again.l2_state == "warm"


@pytest.mark.parametrize("algorithm", ["naive", "flash1"])
def test_other_algorithms_are_tuned_too(algorithm: str) -> None:
    found = tune(SMALL, algorithm=algorithm, gpu=TEXTBOOK, vary=FEW)
    times = {tile: simulate(algorithm, SMALL, gpu=TEXTBOOK, tile=tile).total.time_s for tile in tiles_of(found)}
    assert found.best[0].time_s == min(times.values())  # type: ignore[type-var]
    assert len(found.ranked) + found.passed_over == 6


def tiles_of(found: Tuning) -> list[Tile]:
    return [candidate.tile for candidate in found.ranked]


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"by": "speed"}, "by is 'speed'; it must be one of time, hbm-bytes."),
        ({"count_only": True}, "a time takes a replay: rank by hbm-bytes, or leave count-only out."),
        ({"best": 0}, "best is 0; give a whole number from 1 to 1000."),
        ({"best": True}, "best is True; give a whole number from 1 to 1000."),
        ({"tiles": []}, "vary and tiles are both given"),
        ({"vary": None, "tiles": []}, "tiles is empty: give at least one tile."),
        ({"vary": {"gpu": "h200"}}, "tune varies the tile, and gpu is none of its fields"),
        ({"vary": {"num-stags": "1"}}, "there is no axis \"num-stags\": did you mean num-stages?"),
        ({"vary": {"tile": "64by64"}}, "tile is \"64by64\": give BLOCK_MxBLOCK_N"),
        ({"vary": {"tile": "64x64", "block-m": "16"}}, "block-m and tile are both varied, and set the same"),
        ({"algorithm": "flash9"}, "there is no algorithm"),
        ({"gpu": "h2oo"}, "h2oo"),
        ({"gpu_options": {"sram": "-1"}}, "sram is"),
        ({"block_sram_bytes": 0}, "the limit on a block's SRAM is 0 B; give at least 1 B."),
        ({"jobs": 0}, "jobs is 0"),
        ({"l2_state": "hot"}, "l2-state is \"hot\""),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(MemsimError) as refused:
        few(**arguments)
    assert any(said in fault for fault in refused.value.faults), refused.value.faults


def test_without_a_candidate_one_sentence_says_why() -> None:
    with pytest.raises(MemsimError) as refused:
        few(gpu_options={"sram": "4KiB"})
    (fault,) = refused.value.faults
    assert fault.startswith(
        "no candidate is possible on two-level: 6 do not fit on an SM, the smallest of most of them"
    )
    assert "tile 16×16, 4 warps, 1 stage needs" in fault and "of 4096 B" in fault and fault.count(". ") == 0
    with pytest.raises(MemsimError, match=r"6 take more SRAM than the limit on a block's, .* of 100 B"):
        few(block_sram_bytes=100)
    with pytest.raises(OutOfMemory, match="out of memory: flash needs"):
        tune(SMALL, gpu="two-level", gpu_options={"hbm-capacity": "1KB"}, vary=FEW)
    with pytest.raises(MemsimError, match="no rows of Q, so nothing is launched"):
        tune(Attention(seq_len_q=0))


def test_no_keys_at_all() -> None:
    """Q is read, and O, which is zeros, stored."""
    found = tune(Attention(heads=2, seq_len_q=128, seq_len_k=0, head_dim=64), gpu=TEXTBOOK, vary=FEW)
    assert found.best[0].time_s and found.best[0].hbm_bytes == 2 * (2 * 128 * 64 * 2)


# ---- files, workers


def test_a_stopped_tuning_goes_on_and_a_finished_one_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from memsim._sweep_points import Points

    out = str(tmp_path / "tuned.db")
    run, ran = Points.row, []

    def counted(self: Points, point: Any, before: Any = None) -> Any:
        if len(ran) == 2 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        ran.append(point)
        return run(self, point, before)

    stopped: list[bool] = []
    monkeypatch.setattr(Points, "row", counted)
    with pytest.raises(KeyboardInterrupt):
        few(out=out)
    assert len(ran) == 2 and len(read_results(out).rows) == 2
    whole = few(out=out)
    assert len(ran) == len(whole.ranked) == len({tuple(point.items()) for point in ran})
    monkeypatch.undo()
    assert whole.best == few().best == few(out=out).best
    # A narrower question is answered from the same file.
    limited = few(out=out, block_sram_bytes=whole.ranked[-1].sram_bytes)
    assert len(limited.ranked) <= len(whole.ranked)


def test_processes_find_the_same() -> None:
    assert few(jobs=2).best == few().best


def test_progress_counts_every_candidate() -> None:
    said: list[tuple[str, int, int]] = []
    found = few(progress=lambda *what: said.append(what))
    assert said[-1] == ("candidates", 6, 6) and ("counting", 6, 6) in said
    assert found.candidates == 6


def test_json_and_csv_have_all_of_it() -> None:
    found = few(best=2, by="hbm-bytes")
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["schema"] == "memsim.tune/1" and data["tried"] == len(found.ranked)
    assert [entry["tile"]["block_m"] for entry in data["best"]] == [c.tile.block_m for c in found.best]
    assert data["best"][0]["why"] == found.best[0].why and data["simulator_digest"]
    assert {axis["name"] for axis in data["axes"]} == {*found.axes}
    text = io.StringIO()
    found.write_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [int(row["rank"]) for row in rows] == [c.rank for c in found.ranked]
    assert [float(row["time_s"]) for row in rows] == [c.time_s for c in found.ranked]
    assert rows[0]["schema"] == "memsim.tune/1" and rows[0]["seq_len_q"] == "128"


def test_tuning_is_part_of_the_front_door() -> None:
    assert {"tune", "Tuning", "Candidate"} <= {*memsim.__all__}
    with pytest.raises(MemsimError, match="no candidate was tried"):
        _ = Tuning(**{**vars(few()), "ranked": ()}).tile
