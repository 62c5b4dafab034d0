"""The accuracy table: how far simulated figures are from measured ones, kind by kind, and the bar that each is to meet.

Every row of a file counts that has the figure, none is left out. Times are compared in SM cycles where a row has them,
else in seconds. An error is |simulated − measured| over measured; of flash's HBM reads over what the launch must read,
where that is more: a launch that finds all in the L2 reads a few sectors only.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any

from memsim.measurements import Measurement
from memsim.tile import Tile

NAIVE = ("qk", "softmax", "pv")
LEAST_TILES = 3
"""Tiles of one problem from which on their order is judged."""

PEERS = (
    ("a cycle simulator on FlashAttention-3", 0.052),
    ("an analytical model on matrix products", 0.124),
    ("Accel-Sim 2.0", 0.134),
)
"""Mean errors of times that others have published, for scale."""


@dataclass(frozen=True)
class Judged:
    """A measured row beside what is simulated of it.

    `simulated` is by the fields of a launch and run (`memsim.columns`); `full_wave` says whether its blocks fill every
    SM as far as they fit, `spills` whether its kernel does (None: not known), `reads_once_bytes` and
    `writes_once_bytes` are what it must move.
    """

    row: Measurement
    simulated: Mapping[str, float]
    full_wave: bool
    spills: bool | None
    reads_once_bytes: int
    writes_once_bytes: int

    def pair(self, column: str) -> tuple[float, float] | None:
        """(simulated, measured) of a measured column, None where one of them is not there."""
        parts = [self.simulated.get(part) for part in _PARTS.get(column, (column,))]
        known = [part for part in parts if part is not None]
        if column not in self.row.values or len(known) < len(parts):
            return None
        return sum(known), self.row.values[column]

    @property
    def time(self) -> tuple[float, float] | None:
        """(simulated, measured) time, in cycles or else in seconds."""
        pairs = (self.pair(column) for column in ("sm_cycles", "duration_s", "event_time_s"))
        return next((pair for pair in pairs if pair is not None), None)

    @property
    def time_in_seconds(self) -> tuple[float, float] | None:
        pairs = (self.pair(column) for column in ("duration_s", "event_time_s"))
        return next((pair for pair in pairs if pair is not None), None)


_PARTS = {"sm_cycles": ("sm_cycles",), "duration_s": ("time_s",), "event_time_s": ("time_s", "launch_overhead_s")}


@dataclass(frozen=True)
class Line:
    """One line of the table. `mean` and `worst` are errors, but for an `order` Kendall's τ, and for a `pick` measured
    time over the best; the bars are what they may be at most (τ: at least), None where none is set. `of` says what is
    counted: rows or problems; `mean_in_seconds` is the mean error of times in seconds."""

    key: str
    name: str
    kind: str
    of: str
    count: int
    exact: int
    mean: float | None
    worst: float | None
    worst_at: str
    mean_bar: float | None
    worst_bar: float | None
    mean_in_seconds: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it meets its bars; None where there is nothing to judge."""
        if self.mean is None or self.worst is None or (self.mean_bar, self.worst_bar) == (None, None):
            return None
        return self._within(self.mean, self.mean_bar) and self._within(self.worst, self.worst_bar)

    def _within(self, value: float, bar: float | None) -> bool:
        if bar is None:
            return True
        return value >= bar if self.kind == "order" else value <= bar

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"met": self.met}


Sized = tuple[float, str]
_Error = Callable[[Judged], float | None]


@dataclass(frozen=True)
class _Spec:
    """A line that is an error over rows: which rows, and the error of one (None: it has none)."""

    key: str
    name: str
    takes: Callable[[Judged], bool]
    errors: Callable[[Judged], Iterable[float]]
    mean_bar: float | None
    worst_bar: float | None
    time: bool = False


def _relative(column: str, least: Callable[[Judged], int] = lambda _: 0) -> Callable[[Judged], Iterable[float]]:
    def errors(judged: Judged) -> Iterable[float]:
        pair = judged.pair(column)
        if pair is not None:
            yield from _error(*pair, least(judged))

    return errors


