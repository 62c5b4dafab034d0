"""Leaves blocks out of a replay once its blocks go alike, and accounts for them.

A launch's blocks are watched in stretches as they are handed out: as many as run at once, where all make the same
trips, else the blocks of whole planes. Once two spans of stretches took the same time and moved the same, stretches are
taken off the end of the launch: the blocks at hand go on, and those that follow them end as the launch's last ones
would. What those that are left out would have taken is added to the time.

What they fill and store is counted. What they do to the L2 is done to it at the end, without a clock, where what blocks
share stays in it: it is then as full and as dirty as if they had run. Where that outgrows the L2, who finds what is a
matter of time: HBM is asked for as much as in the span before, and only blocks that no longer drift apart are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev

from memsim.grid import BY_PLANES, GridOrder
from memsim.machine.l2 import LEAST_PIECE_BYTES
from memsim.machine.levels import Memory
from memsim.machine.units import Units
from memsim.machine.untimed import PassOver

ALIKE_TIME, ALIKE_BYTES, ALIKE_WRITTEN = 0.004, 0.01, 0.05
"""By how much two spans may differ, as shares: in time (half of it where blocks have no loop), in what HBM is asked
for, and in what it is given, which goes by pieces of the L2."""
SETTLED_SPREAD, LEAST_SPREAD = 1.02, 0.005
"""By what factor blocks may have drifted apart within a span, and what share of a stretch's time is no drift."""
NO_WAIT, FAR_APART = 0.003, 0.25
"""What share of their time blocks wait for HBM at most for that to be no matter, and the share of a stretch's time by
which blocks are apart that are handed out evenly (1 / √12 = 0.29) or nearly so."""
FEWEST, MOST, MOST_BLOCKS = 2, 8, 128
"""Stretches of a span where all blocks are alike; four times the most where blocks are short, having no loop."""
FEWEST_OF_L1 = 4096
"""Blocks of a launch, at least, of which some are left out where L1s have some of what blocks ask for: how much depends
on which SM takes which block, of which the few of a span say little."""
LEAST_MOVED_BYTES = 12 << 20
"""Of a launch's HBM bytes: where it is less, a piece or two of the L2 more or fewer would be a per cent."""
TAIL = 2
"""Stretches that are handed out after it is known how many are left out, for blocks to end as they do."""
_MISFIT, _ROOM, _SETTLED, _BACKLOG, _PIECES = 0.03, 0.8, 0.8, 0.05, 2
_CHUNKS, _FINELY, _IN_TURN, _REACH, _ANEW, _STRETCHES_OF_PLANES, _LEAST_SPAN = 8, 16, 64, 8, 0.5, 7.5, 4

Sums = Mapping[object, float]
"""What blocks add to, by name."""
READ, WRITTEN, STORED, HELD = "hbm read", "hbm written", "stored", "held by the L1"
QUEUED, UNEVEN = "queued", "at another pace than most"


@dataclass(frozen=True)
class Leap:
    """Blocks left out: the first, the one after the last, how long they would have taken, what they would have added to
    the sums, and whether the L2 has what they share."""

    first: int
    last: int
    time_ps: float
    sums: Sums
    in_l2: bool


@dataclass(frozen=True)
class _Seen:
    """A stretch: when its blocks were handed out, on average, how far from that, and the sums at its end."""

    mean_ps: float
    spread_ps: float
    sums: Sums


