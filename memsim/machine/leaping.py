"""What replays that leave things out have in common: sums of what was replayed, and of what was left out.

No simulated time passes in a leap, so that what is on its way, and how pipes are taken, is the same after it as before.
What would have passed is added in the end, to time, waits, busy pipes and bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import simpy

from memsim.counting import count
from memsim.gpu import Gpu
from memsim.grid import GridOrder
from memsim.machine.clock import PS_PER_S, duration_ps
from memsim.machine.levels import Memory
from memsim.machine.plan import LaunchPlan
from memsim.machine.sm import PIPE_NAMES, SRAM
from memsim.machine.timing import WAITED_FOR, Progress
from memsim.machine.traced import TracedRun
from memsim.machine.work import fills_by_tensor
from memsim.trace import LaunchTrace

EVEN = 0.004
UNEVEN = 0.03
SIMILAR = 0.03
OVERFULL = 1.03
SATURATED = 0.97
FEW_READS = 0.02
MOST_SLOWER = 2.0
"""How far two halves of a window may differ, at first and after some tries, and how far two windows. A memory that is
asked for more than this share of what it can give piles up requests, so that nothing is settled."""


class Counters(NamedTuple):
    """Where the replay's sums stand, or what a window added to them."""

    now: int
    replayed: float
    slot_ps: int
    turns: int
    waited_ps: list[int]
    stalled_ps: int
    busy_ps: list[int]
    memories_ps: tuple[int, ...]
    hbm_bytes: tuple[int, ...]
    missed: dict[str, int]
    # Trips that slots are in: for how long, and how much they weigh.
    in_trips: list[tuple[int, float]]

    def since(self, before: Counters, pace: float = 0.0) -> Counters:
        """What was added since; a picosecond at least. Trips count as far as they are done at a pace."""
        return Counters(
            max(1, self.now - before.now),
            self.replayed - self.undone(pace) - before.replayed + before.undone(pace),
            self.slot_ps - before.slot_ps,
            self.turns - before.turns,
            [a - b for a, b in zip(self.waited_ps, before.waited_ps, strict=True)],
            self.stalled_ps - before.stalled_ps,
            [a - b for a, b in zip(self.busy_ps, before.busy_ps, strict=True)],
            tuple(a - b for a, b in zip(self.memories_ps, before.memories_ps, strict=True)),
            tuple(a - b for a, b in zip(self.hbm_bytes, before.hbm_bytes, strict=True)),
            {name: missed - before.missed.get(name, 0) for name, missed in self.missed.items()},
            [],
        )

    @property
    def overfull(self) -> bool:
        """Whether a memory was asked for more than it can give, so that requests pile up and nothing is settled."""
        return any(ps > OVERFULL * self.now for ps in self.memories_ps)

    def undone(self, pace: float) -> float:
        """What is not yet done of the trips that slots are in."""
        return sum(max(0.0, weight - elapsed / pace) for elapsed, weight in self.in_trips) if pace else 0.0


