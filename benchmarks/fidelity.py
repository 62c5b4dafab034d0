"""How close the simulator comes to an H200: the accuracy tables of docs/validation.md, from stored replays.

    python benchmarks/fidelity.py                    print them, from what is stored
    python benchmarks/fidelity.py --write            replay every row, store that, and put the tables into the text
    python benchmarks/fidelity.py --write --jobs 2   so in two processes; a run that was stopped goes on
    python benchmarks/fidelity.py --tables           put the tables of what is stored into the text

Replays of all rows take some 30 minutes on two cores. What is stored is held against new replays of a sample, and the
text against what is stored, by tests/fidelity/test_stored.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from memsim._cli_progress import ProgressBar
from memsim._report_accuracy import ablation_markdown, accuracy_markdown
from memsim._simulated import REPLAYED
from memsim.grid import ORDERS
from memsim.measurements import Measurement, Measurements, read_measurements
from memsim.validate import Validation, validate

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "fidelity" / "data"
TEXT = ROOT / "docs" / "validation.md"
MEASURED = ROOT / "measurements"
JUDGE, COUNTERS, ORDERED = "h200_judge.csv", "counters.csv", "h200_grid_orders.csv"
FILES = {JUDGE: MEASURED / JUDGE, COUNTERS: DATA / COUNTERS, ORDERED: MEASURED / ORDERED}
STORED = DATA / "replayed.csv"
HBM_LINES = ("hbm_reads_full", "hbm_reads_causal")

WITHOUT = ("l2", "contention", "buffer-reuse", "dependences", "pipes", "l1", "block-start", "cold-misses")
ORDERED_ROWS = 64
"""Rows of the tile of which the grid orders are shown."""
WITHOUT_ROWS = 40_000
"""Rows of Q, of all heads, up to which a problem takes part where parts of the model are left out."""

Stored = dict[tuple[str, str, int], dict[str, float]]
"""What replays said, by what was left out, file and line."""


def rows_of(name: str) -> tuple[Measurement, ...]:
    return tuple(row for row in read_measurements(FILES[name]).rows if not row.error)


def rows_without() -> tuple[Measurement, ...]:
    """The rows on which parts of the model are left out: whole problems, those that are quick to replay."""
    return tuple(row for row in rows_of(JUDGE) if _is_small(row))


def _is_small(row: Measurement) -> bool:
    p = row.problem
    return p.batch * p.heads * p.seq_len_q <= WITHOUT_ROWS and p.seq_len_k <= 2048


def read_stored() -> Stored:
    with STORED.open(encoding="utf-8", newline="") as lines:
        return {
            (line["without"], line["file"], int(line["line"])): {name: _number(line[name]) for name in REPLAYED}
            for line in csv.DictReader(lines)
        }


def write_stored(stored: Stored) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("without", "file", "line", *REPLAYED))
    for (without, name, line), figures in stored.items():
        writer.writerow((without, name, line, *(repr(figures[column]) for column in REPLAYED)))
    STORED.write_text(text.getvalue(), encoding="utf-8")


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def replayed(name: str, rows: Sequence[Measurement], jobs: int, without: str = "") -> Stored:
    """What replays of these rows say."""
    from memsim._replays import replay_rows
    from memsim._simulated import Simulator

    simulator = Simulator()
    launches = [simulator.launch(row) for row in rows]
    parts = frozenset(without.split("+")) if without else frozenset()
    print(f"{len(rows)} rows of {name}{f' without {without}' * bool(without)}", file=sys.stderr, flush=True)
    with ProgressBar() as bar:
        found = replay_rows(rows, launches, without=parts, jobs=jobs, keep=True, progress=bar)
    return {(without, name, row.line): figures for row, figures in zip(rows, found, strict=True)}


def validation_of(name: str, stored: Stored) -> Validation:
    """A file of rows against what is stored of it."""
    rows = rows_of(name)
    return validate(Measurements(rows), known=[stored["", name, row.line] for row in rows])


def ablation_of(stored: Stored) -> Validation:
    """The small problems against what is stored of them, whole and without parts of the model."""
    rows = rows_without()

    def known(without: str) -> list[Mapping[str, float]]:
        return [stored[without, JUDGE, row.line] for row in rows]

    parts = [without for without in WITHOUT if (without, JUDGE, rows[0].line) in stored]
    return validate(
        Measurements(rows), known=known(""), known_without={frozenset([part]): known(part) for part in parts}
    )


def orders_markdown(stored: Stored) -> str:
    """HBM reads and times of flash in every grid order, simulated beside measured, with the smaller tile."""
    text = [f"| heads × N × 128 | {' | '.join(ORDERS)} |", "| --- |" + " --- |" * len(ORDERS)]
    found: dict[str, dict[str, str]] = {}
    for row in rows_of(ORDERED):
        p, said = row.problem, stored["", ORDERED, row.line]
        if row.block_m == ORDERED_ROWS:
            name = f"{p.heads} × {p.seq_len_k}{' causal' if p.causal else ''}"
            reads = [1e-6 * figure for figure in (said["hbm_read_bytes"], row.values["hbm_read_bytes"])]
            times = [1e6 * figure for figure in (said["time_s"], row.values["duration_s"])]
            cell = ", ".join(f"{simulated:,.0f} ({measured:,.0f})" for simulated, measured in (reads, times))
            found.setdefault(name, {})[row.tile.grid_order] = cell
    text += [f"| {name} | {' | '.join(cells.get(order, '–') for order in ORDERS)} |" for name, cells in found.items()]
    return "\n".join(text) + "\n"


def blocks(stored: Stored) -> dict[str, str]:
    """The parts of docs/validation.md that are made from what is stored, by name."""
    counters = accuracy_markdown(validation_of(COUNTERS, stored), HBM_LINES)
    return {
        "accuracy": accuracy_markdown(validation_of(JUDGE, stored)),
        "accuracy of counters": counters,
        "grid orders": orders_markdown(stored),
        "parts": ablation_markdown(ablation_of(stored)),
    }


def with_blocks(text: str, made: Mapping[str, str]) -> str:
    """The text with these parts between their marks."""
    for name, block in made.items():
        begin, end = f"<!-- {name}: made by benchmarks/fidelity.py -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"docs/validation.md lacks the marks of {name!r}")
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="replay, store and write the text")
    options.add_argument("--tables", action="store_true", help="write the text from what is stored")
    options.add_argument("--jobs", type=int, default=2, help="processes")
    given = options.parse_args(arguments)
    if given.write:
        stored: Stored = {}
        for name in FILES:
            stored |= replayed(name, rows_of(name), given.jobs)
        for part in WITHOUT:
            stored |= replayed(JUDGE, rows_without(), given.jobs, part)
        write_stored(stored)
    made = blocks(read_stored())
    if given.write or given.tables:
        TEXT.write_text(with_blocks(TEXT.read_text(encoding="utf-8"), made), encoding="utf-8")
    for name, block in made.items():
        print(f"{name}\n\n{block}")


if __name__ == "__main__":
    main(sys.argv[1:])