class Leaps:
    """Watches the blocks of a launch as they are handed out. `at_once` run at a time; `sums` says what blocks have
    added to so far, HBM's bytes among it; their SMs are on so many `sides` of the L2; `in_l1` says whether L1s have
    some of what they ask for, `spills` whether their threads spill."""

    def __init__(
        self, units: Units, order: GridOrder, at_once: int, memory: Memory, sums: Callable[[], Sums], *,
        sides: int, in_l1: bool, spills: bool,
    ) -> None:  # fmt: skip
        self._units, self._memory, self._sums = units, memory, sums
        self._at_once, self._sides, self._in_l1, self._spills = at_once, sides, in_l1, spills
        self._stretch, self._span, self._whole = _stretches(units, order, at_once)
        # Until every plane has had a block its tiles are new to the L2.
        planes = units.count // units.rows
        self._from = 0 if order.name in BY_PLANES else planes
        # Blocks among which tiles are asked for again.
        self._apart = max(self._stretch, min(units.count, planes if order.name not in BY_PLANES else 0))
        repeating = order.name in BY_PLANES and units.alike and units.loops
        self._cycle = units.plane * units.shared_by if repeating else 0
        # Of different tiles that blocks at hand share, for each row of planes.
        self._tile_bytes = 0.0
        self._shared = units.shared_tensors
        self._tail = TAIL if units.loops else 1
        self._seen: list[_Seen] = []
        self._times: list[int] = []
        self.leap: Leap | None = None

    @property
    def possible(self) -> bool:
        """Whether the launch has blocks enough to leave some out, and an order in which they repeat."""
        least = self._stretch * (2 * self._span + 1 + self._tail + self._whole)
        return 0 < least <= self._units.count >= (FEWEST_OF_L1 if self._in_l1 else 0)

    def see(self, block: int, now: int) -> Leap | None:
        """A block is handed out now; the blocks to leave out, once."""
        if self.leap is not None:
            return None
        self._times.append(now)
        if len(self._times) < self._stretch:
            return None
        self._seen.append(_Seen(fmean(self._times), pstdev(self._times), self._sums()))
        self._times.clear()
        if len(self._seen) <= 2 * self._span:
            return None
        before, middle, last = (self._seen[-1 - n * self._span] for n in (2, 1, 0))
        stretches = (self._units.count - block) // self._stretch - self._tail
        stretches -= stretches % self._whole
        if stretches < 1 or block < self._from or not self._alike_in_time():
            return None
        in_l2 = self._stays(block)
        earlier, later = (_added(a, b) for a, b in ((before, middle), (middle, last)))
        if not (self._alike_in_bytes(earlier, later, in_l2) and self._settled(middle, last, later, in_l2)):
            return None
        share = stretches / (2 * self._span)
        first, count = self._units.count - stretches * self._stretch, self._units.count
        sums = {name: share * value for name, value in _added(before, last).items()}
        if not in_l2:
            self._spread_over_planes(sums, first, count)
        self.leap = Leap(first, count, share * (last.mean_ps - before.mean_ps), sums, in_l2)
        return self.leap

    def _spread_over_planes(self, sums: dict[object, float], first: int, last: int) -> None:
        """Have the blocks left out ask HBM for what they share once for each row of planes at hand, as those before."""
        every = range(first // self._stretch * self._stretch, last, self._stretch)
        planes = sum(self._planes(at, min(last, at + self._stretch)) for at in every)
        if first > every[0]:
            planes -= self._planes(every[0], first)
        missed = planes * fmean(self._missed(n) for n in range(-2 * self._span, 0))
        names = [("missed", tensor) for tensor in self._shared]
        as_before = sum(sums.get(name, 0) for name in names)
        sums[READ] += missed - as_before
        for name in names if as_before else ():
            sums[name] = sums.get(name, 0) * missed / as_before

    def _alike_in_time(self) -> bool:
        """Whether two spans took the same time, and each stretch of one what the same of the other did."""
        seen, span = self._seen, self._span
        times = [seen[n].mean_ps - seen[n - 1].mean_ps for n in range(-2 * span, 0)]
        return _repeat(times, span, ALIKE_TIME if self._units.loops else ALIKE_TIME / 2)

    def _missed(self, n: int) -> float:
        """What the L2 lacked in a stretch of tiles that blocks share, for each row of planes that they are from."""
        # What blocks of the stretch before asked for meanwhile.
        first = (len(self._seen) + n - 1) * self._stretch
        now, then = (sum(of.sums.get(("missed", tensor), 0) for tensor in self._shared) for of in
                     (self._seen[n], self._seen[n - 1]))  # fmt: skip
        return (now - then) / self._planes(first, first + self._stretch)

    def _planes(self, first: int, last: int) -> int:
        """Over how many rows of planes with the same tiles blocks spread that run at once."""
        return (last - 1) // self._cycle - first // self._cycle + 1 if self._cycle else 1

    def pass_over(self, spill: Callable[[int], object]) -> None:
        """Do to the L2 what the blocks that were left out do, and count what HBM is asked for. `spill` does what a
        block does that runs out of registers."""
        leap, l2 = self.leap, self._memory.l2
        if leap is None or not leap.in_l2 or l2 is None:
            return
        filled, stored = self._units.totals(leap.first, leap.last)
        moved = max(1, sum(filled.values()) + stored)
        over = PassOver(l2, self._units, self._sides, spill)
        if self._in_l1:
            # Tiles that the L1s still have are old in the L2, or gone.
            reach = min(self._units.plane, _REACH * self._stretch)
            self._memory.hbm.owe(0, over.ask(max(0, leap.first - reach), leap.first).write_bytes)
        # Blocks without a loop store when they load; others have those beside them load between.
        some = (leap.last - leap.first) * l2.room_bytes // (_IN_TURN * moved)
        fine = self._at_once if self._units.loops else max(1, min(self._at_once, some))
        coarse = max(fine, (leap.last - leap.first) * l2.room_bytes // (_CHUNKS * moved))
        # The last ones, which leave the L2 as it is, block by block as they run.
        finely = leap.last - min(leap.last - leap.first, _FINELY * coarse)
        first = leap.first
        while first < leap.last:
            last = min(first + coarse, finely) if first < finely else min(first + fine, leap.last)
            ledger = over.units(first, last)
            self._memory.hbm.owe(ledger.read_bytes, ledger.write_bytes)
            first = last

    def _stays(self, block: int) -> bool:
        """Whether what blocks of a stretch share finds room in the L2, beside what they do not."""
        l2 = self._memory.l2
        if l2 is None:
            return False
        first = min(block, self._units.count - self._apart)
        shared, once = self._units.touched(first, first + self._apart)
        self._tile_bytes = shared / self._planes(first, first + self._apart)
        return shared + once // l2.partitions <= _ROOM * l2.room_bytes

    def _settled(self, middle: _Seen, last: _Seen, added: Sums, in_l2: bool) -> bool:
        """Whether blocks have drifted no further apart in the last span, or that is no matter: where what they share
        stays in the L2, and they do not wait for HBM or are as far apart as can be."""
        time_ps, span = last.mean_ps - middle.mean_ps, self._span
        each_ps = time_ps / span
        then, now = (fmean(seen.spread_ps for seen in of) for of in (self._seen[-2 * span : -span], self._seen[-span:]))
        if now <= max(SETTLED_SPREAD * then, LEAST_SPREAD * each_ps):
            return True
        waits = added[QUEUED] + added[UNEVEN] > NO_WAIT * self._at_once * time_ps
        return in_l2 and (not waits or now >= FAR_APART * each_ps)

    def _alike_in_bytes(self, before: Sums, after: Sums, in_l2: bool) -> bool:
        """Whether HBM was asked for the same in two spans, and what is stored is written, so that it will be."""
        then, stored, written = before[WRITTEN], after[STORED], after[WRITTEN]
        if abs(written - then) > ALIKE_WRITTEN * max(written, then):
            return False
        if self._memory.l2 is None:
            return True
        # An L2 writes by pieces, a few of which are much where little is moved in all.
        moved = (after[READ] + written) * self._units.count / (self._span * self._stretch)
        if moved < LEAST_MOVED_BYTES:
            return False
        if not in_l2:
            if self._from or (not self._units.alike and self._span < _LEAST_SPAN):
                return False
            missed = [self._missed(n) for n in range(-2 * self._span, 0)]
            # Tiles that most blocks found come anew with the next plane.
            found = fmean(missed) < _ANEW * self._tile_bytes and self._span * self._stretch < self._cycle
            short = 0 < self._cycle < _STRETCHES_OF_PLANES * self._stretch
            if found or short or not _repeat(missed, self._span, ALIKE_BYTES / 4):
                return False
        # More is written of what launches before have left, or spilled, which goes on.
        most = stored * (1 + _BACKLOG) + _PIECES * LEAST_PIECE_BYTES
        return written >= _SETTLED * stored and (self._spills or written <= most)


def _repeat(values: Sequence[float], span: int, alike: float) -> bool:
    """Whether the second half of them repeats the first: in all, and one by one as far as that could be chance."""
    apart = [after - before for before, after in zip(values[:span], values[span:], strict=True)]
    most = alike * abs(fmean(values))
    return abs(fmean(apart)) <= most and pstdev(apart) <= 2 * most * sqrt(span)


def _added(first: _Seen, last: _Seen) -> dict[object, float]:
    return {name: value - first.sums.get(name, 0) for name, value in last.sums.items()}


def _stretches(units: Units, order: GridOrder, at_once: int) -> tuple[int, int, int]:
    """(blocks of a stretch, stretches of a span, of how many stretches a leap is a multiple); no blocks where nothing
    repeats."""
    by_planes = order.name in BY_PLANES
    cycle = units.plane * units.shared_by
    stretches = units.count // at_once
    # A longer launch is judged by more of it.
    longer = min(MOST_BLOCKS // at_once, stretches // 16)
    if order.name == "persistent":
        return 0, 1, 1
    if not units.alike:
        of_planes = cycle * -(-at_once // cycle)
        return (of_planes, max(FEWEST, min(MOST, units.count // of_planes // 16)), 1) if by_planes else (0, 1, 1)
    if not units.loops:
        whole = min(-(-cycle // at_once), stretches // 8)
        return at_once, max(1, whole, min(4 * MOST, stretches // 16), 4 * longer), 1
    planes = units.count // units.rows
    if not by_planes and (units.ragged or planes % (order.planes or planes)):
        # The last rows of all planes come at once, or the last section has fewer.
        return 0, 1, 1
    most = max(FEWEST, min(MOST, stretches // 32), longer)
    if not by_planes:
        cycle = units.rows * order.planes if order.planes else planes
    if cycle <= at_once:
        return at_once, most, 1
    # Whole planes in whole stretches, as nearly as may be.
    misfits = {}
    for span in range(1, 2 * MOST + 1):
        cycles = max(1, round(span * at_once / cycle))
        misfits[span] = abs(span * at_once / (cycles * cycle) - 1.0)
    fitting = [span for span, misfit in misfits.items() if misfit <= _MISFIT]
    span = fitting[0] if fitting else min(misfits, key=lambda number: misfits[number])
    return at_once, span * max(1, -(-FEWEST // span), most // span), span
