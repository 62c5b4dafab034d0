"""How much there is to do in a launch: the loop that its time goes into, and its trips, unit by unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memsim.counting import count
from memsim.grid import GridOrder
from memsim.machine.plan import LOOP, STORE, WORK, BodyPlan, Environment, LaunchPlan, shared_tensors
from memsim.trace import Bound, LaunchTrace, Load, Loop, Record, walk


class Work:
    """The trips of a launch's main loop. The weight of a trip is 1, or where loops lie in it, the trips that these
    make, and for what else there is in it as much as it weighs against one of those."""

    def __init__(self, plan: LaunchPlan, loop: BodyPlan, trace: LaunchTrace) -> None:
        self.loop = loop
        assert isinstance(loop.start, int)
        self.start = loop.start
        sizes = dict(plan.axes)
        self._symbol: str | None = None
        if isinstance(loop.stop, Bound):
            self._symbol = loop.stop.symbol
            stops = loop.stop.of_values(np.arange(sizes[self._symbol], dtype=np.int64))
        else:
            stops = np.array([loop.stop], dtype=np.int64)
        self._stops = np.maximum(stops, self.start)
        self.uniform = bool((self._stops == self._stops[:1]).all())
        self._stop_list: list[int] = self._stops.tolist()
        self.longest = int(self._stops.max(initial=self.start))
        inner = [step[1] for step in loop.steps if step[0] == LOOP]
        self.nested = bool(inner)
        values = np.arange(self.longest, dtype=np.int64)
        weights: npt.NDArray[np.float64] = np.full(self.longest, _own_weight(loop, inner))
        for body in inner:
            weights = weights + np.maximum(0, _over(body.stop, values) - _over(body.start, values))
        self._weights: list[float] = weights.tolist()
        self._prefix = np.concatenate(([0.0], np.cumsum(weights)))
        of_units = self._prefix[self._stops] - self._prefix[self.start]
        units = max(1, plan.blocks)
        self.units = units
        self.total = float(of_units.sum() * (units // max(1, len(of_units))))
        self.mean = self.total / units
        trips = max(1, int((self._stops - self.start).sum()) * (units // max(1, len(of_units))))
        self.mean_weight = max(1e-9, self.total / trips)
        self.mean_trips = trips / units
        self._busy = _busy(plan.body)
        # What inner loops load and no one stores: it is new in every unit.
        stored = {body.moves[step[1]].access.tensor for body in inner for step in body.steps if step[0] == STORE}
        tensors = {r.tile.tensor.name: r.tile.tensor for r, _ in walk(trace.body) if isinstance(r, Load)}
        self.stored_bytes = count(trace).sram_store_bytes
        names = {move.access.tensor for body in inner for move in body.moves} - stored
        self.new_bytes = {name: tensors[name].total_bytes / units for name in names & tensors.keys()}
        self.inner_bytes = sum(tensors[name].total_bytes for name in names | stored if name in tensors) / units
        alone, alone_inside = _alone(loop), sum(_alone(body) for body in inner)
        # What a weight of 1 takes a block that no one hinders.
        self.alone_ps = (alone + alone_inside * (self.mean_weight - 1)) / self.mean_weight if inner else float(alone)
        self._busy_of_trip = _busy(loop)
        self._busy_inside = [sum(_busy(body)[pipe] for body in inner) for pipe in range(4)]

    def stop(self, unit: Environment) -> int:
        """Where the loop of a unit ends."""
        return self._stop_list[unit[self._symbol] if self._symbol is not None else 0]

    def weight(self, value: int) -> float:
        """The weight of a trip."""
        return self._weights[value]

    def between(self, value: int, stop: int) -> float:
        """The weight of trips from one on up to another."""
        return float(self._prefix[stop] - self._prefix[value])

    def value_with(self, stop: int, left: float) -> int:
        """The trip after which about so much weight is left, one trip at least."""
        at = float(self._prefix[stop]) - left
        value = int(np.searchsorted(self._prefix, at))
        if value > 0 and at - self._prefix[value - 1] < self._prefix[min(value, len(self._prefix) - 1)] - at:
            value -= 1
        return max(self.start, min(stop - 1, value))

    def busy_of(self, weight: float, units: int) -> list[float]:
        """What pipes are busy with in trips of so much weight, and in so many units outside the loop."""
        trips = weight / self.mean_weight
        inside = weight - trips
        parts = zip(self._busy_of_trip, self._busy_inside, self._busy, strict=True)
        return [trips * own + inside * other + units * outside for own, other, outside in parts]


def main_loop(plan: LaunchPlan, trace: LaunchTrace) -> Work | None:
    """The loop of a block that its time goes into, if there is one that leaps can be made in: it begins at a number and
    ends at one or where an axis says; in it lie no loops but such as make as many trips in every block."""
    sizes = dict(plan.axes)
    found: list[Work] = []
    for step in plan.body.steps:
        if step[0] == LOOP:
            loop: BodyPlan = step[1]
            if not isinstance(loop.start, int) or (isinstance(loop.stop, Bound) and loop.stop.symbol not in sizes):
                continue
            inner = [s[1] for s in loop.steps if s[0] == LOOP]
            bounds = [bound for body in inner for bound in (body.start, body.stop)]
            if any(isinstance(b, Bound) and b.symbol != loop.symbol for b in bounds):
                continue
            if any(s[0] == LOOP for body in inner for s in body.steps):
                continue
            found.append(Work(plan, loop, trace))
    return max(found, key=lambda work: work.total, default=None)


def fills_by_tensor(trace: LaunchTrace) -> dict[str, int]:
    """What memory is read for each tensor: its fills, less the zeros that boxes are filled up with."""
    plain = replace(trace, body=tuple(_plain(record) for record in trace.body))
    return dict(count(plain).fill_bytes_by_tensor)


def _plain(record: Record) -> Record:
    if isinstance(record, Loop):
        return replace(record, body=tuple(_plain(inner) for inner in record.body))
    return replace(record, tile=replace(record.tile, box=False)) if isinstance(record, Load) else record


def _own_weight(loop: BodyPlan, inner: list[BodyPlan]) -> float:
    if not inner:
        return 1.0
    work = _alone(loop) / max(1, sum(_alone(body) for body in inner))
    return max(work, _move_bytes(loop) / max(1, sum(_move_bytes(body) for body in inner)), 1e-3)


def _move_bytes(body: BodyPlan) -> int:
    return sum(move.access.rows * move.access.row_bytes for move in body.moves)


def _over(bound: int | Bound, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return bound.of_values(values) if isinstance(bound, Bound) else np.full(len(values), bound, dtype=np.int64)


def _busy(body: BodyPlan) -> list[int]:
    """What pipes are busy with in one pass through a body, loops in it left out."""
    busy = [0, 0, 0, 0]
    for step in body.steps:
        if step[0] == WORK:
            busy[step[1]] += step[2]
            busy[3] += step[3]
    return busy


def _alone(body: BodyPlan) -> int:
    return sum(max(step[2], step[3]) for step in body.steps if step[0] == WORK)


def shared_in_flight(trace: LaunchTrace, plan: LaunchPlan, order: GridOrder, slots: int) -> float:
    """Bytes that blocks ask for in common, of all planes that slots are at work on at once."""
    shared = shared_tensors(trace)
    tensors = {r.tile.tensor.name: r.tile.tensor for r, _ in walk(trace.body) if isinstance(r, Load)}
    rows = plan.axes[0][1]
    planes = max(1, plan.blocks // max(1, rows))
    row_by_row = order.name in ("heads-fast", "longest-first")
    at_once = min(planes, slots if row_by_row else max(order.planes, slots // max(1, rows) + 2))
    in_flight = 0.0
    for name in shared & tensors.keys():
        tensor = tensors[name]
        of_head = tensor.total_bytes / max(1, tensor.batch * tensor.heads)
        in_flight += min(tensor.total_bytes, max(of_head, at_once * tensor.total_bytes / planes))
    return in_flight


def tile_operations(plan: LaunchPlan) -> float:
    """About how many steps it takes to replay all of a launch."""
    return plan.blocks * _steps_of(plan.body, dict(plan.axes))


def _steps_of(body: BodyPlan, sizes: dict[str, int]) -> float:
    steps = float(len(body.steps))
    for step in body.steps:
        if step[0] == LOOP:
            loop: BodyPlan = step[1]
            start, stop = (_values(bound, sizes) for bound in (loop.start, loop.stop))
            assert loop.symbol is not None
            within = {**sizes, loop.symbol: max(1, int(stop.max(initial=1)))}
            steps += float(np.maximum(0.0, stop.mean() - start.mean())) * _steps_of(loop, within)
    return steps


def _values(bound: int | Bound, sizes: dict[str, int]) -> npt.NDArray[np.int64]:
    return _over(bound, np.arange(sizes[bound.symbol] if isinstance(bound, Bound) else 1, dtype=np.int64))