def _over_compulsory(*columns: str) -> Callable[[Judged], Iterable[float]]:
    def errors(judged: Judged) -> Iterable[float]:
        needed = judged.reads_once_bytes + judged.writes_once_bytes
        for column in columns:
            pair = judged.pair(column)
            if pair is not None and needed:
                yield abs(pair[0] - pair[1]) / needed

    return errors


def _error(simulated: float, measured: float, least: float = 0) -> Iterable[float]:
    """|simulated − measured| over measured, or over `least` where that is more; none over zero."""
    if simulated == measured:
        yield 0.0
    elif max(measured, least):
        yield abs(simulated - measured) / max(measured, least)


def _time(judged: Judged) -> Iterable[float]:
    if judged.time is not None:
        yield from _error(*judged.time)


def _reads_once(judged: Judged) -> int:
    return judged.reads_once_bytes


def _flash(judged: Judged) -> bool:
    return judged.row.kernel == "flash"


def _naive(judged: Judged) -> bool:
    return judged.row.kernel in NAIVE


SPECS = (
    _Spec(
        "fills_flash", "SRAM fills, flash without stack", lambda j: _flash(j) and j.spills is False,
        _relative("sram_fill_bytes"), 0.0, 0.0,
    ),
    _Spec(
        "stores_flash", "SRAM stores, flash without stack", lambda j: _flash(j) and j.spills is False,
        _relative("sram_store_bytes"), 0.0, 0.0,
    ),
    _Spec("fills_naive", "SRAM fills, naive (L1 hits included)", _naive, _relative("sram_fill_bytes"), 0.03, 0.15),
    _Spec(
        "hbm_reads_full", "HBM reads, flash full", lambda j: _flash(j) and not j.row.problem.causal,
        _relative("hbm_read_bytes", _reads_once), 0.03, 0.25,
    ),
    _Spec(
        "hbm_reads_causal", "HBM reads, flash causal", lambda j: _flash(j) and j.row.problem.causal,
        _relative("hbm_read_bytes", _reads_once), 0.10, None,
    ),
    _Spec(
        "hbm_reads_naive", "HBM reads, naive, over compulsory bytes", _naive, _over_compulsory("hbm_read_bytes"),
        0.05, 0.20,
    ),
    _Spec(
        "hbm_writes_naive", "HBM writes, naive, over compulsory bytes", _naive,
        _over_compulsory("hbm_write_bytes"), 0.05, 0.20,
    ),
    _Spec("time_waves", "time, at least one full wave", lambda j: j.full_wave, _time, 0.08, 0.25, time=True),
    _Spec("time_waves_flash", "of which flash", lambda j: j.full_wave and _flash(j), _time, None, None, time=True),
    _Spec("time_waves_naive", "of which naive", lambda j: j.full_wave and _naive(j), _time, None, None, time=True),
    _Spec("time_small", "time, less than a wave", lambda j: not j.full_wave, _time, 0.15, None, time=True),
)  # fmt: skip
"""The lines that are errors over rows, in the order of the table, with their bars."""
ORDER_BARS = (0.90, 0.75)
PICK_BARS = (1.03, 1.10)


def accuracy(judged: Sequence[Judged]) -> tuple[Line, ...]:
    """The lines of the table; those of which no row says anything have a count of 0."""
    return (*(_line(spec, judged) for spec in SPECS), *_lines_of_tiles(judged))


def _line(spec: _Spec, judged: Sequence[Judged]) -> Line:
    taken = [j for j in judged if spec.takes(j)]
    errors = [(error, j.row.place) for j in taken for error in spec.errors(j)]
    seconds = [error for j in taken if j.time_in_seconds for error in _error(*j.time_in_seconds)] if spec.time else []
    mean, worst, at = _summary(errors, max)
    return Line(
        spec.key, spec.name, "error", "rows", len(errors), sum(error == 0 for error, _ in errors), mean, worst, at,
        spec.mean_bar, spec.worst_bar, statistics.fmean(seconds) if seconds else None,
    )  # fmt: skip


