"""Does each operation of the tile language compute what it says, on arrays small enough to see through?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from memsim import Attention, Tile, TileDoesNotFit
from memsim.language import LaunchSpec, Program, trace_launch
from memsim.numerics import ArrayMachine, Sram, Step, run_program
from memsim.programs import build_program
from memsim.tile import Room
from memsim.trace import Tensor, Work, walk

REGISTERS = Room(registers=True, sram_limit_bytes=1000, mma_tiles=False, architecture=None)
NO_REGISTERS = replace(REGISTERS, registers=False)
T = Tensor("T", 1, 2, 5, 3, "float16")


def machine(room: Room = REGISTERS, memory: dict[str, Any] | None = None) -> ArrayMachine:
    return ArrayMachine(Program("test", {"T": T}, (), room), memory or {})


def f32(*rows: Any) -> Any:
    return np.array(rows, dtype=np.float32)


def test_sram_hands_out_nan_and_counts_every_buffer() -> None:
    sram = Sram(100)
    buffers = sram.allocate("K", (2, 5), "float16", 2)
    assert [buffer.dtype for buffer in buffers] == [np.float16, np.float16]
    assert all(np.isnan(buffer).all() and buffer.shape == (2, 5) for buffer in buffers)
    assert sram.used_bytes == 40
    sram.allocate("S", (3, 5), "float32")
    assert sram.used_bytes == 100
    with pytest.raises(TileDoesNotFit, match=r"at least 104 B of 100 B of SRAM: K 2×20 \+ S 60 \+ m 4\."):
        sram.allocate("m", (1,), "float32")


def test_a_load_takes_what_is_inside_and_pads_with_zeros() -> None:
    stored = np.arange(30, dtype=np.float16).reshape(1, 2, 5, 3)
    m = machine(memory={"T": stored})
    buffer = m.buffer("T", (4, 2), "float16")
    loaded = m.load(T, (0, 1, 3, 2), buffer)
    assert loaded is buffer
    assert loaded.tolist() == [[15 + 11, 0], [15 + 14, 0], [0, 0], [0, 0]]
    assert m.load(T, (0, 0, 0, 0), buffer).tolist() == [[0, 1], [3, 4], [6, 7], [9, 10]]
    assert (m.load(T, (0, 0, 7, 9), buffer) == 0).all()
    vector = m.new("m", (3,), 7.0)
    assert m.load(Tensor("T", 1, 2, 5, 3, "float16"), (0, 0, 3, 0), vector).tolist() == [9, 12, 0]


def test_a_ring_fills_its_buffers_in_turn() -> None:
    stored = np.arange(30, dtype=np.float16).reshape(1, 2, 5, 3)
    m = machine(memory={"T": stored})
    ring = m.ring("K", (1, 3), "float16", 2)
    first, second, third = (m.load(T, (0, 0, row, 0), ring) for row in range(3))
    assert first is third and first is not second
    assert second.tolist() == [[3, 4, 5]] and third.tolist() == [[6, 7, 8]]


def test_a_store_writes_what_is_inside_and_rounds() -> None:
    stored = np.full((1, 2, 5, 3), -1, dtype=np.float16)
    m = machine(memory={"T": stored})
    m.store(T, (0, 1, 4, 1), f32([2049.0, 3, 4], [5, 6, 7]))
    assert stored[0, 1, 4].tolist() == [-1, 2048, 3]
    assert (stored[0, 0] == -1).all() and (stored[0, 1, :4] == -1).all()
    m.store(T, (0, 0, 3, 0), f32(8.0, 9, 10))
    assert stored[0, 0, :, 0].tolist() == [-1, -1, -1, 8, 9]


def test_dot_multiplies_in_float32_and_accumulates_if_asked() -> None:
    m = machine()
    a, b = np.array([[2048, 1]], np.float16), np.array([[1, 1], [1, 2]], np.float16)
    out = f32([100.0, 100.0])
    m.dot(a, b, out)
    assert out.tolist() == [[2049, 2050]]  # 2049 is no float16
    m.dot(a, b, out, transpose_b=True, accumulate=True)
    assert out.tolist() == [[2049 + 2049, 2050 + 2050]]


def test_elementwise_operations() -> None:
    m = machine()
    x, v = f32([1, 2], [3, 4]), f32(10, 100)
    assert m.mul(x, 2).tolist() == [[2, 4], [6, 8]]
    assert m.mul(x, v).tolist() == [[10, 20], [300, 400]]
    assert m.sub(x, v).tolist() == [[-9, -8], [-97, -96]]
    assert m.add(v, v).tolist() == [20, 200]
    assert m.divide_rows(x, f32(2, 0)).tolist() == [[0.5, 1], [0, 0]]
    assert m.maximum(v, f32(50, 50)).tolist() == [50, 100]
    assert m.finite(f32(-np.inf, 3)).tolist() == [0, 3]
    assert m.row_max(x).tolist() == [2, 4] and m.row_sum(x).tolist() == [3, 7]
    assert m.exp(f32(0, -np.inf)).tolist() == [1, 0]
    with np.errstate(divide="ignore"):
        assert m.log(f32(1, 0)).tolist() == [0, -np.inf]
    out = f32([0, 0], [0, 0])
    assert m.mul(x, 2, out) is out and out.tolist() == [[2, 4], [6, 8]]
    m.fill(out, 5)
    m.assign(x, out)
    assert out.tolist() == x.tolist() and out is not x


def test_a_mask_counts_rows_and_keys_from_its_position() -> None:
    x = f32([1, 1, 1], [1, 1, 1])
    machine().mask(x, 10, 20, lambda rows, cols: (rows == 11) & (cols <= 21))
    assert x.tolist() == [[-np.inf] * 3, [1, 1, -np.inf]]


@pytest.mark.parametrize("dtype, expected", [("float16", 2048), ("bfloat16", 2048), ("float32", 2049)])
def test_rounding_stays_in_place(dtype: str, expected: float) -> None:
    x = f32([2049.0])
    machine().round(x, dtype)
    assert x.tolist() == [[expected]] and x.dtype == np.float32


def test_p_is_rounded_before_it_meets_v() -> None:
    """What `flash` multiplies V by holds in the input's dtype, though it lies in a float32 tile."""
    problem = Attention(1, 1, None, 8, 8, 4, "bfloat16")
    program = build_program("flash", problem, Tile(8, 4), replace(NO_REGISTERS, sram_limit_bytes=2**20))
    rounded: list[Any] = []

    def watch(step: Step) -> None:
        if step.operation == "convert" and step.name == "S":
            rounded.append(step.values)

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 1, 8, 4)).astype(ml_dtypes.bfloat16) for _ in range(3)]
    run_program(program, problem, *arrays, watch=watch)
    assert len(rounded) == 2
    for p in rounded:
        assert (p == p.astype(ml_dtypes.bfloat16).astype(np.float32)).all() and len(np.unique(p)) > 4