class Leaping(TracedRun):
    """One launch on the machine, of which parts are left out."""

    def __init__(
        self, env: simpy.Environment, gpu: Gpu, memory: Memory, plan: LaunchPlan, per_sm: int,
        progress: Progress | None, order: GridOrder, trace: LaunchTrace,
    ) -> None:  # fmt: skip
        super().__init__(env, gpu, memory, plan, per_sm, progress, order)
        self._trace = trace
        self._at_work = 0
        self._slot_ps = 0
        self._slots_at = int(env.now)
        self.leaps = 0
        # Trips, or units, that were replayed and that were left out: together all there are.
        self.replayed = 0.0
        self.left_out = 0.0
        self._left_out_hbm = [0.0, 0.0]
        self._left_out_waits = [0.0] * len(WAITED_FOR)
        self._left_out_busy = [0.0] * len(PIPE_NAMES)
        self._left_out_stall_ps = 0.0
        self._turns = 0
        # Whether what pipes were busy with, left out, has the copies at the SRAM's port in it.
        self._window_has_ports = False

    def _leave_out(self, length_ps: float, slot_ps: float, since: Counters, at_work: int) -> None:
        """Have time pass, in which slots wait as they did in a window."""
        self.leaps += 1
        self._left_out_ps += round(length_ps)
        for cause, ps in enumerate(since.waited_ps):
            self._left_out_waits[cause] += ps / (since.now * at_work) * slot_ps
        self._left_out_stall_ps += since.stalled_ps / since.now * length_ps

    def _slower(self, since: Counters, share: float, read_bytes: float, length_ps: float, pile_ps: float) -> float:
        """How much longer a stretch takes than at the pace of a window, if HBM was busy with `share` of its time at
        that pace: where HBM is the limit, its bytes are the time. Where next to nothing is read, nobody waits for HBM,
        and what is written piles up."""
        hbm = self._memory.hbm
        in_window = since.memories_ps[0] / since.now
        if read_bytes < FEW_READS * share * length_ps * hbm.pipe.bandwidth_bytes_per_s / PS_PER_S:
            hbm.pipe.free_ps = max(hbm.pipe.free_ps, int(self._env.now)) + round(pile_ps)
            return 1.0
        if in_window < SATURATED:
            read_ps = read_bytes * PS_PER_S / hbm.pipe.bandwidth_bytes_per_s
            return min(MOST_SLOWER, max(1.0, share if in_window > SATURATED / 2 else read_ps / length_ps))
        others = [busy / (since.now * len(self._sms)) for busy in since.busy_ps]
        others += [busy / since.now for busy in since.memories_ps[1:]]
        return min(MOST_SLOWER, max(1 / MOST_SLOWER, share / min(1.0, in_window), *others))

    def _count_slots(self, now: int) -> None:
        self._slot_ps += self._at_work * (now - self._slots_at)
        self._slots_at = now

    def _counters(self, now: int) -> Counters:
        sms = self._sms
        self._count_slots(now)
        busy = [sum(sm.busy_ps[pipe] for sm in sms) for pipe in range(len(PIPE_NAMES))]
        stalled = sum(sm.stalled_ps for sm in sms)
        counts = self._memory.counts()
        missed = {name: tally.missed_bytes for name, tally in self._memory.tallies.items()}
        return Counters(
            now, self.replayed, self._slot_ps, self._turns, list(self._waited_ps), stalled, busy, counts[2:],
            counts[:2], missed, self._in_trips(now),
        )  # fmt: skip

    def _in_trips(self, now: int) -> list[tuple[int, float]]:
        """The trips that slots are in."""
        return []

    def _account(self) -> None:
        """Add what was left out. Fills and stores are those of the trace, counted; without an L2 all are HBM's."""
        counts = count(self._trace)
        fills, stores = counts.sram_fill_bytes - counts.sram_zero_fill_bytes, counts.sram_store_bytes
        moved = fills - self._fill_bytes + stores - self._store_bytes
        sm = self._sms[0]
        if not self._window_has_ports:
            sm.busy_ps[SRAM] += duration_ps(max(0, moved), self._sram_rate)
        if self._memory.l2 is None:
            self._memory.hbm.owe(fills - self._fill_bytes, stores - self._store_bytes)
        else:
            self._account_l2(moved)
        self._fill_bytes, self._store_bytes = fills, stores
        for pipe, ps in enumerate(self._left_out_busy):
            sm.busy_ps[pipe] += round(ps)
        for cause, waits in enumerate(self._left_out_waits):
            self._waited_ps[cause] += round(waits)
        sm.stalled_ps += round(self._left_out_stall_ps)

    def _account_l2(self, moved: int) -> None:
        """Have the L2's counts be those of all requests: of a leap it saw what was new in each slice, or nothing."""
        memory, (read, written) = self._memory, self._left_out_hbm
        assert memory.l2 is not None and memory.l2_pipe is not None
        memory.l2_pipe.busy_ps += memory.l2_pipe.duration_ps(max(0, moved))
        memory.hbm.owe(round(read), round(written))
        asked = fills_by_tensor(self._trace)
        for name, tally in memory.tallies.items():
            tally.read_bytes = asked[name]
