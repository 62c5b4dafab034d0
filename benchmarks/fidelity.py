"""How close simulated bytes are to an H200's counters: every measured row, per kernel, with the worst."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fidelity"))
import rows


def line(
    name: str, group: list[rows.Row], simulated: Callable[[rows.Row], int], measured: Callable[[rows.Row], int]
) -> str:
    off = [100 * (measured(row) / simulated(row) - 1) for row in group]
    exact = sum(simulated(row) == measured(row) for row in group)
    if not group:
        return f"{name:34}{0:>5}"
    return f"{name:34}{len(group):>5}{exact:>7}{min(off):>9.2f} %{max(off):>9.2f} %"


def main() -> None:
    measured = list(rows.measured_rows())
    print(f"{'measured over simulated':34}{'rows':>5}{'exact':>7}{'lowest':>11}{'highest':>11}")
    for kernel in ("flash", "qk", "softmax", "pv"):
        for spills in (False, True):
            for aligned in (True, False):
                group = [r for r in measured if (r.kernel, r.spills, r.aligned) == (kernel, spills, aligned)]
                if not group:
                    continue
                what = kernel + (", spills" if spills else "") + ("" if aligned else ", rows off sectors")
                print(line(f"{what}: fills", group, lambda r: r.counts.sram_fill_bytes, lambda r: r.fills))
                stored = [r for r in group if r.stores is not None]
                print(line(f"{what}: stores", stored, lambda r: r.counts.sram_store_bytes, lambda r: r.stores or 0))
    print(
        line("blocks per SM", measured, lambda r: r.simulated_blocks_per_sm, lambda r: r.blocks_per_sm),
        line(
            "SRAM of a block, block_m >= 64",
            [r for r in measured if r.kernel != "flash" or r.tile.block_m >= 64],
            lambda r: r.simulated_sram_bytes,
            lambda r: r.sram_bytes,
        ),
        sep="\n",
    )


if __name__ == "__main__":
    main()
