"""Random traces: not those of the programs, but anything that `check_trace` lets through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from memsim.trace import Bound, Index, Ints, LaunchTrace, Load, Loop, Record, Ring, Store, Tensor, TileRef, Work

NAMES = ("w", "x", "y", "z")


def staircase(slope: int, offset: int, divisor: int, most: int) -> Bound:
    """A bound as causal loops have it: a clipped staircase in a symbol's values. The symbol is filled in later."""

    def of_values(values: Ints) -> Ints:
        return np.asarray(np.clip(values * slope + offset, 0, most * divisor) // divisor, dtype=np.int64)

    return Bound("", of_values)


_bounds = st.builds(staircase, st.integers(-2, 3), st.integers(-6, 12), st.integers(1, 4), st.integers(0, 9))


class _Drawer:
    """Draws one trace."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.symbols = 0
        self.tensors: list[Tensor] = []
        self.made: list[str] = []

    def trace(self) -> LaunchTrace:
        draw = self.draw
        names = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
        # One long axis at most: `count` treats those by period, and the walk is in plain Python.
        sizes = [draw(st.integers(1, 4)) for _ in names]
        if draw(st.booleans()):
            sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.integers(0, 90))
        self.sizes = dict(zip(names, sizes, strict=True))
        for number in range(draw(st.integers(1, 3))):
            self.tensors.append(
                Tensor(
                    f"T{number}",
                    draw(st.integers(1, 4)),
                    draw(st.integers(1, 6)),
                    draw(st.one_of(st.sampled_from((16, 32, 48)), st.integers(0, 60))),
                    draw(st.one_of(st.sampled_from((16, 32, 48)), st.integers(0, 40))),
                    draw(st.sampled_from(("float16", "float32"))),
                    512 * draw(st.integers(0, 3)),
                )
            )
        self.made = ["start"]
        body = self.body(tuple(names), (), 0)
        return LaunchTrace("random", tuple(self.sizes.items()), body, values=("start",))

    def body(self, axes: tuple[str, ...], loops: tuple[str, ...], depth: int) -> tuple[Record, ...]:
        draw = self.draw
        records: list[Record] = []
        for kind in draw(st.lists(st.sampled_from(("load", "store", "work", "loop", "ring")), min_size=1, max_size=4)):
            if kind == "loop" and depth < 3:
                records.append(self.loop(axes, loops, depth))
            elif kind == "ring" and loops:
                records += self.ring(axes, loops)
            elif kind == "load":
                name = f"v{len(self.made)}"
                records.append(Load(self.tile(axes, loops), name))
                self.made.append(name)
            elif kind == "store":
                records.append(Store(self.tile(axes, loops), draw(st.sampled_from(self.made))))
            else:
                pipe = draw(st.sampled_from(("tensor", "exp", "alu")))
                reads = tuple(draw(st.lists(st.sampled_from(self.made), max_size=2, unique=True)))
                amounts = st.integers(0, 4096)
                records.append(Work(pipe, draw(amounts), "work", "float16", reads, "", draw(amounts)))
        return tuple(records)

    def ring(self, axes: tuple[str, ...], loops: tuple[str, ...]) -> list[Record]:
        """One or two loads of a ring and a use of each, the uses in any order."""
        draw = self.draw
        ring = Ring(f"ring {len(self.made)}", draw(st.integers(1, 4)), 1024)
        count = draw(st.integers(1, 2))
        if ring.buffers < count:
            count = 1  # both held at once would never both be there
        names = []
        for _ in range(count):
            names.append(f"v{len(self.made)}")
            self.made.append(names[-1])
        loads: list[Record] = [Load(self.tile(axes, loops), name, ring) for name in names]
        uses: list[Record] = [
            Work("alu", draw(st.integers(0, 99)), "use", "float16", (name,)) for name in draw(st.permutations(names))
        ]
        return [*loads, *uses]

    def loop(self, axes: tuple[str, ...], loops: tuple[str, ...], depth: int) -> Loop:
        draw = self.draw
        symbol = f"loop{self.symbols}"
        self.symbols += 1
        start: int | Bound = draw(st.integers(0, 3))
        stop: int | Bound = draw(st.integers(0, 6))
        if draw(st.booleans()):
            depends_on = draw(st.sampled_from(axes + loops))
            stop = Bound(depends_on, draw(_bounds).of_values)
            if draw(st.booleans()):
                start = Bound(depends_on, draw(_bounds).of_values)
        return Loop(symbol, start, stop, self.body(axes, (*loops, symbol), depth + 1))

    def tile(self, axes: tuple[str, ...], loops: tuple[str, ...]) -> TileRef:
        draw = self.draw
        tensor = draw(st.sampled_from(self.tensors))
        sizes = st.one_of(st.sampled_from((8, 16)), st.integers(1, 20))
        rows, cols = draw(sizes), draw(sizes)
        return TileRef(
            tensor,
            self.inside(axes, tensor.batch),
            self.inside(axes, tensor.heads),
            self.anywhere(axes, loops, rows),
            self.anywhere(axes, loops, cols),
            rows,
            cols,
        )

    def inside(self, axes: tuple[str, ...], extent: int) -> Index:
        """A batch or head that exists."""
        draw = self.draw
        if draw(st.booleans()):
            return Index(offset=draw(st.integers(0, extent - 1)))
        symbol = draw(st.sampled_from(axes))
        divisor = max(draw(st.integers(1, 3)), -(-self.sizes[symbol] // extent))
        return Index(symbol, divisor, 1, 0)

    def anywhere(self, axes: tuple[str, ...], loops: tuple[str, ...], size: int) -> Index:
        """A row or column of a tile of this size, inside the tensor or beyond it; often tile by tile."""
        draw = self.draw
        symbol = draw(st.sampled_from((None, *axes, *loops)))
        if symbol is None:
            return Index(offset=draw(st.integers(0, 20)))
        if draw(st.booleans()):
            return Index(symbol, 1, size, 0)
        divisor = draw(st.integers(1, 3)) if symbol in axes else 1
        return Index(symbol, divisor, draw(st.integers(0, 20)), draw(st.integers(0, 9)))


@st.composite
def random_traces(draw: st.DrawFn) -> LaunchTrace:
    """Grids of up to four axes, loops up to three deep, bounds on any axis or loop, tiles anywhere."""
    return _Drawer(draw).trace()


def executed(trace: LaunchTrace) -> Iterator[tuple[Record, dict[str, int]]]:
    """Every record as often as a block executes it, with the values of all symbols then."""

    def body(records: tuple[Record, ...], values: dict[str, int]) -> Iterator[tuple[Record, dict[str, int]]]:
        for record in records:
            if isinstance(record, Loop):
                for value in range(bound(record.start, values), bound(record.stop, values)):
                    yield from body(record.body, {**values, record.symbol: value})
            else:
                yield record, values

    def bound(what: int | Bound, values: dict[str, int]) -> int:
        return int(what.of_values(np.array([values[what.symbol]]))[0]) if isinstance(what, Bound) else what

    def blocks(axes: tuple[tuple[str, int], ...]) -> Iterator[dict[str, int]]:
        if not axes:
            yield {}
            return
        (name, size), *slower = axes
        for others in blocks(tuple(slower)):
            for value in range(size):
                yield {name: value, **others}

    for values in blocks(trace.axes):
        yield from body(trace.body, values)


def tile_sectors(tile: TileRef, values: dict[str, int]) -> tuple[set[int], int]:
    """(sectors that a tile touches where the symbols have these values, bytes it asks for)."""
    tensor, element = tile.tensor, {"float16": 2, "bfloat16": 2, "float32": 4}[tile.tensor.dtype]

    def at(index: Index) -> int:
        value = 0 if index.symbol is None else values[index.symbol] // index.divisor * index.multiplier
        return value + index.offset

    first_col, cols = at(tile.col), min(at(tile.col) + tile.cols, tensor.cols) - at(tile.col)
    sectors, requested = set(), 0
    for row in range(at(tile.row), min(at(tile.row) + tile.rows, tensor.rows)):
        if cols > 0:
            number = ((at(tile.batch) * tensor.heads + at(tile.head)) * tensor.rows + row) * tensor.cols + first_col
            first = tensor.address + number * element
            sectors |= set(range(first // 32, (first + cols * element - 1) // 32 + 1))
            requested += cols * element
    return sectors, requested
