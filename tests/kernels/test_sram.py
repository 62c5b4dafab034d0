"""Is the SRAM that the simulator counts the SRAM that the compiler reserves?

Every kernel is compiled here, as far as the allocation of shared memory, for GPUs that need not be there. The shipped
table is put aside, so that it is the rules that are tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import triton
from memsim_kernels._plan import plan_calls
from memsim_kernels.probe import compile_call, compile_each

from memsim import Attention, Gpu, Tile, load_gpu
from memsim.gpu import override
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import resources_of, room_of
from memsim.tile import RingRule, Room

Case = tuple[str, str, Attention, Tile]
"""(architecture, launch, problem, tile)"""

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
ROOMY = {"sm.sram.capacity_bytes": 2**21, "sm.sram.block_limit_bytes": 2**20}
PLAIN = Attention(1, 8, None, 1024, 1024, 64)


@pytest.fixture(scope="module", autouse=True)
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this run's own, and no table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("memsim._compiled.shipped", dict)
        yield


def machine(architecture: str) -> Gpu:
    """A machine of this architecture with more SRAM than any tile needs."""
    return override(load_gpu("h200"), {**ROOMY, "architecture": architecture})


def simulated(case: Case) -> int:
    architecture, launch, problem, tile = case
    gpu = machine(architecture)
    program = build_program("flash" if launch == "flash" else "naive", problem, tile, room_of(gpu))
    trace = trace_launch(next(spec for spec in program.launches if spec.name == launch), program.room)
    return resources_of(gpu, trace, problem, tile).sram_bytes


def compiled(cases: list[Case]) -> list[int]:
    requests = []
    for architecture, launch, problem, tile in cases:
        calls = plan_calls("flash" if launch == "flash" else "naive", problem, tile)
        requests.append((next(call for call in calls if call.name == launch), architecture))
    found = [0] * len(cases)
    for number, result in compile_each(requests, sram_only=True):
        if isinstance(result, Exception):
            raise result
        found[number] = result.sram_bytes
    return found


def excess(cases: list[Case], sram_bytes: list[int]) -> dict[int, list[Case]]:
    """Simulated less compiled, and the cases where it is that."""
    found: dict[int, list[Case]] = {}
    for case, real in zip(cases, sram_bytes, strict=True):
        found.setdefault(simulated(case) - real, []).append(case)
    return found


def flash(
    architecture: str, dims: Iterable[int], rows: Iterable[int], keys: Iterable[int], stages: Iterable[int],
    load_path: str = "pointer", dtype: str = "float16",
) -> list[Case]:  # fmt: skip
    """Every combination, with warps and causal in turn."""
    turns = itertools.cycle(((4, False), (8, True), (8, False), (4, True)))
    cases = []
    for d, m, n, count in itertools.product(dims, rows, keys, stages):
        warps, causal = (4, False) if load_path == "descriptor-ws" else next(turns)
        problem = Attention(1, 8, None, 1024, 1024, d, dtype, causal)
        cases.append((architecture, "flash", problem, Tile(m, n, warps, count, load_path)))
    return cases


@pytest.fixture(scope="module")
def hopper(fresh: None) -> tuple[list[Case], list[int]]:
    """The grid of sm_90: 216 configurations."""
    cases = [
        case
        for dtype in ("float16", "bfloat16")
        for case in flash("sm_90", (64, 128, 256), (64, 128, 256), (32, 64, 128), (1, 2, 3, 4), dtype=dtype)
    ]
    return cases, compiled(cases)


def test_pointer_kernels_on_sm_90(hopper: tuple[list[Case], list[int]]) -> None:
    cases, real = hopper
    assert len(cases) == 2 * 108
    assert set(excess(cases, real)) == {0}


@pytest.mark.parametrize(
    "rule",
    [
        lambda stages: RingRule(stages, shared=False),
        lambda stages: RingRule(max(1, stages - 1), shared=stages == 1),
        lambda stages: RingRule(stages + 1, shared=stages == 1),
    ],
    ids=["never shared", "one buffer fewer", "one buffer more"],
)
def test_a_rule_off_by_one_stage_is_noticed(
    rule: object, hopper: tuple[list[Case], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "ring", lambda self, tile, dtype_bytes: rule(tile.num_stages))  # type: ignore[operator]
    wrong = sum(len(cases) for off, cases in excess(*hopper).items() if off)
    assert wrong >= len(hopper[0]) / 4


def test_pointer_kernels_without_warp_group_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Hopper, on consumer GPUs, and wherever there are fewer than 64 rows or 4 warps."""
    cases = [
        case
        for architecture in ("sm_80", "sm_86", "sm_89", "sm_120")
        for case in flash(architecture, (64, 128), (64, 128), (32,), (1, 2, 3))
    ]
    for architecture in ("sm_80", "sm_90", "sm_100"):
        cases += flash(architecture, (32, 64, 256), (16, 32), (16, 64), (1, 3))
    cases += [("sm_90", "flash", PLAIN, Tile(64, 64, warps, stages)) for warps in (1, 2) for stages in (1, 2, 3)]
    real = compiled(cases)
    assert set(excess(cases, real)) == {0}
    # If P never took SRAM, or all tiles were thought fit for warp-group products, that would show.
    monkeypatch.setattr(Room, "warp_group_products", lambda self, tile, dtype_bytes: True)
    assert len(excess(cases, real)) > 1


