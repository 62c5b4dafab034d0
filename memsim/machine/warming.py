"""What the L2 is asked for in a leap: the same tiles as if all was replayed, in the order of slices of time.

Within a slice a tile that several slots pass is asked for once, from each side of the L2. So cost grows with the tiles
of a loop, not with those times the slots; who finds what is as exact as the slices are thin.
"""

from __future__ import annotations

from memsim.machine.levels import Memory
from memsim.machine.plan import ISSUE, LOOP, STORE, BodyPlan, Environment, bound_value
from memsim.machine.traced import MovesOver

Span = tuple[int, int]


class Warming:
    """Feeds an L2 with what slots touch as they go on."""

    def __init__(self, memory: Memory, body: BodyPlan, loop: BodyPlan, start: int, longest: int) -> None:
        assert memory.l2 is not None
        self._memory = memory
        self._l2 = memory.l2
        self._body = body
        self._loop = loop
        self._start = start
        self._longest = longest
        self._stores = {step[1] for step in loop.steps if step[0] == STORE}
        # Loads of a ring are so many trips ahead of their use.
        self._lead = [0] * len(loop.moves)
        for ring in loop.rings:
            for move in ring.moves:
                self._lead[move] = ring.buffers // len(ring.moves)
        self._loads_outside = [body.moves[step[2]] for step in body.steps if step[0] == ISSUE]
        self._stores_outside = [body.moves[step[1]] for step in body.steps if step[0] == STORE]
        self._spans: dict[tuple[int, int, int], tuple[MovesOver, list[Span]]] = {}
        self._once: list[tuple[bool, MovesOver, int, int, int]] = []
        self._at: dict[int, tuple[Environment, list[MovesOver], list[int]]] = {}

    def enter(self, slot: int, unit: Environment, stop: int, value: int | None, side: int) -> None:
        """A slot is at a trip of a unit, or (None) begins it."""
        moves = [(m.access, *m.over(unit, self._longest)) for m in self._loop.moves]
        if value is None:
            self._outside(self._loads_outside, unit, side, stores=False)
            seen = [self._start] * len(moves)
        else:
            seen = [min(stop, value + lead) for lead in self._lead]
        self._at[slot] = unit, moves, seen

    def knows(self, slot: int, unit: Environment) -> bool:
        """Whether a slot was last seen at this unit."""
        return slot in self._at and self._at[slot][0] is unit

    def reach(self, slot: int, stop: int, value: int, side: int) -> None:
        """A slot goes on up to a trip."""
        _, moves, seen = self._at[slot]
        for number, move in enumerate(moves):
            first, last = seen[number], min(stop, value + self._lead[number])
            if last <= first:
                continue
            seen[number] = last
            if move[0].shared and number not in self._stores:
                self._spans.setdefault((number, move[2], side), (move, []))[1].append((first, last))
            else:
                self._once.append((number in self._stores, move, first, last, side))

    def leave(self, slot: int, unit: Environment, stop: int, side: int) -> None:
        """A slot ends its unit."""
        if self.knows(slot, unit):
            self.reach(slot, stop, stop, side)
        elif stop > self._start:
            self.enter(slot, unit, stop, None, side)
            self.reach(slot, stop, stop, side)
        else:
            self._outside(self._loads_outside, unit, side, stores=False)
        self._outside(self._stores_outside, unit, side, stores=True)

    def flush(self, now: int) -> None:
        """The slice ends: what was touched in it is asked for."""
        l2 = self._l2
        now -= self._memory.hbm.latency_ps
        with self._memory.untimed():
            for stores, (access, table, address, step), first, last, side in self._once:
                n_bytes = sum(table[first:last])
                if not n_bytes:
                    continue
                if stores:
                    l2.write(now, access, address + first * step, n_bytes)
                else:
                    l2.read(now, access, address + first * step, n_bytes, side)
            for (_, _, side), ((access, table, address, step), spans) in self._spans.items():
                done = 0
                for first, last in sorted(spans):
                    for trip in range(max(first, done), last):
                        if table[trip]:
                            l2.read(now, access, address + trip * step, table[trip], side)
                    done = max(done, last)
        self._once.clear()
        self._spans.clear()

    def settle_in(self, unit: Environment, value: int, side: int, now: int) -> None:
        """What loops in the loop touch in a trip is there, as the trips before it left it."""
        now -= self._memory.hbm.latency_ps
        assert self._loop.symbol is not None
        within = {**unit, self._loop.symbol: value}
        with self._memory.untimed():
            for step in self._loop.steps:
                if step[0] != LOOP:
                    continue
                body: BodyPlan = step[1]
                start, stop = bound_value(body.start, within), bound_value(body.stop, within)
                stored = {body.moves[inner[1]].access.tensor for inner in body.steps if inner[0] == STORE}
                for move in body.moves if stop > start else []:
                    table, address, stride = move.over(within, stop)
                    for trip in range(start, stop):
                        if table[trip] and move.access.tensor in stored:
                            self._l2.write(now, move.access, address + trip * stride, table[trip])
                        elif table[trip]:
                            self._l2.read(now, move.access, address + trip * stride, table[trip], side)

    def _outside(self, moves: list, unit: Environment, side: int, *, stores: bool) -> None:  # type: ignore[type-arg]
        for move in moves:
            n_bytes, address = move.at(unit)
            self._once.append((stores, (move.access, [n_bytes], address, 0), 0, 1, side))
