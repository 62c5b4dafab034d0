"""Runs a program on NumPy arrays, tile by tile in the order of its trace, in an SRAM that refuses to overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from memsim.attention import Attention
from memsim.errors import MemsimError, TileDoesNotFit
from memsim.language import LaunchSpec, Position, Program, TileMachine, Visible
from memsim.trace import ELEMENT_BYTES, Ints, Tensor

Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
}


@dataclass(frozen=True)
class Step:
    """One executed operation: what was done, to which value or tensor, at which (batch, head, row, col)."""

    operation: str
    name: str
    values: Array
    at: tuple[int, int, int, int] | None = None


Watch = Callable[[Step], None]


class Sram:
    """One SM's SRAM while a block runs: hands out buffers and refuses what exceeds `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.parts: list[str] = []

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str, count: int = 1) -> list[Array]:
        """`count` buffers holding NaN, so that a read of what nothing has written shows. Raises `TileDoesNotFit`."""
        one = math.prod(shape) * ELEMENT_BYTES[dtype]
        self.parts.append(f"{name} {one}" if count == 1 else f"{name} {count}×{one}")
        self.used_bytes += count * one
        if self.used_bytes > self.limit_bytes:
            raise TileDoesNotFit(
                f"a block needs at least {self.used_bytes} B of {self.limit_bytes} B of SRAM: {' + '.join(self.parts)}."
            )
        return [np.full(shape, np.nan, dtype=NUMPY_DTYPES[dtype]) for _ in range(count)]


class _RingBuffers:
    """Buffers filled in turn."""

    def __init__(self, buffers: list[Array]) -> None:
        self.buffers = buffers
        self.filled = 0

    def next(self) -> Array:
        buffer = self.buffers[self.filled % len(self.buffers)]
        self.filled += 1
        return buffer


