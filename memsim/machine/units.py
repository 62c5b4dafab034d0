"""The places of a launch's grid, each with what its block moves: worked out for many places at once.

A launch of a hundred thousand blocks asks for the tiles of each of them; where they lie depends on the place alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from memsim.grid import BY_PLANES, GridOrder, Ints
from memsim.machine.l2 import Access
from memsim.machine.plan import ISSUE, LOOP, STORE, BodyPlan, LaunchPlan, Move
from memsim.trace import SECTOR_BYTES, Bound

# Places worked out together, and how many such groups are kept: blocks in flight are near one another.
_TOGETHER, _KEPT = 1024, 4


class Piece(NamedTuple):
    """Some trips of a loop taken together: the first, the trips whose tiles are not masked and those whose are, and the
    bytes that each move of the loop moves in them."""

    value: int
    plain: int
    masked: int
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoopOfUnit:
    """A loop of a block: its pieces, whether they are of several trips, whether all they move are loads, whether of two
    tiles that blocks share, for each of its moves (stores, access, address where the variable is 0, bytes of address
    from one value to the next), and the bytes of each in all."""

    pieces: tuple[Piece, ...]
    coarse: bool
    loads_only: bool
    pair: bool
    moves: tuple[tuple[bool, Access, int, int], ...]
    bytes: tuple[int, ...]


class Unit(NamedTuple):
    """A place in the grid: (address, bytes) of each move outside loops, and its loops in their order."""

    moves: tuple[tuple[int, int], ...]
    loops: tuple[LoopOfUnit, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """What one load or store of the program moves in a row of units: the address in each (in a loop where its variable
    is 0), the bytes in each in all; in a loop, the bytes of address from one value to the next, and (value, bytes) of
    each piece in one of the units."""

    stores: bool
    access: Access
    addresses: Ints
    bytes: Ints
    step: int = 0
    pieces: Callable[[int], list[tuple[int, int]]] | None = None


_Cut = tuple[tuple[Piece, ...], tuple[int, ...]]


class Units:
    """The units of a launch by their number in the grid order. `stride_of` says how many trips of a loop are taken
    together, given the bytes of a trip that other blocks ask for too."""

    def __init__(self, plan: LaunchPlan, order: GridOrder, stride_of: Any) -> None:
        self._plan = plan
        self._order = order
        self._stride_of = stride_of
        self.loops: list[BodyPlan] = [step[1] for step in plan.body.steps if step[0] == LOOP]
        self._stored = [{step[1] for step in body.steps if step[0] == STORE} for body in self.loops]
        self._stored_outside = {step[1] for step in plan.body.steps if step[0] == STORE}
        self._strides: dict[int, int] = {}
        self._pieces: dict[tuple[int, ...], _Cut] = {}
        self._groups: OrderedDict[int, list[Unit]] = OrderedDict()
        self.count = prod(size for _, size in plan.axes)
        self.plane = self._plane()

    def __getitem__(self, index: int) -> Unit:
        group, place = divmod(index, _TOGETHER)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._make(group * _TOGETHER)
            if len(self._groups) > _KEPT:
                self._groups.popitem(last=False)
        return found[place]

    @property
    def alike(self) -> bool:
        """Whether all blocks make the same trips."""
        return not any(isinstance(b, Bound) for body in self.loops for b in (body.start, body.stop, body.unmasked))

    @property
    def shared_by(self) -> int:
        """Over how many planes in a row blocks ask for the same tiles."""
        return max((move.most_divisor for move in self._moves()), default=1)

    @property
    def rows(self) -> int:
        """Units along the first axis of the grid."""
        return self._plan.axes[0][1]

    @property
    def ragged(self) -> bool:
        """Whether units may move different bytes outside their loops."""
        return any(move.same_bytes is None for move in self._plan.body.moves)

    def totals(self, first: int, last: int) -> tuple[dict[str, int], int]:
        """Bytes that the units from the first to before the last fill, of each tensor, and store."""
        plane = self.plane
        filled: dict[str, int] = {}
        whole, stored = 0, 0
        if self._order.name in BY_PLANES and all(move.sectors_repeat for move in self._moves()):
            # Of as many units in a row as a plane has, each of its places is one.
            whole = (last - first) // plane
        for times, start, stop in ((whole, first, first + plane), (1, first + whole * plane, last)):
            if times and start < stop:
                for moved in self.moved(start, stop):
                    n_bytes = times * int(moved.bytes.sum())
                    if moved.stores:
                        stored += n_bytes
                    else:
                        filled[moved.access.tensor] = filled.get(moved.access.tensor, 0) + n_bytes
        return filled, stored

    def touched(self, first: int, last: int) -> tuple[int, int]:
        """Bytes of different tiles that some of the units share, or other units with them, and of those they do not."""
        shared = once = 0
        for moved in self.moved(first, last):
            if not moved.access.shared:
                once += int(moved.bytes.sum())
                continue
            # Under a mask some blocks ask for fewer of them.
            largest: dict[int, int] = {}
            for address, n_bytes in zip(moved.addresses.tolist(), moved.bytes.tolist(), strict=True):
                largest[address] = max(n_bytes, largest.get(address, 0))
            shared += sum(largest.values())
        return shared, once

    @property
    def parts_sectors(self) -> bool:
        """Whether tiles that lie side by side may store parts of the same sector."""
        return any(
            access.row_bytes != access.row_stride
            and (access.row_bytes % SECTOR_BYTES or access.row_stride % SECTOR_BYTES)
            for access, stores in self.accesses()
            if stores
        )

    @property
    def shared_tensors(self) -> set[str]:
        """The tensors of which several blocks may ask for the same bytes."""
        return {access.tensor for access, _ in self.accesses() if access.shared}

    def accesses(self) -> Iterator[tuple[Access, bool]]:
        """How each load or store touches its tensor, and whether it stores."""
        for body, stored in zip((self._plan.body, *self.loops), (self._stored_outside, *self._stored), strict=True):
            for number, move in enumerate(body.moves):
                yield move.access, number in stored

    def _plane(self) -> int:
        """The units that lie in one plane, side by side in the grid: those that differ in which of its rows or columns
        they touch, or in their trips."""
        symbols = {symbol for move in self._moves() for symbol in move.places_in_plane}
        bounds = [b for body in self.loops for b in (body.start, body.stop, body.unmasked)]
        symbols |= {bound.symbol for bound in bounds if isinstance(bound, Bound)}
        sizes = [size for _, size in self._plan.axes]
        last = max((at for at, (name, _) in enumerate(self._plan.axes) if name in symbols), default=0)
        return prod(sizes[: last + 1])

    def _moves(self) -> Iterator[Move]:
        for body in (self._plan.body, *self.loops):
            yield from body.moves

    def moved(self, first: int, last: int) -> Iterator[Moved]:
        """What each load and store moves in the units from the first to before the last, as the program has them."""
        places = self._order.places(self._plan.axes, np.arange(first, last, dtype=np.int64))
        count = last - first
        number_of_loop = 0
        for step in self._plan.body.steps:
            if step[0] in (ISSUE, STORE):
                move = self._plan.body.moves[step[2] if step[0] == ISSUE else step[1]]
                addresses, sizes = _at(move, places)
                yield Moved(step[0] == STORE, move.access, _ints(addresses), _ints(sizes))
            elif step[0] == LOOP:
                at, body = number_of_loop, step[1]
                number_of_loop += 1
                trips = _ints(_bounds(body.stop, places, count)) - _ints(_bounds(body.start, places, count))
                for number, move in enumerate(body.moves):
                    if move.same_bytes is not None:
                        sizes_of = np.maximum(0, trips) * move.same_bytes
                    else:
                        sizes_of = _ints([self[index].loops[at].bytes[number] for index in range(first, last)])

                    def pieces(place: int, at: int = at, number: int = number) -> list[tuple[int, int]]:
                        return [(p.value, p.bytes[number]) for p in self[first + place].loops[at].pieces]

                    stores = number in self._stored[at]
                    addresses = move.addresses(places)
                    yield Moved(stores, move.access, _ints(addresses), sizes_of, move.step, pieces)

    def _make(self, first: int) -> list[Unit]:
        indices = np.arange(first, min(first + _TOGETHER, self.count), dtype=np.int64)
        places = self._order.places(self._plan.axes, indices)
        outer = [list(zip(*_at(move, places), strict=True)) for move in self._plan.body.moves]
        loops = [self._loops_of(number, places) for number in range(len(self.loops))]
        none: list[Any] = [()] * len(indices)
        return [
            Unit(moves, inner)
            for moves, inner in zip(
                zip(*outer, strict=True) if outer else none, zip(*loops, strict=True) if loops else none, strict=True
            )
        ]

    def _loops_of(self, number: int, places: dict[str, np.ndarray]) -> list[LoopOfUnit]:
        body = self.loops[number]
        count = len(next(iter(places.values())))
        starts, stops = _bounds(body.start, places, count), _bounds(body.stop, places, count)
        unmasked = stops if body.unmasked is None else _bounds(body.unmasked, places, count)
        addresses = [move.addresses(places) for move in body.moves]
        varying = [n for n, move in enumerate(body.moves) if move.same_bytes is None]
        loads = not self._stored[number]
        pair = len(body.moves) == 2 and all(move.access.shared for move in body.moves)
        found = []
        for place in range(count):
            start, stop = starts[place], max(starts[place], stops[place])
            tables: list[Any] = [None] * len(body.moves)
            if varying and stop > start:
                coordinates = {name: int(values[place]) for name, values in places.items()}
                for n in varying:
                    tables[n] = body.moves[n].over(coordinates, stop)[0]
            key = (number, start, min(stop, max(start, unmasked[place])), stop, *(id(t) for t in tables if t))
            known = self._pieces.get(key)
            if known is None:
                known = self._pieces[key] = self._cut(body, key, tables)
            pieces, totals = known
            moves = tuple(
                (n in self._stored[number], move.access, addresses[n][place], move.step)
                for n, move in enumerate(body.moves)
            )
            coarse = self._strides.get(number, 1) > 1
            loads_only = loads and all(all(piece.bytes) for piece in pieces)
            found.append(LoopOfUnit(pieces, coarse, loads_only, loads_only and pair, moves, totals))
        return found

    def _cut(self, body: BodyPlan, key: tuple[int, ...], tables: list[Any]) -> _Cut:
        number, start, unmasked, stop = key[:4]
        if stop <= start:
            return (), (0,) * len(body.moves)

        def moved(n: int, first: int, last: int) -> int:
            same = body.moves[n].same_bytes
            return same * (last - first) if same is not None else sum(tables[n][first:last])

        moves = range(len(body.moves))
        stride = self._strides.get(number)
        if stride is None:
            shared = sum(moved(n, start, start + 1) for n in moves if body.moves[n].access.shared)
            stride = self._strides[number] = self._stride_of(body, shared)
        pieces = []
        value = start
        while value < stop:
            # Strides end at the same trips in every block, so that blocks ask for the same pieces.
            end = min(stop, (value // stride + 1) * stride)
            plain = min(end, max(value, unmasked)) - value
            pieces.append(Piece(value, plain, end - value - plain, tuple(moved(n, value, end) for n in moves)))
            value = end
        return tuple(pieces), tuple(moved(n, start, stop) for n in moves)


def _at(move: Move, places: dict[str, np.ndarray]) -> tuple[list[int], list[int]]:
    """(addresses, bytes) of a move in every place."""
    addresses = move.addresses(places)
    if move.same_bytes is not None:
        return addresses, [move.same_bytes] * len(addresses)
    names = list(places)
    columns = zip(*(values.tolist() for values in places.values()), strict=True)
    return addresses, [move.at(dict(zip(names, column, strict=True)))[0] for column in columns]


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _bounds(bound: int | Bound, places: dict[str, np.ndarray], count: int) -> list[int]:
    if isinstance(bound, Bound):
        return [int(value) for value in bound.of_values(places[bound.symbol])]
    return [bound] * count
