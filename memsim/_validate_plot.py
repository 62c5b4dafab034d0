"""Simulated against measured as a picture: times and HBM reads, log-log, by kernel. Needs the extra `plots`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from memsim.columns import HBM
from memsim.errors import MemsimError
from memsim.units import quoted
from memsim.validate import Validation

FORMATS = ("svg", "png", "html")
_SIDE = 320


def check_plot(path: str) -> str:
    """The format of a picture at `path`. Raises `MemsimError`: no such format, or what draws is not installed."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise MemsimError(f"plot is {quoted(path)}: give a file that ends in .svg, .png or .html.")
    _altair()
    return kind


def write_plot(validation: Validation, path: str) -> None:
    """Draw a validation into the file at `path`, which takes the place of an older one when it is whole."""
    kind = check_plot(path)
    temporary = Path(f"{path}.{os.urandom(4).hex()}.{kind}")
    options = {"inline": True} if kind == "html" else {"scale_factor": 2} if kind == "png" else {}
    try:
        chart(validation).save(str(temporary), format=kind, **options)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = (error.strerror or "unknown error").lower()
        raise MemsimError(
            f"plot is {quoted(path)}, which cannot be written ({reason}): give a writable path."
        ) from None


def chart(validation: Validation) -> Any:
    """The picture. Raises `MemsimError` where no row has both figures."""
    alt = _altair()
    times, reads = [], []
    for row in validation.rows:
        about = {"kernel": row.measurement.kernel, "row": row.measurement.place}
        pair = row.judged.time_in_seconds
        if pair is not None and min(pair) > 0:
            times.append(about | {"simulated": 1e6 * pair[0], "measured": 1e6 * pair[1]})
        pair = row.judged.pair(HBM[0])
        if pair is not None and min(pair) > 0:
            reads.append(about | {"simulated": pair[0] / 1e6, "measured": pair[1] / 1e6})
    panels = [_panel(alt, points, title) for points, title in ((times, "µs"), (reads, "MB read from HBM")) if points]
    if not panels:
        raise MemsimError(
            "there is nothing to plot: no row has times or HBM reads, measured and replayed; add --times."
        )
    return alt.hconcat(*panels)


def _panel(alt: Any, points: list[dict[str, Any]], unit: str) -> Any:
    figures = [point[name] for point in points for name in ("simulated", "measured")]
    scale = alt.Scale(type="log", domain=[min(figures) / 1.2, max(figures) * 1.2], nice=False)
    ends = [{"simulated": end, "measured": end} for end in (min(figures) / 1.2, max(figures) * 1.2)]
    axes = {
        "x": alt.X("measured:Q", scale=scale, title=f"measured, {unit}"),
        "y": alt.Y("simulated:Q", scale=scale, title=f"simulated, {unit}"),
    }
    line = alt.Chart(alt.Data(values=ends)).mark_line(color="#999", strokeWidth=1).encode(**axes)
    dots = alt.Chart(alt.Data(values=points)).mark_point(size=18, filled=True, opacity=0.5)
    dots = dots.encode(
        **axes, color=alt.Color("kernel:N", title="kernel"), tooltip=["row:N", "measured:Q", "simulated:Q"]
    )
    return (line + dots).properties(width=_SIDE, height=_SIDE)


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401  # draws svg and png, and what html shows without a network
    except ModuleNotFoundError:
        raise MemsimError("plots need Altair, which is not installed: pip install 'memsim[plots]'.") from None
    return altair
