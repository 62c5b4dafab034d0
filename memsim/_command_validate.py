"""The command `memsim validate`: a file of measurements, or an export of ncu, against the simulator."""

from __future__ import annotations

from memsim._cli_output import print_json, print_report, write
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._csv_text import Line as CsvLine
from memsim._option_list import FLASH_ONLY, MACHINE, PROBLEM, RUN, TILE, Option
from memsim._options import Faults, Machines, Request, read_request
from memsim.gpu import Gpu
from memsim.measurements import Measurements, measurements_of
from memsim.tile import Tile
from memsim.units import quoted

_ALGORITHMS = {"flash": ("flash",), "naive": ("qk", "softmax", "pv")}
_GPU = Option(
    "gpu", "GPU", "The GPU of every row, in place of what the file says; for an export, h200 if not given.",
    MACHINE["gpu"].value,
)  # fmt: skip
_LSE = RUN["lse"]
_OF_AN_EXPORT = {option.name: option for option in (*PROBLEM.values(), *TILE.values(), _LSE)}

SPEC = Spec(
    "validate",
    "Simulated against measured: a measurement CSV, or an export of ncu with the problem and tile it is of (their "
    "options are for exports only).",
    (
        Option("times", "Compare", "Replay every launch whose time was measured, however long that takes.", flag=True),
        Option("rows", "Compare", "Show every row, not only the worst.", flag=True),
        Option("columns", "Compare", "Print the table of columns, result fields and ncu metrics.", flag=True),
        _GPU,
        Option("algorithm", "Export", "Of an export, only the kernels of this algorithm.", "|".join(_ALGORITHMS)),
        *_OF_AN_EXPORT.values(),
        Option("json", "Output", "Print JSON, alone on standard output.", flag=True),
    ),
    Option("file", "", "A CSV file with the columns of --columns, or what ncu --csv printed."),
    "FILE.csv",
)  # fmt: skip


def run(line: Line) -> int:
    """Compare, print, and return 1 if a claim does not hold."""
    from memsim._report_validate import validation_report
    from memsim.validate import validate

    if line.flag("columns"):
        return _columns(line)
    gpu, measurements = _measured(line)
    with ProgressBar() as bar:
        validation = validate(measurements, gpu=gpu, times=line.flag("times"), progress=bar, before_replay=_notice)
    if line.flag("json"):
        print_json(validation.as_dict())
    else:
        print_report(validation_report(validation, line.positional or "", all_rows=line.flag("rows")))
    return 1 if validation.missed else 0


COMMAND = Command(SPEC, run)


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


def _measured(line: Line) -> tuple[Gpu | None, Measurements]:
    """The measurements that a line names, and the GPU that it has them be of."""
    from memsim.ncu import is_export, read_file

    faults = Faults(line.faults)
    machines = Machines()
    gpu = faults.attempt(machines.load, line.options["gpu"]) if "gpu" in line.options else None
    path = line.positional
    if path is None and not faults:
        faults.append("validate needs a FILE: give the path of a measurement CSV or of an export of ncu.")
    read = None if path is None else faults.attempt(read_file, path)
    measurements = None
    if read is not None and path is not None:
        if is_export(read[0]):
            request = faults.attempt(_request, line, machines)
            faults.raise_any()
            assert request is not None
            return request.gpu, _exported(request, line.options.get("algorithm"), *read, path)
        if given := [f"--{name}" for name in (*_OF_AN_EXPORT, "algorithm") if name in line.options]:
            faults.append(
                f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for exports of ncu: the rows of "
                f"{quoted(path)}, a measurement CSV, say themselves what they are of."
            )
        measurements = faults.attempt(measurements_of, *read, path, gpu)
    faults.raise_any()
    assert measurements is not None
    return gpu, measurements


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
