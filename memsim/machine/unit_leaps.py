"""Replays a launch of very many short blocks alike (naive's `qk` and `softmax`) without replaying every block.

In a window all blocks are replayed; when what a block takes is settled, a stretch of the grid is left out, whole waves
of it, and its time added. Only where there is no L2, whose state such launches change all along.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.leaping import EVEN, UNEVEN, Counters, Leaping
from memsim.machine.levels import Memory
from memsim.machine.plan import LaunchPlan
from memsim.machine.sm import Sm
from memsim.machine.timing import Progress
from memsim.trace import LaunchTrace

SETTLING, MEASURED, TAIL = 2, 6, 3
MOST_MEASURED = 2048
"""Blocks of each slot before a window, in it, and at the end; and in it at most."""


class UnitLeaps(Leaping):
    """One launch on the machine, most of its blocks left out."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int,
        progress: Progress | None, order: GridOrder, trace: LaunchTrace,
    ) -> None:  # fmt: skip
        super().__init__(env, gpu, memory, plan, per_sm, progress, order, trace)
        self._window_has_ports = True
        self._blocks = self._handout.blocks
        self._measured = MEASURED
        self._seen = 0
        self._check_at = 0
        self._measuring = False
        self._tries = 0
        self._sums = [[0.0, 0], [0.0, 0]]
        self._before: Counters | None = None
        self._samples: dict[int, int] = {}

    def _slot(self, sm: Sm) -> Generator[simpy.Event, Any, None]:
        env = self._env
        number = self._at_work
        self._at_work += 1
        self._check_at = self._at_work * SETTLING
        last = -1
        slots = [(0, 0, 0, False)] * self._plan.slots
        while (block := self._handout.take()) is not None:
            now = int(env.now)
            taken = self._samples.get(number, 0)
            if self._measuring and last >= 0 and taken < self._measured:
                half = self._sums[2 * taken >= self._measured]
                half[0] += now - last
                half[1] += 1
                self._samples[number] = taken + 1
            last = now
            self._seen += 1
            self.replayed += 1
            if self._seen >= self._check_at:
                self._control(now)
            yield from self._block(sm, block, slots)
        self._count_slots(int(env.now))
        self._at_work -= 1

    def _account(self) -> None:
        if self.replayed + self.left_out != self._blocks:
            raise AssertionError(f"{self.replayed} blocks replayed and {self.left_out} left out, of {self._blocks}")
        super()._account()

    def _control(self, now: int) -> None:
        """Begin to measure, or leave blocks out if what was measured is settled."""
        if not self._measuring:
            self._measuring = True
            self._measured = self._whole_periods()
            self._samples = {}
            self._sums = [[0.0, 0], [0.0, 0]]
            self._before = self._counters(now)
            self._check_at = self._seen + self._at_work * (self._measured + 1)
            return
        assert self._before is not None
        self._measuring = False
        self._check_at = self._seen + self._at_work * SETTLING
        (first, of_first), (second, of_second) = self._sums
        if not of_first or not of_second:
            return
        self._tries += 1
        uneven = abs(first / of_first / (second / of_second) - 1)
        since = self._counters(now).since(self._before)
        if since.overfull or uneven > (EVEN if self._tries < 3 else UNEVEN):
            self._check_at = self._seen
            return
        self._tries = 0
        self._leap((first + second) / (of_first + of_second), since, now)

    def _whole_periods(self) -> int:
        """So many blocks of each slot that all of them together are whole planes, or rows: those at an edge differ."""
        axes = self._plan.axes
        sizes = [1, axes[0][1], axes[0][1] * (axes[1][1] if len(axes) > 1 else 1)]
        period = max(size for size in sizes if size <= MOST_MEASURED)
        periods = -(-MEASURED * self._at_work // period)
        return max(MEASURED, round(periods * period / self._at_work))

    def _leap(self, unit_ps: float, since: Counters, now: int) -> None:
        begin = self._handout.given
        most = self._blocks - begin - TAIL * self._at_work
        waves = most // self._at_work
        if waves < SETTLING + MEASURED:
            return
        blocks = waves * self._at_work
        self._handout.skip(blocks)
        self.left_out += blocks
        length = unit_ps * waves
        self._leave_out(length, length * self._at_work, since, self._at_work)
        for pipe, ps in enumerate(since.busy_ps):
            self._left_out_busy[pipe] += ps / max(1.0, since.replayed) * blocks
