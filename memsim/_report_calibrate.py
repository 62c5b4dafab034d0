"""A calibration as text: the constants before and now, and how far simulated cycles are off with either."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._report_format import NONE, Figures, Paragraph, percent
from memsim.calibrate import Calibration, Error
from memsim.gpu import Gpu


def calibration_report(found: Calibration, gpu: Gpu, path: str) -> RenderableType:
    """What a fit of this machine to the file at `path` came to."""
    before, now = found.before.model_dump(), found.constants.model_dump()
    constants = [(name, [_number(before[name]), _number(now[name]), _change(before[name], now[name])]) for name in now]
    errors = [
        ("rows fitted to", found.fitted_before, found.fitted),
        ("problems left out", found.left_out_before, found.left_out),
        ("rows that judge", found.judged_before, found.judged),
    ]
    rows = [(name, _errors(old, new)) for name, old, new in errors if old is not None and new is not None]
    headings = ["rows", "problems", "mean\nbefore", "mean\nnow", "worst\nbefore", "worst\nnow", "at"]
    return Group(
        Text(f"{gpu.name} fitted to {path}: {found.iterations} iteration{'s' * (found.iterations != 1)}", "bold"),
        "",
        Figures(["before", "now", "change"], constants, "constant"),
        "",
        Figures(headings, rows, "error of SM cycles"),
        "",
        Paragraph(
            "Problems left out are not fitted to, and say how the constants do on others."
            if found.left_out is not None
            else "There are too few problems to leave some out."
        ),
    )


def _errors(before: Error, now: Error) -> list[str]:
    shares = (before.mean, now.mean, before.worst, now.worst)
    return [f"{now.rows:,}", f"{now.problems:,}", *map(percent, shares), now.worst_row.split(" (")[0]]


def _number(value: float) -> str:
    return f"{value / 1e9:.4g}e9" if value >= 1e6 else f"{value:.5g}"


def _change(before: float, now: float) -> str:
    return NONE if before == now or not before else f"{100 * (now / before - 1):+.1f} %"