def test_what_lies_in_registers_takes_no_sram() -> None:
    machine(REGISTERS).new("S", (100, 100), 0.0)
    with pytest.raises(TileDoesNotFit, match="S 40000"):
        machine(NO_REGISTERS).new("S", (100, 100), 0.0)


def test_an_operation_moves_its_operands_and_its_result_through_sram() -> None:
    """Of a machine without registers; with them only the operands that lie in SRAM."""

    def moved(room: Room) -> dict[str, int]:
        def body(t: Any, i: Any) -> None:
            a, b = t.buffer("A", (4, 8), "float16"), t.buffer("B", (2, 8), "float16")
            s, o = t.new("S", (4, 2), 0.0), t.new("O", (4, 8), 0.0)
            m = t.new("m", (4,), 0.0)
            t.load(T, (0, 0, i, 0), a)
            t.load(T, (0, 0, i, 0), b)
            t.dot(a, b, s, transpose_b=True)
            t.mul(s, m, s)
            t.dot(s, b, o, accumulate=True)
            t.row_max(s)
            t.exp(m)

        trace = trace_launch(LaunchSpec("t", (("i", 1),), body, 0), room)
        works = [record for record, _ in walk(trace.body) if isinstance(record, Work)]
        names = ("scores", "scale", "output", "max", "exp")
        return {name: work.sram_bytes for name, work in zip(names, works, strict=True)}

    a, b, s, o, m = 4 * 8 * 2, 2 * 8 * 2, 4 * 2 * 4, 4 * 8 * 4, 4 * 4
    assert moved(NO_REGISTERS) == {"scores": a + b + s, "scale": s + m + s, "output": s + b + o + o, "max": s, "exp": m}
    assert moved(REGISTERS) == {"scores": a + b, "scale": 0, "output": b, "max": 0, "exp": 0}


def test_blocks_run_in_the_order_asked_for() -> None:
    problem = Attention(1, 2, None, 6, 4, 4)
    program = build_program("flash", problem, Tile(2, 4), replace(REGISTERS, sram_limit_bytes=2**20))
    order: list[Any] = []

    def watch(step: Step) -> None:
        if step.operation == "store":
            order.append(step.at)

    arrays = [np.zeros((1, 2, n, 4), np.float16) for n in (6, 4, 4)]
    run_program(program, problem, *arrays, watch=watch, block_order=lambda name, blocks: blocks[::-1])
    assert order == [(0, head, row, 0) for head in (1, 0) for row in (4, 2, 0)]
