"""The command line: `memsim gpus`, `compare`, `simulate`, `sweep`, `tune`, `validate`, `calibrate`, `plot`, and
what is added.

A package adds a command by an entry point of the group "memsim.commands": a `Command`.

Exit codes: 0 done, 1 a check did not hold, 2 bad input or an output that cannot be written (a sentence per fault on
standard error), 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

from memsim import __version__
from memsim._cli_output import Page, console_for, print_json, print_report, say, write
from memsim._cli_parse import Command, Line, Spec, build_app, parse
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._cli_request import JSON, REQUEST, gpu_fields
from memsim._command_calibrate import COMMAND as CALIBRATE
from memsim._command_plot import COMMAND as PLOT
from memsim._command_sweep import COMMAND as SWEEP
from memsim._command_tune import COMMAND as TUNE
from memsim._command_validate import COMMAND as VALIDATE
from memsim._option_list import Option
from memsim._options import Faults, Request, read_request
from memsim._report_gpus import gpu_report, gpus_data, gpus_report
from memsim.errors import MemsimError
from memsim.gpu import gpu_names, load_gpu, template
from memsim.programs import PROGRAMS
from memsim.report import comparison_report, result_report

_TEMPLATE = Option("template", "Output", "Print a GPU file to start from.", flag=True)

_ABOUT = "What an attention kernel does to a GPU's memory hierarchy, before anyone launches it."
_SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "gpus", "The GPUs that come with memsim, or every field of one.", (_TEMPLATE, JSON),
            Option("name_or_file", "", "A GPU's name, or the path of a TOML file."), "[NAME_OR_FILE]",
        ),
        Spec("compare", "Naive attention beside FlashAttention: what moves, how long it takes.", (*REQUEST, JSON)),
        Spec(
            "simulate", "One algorithm, launch by launch.", (*REQUEST, JSON),
            Option("algorithm", "", f"One of {', '.join(PROGRAMS)}."), "ALGORITHM",
        ),
        SWEEP.spec,
        TUNE.spec,
        VALIDATE.spec,
        CALIBRATE.spec,
        PLOT.spec,
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
    fields = gpu_fields(line, faults)
    request = faults.attempt(lambda: read_request(
        line.options, fields, algorithm=algorithm or "flash", count_only=line.flag("count-only")
    ))  # fmt: skip
    faults.raise_any()
    assert request is not None
    return request


_COMMANDS: dict[str, Callable[[Line], int]] = {
    "gpus": _gpus,
    "compare": _compare,
    "simulate": _simulate,
    "sweep": SWEEP.run,
    "tune": TUNE.run,
    "validate": VALIDATE.run,
    "calibrate": CALIBRATE.run,
    "plot": PLOT.run,
}
