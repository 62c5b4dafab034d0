"""The command `memsim validate`: files of measurements, or an export of ncu, against the simulator."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from memsim._cli_csv import CsvFile
from memsim._cli_output import print_json, print_report, say, write
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._csv_text import Line as CsvLine
from memsim._option_list import FLASH_ONLY, MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults, Machines, Request, read_request
from memsim.errors import MemsimError
from memsim.gpu import Gpu
from memsim.machine import PARTS, check_parts
from memsim.measurements import Measurements, measurements_of
from memsim.tile import Tile
from memsim.units import parse_count, quoted

if TYPE_CHECKING:
    from memsim._plot_files import PlotFile
    from memsim.validate import Validation

_ALGORITHMS = {"flash": ("flash",), "naive": ("qk", "softmax", "pv")}
_GPU = Option(
    "gpu", "GPU", "The GPU of every row, in place of what the file says; for an export, h200 if not given.",
    MACHINE["gpu"].value,
)  # fmt: skip
JOBS = Option("jobs", "Compare", "Processes that replay side by side.", "N", "the cores")
_LSE = RUN["lse"]
_OF_AN_EXPORT = {option.name: option for option in (*PROBLEM.values(), *TILE.values(), _LSE)}

SPEC = Spec(
    "validate",
    "Simulated against measured: measurement CSVs, or an export of ncu with the problem and tile it is of (their "
    "options are for exports only).",
    (
        Option(
            "times", "Compare", "Replay every launch whose times or HBM bytes were measured, however long that takes. "
            "Replays are kept, so that a run that was stopped goes on.", flag=True,
        ),
        Option(
            "without", "Compare", "Also leave a part of the model out, to see what it is worth: any of "
            f"{', '.join(PARTS)}; a+b leaves out two at once.", "PART,…",
        ),
        JOBS,
        Option("rows", "Compare", "Show every row, not only the worst.", flag=True),
        Option("columns", "Compare", "Print the table of columns, result fields and ncu metrics.", flag=True),
        _GPU,
        Option("algorithm", "Export", "Of an export, only the kernels of this algorithm.", "|".join(_ALGORITHMS)),
        *_OF_AN_EXPORT.values(),
        Option("json", "Output", "Print JSON, alone on standard output.", flag=True),
        Option("markdown", "Output", "Print the accuracy table as Markdown.", flag=True),
        Option("csv", "Output", "Also write every column of every row to this file.", "FILE"),
        Option("plot", "Output", "Also draw simulated against measured (extra plots).", "FILE.svg|.png|.html"),
    ),
    Option(
        "file", "", "CSV files with the columns of --columns, or one that ncu --csv printed.", repeatable=True
    ),
    "FILE.csv…",
)  # fmt: skip


def run(line: Line) -> int:
    """Compare, print, and return 1 if a claim does not hold."""
    if line.flag("columns"):
        return _columns(line)
    faults = Faults(line.faults)
    without = faults.attempt(_parts, line.options.get("without", "")) or []
    jobs = faults.attempt(jobs_of, line) or 1
    if line.flag("json") and line.flag("markdown"):
        faults.append("--json and --markdown are two outputs: give one of them.")
    with ExitStack() as files:
        csv = faults.attempt(CsvFile, line.options["csv"]) if "csv" in line.options else None
        if csv is not None:
            files.enter_context(csv)
        picture = _picture(line, faults, files)
        measured = faults.attempt(measured_of, replace(line, faults=Faults()))
        faults.raise_any()
        assert measured is not None
        validation = validated(*measured, line.flag("times"), without, jobs)
        return _show(validation, line, csv, picture) if validation is not None else 130


COMMAND = Command(SPEC, run)


def jobs_of(line: Line) -> int:
    """The processes that a line asks for, else as many as there are cores."""
    text = line.options.get("jobs")
    count = (os.cpu_count() or 1) if text is None else parse_count(text, "--jobs", 1)
    if not 1 <= count <= 1024:
        raise MemsimError(f"--jobs is {quoted(text)}; give a whole number from 1 to 1024.")
    return count


def validated(
    gpu: Gpu | None, measurements: Measurements, times: bool, without: list[frozenset[str]], jobs: int
) -> Validation | None:
    """The validation, None if it was interrupted."""
    from memsim.validate import validate

    try:
        with ProgressBar() as bar:
            return validate(
                measurements, gpu=gpu, times=times, without=without, jobs=jobs, keep=True, progress=bar,
                before_replay=_notice,
            )  # fmt: skip
    except KeyboardInterrupt:
        say("interrupted: the replays that were finished are kept, and the same command goes on after them.")
        return None


def _show(validation: Validation, line: Line, csv: CsvFile | None, picture: PlotFile | None) -> int:
    from memsim._report_accuracy import ablation_markdown, accuracy_markdown
    from memsim._report_validate import validation_report
    from memsim._validate_table import ValidateTable

    path = ", ".join(line.positionals)
    unwritten = Faults()
    if csv is not None:
        unwritten.attempt(csv.write, ValidateTable(validation, path))
    if picture is not None:
        from memsim.plot import measured

        unwritten.attempt(lambda: picture.write(measured(validation)))
    if line.flag("json"):
        print_json(validation.as_dict())
    elif line.flag("markdown"):
        write(accuracy_markdown(validation) + ("\n" + ablation_markdown(validation) if validation.without else ""))
    else:
        print_report(validation_report(validation, path, all_rows=line.flag("rows")))
    unwritten.raise_any()
    return 1 if validation.missed else 0


def _picture(line: Line, faults: Faults, stack: ExitStack) -> PlotFile | None:
    """The place of the picture, where one is asked for."""
    if "plot" not in line.options:
        return None
    from memsim._plot_files import ValidatePlotFile

    file = faults.attempt(ValidatePlotFile, line.options["plot"])
    return None if file is None else stack.enter_context(file)


def _parts(text: str) -> list[frozenset[str]]:
    """What each comparison leaves out: "l2,l1+pipes" is the L2, then L1 and pipes."""
    sets = [frozenset(part.strip() for part in names.split("+")) for names in text.split(",")] if text else []
    check_parts(frozenset().union(*sets))
    return sets


def _notice(operations: int) -> None:
    ReplayNotice().operations(operations, "without --times the rest comes at once")


def _columns(line: Line) -> int:
    from memsim.columns import markdown_table

    faults = Faults(line.faults)
    if line.positional is not None or line.flag("json"):
        faults.append("--columns prints one table: give it without a file and without --json.")
    faults.raise_any()
    write(markdown_table())
    return 0


def measured_of(line: Line) -> tuple[Gpu | None, Measurements]:
    """The measurements that a line names, and the GPU that it has them be of."""
    from memsim.ncu import is_export, read_file

    faults = Faults(line.faults)
    machines = Machines()
    gpu = faults.attempt(machines.load, line.options["gpu"]) if "gpu" in line.options else None
    paths = line.positionals
    if not paths and not faults:
        faults.append(f"{line.command} needs a FILE: give the path of a measurement CSV or of an export of ncu.")
    read = []
    for path in paths:
        file = faults.attempt(read_file, path)
        if file is not None:
            if is_export(file[0]) and len(paths) > 1:
                faults.append(f"{quoted(path)} is an export of ncu, which is validated alone: give it without others.")
            read.append((path, *file))
    if len(paths) == 1 and read and is_export(read[0][1]):
        request = faults.attempt(_request, line, machines)
        faults.raise_any()
        assert request is not None
        path, header, lines = read[0]
        return request.gpu, _exported(request, line.options.get("algorithm"), header, lines, path)
    given = [f"--{name}" for name in (*_OF_AN_EXPORT, "algorithm") if name in line.options]
    if given and read:
        faults.append(
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for exports of ncu: the rows of "
            f"{quoted(paths[0])}, a measurement CSV, say themselves what they are of."
        )
    measured = [
        (path, faults.attempt(measurements_of, header, lines, path, gpu)) for path, header, lines in read
        if not is_export(header)
    ]  # fmt: skip
    faults.raise_any()
    return gpu, _together([(path, found) for path, found in measured if found is not None])


def _together(files: list[tuple[str, Measurements]]) -> Measurements:
    """The rows of all files, each with the file that it is in where there are several."""
    if len(files) == 1:
        return files[0][1]
    return Measurements(
        tuple(replace(row, source=path) for path, found in files for row in found.rows),
        tuple(dict.fromkeys(name for _, found in files for name in found.unknown_columns)),
    )


def _exported(
    request: Request, algorithm: str | None, header: CsvLine, lines: list[CsvLine], path: str
) -> Measurements:
    from memsim.ncu import measurements_from, read_export

    return measurements_from(
        read_export(header, lines, path), request.problem, Tile(**request.tile), request.gpu,
        gpu_name=request.gpu_name, lse=request.lse,
        kernels=_ALGORITHMS[algorithm] if algorithm else sum(_ALGORITHMS.values(), ()),
    )  # fmt: skip


def _request(line: Line, machines: Machines) -> Request:
    """The problem, tile and GPU that an export is said to be of."""
    faults = Faults()
    algorithm = line.options.get("algorithm")
    if algorithm is not None and algorithm not in _ALGORITHMS:
        faults.append(f"algorithm is {quoted(algorithm)}; of an export it must be one of {', '.join(_ALGORITHMS)}.")
    if missing := [f"--{name}" for name in TILE if name not in FLASH_ONLY and name not in line.options]:
        faults.append(f"an export of ncu does not say its tile: give {', '.join(missing)} too.")
    options = {name: text for name, text in line.options.items() if name in _OF_AN_EXPORT or name == "gpu"}
    request = faults.attempt(lambda: read_request(options, {}, machines=machines))
    faults.raise_any()
    assert request is not None
    return request
