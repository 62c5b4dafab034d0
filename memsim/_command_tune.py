"""The command `memsim tune`: the best tiles of an algorithm for a problem and a machine."""

from __future__ import annotations

from contextlib import ExitStack

from memsim._cli_csv import CsvFile, same_file
from memsim._cli_output import print_json, print_report, say
from memsim._cli_parse import Command, Line, Spec
from memsim._cli_progress import ProgressBar, ReplayNotice
from memsim._cli_request import JSON, REQUEST, gpu_fields, request_options, varied
from memsim._option_list import Option
from memsim._options import Faults
from memsim.programs import PROGRAMS
from memsim.report import tuning_report
from memsim.sweep import workers_for
from memsim.tune import BY, MOST_WANTED, Plan, Tuning
from memsim.units import parse_bytes, parse_count, quoted

_BY = Option("by", "Tuning", "What candidates are ranked by.", "|".join(BY), BY[0])
_BLOCK_SRAM = Option(
    "block-sram", "Tuning", "The most SRAM that a block may take; --sram says how much an SM has.", "SIZE",
    "what the GPU allows",
)  # fmt: skip
_VARY = Option(
    "vary", "Tuning", "Values of a field of the tile, as in a sweep: block-m, block-n, tile (64x32 is both of them), "
    "num-warps, num-stages, load-path or grid-order; may be repeated. A field given as an option has that value only; "
    "else blocks of 16 to 256, 4 and 8 warps, 1 to 4 stages, every load path and, causal, every grid order are tried, "
    "of full attention two.",
    "FIELD=V1,V2,…", repeatable=True,
)  # fmt: skip
_BEST = Option("best", "Tuning", f"How many of the best are wanted, up to {MOST_WANTED}.", "N", "10")
_OUT = Option(
    "out", "Tuning", "Keep every replay in this SQLite file; the same command goes on where it stopped.", "FILE.db"
)
_JOBS = Option("jobs", "Tuning", "Processes that replay side by side (extra sweeps).", "N", "1")
_CLUSTER = Option(
    "cluster", "Tuning", "The Dask scheduler whose workers replay (extra sweeps).", "tcp://HOST:PORT"
)  # fmt: skip
_CSV = Option("csv", "Output", "Also write every candidate that was tried to this file, the best first.", "FILE")

SPEC = Spec(
    "tune", "The best tile, warps, stages, load path and grid order, and what holds each back.",
    (_BY, _BLOCK_SRAM, _VARY, _BEST, _OUT, _JOBS, _CLUSTER, *REQUEST, _CSV, JSON),
    Option("algorithm", "", f"One of {', '.join(PROGRAMS)}.", default="flash"),
    "[ALGORITHM]",
)  # fmt: skip


def run_line(line: Line) -> int:
    """Tune, write and print what was found, and return the exit code."""
    faults = Faults(line.faults)
    with ExitStack() as stack:
        plan = _plan(line, faults)
        workers = faults.attempt(
            lambda: workers_for(parse_count(line.options.get("jobs", "1"), "jobs", 1), line.options.get("cluster"))
        )
        file = _csv(line, faults, stack)
        faults.raise_any()
        assert plan is not None and workers is not None
        out = line.options.get("out")
        with ProgressBar("candidates") as bar:
            survey = plan.survey(lambda done, total: bar("counting", done, total))
            if not plan.request.count_only:
                operations = sum(candidate.tile_operations for candidate in survey.candidates)
                ReplayNotice().operations(operations, "--vary takes fewer candidates, and --jobs more processes")
            tuning = plan.run(survey, workers, out, lambda done, total: bar("candidates", done, total))
        return _show(tuning, file, out, as_json=line.flag("json"))


COMMAND = Command(SPEC, run_line)


def _show(tuning: Tuning, file: CsvFile | None, out: str | None, *, as_json: bool) -> int:
    unwritten = Faults()
    if file is not None:
        # A disk that is full takes the file, not the figures: they are printed all the same.
        unwritten.attempt(file.write, tuning)
        if not unwritten:
            say(f"{len(tuning.ranked)} candidates are in {quoted(file.path)}.")
    if as_json:
        print_json(tuning.as_dict())
    else:
        print_report(tuning_report(tuning))
    unwritten.raise_any()
    if tuning.interrupted:
        goes_on = "" if out is None else f", which are in {quoted(out)}: the same command goes on after them"
        say(f"interrupted: these are the best of the {len(tuning.ranked)} candidates that were tried{goes_on}.")
    return 130 if tuning.interrupted else 0


def _plan(line: Line, faults: Faults) -> Plan | None:
    fields = gpu_fields(line, faults)
    axes = [(name, values.split(",")) for name, values in varied(line, faults, "num-stages=2,3", "FIELD")]
    limit = line.options.get("block-sram")
    block_sram_bytes = None if limit is None else faults.attempt(parse_bytes, limit, "block-sram", 1)
    wanted = faults.attempt(parse_count, line.options.get("best", "10"), "best", 1)
    by = line.options.get("by", BY[0])
    return faults.attempt(lambda: Plan(
        line.positional or "flash", axes, request_options(line), fields, by=by, block_sram_bytes=block_sram_bytes,
        wanted=wanted if wanted is not None else 1, count_only=line.flag("count-only"),
    ))  # fmt: skip


def _csv(line: Line, faults: Faults, stack: ExitStack) -> CsvFile | None:
    path = line.options.get("csv")
    if path is None:
        return None
    if "out" in line.options and same_file(line.options["out"], path):
        faults.append("csv and out are the same file: give two.")
        return None
    file = faults.attempt(CsvFile, path)
    return None if file is None else stack.enter_context(file)
