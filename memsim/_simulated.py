"""What the simulator says of one launch of one kernel, as it was measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from memsim.counting import Counts, count
from memsim.errors import TileDoesNotFit
from memsim.gpu import Gpu, load_gpu
from memsim.language import LaunchSpec, trace_launch
from memsim.machine import replay
from memsim.measurements import Measurement
from memsim.programs import build_program, naive
from memsim.resources import Resources, blocks_per_sm, resources_of, room_of
from memsim.tile import Room
from memsim.trace import LaunchTrace

# Beyond what any problem may have.
_LONGEST_ROW = 2**41


@dataclass(frozen=True)
class Simulated:
    """One launch, counted. `figures` are by the names of a `memsim.result.Launch`'s fields; `refusal` is why the
    machine would not take it; `key` is the same for launches that are replayed the same."""

    gpu: Gpu
    trace: LaunchTrace
    counts: Counts
    figures: dict[str, float]
    compiled_stack_bytes: int | None
    refusal: str
    key: Hashable

    def times(self) -> dict[str, float]:
        """The times of a replay."""
        per_sm = int(self.figures.get("blocks_per_sm", 1))
        run = replay(self.gpu, [(self.trace, per_sm)])
        time_s = run.launches[0].time_s
        return {
            "time_s": time_s,
            "sm_cycles": time_s * self.gpu.sm.clock_hz,
            "launch_overhead_s": run.launch_overhead_s,
        }


def launch_spec(row: Measurement, room: Room) -> LaunchSpec:
    """The program of a measured launch. A block of softmax takes its row as the measured one did."""
    algorithm = "flash" if row.kernel == "flash" else "naive"
    program = build_program(algorithm, row.problem, row.tile, room, lse=row.lse)
    if row.kernel == "softmax":
        longest = _LONGEST_ROW if row.whole_rows else 0
        program = naive.build(row.problem, row.tile, room, row.lse, whole_row_columns=longest)
    return next(launch for launch in program.launches if launch.name == row.kernel)


@dataclass
class Simulator:
    """Simulates measured launches, the same one once; `gpu` in place of the rows' own."""

    gpu: Gpu | None = None
    _known: dict[Hashable, tuple[LaunchTrace, Counts, Resources | None, str]] = field(default_factory=dict)

    def launch(self, row: Measurement) -> Simulated:
        """The launch of a row. Raises `MemsimError` if no machine of the kind could run it."""
        gpu = self.gpu or load_gpu(row.gpu)
        key = (row.gpu, row.kernel, row.problem, row.tile, row.lse, row.whole_rows)
        if key not in self._known:
            self._known[key] = _simulate(row, gpu)
        trace, counts, resources, refusal = self._known[key]
        figures: dict[str, float] = {
            "sram_fill_bytes": counts.sram_fill_bytes,
            "sram_store_bytes": counts.sram_store_bytes,
            # Two levels: what fills SRAM comes from HBM, what leaves it goes there.
            "hbm_read_bytes": counts.sram_fill_bytes - counts.sram_zero_fill_bytes,
            "hbm_write_bytes": counts.sram_store_bytes,
        }
        if resources is not None:
            figures["sram_bytes"] = resources.sram_bytes
            if resources.registers is not None:
                figures["registers"] = resources.registers
            if resources.stack_bytes is not None:
                figures["stack_bytes"] = resources.stack_bytes
        blocks = _blocks_per_sm(gpu, row, resources)
        if blocks:
            figures["blocks_per_sm"] = blocks
        stack = None if resources is None else resources.stack_bytes
        return Simulated(gpu, trace, counts, figures, stack, refusal, (key, blocks))


def _simulate(row: Measurement, gpu: Gpu) -> tuple[LaunchTrace, Counts, Resources | None, str]:
    room = room_of(gpu)
    trace = trace_launch(launch_spec(row, room), room)
    try:
        resources, refusal = resources_of(gpu, trace, row.problem, row.tile, lse=row.lse), ""
    except TileDoesNotFit as error:
        resources, refusal = None, str(error)
    return trace, count(trace), resources, refusal


def _blocks_per_sm(gpu: Gpu, row: Measurement, resources: Resources | None) -> int | None:
    """Blocks that an SM holds, from measured SRAM and registers where the row has them; None where neither is known."""
    sram = row.values.get("sram_bytes", resources.sram_bytes if resources else None)
    registers = row.values.get("registers", resources.registers if resources else None)
    if sram is None:
        return None
    warps = resources.block_warps if resources else row.num_warps
    return blocks_per_sm(gpu.sm, int(sram), None if registers is None else int(registers), warps)[0]