def _summary(sized: Sequence[Sized], worst: Callable[..., Sized]) -> tuple[float | None, float | None, str]:
    if not sized:
        return None, None, ""
    value, at = worst(sized, key=lambda pair: pair[0])
    return statistics.fmean(size for size, _ in sized), value, at


def _lines_of_tiles(judged: Sequence[Judged]) -> Iterable[Line]:
    """The order of tiles within a problem, and the tile that the simulator picks there."""
    taus: list[Sized] = []
    picks: list[Sized] = []
    for name, times in _times_by_problem(judged):
        tau = kendall_tau([simulated for simulated, _ in times], [measured for _, measured in times])
        if tau is not None:
            taus.append((tau, name))
        best = min(measured for _, measured in times)
        picked = min(times, key=lambda pair: pair[0])[1]
        picks.append((picked / best, name))
    mean, worst, at = _summary(taus, min)
    name = "order of a problem's tiles (Kendall τ)"
    yield Line(
        "order", name, "order", "problems", len(taus), sum(tau == 1 for tau, _ in taus), mean, worst, at, *ORDER_BARS
    )
    mean, worst, at = _summary(picks, max)
    name = "time of the simulator's tile over the best"
    yield Line("pick", name, "pick", "problems", len(picks), sum(p == 1 for p, _ in picks), mean, worst, at, *PICK_BARS)


def _times_by_problem(judged: Sequence[Judged]) -> Iterable[tuple[str, list[tuple[float, float]]]]:
    """Flash's problems that have enough tiles, each with (simulated, measured) times, all of one unit."""
    found: dict[object, list[Judged]] = {}
    for j in judged:
        if _flash(j) and j.time is not None:
            row = j.row
            found.setdefault((row.source, row.gpu, row.problem, row.lse, row.cache_state), []).append(j)
    for group in found.values():
        tiles: dict[Tile, Judged] = {}
        for j in group:
            tiles.setdefault(j.row.tile, j)
        if len(tiles) < LEAST_TILES:
            continue
        columns = ("sm_cycles", "duration_s", "event_time_s")
        pairs = ([j.pair(column) for j in tiles.values()] for column in columns)
        times = next(([p for p in of if p is not None] for of in pairs if None not in of), None)
        if times is not None and all(measured > 0 for _, measured in times):
            yield group[0].row.name.split(",")[0].removeprefix("flash "), times


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's τ-b of two rankings (Kendall 1945): 1 alike, −1 reversed; None where one has a single rank."""
    balance = tied_one = tied_other = 0
    for (a, b), (c, d) in combinations(zip(one, other, strict=True), 2):
        balance += ((a > c) - (a < c)) * ((b > d) - (b < d))
        tied_one += a == c
        tied_other += b == d
    pairs = len(one) * (len(one) - 1) // 2
    untied = (pairs - tied_one) * (pairs - tied_other)
    return balance / sqrt(untied) if untied else None


@dataclass(frozen=True)
class Spread:
    """How far apart HBM reads of one launch are that was measured several times with nothing of it in the caches: the
    largest over the least, less 1; mean and worst over the launches."""

    causal: bool
    launches: int
    mean: float
    worst: float


def spreads(judged: Sequence[Judged]) -> tuple[Spread, ...]:
    """The hardware's own spread of flash's HBM reads, full and causal, where launches were measured more than once."""
    found = []
    for causal in (False, True):
        read: dict[object, list[float]] = {}
        for j in judged:
            row = j.row
            if _flash(j) and row.problem.causal == causal and row.cache_state != "warm":
                measured = row.values.get("hbm_read_bytes")
                if measured:
                    read.setdefault((row.gpu, row.problem, row.lse, row.tile), []).append(measured)
        apart = [max(values) / min(values) - 1 for values in read.values() if len(values) > 1]
        if apart:
            found.append(Spread(causal, len(apart), statistics.fmean(apart), max(apart)))
    return tuple(found)
