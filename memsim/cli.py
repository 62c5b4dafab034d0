"""The command line: `memsim gpus`, `compare`, `simulate`, `sweep`, `validate`, `calibrate`, and what packages add.

A package adds a command by an entry point of the group "memsim.commands": a `Command`.

Exit codes: 0 done, 1 a check did not hold, 2 bad input or an output that cannot be written (a sentence per fault on
standard error), 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

from memsim import __version__
from memsim._cli_csv import CsvFile
from memsim._cli_output import Page, console_for, print_json, print_report, say, write
from memsim._cli_parse import Command, Line, Spec, build_app, parse
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._command_calibrate import COMMAND as CALIBRATE
from memsim._command_validate import COMMAND as VALIDATE
from memsim._option_list import MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults, Request, read_request
from memsim._report_gpus import gpu_report, gpus_data, gpus_report
from memsim.errors import MemsimError
from memsim.gpu import SHORT_OPTIONS, gpu_names, load_gpu, template
from memsim.programs import PROGRAMS
from memsim.report import comparison_report, result_report, sweep_report
from memsim.sweep import SweepPlan, SweepRow
from memsim.units import quoted

_JSON = Option("json", "Output", "Print JSON, alone on standard output.", flag=True)
_SET = Option(
    "set", "GPU", "Any other field of the GPU, such as sm.count=66; may be repeated.", "KEY=VALUE", repeatable=True
)
_COUNT_ONLY = Option(
    "count-only", "Run", "Count bytes and work exactly, and leave the replay and its times out.", flag=True
)
_VARY = Option(
    "vary", "Sweep", "An axis and its values: any option by name, or a GPU's field; may be repeated.", "AXIS=V1,V2,…",
    repeatable=True,
)  # fmt: skip
_CSV = Option("csv", "Output", "Also write the rows to this file.", "FILE")
_TEMPLATE = Option("template", "Output", "Print a GPU file to start from.", flag=True)
_REQUEST = (*PROBLEM.values(), *TILE.values(), *MACHINE.values(), _SET, *RUN.values(), _COUNT_ONLY)

_ABOUT = "What an attention kernel does to a GPU's memory hierarchy, before anyone launches it."
_SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "gpus", "The GPUs that come with memsim, or every field of one.", (_TEMPLATE, _JSON),
            Option("name_or_file", "", "A GPU's name, or the path of a TOML file."), "[NAME_OR_FILE]",
        ),
        Spec("compare", "Naive attention beside FlashAttention: what moves, how long it takes.", (*_REQUEST, _JSON)),
        Spec(
            "simulate", "One algorithm, launch by launch.", (*_REQUEST, _JSON),
            Option("algorithm", "", f"One of {', '.join(PROGRAMS)}."), "ALGORITHM",
        ),
        Spec(
            "sweep", "One algorithm over the product of some options' values.", (_VARY, *_REQUEST, _CSV, _JSON),
            Option("algorithm", "", f"One of {', '.join(PROGRAMS)}.", default="flash"),
            "[ALGORITHM] --vary AXIS=V1,V2,…",
        ),
        VALIDATE.spec,
        CALIBRATE.spec,
    )
}  # fmt: skip


def _load(point: EntryPoint) -> Command:
    """The command of an entry point. One that cannot be loaded says so when it is called, and hinders no other."""
    try:
        command: Command = point.load()
        return command
    except Exception as error:
        reason = " ".join(str(error).split())

        def refuse(line: Line) -> int:
            raise MemsimError(
                f"{point.name} cannot be loaded from {point.value} ({reason}): install its package again."
            )

        return Command(Spec(point.name, "Cannot be loaded.", ()), refuse)


_ADDED: dict[str, Command] = {
    command.spec.name: command
    for command in map(_load, sorted(entry_points(group="memsim.commands"), key=lambda point: point.name))
}
_SPECS |= {name: command.spec for name, command in _ADDED.items() if name not in _SPECS}

app = build_app(_SPECS.values(), __version__, _ABOUT)
"""The cyclopts application: the commands and options, without what they do."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (`sys.argv` if None) and exit with its code."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; every error a user can cause becomes sentences."""
    try:
        return _run(argv)
    except MemsimError as error:
        for fault in error.faults:
            say(fault)
        return 2
    except MemoryError:
        say("this computer's memory does not suffice: take a smaller problem, or --count-only.")
        return 2
    except KeyboardInterrupt:
        say("interrupted, nothing was finished.")
        return 130


def _run(argv: Sequence[str]) -> int:
    page = Page(sys.stdout)
    line = parse(app, _SPECS, argv, console_for(page))
    if line is None:
        write(page.text())
        return 0
    return (_COMMANDS.get(line.command) or _ADDED[line.command].run)(line)


def _gpus(line: Line) -> int:
    faults = Faults(line.faults)
    gpu = None if line.positional is None else faults.attempt(load_gpu, line.positional)
    if line.flag("template") and (line.positional is not None or line.flag("json")):
        faults.append("--template prints one TOML file: give it without a name and without --json.")
    faults.raise_any()
    if line.flag("template"):
        write(template())
        return 0
    gpus = [load_gpu(name) for name in gpu_names()] if gpu is None else [gpu]
    if line.flag("json"):
        print_json(gpus_data(gpus))
    else:
        print_report(gpus_report(gpus) if gpu is None else gpu_report(gpu))
    return 0


def _compare(line: Line) -> int:
    request = _request(line, "flash")
    ReplayNotice().about(request, "naive", "flash")
    with ProgressBar() as bar:
        comparison = request.compare(progress=bar)
    if line.flag("json"):
        print_json(comparison.as_dict())
    else:
        print_report(comparison_report(comparison, request.gpu, request.tile))
    return 0


def _simulate(line: Line) -> int:
    request = _request(line, line.positional)
    ReplayNotice().about(request, request.algorithm)
    with ProgressBar() as bar:
        result = request.simulate(progress=bar)
    if line.flag("json"):
        print_json(result.as_dict())
    else:
        print_report(result_report(result, request.gpu, request.tile))
    return 0


def _request(line: Line, algorithm: str | None) -> Request:
    """The request of a line, or all that is wrong with it."""
    faults = Faults(line.faults)
    if algorithm is None and not faults:
        faults.append(f"simulate needs an ALGORITHM: choose one of {', '.join(PROGRAMS)}.")
    gpu_fields = _gpu_fields(line, faults)
    request = faults.attempt(lambda: read_request(
        line.options, gpu_fields, algorithm=algorithm or "flash", count_only=line.flag("count-only")
    ))  # fmt: skip
    faults.raise_any()
    assert request is not None
    return request


def _gpu_fields(line: Line, faults: Faults) -> dict[str, str]:
    fields: dict[str, str] = {}
    for text in line.repeated["set"]:
        key, equals, value = text.partition("=")
        if not equals or not key:
            faults.append(f"--set is {quoted(text)}: give KEY=VALUE, such as sm.count=66.")
        elif key in fields or key in line.options.keys() & SHORT_OPTIONS.keys():
            faults.append(f"{quoted(key)} is set twice: give it once.")
        else:
            fields[key] = value
    return fields


def _sweep(line: Line) -> int:
    faults = Faults(line.faults)
    gpu_fields = _gpu_fields(line, faults)
    options = {name: text for name, text in line.options.items() if name in PROBLEM | TILE | MACHINE | RUN}
    axes = []
    for text in line.repeated["vary"]:
        name, equals, values = text.partition("=")
        if not equals or not name:
            faults.append(f"--vary is {quoted(text)}: give AXIS=V1,V2, such as seq-len=1Ki,2Ki.")
        else:
            axes.append((name, values.split(",")))
    if line.positional is not None and any(name == "algorithm" for name, _ in axes):
        faults.append("algorithm is varied and given too: give one of them.")
    count_only = line.flag("count-only")
    plan = None
    if axes or not faults:
        plan = faults.attempt(lambda: SweepPlan(
            line.positional or "flash", axes, options, gpu_fields, count_only=count_only
        ))  # fmt: skip
    with ExitStack() as files:
        csv = faults.attempt(CsvFile, line.options["csv"]) if "csv" in line.options else None
        if csv is not None:
            files.enter_context(csv)
        faults.raise_any()
        assert plan is not None
        return _run_sweep(plan, csv, as_json=line.flag("json"))


def _run_sweep(plan: SweepPlan, csv: CsvFile | None, *, as_json: bool) -> int:
    rows: list[SweepRow] = []
    interrupted = False
    notice = ReplayNotice()
    with ProgressBar() as bar:
        try:
            for row in plan.rows(lambda request: notice.about(request, request.algorithm)):
                rows.append(row)
                bar("points", len(rows), plan.points)
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
    reasons = {row.reason for row in rows if row.status == "refused"}
    if len(rows) > 1 and len(reasons) == 1 and all(row.status == "refused" for row in rows):
        # What every point shares is a fault of the command, not a finding.
        raise MemsimError(str(reasons.pop()))
    table = plan.table(rows)
    unwritten = Faults()
    if csv is not None:
        # A disk that is full takes the file, not the figures: they are printed all the same.
        unwritten.attempt(csv.write, table)
        if not unwritten:
            say(f"{len(rows)} of {plan.points} rows are in {quoted(csv.path)}.")
    if as_json:
        print_json(table.as_dict())
    else:
        print_report(sweep_report(table))
    unwritten.raise_any()
    if interrupted:
        say(f"interrupted: {len(rows)} of {plan.points} points were finished, and their rows are written.")
    return 130 if interrupted else 0


_COMMANDS: dict[str, Callable[[Line], int]] = {
    "gpus": _gpus,
    "compare": _compare,
    "simulate": _simulate,
    "sweep": _sweep,
    "validate": VALIDATE.run,
    "calibrate": CALIBRATE.run,
}
