"""The command `memsim sweep`: points over axes, here or side by side, printed, exported, or kept in a results file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from memsim._cli_csv import CsvFile, TableFile, same_file
from memsim._cli_output import print_json, print_report, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._cli_request import JSON, REQUEST, gpu_fields, request_options, varied
from memsim._option_list import Option
from memsim._options import Faults
from memsim._sweep_parquet import ParquetFile
from memsim.errors import MemsimError
from memsim.programs import PROGRAMS
from memsim.report import sweep_report
from memsim.sweep import HeldRows, SweepPlan, SweepTable, read_results, results, run, workers_for
from memsim.units import parse_count, quoted

if TYPE_CHECKING:
    from memsim._sweep_workers import Workers

_VARY = Option(
    "vary", "Sweep", "An axis and its values, one by one or as ranges with both ends (FROM:TO:xFACTOR, FROM:TO:+STEP): "
    "any option by name, a GPU's field, algorithm, or tile (64x32 is block-m x block-n); may be repeated.",
    "AXIS=V1,V2,…", repeatable=True,
)  # fmt: skip
_OUT = Option(
    "out", "Sweep", "Keep every row in this SQLite file as it gets done; the same command goes on where it stopped.",
    "FILE.db",
)  # fmt: skip
_FROM = Option("from", "Sweep", "Show or export the rows of a results file, and run nothing.", "FILE.db")
_JOBS = Option("jobs", "Sweep", "Processes that run points side by side (extra sweeps).", "N", "1")
_CLUSTER = Option(
    "cluster", "Sweep", "The Dask scheduler whose workers run the points (extra sweeps).", "tcp://HOST:PORT"
)
_CSV = Option("csv", "Output", "Also write the rows to this file.", "FILE")
_PARQUET = Option("parquet", "Output", "Also write the rows to this file, as Parquet (extra sweeps).", "FILE")
_SWEEP = (_VARY, _OUT, _FROM, _JOBS, _CLUSTER)
_OUTPUT = (_CSV, _PARQUET, JSON)

SPEC = Spec(
    "sweep", "One algorithm over the product of some options' values.", (*_SWEEP, *REQUEST, *_OUTPUT),
    Option("algorithm", "", f"One of {', '.join(PROGRAMS)}.", default="flash"),
    "[ALGORITHM] --vary AXIS=V1,V2,…",
)  # fmt: skip

Files = Sequence[TableFile[SweepTable]]


def run_line(line: Line) -> int:
    """Sweep, or open a results file; write and print what there is, and return the exit code."""
    faults = Faults(line.faults)
    with ExitStack() as stack:
        stored = "from" in line.options
        table = _stored(line, faults) if stored else None
        plan = None if stored else _plan(line, faults)
        workers = None if stored else faults.attempt(lambda: workers_for(_jobs(line), line.options.get("cluster")))
        files = _files(line, faults, stack)
        faults.raise_any()
        interrupted = False
        out = line.options.get("out")
        if plan is not None and workers is not None:
            table, interrupted = _swept(plan, workers, out)
            if fault := _fault_of_all(table):
                raise MemsimError(fault)
        assert table is not None
        return _show(table, files, out, interrupted=interrupted, as_json=line.flag("json"))


COMMAND = Command(SPEC, run_line)


def _swept(plan: SweepPlan, workers: Workers, out: str | None) -> tuple[SweepTable, bool]:
    """The rows as far as they got, and whether they were interrupted."""
    interrupted = False
    with ExitStack() as stack:
        # First, so that a cluster that is not there leaves no file.
        stack.enter_context(workers)
        rows = HeldRows(plan) if out is None else stack.enter_context(results(out, plan))
        if 0 < (kept := sum(rows.done)) < plan.points:
            say(f"{kept} of {plan.points} rows are in {quoted(out)} already.")
        notice = ReplayNotice()
        with ProgressBar("points") as bar:
            try:
                for done in run(plan, rows, workers, lambda request: notice.about(request, request.algorithm)):
                    bar("points", done, plan.points)
            except KeyboardInterrupt:
                if not any(rows.done):
                    raise
                interrupted = True
    return plan.table(rows.rows()), interrupted


def _show(table: SweepTable, files: Files, out: str | None, *, interrupted: bool, as_json: bool) -> int:
    count = len(table.rows)
    unwritten = Faults()
    for file in files:
        # A disk that is full takes the file, not the figures: they are printed all the same.
        before = len(unwritten)
        unwritten.attempt(file.write, table)
        if len(unwritten) == before:
            say(f"{count} of {table.points} rows are in {quoted(file.path)}.")
    if out is not None and not interrupted:
        say(f"{count} of {table.points} rows are in {quoted(out)}.")
    if as_json:
        print_json(table.as_dict())
    else:
        print_report(sweep_report(table))
    unwritten.raise_any()
    if interrupted and out is not None:
        say(
            f"interrupted: {count} of {table.points} rows are in {quoted(out)}, and the same command goes on after "
            "them."
        )
    elif interrupted:
        say(f"interrupted: {count} of {table.points} points were finished, and their rows are written.")
    return 130 if interrupted else 0


def _fault_of_all(table: SweepTable) -> str | None:
    """What every point shares is a fault of the command, not a finding."""
    reason = None
    for row in table.rows:
        if row.status != "refused" or reason not in (None, row.reason):
            return None
        reason = row.reason
    return reason if len(table.rows) > 1 else None


def _plan(line: Line, faults: Faults) -> SweepPlan | None:
    fields = gpu_fields(line, faults)
    axes = [(name, values.split(",")) for name, values in varied(line, faults, "seq-len=1Ki,2Ki")]
    if line.positional is not None and any(name == "algorithm" for name, _ in axes):
        faults.append("algorithm is varied and given too: give one of them.")
    if not axes and faults:
        return None
    return faults.attempt(lambda: SweepPlan(
        line.positional or "flash", axes, request_options(line), fields, count_only=line.flag("count-only")
    ))  # fmt: skip


def _stored(line: Line, faults: Faults) -> SweepTable | None:
    """The table of the results file that a line names, which says itself what it is of."""
    known = ("from", *(option.name for option in _OUTPUT))
    given = [f"--{name}" for name in line.options if name not in known]
    given += [f"--{name}" for name, texts in line.repeated.items() if texts]
    given += [line.positional] if line.positional is not None else []
    if given:
        faults.append(f"--from shows the rows that a file holds: give it without {', '.join(given)}.")
        return None
    return faults.attempt(read_results, line.options["from"])


def _jobs(line: Line) -> int:
    return parse_count(line.options.get("jobs", "1"), "jobs", 1)


def _files(line: Line, faults: Faults, stack: ExitStack) -> Files:
    """The files that rows are written to at the end, none of them the one that they are kept in."""
    files: list[TableFile[SweepTable]] = []
    kinds: Mapping[str, Callable[[str], TableFile[SweepTable]]] = {"csv": CsvFile, "parquet": ParquetFile}
    for option, kind in kinds.items():
        path = line.options.get(option)
        if path is None:
            continue
        others = {name: line.options[name] for name in ("out", "from", "csv") if name in line.options}
        same = [name for name, other in others.items() if name != option and same_file(other, path)]
        if same:
            faults.append(f"{option} and {same[0]} are the same file: give two.")
            continue
        file = faults.attempt(kind, path)
        if file is not None:
            files.append(stack.enter_context(file))
    return files
