"""Candidates before any is replayed: what each takes of an SM, the least it can cost, and which are none, with reasons.

Counting is quick, so all are counted; and what is counted already bounds what a replay can come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from memsim._options import Request, in_option_names, read_tile
from memsim._sweep_axes import options_of
from memsim._sweep_plan import SweepPlan
from memsim.api import Prepared, prepare
from memsim.attention import Attention
from memsim.bounds import compulsory_bytes
from memsim.counting import Counts
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.gpu import Gpu
from memsim.grid import ROWS_FAST
from memsim.programs import check_grid_order
from memsim.resources import Resources
from memsim.tile import SPECIALIZED_SEEN_RIGHT, Tile, cdiv
from memsim.trace import LaunchTrace

BY_INSTRUCTIONS, BY_TRACE, BY_TRACE_SPILLING = range(3)
"""How a candidate is replayed, the most telling first. Figures of different ones are not compared: a replay by trace
goes by data-sheet rates, and knows nothing of what a kernel spills."""
# A replay by instructions has blocks of slightly different speeds, and the mean of paces.
_SAFETY = 0.95
# HBM and L2 round transfers to picoseconds.
_EXACT = 0.999

KINDS = {
    "does-not-fit": "do not fit on an SM",
    "over-limit": "take more SRAM than the limit on a block's",
    "out-of-memory": "need more HBM than there is",
    "not-offered": "are warp-specialised kernels that are not offered, since they were not seen right on an H200",
    "refused": "cannot be",
    "one-wave": "are persistent and the same as rows-fast, because all of their blocks are resident at once",
    "not-compared": "are not compared, because no instructions of their kernels are known: their times would follow "
    "from data-sheet rates (--resources compiled may find some)",
    "spills": "are not compared, because their kernels spill registers, which a replay by trace does not time",
}
"""Why a candidate is not tried, with what is said of those that are not, after their number."""


@dataclass(frozen=True)
class Surveyed:
    """A candidate that can run. `number` is its point in the plan; figures of a block are those of the launch of which
    an SM holds the fewest blocks; `last_wave` is how full the last wave is, `occupancy` the resident warps over those
    that an SM can hold. `least_time_s` and `least_hbm_bytes` are what a replay comes to at least."""

    number: int
    tile: Tile
    replay: int
    blocks_per_sm: int
    limited_by: str
    waves: int
    last_wave: float
    occupancy: float
    sram_bytes: int
    registers: int | None
    registers_from: str
    stack_bytes: int | None
    spills: str
    fill_bytes: int
    tile_operations: int
    least_time_s: float
    least_hbm_bytes: int

    @property
    def replayed_by(self) -> str:
        return "instructions" if self.replay == BY_INSTRUCTIONS else "trace"


@dataclass(frozen=True)
class Refusal:
    """How many candidates are not tried for one reason. `kind` is one of `KINDS`, `example` says it of one of them."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True)
class Survey:
    """All candidates: those to be compared, in the order of the plan, and those that are not, by reason."""

    candidates: tuple[Surveyed, ...]
    refusals: tuple[Refusal, ...]
    total: int


class _NotOffered(MemsimError):
    """A tile that the kernels do not offer."""


