"""Law 5: SRAM in use never exceeds what there is; what cannot fit is refused with the sum spelled out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim import Attention, OutOfMemory, Tile, TileDoesNotFit, load_gpu, numerics, simulate
from memsim.gpu import apply_options
from memsim.numerics import Sram, run_program
from memsim.programs import build_program

from .problems import ALGORITHMS, HOPPER, TEXTBOOK, Array, problems, random_arrays, scaled, tiles, traces_of


@contextmanager
def tracked() -> Iterator[list[Sram]]:
    """The SRAM of every block that runs, in order."""
    made: list[Sram] = []

    class Tracked(Sram):
        def __init__(self, limit_bytes: int) -> None:
            super().__init__(limit_bytes)
            self.held: list[Array] = []
            made.append(self)

        def allocate(self, name: str, shape: tuple[int, ...], dtype: str, count: int = 1) -> list[Array]:
            buffers = super().allocate(name, shape, dtype, count)
            self.held += buffers
            # What is handed out is what is counted, and all of it is there at once.
            assert sum(buffer.nbytes for buffer in self.held) == self.used_bytes <= self.limit_bytes
            return buffers

    with patch.object(numerics, "Sram", Tracked):
        yield made


@settings(max_examples=scaled(60))
@given(st.sampled_from(ALGORITHMS), st.sampled_from((TEXTBOOK, HOPPER)), problems(40, (1, 40)), st.data())
def test_a_running_block_uses_what_the_trace_says(
    algorithm: str, room: Any, problem: Attention, data: st.DataObject
) -> None:
    tile = data.draw(tiles(room, 32))
    traces = traces_of(algorithm, problem, tile, room)
    program = build_program(algorithm, problem, tile, room)
    for launch in program.launches:
        with tracked() as made:
            run_program(replace(program, launches=(launch,)), problem, *random_arrays(problem, 1))
        assert {sram.used_bytes for sram in made} <= {traces[launch.name].sram_bytes}
        assert len(made) == traces[launch.name].blocks


def refusal(run: Callable[[], object]) -> TileDoesNotFit | None:
    try:
        run()
    except TileDoesNotFit as error:
        return error
    return None


def check_sum(message: str, limit: int) -> None:
    """`… needs 294912 B of 232448 B: Q 32768 + K 4×32768 + V 4×32768; …` and the sum is right, and too large."""
    found = re.search(r"needs (\d+) B of (\d+) B: ([^;]+);", message)
    assert found is not None, message
    total = 0
    for part in found[3].split(" + "):
        term = re.fullmatch(r"\S+ (?:(\d+)×)?(\d+)", part)
        assert term is not None, part
        total += int(term[1] or 1) * int(term[2])
    assert (total, limit) == (int(found[1]), int(found[2]))
    assert total > limit


@settings(max_examples=scaled(250))
@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(("two-level", "h200", "a100-40gb", "rtx-4090", "b200")),
    st.integers(11, 18),
    problems(100, (1, 260)),
    st.data(),
)
def test_what_does_not_fit_is_refused_with_its_sum(
    algorithm: str, name: str, power: int, problem: Attention, data: st.DataObject
) -> None:
    gpu = apply_options(load_gpu(name), {"sram": str(2**power)})
    room = TEXTBOOK if gpu.sm.registers is None else HOPPER
    tile = data.draw(tiles(room, 128))
    limit = gpu.sm.sram.block_limit_bytes
    try:
        result = simulate(algorithm, problem, gpu=gpu, tile=tile, count_only=True)
    except TileDoesNotFit as error:
        if "does not fit on an SM" in str(error):  # warps or registers, which law 5 leaves to the resources
            return
        check_sum(str(error), limit)
        assert str(tile) in str(error)
        return
    assert result.tile == asdict(tile)
    sram = gpu.sm.sram
    for launch in result.launches:
        assert launch.sram_bytes <= limit
        taken = launch.sram_bytes + sram.reserved_per_block_bytes
        assert launch.blocks_per_sm >= 1
        assert launch.blocks_per_sm * taken <= sram.capacity_bytes


@settings(max_examples=scaled(40))
@given(st.sampled_from(ALGORITHMS), problems(30, (1, 64)), st.integers(7, 15), st.data())
def test_the_numbers_and_the_machine_refuse_the_same_tiles(
    algorithm: str, problem: Attention, power: int, data: st.DataObject
) -> None:
    """On the textbook machine the trace, the resources and the arrays mean the same SRAM."""
    tile = data.draw(tiles(TEXTBOOK, 64))
    gpu = apply_options(load_gpu("two-level"), {"sram": str(2**power)})
    room = replace(TEXTBOOK, sram_limit_bytes=2**power)
    program = build_program(algorithm, problem, tile, room)
    if any(size == 0 for launch in program.launches for _, size in launch.axes):
        return  # blocks that do not run take no SRAM
    with tracked() as made:
        numbers = refusal(lambda: run_program(program, problem, *random_arrays(problem, 2)))
    machine = refusal(lambda: simulate(algorithm, problem, gpu=gpu, tile=tile, count_only=True))
    assert (numbers is None) == (machine is None)
    assert all(sram.used_bytes <= 2**power or numbers is not None for sram in made)
    if numbers is not None:
        found = re.search(r"needs at least (\d+) B of (\d+) B of SRAM: (.+)\.", str(numbers))
        assert found is not None and int(found[1]) > int(found[2]) == 2**power
        assert int(found[1]) == sum(
            int(count or 1) * int(size) for count, size in re.findall(r" (?:(\d+)×)?(\d+)(?= \+|$)", found[3])
        )


@settings(max_examples=scaled(60))
@given(st.sampled_from(ALGORITHMS), problems(2000, (1, 128)), st.integers(10, 40))
def test_tensors_that_do_not_fit_in_hbm_are_refused_with_their_sum(
    algorithm: str, problem: Attention, power: int
) -> None:
    gpu = apply_options(load_gpu("two-level"), {"hbm-capacity": str(2**power)})
    tile = Tile(8, 8, 4, 1)
    peak = simulate(algorithm, problem, gpu="two-level", tile=tile, count_only=True).total.peak_hbm_bytes
    if peak <= 2**power:
        simulate(algorithm, problem, gpu=gpu, tile=tile, count_only=True)
        return
    with pytest.raises(OutOfMemory) as refused:
        simulate(algorithm, problem, gpu=gpu, tile=tile, count_only=True)
    found = re.search(rf"needs {peak} B of {2**power} B of HBM: ([^;]+);", str(refused.value))
    assert found is not None
    assert sum(int(part.split()[1]) for part in found[1].split(" + ")) == peak


def test_an_sram_one_byte_too_small_is_refused() -> None:
    """Q 2,048 + K and V 2×2,048 each + O 4,096 + S 4,096 + m and l 128 each."""
    need = 2048 + 2 * 2 * 2048 + 4096 + 4096 + 2 * 128
    problem, tile = Attention(1, 1, None, 64, 64, 32), Tile(32, 32, 4, 2)
    for sram in (need, need - 1):
        gpu = apply_options(load_gpu("two-level"), {"sram": str(sram)})
        room = replace(TEXTBOOK, sram_limit_bytes=sram)
        program = build_program("flash", problem, tile, room)
        runs: list[Callable[[], object]] = [
            lambda gpu=gpu: simulate("flash", problem, gpu=gpu, tile=tile),
            lambda program=program: run_program(program, problem, *random_arrays(problem, 3)),
        ]
        for run in runs:
            assert (refusal(run) is None) == (sram == need)
