"""The command `memsim measure`: real kernels on this machine's GPU, into a measurement CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim._cli_output import print_json, print_report, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar
from memsim._option_list import MACHINE, Option
from memsim._options import Faults, read_request
from memsim.errors import MemsimError
from memsim.gpu import load_gpu
from memsim.units import quoted
from memsim_kernels._grids import CACHE_STATES, COLD, GRID_NAMES, WARM, Point, measured_points
from memsim_kernels._needs import need_torch, read_jobs
from memsim_kernels._points import ALGORITHM, POINT_OPTIONS, names_points, points_of

if TYPE_CHECKING:
    from memsim_kernels.measure import Session

SCHEMA = "memsim.measure/1"
_OUT = "measurements.csv"
_ALL = "all"
_GPU = Option(
    "gpu", "GPU", "What the rows call the GPU, where memsim does not know it by its name.", MACHINE["gpu"].value
)
SPEC = Spec(
    "measure",
    "Run the real kernels on this machine's GPU: times and ncu's counters, into a CSV that validate reads. Without an "
    "option of the problem or the tile, over a grid of many problems, full and causal, and tiles.",
    (
        Option("out", "Output", "The CSV file; rows that it has are kept, and not measured again.", "FILE", _OUT),
        Option(
            "grid", "Measure", "The grid: problems that figures may be fitted to, others that only judge, or flash in "
            "every grid order.",
            "|".join(GRID_NAMES), "fit",
        ),
        Option(
            "cache-state", "Measure", "What a launch finds in the caches: cold, nothing; chained, what the launches "
            "before it left; warm, what the same launch left (flash only). By default of a grid all that it has, else "
            "cold.", "|".join((*CACHE_STATES, _ALL)),
        ),
        Option("no-counters", "Measure", "Leave ncu's counters out.", flag=True),
        Option("no-times", "Measure", "Leave the times out.", flag=True),
        Option("jobs", "Measure", "Kernels compiled side by side.", "N", "8", 1),
        Option(
            "import-ncu", "Measure", "Measure nothing: add the rows of this ncu export, made of one problem and tile.",
            "FILE",
        ),
        *POINT_OPTIONS,
        _GPU,
        Option("json", "Output", "Print JSON, alone on standard output.", flag=True),
    ),
    ALGORITHM,
    "[ALGORITHM]",
)  # fmt: skip


def run(line: Line) -> int:
    """Measure, or import; 0 when every row is there, 1 when a launch failed."""
    faults = Faults(line.faults)
    out = Path(line.options.get("out", _OUT))
    faults.attempt(_check_out, out)
    jobs = faults.attempt(read_jobs, line.options.get("jobs", "8"))
    if "gpu" in line.options:
        faults.attempt(load_gpu, line.options["gpu"])
    if line.flag("no-counters") and line.flag("no-times") and "import-ncu" not in line.options:
        faults.append("--no-counters and --no-times leave nothing to measure: give one of them at most.")
    for name, texts in (("grid", GRID_NAMES), ("cache-state", (*CACHE_STATES, _ALL))):
        if line.options.get(name, texts[0]) not in texts:
            faults.append(f"{name} is {quoted(line.options[name])}; it must be one of {', '.join(texts)}.")
    if "grid" in line.options and names_points(line):
        faults.append("--grid is given beside a problem or a tile: give one or the other.")
    faults.raise_any()
    assert jobs is not None
    if "import-ncu" in line.options:
        return _import(line, out)
    return _measure(line, out, jobs)


COMMAND = Command(SPEC, run)


def _check_out(out: Path) -> None:
    if out.is_dir() or not out.name or str(out) == "-":
        raise MemsimError(f"out is {quoted(out)}, which is no file: give the path of a CSV file to write.")
    if out.exists() and not os.access(out, os.W_OK):
        raise MemsimError(f"out is {quoted(out)}, which must not be written: give another file.")
    if not out.resolve().parent.is_dir():
        raise MemsimError(f"out is {quoted(out)}, whose folder does not exist: make it first.")


def _import(line: Line, out: Path) -> int:
    from memsim.measurements import write_measurements
    from memsim.ncu import import_ncu
    from memsim.tile import Tile
    from memsim_kernels._rows import add_figures, rows_to_keep

    gpu = line.options.get("gpu", "h200")
    options = {name: text for name, text in line.options.items() if name in {o.name for o in POINT_OPTIONS}}
    if line.repeated["vary"]:
        raise MemsimError("--vary is given, but an export is of one problem and tile: leave it out.")
    request = read_request(options | {"gpu": gpu}, {}, algorithm=line.positional or "flash", count_only=True)
    needed = ("block_m", "block_n", "num_warps", "num_stages")
    if missing := [name.replace("_", "-") for name in needed if name not in request.tile]:
        raise MemsimError(f"an export does not say its tile: give --{', --'.join(missing)} as it was run with.")
    found = import_ncu(
        line.options["import-ncu"], request.problem, Tile(**request.tile), request.gpu, gpu_name=gpu, lse=request.lse
    )
    rows = rows_to_keep(out) if out.exists() else {}
    add_figures(rows, found.rows)
    write_measurements(out.resolve(), rows.values())
    say(f"{len(found.rows)} rows of {quoted(line.options['import-ncu'])} are in {quoted(out)}.")
    return 0


def _measure(line: Line, out: Path, jobs: int) -> int:
    need_torch("measure")
    from memsim_kernels._ncu import ncu_here
    from memsim_kernels.measure import NO_LAUNCH, Session, gpu_here

    gpu = gpu_here(line.options.get("gpu"))
    points = _points(line, gpu)
    session = Session(out, gpu)
    counters = not line.flag("no-counters")
    if counters and ncu_here() is None:
        say("ncu is not installed here, so there are times and no counters.")
        counters = False
    try:
        _run(points, session, jobs, times=not line.flag("no-times"), counters=counters)
    except KeyboardInterrupt:
        say(f"interrupted: {len(session.rows)} rows are in {quoted(out)}; the same command goes on from there.")
        return 130
    failed = [row for row in session.rows if row.error.startswith(NO_LAUNCH)]
    if line.flag("json"):
        print_json(_data(session, out))
    else:
        print_report(_summary(session, out))
    return 1 if failed else 0


def _points(line: Line, gpu: str) -> list[Point]:
    """The points that were asked for, in the cache states that were."""
    state = line.options.get("cache-state")
    found = points_of(line, gpu, measured_points(line.options.get("grid", "fit")))
    if names_points(line):
        states = tuple(CACHE_STATES) if state == _ALL else (state or COLD,)
        found = [
            replace(point, cache_state=each) for point in found for each in states
            if each != WARM or point.algorithm == "flash"
        ]  # fmt: skip
    elif state not in (None, _ALL):
        found = [point for point in found if point.cache_state == state]
    if not found:
        raise MemsimError(f"nothing of what was asked for is measured {state}: give another cache-state.")
    return found


def _run(points: Sequence[Point], session: Session, jobs: int, *, times: bool, counters: bool) -> None:
    from memsim_kernels._provenance import add_run, clocks_in_launches, command_line, provenance_here, sm_clock_mhz
    from memsim_kernels._rows import rows_of_point
    from memsim_kernels.measure import compile_points, measure_counters, measure_times, refusal_of

    refused = {point: reason for point in points if (reason := refusal_of(point, session.gpu))}
    session.add(
        [replace(row, error=why) for point, why in refused.items() for row in rows_of_point(point, session.gpu)]
    )
    fitting = [point for point in points if point not in refused]
    lacking = [p for p in fitting if (times and session.lacks(p, "event_time_s")) or
               (counters and session.lacks(p, "sram_fill_bytes"))]  # fmt: skip
    if not lacking:
        say("every row is there already: nothing was measured.")
        return
    clocks: list[float] = []
    with ProgressBar() as bar:

        def progress(name: str, done: int, total: int) -> None:
            bar(name, done, total)
            if name == "timing" and done % 8 == 0 and (clock := sm_clock_mhz()) is not None:
                clocks.append(clock)

        run: dict[str, Any] = provenance_here(session.gpu, {"command": command_line()})
        try:
            compile_points(lacking, jobs, progress)
            if times:
                measure_times(lacking, session, progress)
            if counters:
                measure_counters(lacking, session, progress)
        finally:
            run["sm_clock_mhz_between_launches"] = {"lowest": min(clocks), "highest": max(clocks)} if clocks else None
            run["sm_clock_mhz_in_launches"] = clocks_in_launches(session.rows)
            run["rows"] = len(session.rows)
            add_run(session.path, run)


def _data(session: Session, out: Path) -> dict[str, Any]:
    rows = session.rows
    return {
        "schema": SCHEMA,
        "file": str(out),
        "gpu": session.gpu,
        "rows": len(rows),
        "failed": [{"name": row.name, "error": row.error} for row in rows if row.error],
        "measured": [row.cells() for row in rows],
    }


def _summary(session: Session, out: Path) -> str:
    rows = session.rows
    timed, counted = (sum(name in row.values for row in rows) for name in ("event_time_s", "sram_fill_bytes"))
    failed = [row for row in rows if row.error]
    lines = [f"{len(rows)} rows in {out}: {timed} timed, {counted} counted, {len(failed)} without a launch."]
    lines += [f"  {row.name}: {row.error}" for row in failed[:10]]
    lines += [f"  and {len(failed) - 10} more"] if len(failed) > 10 else []
    return "\n".join([*lines, f"memsim validate {out} compares them with the simulator."])
