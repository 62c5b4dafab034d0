"""Plots of many runs: bytes against SRAM size, a map of tiles, growth with the sequence's length.

What varies are the axes of a sweep, and options go by the names of the command line, so that each point is what
`memsim simulate` prints for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from memsim._notes import BY_INSTRUCTIONS
from memsim._option_list import AXES, FLASH_ONLY, TILE
from memsim._options import Request, one_of
from memsim._plot import Plot
from memsim._plot_results import notes_of_results
from memsim._report_heading import machine_facts, machine_line, problem_facts
from memsim._sweep_axes import axis_name
from memsim._sweep_plan import SweepPlan
from memsim._sweep_points import Point
from memsim._sweep_table import SweepRow, as_text
from memsim.bounds import lower_bound_bytes, on_chip_bytes
from memsim.errors import MemsimError
from memsim.result import Result
from memsim.tile import Tile
from memsim.units import parse_count, quoted

Options = Mapping[str, str | int | float]
Vary = Mapping[str, str | Sequence[str | int | float]]
Before = Callable[[Request], None]
Progress = Callable[[int, int], None]

BY = ("time", "hbm-bytes")
BOTH = ("naive", "flash")
_SIDES = tuple(str(2**power) for power in range(4, 11))
DEFAULTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "sram": {"sram": ("16KiB:1MiB:x2",), "tile": tuple(f"{m}x{n}" for m in _SIDES for n in _SIDES)},
    "tiles": {"block-m": ("32:256:x2",), "block-n": ("32:256:x2",)},
    "growth": {"seq-len": ("256:8Ki:x2",)},
}
"""What each plot varies, if not told otherwise."""


def sram_sizes(
    options: Options | None = None, *, vary: Vary | None = None, before: Before | None = None,
    progress: Progress | None = None,
) -> Plot:  # fmt: skip
    """Bytes into and out of the SRAMs against their size: the fewest of any tile that fits, for naive and flash, with
    what no algorithm can go below. Counted, in whole sectors.

    `vary` may give "sram" and "tile" other values. The bound is the larger of the compulsory bytes and Saha and Ye's
    (memsim.bounds) for what one SM can hold. One stage, unless `options` say otherwise: more take SRAM and move no
    fewer bytes. `before` and `progress` are as for a sweep.
    """
    plans = _plans("sram", BOTH, {"num-stages": "1", **texts_of(options), "count-only": "true"}, vary)
    least: dict[tuple[str, int], Result] = {}
    bounds: dict[int, int] = {}
    for algorithm, _, request, found in _outcomes(plans, before, progress):
        size = request.gpu.sm.sram.capacity_bytes
        bounds[size] = lower_bound_bytes(request.problem, on_chip_bytes(request.gpu), lse=request.lse)
        at = (algorithm, size)
        if isinstance(found, Result) and (at not in least or _crossing(found) < _crossing(least[at])):
            least[at] = found
    if not least:
        raise MemsimError("there is nothing to plot: no tile fits in any of these SRAM sizes; give larger ones.")
    rows = []
    for size, bound in sorted(bounds.items()):
        row: dict[str, Any] = {"sram_bytes": size, "lower_bound_bytes": bound}
        for name in BOTH:
            best = least.get((name, size))
            row[f"{name}_bytes"] = _crossing(best) if best else None
            row[f"{name}_tile"] = f"{best.tile['block_m']}x{best.tile['block_n']}" if best else None
        rows.append(row)
    shown = next(iter(least.values()))
    stages = plans["flash"].options["num-stages"]
    tiles = f"at each size the one of {len(plans['flash'].axes['tile'])} tiles that moves the fewest bytes"
    caption = (
        *_caption(plans["flash"], shown, {"sram"}, f"{tiles}, num-stages {stages}; counted"),
        "Lower bound: Q, K, V and O once, or Saha and Ye's for what one SM can hold, whichever is more.",
    )
    return Plot("sram", "Bytes into and out of SRAM, by the SRAM of an SM", caption, tuple(rows))


def tile_map(
    algorithm: str = "flash", options: Options | None = None, *, vary: Vary | None = None, by: str = BY[0],
    before: Before | None = None, progress: Progress | None = None,
) -> Plot:  # fmt: skip
    """Time, or HBM bytes (`by="hbm-bytes"`), of an algorithm in each tile, block_m by block_n, and the tiles that
    cannot run, with the reason.

    `vary` may give "block-m" and "block-n" other values. The best is marked; where some tiles are replayed by their
    kernels' instructions and others by trace, only among the former, for the two are not to be ranked together.
    """
    if by not in BY:
        raise MemsimError(f"by is {quoted(by)}; it must be one of {', '.join(BY)}.")
    plans = _plans("tiles", (algorithm,), texts_of(options), vary)
    if plans[algorithm].count_only and by == BY[0]:
        raise MemsimError("times take a replay: leave --count-only out, or give --by hbm-bytes.")
    rows: list[dict[str, Any]] = []
    results = []
    for _, point, _, found in _outcomes(plans, before, progress):
        row: dict[str, Any] = {name.replace("-", "_"): parse_count(point[name]) for name in ("block-m", "block-n")}
        row |= dict.fromkeys(("num_warps", "num_stages", "time_s", "hbm_bytes", "replayed_by", "stack_bytes"))
        if isinstance(found, Result):
            results.append(found)
            row |= {
                "num_warps": found.tile["num_warps"],
                "num_stages": found.tile["num_stages"],
                "time_s": found.total.time_s,
                "hbm_bytes": found.total.hbm_bytes,
                "replayed_by": _replayed_by(found),
                "stack_bytes": max(launch.stack_bytes or 0 for launch in found.launches),
            }
        rows.append(row | _status(found))
    if not results:
        raise MemsimError(f"there is nothing to plot: none of these tiles can run. {rows[0]['reason']}")
    _rank(rows, "time_s" if by == BY[0] else "hbm_bytes")
    given = [f"{name} {text}" for name, text in plans[algorithm].options.items() if name in TILE]
    rest = [] if {"num-warps", "num-stages"} <= {*plans[algorithm].options} else ["the rest from the list of the GPU"]
    caption = _caption(plans[algorithm], results[0], set(), f"of each tile {', '.join([*given, *rest])}")
    if any(row["stack_bytes"] for row in rows):
        caption += ("* spills registers.",)
    if any(row["status"] == "ok" and not row["compared"] for row in rows):
        caption += ("By trace: no instructions of that kernel are known; not to be compared with the others.",)
    title = f"{'Time' if by == BY[0] else 'HBM bytes'} of {algorithm} in each tile"
    # What is said of single tiles is in their rows.
    shared = [{*notes_of_results([result])} for result in results]
    notes = [note for note in notes_of_results(results) if all(note in said for said in shared)]
    return Plot("tiles", title, caption, tuple(rows), {"by": by}, tuple(notes))


def growth(
    options: Options | None = None, *, vary: Vary | None = None, before: Before | None = None,
    progress: Progress | None = None,
) -> Plot:  # fmt: skip
    """HBM bytes, time and peak HBM of naive attention and of flash as the sequence grows, on log axes.

    `vary` may give "seq-len" other values. `{"count-only": True}` among the options leaves the replay out, and time
    with it. A length that an algorithm cannot run is a row that says why.
    """
    plans = _plans("growth", BOTH, texts_of(options), vary)
    rows = []
    results = []
    for algorithm, _, request, found in _outcomes(plans, before, progress):
        row: dict[str, Any] = {"algorithm": algorithm, "seq_len": request.problem.seq_len_k}
        row |= dict.fromkeys(("hbm_bytes", "l2_dirty_bytes_at_end", "time_s", "peak_hbm_bytes", "compulsory_bytes"))
        if isinstance(found, Result):
            results.append(found)
            row |= {name: getattr(found.total, name) for name in row if hasattr(found.total, name)}
        rows.append(row | _status(found))
    if not results:
        raise MemsimError(f"there is nothing to plot: no length can run. {rows[0]['reason']}")
    rows.sort(key=lambda row: (BOTH.index(row["algorithm"]), row["seq_len"]))
    tiles = {str(Tile(**result.tile)) for result in results}
    tile = f"tile {tiles.pop()}" if len(tiles) == 1 else "tile: the first of the GPU's that fits"
    caption = _caption(plans["flash"], results[0], {"seq-len"}, tile)
    if any(row["l2_dirty_bytes_at_end"] for row in rows):
        caption += ("HBM bytes leave out what the L2 still has to write when the last launch ends.",)
    return Plot("growth", "How attention grows with the sequence", caption, tuple(rows), {}, notes_of_results(results))


def texts_of(options: Options | None) -> dict[str, str]:
    """Options as the command line has them."""
    return {name: as_text(value) for name, value in (options or {}).items()}


def _plans(kind: str, algorithms: Sequence[str], given: Mapping[str, str], vary: Vary | None) -> dict[str, SweepPlan]:
    """A sweep for each algorithm over what the plot varies. What of the tile is flash's alone, others do not get."""
    options = {name: text for name, text in given.items() if name != "count-only"}
    if unknown := [name for name in options if name not in AXES and "." not in name]:
        raise MemsimError(f"there is no option {quoted(name)}: {one_of(name, AXES)}" for name in unknown)
    axes = dict(DEFAULTS[kind])
    for name, values in (vary or {}).items():
        axis = axis_name(name)
        if axis not in axes:
            raise MemsimError(f"{quoted(axis)} cannot vary in this plot: vary {' or '.join(axes)}.")
        axes[axis] = values.split(",") if isinstance(values, str) else [as_text(value) for value in values]
    short = {name: text for name, text in options.items() if "." not in name}
    fields = {name: text for name, text in options.items() if "." in name}
    common = {name: text for name, text in short.items() if name not in FLASH_ONLY}
    count_only = given.get("count-only") == "true"
    return {
        name: SweepPlan(
            name, list(axes.items()), short if name == "flash" or len(algorithms) == 1 else common, fields,
            count_only=count_only,
        )
        for name in algorithms
    }  # fmt: skip


