"""What the simulator says of one launch of one kernel, as it was measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from memsim._kernels import machine_launch
from memsim.counting import Counts, count
from memsim.errors import TileDoesNotFit
from memsim.gpu import Gpu, load_gpu
from memsim.language import LaunchSpec, trace_launch
from memsim.machine import Launched, replay
from memsim.measurements import Measurement
from memsim.programs import build_program, naive
from memsim.resources import Resources, blocks_per_sm, resources_of, room_of
from memsim.tile import Room
from memsim.trace import LaunchTrace, Load, Store, walk

_CHAIN = ("qk", "softmax", "pv")
# Beyond what any problem may have.
_LONGEST_ROW = 2**41


@dataclass(frozen=True)
class Simulated:
    """One launch, counted. `figures` are by the names of a `memsim.result.Launch`'s fields; `refusal` is why the
    machine would not take it; `key` is the same for launches that are replayed the same. `before` are the launches
    whose leavings in the L2 it finds, `rows_before` the rows that these are of."""

    gpu: Gpu
    launched: Launched
    counts: Counts
    figures: dict[str, float]
    compiled_stack_bytes: int | None
    refusal: str
    warm: bool
    key: Hashable
    before: tuple[Launched, ...] = ()
    rows_before: tuple[Measurement, ...] = ()

    def replayed(self, without: frozenset[str] = frozenset()) -> dict[str, float]:
        """What a replay says, by `REPLAYED`; `without` names parts of the model to leave out."""
        return replay_chain([self], without)[-1]

    @property
    def blocks(self) -> int:
        """The blocks, or of a persistent launch the units of work."""
        return self.launched[0].blocks

    @property
    def reads_once_bytes(self) -> int:
        """What it must read: each byte of a tensor that it reads at all, once."""
        return self._once(dict(self.counts.fill_bytes_by_tensor), Load)

    @property
    def writes_once_bytes(self) -> int:
        """What it must write: each byte of a tensor that it writes at all, once."""
        return self._once(dict(self.counts.store_bytes_by_tensor), Store)

    def _once(self, moved: Mapping[str, int], kind: type[Load] | type[Store]) -> int:
        """A launch under a causal mask leaves part of S and P alone, so no more than it moves."""
        tensors = {r.tile.tensor for r, _ in walk(self.launched[0].body) if isinstance(r, kind)}
        return sum(min(tensor.total_bytes, moved.get(tensor.name, 0)) for tensor in tensors)


REPLAYED = ("sram_fill_bytes", "hbm_read_bytes", "hbm_write_bytes", "time_s", "sm_cycles", "launch_overhead_s")
"""What a replay says of a launch: the fills are less what the L1 gives back."""


def replay_chain(chain: Sequence[Simulated], without: frozenset[str] = frozenset()) -> list[dict[str, float]]:
    """What one replay says of launches that ran one after the other, each finding what those before it left."""
    last = chain[-1]
    launches = [*last.before, last.launched]
    run = replay(last.gpu, launches, warm=last.warm, without=without, full=True)
    return [
        {
            "sram_fill_bytes": simulated.counts.sram_fill_bytes - timed.l1_hit_bytes,
            "hbm_read_bytes": timed.hbm_read_bytes,
            "hbm_write_bytes": timed.hbm_write_bytes,
            "time_s": timed.time_s,
            "sm_cycles": timed.time_s * timed.clock_hz,
            "launch_overhead_s": last.gpu.launch.overhead_s,
        }
        for simulated, timed in zip(chain, run.launches[-len(chain) :], strict=True)
    ]


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
    _chains: dict[Hashable, list[tuple[Measurement, Launched]]] = field(default_factory=dict)
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
        per_sm = blocks or 1
        launched: Launched = (trace, per_sm)
        if resources is not None:
            launched = machine_launch(gpu, trace, resources, row.problem, row.tile, per_sm)
        rows_before, before = self._before(row, launched)
        chain = tuple(id(trace) for trace, *_ in before)
        warm = row.cache_state == "warm"
        return Simulated(
            gpu, launched, counts, figures, stack, refusal, warm, (key, blocks, chain, warm), before, rows_before
        )  # fmt: skip

    def _before(
        self, row: Measurement, launched: Launched
    ) -> tuple[tuple[Measurement, ...], tuple[Launched, ...]]:  # fmt: skip
        """The launches of naive attention that ran just before a chained one: those that the rows before it are of."""
        if row.cache_state != "chained" or row.kernel not in _CHAIN:
            return (), ()
        problem = (row.gpu, row.problem, row.lse)
        place = _CHAIN.index(row.kernel)
        found = self._chains.setdefault(problem, [])
        del found[place:]
        rows, before = tuple(of for of, _ in found), tuple(launch for _, launch in found)
        if len(before) == place:
            found.append((row, launched))
        return rows, before


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
