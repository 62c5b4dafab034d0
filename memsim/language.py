"""The tile language: what the body of a thread block may say.

A body is written once against `TileMachine`. `Tracer` (here) runs it on symbols and yields its trace, with loops
kept as loops; `memsim.numerics.ArrayMachine` runs it on NumPy arrays and yields numbers. A body therefore uses no
operator on values and takes every position and trip count from its grid coordinates and loop variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from memsim.tile import Room
from memsim.trace import (
    ELEMENT_BYTES,
    Bound,
    Buffer,
    Index,
    Ints,
    LaunchTrace,
    Load,
    Loop,
    Record,
    Ring,
    Store,
    Tensor,
    TileRef,
    Work,
    check_trace,
    symbol,
)

Position = tuple[Any, Any, Any, Any]
"""(batch, head, row, col): integers while numbers are computed, indices while a body is traced."""

Visible = Callable[[Ints, Ints], Any]


@dataclass(frozen=True)
class LaunchSpec:
    """One kernel: a grid (`axes`, the fastest first) and its body. A grid with a zero axis is not run.

    `useful_flops` are those of its matrix products that the problem needs, without padding and masked pairs.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    body: Callable[..., None]
    useful_flops: int


@dataclass(frozen=True)
class Program:
    """An algorithm bound to a problem, a tile and a machine's room: its tensors in HBM, its launches in order."""

    algorithm: str
    tensors: dict[str, Tensor]
    launches: tuple[LaunchSpec, ...]
    room: Room


class TileMachine(ABC):
    """The operations of the tile language. Values are opaque to a body; every tile is two-dimensional, every vector
    holds one number per row. Element-wise work happens in float32."""

    @abstractmethod
    def loop(self, name: str, start: Any, stop: Any, unmasked: Any = None) -> Iterator[Any]:
        """The loop variable from start up to, not including, stop. Trips before `unmasked`, if given, need no mask."""

    @abstractmethod
    def bound(self, of_values: Callable[[Ints], Ints], value: Any) -> Any:
        """A loop bound as an integer function of one grid coordinate or loop variable."""

    @abstractmethod
    def buffer(self, name: str, shape: tuple[int, int], dtype: str) -> Any:
        """One SRAM buffer."""

    @abstractmethod
    def ring(self, name: str, shape: tuple[int, int], dtype: str, buffers: int) -> Any:
        """SRAM buffers that the loads of a loop fill in turn."""

    @abstractmethod
    def new(self, name: str, shape: tuple[int, ...], fill: float) -> Any:
        """A float32 tile or vector: in registers, or in SRAM where the machine has no registers."""

    @abstractmethod
    def load(self, tensor: Tensor, at: Position, into: Any, *, box: bool = False) -> Any:
        """Copy the tile at (batch, head, row, col) into a buffer, a ring or a value; beyond the tensor it is 0. A
        `box` is asked for by a tensor descriptor."""

    @abstractmethod
    def describe(self, descriptors: Tensor, at: Position, count: int) -> None:
        """Make `count` tensor descriptors: the block writes them to memory, and they are read back to be used."""

    @abstractmethod
    def store(self, tensor: Tensor, at: Position, value: Any) -> None:
        """Write the part of a value that lies inside the tensor, rounded to the tensor's dtype."""

    @abstractmethod
    def dot(self, a: Any, b: Any, out: Any, *, transpose_b: bool = False, accumulate: bool = False) -> None:
        """out (+)= a·b or a·bᵀ, multiplied in the operands' dtype, accumulated in float32."""

    @abstractmethod
    def mul(self, x: Any, factor: Any, out: Any = None) -> Any:
        """x · factor, a number or a vector over the rows."""

    @abstractmethod
    def sub(self, x: Any, y: Any, out: Any = None) -> Any:
        """x - y, y a vector over the rows."""

    @abstractmethod
    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        """x + y, elementwise."""

    @abstractmethod
    def divide_rows(self, x: Any, y: Any, out: Any = None) -> Any:
        """x / y, y a vector over the rows; a row whose y is 0 becomes 0."""

    @abstractmethod
    def mask(self, x: Any, row: Any, col: Any, visible: Visible) -> None:
        """Set x to -inf where visible(rows, cols), counted from (row, col), is false."""

    @abstractmethod
    def exp(self, x: Any, out: Any = None) -> Any:
        """e to the x; 0 for -inf."""

    @abstractmethod
    def log(self, x: Any, out: Any = None) -> Any:
        """Natural logarithm; -inf for 0."""

    @abstractmethod
    def row_max(self, x: Any) -> Any:
        """Maximum of each row."""

    @abstractmethod
    def row_sum(self, x: Any) -> Any:
        """Sum of each row."""

    @abstractmethod
    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of two vectors."""

    @abstractmethod
    def finite(self, x: Any) -> Any:
        """x, with 0 in place of -inf: a maximum that can be subtracted from a row that saw nothing."""

    @abstractmethod
    def round(self, x: Any, dtype: str) -> None:
        """Round a tile to dtype in place, as a kernel does before a matrix product."""

    @abstractmethod
    def assign(self, x: Any, out: Any) -> None:
        """Rename x to out: no work."""

    @abstractmethod
    def fill(self, out: Any, value: float) -> None:
        """Set every element: no work counted."""


@dataclass(frozen=True)
class _Traced:
    """A value while tracing: its shape, and its name unless it is a vector that is used at once."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    in_sram: bool
    ring: Ring | None = None

    @property
    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def sram_bytes(self) -> int:
        return self.size * ELEMENT_BYTES[self.dtype] if self.in_sram else 0