class _Refusals:
    """Counts refusals. The example of a kind is the smallest tile, which comes nearest to what can be."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, tuple[int, ...], str]] = {}

    def add(self, kind: str, tile: Tile | None, reason: str) -> None:
        size = (0,) if tile is None else (tile.block_m * tile.block_n, tile.num_stages, tile.num_warps)
        # Of what cannot be, each reason counts for itself.
        key = f"{kind}: {reason}" if kind == "refused" else kind
        count, least, example = self._found.get(key, (0, size, reason))
        self._found[key] = (count + 1, *((size, reason) if size < least else (least, example)))

    def all(self) -> tuple[Refusal, ...]:
        found = (Refusal(key.partition(":")[0], count, example) for key, (count, _, example) in self._found.items())
        return tuple(sorted(found, key=lambda refusal: [*KINDS].index(refusal.kind)))


def survey(
    plan: SweepPlan, request: Request, *, tiles: Iterable[Tile] | None, block_sram_bytes: int | None,
    progress: Callable[[int, int], None],
) -> Survey:  # fmt: skip
    """Every candidate of the plan, or of it those in `tiles`. Raises `MemsimError` if none can run."""
    refusals = _Refusals()
    ready = lru_cache(maxsize=None)(lambda tile: _prepared(request, tile))
    found: list[Surveyed] = []
    numbered = _numbered(plan, tiles)
    for done, (number, tile) in enumerate(numbered, start=1):
        progress(done, len(numbered))
        candidate = tile if isinstance(tile, MemsimError) else _candidate(number, tile, request, ready)
        if isinstance(candidate, MemsimError):
            shown = None if isinstance(tile, MemsimError) else tile
            refusals.add(_kind_of(candidate), shown, in_option_names(str(candidate)))
        elif block_sram_bytes is not None and candidate.sram_bytes > block_sram_bytes:
            needs = f"tile {candidate.tile} needs {candidate.sram_bytes} B of {block_sram_bytes} B of SRAM a block."
            refusals.add("over-limit", candidate.tile, needs)
        else:
            found.append(candidate)
    found = list(_without_copies(found, refusals))
    compared = min((candidate.replay for candidate in found), default=BY_INSTRUCTIONS)
    for candidate in found:
        if candidate.replay != compared:
            kind = "spills" if candidate.replay == BY_TRACE_SPILLING else "not-compared"
            refusals.add(kind, candidate.tile, f"tile {candidate.tile}.")
    chosen = tuple(candidate for candidate in found if candidate.replay == compared)
    if not chosen:
        raise _nothing_possible(request, refusals.all())
    return Survey(chosen, refusals.all(), len(numbered))


def _without_copies(found: list[Surveyed], refusals: _Refusals) -> Iterable[Surveyed]:
    """Those that are no other one: of a single wave a persistent launch is a rows-fast one."""
    tiles = {candidate.tile for candidate in found}
    for candidate in found:
        tile = candidate.tile
        rows_fast = replace(tile, grid_order=ROWS_FAST)
        if tile.grid_order == "persistent" and candidate.waves <= 1 and rows_fast in tiles:
            refusals.add("one-wave", tile, f"tile {tile}.")
        else:
            yield candidate


def _candidate(
    number: int, tile: Tile, request: Request, ready: Callable[[Tile], Prepared | MemsimError]
) -> Surveyed | MemsimError:
    """The candidate, or why it is none."""
    if reason := _not_offered(request, tile):
        return _NotOffered(reason)
    try:
        if tile.grid_order != ROWS_FAST:
            check_grid_order(request.algorithm, tile)
    except MemsimError as error:
        return _NotOffered(error.faults) if request.algorithm == "flash" else error
    prepared = ready(replace(tile, grid_order=ROWS_FAST))
    return prepared if isinstance(prepared, MemsimError) else _surveyed(number, tile, prepared, request)


def _numbered(plan: SweepPlan, tiles: Iterable[Tile] | None) -> list[tuple[int, Tile | MemsimError]]:
    """The candidates with the numbers of their points; what is wrong with a tile in its place."""
    wanted = None if tiles is None else set(tiles)
    read = [(number, _read_tile(tuple(options_of(plan.point(number)).items()))) for number in range(plan.points)]
    return [(number, tile) for number, tile in read if wanted is None or tile in wanted]


@lru_cache(maxsize=1 << 16)
def _read_tile(options: tuple[tuple[str, str], ...]) -> Tile | MemsimError:
    try:
        return Tile(**read_tile(dict(options)))
    except MemsimError as error:
        return error


def _prepared(request: Request, tile: Tile) -> Prepared | MemsimError:
    try:
        return prepare(
            request.algorithm, request.problem, request.gpu, tile, lse=request.lse, resources=request.resources
        )
    except MemsimError as error:
        return error


def _kind_of(error: MemsimError) -> str:
    kinds = {TileDoesNotFit: "does-not-fit", OutOfMemory: "out-of-memory", _NotOffered: "not-offered"}
    return kinds.get(type(error), "refused")


def _nothing_possible(request: Request, refusals: tuple[Refusal, ...]) -> MemsimError:
    """One sentence for all, by what most of them fail for."""
    most = max(refusals, key=lambda refusal: refusal.count)
    if most.kind == "out-of-memory":
        return OutOfMemory(most.example)
    what = ", ".join(f"{refusal.count} {KINDS[refusal.kind]}" for refusal in refusals)
    nearest = most.example.partition("; ")[0].rstrip(".")
    return MemsimError(
        f"no candidate is possible on {request.gpu_name}: {what}, the smallest of most of them because {nearest}; take "
        "a smaller problem, a GPU with more room, or other values to vary."
    )


def _not_offered(request: Request, tile: Tile) -> str:
    """Why the kernels do not offer a warp-specialised tile; empty if they do, or it is none."""
    if tile.load_path != "descriptor-ws" or request.algorithm != "flash":
        return ""
    if request.problem.causal or request.lse:
        return "warp-specialised kernels are right only for full attention without LSE."
    seen = replace(tile, grid_order=ROWS_FAST) in SPECIALIZED_SEEN_RIGHT
    return "" if seen else f"tile {tile} is none of those seen right."


def _surveyed(number: int, tile: Tile, ready: Prepared, request: Request) -> Surveyed:
    gpu = request.gpu
    at = min(range(len(ready.resources)), key=lambda n: ready.resources[n].blocks_per_sm)
    taken, trace = ready.resources[at], ready.traces[at]
    room = gpu.sm.count * taken.blocks_per_sm
    waves = cdiv(trace.blocks, room)
    spilling = [_spills(gpu, resources) for resources in ready.resources]
    replay = _replay(gpu, ready.resources, "yes" in spilling)
    return Surveyed(
        number=number,
        tile=tile,
        replay=replay,
        blocks_per_sm=taken.blocks_per_sm,
        limited_by=taken.limited_by,
        waves=waves,
        last_wave=(trace.blocks - (waves - 1) * room) / room if waves else 0.0,
        occupancy=taken.blocks_per_sm * taken.block_warps / gpu.sm.max_warps,
        sram_bytes=max(resources.sram_bytes for resources in ready.resources),
        registers=taken.registers,
        registers_from=taken.registers_from,
        stack_bytes=max((r.stack_bytes for r in ready.resources if r.stack_bytes is not None), default=None),
        spills=next((word for word in ("yes", "may") if word in spilling), "no"),
        fill_bytes=sum(counts.sram_fill_bytes for counts in ready.counts),
        tile_operations=sum(counts.tile_operations for counts in ready.counts),
        least_time_s=_least_time_s(request, ready, by_instructions=replay == BY_INSTRUCTIONS),
        least_hbm_bytes=_least_hbm_bytes(request, ready),
    )


def _replay(gpu: Gpu, resources: Iterable[Resources], spilling: bool) -> int:
    calibrated = gpu.calibrated is not None and gpu.sm.core is not None
    if calibrated and all(taken.stream is not None for taken in resources):
        return BY_INSTRUCTIONS
    return BY_TRACE_SPILLING if spilling else BY_TRACE


def _spills(gpu: Gpu, taken: Resources) -> str:
    """Whether a kernel keeps registers on a stack: "yes", "no", or "may" where it is not compiled."""
    if taken.stack_bytes is not None:
        return "yes" if taken.stack_bytes else "no"
    file = gpu.sm.registers
    if file is None or taken.registers is None:
        return "no"
    if taken.accumulators > file.per_thread_limit:
        return "yes"
    return "may" if taken.registers == file.per_thread_limit else "no"


def _least_hbm_bytes(request: Request, ready: Prepared) -> int:
    """Where there is no L2, or it is not replayed, the bytes themselves; where there is, launches on caches that hold
    nothing read what they need once, and may leave in the L2 what they store."""
    if request.gpu.l2 is None or request.count_only:
        return sum(_moved(counts) for counts in ready.counts)
    return _reads_once(request.problem) if request.l2_state == "cold" else 0


def _least_time_s(request: Request, ready: Prepared, *, by_instructions: bool) -> float:
    """The rooflines of every launch, starting them, and what crosses the host link."""
    gpu, problem = request.gpu, request.problem
    total = 0.0
    if request.inputs == "host":
        sent = sum(ready.program.tensors[name].total_bytes for name in "QKV")
        total += gpu.host.latency_s + sent / gpu.host.bandwidth_bytes_per_s if sent else 0.0
    for trace, counts in zip(ready.traces, ready.counts, strict=True):
        if trace.blocks:
            work = _least_of_pipes(gpu, problem, trace, counts, by_instructions=by_instructions)
            total += gpu.launch.overhead_s + max(work, _least_of_memory(gpu, counts, by_instructions=by_instructions))
    if gpu.l2 is not None and request.l2_state == "cold":
        total = max(total, _EXACT * _reads_once(problem) / gpu.hbm.bandwidth_bytes_per_s)
    return total


def _least_of_pipes(
    gpu: Gpu, problem: Attention, trace: LaunchTrace, counts: Counts, *, by_instructions: bool
) -> float:  # fmt: skip
    """What the fullest SM takes for its products, exponentials and, by trace, element-wise arithmetic. Where all blocks
    do the same, one SM has its whole share of blocks, rounded up."""
    pipes, clock = gpu.sm.pipes, gpu.sm.clock_hz
    if by_instructions and gpu.calibrated is not None:
        clock = max(gpu.calibrated.clock_hz, gpu.calibrated.idle_tensor_clock_hz)
    share = 1 / min(gpu.sm.count, trace.blocks)
    if not problem.causal:
        share = cdiv(trace.blocks, gpu.sm.count) / trace.blocks
    products = counts.flops / pipes.dot_flop_per_clock(problem.dtype)
    exps = counts.exps / pipes.exp_per_clock["float32"]
    cycles = [products, exps]
    if not by_instructions:
        alu = counts.alu_ops / pipes.alu_per_clock["float32"]
        cycles.append(alu + (products if pipes.dot_pipe(problem.dtype) == "alu" else 0.0))
        moved = counts.sram_fill_bytes - counts.sram_zero_fill_bytes + counts.sram_store_bytes
        cycles.append(moved / gpu.sm.sram.bandwidth_bytes_per_clock)
    return (_SAFETY if by_instructions else _EXACT) * share * max(cycles) / clock


def _least_of_memory(gpu: Gpu, counts: Counts, *, by_instructions: bool) -> float:
    """What the memory below the SMs takes for what crosses it. By instructions blocks in step ask the L2 for less."""
    if gpu.l2 is None:
        return _EXACT * _moved(counts) / gpu.hbm.bandwidth_bytes_per_s
    return 0.0 if by_instructions else _EXACT * _moved(counts) / gpu.l2.bandwidth_bytes_per_s


def _moved(counts: Counts) -> int:
    return counts.sram_fill_bytes - counts.sram_zero_fill_bytes + counts.sram_store_bytes


def _reads_once(problem: Attention) -> int:
    """What must be read of the inputs, once."""
    return compulsory_bytes(problem) - problem.tensor_bytes()["O"]
