"""Law 4: no launch is faster than the work of any one resource allows; and with one resource made very slow, its time
is that resource's work over its rate, and the result names it. Machines here have two levels; test_l2.py and
test_instructions.py ask the same of the others.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim import Attention, Gpu, Launch, MemsimError, Tile, load_gpu, simulate
from memsim.gpu import override
from memsim.resources import room_of
from memsim.trace import LaunchTrace, Load, Store, Work

from .problems import ALGORITHMS, problems, scaled, traces_of, two_levels
from .random_traces import executed, tile_sectors

PS = 1e-12


def work_of(trace: LaunchTrace, gpu: Gpu) -> Counter[str]:
    """Work of a launch by resource, from a walk over every record: FLOPs, operations, bytes."""
    work: Counter[str] = Counter()
    for record, values in executed(trace):
        if isinstance(record, Load | Store):
            moved = 32 * len(tile_sectors(record.tile, values)[0])
            work["hbm"] += moved
            work["sram"] += moved
        elif isinstance(record, Work):
            work["sram"] += record.sram_bytes
            if record.pipe == "tensor" and record.dtype not in gpu.sm.pipes.tensor_flop_per_clock:
                work["alu"] += record.amount / 2  # a multiply-add is two FLOPs and one operation
            else:
                work[record.pipe] += record.amount
    return work


def rates(gpu: Gpu, sms: int) -> dict[str, float]:
    """What `sms` SMs together do in a second, and HBM."""
    pipes, clocks = gpu.sm.pipes, gpu.sm.clock_hz * sms
    return {
        "tensor": pipes.tensor_flop_per_clock["float16"] * clocks,
        "exp": pipes.exp_per_clock["float32"] * clocks,
        "alu": pipes.alu_per_clock["float32"] * clocks,
        "sram": gpu.sm.sram.bandwidth_bytes_per_clock * clocks,
        "hbm": gpu.hbm.bandwidth_bytes_per_s,
    }


def check_rooflines(launch: Launch, trace: LaunchTrace, gpu: Gpu) -> None:
    assert launch.time_s is not None and launch.busy is not None
    work = work_of(trace, gpu)
    for resource, rate in rates(gpu, gpu.sm.count).items():
        least = work[resource] / rate
        assert launch.time_s >= least - PS, resource
        # `busy` is the same work, rounded up to a picosecond per operation, over the time.
        assert launch.busy[resource] * launch.time_s == pytest.approx(least, rel=0.02, abs=1e-8), resource
        assert 0 <= launch.busy[resource] <= 1 + 1e-9, resource
    if work["hbm"]:
        assert launch.time_s >= gpu.hbm.latency_s
    # Nor does it use more SMs than it has blocks.
    for resource, rate in rates(gpu, min(gpu.sm.count, trace.blocks)).items():
        assert launch.time_s >= work[resource] / rate - PS, resource
    assert launch.sm_cycles == pytest.approx(launch.time_s * gpu.sm.clock_hz)
    assert launch.waiting_for_memory is not None and 0 <= launch.waiting_for_memory <= 1 + 1e-9


sizes = st.sampled_from((16, 32))


@settings(max_examples=scaled(60))
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    problem=problems(100, (1, 40)),
    name=st.sampled_from(("two-level", "h200", "a100-40gb")),
    sms=st.integers(1, 6),
    tile=st.builds(Tile, sizes, sizes, st.sampled_from((1, 4, 8)), st.integers(1, 4)),
    lse=st.booleans(),
    inputs=st.sampled_from(("hbm", "host")),
)
def test_no_launch_beats_a_roofline(
    algorithm: str, problem: Attention, name: str, sms: int, tile: Tile, lse: bool, inputs: str
) -> None:
    gpu = override(two_levels(load_gpu(name)), {"sm.count": sms})
    lse = lse and algorithm != "flash1"
    try:
        result = simulate(algorithm, problem, gpu=gpu, tile=tile, lse=lse, inputs=inputs)
    except MemsimError:
        return
    traces = traces_of(algorithm, problem, tile, room_of(gpu), lse=lse)
    made = 0
    for launch in result.launches:
        if launch.blocks == 0:
            assert launch.time_s == 0
            continue
        made += 1
        check_rooflines(launch, traces[launch.name], gpu)
    total = result.total
    assert total.time_s is not None and total.launch_overhead_s is not None and total.host_s is not None
    assert total.launch_overhead_s == pytest.approx(made * gpu.launch.overhead_s)
    sent = sum(problem.tensor_bytes()[tensor] for tensor in "QKV") if inputs == "host" else 0
    assert total.host_bytes == sent
    expected = gpu.host.latency_s + sent / gpu.host.bandwidth_bytes_per_s if sent else 0
    assert total.host_s == pytest.approx(expected)
    kernels = sum(launch.time_s or 0 for launch in result.launches)
    assert total.time_s == pytest.approx(kernels + total.launch_overhead_s + total.host_s)


SLOW: dict[str, tuple[str, ...]] = {
    "tensor": ("sm.pipes.tensor_flop_per_clock.float16",),
    "exp": ("sm.pipes.exp_per_clock.float32",),
    "alu": ("sm.pipes.alu_per_clock.float32",),
    "sram": ("sm.sram.bandwidth_bytes_per_clock",),
    "hbm": ("hbm.bandwidth_bytes_per_s",),
}


def field(gpu: Gpu, key: str) -> Any:
    value: Any = gpu
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def machine(name: str, resource: str, factor: float) -> Gpu:
    """Four SMs, with one resource slower by a factor."""
    gpu = override(two_levels(load_gpu(name)), {"sm.count": 4})
    return override(gpu, {key: field(gpu, key) / factor for key in SLOW[resource]})


# As many equal blocks as keep four SMs evenly busy whatever number of them is resident.
FILLING = Attention(2, 12, None, 128, 128, 64)
TILE = Tile(32, 32, 4, 2)


@cache
def filling_work(algorithm: str, name: str) -> dict[str, Counter[str]]:
    gpu = load_gpu(name)
    return {launch: work_of(trace, gpu) for launch, trace in traces_of(algorithm, FILLING, TILE, room_of(gpu)).items()}


@pytest.mark.parametrize("resource", SLOW)
@pytest.mark.parametrize("name", ["two-level", "h200", "a100-40gb"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_very_slow_resource_is_all_the_time(algorithm: str, name: str, resource: str) -> None:
    gpu = machine(name, resource, 1000)
    result = simulate(algorithm, FILLING, gpu=gpu, tile=TILE)
    work = filling_work(algorithm, name)
    for launch in result.launches:
        least = work[launch.name][resource] / rates(gpu, 4)[resource]
        if least == 0:  # `qk` has no exponentials
            continue
        assert launch.time_s is not None and launch.busy is not None
        assert least <= launch.time_s <= 1.05 * least
        assert launch.bound == resource
        assert launch.busy[resource] > 0.95
    assert result.total.bound == resource


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float32_products_run_on_the_alu(algorithm: str) -> None:
    problem = Attention(2, 12, None, 128, 128, 64, "float32")
    gpu = machine("h200", "alu", 1000)
    result = simulate(algorithm, problem, gpu=gpu, tile=TILE)
    for launch in result.launches:
        operations = launch.flops / 2 + launch.alu_ops
        assert launch.time_s == pytest.approx(operations / rates(gpu, 4)["alu"], rel=0.05)
        assert launch.bound == "alu"
        assert launch.busy is not None and launch.busy["tensor"] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_very_long_latency_is_all_the_time(algorithm: str) -> None:
    gpu = override(load_gpu("two-level"), {"sm.count": 4, "hbm.latency_s": 1e-3})
    result = simulate(algorithm, FILLING, gpu=gpu, tile=TILE)
    for launch in result.launches:
        assert launch.bound == "latency"
        assert launch.waiting_for_memory is not None and launch.waiting_for_memory > 0.95
    assert result.total.bound == "latency"


@pytest.mark.parametrize("algorithm, launches", [("naive", 3), ("flash", 1), ("flash1", 1)])
def test_a_very_slow_launch_is_all_the_time(algorithm: str, launches: int) -> None:
    gpu = override(load_gpu("two-level"), {"launch.overhead_s": 1.0})
    total = simulate(algorithm, FILLING, gpu=gpu, tile=TILE).total
    assert total.bound == "launch"
    assert total.time_s == pytest.approx(launches, rel=0.01)


def test_a_very_slow_host_link_is_all_the_time() -> None:
    gpu = override(load_gpu("two-level"), {"host.bandwidth_bytes_per_s": 1e6})
    total = simulate("flash", FILLING, gpu=gpu, tile=TILE, inputs="host").total
    sent = 3 * 2 * 12 * 128 * 64 * 2
    assert total.bound == "host"
    assert total.time_s == pytest.approx(sent / 1e6, rel=0.01)
    assert total.busy is not None and total.busy["host"] > 0.99
