"""The command `memsim plot`: pictures of results, and the numbers that they draw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memsim._cli_csv import CsvFile, same_file
from memsim._cli_output import print_json, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._cli_request import JSON, REQUEST, gpu_fields, varied
from memsim._command_validate import JOBS, jobs_of, measured_of, validated
from memsim._option_list import MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults, Request, one_of, read_request
from memsim.programs import PROGRAMS
from memsim.units import quoted

if TYPE_CHECKING:
    from memsim._plot_files import PlotFile
    from memsim.plot import Plot


@dataclass(frozen=True)
class _Kind:
    """One kind of plot: what it shows, and which axes --vary may give other values."""

    help: str
    axes: tuple[str, ...] = ()


KINDS = {
    "bytes": _Kind("bytes that cross each level, naive beside flash"),
    "roofline": _Kind("each launch under the roofs of its GPU"),
    "busy": _Kind("how busy each resource is, launch after launch"),
    "sram": _Kind("bytes against SRAM size, with the lower bound", ("sram", "tile")),
    "tiles": _Kind("an algorithm's time or bytes in each tile, and which cannot run", ("block-m", "block-n")),
    "growth": _Kind("bytes, memory and time against the sequence's length", ("seq-len",)),
    "measured": _Kind("simulated against measured, of the FILEs that validate takes"),
}
_OUT = Option("out", "Plot", "Draw into this file (extra plots).", "FILE.svg|.png|.html")
_VARY = Option(
    "vary", "Plot", "Other values for what a plot varies, as in a sweep: of sram, sram or tile; of tiles, block-m or "
    "block-n; of growth, seq-len. May be repeated.", "AXIS=V1,V2,…", repeatable=True,
)  # fmt: skip
_BY = Option("by", "Plot", "What a map of tiles shows.", "time|hbm-bytes", "time")
_ALGORITHM = Option("algorithm", "Plot", "Whose map of tiles it is; of an export, whose kernels.",
                    "|".join(PROGRAMS), "flash")  # fmt: skip
_TIMES = Option("times", "Plot", "Of measured: replay every launch, however long that takes.", flag=True)
_JOBS = replace(JOBS, group="Plot", help="Of measured: processes that replay side by side.")
_CSV = Option("csv", "Output", "Also write the numbers to this file.", "FILE")
_OF_ONE = {"by": ("tiles",), "algorithm": ("tiles", "measured"), "times": ("measured",), "jobs": ("measured",)}

SPEC = Spec(
    "plot", "A picture of the simulator's own results, or its numbers: "
    f"{'; '.join(f'{name}, {kind.help}' for name, kind in KINDS.items())}.",
    (_OUT, _VARY, _BY, _ALGORITHM, _TIMES, _JOBS, *REQUEST, _CSV, JSON),
    Option("kind", "", f"One of {', '.join(KINDS)}; after measured, its files.", repeatable=True),
    "KIND",
)  # fmt: skip


def run_line(line: Line) -> int:
    """Run what the plot is of, draw and print it, and return the exit code."""
    faults = Faults(line.faults)
    kind = _kind(line, faults)
    with ExitStack() as files:
        picture, csv = _files(line, faults, files)
        make = _maker(kind, line, faults) if kind is not None else None
        faults.raise_any()
        assert make is not None
        plot = make()
        unwritten = Faults()
        for file in (picture, csv):
            if file is not None and unwritten.attempt(lambda file=file: file.write(plot) or True):
                say(f"{'the picture is' if file is picture else f'{len(plot.rows)} rows are'} in {quoted(file.path)}.")
        if line.flag("json"):
            print_json(plot.as_dict())
        unwritten.raise_any()
    return 0


COMMAND = Command(SPEC, run_line)


def _kind(line: Line, faults: Faults) -> str | None:
    """The kind that is asked for, and what is given that it does not take."""
    kind, *more = line.positionals or (None,)
    if kind is None:
        faults.append(f"plot needs a KIND: choose one of {', '.join(KINDS)}.")
        return None
    if kind not in KINDS:
        faults.append(f"there is no plot {quoted(kind)}: {one_of(kind, KINDS)}")
        return None
    if more and kind != "measured":
        faults.append(f"{quoted(more[0])} is one word too many: only plot measured takes files.")
    for name, kinds in _OF_ONE.items():
        if name in line.options and kind not in kinds:
            faults.append(f"--{name} says nothing about plot {kind}: it is for {' and '.join(kinds)}.")
    if line.repeated["vary"] and not KINDS[kind].axes:
        faults.append(f"plot {kind} varies nothing: leave --vary out.")
    return kind


def _files(line: Line, faults: Faults, stack: ExitStack) -> tuple[PlotFile | None, CsvFile | None]:
    """The places of the picture and of the CSV, where they are asked for."""
    from memsim._plot_files import PlotFile

    out, path = line.options.get("out"), line.options.get("csv")
    if out is None and path is None and not line.flag("json") and not faults:
        faults.append(
            "plot has nowhere to draw: give --out FILE.svg, FILE.png or FILE.html, or --json or --csv FILE for numbers."
        )
    if out is not None and path is not None and same_file(out, path):
        faults.append("csv and out are the same file: give two.")
        return None, None
    picture = faults.attempt(PlotFile, out) if out is not None else None
    csv = faults.attempt(CsvFile, path) if path is not None else None
    for file in (picture, csv):
        if file is not None:
            stack.enter_context(file)
    return picture, csv


def _maker(kind: str, line: Line, faults: Faults) -> Callable[[], Plot] | None:
    """What makes the plot, checked as far as can be before anything is run."""
    if kind == "measured":
        return _measured(line, faults)
    fields = gpu_fields(line, faults)
    options = {name: text for name, text in line.options.items() if name in PROBLEM | TILE | MACHINE | RUN}
    if kind in ("bytes", "roofline", "busy"):
        request = faults.attempt(lambda: read_request(options, fields, count_only=line.flag("count-only")))
        if line.flag("count-only") and kind != "bytes":
            faults.append(f"plot {kind} needs times, and counting gives none: leave --count-only out.")
        return None if request is None else lambda: _of_results(kind, request)
    vary = _axes(line, kind, faults)
    given = {**options, **fields, **({"count-only": "true"} if line.flag("count-only") else {})}
    return lambda: _of_runs(kind, line, given, vary)


def _of_results(kind: str, request: Request) -> Plot:
    from memsim.plot import busy_shares, bytes_per_level, roofline

    ReplayNotice().about(request, "naive", "flash")
    with ProgressBar() as bar:
        both = request.compare(progress=bar)
    if kind == "bytes":
        return bytes_per_level(both, request.gpu)
    return (roofline if kind == "roofline" else busy_shares)(both.naive, both.flash, gpu=request.gpu)


def _of_runs(kind: str, line: Line, options: dict[str, str], vary: dict[str, str]) -> Plot:
    from memsim.plot import growth, sram_sizes, tile_map

    notice = ReplayNotice()

    def before(request: Request) -> None:
        notice.about(request, request.algorithm)

    with ProgressBar("points") as bar:

        def progress(done: int, total: int) -> None:
            bar("points", done, total)

        if kind == "tiles":
            by, algorithm = line.options.get("by", "time"), line.options.get("algorithm", "flash")
            return tile_map(algorithm, options, vary=vary, by=by, before=before, progress=progress)
        make = sram_sizes if kind == "sram" else growth
        return make(options, vary=vary, before=before, progress=progress)


def _measured(line: Line, faults: Faults) -> Callable[[], Plot] | None:
    from memsim.plot import measured

    taken = {"gpu", "lse", "algorithm", "times", "jobs", "out", "csv", "json", *PROBLEM, *TILE}
    given = [f"--{name}" for name in line.options if name not in taken]
    given += ["--set"] if line.repeated["set"] else []
    if given:
        faults.append(f"{', '.join(given)}: the files of plot measured say what was run; leave it out.")
    jobs = faults.attempt(jobs_of, line)
    files = line.positionals[1:]
    asked = replace(line, positional=files[0] if files else None, positionals=files, faults=Faults())
    found = faults.attempt(measured_of, asked)
    if found is None or jobs is None:
        return None

    def make() -> Plot:
        validation = validated(*found, line.flag("times"), [], jobs)
        if validation is None:
            raise KeyboardInterrupt
        return measured(validation)

    return make


def _axes(line: Line, kind: str, faults: Faults) -> dict[str, str]:
    examples = {"sram": "sram=32KiB,64KiB", "tiles": "block-m=64,128", "growth": "seq-len=1Ki,2Ki"}
    axes: dict[str, str] = {}
    for name, values in varied(line, faults, examples.get(kind, "seq-len=1Ki,2Ki")):
        if name in axes:
            faults.append(f"{name} is varied twice: give all its values at once.")
        else:
            axes[name] = values
    return axes
