"""Does a sweep replay once what a replay cannot tell apart, and everything else on its own?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memsim import Attention, Tile, _sweep_points, api, simulate, sweep
from memsim._kept_replays import KeptReplays
from memsim.sweep import SweepRow

SHARED = {"heads": "2", "head-dim": "64", "num-warps": "4", "num-stages": "2", "block-m": "64", "block-n": "64"}
FIGURES = ("time_s", "hbm_bytes", "sram_fill_bytes", "bound", "waiting_for_memory", "l2_hit_rate")


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The replays that are run, with nothing kept at first."""
    made: list[Any] = []
    right = api.replay

    def replay(*arguments: Any, **more: Any) -> Any:
        made.append(arguments)
        return right(*arguments, **more)

    monkeypatch.setattr(api, "replay", replay)
    monkeypatch.setattr(_sweep_points, "_KEPT", KeptReplays())
    yield made


def alone(row: SweepRow) -> dict[str, Any]:
    """What a single run says of a row's point."""
    at = dict(row.point)
    n = int(at.pop("seq-len", 256))
    gpu = at.pop("gpu", "h200")
    problem = Attention(heads=2, seq_len_q=n, seq_len_k=n, head_dim=64)
    found = simulate("flash", problem, gpu=gpu, gpu_options=at, tile=Tile(64, 64, 4, 2)).total
    return {name: getattr(found, name) for name in FIGURES}


@pytest.mark.parametrize("gpu", ["h200", "a100-80gb", "two-level"])
def test_sizes_of_sram_that_hold_as_many_blocks_share_a_replay(gpu: str, replays: list[Any]) -> None:
    sizes = ["120KiB", "128KiB", "130KiB", "228KiB"]
    table = sweep("flash", {"sram": sizes, "seq-len": ["256", "512"]}, {**SHARED, "gpu": gpu})
    swept = len(replays)
    rows = list(table.rows)
    assert {row.status for row in rows} == {"ok"}
    # Two lengths; no two sizes tell apart what a launch of so few blocks does.
    assert swept == 2 < len(rows)
    for row in rows:
        single = alone(SweepRow({**row.point, "gpu": gpu}, "ok"))
        assert {name: getattr(row, name) for name in FIGURES} == single


@pytest.mark.parametrize(
    "axis",
    [
        {"hbm.bandwidth_bytes_per_s": ["3e12", "4e12"]}, {"causal": ["false", "true"]}, {"seq-len": ["256", "320"]},
        {"gpu": ["h200", "h100-sxm"]}, {"full": ["false", "true"]}, {"l2-state": ["cold", "warm"]},
        {"grid-order": ["rows-fast", "heads-fast"]}, {"sm.count": ["4", "5"]}, {"num-stages": ["2", "3"]},
        {"sm.sram.bandwidth_bytes_per_clock": ["64", "128"]}, {"dtype": ["float16", "bfloat16"]},
        {"inputs": ["hbm", "host"]}, {"lse": ["false", "true"]},
    ],
    ids=lambda axis: next(iter(axis)),
)  # fmt: skip
def test_whatever_else_differs_is_replayed_on_its_own(axis: dict[str, list[str]], replays: list[Any]) -> None:
    sweep("flash", axis, {name: value for name, value in SHARED.items() if name not in axis})
    assert len(replays) == 2


def test_more_blocks_on_an_sm_are_another_replay(replays: list[Any]) -> None:
    """With room for one block and for several of a launch that has enough of them."""
    options = {**SHARED, "seq-len": "2Ki", "sm.count": "4"}
    table = sweep("flash", {"sram": ["60KiB", "200KiB"]}, options)
    one, several = table.rows
    assert (one.blocks_per_sm or 0) < (several.blocks_per_sm or 0) and one.time_s != several.time_s
    assert len(replays) == 2


def test_a_key_that_forgets_the_machine_is_seen(replays: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptReplays, "_machine", lambda self, gpu: "any")
    with pytest.raises(AssertionError):
        test_whatever_else_differs_is_replayed_on_its_own({"hbm.bandwidth_bytes_per_s": ["3e12", "4e12"]}, replays)
