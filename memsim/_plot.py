"""A plot: the numbers that it draws, what it is of, and its picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

PLOT_SCHEMA = "memsim.plot/1"


@dataclass(frozen=True)
class Plot:
    """One plot. `rows` are what it draws, in base units; `facts` are what it draws beside them (roofs of a machine);
    `caption` says of which problem and GPU, a line each; `notes` are what a reader must know of the figures."""

    kind: str
    title: str
    caption: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What is drawn as JSON-ready data, with its schema first."""
        return {
            "schema": PLOT_SCHEMA,
            "kind": self.kind,
            "title": self.title,
            "caption": list(self.caption),
            "notes": list(self.notes),
            **self.facts,
            "rows": [dict(row) for row in self.rows],
        }

    def write_csv(self, file: TextIO) -> None:
        """The rows as CSV; what a row does not have is left empty."""
        writer = csv.DictWriter(file, list(self.rows[0]) if self.rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)

    def spec(self) -> dict[str, Any]:
        """The picture as a Vega-Lite specification, with its data inside."""
        from memsim._plot_style import drawn

        return drawn(self)

    def save(self, path: str) -> None:
        """Write the picture to a file that ends in .svg, .png or .html, which takes the place of an older one when it
        is whole (extra `plots`). The HTML is one file that needs nothing else. Raises `MemsimError`: no such format, a
        path that cannot be written, or what draws is not installed."""
        from memsim._plot_files import PlotFile

        with PlotFile(path) as file:
            file.write(self)
