"""Pictures made of points and lines: the roofline, SRAM sizes, growth, simulated against measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from memsim._plot import Plot
from memsim._plot_style import COLOURS, DASHES, INK, SHAPES, SOFT, Draw, Spec, layer, log, log_quantity, text, tips
from memsim._report_format import kib, percent
from memsim.columns import HBM
from memsim.units import format_rate

_KERNEL_SHAPES = {"flash": "circle", "qk": "triangle-up", "softmax": "square", "pv": "diamond"}
_KERNEL_COLOURS = {"flash": "#0072b2", "qk": "#e69f00", "softmax": "#009e73", "pv": "#cc79a7"}
_APART = 15.0
_ROOFS = {"products": "tensor pipe", "element-wise": "ALU pipe"}


def _roofline(plot: Plot) -> Spec:
    """The roofs as lines, each launch as a point with its name."""
    hbm = next(roof["bytes_per_s"] for roof in plot.facts["roofs"] if "bytes_per_s" in roof)
    flat = {roof["roof"]: roof["flop_per_s"] for roof in plot.facts["roofs"] if "flop_per_s" in roof}
    top = max(flat.values())
    along = [row["flop_per_byte"] for row in plot.rows] + [peak / hbm for peak in flat.values()]
    left, right = min(along) / 3, max(along) * 6
    low = min([row["flop_per_s"] for row in plot.rows] + [hbm * left]) / 1.5
    x = log_quantity("x", "FLOP per HBM byte", "", left, right, labelExpr="format(datum.value, ',~r')")
    y = log_quantity("y", "FLOP per second", "FLOP/s", low, top * 2.2)
    slope = [{"x": left, "y": hbm * left}, {"x": top / hbm, "y": top}]
    layers = [layer({"type": "line", "color": INK, "strokeWidth": 2}, slope, x=x, y=y)]
    for name, peak in flat.items():
        ends = [{"x": peak / hbm, "y": peak}, {"x": right, "y": peak}]
        dash = [1, 0] if peak == top else [5, 4]
        layers.append(layer({"type": "line", "color": INK, "strokeWidth": 2, "strokeDash": dash}, ends, x=x, y=y))
        said = [{"x": right, "y": peak, "said": f"{_ROOFS[name]} {format_rate(peak, 'FLOP/s')}"}]
        # The lower roof's name lies below it, where no launch can be.
        where = {"align": "right", "dy": -9 if peak == top else 10, "color": SOFT}
        layers.append(text(said, "said", where, x=x, y=y))
    start = [{"x": left * 1.15, "y": hbm * left * 1.15, "said": f"HBM {format_rate(hbm)}"}]
    layers.append(text(start, "said", {"align": "left", "dx": 12, "dy": 6, "color": SOFT}, x=x, y=y))
    points = [{**row, "x": row["flop_per_byte"], "y": row["flop_per_s"], "said": _point_name(row)} for row in plot.rows]
    about = tips({"algorithm": "algorithm", "launch": "launch", "flop_per_byte": "FLOP per HBM byte",
                  "flop_per_s": "FLOP/s", "share_of_roof": "share of the roof", "bound": "bound"})  # fmt: skip
    for name in dict.fromkeys(row["algorithm"] for row in points):
        own = [point for point in points if point["algorithm"] == name]
        mark: Spec = {"type": "point", "filled": True, "size": 130, "opacity": 1, "color": COLOURS[name],
                "shape": SHAPES[name], "stroke": INK, "strokeWidth": 0.8}  # fmt: skip
        layers.append(layer(mark, own, x=x, y=y, tooltip=about))
    layers.append(text(points, "said", {"align": "left", "dx": 11, "dy": 9}, x=x, y=y))
    return {"width": 600, "height": 360, "layer": layers}


def _point_name(row: Mapping[str, Any]) -> str:
    name = row["launch"] if row["launch"] == row["algorithm"] else f"{row['algorithm']} {row['launch']}"
    return f"{name} {percent(row['share_of_roof'])}"


def _sram(plot: Plot) -> Spec:
    """A line for each algorithm, one for what none goes below."""
    lines = {"naive": "naive", "flash": "flash", "lower_bound": "lower bound"}
    sizes = [row["sram_bytes"] for row in plot.rows]
    heights = [row[f"{name}_bytes"] for row in plot.rows for name in lines if row[f"{name}_bytes"]]
    right = sizes[-1] * (sizes[-1] / sizes[0]) ** 0.2 if len(sizes) > 1 else sizes[0] * 2
    labels = " : ".join(f"datum.value == {size} ? '{kib(size)}'" for size in sizes)
    x = {"field": "sram_bytes", "type": "quantitative", "title": "SRAM of an SM",
         "scale": log(sizes[0] / 1.08, right, 2),
         "axis": {"values": sizes, "labelExpr": f"{labels} : ''", "grid": True, "labelOverlap": True}}  # fmt: skip
    y = log_quantity("bytes", "bytes into and out of SRAM", "B", min(heights) / 1.5, max(heights) * 1.5)
    curves = []
    for name, said in lines.items():
        drawn = [
            {"sram_bytes": row["sram_bytes"], "bytes": row[f"{name}_bytes"], "tile": row.get(f"{name}_tile")}
            for row in plot.rows
            if row[f"{name}_bytes"]
        ]
        curves += [(name, said, drawn)] if drawn else []
    tip = {"sram_bytes": "SRAM, B", "bytes": "bytes", "tile": "tile"}
    layers = _curves(curves, x, y, tip, 340)
    return {"width": 600, "height": 340, "layer": layers}


def _growth(plot: Plot) -> Spec:
    """A panel for each quantity, a line in it for each algorithm."""
    ran = [row for row in plot.rows if row["status"] == "ok"]
    panels = [("hbm_bytes", "HBM bytes", "B"), ("peak_hbm_bytes", "HBM taken at most", "B"), ("time_s", "time", "s")]
    lengths = sorted({row["seq_len"] for row in plot.rows})
    drawn = []
    for field, title, unit in panels:
        rows = [row for row in ran if row[field]]
        if not rows:
            continue
        bounds = {row["seq_len"]: row["compulsory_bytes"] for row in rows} if field == "hbm_bytes" else {}
        heights = [row[field] for row in rows] + list(bounds.values())
        labels = " : ".join(f"datum.value == {n} ? '{_count(n)}'" for n in lengths)
        x = {"field": "seq_len", "type": "quantitative", "title": "sequence length N",
             "scale": log(lengths[0] / 1.15, lengths[-1] * max(2.0, (lengths[-1] / lengths[0]) ** 0.5), 2),
             "axis": {"values": lengths, "labelExpr": f"{labels} : ''", "labelOverlap": True}}  # fmt: skip
        y = log_quantity(field, title, unit, min(heights) / 1.6, max(heights) * 1.6)
        curves = [(name, name, [row for row in rows if row["algorithm"] == name])
                  for name in dict.fromkeys(row["algorithm"] for row in rows)]  # fmt: skip
        if bounds:
            curves.append(
                ("lower_bound", "compulsory", [{"seq_len": n, field: size} for n, size in sorted(bounds.items())])
            )
        layers = _curves(curves, x, y, {"seq_len": "N", field: title}, 270)
        drawn.append({"width": 215, "height": 270, "layer": layers})
    return {"hconcat": drawn, "spacing": 18, "wide": 280 * len(drawn)}


def _count(count: int) -> str:
    return f"{count // 1024} Ki" if count >= 1024 and count % 1024 == 0 else f"{count:,}"


Curve = tuple[str, str, Sequence[Mapping[str, Any]]]


def _curves(curves: Sequence[Curve], x: Spec, y: Spec, tip: Mapping[str, str], height: float) -> list[Spec]:
    """Lines through points, each with what it is called at its right end; no name lies on another's."""
    low, high = (math.log(end) for end in y["scale"]["domain"])
    ends = {name: height * (high - math.log(rows[-1][y["field"]])) / (high - low) for name, _, rows in curves}
    layers = []
    for name, said, rows in curves:
        colour = COLOURS.get(name, INK)
        line = {"type": "line", "color": colour, "strokeWidth": 2, "strokeDash": DASHES.get(name, [2, 3])}
        point = {"type": "point", "filled": True, "size": 48, "opacity": 1, "color": colour,
                 "shape": SHAPES.get(name, "stroke")}  # fmt: skip
        away = [ends[name] - end for other, end in ends.items() if other != name]
        nearest = min(away, key=abs, default=_APART)
        # Two names that are too near go up and down by as much.
        down = math.copysign(max(0.0, (_APART - abs(nearest)) / 2), nearest)
        layers += [
            layer(line, rows, x=x, y=y),
            layer(point, rows, x=x, y=y, tooltip=tips(tip)),
            text([{**rows[-1], "said": said}], "said", {"align": "left", "dx": 8, "dy": down}, x=x, y=y),
        ]
    return layers


