"""The command `memsim calibrate`: the constants of a machine file fitted to measured launches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from memsim._calibrated_file import MachineFile, calibrated_text
from memsim._cli_output import print_json, print_report, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar
from memsim._command_validate import JOBS, jobs_of
from memsim._option_list import Option
from memsim._options import Faults
from memsim.errors import MemsimError
from memsim.gpu import Gpu, load_gpu
from memsim.measurements import Measurement, read_measurements
from memsim.units import parse_count, quoted

if TYPE_CHECKING:
    from memsim.calibrate import Calibration

_ROWS, _ITERATIONS = 160, 3

SPEC = Spec(
    "calibrate",
    "Fit the constants of a machine that no data sheet gives to a measurement CSV: the table [calibrated] of its file.",
    (
        Option("gpu", "Fit", "The machine: its file's [calibrated] is where the fit begins.", "NAME|FILE", "h200"),
        Option("rows", "Fit", "Rows to fit to, at most; whole problems are left out beside them.", "N", str(_ROWS)),
        Option("iterations", "Fit", "Iterations, at most; each replays every row once a constant and six times.", "N",
               str(_ITERATIONS)),
        Option("only", "Fit", "Fit these constants alone and leave the others as they are.", "NAME,…"),
        Option("judge", "Fit", "A measurement CSV of other problems, to judge the constants by.", "FILE.csv"),
        JOBS,
        Option("out", "Output", "Write the machine's file with the new constants here, after every iteration.",
               "NEW.toml"),
        Option("json", "Output", "Print JSON, alone on standard output.", flag=True),
    ),
    Option("file", "", "A measurement CSV, as memsim measure writes it."),
    "FILE.csv",
)  # fmt: skip


def run(line: Line) -> int:
    """Fit, write what is better, print; 130 if interrupted, with the best so far written."""
    from memsim.calibrate import calibrate

    faults = Faults(line.faults)
    name = line.options.get("gpu", "h200")
    gpu = faults.attempt(load_gpu, name)
    path = line.positional
    if path is None and not faults:
        faults.append("calibrate needs a FILE: give the path of a measurement CSV, as memsim measure writes it.")
    rows = faults.attempt(_rows, path, gpu) if path is not None else None
    judge = faults.attempt(_rows, line.options["judge"], gpu) if "judge" in line.options else []
    most_rows = faults.attempt(_count, line, "rows", _ROWS, 1)
    iterations = faults.attempt(_count, line, "iterations", _ITERATIONS, 0)
    jobs = faults.attempt(jobs_of, line)
    out = faults.attempt(MachineFile, line.options["out"]) if "out" in line.options else None
    faults.raise_any()
    assert gpu is not None and path is not None and rows is not None and judge is not None
    assert most_rows is not None and iterations is not None and jobs is not None
    only = [name for name in line.options.get("only", "").split(",") if name]
    keeper = _Keeper(_writer(name, path, line.options.get("judge"), out))
    code = 0
    try:
        with ProgressBar() as bar:
            found = calibrate(
                gpu, rows, judge=judge, most_rows=most_rows, most_iterations=iterations,
                only=only, jobs=jobs, progress=bar, keep=keeper.keep,
            )  # fmt: skip
        keeper.keep(found)
    except KeyboardInterrupt:
        if keeper.best is None:
            raise
        found, code = keeper.best, 130
        say(f"interrupted: these are the constants after iteration {found.iterations}.")
    if line.flag("json"):
        print_json(found.as_dict())
    else:
        from memsim._report_calibrate import calibration_report

        print_report(calibration_report(found, gpu, path))
    return code


COMMAND = Command(SPEC, run)


class _Keeper:
    """The best so far, written as it comes."""

    def __init__(self, write: Callable[[Calibration], None]) -> None:
        self._write = write
        self.best: Calibration | None = None

    def keep(self, found: Calibration) -> None:
        self.best = found
        self._write(found)


def _rows(path: str, gpu: Gpu | None) -> list[Measurement]:
    """The rows of a file, which must be of one machine."""
    rows = read_measurements(path, gpu).rows
    if len(names := dict.fromkeys(row.gpu for row in rows)) > 1:
        raise MemsimError(f"the rows of {quoted(path)} are of {', '.join(names)}: give measurements of one machine.")
    return list(rows)


def _count(line: Line, name: str, default: int, least: int) -> int:
    count = parse_count(line.options[name], f"--{name}", least) if name in line.options else default
    if not least <= count <= 10**6:
        raise MemsimError(f"--{name} is {count}; give a whole number from {least} to 1000000.")
    return count


def _writer(gpu: str, path: str, judge: str | None, out: MachineFile | None) -> Callable[[Calibration], None]:
    """What writes the machine's file with what was found."""
    if out is None:
        return lambda found: None
    from memsim._gpu_files import machine_text

    text = machine_text(gpu)
    return lambda found: out.write(calibrated_text(text, found.constants, sources_of(found, path, judge)))


def sources_of(found: Calibration, path: str, judge: str | None) -> dict[str, str]:
    """Where the constants that were fitted or read off come from, as their file says it. Of those that are as before
    nothing new is said: the rows may not have told them apart."""
    from memsim.calibrate import BOUNDS, CLOCKS

    date = datetime.now(UTC).date().isoformat()
    of = found.fitted
    said = (
        f"fitted to SM cycles by memsim calibrate, {Path(path).name}, {date}: {of.rows} rows of {of.problems} problems"
    )
    said += f", mean error {_percent(of.mean)}"
    if found.left_out is not None:
        left = found.left_out
        said += f"; on {left.rows} rows of {left.problems} problems left out {_percent(left.mean)}"
    if found.judged is not None and judge is not None:
        said += f"; on {found.judged.rows} rows of {Path(judge).name} {_percent(found.judged.mean)}"
    clock = f"the median of cycles over seconds, {Path(path).name}, {date}"
    before = found.before.model_dump()
    changed = {name for name, value in found.constants.model_dump().items() if value != before[name]}
    return {name: clock if name in CLOCKS else said for name in (*BOUNDS, *CLOCKS) if name in changed}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
