"""The measured rows, each beside what the simulator says of the same kernel."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memsim.attention import Attention
from memsim.counting import Counts, count
from memsim.gpu import Gpu, load_gpu
from memsim.language import LaunchSpec, trace_launch
from memsim.programs import flash, naive
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
    room = room_of(H200)
    if kernel == "flash":
        return flash.build(problem, tile, room, False).launches[0]
    program = naive.build(problem, tile, room, False, whole_row_columns=2**20)
    return next(launch for launch in program.launches if launch.name == kernel)


def read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def measured_rows() -> Iterator[Row]:
    """Every row of counters.csv."""
    for row in read("counters.csv"):
        problem = Attention(
            int(row["batch"]), int(row["heads"]), int(row["kv_heads"]), int(row["seq_len_q"]), int(row["seq_len_k"]),
            int(row["head_dim"]), row["dtype"], row["causal"] == "1",
        )  # fmt: skip
        softmax = row["kernel"] == "softmax"
        tile = Tile(
            16 if softmax else int(row["block_m"]), 16 if softmax else int(row["block_n"]),
            int(row["num_warps"]), int(row["num_stages"]),
        )  # fmt: skip
        trace = trace_launch(launch_of(row["kernel"], problem, tile), room_of(H200))
        yield Row(
            row["kernel"], problem, tile, row["cache_state"], int(row["registers"]), int(row["sram_bytes"]),
            int(row["stack_bytes"]) > 0, int(row["blocks_per_sm"]), int(row["sram_fill_bytes"]),
            int(float(row["sram_store_bytes"])) if row["sram_store_bytes"] else None, trace, count(trace),
        )  # fmt: skip


def gpu_of(architecture: str) -> Gpu:
    """A shipped machine under another architecture's compiler rules."""
    from memsim.gpu import override

    shipped = {"sm_80": "a100-40gb", "sm_100": "b200"}.get(architecture, "rtx-4090")
    big = {"sm.sram.capacity_bytes": 2**20, "sm.sram.block_limit_bytes": 2**19, "architecture": architecture}
    return override(load_gpu(shipped), big)