class ArrayMachine(TileMachine):
    """One thread block at work on arrays. Tensors are `(batch, heads, rows, cols)`."""

    def __init__(self, program: Program, memory: dict[str, Array], watch: Watch | None = None) -> None:
        self._memory = memory
        self._registers = program.room.registers
        self._sram = Sram(program.room.sram_limit_bytes)
        self._watch = watch
        self._names: dict[int, str] = {}

    def _tell(self, operation: str, value: Array, at: Position | None = None, name: str = "") -> None:
        if self._watch is not None:
            self._watch(Step(operation, name or self._names.get(id(value), ""), value.copy(), at))

    def loop(self, name: str, start: Any, stop: Any, unmasked: Any = None) -> Iterator[int]:
        return iter(range(start, stop))

    def bound(self, of_values: Callable[[Ints], Ints], value: Any) -> int:
        return int(of_values(np.array([value], dtype=np.int64))[0])

    def buffer(self, name: str, shape: tuple[int, int], dtype: str) -> Array:
        return self._sram.allocate(name, shape, dtype)[0]

    def ring(self, name: str, shape: tuple[int, int], dtype: str, buffers: int) -> _RingBuffers:
        return _RingBuffers(self._sram.allocate(name, shape, dtype, buffers))

    def new(self, name: str, shape: tuple[int, ...], fill: float) -> Array:
        value = np.empty(shape, np.float32) if self._registers else self._sram.allocate(name, shape, "float32")[0]
        value[...] = fill
        self._names[id(value)] = name
        return value

    def describe(self, descriptors: Tensor, at: Position, count: int) -> None:
        # They say where tiles are, which a position says here.
        pass

    def load(self, tensor: Tensor, at: Position, into: Any, *, box: bool = False) -> Array:
        target: Array = into.next() if isinstance(into, _RingBuffers) else into
        batch, head, row, col = at
        rows, cols = target.shape if target.ndim == 2 else (target.shape[0], 1)
        inside = self._memory[tensor.name][batch, head, row : row + rows, col : col + cols]
        target[...] = 0
        if target.ndim == 2:
            target[: inside.shape[0], : inside.shape[1]] = inside
        else:
            target[: inside.shape[0]] = inside[:, 0]
        self._tell("load", target, at, tensor.name)
        return target

    def store(self, tensor: Tensor, at: Position, value: Any) -> None:
        batch, head, row, col = at
        matrix = value if value.ndim == 2 else value[:, None]
        inside = self._memory[tensor.name][batch, head, row : row + matrix.shape[0], col : col + matrix.shape[1]]
        inside[...] = matrix[: inside.shape[0], : inside.shape[1]].astype(inside.dtype)
        self._tell("store", value, at, tensor.name)

    def dot(self, a: Any, b: Any, out: Any, *, transpose_b: bool = False, accumulate: bool = False) -> None:
        left, right = a.astype(np.float32), b.astype(np.float32)
        result = left @ (right.T if transpose_b else right)
        out[...] = out + result if accumulate else result
        self._tell("dot", out)

    def _put(self, operation: str, result: Any, out: Any) -> Any:
        if out is None:
            out = np.asarray(result, dtype=np.float32)
        else:
            out[...] = result
        self._tell(operation, out)
        return out

    def mul(self, x: Any, factor: Any, out: Any = None) -> Any:
        by = np.float32(factor) if isinstance(factor, int | float) else _over_rows(factor, x)
        return self._put("mul", x * by, out)

    def sub(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._put("sub", x - _over_rows(y, x), out)

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._put("add", x + y, out)

    def divide_rows(self, x: Any, y: Any, out: Any = None) -> Any:
        divisor = _over_rows(y, x)
        return self._put("divide", np.where(divisor == 0, np.float32(0), x / np.where(divisor == 0, 1, divisor)), out)

    def mask(self, x: Any, row: Any, col: Any, visible: Visible) -> None:
        rows = row + np.arange(x.shape[0], dtype=np.int64)[:, None]
        cols = col + np.arange(x.shape[1], dtype=np.int64)[None, :]
        self._put("mask", np.where(visible(rows, cols), x, np.float32(-np.inf)), x)

    def exp(self, x: Any, out: Any = None) -> Any:
        return self._put("exp", np.exp(x), out)

    def log(self, x: Any, out: Any = None) -> Any:
        return self._put("log", np.log(x), out)

    def row_max(self, x: Any) -> Any:
        return self._put("max", x.max(axis=1), None)

    def row_sum(self, x: Any) -> Any:
        return self._put("sum", x.sum(axis=1, dtype=np.float32), None)

    def maximum(self, x: Any, y: Any) -> Any:
        return self._put("maximum", np.maximum(x, y), None)

    def finite(self, x: Any) -> Any:
        return self._put("finite", np.where(np.isneginf(x), np.float32(0), x), None)

    def round(self, x: Any, dtype: str) -> None:
        if dtype != "float32":
            self._put("convert", x.astype(NUMPY_DTYPES[dtype]), x)

    def assign(self, x: Any, out: Any) -> None:
        self._put("assign", x, out)

    def fill(self, out: Any, value: float) -> None:
        out[...] = value


def _over_rows(vector: Any, x: Any) -> Any:
    return vector[:, None] if vector.ndim < x.ndim else vector


def run_program(
    program: Program,
    problem: Attention,
    q: Array,
    k: Array,
    v: Array,
    *,
    watch: Watch | None = None,
    block_order: Callable[[str, list[tuple[int, ...]]], Sequence[tuple[int, ...]]] | None = None,
) -> tuple[Array, Array | None]:
    """(O, LSE) of a program on arrays.

    q is `(batch, heads, seq_len_q, head_dim)`, k and v `(batch, kv_heads, seq_len_k, head_dim)`, of the problem's
    dtype. O has q's shape and dtype, LSE `(batch, heads, seq_len_q)` float32, natural logarithm; None where the
    program does not store it. `watch` sees every operation; `block_order` maps a launch's name and blocks to the
    order in which to run them (linear if None). Raises `MemsimError` if shapes or dtypes do not match.
    """
    memory = _memory_of(program, problem, {"Q": q, "K": k, "V": v})
    # Rows that see nothing make 0·-inf, log 0 and overflowing padding on their way to a defined result.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for launch in program.launches:
            blocks = list(blocks_of(launch))
            for block in block_order(launch.name, blocks) if block_order else blocks:
                coordinates = dict(zip((name for name, _ in launch.axes), block, strict=True))
                launch.body(ArrayMachine(program, memory, watch), **coordinates)
        lse = memory["LSE"][..., 0] if "LSE" in memory else None
        if "m" in memory:
            m, l = memory["m"][..., 0], memory["l"][..., 0]
            lse = np.where(np.isneginf(m), 0, m) + np.log(l)
    return memory["O"], lse


def blocks_of(launch: LaunchSpec) -> Iterator[tuple[int, ...]]:
    """Grid coordinates of every block in linear order, the first axis fastest."""
    for reversed_block in product(*(range(size) for _, size in reversed(launch.axes))):
        yield reversed_block[::-1]


def _memory_of(program: Program, problem: Attention, given: dict[str, Array]) -> dict[str, Array]:
    faults = []
    for name, array in given.items():
        t = program.tensors[name]
        shape = (t.batch, t.heads, t.rows, t.cols)
        if array.shape != shape:
            faults.append(f"{name} has shape {array.shape}; this problem needs {shape} (batch, heads, seq, head_dim).")
        if array.dtype != np.dtype(NUMPY_DTYPES[problem.dtype]):
            faults.append(f"{name} holds {array.dtype}; this problem needs {problem.dtype}.")
    if faults:
        raise MemsimError(faults)
    memory = dict(given)
    for name, t in program.tensors.items():
        if name not in memory:
            shape = (t.batch, t.heads, t.rows, t.cols)
            memory[name] = np.full(shape, np.nan, dtype=NUMPY_DTYPES[t.dtype])
    return memory
