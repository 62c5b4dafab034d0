"""The measured rows, each beside what the simulator says of the same kernel."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memsim._simulated import Simulator, launch_spec
from memsim.attention import Attention
from memsim.claims import spills
from memsim.counting import Counts
from memsim.gpu import Gpu, load_gpu
from memsim.language import LaunchSpec
from memsim.measurements import Measurement, read_measurements
from memsim.resources import blocks_per_sm, resources_of, room_of
from memsim.tile import Tile
from memsim.trace import LaunchTrace

DATA = Path(__file__).parent / "data"
H200 = load_gpu("h200")
SECTOR_ELEMENTS = 16


@dataclass(frozen=True)
class Row:
    """One measured kernel. `stores` is None where the row has none."""

    kernel: str
    problem: Attention
    tile: Tile
    cache_state: str
    registers: int
    sram_bytes: int
    spills: bool
    blocks_per_sm: int
    fills: int
    stores: int | None
    trace: LaunchTrace
    counts: Counts

    @property
    def aligned(self) -> bool:
        """Rows of S and P start on sectors."""
        return self.kernel == "flash" or self.problem.seq_len_k % SECTOR_ELEMENTS == 0

    @property
    def simulated_blocks_per_sm(self) -> int:
        return blocks_per_sm(H200.sm, self.sram_bytes, self.registers, self.tile.num_warps)[0]

    @property
    def simulated_sram_bytes(self) -> int:
        return resources_of(H200, self.trace, self.problem, self.tile).sram_bytes


def launch_of(kernel: str, problem: Attention, tile: Tile) -> LaunchSpec:
    """The simulator's launch of a probe kernel; the probe's softmax takes whole rows of any length."""
    columns = 0 if kernel == "softmax" else tile.block_n
    row = Measurement(kernel, "h200", problem, False, tile.block_m, columns, tile.num_warps, tile.num_stages)
    return launch_spec(row, room_of(H200))


def read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def measured_rows() -> Iterator[Row]:
    """Every row of counters.csv."""
    simulator = Simulator()
    for row in read_measurements(DATA / "counters.csv").rows:
        launch = simulator.launch(row)
        whole = {name: int(value) for name, value in row.values.items()}
        yield Row(
            row.kernel, row.problem, row.tile, row.cache_state, whole["registers"], whole["sram_bytes"],
            bool(spills(row)), whole["blocks_per_sm"], whole["sram_fill_bytes"], whole.get("sram_store_bytes"),
            launch.launched[0], launch.counts,
        )  # fmt: skip


def gpu_of(architecture: str) -> Gpu:
    """A shipped machine under another architecture's compiler rules."""
    from memsim.gpu import override

    shipped = {"sm_80": "a100-40gb", "sm_100": "b200"}.get(architecture, "rtx-4090")
    big = {"sm.sram.capacity_bytes": 2**20, "sm.sram.block_limit_bytes": 2**19, "architecture": architecture}
    return override(load_gpu(shipped), big)
