"""A validation as text: what does not hold, figures per kernel and column, the worst rows, and what is not checked."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._report_accuracy import accuracy_figures
from memsim._report_format import NONE, Figures, Paragraph, plural, seconds
from memsim._report_heading import spaced
from memsim.columns import COLUMNS, KERNELS, MEASURED
from memsim.measurements import Measurement
from memsim.programs.naive import WHOLE_ROW_COLUMNS
from memsim.units import quoted
from memsim.validate import Check, Row, Spill, Summary, Validation

MOST_ROWS = 5
"""Rows that are shown unless all are asked for."""
_MOST_NAMED = 20
_NAME_WIDTH = 30
_RELATIONS = {
    "exact": ("=", "equals simulated", "must equal it"),
    "at most": ("≤", "is at most simulated", "must be no more"),
    "at least": ("≥", "is at least simulated", "must be no less"),
}


def validation_report(validation: Validation, path: str, *, all_rows: bool = False) -> RenderableType:
    """What the measurements in the file at `path` say of the simulator."""
    gpus = ", ".join(dict.fromkeys(row.measurement.gpu for row in validation.rows))
    title = f"Simulated against measured: {plural(len(validation.rows), 'row')} of {gpus or 'no GPU'} in {path}"
    parts: list[RenderableType] = [
        Text(title, "bold"),
        Paragraph(_verdict(validation)),
        *spaced([*_misses(validation)]),
    ]
    if figures := accuracy_figures(validation):
        parts += ["", *figures]
    for kernel in KERNELS:
        if of_kernel := [summary for summary in validation.summaries if summary.kernel == kernel]:
            parts += ["", _summary_figures(kernel, of_kernel)]
    if validation.spills:
        parts += ["", _spill_figures(validation.spills)]
    shown = sorted(validation.rows, key=_badness, reverse=True)[: None if all_rows else MOST_ROWS]
    if len(shown) < len(validation.rows):
        parts += ["", Paragraph(f"The {len(shown)} worst of {len(validation.rows):,} rows; --rows shows all.", "bold")]
    for row in shown:
        parts += ["", _row_figures(row)]
    return Group(*parts, *spaced([*_reasons(validation), *_unchecked(validation)]))


def _verdict(validation: Validation) -> str:
    missed = validation.count(False)
    held = ", ".join(
        f"{words} on {plural(validation.count(True, relation), 'figure')}"
        for relation, (_, words, _) in _RELATIONS.items() if validation.count(True, relation)
    )  # fmt: skip
    failing = f"{plural(missed, 'claim')} do{'es' * (missed == 1)} not hold" if missed else "every claim holds"
    if not held and not missed:
        return "Nothing is claimed of these rows."
    return f"{failing[0].upper()}{failing[1:]}{f'; measured {held}' if held else ''}."


def _misses(validation: Validation) -> Iterator[str]:
    sentences = [
        f"Does not hold: {row.measurement.place}: {check.column} is {_figure(check.column, check.measured)} measured, "
        f"{_figure(check.column, check.simulated)} simulated; measured {_RELATIONS[check.relation][2]}."
        + (f" {check.detail[0].upper()}{check.detail[1:].rstrip('.')}." if check.detail else "")
        for row in validation.missed for check in row.checks if check.holds is False
    ]  # fmt: skip
    yield from sentences[:_MOST_NAMED]
    if len(sentences) > _MOST_NAMED:
        yield f"{plural(len(sentences) - _MOST_NAMED, 'more claim')} that do not hold are in --json."


def _summary_figures(kernel: str, summaries: Sequence[Summary]) -> Figures:
    headings = ["rows", "exact", "mean\nerror", "median\nerror", "worst\nerror", "worst row", "claim\nheld"]
    return Figures(headings, [(s.column, _summary_cells(s)) for s in summaries], kernel)


def _summary_cells(s: Summary) -> list[str]:
    return [
        f"{s.rows:,}",
        f"{s.exact:,}",
        *(_share(value) for value in (s.mean_error, s.median_error, s.worst_error)),
        f"line {s.worst_line}" if s.worst_error and s.worst_line else s.worst_row or NONE if s.worst_error else NONE,
        f"{s.claimed - s.missed:,}/{s.claimed:,}" if s.claimed else NONE,
    ]


def _spill_figures(spills: Sequence[Spill]) -> Figures:
    headings = [
        "fills beyond\nits tiles",
        "stores beyond\nits tiles",
        "stack\na thread",
        "spill\nloads",
        "spill\nstores",
    ]
    rows = []
    for spill in spills[:_MOST_NAMED]:
        sizes = (spill.fill_excess_bytes, spill.store_excess_bytes, spill.stack_bytes)
        counts = (spill.load_instructions, spill.store_instructions)
        cells = [NONE if size is None else f"{size:,} B" for size in sizes]
        rows.append((f"line {spill.line}", cells + [NONE if count is None else f"{count:,}" for count in counts]))
    more = len(spills) - _MOST_NAMED
    return Figures(headings, rows, "spilling" + (f"\n({more} more\nin --json)" if more > 0 else ""))


def _share(error: float | None) -> str:
    """A relative error: "0", "0.01 %", "12.4 %"; beyond a factor of ten "37×"."""
    if error is None:
        return NONE
    size, sign = abs(error), "−" if error < 0 else ""
    if size >= 9:
        return f"{sign}{size + 1:,.0f}×"
    return f"{sign}{100 * size:.1f} %" if size >= 0.001 else f"{sign}{100 * size:.1g} %" if size else "0"


def _badness(row: Row) -> tuple[bool, float, float]:
    """What sorts rows: claims that fail, then errors of what is claimed, then others."""
    claimed = [abs(check.error or 0.0) for check in row.checks if check.relation != "none"]
    return row.missed, max(claimed, default=0.0), max((abs(check.error or 0.0) for check in row.checks), default=0.0)


def _row_figures(row: Row) -> Figures:
    m = row.measurement
    name = "\n".join(textwrap.wrap(f"line {m.line}: {m.name}" if m.line else m.name, _NAME_WIDTH))
    lines = [(check.column, _check_cells(check)) for check in row.checks]
    return Figures(["simulated", "measured", "error", "claim"], lines, name)


def _check_cells(check: Check) -> list[str]:
    claim = "MISSED" if check.holds is False else _RELATIONS.get(check.relation, (NONE,))[0]
    error = "exact" if check.exact else _share(check.error)
    return [_figure(check.column, check.simulated), _figure(check.column, check.measured), error, claim]


def _figure(column: str, value: float | None) -> str:
    if value is None:
        return NONE
    return seconds(value) if COLUMNS[column].unit == "s" else f"{value:,.0f}"


def _reasons(validation: Validation) -> Iterator[str]:
    """Where less than equality is claimed, and why."""
    reasons: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in validation.rows:
        for check in row.checks:
            if check.why:
                reasons.setdefault((check.relation, check.why), []).append((check.column, row.measurement.kernel))
    for (relation, why), figures in sorted(reasons.items()):
        said = f"measured {_RELATIONS[relation][1]} only" if relation in _RELATIONS else "no claim"
        columns, kernels = (_listed([pair[part] for pair in figures]) for part in (0, 1))
        yield f"{columns} of {kernels} ({plural(len(figures), 'figure')}): {said}, because {why}."


def _listed(names: Sequence[str]) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} and {last}" if first else last


def _unchecked(validation: Validation) -> Iterator[str]:
    if validation.unchecked_columns:
        yield f"Not checked, because no row has a figure: {', '.join(validation.unchecked_columns)}."
    kept = [
        name for name, column in MEASURED.items()
        if not column.result and any(name in row.measurement.values for row in validation.rows)
    ]  # fmt: skip
    if kept:
        yield f"Not compared, because nothing of the kind is simulated: {', '.join(kept)}."
    if validation.unknown_columns:
        yield f"Not read, because they are no columns of a measurement: {_named(validation.unknown_columns)}."
    if validation.other_kernels:
        yield f"Not taken, because they are no kernels asked for: {_named(validation.other_kernels)}."
    if validation.without_times:
        yield (
            "HBM bytes and times are not compared: to replay these rows takes "
            f"{validation.without_times / 1e6:,.0f} million tile operations. --times does it."
        )
    if validation.failed_launches:
        first = validation.failed_launches[0]
        failed = plural(len(validation.failed_launches), "row")
        yield f"{failed} had an error in place of figures, the first on {first.place}: {first.error[:200].rstrip('.')}."
    long = [row.measurement for row in validation.rows if _is_long_row(row.measurement)]
    if long:
        yield (
            f"{plural(len(long), 'row')} of softmax took rows of more than {WHOLE_ROW_COLUMNS:,} columns whole "
            "(block_n = 0), and are simulated so; memsim's own kernel takes such rows in two passes."
        )


def _is_long_row(m: Measurement) -> bool:
    return m.kernel == "softmax" and m.whole_rows and m.problem.seq_len_k > WHOLE_ROW_COLUMNS


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(map(quoted, names[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
