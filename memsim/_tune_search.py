"""The search: candidates are replayed from the least that they can cost on, until none that is left can be among the
best.

What is found is what replaying all of them finds: a candidate is passed over only if the least that it can cost
(`memsim._tune_candidates`) is more than what the last of the best costs, and the least is never more than the replay's.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memsim._sweep_plan import SweepPlan
from memsim._sweep_points import row_of
from memsim._sweep_table import SweepRow
from memsim._tune_candidates import Surveyed
from memsim.sweep import HeldRows

if TYPE_CHECKING:
    from memsim._sweep_store import Results
    from memsim._sweep_workers import Workers

BY = ("time", "hbm-bytes")
"""What candidates are ranked by."""
Key = tuple[float, float, int, int]


def key_of(by: str, candidate: Surveyed, row: SweepRow) -> Key:
    """What a candidate's rank goes by: what was asked for, then the other, then the SRAM of a block, then the order."""
    figures = (row.time_s or 0.0, row.hbm_bytes or 0)
    first, second = figures if by == "time" else figures[::-1]
    return first, second, candidate.sram_bytes, candidate.number


def least_of(by: str, candidate: Surveyed) -> float:
    """The least that a replay comes to."""
    return candidate.least_time_s if by == "time" else candidate.least_hbm_bytes


@dataclass(frozen=True)
class Found:
    """The candidates that were replayed, the best first, each with its row; those that failed in the replay; how many
    were passed over because they cannot be among the best. `interrupted`: others were not come to."""

    ranked: tuple[tuple[Surveyed, SweepRow], ...]
    failed: tuple[tuple[Surveyed, SweepRow], ...]
    passed_over: int
    interrupted: bool = False


class Search:
    """One search. `best` is how many of the best are wanted; `rows` may hold some already."""

    def __init__(
        self, plan: SweepPlan, candidates: tuple[Surveyed, ...], by: str, best: int, rows: HeldRows | Results
    ) -> None:
        self._plan, self._by, self._best, self._rows = plan, by, best, rows
        self._by_number = {candidate.number: candidate for candidate in candidates}
        # Of equal bounds the larger tiles first: they fill less, and are mostly quicker.
        self._order = sorted(candidates, key=lambda c: (least_of(by, c), c.fill_bytes, c.number))
        self._done: dict[int, SweepRow] = {}
        self._costs: list[float] = []
        self._passed_over = 0

    def run(self, workers: Workers, progress: Callable[[int, int], None]) -> Found:
        """Search. What there is when it is interrupted is returned, if that is anything."""
        interrupted = False
        try:
            for number, row in self._rows.kept():
                if number in self._by_number:
                    self._take(number, row)
            self._say(progress)
            for batch in workers.rows(self._plan, self._left(), None):
                self._rows.add(batch)
                for number, values, _ in batch:
                    self._take(number, row_of(self._plan.point(number), values))
                self._say(progress)
            self._say(progress)
        except KeyboardInterrupt:
            if not self._costs:
                raise
            interrupted = True
        done = [(self._by_number[number], row) for number, row in self._done.items()]
        ranked = sorted((pair for pair in done if pair[1].status == "ok"), key=lambda pair: key_of(self._by, *pair))
        failed = tuple(pair for pair in done if pair[1].status != "ok")
        return Found(tuple(ranked), failed, self._passed_over, interrupted)

    def _left(self) -> Iterator[int]:
        """What is still to be replayed, as far as that is known when it is asked for."""
        for candidate in self._order:
            if self._is_hopeless(candidate):
                self._passed_over += candidate.number not in self._done
            elif candidate.number not in self._done:
                yield candidate.number

    def _is_hopeless(self, candidate: Surveyed) -> bool:
        """Whether it costs more than as many others as are wanted. What costs the same may still rank before them."""
        return len(self._costs) >= self._best and least_of(self._by, candidate) > self._costs[self._best - 1]

    def _take(self, number: int, row: SweepRow) -> None:
        self._done[number] = row
        if row.status == "ok":
            bisect.insort(self._costs, key_of(self._by, self._by_number[number], row)[0])

    def _say(self, progress: Callable[[int, int], None]) -> None:
        progress(len(self._done) + self._passed_over, len(self._order))
