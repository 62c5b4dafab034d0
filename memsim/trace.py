"""The waist: what a program did, as a few kinds of record with its loops kept as loops.

Left of this module nothing knows the simulated machine; right of it nothing knows attention. One trace describes
every block of a launch: tile positions and trip counts are functions of the block's grid coordinates and of the
loop variables, so the trace of a problem of any size is a few dozen records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1}
ELEMENT_BYTES |= {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
ELEMENT_BYTES |= {f"float8_{kind}": 1 for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
PIPES = ("tensor", "exp", "alu")
SECTOR_BYTES = 32
# Allocators align tensors far beyond a sector; 512 B is what the CUDA allocator gives.
TENSOR_ALIGNMENT_BYTES = 512


@dataclass(frozen=True, slots=True)
class Index:
    """(value of `symbol` // divisor) · multiplier + offset; a constant where `symbol` is None."""

    symbol: str | None = None
    divisor: int = 1
    multiplier: int = 0
    offset: int = 0

    def at(self, value: int) -> int:
        """The index where the symbol has this value."""
        return (value // self.divisor) * self.multiplier + self.offset

    def over(self, values: Ints) -> Ints:
        """The index for an array of the symbol's values."""
        return (values // self.divisor) * self.multiplier + self.offset

    def __mul__(self, factor: int) -> Index:
        return Index(self.symbol, self.divisor, self.multiplier * factor, self.offset * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        if (self.multiplier, self.offset) != (1, 0):
            raise ValueError("only a bare symbol can be divided")
        return Index(self.symbol, self.divisor * divisor, 1, 0)

    @staticmethod
    def of(value: Index | int) -> Index:
        """A plain number as a constant index."""
        return value if isinstance(value, Index) else Index(offset=value)


def symbol(name: str) -> Index:
    """A grid coordinate or a loop variable, by its name."""
    return Index(name, 1, 1, 0)


@dataclass(frozen=True)
class Bound:
    """A loop bound that depends on one symbol; `of_values` maps an array of its values to integers."""

    symbol: str
    of_values: Callable[[Ints], Ints]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous tensor in HBM: (batch, heads, rows, cols), starting at `address` (bytes)."""

    name: str
    batch: int
    heads: int
    rows: int
    cols: int
    dtype: str
    address: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.cols * ELEMENT_BYTES[self.dtype]

    @property
    def head_bytes(self) -> int:
        """Bytes from one head to the next."""
        return self.rows * self.row_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.batch * self.heads * self.head_bytes


@dataclass(frozen=True, slots=True)
class TileRef:
    """Rows [row, row + rows) and columns [col, col + cols) of one head; what lies outside the tensor is not moved.

    A `box` is loaded by a tensor descriptor: the SM is filled with all of it, zeros where the tensor ends. Those bytes
    are counted as they arrive (`l1tex__m_xbar2l1tex_read_bytes` of an H200), but no memory is read for them.
    """

    tensor: Tensor
    batch: Index
    head: Index
    row: Index
    col: Index
    rows: int
    cols: int
    box: bool = False

    @property
    def box_bytes(self) -> int:
        """Bytes of the whole tile."""
        return self.rows * self.cols * ELEMENT_BYTES[self.tensor.dtype]


@dataclass(frozen=True, slots=True)
class Ring:
    """`buffers` equal SRAM buffers that the loads of a loop fill in turn. A load waits until its buffer is free:
    until the last use of what it holds."""

    name: str
    buffers: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Start copying a tile from memory into the SM as value `into`; who reads `into` first waits for it.

    With a `ring` the copy goes into the ring's next buffer and starts as soon as that is free, trips ahead of
    its use; without one it starts where it stands.
    """

    tile: TileRef
    into: str
    ring: Ring | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Write a tile of value `source` to memory; nothing in the block waits for it."""

    tile: TileRef
    source: str


@dataclass(frozen=True, slots=True)
class Work:
    """`amount` of work on a pipe: FLOPs on `tensor`, operations on `exp` and `alu`.

    `dtype` is that of the operands, `sram_bytes` what the operation moves between the pipe and SRAM, `reads` the
    named values it needs and `writes` the one it makes ("" for a vector that is used at once).
    """

    pipe: str
    amount: int
    operation: str
    dtype: str
    reads: tuple[str, ...]
    writes: str = ""
    sram_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` for each value of `symbol` from `start` up to, not including, `stop`.

    Trips before `unmasked` take no mask; a kernel may have a loop of its own for them.
    """

    symbol: str
    start: int | Bound
    stop: int | Bound
    body: tuple[Record, ...]
    unmasked: int | Bound | None = None


Record = Load | Store | Work | Loop


@dataclass(frozen=True)
class Buffer:
    """Room that a value takes: `count` buffers of `bytes` each."""

    name: str
    count: int
    bytes: int


@dataclass(frozen=True)
class LaunchTrace:
    """What each block of one launch does. `axes` are the grid's axes and sizes, the fastest first.

    `buffers` lie in SRAM; `accumulators` are the values that lie in registers (none where there are no registers);
    `values` names those that exist from the start.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    body: tuple[Record, ...]
    buffers: tuple[Buffer, ...] = ()
    accumulators: tuple[Buffer, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """Thread blocks of the grid."""
        total = 1
        for _, size in self.axes:
            total *= size
        return total

    @property
    def sram_bytes(self) -> int:
        """SRAM that the block's named buffers take."""
        return sum(b.count * b.bytes for b in self.buffers)


class IllegalTrace(AssertionError):
    """A trace breaks a rule of this module: a fault in a program, not in what a user typed."""


def walk(records: tuple[Record, ...], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Record, tuple[Loop, ...]]]:
    """Every record that is not a loop, in order, with the loops around it, outermost first."""
    for record in records:
        if isinstance(record, Loop):
            yield from walk(record.body, (*loops, record))
        else:
            yield record, loops


def check_trace(trace: LaunchTrace) -> LaunchTrace:
    """The trace itself, or `IllegalTrace` naming the first illegal record and what is wrong with it."""
    axes = [name for name, _ in trace.axes]
    if len(set(axes)) != len(axes):
        raise IllegalTrace(f"{trace.name}: two grid axes share a name in {axes}")
    _check_body(trace, trace.body, tuple(axes), set(trace.values), trace.name)
    return trace


def _check_body(
    trace: LaunchTrace, body: tuple[Record, ...], scope: tuple[str, ...], known: set[str], where: str
) -> None:
    for position, record in enumerate(body):
        place = f"{where}[{position}] {type(record).__name__}"
        if isinstance(record, Loop):
            if record.symbol in scope:
                raise IllegalTrace(f"{place}: loop variable {record.symbol!r} is already in use")
            for bound in (record.start, record.stop, record.unmasked):
                if isinstance(bound, Bound) and bound.symbol not in scope:
                    raise IllegalTrace(f"{place}: bound depends on {bound.symbol!r}, which no axis or loop defines")
            _check_body(trace, record.body, (*scope, record.symbol), known, place)
        elif isinstance(record, Work):
            _check_work(record, known, place)
        else:
            _check_tile(record.tile, scope, place)
            if isinstance(record, Store):
                if record.source not in known:
                    raise IllegalTrace(f"{place}: stores {record.source!r}, which nothing has made")
            else:
                known.add(record.into)
                if record.ring is not None:
                    if record.ring.buffers < 1:
                        raise IllegalTrace(f"{place}: ring {record.ring.name!r} has no buffer")
                    if where == trace.name:
                        raise IllegalTrace(f"{place}: ring {record.ring.name!r} is filled outside any loop")


def _check_work(record: Work, known: set[str], place: str) -> None:
    if record.pipe not in PIPES:
        raise IllegalTrace(f"{place}: pipe {record.pipe!r} is none of {PIPES}")
    if record.amount < 0 or record.sram_bytes < 0:
        raise IllegalTrace(f"{place}: a negative amount of work")
    for name in record.reads:
        if name not in known:
            raise IllegalTrace(f"{place}: {record.operation} reads {name!r}, which nothing has made")
    if record.writes:
        known.add(record.writes)


def _check_tile(tile: TileRef, scope: tuple[str, ...], place: str) -> None:
    for part in ("batch", "head", "row", "col"):
        index: Index = getattr(tile, part)
        if index.symbol is not None and index.symbol not in scope:
            raise IllegalTrace(f"{place}: {part} depends on {index.symbol!r}, which no axis or loop defines")
        if index.multiplier < 0 or index.offset < 0 or index.divisor < 1:
            raise IllegalTrace(f"{place}: {part} can be negative")
    if tile.rows < 1 or tile.cols < 1:
        raise IllegalTrace(f"{place}: an empty tile of {tile.tensor.name}")
    if tile.tensor.address % TENSOR_ALIGNMENT_BYTES:
        raise IllegalTrace(f"{place}: {tile.tensor.name} is not aligned to {TENSOR_ALIGNMENT_BYTES} B")


def place_tensors(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors side by side in HBM, each aligned as an allocator would."""
    address = 0
    placed = []
    for t in tensors:
        placed.append(Tensor(t.name, t.batch, t.heads, t.rows, t.cols, t.dtype, address))
        address += -(-t.total_bytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
    return tuple(placed)
