"""Does verify say what it ran, what it could not, and what differs?"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from memsim_kernels import _verify_compile, verify
from memsim_kernels._verify_cases import (
    AGREES,
    DIFFERS,
    ESTIMATE,
    NOT_RUN,
    Case,
    Point,
    case_of,
    cases_of,
    default_cases,
    gpu_points,
    resource_points,
)
from memsim_kernels._verify_interpret import check_case
from memsim_kernels.probe import Compiled

from memsim import Attention, Tile, load_gpu, simulate

H200 = load_gpu("h200")
PROBLEM = Attention(heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=64)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "memsim", *words]
    return subprocess.run(run, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--checks", "speed"), 'checks names "speed"; it must be of numbers, accesses, resources, gpu-numbers, '),
        (("--gpu", "two-level"), 'gpu is "two-level", which names no architecture; kernels are compiled'),
        (("flash1",), 'there are no kernels of "flash1": give flash or naive.'),
        (("--vary", "colour=1"), '--vary is "colour=1": give AXIS=V1,V2 with an option of the problem or the tile'),
        (("--jobs", "0"), "jobs is 0"),
        (("flash", "--head-dim", "300"), "head-dim is 300; the kernels take up to 256."),
        (("flash", "--dtype", "bfloat16", "--seq-len", "16", "--checks", "numbers"), "as bit patterns."),
        (("flash", "--block-m", "24"), "block-m is 24; this GPU's tensor instructions take powers of two"),
        (("flash", "--block-m", "128", "--block-n", "128", "--num-stages", "4"), "needs 294912 B of 232448 B"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    run = command("verify", *words)
    assert run.returncode == 2 and sentence in run.stderr and "Traceback" not in run.stderr


def test_what_needs_a_gpu_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    run = command("verify", "--checks", "gpu-numbers")
    assert run.returncode == 2 and "none of these checks can run here: gpu-numbers: there is no CUDA GPU" in run.stderr
    run = command("measure", "--out", "nowhere.csv")
    assert run.returncode == 2 and "there is no CUDA GPU here to measure on" in run.stderr


def test_cases_travel_as_json() -> None:
    points = [*resource_points(), *gpu_points()]
    cases = [*default_cases(), *cases_of(points)]
    assert [case_of(json.loads(json.dumps(case.as_dict()))) for case in cases] == cases
    assert len({case.label for case in cases}) == len(set(cases))


def test_the_default_grid_reaches_the_corners() -> None:
    problems = [case.point.problem for case in default_cases()]
    assert {p.dtype for p in problems} == {"float16", "bfloat16", "float32"}
    assert any(p.seq_len_k == 0 for p in problems) and any(p.seq_len_q == 1 for p in problems)
    assert any(p.causal and p.seq_len_q > p.seq_len_k > 0 for p in problems)
    assert any(p.causal and p.seq_len_q < p.seq_len_k for p in problems)
    assert any(p.group > 1 for p in problems) and any(p.head_dim % 16 for p in problems)
    assert {case.point.tile.load_path for case in default_cases()} == {"pointer", "descriptor", "descriptor-ws"}
    assert {case.point.algorithm for case in default_cases() if case.far} == {"flash", "naive"}


def compiled(sram_bytes: int, registers: int) -> Compiled:
    return Compiled("flash", "sm_90", sram_bytes, 4, registers, 0)


@pytest.mark.parametrize(
    ("tile", "off", "registers_off", "status"),
    [
        (Tile(64, 64, 4, 3), 0, 0, AGREES), (Tile(64, 64, 4, 3), 8, 0, DIFFERS), (Tile(64, 64, 4, 3), 0, 60, DIFFERS),
        (Tile(16, 16, 4, 3, "descriptor"), 8, 0, ESTIMATE), (Tile(64, 64, 4, 3, "descriptor"), -8, 0, DIFFERS),
    ],
)  # fmt: skip
def test_compiled_figures_that_are_off(
    tile: Tile, off: int, registers_off: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_verify_compile, "version", lambda _: "3.6.1")
    launch = simulate("flash", PROBLEM, tile=tile, count_only=True).launch("flash")
    assert launch.registers is not None
    kernel = compiled(launch.sram_bytes + off, launch.registers + registers_off)
    outcome = _verify_compile._outcome(3, Case(Point("flash", PROBLEM, tile)), [kernel], H200)
    assert (outcome.case, outcome.status) == (3, status)
    if off:
        assert f"simulated {launch.sram_bytes} B of SRAM, compiled {launch.sram_bytes + off}." in outcome.detail


def test_another_compiler_than_the_tables_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for SRAM through pointers, which is a rule and holds for both."""
    monkeypatch.setattr(_verify_compile, "version", lambda _: "3.9.0")
    for tile, status in ((Tile(64, 64, 4, 3, "descriptor"), ESTIMATE), (Tile(64, 64, 4, 3), DIFFERS)):
        launch = simulate("flash", PROBLEM, tile=tile, count_only=True).launch("flash")
        kernel = compiled(launch.sram_bytes + 8, launch.registers or 0)
        assert _verify_compile._outcome(0, Case(Point("flash", PROBLEM, tile)), [kernel], H200).status == status


