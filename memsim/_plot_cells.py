"""Pictures made of bars and cells: bytes per level, busy shares, the map of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim._plot import Plot
from memsim._plot_style import COLOURS, INK, LINE, SOFT, Draw, Spec, layer, quantity, si, text, tips
from memsim._report_format import percent, seconds, size

_RESOURCES: Mapping[str, str] = {
    "hbm": "HBM", "l2": "L2", "sram": "SRAM port", "tensor": "tensor pipe", "exp": "exp pipe", "alu": "ALU pipe",
    "waiting_for_memory": "math waits",
}  # fmt: skip
_NARROW = 0.07
# From white to a middle blue, on which black words can be read, also without colour.
_SHADES = ["#f4f8fc", "#6ba3cf"]


def _bytes(plot: Plot) -> Spec:
    """A bar for each level and algorithm, cut by launch."""
    levels = list(dict.fromkeys(row["level"] for row in plot.rows))
    names = list(dict.fromkeys(row["algorithm"] for row in plot.rows))
    ends: dict[tuple[str, str], int] = {}
    bars = []
    for row in plot.rows:
        at = (row["level"], row["algorithm"])
        start = ends.get(at, 0)
        ends[at] = start + row["bytes"]
        bars.append({**row, "from": start, "to": ends[at], "middle": start + row["bytes"] / 2})
    widest = max(ends.values())
    several = {row["algorithm"] for row in plot.rows if row["launch"] != row["algorithm"]}
    inside = [bar for bar in bars if bar["algorithm"] in several and bar["bytes"] > _NARROW * widest]
    totals = [
        {"level": level, "algorithm": name, "to": end, "total": f"{name} {size(end)}"}
        for (level, name), end in ends.items()
    ]
    at_level = {"field": "level", "type": "nominal", "sort": levels, "title": None,
                "axis": {"ticks": False, "domain": False, "labelPadding": 8},
                "scale": {"paddingInner": 0.28, "paddingOuter": 0.1}}  # fmt: skip
    offset = {"field": "algorithm", "sort": names, "scale": {"paddingInner": 0.12}}
    where: Spec = {"y": at_level, "yOffset": offset}
    along = quantity("from", "bytes", "B", scale={"domain": [0, widest * 1.22], "nice": False}, axis={"tickCount": 6})
    colour = {"field": "algorithm", "type": "nominal", "legend": None,
              "scale": {"domain": names, "range": [COLOURS[name] for name in names]}}  # fmt: skip
    light = [bar for bar in inside if bar["algorithm"] == "naive"]
    return {
        "width": 560,
        "height": 62 * len(levels),
        "layer": [
            layer(
                {"type": "bar", "stroke": "white", "strokeWidth": 1.5}, bars, **where, x=along, x2={"field": "to"},
                color=colour, tooltip=tips({"level": "level", "algorithm": "algorithm", "launch": "launch",
                                            "bytes": "bytes"}),
            ),
            text(light, "launch", **where, x={"field": "middle", "type": "quantitative"}),
            text(totals, "total", {"align": "left", "dx": 5}, **where, x={"field": "to", "type": "quantitative"}),
        ],
    }  # fmt: skip


def _busy(plot: Plot) -> Spec:
    """A strip for each resource along the time, a bar for each launch, for each algorithm."""
    end = max(row["end_s"] for row in plot.rows)
    names = list(dict.fromkeys(row["algorithm"] for row in plot.rows))
    found = {row["resource"] for row in plot.rows}
    order = [name for name in _RESOURCES if name in found] + sorted(found - {*_RESOURCES})
    panels = [_strips([row for row in plot.rows if row["algorithm"] == name], name, order, end) for name in names]
    # Names of resources lie left of the axis, where nothing else keeps room for them.
    return {
        "wide": 680,
        "vconcat": panels,
        "spacing": 26,
        "padding": {"left": 40, "right": 16, "top": 16, "bottom": 16},
    }


def _strips(rows: list[Mapping[str, Any]], algorithm: str, order: list[str], end: float) -> Spec:
    bars = []
    for row in rows:
        foot = len(order) - 1 - order.index(row["resource"])
        bars.append({
            **row, "foot": foot, "head": foot + 0.86 * row["share"], "top": foot + 0.86, "said": percent(row["share"]),
            "middle_s": (row["start_s"] + row["end_s"]) / 2, "at": foot + 0.43,
        })  # fmt: skip
    y = {"field": "foot", "type": "quantitative", "axis": None,
         "scale": {"domain": [-0.08, len(order) + 0.36], "nice": False}}  # fmt: skip
    names = [
        {"start_s": 0, "foot": len(order) - 1 - place + 0.43, "name": _RESOURCES.get(name, name)}
        for place, name in enumerate(order)
    ]
    x = quantity("start_s", f"time of {algorithm}", "s", scale={"domain": [0, end], "nice": False},
                 axis={"grid": False, "tickCount": 7})  # fmt: skip
    span = {"x": x, "x2": {"field": "end_s"}, "y": y}
    launches = {row["launch"]: row for row in bars}
    wide = [row for row in bars if row["end_s"] - row["start_s"] > 1.2 * _NARROW * end]
    named = [
        {**row, "name": name, "at": len(order) + 0.12}
        for name, row in launches.items()
        if row["end_s"] - row["start_s"] > _NARROW * end
    ]
    at = {
        "x": {"field": "middle_s", "type": "quantitative"},
        "y": {"field": "at", "type": "quantitative", "axis": None},
    }
    tip = tips({"launch": "launch", "resource": "resource", "said": "busy"})
    return {
        "width": 560,
        "height": 30 * len(order),
        "layer": [
            layer({"type": "rect", "fill": "white", "stroke": LINE}, bars, **span, y2={"field": "top"}, tooltip=tip),
            layer({"type": "rect", "fill": COLOURS.get(algorithm, SOFT), "fillOpacity": 0.55}, bars, **span,
                  y2={"field": "head"}, tooltip=tip),
            text(wide, "said", {"fontSize": 11}, **at),
            text(named, "name", {"fontWeight": "bold"}, **at),
            text(names, "name", {"align": "right", "dx": -10}, x=x, y=y),
        ],
    }  # fmt: skip


def _tiles(plot: Plot) -> Spec:
    """A cell for each tile: its figure, shaded where it may be compared with the others, or why it cannot run."""
    field, show = ("time_s", seconds) if plot.facts["by"] == "time" else ("hbm_bytes", size)
    ran = [{**row, "said": show(row[field]) + ("*" if row["stack_bytes"] else ""), "why": "by trace"}
           for row in plot.rows if row["status"] == "ok"]  # fmt: skip
    not_run = [
        {**row, "said": "×", "why": "does not fit" if row["status"] == "does-not-fit" else row["status"]}
        for row in plot.rows
        if row["status"] != "ok"
    ]
    compared = [row for row in ran if row["compared"]]
    apart = [row for row in ran if not row["compared"]]
    best = [row for row in ran if row["best"]]
    rows, columns = (sorted({row[name] for row in plot.rows}) for name in ("block_m", "block_n"))
    band = {"type": "ordinal", "axis": {"labelAngle": 0, "ticks": False, "domain": False, "grid": False}}
    at = {
        "x": {"field": "block_n", **band, "title": "block_n, rows of K and V a step",
              "scale": {"domain": columns, "padding": 0.03}},
        "y": {"field": "block_m", **band, "title": "block_m, rows of Q of a block",
              "scale": {"domain": rows, "padding": 0.05}},
    }  # fmt: skip
    least, most = min(row[field] for row in compared), max(row[field] for row in compared)
    scale: Spec = {"range": _SHADES, "type": "log" if most > 8 * least > 0 else "linear", "nice": False}
    legend = {"title": "time" if field == "time_s" else "HBM bytes", "labelExpr": si("s" if field == "time_s" else "B"),
              "tickCount": 4, "gradientLength": 120}  # fmt: skip
    shade = {"field": field, "type": "quantitative", "scale": scale, "legend": legend}
    tip = tips({"block_m": "block_m", "block_n": "block_n", "num_warps": "warps", "num_stages": "stages",
                "said": "figure", "replayed_by": "replayed by", "stack_bytes": "stack, B a thread"})  # fmt: skip
    why = tips({"block_m": "block_m", "block_n": "block_n", "reason": "why not"})
    box = {"type": "rect", "stroke": LINE, "strokeWidth": 1}
    pale = {**box, "fill": "white"}
    small = {"fontSize": 10, "color": SOFT}
    layers = [
        layer(box, compared, **at, color=shade, tooltip=tip),
        layer(pale, apart, **at, tooltip=tip),
        layer({**pale, "strokeDash": [3, 3]}, not_run, **at, tooltip=why),
        text(not_run, "said", {"fontSize": 20, "dy": -7, "color": SOFT}, **at),
        text(not_run, "why", {**small, "dy": 10}, **at),
        text(apart, "said", {"dy": -7, "color": SOFT}, **at),
        text(apart, "why", {**small, "dy": 9}, **at),
        text([row for row in compared if not row["best"]], "said", **at),
        text(best, "said", {"fontWeight": "bold", "dy": -7}, **at),
        layer({"type": "text", "text": "best", "dy": 9, "fontSize": 11}, best, **at),
        layer({**box, "fill": None, "stroke": INK, "strokeWidth": 2.5}, best, **at),
    ]
    return {"width": 92 * len(columns), "height": 52 * len(rows), "layer": layers, "wide": 92 * len(columns) + 190}


CELLS: Mapping[str, Draw] = {"bytes": _bytes, "busy": _busy, "tiles": _tiles}
