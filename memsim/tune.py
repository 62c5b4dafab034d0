"""Tuning: the best tile, warps, stages, load path and grid order of an algorithm for a problem and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from memsim._option_list import TILE
from memsim._options import Machines, Request, read_request
from memsim._sweep_plan import SweepPlan
from memsim._sweep_table import SweepRow, as_text
from memsim._tune_candidates import Refusal, Survey, Surveyed, survey
from memsim._tune_plan import tune_plan
from memsim._tune_search import BY, Found, Search
from memsim._tune_table import TUNE_SCHEMA, Candidate, Tuning
from memsim.api import DEFAULT_GPU
from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.sweep import HeldRows, results, workers_for
from memsim.tile import Tile

if TYPE_CHECKING:
    from memsim._sweep_workers import Workers

__all__ = ["BY", "MOST_WANTED", "TUNE_SCHEMA", "Candidate", "Plan", "Refusal", "Tuning", "plan_of", "tune"]

MOST_WANTED = 1_000


class Plan:
    """A tuning that was checked and can be run: a sweep's plan whose points are the candidates, and what is wanted.

    `options` and `gpu_fields` are texts, as a sweep's; `vary` are axes of the tile. `tiles` leaves of the points only
    those that are in it. Raises `MemsimError` with every fault.
    """

    def __init__(
        self, algorithm: str, vary: Sequence[tuple[str, Sequence[str]]], options: Mapping[str, str],
        gpu_fields: Mapping[str, str], *, by: str = BY[0], block_sram_bytes: int | None = None, wanted: int = 10,
        count_only: bool = False, tiles: Iterable[Tile] | None = None, machines: Machines | None = None,
    ) -> None:  # fmt: skip
        faults = []
        if by not in BY:
            faults.append(f"by is {by!r}; it must be one of {', '.join(BY)}.")
        if by == BY[0] and count_only:
            faults.append("a time takes a replay: rank by hbm-bytes, or leave count-only out.")
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= MOST_WANTED:
            faults.append(f"best is {wanted!r}; give a whole number from 1 to {MOST_WANTED}.")
        if block_sram_bytes is not None and block_sram_bytes < 1:
            faults.append(f"the limit on a block's SRAM is {block_sram_bytes} B; give at least 1 B.")
        if faults:
            raise MemsimError(faults)
        machines = machines or Machines()
        self.by, self.wanted, self.block_sram_bytes = by, wanted, block_sram_bytes
        self.sweep: SweepPlan = tune_plan(
            algorithm, vary, options, gpu_fields, count_only=count_only, machines=machines
        )
        self._tiles = None if tiles is None else tuple(tiles)
        self.request: Request = read_request(
            self.sweep.options, self.sweep.gpu_fields, algorithm=algorithm, count_only=count_only, machines=machines
        )
        if not self.request.problem.seq_len_q:
            raise MemsimError("the problem has no rows of Q, so nothing is launched: there is nothing to tune.")

    def survey(self, progress: Callable[[int, int], None] | None = None) -> Survey:
        """The candidates, counted. Raises `MemsimError` if none is possible."""
        return survey(
            self.sweep, self.request, tiles=self._tiles, block_sram_bytes=self.block_sram_bytes,
            progress=progress or _nothing,
        )  # fmt: skip

    def run(
        self, found: Survey, workers: Workers, out: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tuning:  # fmt: skip
        """Replay what may be among the best, and rank it; rows go into the results file `out` if there is one."""
        with ExitStack() as stack:
            # First, so that a cluster that is not there leaves no file.
            stack.enter_context(workers)
            rows = HeldRows(self.sweep) if out is None else stack.enter_context(results(out, self.sweep))
            search = Search(self.sweep, found.candidates, self.by, self.wanted, rows)
            return self._tuning(found, search.run(workers, progress or _nothing))

    def _tuning(self, surveyed: Survey, found: Found) -> Tuning:
        request = self.request
        failed = tuple(Refusal(row.status, 1, row.reason) for _, row in found.failed)
        best = _cost(self.by, found.ranked[0][1]) if found.ranked else 0.0
        return Tuning(
            algorithm=request.algorithm,
            gpu=request.gpu_name,
            gpu_options=request.gpu_options,
            problem=asdict(request.problem),
            lse=request.lse,
            inputs=request.inputs,
            l2_state=request.l2_state,
            by=self.by,
            counted_only=request.count_only,
            block_sram_bytes=self.block_sram_bytes,
            axes=self.sweep.axes,
            candidates=surveyed.total,
            wanted=self.wanted,
            ranked=tuple(
                _ranked(rank, candidate, row, self.by, best)
                for rank, (candidate, row) in enumerate(found.ranked, start=1)
            ),
            passed_over=found.passed_over,
            refusals=(*surveyed.refusals, *failed),
            interrupted=found.interrupted,
            provenance=self.sweep.provenance,
            machine=request.gpu,
        )


def tune(
    problem: Attention | None = None,
    *,
    algorithm: str = "flash",
    gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None,
    by: str = BY[0],
    block_sram_bytes: int | None = None,
    vary: Mapping[str, str | Sequence[str | int]] | None = None,
    tiles: Iterable[Tile] | None = None,
    lse: bool = False,
    inputs: str = "hbm",
    resources: str = "table",
    l2_state: str = "cold",
    count_only: bool = False,
    best: int = 10,
    out: str | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Tuning:
    """The best tile of an algorithm for a problem and a GPU, and the next best, with what held each back.

    Ranked by predicted time, or by HBM bytes (`by="hbm-bytes"`); the answer is that of simulating every candidate.
    `vary` gives fields of the tile their values as a sweep's axes do (`{"tile": "64x64,128x64", "num-stages": [2]}`);
    the others take those of `memsim._tune_plan.default_axes`. Or `tiles` are the candidates. `block_sram_bytes` is the
    most SRAM that a block may take; how much an SM has is the machine's (`gpu_options={"sram": "96KiB"}`). Candidates
    are compared if they are replayed in the same way: where the instructions of some kernels are known, only these.
    `best` is how many are wanted; `out`, `jobs` and `cluster` are as in `memsim.sweep`, the rest as in
    `memsim.simulate`. `progress` is called with what is being done, how much is done, and of how much. Raises
    `MemsimError` on bad input, and if no candidate is possible.
    """
    plan = plan_of(
        problem, algorithm=algorithm, gpu=gpu, gpu_options=gpu_options, by=by, block_sram_bytes=block_sram_bytes,
        vary=vary, tiles=tiles, lse=lse, inputs=inputs, resources=resources, l2_state=l2_state, count_only=count_only,
        best=best,
    )  # fmt: skip
    workers = workers_for(jobs, cluster)

    def saying(what: str) -> Callable[[int, int], None]:
        return lambda done, total: progress(what, done, total) if progress is not None else None

    tuning = plan.run(plan.survey(saying("counting")), workers, out, saying("candidates"))
    if tuning.interrupted:
        raise KeyboardInterrupt
    return tuning


def plan_of(
    problem: Attention | None = None, *, algorithm: str = "flash", gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None, by: str = BY[0], block_sram_bytes: int | None = None,
    vary: Mapping[str, str | Sequence[str | int]] | None = None, tiles: Iterable[Tile] | None = None,
    lse: bool = False, inputs: str = "hbm", resources: str = "table", l2_state: str = "cold", count_only: bool = False,
    best: int = 10,
) -> Plan:  # fmt: skip
    """The plan of what `tune` does with these."""
    if vary is not None and tiles is not None:
        raise MemsimError("vary and tiles are both given: give one of them.")
    listed = None if tiles is None else tuple(tiles)
    if listed is not None and not listed:
        raise MemsimError("tiles is empty: give at least one tile.")
    machines = Machines()
    name = gpu if isinstance(gpu, str) else gpu.name
    if isinstance(gpu, Gpu):
        machines.add(name, gpu)
    axes = _axes_of(listed) if listed is not None else [
        (axis, values.split(",") if isinstance(values, str) else [as_text(value) for value in values])
        for axis, values in (vary or {}).items()
    ]  # fmt: skip
    changes = dict(gpu_options or {})
    fields_of_gpu = {key: text for key, text in changes.items() if "." in key}
    options = {
        **_texts(problem or Attention()), "gpu": name, "lse": as_text(lse), "inputs": inputs, "resources": resources,
        "l2-state": l2_state, **{key: text for key, text in changes.items() if key not in fields_of_gpu},
    }  # fmt: skip
    return Plan(
        algorithm, axes, options, fields_of_gpu, by=by, block_sram_bytes=block_sram_bytes, wanted=best,
        count_only=count_only, tiles=listed, machines=machines,
    )  # fmt: skip


def _axes_of(tiles: Sequence[Tile]) -> list[tuple[str, list[str]]]:
    """Axes whose product has all of these tiles."""
    names = (name.replace("-", "_") for name in TILE)
    return [
        (name, list(dict.fromkeys(str(getattr(tile, field)) for tile in tiles)))
        for name, field in zip(TILE, names, strict=True)
    ]


def _texts(problem: Attention) -> dict[str, str]:
    """A problem as options."""
    values = {f.name.replace("_", "-"): getattr(problem, f.name) for f in fields(problem)}
    return {name: as_text(value) for name, value in values.items() if value is not None}


def _cost(by: str, row: SweepRow) -> float:
    return (row.time_s if by == BY[0] else row.hbm_bytes) or 0.0


def _ranked(rank: int, candidate: Surveyed, row: SweepRow, by: str, best: float) -> Candidate:
    assert row.hbm_bytes is not None and row.sram_fill_bytes is not None
    replayed = candidate.replayed_by if row.time_s is not None else None
    return Candidate(
        rank=rank,
        tile=candidate.tile,
        over_best=_cost(by, row) / best if best else None,
        time_s=row.time_s,
        hbm_bytes=row.hbm_bytes,
        sram_fill_bytes=row.sram_fill_bytes,
        l2_hit_rate=row.l2_hit_rate,
        over_compulsory=row.over_compulsory,
        bound=row.bound,
        waiting_for_memory=row.waiting_for_memory,
        replayed_by=replayed,
        blocks_per_sm=candidate.blocks_per_sm,
        limited_by=candidate.limited_by,
        waves=candidate.waves,
        last_wave=candidate.last_wave,
        occupancy=candidate.occupancy,
        registers=candidate.registers,
        registers_from=candidate.registers_from,
        sram_bytes=candidate.sram_bytes,
        stack_bytes=candidate.stack_bytes,
        spills=candidate.spills,
        notes=row.notes,
    )


def _nothing(done: int, total: int) -> None:
    return None
