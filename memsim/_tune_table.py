"""What tuning found: the candidates in their order, why each is where it is, and all of it as JSON (`memsim.tune/1`)
and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TextIO

from memsim._sweep_table import Provenance
from memsim._tune_candidates import Refusal
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.tile import Tile

TUNE_SCHEMA = "memsim.tune/1"


@dataclass(frozen=True)
class Candidate:
    """A tile that was tried. `over_best` is its cost (time or HBM bytes) over that of the best; `replayed_by` as in a
    `memsim.Launch`.

    Of an algorithm with several launches, `blocks_per_sm` to `registers_from` are those of the launch of which an SM
    holds the fewest blocks, `sram_bytes` (of a block) the largest. `last_wave` is how full the last wave is,
    `occupancy` the resident warps over those that an SM can hold, `spills` "yes", "no", or "may" where the kernel is
    not compiled and has all registers that a thread can have. Times are None where nothing was replayed.
    """

    rank: int
    """Its place, the best being 1."""
    tile: Tile
    """The fields of its `Tile`."""
    over_best: float | None
    """Its cost (time or HBM bytes) over that of the best."""
    time_s: float | None
    """Predicted seconds, with what starting the launches takes; None where nothing was replayed."""
    hbm_bytes: int
    """Bytes read from and written to HBM."""
    sram_fill_bytes: int
    """Bytes that arrive in the SMs."""
    l2_hit_rate: float | None
    """Share of what the L2 was asked for which it had."""
    over_compulsory: float | None
    """HBM bytes over the compulsory ones."""
    bound: str | None
    """The resource that held it back."""
    waiting_for_memory: float | None
    """Share of the used SMs' time in which no block could go on for want of data."""
    replayed_by: str | None
    """"instructions" or "trace"."""
    blocks_per_sm: int
    """Blocks that an SM holds."""
    limited_by: str
    """What keeps a further block out."""
    waves: int
    """Waves of the launch."""
    last_wave: float
    """How full the last of them is."""
    occupancy: float
    """Resident warps over those that an SM can hold."""
    registers: int | None
    """32-bit registers a thread."""
    registers_from: str
    """Where `registers` come from."""
    sram_bytes: int
    """SRAM of a block."""
    stack_bytes: int | None
    """Bytes a thread that the compiled kernel spills; None where that is not known."""
    spills: str
    """"yes", "no" or "may"."""
    notes: tuple[str, ...] = ()
    """What a reader must know of it."""

    @property
    def why(self) -> str:
        """What held it back, in sentences."""
        from memsim._report_format import BOUND_BY, percent

        said = []
        if self.bound is not None:
            waits = f"; its math waits for memory {percent(self.waiting_for_memory)} of the time"
            said.append(f"held back by {BOUND_BY[self.bound]}{waits}.")
        blocks = "1 block per SM" if self.blocks_per_sm == 1 else f"{self.blocks_per_sm} blocks per SM"
        waves = "1 wave" if self.waves == 1 else f"{self.waves:,} waves, the last"
        said.append(
            f"{blocks}, limited by {self.limited_by} ({percent(self.occupancy)} of the warps that an SM can hold); "
            f"{waves} {percent(self.last_wave)} full."
        )
        if self.spills == "yes":
            said.append(f"spills {self.stack_bytes} B a thread." if self.stack_bytes else "would spill registers.")
        if self.spills == "may":
            said.append("may spill: it has all registers that a thread can have.")
        return " ".join(f"{sentence[0].upper()}{sentence[1:]}" for sentence in said)

    def as_dict(self) -> dict[str, Any]:
        """The candidate as JSON-ready data."""
        return asdict(self) | {"why": self.why}


@dataclass(frozen=True)
class Tuning:
    """What tuning found. `ranked` are all candidates that were tried, the best first; of those beyond the first
    `wanted` others may have been passed over that are better than they.

    `candidates` is how many there were; `refusals` say how many could not run or were not compared, by reason, and
    `passed_over` how many were not tried because the least that they could cost is more than what the best do. `gpu` is
    the name as given, `by` what is ranked by, `block_sram_bytes` the limit on a block's SRAM if there was one;
    `interrupted`: there are others that were not come to.
    """

    algorithm: str
    gpu: str
    gpu_options: dict[str, str]
    problem: dict[str, Any]
    lse: bool
    inputs: str
    l2_state: str
    by: str
    counted_only: bool
    block_sram_bytes: int | None
    axes: Mapping[str, tuple[str, ...]]
    candidates: int
    wanted: int
    ranked: tuple[Candidate, ...]
    passed_over: int
    refusals: tuple[Refusal, ...]
    interrupted: bool = False
    provenance: Provenance = field(default=Provenance(), repr=False)
    machine: Gpu | None = field(default=None, repr=False)

    @property
    def best(self) -> tuple[Candidate, ...]:
        """The best, as many as were wanted."""
        return self.ranked[: self.wanted]

    @property
    def tile(self) -> Tile:
        """The best tile. Raises `MemsimError` if none was tried."""
        if not self.ranked:
            raise MemsimError("no candidate was tried, so none is the best.")
        return self.ranked[0].tile

    @property
    def notes(self) -> tuple[str, ...]:
        """What holds for all of the best."""
        shared = [{*candidate.notes} for candidate in self.best]
        return tuple(note for note in (self.best[0].notes if self.best else ()) if all(note in of for of in shared))

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON-ready data, with its schema first; of the candidates the best."""
        left_out = ("ranked", "provenance", "machine", "axes", "refusals")
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        return {
            "schema": TUNE_SCHEMA,
            **shared,
            "memsim_version": self.provenance.memsim_version,
            "simulator_digest": self.provenance.simulator_digest,
            "gpu_digests": dict(self.provenance.gpu_digests),
            "axes": [{"name": name, "values": list(values)} for name, values in self.axes.items()],
            "tried": len(self.ranked),
            "notes": list(self.notes),
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "best": [
                candidate.as_dict() | {"notes": [note for note in candidate.notes if note not in self.notes]}
                for candidate in self.best
            ],
        }

    def write_csv(self, file: TextIO) -> None:
        """Every candidate that was tried, the best first; what one does not have is left empty."""
        tile = [f.name for f in fields(Tile)]
        others = [f.name for f in fields(Candidate) if f.name not in ("rank", "tile", "notes")]
        shared = {"algorithm": self.algorithm, "gpu": self.gpu, **self.problem, "by": self.by, "schema": TUNE_SCHEMA}
        shared |= {"simulator_digest": self.provenance.simulator_digest}
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("rank", *tile, *others, "notes", *shared))
        for candidate in self.ranked:
            cells = [getattr(candidate.tile, name) for name in tile] + [getattr(candidate, name) for name in others]
            writer.writerow((candidate.rank, *cells, " ".join(candidate.notes), *shared.values()))
