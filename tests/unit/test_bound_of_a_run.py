"""Which resource is a run's `bound`? Timings made up so that each rule decides."""

from __future__ import annotations

import pytest

from memsim import Attention, Tile, api, simulate
from memsim.machine import LaunchTiming, RunTiming

NAMES = ("tensor", "exp", "alu", "sram", "hbm", "l2")


def timing(waited: dict[str, float], busy: dict[str, float], time_s: float = 1.0) -> LaunchTiming:
    every = dict.fromkeys((*NAMES, "latency"), 0.0)
    return LaunchTiming("t", time_s, 0, 0, 0, 0, dict.fromkeys(NAMES, 0.0) | busy, every | waited, 0.25)


@pytest.mark.parametrize(
    "waited, busy, bound",
    [
        # What blocks stood still for longest, while nothing is saturated.
        ({"tensor": 3, "exp": 1}, {"tensor": 0.5, "exp": 0.6}, "tensor"),
        ({"latency": 3, "tensor": 1}, {"tensor": 0.5, "hbm": 0.6}, "latency"),
        # What is busy nearly all the time, whatever they stood still for.
        ({"tensor": 3, "exp": 1}, {"tensor": 0.5, "exp": 0.85}, "exp"),
        ({"tensor": 3, "exp": 1}, {"tensor": 0.5, "exp": 0.84}, "tensor"),
        ({"tensor": 3, "exp": 1}, {"tensor": 0.9, "exp": 0.86}, "tensor"),
        # HBM only if blocks wait for it at all.
        ({"tensor": 95, "hbm": 5}, {"tensor": 0.8, "hbm": 0.99}, "tensor"),
        ({"tensor": 85, "hbm": 5, "latency": 10}, {"tensor": 0.8, "hbm": 0.99}, "hbm"),
        # Where it is busy most of the time, a wait for latency is one for HBM.
        ({"latency": 3, "hbm": 2, "tensor": 4}, {"tensor": 0.5, "hbm": 0.65}, "hbm"),
        ({"latency": 3, "hbm": 2, "tensor": 4}, {"tensor": 0.5, "hbm": 0.64}, "tensor"),
        # And so it is for the L2: saturated, or crowded while HBM is not, or waited for most.
        ({"tensor": 85, "l2": 5, "latency": 10}, {"tensor": 0.8, "l2": 0.99, "hbm": 0.3}, "l2"),
        ({"tensor": 95, "l2": 5}, {"tensor": 0.8, "l2": 0.99}, "tensor"),
        ({"latency": 3, "l2": 2, "tensor": 4}, {"tensor": 0.5, "l2": 0.7, "hbm": 0.66}, "l2"),
        ({"latency": 3, "l2": 2, "hbm": 2, "tensor": 4}, {"tensor": 0.5, "l2": 0.7, "hbm": 0.75}, "hbm"),
        ({"l2": 5, "hbm": 2, "tensor": 4}, {"l2": 0.5, "hbm": 0.2}, "l2"),
    ],
)
def test_the_bound_of_a_launch(waited: dict[str, float], busy: dict[str, float], bound: str) -> None:
    assert api._largest(api._causes(timing(waited, busy))) == bound


def test_a_machine_without_an_l2_has_no_such_cause() -> None:
    waited = {"latency": 3.0, "hbm": 2.0, "tensor": 4.0}
    made_up = LaunchTiming("t", 1.0, 0, 0, 0, 0, {"tensor": 0.5, "hbm": 0.7}, waited, 0.25)
    assert api._causes(made_up) == pytest.approx({"hbm": 5 / 9, "tensor": 4 / 9})


def test_an_l2_that_is_too_slow_is_what_bounds_a_replay() -> None:
    """By trace: an A100 with a hundredth of its L2's bandwidth."""
    slow = {"l2.bandwidth_bytes_per_s": "50GB/s"}
    result = simulate("flash", Attention(1, 16, None, 512, 512, 64), gpu="a100-40gb", gpu_options=slow)
    assert result.total.bound == "l2" and result.launches[0].busy is not None
    assert result.launches[0].busy["l2"] > 0.9


def test_a_launch_that_waits_for_nothing_has_no_bound() -> None:
    assert api._causes(timing({}, {})) == {}
    assert api._largest({}) is None and api._largest({"tensor": 0.0}) is None
    assert api._largest({"tensor": 1.0, "exp": 1.0}) == "tensor"


@pytest.mark.parametrize(
    "kernels, overhead, host, bound",
    [
        ((1.0, 2.0), 0.5, 0.5, "exp"),
        ((1.0, 2.0), 2.5, 0.5, "launch"),
        ((1.0, 2.0), 0.5, 2.5, "host"),
        # Two launches of one cause together outweigh the third.
        ((1.0, 2.0, 1.5), 0.0, 0.0, "tensor"),
    ],
)
def test_the_bound_of_a_run(kernels: tuple[float, ...], overhead: float, host: float, bound: str) -> None:
    causes = [{"tensor": 1.0}, {"exp": 1.0}, {"tensor": 1.0}]
    launches = tuple(timing(cause, {"tensor": 0.5}, time_s) for cause, time_s in zip(causes, kernels, strict=False))
    total = api._total_times((), RunTiming(launches, host, 0, overhead))
    assert total["bound"] == bound
    assert total["time_s"] == sum(kernels) + overhead + host
    assert total["waiting_for_memory"] == pytest.approx(0.25)
    assert total["busy"]["tensor"] == pytest.approx(0.5 * sum(kernels) / total["time_s"])
    assert total["busy"]["host"] == pytest.approx(host / total["time_s"])


def test_a_run_only_counted_has_no_time() -> None:
    result = simulate("flash", Attention(1, 1, None, 16, 16, 16), tile=Tile(16, 16), count_only=True)
    assert result.counted_only
    for part in (*result.launches, result.total):
        assert (part.time_s, part.bound, part.busy, part.waiting_for_memory) == (None, None, None, None)
    assert result.total.host_s is None and result.total.launch_overhead_s is None
