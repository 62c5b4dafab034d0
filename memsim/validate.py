"""Simulated against measured: every row and column of a set of measurements, and what is claimed of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memsim._simulated import Simulated, Simulator
from memsim.claims import Claim, claim_of, spills
from memsim.columns import COMPARED, KERNELS, MEASURED, TIMES
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.machine.replay import Progress
from memsim.measurements import Measurement, Measurements, raise_first

VALIDATE_SCHEMA = "memsim.validate/1"
MOST_OPERATIONS_UNASKED = 1_000_000
"""Tile operations of all replays together up to which times are simulated without being asked for."""


@dataclass(frozen=True)
class Check:
    """One column of one row. `relation` is how measured is to stand to simulated (memsim.claims) and `why` the reason
    where that is less than exact; `holds` is None where nothing is claimed. `detail` is what else is known of it."""

    column: str
    simulated: float | None
    measured: float
    relation: str
    holds: bool | None
    why: str = ""
    detail: str = ""

    @property
    def exact(self) -> bool:
        return self.simulated == self.measured

    @property
    def error(self) -> float | None:
        """(simulated − measured) / measured; None where that is no number."""
        if self.simulated is None:
            return None
        if self.simulated == self.measured:
            return 0.0
        return (self.simulated - self.measured) / self.measured if self.measured else None


@dataclass(frozen=True)
class Row:
    """One measurement and its checks."""

    measurement: Measurement
    checks: tuple[Check, ...]

    @property
    def missed(self) -> bool:
        return any(check.holds is False for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        m = self.measurement
        return {
            "line": m.line,
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
    """All rows and what follows from them. `without_times` is how many tile operations were not replayed."""

    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...]
    failed_launches: tuple[Measurement, ...]
    unknown_columns: tuple[str, ...]
    other_kernels: tuple[str, ...]
    unchecked_columns: tuple[str, ...]
    without_times: int = 0

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
    progress: Progress | None = None,
    before_replay: Callable[[int], None] | None = None,
) -> Validation:
    """Compare each row with what the simulator says of the same launch.

    `gpu` stands for the machine of every row; without it each row names its own. `times` replays every launch whose
    times were measured; else only if all replays together are small. `before_replay` is told how many tile operations
    there are to replay. Registers and SRAM that were measured decide the blocks per SM. Raises `MemsimError` for rows
    that no machine could run, such as a tile of 24 rows.
    """
    simulator = Simulator(gpu)
    measured = [row for row in measurements.rows if not row.error]
    launches: list[Simulated] = []
    faults: list[str] = []
    for done, row in enumerate(measured):
        try:
            launches.append(simulator.launch(row))
        except MemsimError as error:
            faults += [f"line {row.line}: {fault}" if row.line else fault for fault in error.faults]
        if progress is not None:
            progress("rows", done + 1, len(measured))
    raise_first(faults)
    timed = {launch.key: launch for launch, row in zip(launches, measured, strict=True) if set(TIMES) & {*row.values}}
    operations = sum(launch.counts.tile_operations for launch in timed.values())
    replayed: dict[Any, dict[str, float]] = {}
    if times or operations <= MOST_OPERATIONS_UNASKED:
        if before_replay is not None:
            before_replay(operations)
        for done, (key, launch) in enumerate(timed.items()):
            replayed[key] = launch.times()
            if progress is not None:
                progress("replays", done + 1, len(timed))
    rows = tuple(
        Row(row, tuple(_checks(row, launch, replayed.get(launch.key, {}))))
        for row, launch in zip(measured, launches, strict=True)
    )
    return Validation(
        rows,
        tuple(_summaries(rows)),
        tuple(row for row in measurements.rows if row.error),
        measurements.unknown_columns,
        measurements.other_kernels,
        tuple(name for name in COMPARED if not any(name in row.values for row in measured)),
        0 if replayed or not timed else operations,
    )


def _checks(row: Measurement, launch: Simulated, times: dict[str, float]) -> Iterable[Check]:
    simulated = launch.figures | times
    for name in COMPARED:
        if name not in row.values:
            continue
        parts = [simulated.get(part) for part in MEASURED[name].result]
        known = [part for part in parts if part is not None]
        figure = sum(known) if len(known) == len(parts) else None
        claim = claim_of(name, row, launch.compiled_stack_bytes)
        check = _check(name, figure, row, claim)
        if name == "sram_bytes" and launch.refusal and claim.relation != "none":
            # The simulator refuses a tile that ran.
            check = replace(check, relation=claim.relation, holds=False, detail=launch.refusal)
        yield check


def _check(name: str, simulated: float | None, row: Measurement, claim: Claim) -> Check:
    measured, rounded_by = row.values[name], row.rounded.get(name, 0.0)
    if simulated is None:
        return Check(name, None, measured, "none", None, _nothing(name))
    detail = f"measured is rounded by up to {rounded_by:g}" if rounded_by else ""
    return Check(
        name, simulated, measured, claim.relation, claim.holds(simulated, measured, rounded_by), claim.why, detail
    )


def _nothing(column: str) -> str:
    """Why a row has no simulated figure. Of times a `Validation` says so itself."""
    if column in TIMES:
        return ""
    known = column in ("registers", "stack_bytes")
    return "no compiled kernel with this tile is known" if known else "the simulator refuses the tile"


def _spill(row: Row) -> Spill:
    m = row.measurement
    excess = {
        check.column: int(check.measured - check.simulated) for check in row.checks
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