def _measured(plot: Plot) -> Spec:
    """Points about the line on which both are equal, a panel for times and one for HBM reads."""
    panels = []
    for quantity_, title, unit in (("time_s", "time", "s"), (HBM[0], "HBM bytes read", "B")):
        rows = [row for row in plot.rows if row["quantity"] == quantity_]
        if rows:
            panels.append(_against(rows, title, unit))
    return {"hconcat": panels, "spacing": 30, "wide": 400 * len(panels)}


def _against(rows: Sequence[Mapping[str, Any]], title: str, unit: str) -> Spec:
    found = [row[name] for row in rows for name in ("simulated", "measured")]
    low, high = min(found) / 1.3, max(found) * 1.3
    x = log_quantity("measured", f"measured {title}", unit, low, high)
    y = log_quantity("simulated", f"simulated {title}", unit, low, high)
    layers = []
    for factor, dash in ((1.0, [1, 0]), (1.25, [2, 3]), (0.8, [2, 3])):
        ends = [{"measured": m, "simulated": m * factor} for m in (low / min(1, factor), high / max(1, factor))]
        layers.append(layer({"type": "line", "color": SOFT, "strokeWidth": 1, "strokeDash": dash, "clip": True},
                            ends, x=x, y=y))  # fmt: skip
    kernels = [name for name in _KERNEL_SHAPES if any(row["kernel"] == name for row in rows)]
    kinds = {"field": "kernel", "type": "nominal", "title": "kernel"}
    colour = {**kinds, "scale": {"domain": kernels, "range": [_KERNEL_COLOURS[name] for name in kernels]}}
    shape = {**kinds, "scale": {"domain": kernels, "range": [_KERNEL_SHAPES[name] for name in kernels]}}
    tip = tips({"kernel": "kernel", "row": "row", "measured": "measured", "simulated": "simulated"})
    mark = {"type": "point", "filled": False, "size": 40, "strokeWidth": 1, "aria": False}
    layers.append(layer(mark, rows, x=x, y=y, color=colour, shape=shape, tooltip=tip))
    return {"width": 340, "height": 340, "layer": layers}


LINES: Mapping[str, Draw] = {"roofline": _roofline, "sram": _sram, "growth": _growth, "measured": _measured}