class Tracer(TileMachine):
    """Runs a body once, on symbols, and collects its records."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._body: list[Record] = []
        self._buffers: list[Buffer] = []
        self._accumulators: list[Buffer] = []
        self._values: list[str] = []

    def trace(self, launch: LaunchSpec) -> LaunchTrace:
        """The checked trace of a launch."""
        launch.body(self, **{name: symbol(name) for name, _ in launch.axes})
        return check_trace(
            LaunchTrace(
                launch.name,
                launch.axes,
                tuple(self._body),
                tuple(self._buffers),
                tuple(self._accumulators),
                tuple(self._values),
            )
        )

    def loop(self, name: str, start: Any, stop: Any, unmasked: Any = None) -> Iterator[Any]:
        outer, self._body = self._body, []
        yield symbol(name)
        outer.append(Loop(name, start, stop, tuple(self._body), unmasked))
        self._body = outer

    def bound(self, of_values: Callable[[Ints], Ints], value: Any) -> Bound:
        index: Index = value
        assert index == symbol(index.symbol or ""), "a bound depends on a bare coordinate or loop variable"
        return Bound(index.symbol or "", of_values)

    def buffer(self, name: str, shape: tuple[int, int], dtype: str) -> _Traced:
        value = _Traced(name, shape, dtype, in_sram=True)
        self._buffers.append(Buffer(name, 1, value.sram_bytes))
        return value

    def ring(self, name: str, shape: tuple[int, int], dtype: str, buffers: int) -> _Traced:
        one = shape[0] * shape[1] * ELEMENT_BYTES[dtype]
        self._buffers.append(Buffer(name, buffers, one))
        return _Traced(name, shape, dtype, in_sram=True, ring=Ring(name, buffers, one))

    def new(self, name: str, shape: tuple[int, ...], fill: float) -> _Traced:
        value = _Traced(name, shape, "float32", in_sram=not self._room.registers)
        room = self._accumulators if self._room.registers else self._buffers
        self._values.append(name)
        room.append(Buffer(name, 1, value.size * ELEMENT_BYTES["float32"]))
        return value

    def load(self, tensor: Tensor, at: Position, into: Any, *, box: bool = False) -> _Traced:
        target: _Traced = into
        # A ring that two tensors share holds one value for each.
        name = tensor.name if target.ring else target.name
        self._body.append(Load(_tile(tensor, at, target.shape, box), name, target.ring))
        return _Traced(name, target.shape, target.dtype, target.in_sram)

    def describe(self, descriptors: Tensor, at: Position, count: int) -> None:
        tile = _tile(descriptors, at, (count, descriptors.cols))
        self._values.append(descriptors.name)
        self._body.append(Store(tile, descriptors.name))
        self._body.append(Load(tile, descriptors.name))

    def store(self, tensor: Tensor, at: Position, value: Any) -> None:
        source: _Traced = value
        if source.dtype != tensor.dtype:
            self._work("alu", source.size, "convert", (source,), None)
        self._body.append(Store(_tile(tensor, at, source.shape), source.name))

    def dot(self, a: Any, b: Any, out: Any, *, transpose_b: bool = False, accumulate: bool = False) -> None:
        rows, inner = a.shape
        cols = b.shape[0] if transpose_b else b.shape[1]
        assert out.shape == (rows, cols) and inner == b.shape[1 if transpose_b else 0], "shapes do not match"
        reads = (a, b, out) if accumulate else (a, b)
        self._work("tensor", 2 * rows * cols * inner, "dot", reads, out, dtype=b.dtype)

    def mul(self, x: Any, factor: Any, out: Any = None) -> Any:
        return self._elementwise("alu", "mul", x, (factor,) if isinstance(factor, _Traced) else (), out)

    def sub(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._elementwise("alu", "sub", x, (y,), out)

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._elementwise("alu", "add", x, (y,), out)

    def divide_rows(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._elementwise("alu", "divide", x, (y,), out)

    def mask(self, x: Any, row: Any, col: Any, visible: Visible) -> None:
        self._elementwise("alu", "mask", x, (), x)

    def exp(self, x: Any, out: Any = None) -> Any:
        return self._elementwise("exp", "exp", x, (), out)

    def log(self, x: Any, out: Any = None) -> Any:
        return self._elementwise("exp", "log", x, (), out)

    def row_max(self, x: Any) -> Any:
        return self._reduce("max", x)

    def row_sum(self, x: Any) -> Any:
        return self._reduce("sum", x)

    def maximum(self, x: Any, y: Any) -> Any:
        return self._elementwise("alu", "maximum", x, (y,), None)

    def finite(self, x: Any) -> Any:
        return self._elementwise("alu", "finite", x, (), None)

    def round(self, x: Any, dtype: str) -> None:
        if dtype != x.dtype:
            self._elementwise("alu", "convert", x, (), x)

    def assign(self, x: Any, out: Any) -> None:
        pass

    def fill(self, out: Any, value: float) -> None:
        pass

    def _elementwise(self, pipe: str, operation: str, x: Any, others: tuple[Any, ...], out: Any) -> Any:
        self._work(pipe, x.size, operation, (x, *others), out)
        return out if out is not None else self._vector(x.shape)

    def _reduce(self, operation: str, x: Any) -> Any:
        self._work("alu", x.size, operation, (x,), None)
        return self._vector(x.shape[:1])

    def _vector(self, shape: tuple[int, ...]) -> _Traced:
        assert len(shape) == 1, "only vectors may be left unnamed: a tile needs room"
        return _Traced("", shape, "float32", in_sram=False)

    def _work(
        self, pipe: str, amount: int, operation: str, reads: tuple[Any, ...], out: Any, dtype: str = "float32"
    ) -> None:
        moved = sum(v.sram_bytes for v in reads) + (out.sram_bytes if out is not None else 0)
        names = tuple(dict.fromkeys(v.name for v in reads if v.name))
        self._body.append(Work(pipe, amount, operation, dtype, names, out.name if out is not None else "", moved))


def _tile(tensor: Tensor, at: Position, shape: tuple[int, ...], box: bool = False) -> TileRef:
    batch, head, row, col = (Index.of(x) for x in at)
    rows, cols = shape if len(shape) == 2 else (shape[0], 1)
    return TileRef(tensor, batch, head, row, col, rows, cols, box)


def trace_launch(launch: LaunchSpec, room: Room) -> LaunchTrace:
    """The trace of one launch, checked."""
    return Tracer(room).trace(launch)
