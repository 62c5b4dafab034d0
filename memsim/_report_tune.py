"""A tuning as text: the best candidates side by side, what held them back, and what was not tried, and why."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from memsim._report_format import NONE, Figures, Paragraph, kib, percent, plural, seconds, size
from memsim._report_heading import COUNTED, machine_facts, machine_line, problem_facts, spaced, titled
from memsim._tune_candidates import KINDS, Refusal
from memsim.grid import ROWS_FAST
from memsim.tile import Tile
from memsim.tune import Candidate, Tuning

_BY = {"time": "predicted time", "hbm-bytes": "HBM bytes"}
_COLUMNS = (
    "cost", "time", "HBM", "L2 hits", "bound", "waits", "blocks/SM", "warps", "waves", "SRAM/block", "spills",
)  # fmt: skip
_CLOSE = 1.01


def tuning_report(tuning: Tuning) -> RenderableType:
    """The best candidates, what is said of the first of them, and what was not tried."""
    return Group(*_heading(tuning), "", _figures(tuning), *spaced(_sentences(tuning)))


def _heading(tuning: Tuning) -> Iterator[RenderableType]:
    facts = problem_facts(tuning.problem, lse=tuning.lse, inputs=tuning.inputs)
    yield titled(f"Tiles for {tuning.algorithm}, by {_BY[tuning.by]}", facts)
    gpu = tuning.machine
    if gpu is not None:
        counted = tuning.counted_only
        machine = machine_facts(gpu, warm=tuning.l2_state == "warm", counted=counted)
        without_l2 = gpu.l2 is not None and counted
        yield Paragraph(machine_line(tuning.gpu, tuning.gpu_options, machine, without_l2=without_l2))
    if tuning.block_sram_bytes is not None:
        yield Paragraph(f"at most {kib(tuning.block_sram_bytes)} of SRAM a block")


def _sentences(tuning: Tuning) -> Iterator[str]:
    best = tuning.best
    if best:
        yield f"The best is {best[0].tile}. {best[0].why} {_next(tuning)}".strip()
        yield f"memsim simulate {tuning.algorithm} {_options(best[0].tile)} … shows all of it."
    tried = f"{len(tuning.ranked):,} of {plural(tuning.candidates, 'candidate')} were tried."
    if tuning.passed_over:
        tried += f" {tuning.passed_over:,} others cannot be among the best {tuning.wanted}, by what they cost at least."
    yield " ".join([tried, *map(_refused, tuning.refusals)])
    if tuning.counted_only:
        yield COUNTED
    yield from tuning.notes


def _next(tuning: Tuning) -> str:
    """How near the others are."""
    others = [c for c in tuning.best[1:] if c.over_best is not None]
    close = [c for c in others if c.over_best is not None and c.over_best <= _CLOSE]
    if close:
        return f"{plural(len(close), 'other')} are within 1 % of it: measure these too." if len(close) > 1 else (
            f"{close[0].tile} is within 1 % of it: measure that too."
        )  # fmt: skip
    return f"The next takes {percent((others[0].over_best or 1) - 1)} more." if others else ""


def _refused(refusal: Refusal) -> str:
    """How many are not tried, why, and, where that says more, one of them."""
    example = f": {refusal.example}" if refusal.kind in ("refused", "does-not-fit", "out-of-memory") else "."
    return f"{refusal.count:,} {KINDS[refusal.kind]}{example}"


def _options(tile: Tile) -> str:
    options = f"--block-m {tile.block_m} --block-n {tile.block_n} --num-warps {tile.num_warps}"
    options += f" --num-stages {tile.num_stages}"
    options += f" --load-path {tile.load_path}" if tile.load_path != "pointer" else ""
    return options + (f" --grid-order {tile.grid_order}" if tile.grid_order != ROWS_FAST else "")


def _short(tile: Tile) -> str:
    named = [name for name, plain in ((tile.load_path, "pointer"), (tile.grid_order, ROWS_FAST)) if name != plain]
    return ", ".join((f"{tile.block_m}×{tile.block_n}, {tile.num_warps}, {tile.num_stages}", *named))


def _figures(tuning: Tuning) -> Figures:
    """The best side by side; what is the same of all, and says nothing, is left out."""
    columns = {name: [_cell(name, candidate) for candidate in tuning.best] for name in _COLUMNS}
    columns = {name: cells for name, cells in columns.items() if set(cells) - {NONE, "no"}}
    labels = [_short(candidate.tile) for candidate in tuning.best]
    return Figures([*columns], zip(labels, zip(*columns.values(), strict=True), strict=True), "tile, warps, stages")


def _cell(name: str, c: Candidate) -> str:
    if name == "cost":
        return NONE if c.over_best is None else "best" if c.rank == 1 else f"+{percent(c.over_best - 1)}"
    if name == "blocks/SM":
        return f"{c.blocks_per_sm} ({c.limited_by})"
    if name == "waves":
        return f"{c.waves:,} ({percent(c.last_wave)})"
    if name == "spills":
        return f"{c.stack_bytes} B" if c.stack_bytes else c.spills
    cells = {
        "time": seconds(c.time_s), "HBM": size(c.hbm_bytes), "L2 hits": percent(c.l2_hit_rate),
        "bound": c.bound or NONE, "waits": percent(c.waiting_for_memory), "warps": percent(c.occupancy),
        "SRAM/block": kib(c.sram_bytes),
    }  # fmt: skip
    return cells[name]