def test_pointer_kernels_on_sm_100() -> None:
    """Barriers, and the alignment that they cause, are not counted to the byte."""
    cases = flash("sm_100", (64, 128), (64, 128), (32, 128), (1, 2, 3))
    found = excess(cases, compiled(cases))
    assert min(found) >= -1024 and max(found) <= 4096
    pipelined = [case for case in cases if case[3].num_stages > 1]
    assert max(excess(pipelined, compiled(pipelined))) <= 0


def test_pointer_kernels_in_float32() -> None:
    cases = flash("sm_90", (64,), (16, 64, 128), (16, 64), (1, 2), dtype="float32")
    found = excess(cases, compiled(cases))
    assert min(found) >= -1024 and max(found) <= 0


@pytest.mark.parametrize("load_path", ["descriptor", "descriptor-ws"])
def test_descriptor_kernels_on_sm_90(load_path: str) -> None:
    """Never more than counted, and at most a KiB less: the rule takes the most that barriers were seen to cost."""
    rows, stages = ((64, 128), (2,)) if load_path == "descriptor-ws" else ((64, 128, 256), (1, 2, 3))
    cases = flash("sm_90", (64, 128), rows, (64, 128), stages, load_path)
    real = compiled(cases)
    found = excess(cases, real)
    assert min(found) >= 0 and max(found) <= 1024
    through_pointers = [(*case[:3], replace(case[3], load_path="pointer")) for case in cases]
    assert min(excess(through_pointers, real)) < 0


def test_warp_specialised_kernels_with_one_stage() -> None:
    """Triton 3.6 splits them all the same, with K and V apart; 3.9 does not, and K and V take turns."""
    problem, tile = replace(PLAIN, head_dim=128), Tile(128, 128, 4, 1, "descriptor-ws")
    kernel = compile_call(plan_calls("flash", problem, tile)[0], "sm_90", sram_only=True)
    split = TRITON < (3, 9)
    assert kernel.block_warps == (12 if split else 4)
    counted = tile if split else replace(tile, load_path="descriptor")
    assert 0 <= simulated(("sm_90", "flash", problem, counted)) - kernel.sram_bytes <= 1024


def test_naive_kernels_on_sm_90() -> None:
    cases: list[Case] = [
        ("sm_90", launch, Attention(1, 8, None, n, n, d), Tile(m, 64, 4, stages))
        for launch in ("qk", "softmax", "pv")
        for n, d, m, stages in itertools.product((1000, 1024), (64, 128), (32, 64), (1, 2, 3))
    ]
    assert set(excess(cases, compiled(cases))) == {0}


def test_stopping_early_changes_no_figure() -> None:
    for tile in (Tile(64, 64, 4, 2), Tile(32, 32, 4, 2), Tile(64, 64, 4, 2, "descriptor-ws")):
        call = plan_calls("flash", PLAIN, tile)[0]
        early = compile_call(call, "sm_90", sram_only=True)
        whole = compile_call(call, "sm_90")
        assert (early.sram_bytes, early.block_warps) == (whole.sram_bytes, whole.block_warps)
        assert early.registers is None and whole.registers is not None
