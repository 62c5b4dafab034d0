"""The plot of simulated against measured: times, and HBM reads."""

from __future__ import annotations

from typing import Any

from memsim._plot import Plot
from memsim.columns import HBM
from memsim.errors import MemsimError
from memsim.validate import Validation


def measured(validation: Validation) -> Plot:
    """Simulated against measured of every row that was replayed, by kernel: times in seconds, HBM reads in bytes.

    Raises `MemsimError` where no row has both figures.
    """
    rows: list[dict[str, Any]] = []
    for row in validation.rows:
        about = {"kernel": row.measurement.kernel, "row": row.measurement.place}
        pairs = {"time_s": row.judged.time_in_seconds, HBM[0]: row.judged.pair(HBM[0])}
        rows += [
            {"quantity": quantity, **about, "simulated": pair[0], "measured": pair[1]}
            for quantity, pair in pairs.items()
            if pair is not None and min(pair) > 0
        ]
    if not rows:
        raise MemsimError(
            "there is nothing to plot: no row has times or HBM reads, measured and replayed; add --times."
        )
    rows.sort(key=lambda row: row["quantity"] != "time_s")
    named = sorted({row.measurement.gpu for row in validation.rows})
    problems = {row.measurement.problem for row in validation.rows}
    kernels = dict.fromkeys(row["kernel"] for row in rows)
    counted = [f"{sum(row['quantity'] == name for row in rows)} {words}"
               for name, words in (("time_s", "times"), (HBM[0], "HBM reads"))]  # fmt: skip
    caption = (
        f"{', '.join(named)}: {len(validation.rows)} measured launches of {', '.join(kernels)}, "
        f"{len(problems)} problem{'s' * (len(problems) != 1)}; {' and '.join(counted)} replayed",
        "On the line both are equal; above it more is simulated than was measured. Dotted: a quarter more or less.",
    )
    return Plot("measured", "Simulated against measured", caption, tuple(rows))
