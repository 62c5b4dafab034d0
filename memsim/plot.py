"""Plots: pictures of the simulator's own results, and the numbers that they draw.

Each function returns a `Plot`: `as_dict` and `write_csv` give its numbers, `save` draws it (SVG, PNG or HTML; extra
`plots`).
"""

from memsim._plot import PLOT_SCHEMA, Plot
from memsim._plot_measured import measured
from memsim._plot_results import busy_shares, bytes_per_level, roofline
from memsim._plot_runs import growth, sram_sizes, tile_map

__all__ = [
    "PLOT_SCHEMA", "Plot", "busy_shares", "bytes_per_level", "growth", "measured", "roofline", "sram_sizes", "tile_map",
]  # fmt: skip
