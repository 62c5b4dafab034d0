"""Is what a kernel did what the simulator's trace says? Access by access, block by block.

From a trace, with its loops kept as loops, to the concrete loads, stores and matrix products of one block; from a
recording to the same; and the first place where the two differ. Exponentials are not compared: kernels may take them
in another order and base than the program; nor are tensor descriptors, which the interpreter keeps out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

import numpy as np

from memsim.errors import MemsimError
from memsim.grid import GridOrder
from memsim.language import Program, trace_launch
from memsim.programs.parts import DESCRIPTORS
from memsim.trace import ELEMENT_BYTES, Bound, Index, LaunchTrace, Load, Loop, Record, Tensor, TileRef, Work
from memsim_kernels._record_layout import AXES
from memsim_kernels.calls import Call
from memsim_kernels.record import Recording, record_call

Block = tuple[int, ...]
ROWS = GridOrder()


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a block: the part of a tile that lies inside its tensor."""

    direction: str
    tensor: str
    batch: int
    head: int
    row: int
    col: int
    rows: int
    cols: int
    requested_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.direction}s {self.tensor}[batch {self.batch}, head {self.head}, "
            f"rows {self.row}–{self.row + self.rows - 1}, cols {self.col}–{self.col + self.cols - 1}] "
            f"({self.requested_bytes} B)"
        )


@dataclass(frozen=True, slots=True)
class Dot:
    """One matrix product of a block: FLOPs as executed, and the type that is multiplied."""

    flops: int
    dtype: str

    def __str__(self) -> str:
        return f"multiplies {self.dtype} matrices ({self.flops} FLOPs)"


Step = Access | Dot


def steps_of_block(trace: LaunchTrace, number: int) -> tuple[Step, ...]:
    """What block `number` of a launch does, in order; blocks are numbered with the first axis fastest."""
    if not 0 <= number < trace.blocks:
        raise MemsimError(f"{trace.name} has blocks 0 to {trace.blocks - 1}; there is no block {number}.")
    return tuple(_steps(trace.body, ROWS.unit(trace.axes, number)))


def steps_of_records(records: Iterable[Record]) -> tuple[Step, ...]:
    """What a recorded block did, in order."""
    return tuple(_steps(records, {}))


def first_difference(trace: LaunchTrace, recording: Recording, order: GridOrder = ROWS) -> str | None:
    """Where a recorded launch first departs from its trace, in one sentence; None where it does not.

    Compares every recorded block with what `order` says that the block of its linear number works on: direction,
    tensor, tile and bytes of each access, FLOPs and dtype of each matrix product, and their order. Raises `MemsimError`
    where the two see a tensor as different shapes, so that tiles cannot be compared.
    """
    _check_shapes(trace, recording)
    blocks = order.blocks(trace.axes) if trace.blocks else 0
    if blocks != prod(recording.grid):
        return (
            f"{trace.name}: the trace has {blocks} blocks, the kernel's grid {recording.grid} has "
            f"{prod(recording.grid)}."
        )
    for block, records in recording.blocks.items():
        number = recording.number_of(block)
        units = list(order.units_of_block(trace.axes, number))
        expected = (_in_one_place(step, recording.shared) for unit in units for step in _steps(trace.body, unit))
        done = steps_of_records(records)
        for position, (wanted, did) in enumerate(zip_longest(expected, done)):
            if wanted != did:
                where = "; ".join(", ".join(f"{name} {at}" for name, at in unit.items()) for unit in units[:3])
                where += "; …" if len(units) > 3 else ""
                return (
                    f"{trace.name}, block {block} ({where}), step {position + 1}: "
                    f"the trace {wanted or 'has ended'}, the kernel {did or 'has ended'}."
                )
    return None


def difference_from_program(
    program: Program, calls: Iterable[Call], *, choose: Callable[[tuple[int, ...]], Iterable[Block]] | None = None
) -> str | None:
    """Record every launch of a kernel and compare it with the program's launch of the same name; as `first_difference`.

    `choose` picks the blocks to record from each launch's grid (all if None).
    """
    traces = {launch.name: trace_launch(launch, program.room) for launch in program.launches}
    expected = [name for name, trace in traces.items() if trace.blocks]
    made = [call for call in calls if prod(call.grid)]
    if (names := [call.name for call in made]) != expected:
        return f"{program.algorithm}: the program launches {expected}, the kernels {names}."
    for call in made:
        blocks = choose(call.grid) if choose is not None else None
        recording = record_call(call, tensors=program.tensors, blocks=blocks)
        found = first_difference(traces[call.name], recording, call.order)
        if found is not None:
            return found
    return None


def _steps(records: Iterable[Record], values: dict[str, int]) -> Iterator[Step]:
    for record in records:
        if isinstance(record, Loop):
            for value in range(_bound(record.start, values), _bound(record.stop, values)):
                yield from _steps(record.body, values | {record.symbol: value})
        elif isinstance(record, Work):
            if record.pipe == "tensor":
                yield Dot(record.amount, record.dtype)
        elif record.tile.tensor.name != DESCRIPTORS:
            access = _access("load" if isinstance(record, Load) else "store", record.tile, values)
            if access is not None:
                yield access


def _bound(bound: int | Bound, values: Mapping[str, int]) -> int:
    return bound if isinstance(bound, int) else int(bound.of_values(np.array([values[bound.symbol]]))[0])


def _access(direction: str, tile: TileRef, values: Mapping[str, int]) -> Access | None:
    """The part of a tile inside its tensor; None if there is none."""

    def at(index: Index) -> int:
        return index.offset if index.symbol is None else index.at(values[index.symbol])

    tensor, row, col = tile.tensor, at(tile.row), at(tile.col)
    rows, cols = min(tile.rows, tensor.rows - row), min(tile.cols, tensor.cols - col)
    if rows <= 0 or cols <= 0:
        return None
    moved = rows * cols * ELEMENT_BYTES[tensor.dtype]
    return Access(direction, tensor.name, at(tile.batch), at(tile.head), row, col, rows, cols, moved)


def _in_one_place(step: Step, shared: Mapping[str, frozenset[str]]) -> Step:
    """The step as memory sees it, where all elements along an axis of its tensor lie in one place."""
    if isinstance(step, Dot) or step.tensor not in shared:
        return step
    axes = shared[step.tensor]
    rows, cols = (1 if axis in axes else size for axis, size in (("row", step.rows), ("col", step.cols)))
    batch, head, row, col = (0 if axis in axes else getattr(step, axis) for axis in AXES)
    moved = step.requested_bytes // (step.rows * step.cols) * rows * cols
    return Access(step.direction, step.tensor, batch, head, row, col, rows, cols, moved)


def _check_shapes(trace: LaunchTrace, recording: Recording) -> None:
    faults = []
    for wanted in {tile.tensor for tile in _tiles(trace.body)}:
        seen = recording.tensors.get(wanted.name)
        if seen is not None and _shape(seen) != _shape(wanted):
            faults.append(
                f"{wanted.name} is {_shape(wanted)} in the trace and {_shape(seen)} in the recording; record it with "
                "tensors= the program's own."
            )
    if faults:
        raise MemsimError(sorted(faults))


def _tiles(records: Iterable[Record]) -> Iterator[TileRef]:
    for record in records:
        if isinstance(record, Loop):
            yield from _tiles(record.body)
        elif not isinstance(record, Work):
            yield record.tile


def _shape(tensor: Tensor) -> tuple[int, int, int, int, str]:
    return tensor.batch, tensor.heads, tensor.rows, tensor.cols, tensor.dtype