def _outcomes(
    plans: Mapping[str, SweepPlan], before: Before | None, progress: Progress | None
) -> Iterator[tuple[str, Point, Request, Result | SweepRow]]:
    """Every point of each plan, its request, and its result or why there is none. Raises where a value is refused."""
    done, total = 0, sum(plan.points for plan in plans.values())
    for algorithm, plan in plans.items():
        for number in range(plan.points):
            point = plan.point(number)
            yield algorithm, point, plan.shared.request(point), plan.shared.outcome(point, before)
            done += 1
            if progress is not None:
                progress(done, total)


def _status(found: Result | SweepRow) -> dict[str, str]:
    if isinstance(found, Result):
        return {"status": "ok", "reason": ""}
    return {"status": found.status, "reason": found.reason}


def _crossing(result: Result) -> int:
    """Bytes into and out of all SRAMs."""
    return result.total.sram_fill_bytes + result.total.sram_store_bytes


def _replayed_by(result: Result) -> str | None:
    """How the launches of a result were replayed: by trace, if any of them was."""
    ways = [launch.replayed_by for launch in result.launches]
    return "trace" if "trace" in ways else ways[0]


def _rank(rows: Sequence[dict[str, Any]], field: str) -> None:
    """Note in each row whether it is compared with the others (as a tuning does: by instructions where some are known,
    else by trace, without kernels that spill, which a trace does not time), and which of those has the least."""
    ran = [row for row in rows if row["status"] == "ok"]
    known = [row for row in ran if row["replayed_by"] == BY_INSTRUCTIONS]
    unspilt = [row for row in ran if not row["stack_bytes"]]
    compared = known or (unspilt if any(row["replayed_by"] for row in ran) else ran) or ran
    best = min(compared, key=lambda row: row[field])
    for row in rows:
        row |= {"compared": any(row is other for other in compared), "best": row is best}


def _caption(plan: SweepPlan, shown: Result, varied: Collection[str], tile: str) -> tuple[str, ...]:
    """The problem, the machine and the tiles, a line each, without what varies."""
    problem = dict(shown.problem)
    if "seq-len" in varied:
        del problem["seq_len_q"], problem["seq_len_k"]
    gpu = plan.table(()).gpu
    assert gpu is not None
    facts = machine_facts(gpu, varied, warm=shown.l2_state == "warm", counted=shown.counted_only)
    changed = {name: text for name, text in shown.gpu_options.items() if name not in varied}
    without_l2 = gpu.l2 is not None and shown.counted_only
    return (
        ", ".join(problem_facts(problem, lse=shown.lse, inputs=shown.inputs)),
        machine_line(shown.gpu, changed, facts, without_l2=without_l2),
        tile,
    )