def test_large_problems_are_sampled_and_naive_ones_refused() -> None:
    large = Attention(heads=16, seq_len_q=2048, seq_len_k=2048, head_dim=16)
    tile = Tile(64, 64, 4, 2)
    outcomes = list(check_case(0, Case(Point("flash", large, tile, lse=True)), ("numbers", "accesses"), H200))
    assert [outcome.status for outcome in outcomes] == [AGREES, AGREES]
    assert [outcome.figures["blocks"] for outcome in outcomes] == [12, 12]
    assert outcomes[1].figures["of_blocks"] == 512
    naive = list(check_case(0, Case(Point("naive", large, tile)), ("numbers", "accesses"), H200))
    assert {outcome.status for outcome in naive} == {NOT_RUN} and "minutes" in naive[0].detail


def test_a_stage_that_dies_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = verify.verify([Case(Point("flash", PROBLEM, Tile(64, 64, 4, 3)))], checks=["accesses"])
    assert not found.holds and found.count(DIFFERS) == 1
    assert "its process" in found.outcomes[0].detail


def test_counters_that_claim_nothing_or_miss_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from memsim_kernels import _verify_gpu
    from memsim_kernels._rows import rows_of_point

    def outcome(point: Point, error: str = "", **values: int) -> tuple[str, str]:
        rows = [replace(row, values=values, error=error) for row in rows_of_point(point, "h200")]
        monkeypatch.setattr(_verify_gpu, "profile", lambda points, gpu: rows)
        (found,) = _verify_gpu.check_counters([(0, Case(point))], "h200")
        return found.status, found.detail

    point = Point("flash", PROBLEM, Tile(64, 64, 4, 3))
    fills = simulate("flash", PROBLEM, tile=point.tile, count_only=True).total.sram_fill_bytes
    assert outcome(point, sram_fill_bytes=fills, stack_bytes=0) == (AGREES, "")
    status, said = outcome(point, sram_fill_bytes=fills + 32, stack_bytes=0)
    assert status == DIFFERS and f"sram_fill_bytes is {fills + 32}, simulated {fills}." in said
    assert outcome(point, "did not launch: no room")[0] == DIFFERS
    narrow = replace(point, problem=replace(PROBLEM, head_dim=40))
    assert outcome(narrow, sram_fill_bytes=10**9, stack_bytes=0)[0] == NOT_RUN


def test_kernels_take_what_the_commands_do() -> None:
    from memsim_kernels import _checks, _points

    assert _points.LARGEST_HEAD_DIM == _checks.LARGEST_HEAD_DIM


def test_nothing_run_is_not_all_well() -> None:
    assert not verify.Verification("h200", {}, (), ()).holds


def test_the_first_wrong_element_is_named() -> None:
    import torch
    from memsim_kernels._verify_interpret import _where

    case = Case(Point("flash", replace(PROBLEM, seq_len_q=100), Tile(64, 64, 4, 3)))
    wrong = torch.zeros((1, 16, 100, 64), dtype=torch.bool)
    wrong[0, 3, 70, 5] = wrong[0, 4, 0, 0] = True
    o = torch.zeros(wrong.shape)
    said = _where(case, wrong, o, o + 1, "O", "float64 gives")
    assert said is not None
    assert said.startswith("O[0, 3, 70, 5] is 0 where float64 gives 1 (2 of 102400 elements are wrong")
    assert "block i 1, head 3, batch 0, the tile of rows 64–99" in said
