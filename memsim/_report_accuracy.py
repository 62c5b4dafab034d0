"""The accuracy table as text and as Markdown, and what parts of the model are worth."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.console import RenderableType

from memsim._accuracy import PEERS, Line
from memsim._report_format import NONE, Figures, Paragraph
from memsim.machine import PARTS
from memsim.validate import Validation

_LABEL_WIDTH = 28
_HEADINGS = ("rows", "exact", "mean", "worst", "at", "mean in\nseconds", "bar", "met")


def accuracy_figures(validation: Validation) -> list[RenderableType]:
    """The table with what is said beside it; nothing where no row says anything."""
    lines = _told(validation.accuracy)
    if not lines:
        return []
    rows = [(_label(line), _cells(line)) for line in lines]
    parts: list[RenderableType] = [Figures(_HEADINGS, rows, "accuracy"), "", *map(Paragraph, _beside(validation))]
    if validation.without:
        parts += ["", _ablation(validation)]
        parts += ["", *map(Paragraph, _left_out(validation))]
    return parts


def accuracy_markdown(validation: Validation, keys: Container[str] | None = None) -> str:
    """The table as documentation has it, or its lines of these keys."""
    text = ["| | rows | exact | mean | worst | worst at | mean in seconds | bar | met |"]
    text.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    told = [line for line in _told(validation.accuracy) if keys is None or line.key in keys]
    text += [f"| {' | '.join((line.name, *_cells(line, whole=True)))} |" for line in told]
    return "\n".join((*text, "", *_beside(validation, times=keys is None))) + "\n"


def ablation_markdown(validation: Validation) -> str:
    """What parts of the model are worth, as documentation has it: the mean of each line, whole and without them."""
    headings, rows = _ablated(validation)
    text = [f"| | {' | '.join(heading.replace(chr(10), ' ') for heading in headings)} |"]
    text.append("| --- |" + " --- |" * len(headings))
    text += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    return "\n".join((*text, "", *_left_out(validation))) + "\n"


def value_of(line: Line, value: float | None) -> str:
    """A mean or worst of a line: an error in percent, a τ, or a ratio."""
    if value is None:
        return NONE
    if line.kind != "error":
        return f"{value:.3f}"
    size = 100 * abs(value)
    return "0" if not size else f"{size:.1g} %" if size < 0.1 else f"{size:.1f} %" if size < 1000 else f"{size:,.0f} %"


def _told(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.count]


def _label(line: Line) -> str:
    """The name in two lines where it is long."""
    words, first = line.name.split(" "), ""
    while words and len(first) + len(words[0]) < _LABEL_WIDTH:
        first = f"{first} {words.pop(0)}".lstrip()
    return f"{first}\n{' '.join(words)}".rstrip()


def _cells(line: Line, *, whole: bool = False) -> list[str]:
    at = line.worst_at if line.worst else ""
    return [
        f"{line.count:,}",
        f"{line.exact:,}",
        value_of(line, line.mean),
        value_of(line, line.worst),
        (at if whole else _short(at)) or NONE,
        value_of(line, line.mean_in_seconds),
        _bar(line),
        {None: NONE, True: "yes", False: "NO"}[line.met],
    ]


def _short(at: str) -> str:
    """A row by its line, a problem in two lines."""
    return at.split(" (")[0] if at.startswith("line ") else at.replace(" ", "\n", 1)


def _bar(line: Line) -> str:
    if line.mean_bar is None:
        return NONE
    if line.mean_bar == line.worst_bar == 0:
        return "0"
    sign = "≥" if line.kind == "order" else "≤"
    bars = [f"{sign} {_bar_value(line, line.mean_bar)}"]
    bars.append(NONE if line.worst_bar is None else _bar_value(line, line.worst_bar))
    return ", ".join(bars)


def _bar_value(line: Line, bar: float) -> str:
    return f"{bar:.2f}" if line.kind != "error" else f"{100 * bar:.0f} %"


def _beside(validation: Validation, *, times: bool = True) -> Iterator[str]:
    """What is needed to read the table."""
    peers = ", ".join(f"{100 * error:.1f} % ({what})" for what, error in PEERS)
    if times:
        yield (
            "Errors are |simulated − measured| over measured, of all rows; times are compared in SM cycles where a row "
            f"has them. Published for scale, mean errors of times: {peers}."
        )
    for spread in validation.spreads:
        yield (
            f"The hardware's own spread: HBM reads of flash {'causal' if spread.causal else 'full'}, where a launch "
            f"was measured more than once with nothing in the caches ({spread.launches} of them), lie "
            f"{100 * spread.mean:.1f} % apart on average, at worst {100 * spread.worst:.1f} %."
        )


def _ablated(validation: Validation) -> tuple[list[str], list[tuple[str, list[str]]]]:
    names = ["+".join(sorted(names)) for names in validation.without]
    tables = [
        {line.key: line for line in table} for table in (validation.accuracy, *validation.accuracy_without.values())
    ]
    rows = [
        (line.name, [value_of(line, table[line.key].mean) for table in tables]) for line in _told(validation.accuracy)
    ]
    return ["whole", *(f"without\n{name}" for name in names)], rows


def _ablation(validation: Validation) -> Figures:
    headings, rows = _ablated(validation)
    return Figures(headings, rows, "mean")


def _left_out(validation: Validation) -> Iterator[str]:
    parts = dict.fromkeys(part for names in validation.without for part in sorted(names))
    said = "; ".join(f"without {part} leaves out {PARTS[part]}" for part in parts)
    yield f"Means; {said}."
