"""One measured row against what is simulated of its launch: column by column, with what is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from memsim._accuracy import Judged
from memsim._simulated import Simulated
from memsim.claims import Claim, claim_of, spills
from memsim.columns import COMPARED, HBM, MEASURED, TIMES
from memsim.gpu import Gpu
from memsim.measurements import Measurement


@dataclass(frozen=True)
class Check:
    """One column of one row. `relation` is how measured is to stand to simulated (memsim.claims) and `why` the reason
    where that is less than exact; `holds` is None where nothing is claimed. `detail` is what else is known of it.
    `counted` is the figure that the claim is on, where a replay simulates less: what the L1 gives back."""

    column: str
    simulated: float | None
    measured: float
    relation: str
    holds: bool | None
    why: str = ""
    detail: str = ""
    counted: float | None = None

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


def takes_replay(row: Measurement, gpu: Gpu) -> bool:
    """Whether something was measured of it that takes a replay: times, and where there is an L2 the bytes of HBM."""
    return bool({*TIMES, *(HBM if gpu.l2 is not None else ())} & {*row.values})


def judged_of(row: Measurement, launch: Simulated, replayed: Mapping[str, float]) -> Judged:
    """A row as the accuracy table takes it; `replayed` is what a replay says, if there is one."""
    per_sm = row.values.get("blocks_per_sm", launch.figures.get("blocks_per_sm", 1))
    return Judged(
        row,
        _simulated(launch, replayed),
        launch.blocks >= launch.gpu.sm.count * per_sm,
        spills(row, launch.compiled_stack_bytes),
        launch.reads_once_bytes,
        launch.writes_once_bytes,
    )


def _simulated(launch: Simulated, replayed: Mapping[str, float]) -> dict[str, float]:
    """The figures of a launch. Without a replay nothing is known of the HBM bytes below an L2."""
    unknown = () if launch.gpu.l2 is None else HBM
    return {name: value for name, value in launch.figures.items() if name not in unknown} | dict(replayed)


def checks_of(row: Measurement, launch: Simulated, replayed: Mapping[str, float]) -> Iterable[Check]:
    """What is compared of a row, column by column, and what is claimed."""
    simulated = _simulated(launch, replayed)
    for name in COMPARED:
        if name not in row.values:
            continue
        parts = [simulated.get(part) for part in MEASURED[name].result]
        known = [part for part in parts if part is not None]
        figure = sum(known) if len(known) == len(parts) else None
        claim = claim_of(name, row, launch.compiled_stack_bytes)
        counted = launch.figures.get(name) if claim.relation != "none" else None
        check = _check(name, figure, row, claim, counted)
        if name == "sram_bytes" and launch.refusal and claim.relation != "none":
            # The simulator refuses a tile that ran.
            check = replace(check, relation=claim.relation, holds=False, detail=launch.refusal)
        yield check


def _check(
    name: str, simulated: float | None, row: Measurement, claim: Claim, counted: float | None
) -> Check:  # fmt: skip
    measured, rounded_by = row.values[name], row.rounded.get(name, 0.0)
    if simulated is None:
        return Check(name, None, measured, "none", None, _nothing(name))
    details = [f"measured is rounded by up to {rounded_by:g}"] if rounded_by else []
    less = counted if counted is not None and counted != simulated else None
    if less is not None:
        details.append(f"{less:,.0f} are asked for, what the L1 gives back included")
    holds = claim.holds(simulated if less is None else less, measured, rounded_by)
    return Check(name, simulated, measured, claim.relation, holds, claim.why, "; ".join(details), less)


def _nothing(column: str) -> str:
    """Why a row has no simulated figure. Of times a `Validation` says so itself."""
    if column in (*TIMES, *HBM):
        return ""
    known = column in ("registers", "stack_bytes")
    return "no compiled kernel with this tile is known" if known else "the simulator refuses the tile"
