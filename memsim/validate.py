"""Simulated against measured: every row and column of a set of measurements, and what is claimed of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memsim._accuracy import PEERS, Judged, Line, Spread, accuracy, spreads
from memsim._checks import Check, checks_of, judged_of, takes_replay
from memsim._replays import replay_rows
from memsim._simulated import Simulated, Simulator
from memsim.claims import spills
from memsim.columns import COMPARED, KERNELS
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.machine import Progress
from memsim.measurements import Measurement, Measurements, raise_first

__all__ = ["Check", "Row", "Spill", "Summary", "Validation", "validate"]

VALIDATE_SCHEMA = "memsim.validate/1"
MOST_OPERATIONS_UNASKED = 1_000_000
"""Tile operations of all replays together up to which they are made without being asked for."""
MOST_LAUNCHES_UNASKED = 16
"""Launches up to which they are: each takes a moment, however small it is."""


@dataclass(frozen=True)
class Row:
    """One measurement and its checks."""

    measurement: Measurement
    checks: tuple[Check, ...]
    judged: Judged

    @property
    def missed(self) -> bool:
        return any(check.holds is False for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        m = self.measurement
        return {
            "line": m.line,
            **({"file": m.source} if m.source else {}),
            "name": m.name,
            "kernel": m.kernel,
            "gpu": m.gpu,
            "problem": vars(m.problem),
            "tile": {name: getattr(m, name) for name in ("block_m", "block_n", "num_warps", "num_stages", "load_path")},
            "lse": m.lse,
            "grid_order": m.grid_order,
            "cache_state": m.cache_state,
            "checks": [vars(check) | {"exact": check.exact, "error": check.error} for check in self.checks],
        }


@dataclass(frozen=True)
class Summary:
    """One column over all rows of one kernel. Errors are sizes of `Check.error`, over the rows that have one; `claimed`
    counts the rows on which something is claimed, `missed` those on which it does not hold."""

    kernel: str
    column: str
    rows: int
    exact: int
    claimed: int
    missed: int
    mean_error: float | None
    median_error: float | None
    worst_error: float | None
    worst_line: int | None
    worst_row: str | None


@dataclass(frozen=True)
class Spill:
    """What a row that spills moves beyond its tiles, beside its stack and its spill instructions (None: not given)."""

    line: int
    row: str
    fill_excess_bytes: int | None
    store_excess_bytes: int | None
    stack_bytes: int | None
    load_instructions: int | None
    store_instructions: int | None


@dataclass(frozen=True)
class Validation:
    """All rows and what follows from them. `without_times` is how many tile operations were not replayed; `without`
    has rows judged by a model that lacks the named parts."""

    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...]
    failed_launches: tuple[Measurement, ...]
    unknown_columns: tuple[str, ...]
    other_kernels: tuple[str, ...]
    unchecked_columns: tuple[str, ...]
    without_times: int = 0
    without: Mapping[frozenset[str], tuple[Judged, ...]] = field(default_factory=dict)

    @property
    def accuracy(self) -> tuple[Line, ...]:
        """The accuracy table."""
        return accuracy([row.judged for row in self.rows])

    @property
    def accuracy_without(self) -> dict[frozenset[str], tuple[Line, ...]]:
        """The table of a model that lacks some parts, by these."""
        return {names: accuracy(judged) for names, judged in self.without.items()}

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """How far HBM reads of flash lie apart where launches were measured more than once."""
        return spreads([row.judged for row in self.rows])

    @property
    def missed(self) -> tuple[Row, ...]:
        """The rows on which a claim does not hold."""
        return tuple(row for row in self.rows if row.missed)

    def count(self, holds: bool, relation: str | None = None) -> int:
        """Checks whose claim holds, or does not; of this relation only, if one is given."""
        return sum(
            check.holds is holds and relation in (None, check.relation) for row in self.rows for check in row.checks
        )

    @property
    def spills(self) -> tuple[Spill, ...]:
        """The rows whose kernels are known to spill, and whose fills or stores were measured."""
        found = (_spill(row) for row in self.rows if spills(row.measurement))
        return tuple(s for s in found if (s.fill_excess_bytes, s.store_excess_bytes) != (None, None))

    def as_dict(self) -> dict[str, Any]:
        """The validation as JSON-ready data, with its schema first."""
        return {
            "schema": VALIDATE_SCHEMA,
            "holds": not self.missed,
            "claims": {"held": self.count(True), "missed": self.count(False)},
            "unknown_columns": list(self.unknown_columns),
            "other_kernels": list(self.other_kernels),
            "unchecked_columns": list(self.unchecked_columns),
            "not_replayed_tile_operations": self.without_times,
            "accuracy": [line.as_dict() for line in self.accuracy],
            "accuracy_without": {
                "+".join(sorted(names)): [line.as_dict() for line in lines]
                for names, lines in self.accuracy_without.items()
            },
            "published_mean_errors_of_times": [{"of": of, "mean": mean} for of, mean in PEERS],
            "spreads_of_hbm_reads": [vars(spread) for spread in self.spreads],
            "failed_launches": [{"line": m.line, "name": m.name, "error": m.error} for m in self.failed_launches],
            "spills": [vars(spill) for spill in self.spills],
            "summaries": [vars(summary) for summary in self.summaries],
            "rows": [row.as_dict() for row in self.rows],
        }


def validate(
    measurements: Measurements,
    *,
    gpu: Gpu | None = None,
    times: bool = False,
    without: Sequence[frozenset[str]] = (),
    jobs: int = 1,
    keep: bool = False,
    known: Sequence[Mapping[str, float]] | None = None,
    known_without: Mapping[frozenset[str], Sequence[Mapping[str, float]]] | None = None,
    progress: Progress | None = None,
    before_replay: Callable[[int], None] | None = None,
) -> Validation:
    """Compare each row with what the simulator says of the same launch.

    `gpu` stands for the machine of every row; without it each row names its own. `times` replays every launch whose
    times or HBM bytes were measured; else only if all replays together are small. `before_replay` is told how many tile
    operations there are to replay, in `jobs` processes; with `keep` replays are kept for the next time. `without` names
    sets of parts of the model (`memsim.machine.PARTS`), and replays everything without each. `known` has what replays
    say of each row without an error, in place of making them, `known_without` what those without parts say. Registers
    and SRAM that were measured decide the blocks per SM. Raises `MemsimError` for rows that no machine could run, such
    as a tile of 24 rows.
    """
    measured = [row for row in measurements.rows if not row.error]
    launches = _launches(measured, gpu, progress)
    wanted = [n for n, row in enumerate(measured) if takes_replay(row, launches[n].gpu)]
    operations = sum(launches[n].counts.tile_operations for n in wanted)
    small = operations <= MOST_OPERATIONS_UNASKED and len(wanted) <= MOST_LAUNCHES_UNASKED
    asked = times or bool(without)
    replayed: list[Mapping[str, float]] = [{} for _ in measured]
    judged_without = {}
    if known is not None:
        replayed = list(known)
        judged_without = {
            names: tuple(map(judged_of, measured, launches, of)) for names, of in (known_without or {}).items()
        }
    elif asked or small:
        if before_replay is not None and wanted:
            before_replay(operations * (1 + len(without)))

        def replays(names: frozenset[str]) -> list[Mapping[str, float]]:
            of_rows: list[Mapping[str, float]] = [{} for _ in measured]
            found = replay_rows(
                [measured[n] for n in wanted], [launches[n] for n in wanted], without=names, jobs=jobs, keep=keep,
                progress=progress,
            )  # fmt: skip
            for n, figures in zip(wanted, found, strict=True):
                of_rows[n] = figures
            return of_rows

        replayed = replays(frozenset())
        judged_without = {
            names: tuple(map(judged_of, measured, launches, replays(names))) for names in dict.fromkeys(without)
        }
    rows = tuple(
        Row(row, tuple(checks_of(row, launch, figures)), judged_of(row, launch, figures))
        for row, launch, figures in zip(measured, launches, replayed, strict=True)
    )
    return Validation(
        rows,
        tuple(_summaries(rows)),
        tuple(row for row in measurements.rows if row.error),
        measurements.unknown_columns,
        measurements.other_kernels,
        tuple(name for name in COMPARED if not any(name in row.values for row in measured)),
        0 if known is not None or asked or small else operations,
        judged_without,
    )


def _launches(rows: Sequence[Measurement], gpu: Gpu | None, progress: Progress | None) -> list[Simulated]:
    simulator = Simulator(gpu)
    launches: list[Simulated] = []
    faults: list[str] = []
    for done, row in enumerate(rows):
        try:
            launches.append(simulator.launch(row))
        except MemsimError as error:
            at = row.place.split(" (")[0]
            faults += [f"{at}: {fault}" if row.line else fault for fault in error.faults]
        if progress is not None:
            progress("rows", done + 1, len(rows))
    raise_first(faults)
    return launches


def _spill(row: Row) -> Spill:
    m = row.measurement
    excess = {
        check.column: int(check.measured - (check.counted or check.simulated)) for check in row.checks
        if check.column in ("sram_fill_bytes", "sram_store_bytes") and check.simulated is not None
    }  # fmt: skip
    counted = (m.values.get(name) for name in ("stack_bytes", "spill_load_instructions", "spill_store_instructions"))
    return Spill(
        m.line, m.name, excess.get("sram_fill_bytes"), excess.get("sram_store_bytes"),
        *(None if value is None else int(value) for value in counted),
    )  # fmt: skip


def _summaries(rows: Sequence[Row]) -> Iterable[Summary]:
    for kernel in KERNELS:
        for column in COMPARED:
            of_column = [
                (row.measurement, check) for row in rows if row.measurement.kernel == kernel
                for check in row.checks if check.column == column and check.simulated is not None
            ]  # fmt: skip
            if of_column:
                yield _summary(kernel, column, of_column)


def _summary(kernel: str, column: str, checks: Sequence[tuple[Measurement, Check]]) -> Summary:
    sized = [(abs(check.error), row) for row, check in checks if check.error is not None]
    worst = max(sized, key=lambda pair: pair[0], default=None)
    errors = [size for size, _ in sized]
    return Summary(
        kernel,
        column,
        rows=len(checks),
        exact=sum(check.exact for _, check in checks),
        claimed=sum(check.holds is not None for _, check in checks),
        missed=sum(check.holds is False for _, check in checks),
        mean_error=statistics.fmean(errors) if errors else None,
        median_error=statistics.median(errors) if errors else None,
        worst_error=worst[0] if worst else None,
        worst_line=worst[1].line if worst else None,
        worst_row=worst[1].name if worst else None,
    )
