"""A trace made ready to replay: records as small tuples of integers, durations known, waits and releases placed.

Loads without a ring start where they stand. Loads of a ring start when the loop is entered, as many as there are
buffers, and then each time a buffer is released, which is after the last use of what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memsim.counting import tile_bytes
from memsim.gpu import Gpu
from memsim.machine.clock import duration_ps
from memsim.machine.l2 import Access, piece_bytes_of
from memsim.machine.sm import ALU, EXP, TENSOR
from memsim.trace import (
    ELEMENT_BYTES,
    SECTOR_BYTES,
    Bound,
    IllegalTrace,
    Index,
    Ints,
    LaunchTrace,
    Load,
    Loop,
    Record,
    Store,
    TileRef,
    Work,
    walk,
)

# Step codes. WORK pipe ps sram_ps · WAIT slot · ISSUE slot move · STORE move · LOOP plan · RING_WAIT ring part ·
# RELEASE ring part
WORK, WAIT, ISSUE, STORE, LOOP, RING_WAIT, RELEASE = range(7)
Step = tuple[Any, ...]
Environment = dict[str, int]


class Move:
    """The bytes and the address of a load or store, as functions of the block and of its innermost loop.

    `same_bytes` are those of every position, where all move the same; `step` the bytes of address from one value of the
    loop's variable to the next; `sectors_repeat` whether tiles lie alike in their sectors wherever they are;
    `places_in_plane` the symbols that say where in its plane a tile is; `most_divisor` how many heads share one.
    """

    def __init__(
        self, tile: TileRef, loop_symbol: str | None, axes: Mapping[str, int], shared: frozenset[str] = frozenset()
    ) -> None:
        t = tile.tensor
        self.access = Access(
            t.name, t.name in shared, t.address, piece_bytes_of(t.total_bytes, t.row_bytes), tile.rows, t.rows,
            min(tile.cols, t.cols) * ELEMENT_BYTES[t.dtype], t.row_bytes,
        )  # fmt: skip
        self._parts = (tile.batch, tile.head, tile.row, tile.col)
        self._varies = [loop_symbol is not None and part.symbol == loop_symbol for part in self._parts]
        if any(self._varies[:2]):
            raise IllegalTrace(f"{t.name}: batch and head cannot depend on a loop variable")
        if any(varies and part.divisor != 1 for part, varies in zip(self._parts, self._varies, strict=True)):
            raise IllegalTrace(f"{t.name}: a loop variable cannot be divided")
        self._tile = tile
        self._element_bytes = ELEMENT_BYTES[t.dtype]
        self._strides = (t.heads * t.head_bytes, t.head_bytes, t.row_bytes, self._element_bytes)
        self._extent = (t.rows, t.cols)
        self._tables: dict[tuple[int, int, int], list[int]] = {}
        scaled = list(zip(self._parts, self._strides, strict=True))
        self._constant_address = t.address + sum(part.offset * stride for part, stride in scaled)
        self._address_terms = [
            (part.symbol, part.divisor, part.multiplier * stride) for part, stride in scaled if part.symbol is not None
        ]
        self.sectors_repeat = all(step % SECTOR_BYTES == 0 for _, _, step in self._address_terms)
        # Where no tile of the grid is clipped and every step is whole sectors, all positions move the same bytes.
        uniform = self.sectors_repeat and all(
            part.symbol is None or (part.symbol in axes and part.at(max(0, axes[part.symbol] - 1)) + size <= extent)
            for part, size, extent in ((tile.row, tile.rows, t.rows), (tile.col, tile.cols, t.cols))
        )
        self.same_bytes = self._bytes(self._constant_address, tile.row.offset, tile.col.offset) if uniform else None
        self.step = sum(step for name, _, step in self._address_terms if name == loop_symbol)
        self.places_in_plane = {tile.row.symbol, tile.col.symbol}
        self.most_divisor = max((divisor for _, divisor, _ in self._address_terms), default=1)
        self._loop_symbol = loop_symbol

    def at(self, env: Environment) -> tuple[int, int]:
        """(bytes of whole sectors, address) where nothing depends on the innermost loop."""
        address = self._constant_address
        for name, divisor, step in self._address_terms:
            address += env[name] // divisor * step
        if self.same_bytes is not None:
            return self.same_bytes, address
        return self._bytes(address, _value(self._parts[2], env), _value(self._parts[3], env)), address

    def addresses(self, places: Mapping[str, Ints]) -> list[int]:
        """The address in every place of the grid, given the values of each coordinate; in a loop, where its variable is
        0."""
        count = len(next(iter(places.values())))
        found = np.full(count, self._constant_address, dtype=np.int64)
        for name, divisor, step in self._address_terms:
            if name != self._loop_symbol:
                found += places[name] // divisor * step
        return found.tolist()

    def over(self, env: Environment, stop: int) -> tuple[list[int], int, int]:
        """(bytes by value of the innermost loop variable, address where it is 0, bytes of address per step)."""
        batch, head, row, col = (
            part.offset if varies else _value(part, env) for part, varies in zip(self._parts, self._varies, strict=True)
        )
        row_step = self._parts[2].multiplier if self._varies[2] else 0
        col_step = self._parts[3].multiplier if self._varies[3] else 0
        address = self._address(batch, head, row, col)
        step = row_step * self._strides[2] + col_step * self._strides[3]
        # Blocks whose tiles lie alike in sectors and in the tensor share one table.
        key = (address % SECTOR_BYTES, *self._inside(row, col))
        table = self._tables.get(key)
        if table is None or len(table) < stop:
            length = max(stop, 2 * len(table or ()))
            table = self._tables[key] = [
                self._bytes(address + n * step, row + n * row_step, col + n * col_step) for n in range(length)
            ]
        return table, address, step

    def _bytes(self, address: int, row: int, col: int) -> int:
        # Tensors start on a sector, so the address alone says how a tile lies in its sectors.
        rows, cols = self._inside(row, col)
        return tile_bytes(address % SECTOR_BYTES, self._strides[2], rows, cols * self._element_bytes)

    def _inside(self, row: int, col: int) -> tuple[int, int]:
        rows, cols = self._extent[0] - row, self._extent[1] - col
        return max(0, min(rows, self._tile.rows)), max(0, min(cols, self._tile.cols))

    def _address(self, batch: int, head: int, row: int, col: int) -> int:
        per_batch, per_head, per_row, per_col = self._strides
        return self._tile.tensor.address + batch * per_batch + head * per_head + row * per_row + col * per_col


def _value(index: Index, env: Environment) -> int:
    return index.offset if index.symbol is None else index.at(env[index.symbol])


@dataclass
class RingPlan:
    """`buffers` that the loads `moves` (of one trip, in order) fill in turn."""

    buffers: int
    moves: list[int] = field(default_factory=list)


@dataclass
class BodyPlan:
    """The steps of a block or of one loop trip. `symbol`, `start` and `stop` are those of the loop, if it is one."""

    symbol: str | None
    start: int | Bound
    stop: int | Bound
    unmasked: int | Bound | None = None
    moves: list[Move] = field(default_factory=list)
    rings: list[RingPlan] = field(default_factory=list)
    prologue: list[tuple[int, int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def trips(self, coordinates: Environment) -> tuple[int, int, int]:
        """(where the loop of a block starts, where its masked trips do, where it stops)."""
        start, stop = bound_value(self.start, coordinates), bound_value(self.stop, coordinates)
        unmasked = stop if self.unmasked is None else bound_value(self.unmasked, coordinates)
        return start, min(stop, max(start, unmasked)), max(start, stop)


@dataclass
class LaunchPlan:
    """A launch ready to replay: its grid, the body of a block, and how many loads a block keeps track of."""

    name: str
    axes: tuple[tuple[str, int], ...]
    blocks: int
    body: BodyPlan
    slots: int


def plan_launch(trace: LaunchTrace, gpu: Gpu) -> LaunchPlan:
    """The plan of a launch on a machine."""
    planner = _Planner(gpu, dict(trace.axes), shared_tensors(trace))
    body = planner.body(trace.body, None, 0, 1, frozenset())
    return LaunchPlan(trace.name, trace.axes, trace.blocks, body, len(planner.slots))


def shared_tensors(trace: LaunchTrace) -> frozenset[str]:
    """The tensors of which more than one block, or one block more than once, may touch the same bytes: a position does
    not depend on every axis of the grid of more than one block, or it is both loaded and stored."""
    axes = {name for name, size in trace.axes if size > 1}
    loaded: set[str] = set()
    stored: set[str] = set()
    shared: set[str] = set()
    for record, loops in walk(trace.body):
        if not isinstance(record, Load | Store):
            continue
        (loaded if isinstance(record, Load) else stored).add(record.tile.tensor.name)
        used: dict[str, bool] = {}
        for part in (record.tile.batch, record.tile.head, record.tile.row, record.tile.col):
            if part.symbol is not None:
                used[part.symbol] = used.get(part.symbol, False) or (part.multiplier > 0 and part.divisor == 1)
        needed = axes | {loop.symbol for loop in loops}
        if not needed <= {name for name, distinct in used.items() if distinct}:
            shared.add(record.tile.tensor.name)
    return frozenset(shared | (loaded & stored))


class _Planner:
    def __init__(self, gpu: Gpu, axes: Mapping[str, int], shared: frozenset[str]) -> None:
        pipes = gpu.sm.pipes
        self._shared = shared
        self._axes = axes
        self._clock = gpu.sm.clock_hz
        self._pipes = pipes
        self._rates = {EXP: pipes.exp_per_clock["float32"], ALU: pipes.alu_per_clock["float32"]}
        self._sram_rate = gpu.sm.sram.bandwidth_bytes_per_clock * gpu.sm.clock_hz
        self.slots: dict[str, int] = {}

    def body(
        self, records: tuple[Record, ...], symbol: str | None, start: int | Bound, stop: int | Bound,
        awaited_before: frozenset[str],
    ) -> BodyPlan:  # fmt: skip
        plan = BodyPlan(symbol, start, stop)
        axes = self._axes
        if symbol is not None and not (isinstance(stop, Bound) and stop.symbol not in axes):
            axes = {**axes, symbol: most_of(stop, axes)}
        rings = self._rings(records, plan, axes)
        last_use = {
            name: position for position, record in enumerate(records) for name in _reads(record) if name in rings
        }
        loaded_here = {record.into for record in _all_loads(records)}
        awaited = set(awaited_before - loaded_here)
        for position, record in enumerate(records):
            if isinstance(record, Loop):
                inner = self.body(record.body, record.symbol, record.start, record.stop, frozenset(awaited))
                inner.unmasked = record.unmasked
                plan.steps.append((LOOP, inner))
                awaited -= {load.into for load in _all_loads(record.body)}
                continue
            if isinstance(record, Load):
                if record.ring is None:
                    plan.moves.append(Move(record.tile, symbol, axes, self._shared))
                    slot = self.slots.setdefault(record.into, len(self.slots))
                    plan.steps.append((ISSUE, slot, len(plan.moves) - 1))
                awaited.discard(record.into)
                continue
            for name in _reads(record):
                if name in awaited:
                    continue
                if name in rings:
                    plan.steps.append((RING_WAIT, *rings[name]))
                elif name in self.slots:
                    plan.steps.append((WAIT, self.slots[name]))
                awaited.add(name)
            if isinstance(record, Store):
                plan.moves.append(Move(record.tile, symbol, axes, self._shared))
                plan.steps.append((STORE, len(plan.moves) - 1))
            elif isinstance(record, Work):
                self._add_work(plan.steps, record)
            plan.steps += [(RELEASE, *rings[n]) for n in _reads(record) if n in rings and last_use[n] == position]
        return plan

    def _rings(
        self, records: tuple[Record, ...], plan: BodyPlan, axes: Mapping[str, int]
    ) -> dict[str, tuple[int, int]]:
        """Where each ring value is: (ring, its place among the ring's loads of one trip)."""
        places: dict[str, tuple[int, int]] = {}
        numbers: dict[str, int] = {}
        order: list[tuple[int, int]] = []
        for record in records:
            if isinstance(record, Load) and record.ring is not None:
                ring = numbers.setdefault(record.ring.name, len(numbers))
                if ring == len(plan.rings):
                    plan.rings.append(RingPlan(record.ring.buffers))
                place = (ring, len(plan.rings[ring].moves))
                plan.moves.append(Move(record.tile, plan.symbol, axes, self._shared))
                plan.rings[ring].moves.append(len(plan.moves) - 1)
                places[record.into] = place
                order.append(place)
        # What a loop starts on entry: the first loads of each ring, in the order in which the body names them.
        first = []
        for position, (ring, part) in enumerate(order):
            parts = len(plan.rings[ring].moves)
            first += [
                (trip, position, ring, trip * parts + part)
                for trip in range(plan.rings[ring].buffers)
                if trip * parts + part < plan.rings[ring].buffers
            ]
        plan.prologue = [(ring, number) for _, _, ring, number in sorted(first)]
        return places

    def _add_work(self, steps: list[Step], record: Work) -> None:
        pipe = {"tensor": TENSOR, "exp": EXP, "alu": ALU}[record.pipe]
        if pipe == TENSOR:
            rate = self._pipes.dot_flop_per_clock(record.dtype)
            pipe = TENSOR if self._pipes.dot_pipe(record.dtype) == "tensor" else ALU
        else:
            rate = self._rates[pipe]
        duration = duration_ps(record.amount, rate * self._clock)
        sram = duration_ps(record.sram_bytes, self._sram_rate)
        if steps and steps[-1][0] == WORK and steps[-1][1] == pipe:
            _, _, before, sram_before = steps.pop()
            duration, sram = before + duration, sram_before + sram
        if duration or sram:
            steps.append((WORK, pipe, duration, sram))


def _reads(record: Record) -> tuple[str, ...]:
    if isinstance(record, Work):
        return record.reads
    return (record.source,) if isinstance(record, Store) else ()


def _all_loads(records: tuple[Record, ...]) -> list[Load]:
    loads = []
    for record in records:
        if isinstance(record, Loop):
            loads += _all_loads(record.body)
        elif isinstance(record, Load):
            loads.append(record)
    return loads


def most_of(bound: int | Bound, axes: Mapping[str, int]) -> int:
    """The largest value of a loop bound over a grid."""
    if isinstance(bound, Bound):
        return int(bound.of_values(np.arange(axes[bound.symbol], dtype=np.int64)).max(initial=0))
    return bound


def bound_value(bound: int | Bound, env: Environment) -> int:
    """A loop bound of one block."""
    if isinstance(bound, Bound):
        return int(bound.of_values(np.array([env[bound.symbol]], dtype=np.int64))[0])
    return bound


__all__ = ["SECTOR_BYTES", "BodyPlan", "LaunchPlan", "Move", "bound_value", "most_of", "plan_launch"]
