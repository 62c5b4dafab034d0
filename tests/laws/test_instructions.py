"""Laws of the replay of compiled kernels: no faster than any roofline, no slower on a faster machine, the same twice.

On an H200 of few SMs, with the constants that are fitted at random within what they are fitted in.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memsim import Attention, Gpu, Launch, MemsimError, Result, Tile, load_gpu, simulate
from memsim.calibrate import BOUNDS
from memsim.gpu import override
from memsim.machine import paced
from memsim.machine.handout import Handout
from memsim.machine.pace import pace_of

from .problems import scaled

ANOMALY = 1.10
TILES = (Tile(64, 64, 4, 3), Tile(64, 32, 4, 2), Tile(128, 64, 8, 2))
# Those that make something slower the larger they are.
LATENCIES = (
    "launch_cycles", "warp_start_cycles", "drain_cycles", "hbm_copy_cycles", "copy_cycles", "load_cycles",
    "product_start_cycles", "product_end_cycles", "exp_cycles", "shuffle_cycles", "sram_cycles", "barrier_cycles",
)  # fmt: skip
RATES = (
    "hbm.bandwidth_bytes_per_s", "l2.bandwidth_bytes_per_s", "sm.core.inward_bytes_per_clock",
    "sm.pipes.tensor_flop_per_clock.float16", "sm.pipes.exp_per_clock.float32",
)  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Gpu:
    changes: dict[str, Any] = {
        "sm.count": draw(st.integers(1, 4)),
        "hbm.bandwidth_bytes_per_s": 10 ** draw(st.floats(10.5, 12.7)),
    }
    for name in draw(st.sets(st.sampled_from(sorted(BOUNDS)), max_size=3)):
        low, high = BOUNDS[name]
        changes[f"calibrated.{name}"] = draw(st.floats(low, high))
    return override(load_gpu("h200"), changes)


problems = st.builds(
    Attention,
    batch=st.just(1),
    heads=st.integers(1, 4),
    kv_heads=st.none(),
    seq_len_q=st.sampled_from((64, 100, 256, 384)),
    seq_len_k=st.sampled_from((64, 128, 1000, 1024)),
    head_dim=st.sampled_from((64, 128)),
    causal=st.booleans(),
)
CASES: dict[str, Any] = {
    "algorithm": st.sampled_from(("flash", "naive")),
    "problem": problems,
    "gpu": machines(),
    "tile": st.sampled_from(TILES),
}


def run(algorithm: str, problem: Attention, gpu: Gpu, tile: Tile) -> Result:
    try:
        result = simulate(algorithm, problem, gpu=gpu, tile=tile)
    except MemsimError:
        assume(False)
        raise
    assume(any(launch.replayed_by == "instructions" for launch in result.launches))
    return result


def check_rooflines(launch: Launch, gpu: Gpu) -> None:
    """By what is executed: products and exponentials on all SMs, bytes through HBM, what a launch takes at least."""
    assert gpu.calibrated is not None and launch.time_s is not None and launch.clock_hz is not None
    assert launch.clock_hz in (gpu.calibrated.clock_hz, gpu.calibrated.idle_tensor_clock_hz)
    pipes, clocks = gpu.sm.pipes, launch.clock_hz * min(gpu.sm.count, launch.blocks)
    assert launch.time_s >= launch.flops / (pipes.dot_flop_per_clock("float16") * clocks)
    assert launch.time_s >= launch.exps / (pipes.exp_per_clock["float32"] * clocks)
    moved = launch.hbm_read_bytes - launch.code_bytes + launch.hbm_write_bytes
    assert launch.time_s >= 0.99 * moved / gpu.hbm.bandwidth_bytes_per_s
    assert launch.time_s * launch.clock_hz >= gpu.calibrated.launch_cycles + gpu.calibrated.drain_cycles
    assert launch.sm_cycles == pytest.approx(launch.time_s * launch.clock_hz)
    assert launch.busy is not None and launch.waiting_for_memory is not None
    assert all(-1e-9 <= share <= 1 + 1e-6 for share in (*launch.busy.values(), launch.waiting_for_memory))


@settings(max_examples=scaled(20))
@given(**CASES)
def test_no_launch_beats_a_roofline(algorithm: str, problem: Attention, gpu: Gpu, tile: Tile) -> None:
    for launch in run(algorithm, problem, gpu, tile).launches:
        if launch.replayed_by == "instructions":
            check_rooflines(launch, gpu)


@settings(max_examples=scaled(12))
@given(**CASES)
def test_a_second_run_finds_the_same(algorithm: str, problem: Attention, gpu: Gpu, tile: Tile) -> None:
    first = run(algorithm, problem, gpu, tile)
    # Nothing is kept of what was found before.
    pace_of.cache_clear()
    second = run(algorithm, problem, gpu, tile)
    assert first == second
    assert json.dumps(first.as_dict()) == json.dumps(second.as_dict())


def field(gpu: Gpu, key: str) -> Any:
    value: Any = gpu
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


@settings(max_examples=scaled(20))
@given(**CASES, key=st.sampled_from([*RATES, *(f"calibrated.{name}" for name in LATENCIES)]), factor=st.floats(1, 4))
def test_a_faster_machine_takes_no_longer(
    algorithm: str, problem: Attention, gpu: Gpu, tile: Tile, key: str, factor: float
) -> None:
    """Within what handing out blocks and instructions as there is room can cost (test_monotone.py)."""
    value = field(gpu, key)
    quick = override(gpu, {key: value * factor if key in RATES else value / factor})
    slow, fast = (run(algorithm, problem, machine, tile) for machine in (gpu, quick))
    for before, after in zip(slow.launches, fast.launches, strict=True):
        assert before.time_s is not None and after.time_s is not None
        assert after.time_s <= ANOMALY * before.time_s


def test_more_sms_take_no_longer_and_more_work_no_less() -> None:
    @cache
    def time(sms: int, heads: int, n: int) -> float:
        gpu = override(load_gpu("h200"), {"sm.count": sms})
        found = simulate("flash", Attention(1, heads, None, n, n, 64), gpu=gpu, tile=TILES[0]).launches[0].time_s
        assert found is not None
        return found

    assert time(1, 4, 256) > time(2, 4, 256) > time(4, 4, 256)
    assert time(2, 8, 256) > time(2, 4, 256) and time(2, 4, 512) > time(2, 4, 256)


FAULTS: dict[str, Any] = {
    "trips take no time": (paced.PacedRun, "_step", lambda right: lambda self, sm, cold: paced.Steps(1, 1, (0,))),
    "half the blocks": (Handout, "take", lambda right: lambda self: None if self._next > 3 else right(self)),
    "an endless clock": (paced.PacedRun, "_ps", lambda right: lambda self, cycles: right(self, cycles / 50)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_a_roofline(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = override(load_gpu("h200"), {"sm.count": 2})
    problem = Attention(1, 4, None, 512, 1024, 128)

    def check() -> None:
        check_rooflines(simulate("flash", problem, gpu=gpu, tile=TILES[0]).launches[0], gpu)

    check()
    owner, name, faulty = FAULTS[fault]
    monkeypatch.setattr(owner, name, faulty(getattr(owner, name)))
    with pytest.raises(AssertionError):
        check()
