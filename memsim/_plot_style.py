"""How every picture looks: colours that also differ in lightness, shapes, axes with units, the caption above."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memsim._plot import Plot
from memsim._report_format import wrapped

Spec = dict[str, Any]
Draw = Callable[[Plot], Spec]

INK, SOFT, LINE = "#1a1a1a", "#595959", "#bdbdbd"
# Okabe and Ito's colours: told apart by the colour-blind, and light, dark and black where there is no colour.
COLOURS: Mapping[str, str] = {"naive": "#e69f00", "flash": "#0072b2", "flash1": "#009e73"}
SHAPES: Mapping[str, str] = {"naive": "triangle-up", "flash": "circle", "flash1": "square"}
DASHES: Mapping[str, list[int]] = {"naive": [6, 3], "flash": [1, 0], "flash1": [2, 2]}

# Of the widest font that may stand for a sans-serif one, so that no words are cut where it does.
_CHARACTER = 7.2
_CONFIG: Spec = {
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
        "gridColor": "#e6e6e6", "domainColor": "#8c8c8c", "tickColor": "#8c8c8c", "titlePadding": 8,
    },
    "text": {"fontSize": 12, "color": INK},
    "title": {
        "anchor": "start", "frame": "bounds", "fontSize": 15, "color": INK, "subtitleFontSize": 12,
        "subtitleColor": SOFT, "subtitlePadding": 6, "offset": 14, "subtitleLineHeight": 16,
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "symbolSize": 70},
}  # fmt: skip


def drawn(plot: Plot) -> Spec:
    """The Vega-Lite specification of a plot, its caption above it and its notes below."""
    from memsim._plot_cells import CELLS
    from memsim._plot_lines import LINES

    spec = {**CELLS, **LINES}[plot.kind](plot)
    wide = int(spec.pop("wide", 560) / _CHARACTER)
    caption = [part for line in plot.caption for part in wrapped(line, wide)]
    said = f"{plot.title}. {' '.join(plot.caption)}"
    title = {"text": wrapped(plot.title, int(wide * 0.8)), "subtitle": caption}
    return {"title": title, "description": said, "background": "white", "padding": 16, **spec, "config": _CONFIG}


def values(rows: Sequence[Mapping[str, Any]]) -> Spec:
    return {"values": [dict(row) for row in rows]}


def layer(mark: Spec | str, rows: Sequence[Mapping[str, Any]], **encoding: Any) -> Spec:
    """One layer of a picture: a mark for each of these rows."""
    return {"data": values(rows), "mark": mark, "encoding": encoding}


def text(rows: Sequence[Mapping[str, Any]], label: str, mark: Spec | None = None, **encoding: Any) -> Spec:
    """A layer of words, those in the field `label`."""
    return layer({"type": "text", **(mark or {})}, rows, text={"field": label, "type": "nominal"}, **encoding)


def quantity(field: str, title: str | None, unit: str, **more: Any) -> Spec:
    """An axis of numbers in base units, its labels in thousands of them: 500 MB, 20 µs."""
    axis = {"labelExpr": si(unit), **more.pop("axis", {})}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis, **more}


def si(unit: str) -> str:
    """The expression that labels an axis of base units with a prefix: 1.5 GB."""
    return f"replace(format(datum.value, '~s'), /([a-zA-Zµ]?)$/, ' $1{unit}')"


def log_quantity(field: str, title: str, unit: str, low: float, high: float, **axis: Any) -> Spec:
    """A log axis of base units between these ends, with marks at 1, 2 and 5 times powers of ten, or fewer."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = math.log10(high / low)
    digits = (1, 2, 5) if decades < 3 else (1,)
    every = max(1, round(decades / 6)) if decades >= 3 else 1
    marks = [digit * 10.0**power for power in powers if power % every == 0 for digit in digits]
    axis = {"values": [mark for mark in marks if low <= mark <= high], **axis}
    return quantity(field, title, unit, scale=log(low, high), axis=axis)


def log(low: float, high: float, base: int = 10) -> Spec:
    """A log scale over these ends."""
    return {"type": "log", "base": base, "domain": [low, high], "nice": False}


def tips(names: Mapping[str, str]) -> list[Spec]:
    """What the pointer shows, in HTML."""
    return [{"field": name, "title": title} for name, title in names.items()]
