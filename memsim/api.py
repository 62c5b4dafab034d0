"""The front door: simulate one algorithm, compare two, compute with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from memsim._compiled import SOURCES, compile_now
from memsim._kept_replays import KeptReplays
from memsim._kernels import machine_launch
from memsim._notes import notes_of
from memsim.attention import Attention
from memsim.bounds import compulsory_bytes, io_lower_bound_bytes, on_chip_bytes
from memsim.counting import Counts, count
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.gpu import Gpu, apply_options, load_gpu
from memsim.grid import ROWS_FAST
from memsim.language import Program, trace_launch
from memsim.machine import LaunchTiming, Progress, RunTiming, replay
from memsim.machine.l2 import Tally
from memsim.numerics import Array, Watch, run_program
from memsim.programs import PROGRAMS, build_program
from memsim.programs.flash1 import paper_tile
from memsim.resources import Resources, resources_of, room_of
from memsim.result import Comparison, Launch, Result, Total, ratio
from memsim.tile import Tile, cdiv
from memsim.trace import LaunchTrace

DEFAULT_GPU = "h200"
# Tried first where warps are to be specialised: 128 rows, which two groups of math warps share.
SPECIALIZED_TILES = (Tile(128, 128, 4, 2), Tile(128, 64, 4, 2))
INPUTS = ("hbm", "host")
L2_STATES = ("cold", "warm")

# What `bound` goes by (see `_causes`); chosen on the problems of benchmarks/bound.py.
SATURATED_SHARE = 0.85
CROWDED_SHARE = 0.65
LEAST_MEMORY_WAIT = 0.1
MEMORIES = ("hbm", "l2")


@dataclass(frozen=True)
class Prepared:
    """An algorithm made ready for a machine: its program, tile, and each launch's trace, resources and totals."""

    program: Program
    tile: Tile
    traces: tuple[LaunchTrace, ...]
    resources: tuple[Resources, ...]
    counts: tuple[Counts, ...]


def simulate(
    algorithm: str,
    problem: Attention | None = None,
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None,
    tile: Tile | Mapping[str, Any] | None = None,
    lse: bool = False,
    inputs: str = "hbm",
    resources: str = "table",
    l2_state: str = "cold",
    full: bool = False,
    count_only: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Bytes, work and time of an algorithm ("naive", "flash", "flash1") on a problem and a GPU.

    `gpu` is a shipped name, a path of a TOML file or a `Gpu`; `gpu_options` change single fields, as text
    (`{"sram": "96KiB"}`). `tile` may be a `Tile`, or some of its fields: the rest, or all if None, comes from the
    first tile of the machine's list that fits. `inputs="host"` has Q, K and V cross the host link first.
    `resources` says where SRAM, registers and spills of the kernels come from: "table" (rules, and a table that ships
    with memsim) or "compiled" (Triton compiles them for this problem; extra `kernels`). `count_only` leaves the replay
    out: every byte and operation, no time, as on a machine without an L2. `l2_state` is what the first launch finds in
    the L2: "cold", nothing, or "warm", what the same run left. `full` replays every block: without it blocks that go
    like those before them are left out and accounted for (memsim.machine.leaps). Raises `MemsimError` on bad input.
    """
    return simulate_kept(
        None, algorithm, problem, gpu=gpu, gpu_options=gpu_options, tile=tile, lse=lse, inputs=inputs,
        resources=resources, l2_state=l2_state, full=full, count_only=count_only, progress=progress,
    )  # fmt: skip


def simulate_kept(
    kept: KeptReplays | None, algorithm: str, problem: Attention | None = None, *, gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None, tile: Tile | Mapping[str, Any] | None = None, lse: bool = False,
    inputs: str = "hbm", resources: str = "table", l2_state: str = "cold", full: bool = False,
    count_only: bool = False, progress: Progress | None = None,
) -> Result:  # fmt: skip
    """`simulate`, with replays that were made before and kept."""
    machine, given_name = _machine(gpu, gpu_options)
    problem = problem if problem is not None else Attention()
    if inputs not in INPUTS:
        raise MemsimError(f"inputs is {inputs!r}; it must be one of {', '.join(INPUTS)}.")
    if l2_state not in L2_STATES:
        raise MemsimError(f"l2_state is {l2_state!r}; it must be one of {', '.join(L2_STATES)}.")
    ready = prepare(algorithm, problem, machine, tile, lse=lse, resources=resources)
    host_bytes = sum(ready.program.tensors[name].total_bytes for name in "QKV") if inputs == "host" else 0
    timing = None
    if not count_only:
        launches = [
            machine_launch(machine, trace, resources, problem, ready.tile)
            for trace, resources in zip(ready.traces, ready.resources, strict=True)
        ]
        warm = l2_state == "warm"

        def replayed() -> RunTiming:
            return replay(machine, launches, host_bytes=host_bytes, warm=warm, full=full, progress=progress)

        if kept is None:
            timing = replayed()
        else:
            # Of naive, how much SRAM a block may take decides how softmax goes over a row.
            room = room_of(machine) if algorithm == "naive" else None
            made_from = (algorithm, problem, ready.tile, lse, room)
            timing = kept.get(machine, made_from, launches, (host_bytes, warm, full), replayed)
        _check_agreement(ready, timing)
    return _result(
        algorithm, problem, machine, given_name, dict(gpu_options or {}), ready, timing, inputs, host_bytes, lse,
        l2_state,
    )  # fmt: skip


def compare(
    problem: Attention | None = None,
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None,
    tile: Tile | Mapping[str, Any] | None = None,
    lse: bool = False,
    inputs: str = "hbm",
    resources: str = "table",
    l2_state: str = "cold",
    full: bool = False,
    count_only: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Naive attention and FlashAttention on the same problem and GPU; arguments as for `simulate`. The tile's load
    path and grid order are flash's: naive takes pointers, rows fast."""
    naive, flash = (
        simulate(
            algorithm, problem, gpu=gpu, gpu_options=gpu_options, tile=taken, lse=lse, inputs=inputs,
            resources=resources, l2_state=l2_state, full=full, count_only=count_only, progress=progress,
        )
        for algorithm, taken in (("naive", _as_naive_takes(tile)), ("flash", tile))
    )  # fmt: skip
    return Comparison(naive, flash)


def compute(
    algorithm: str,
    problem: Attention,
    q: Array,
    k: Array,
    v: Array,
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    gpu_options: Mapping[str, str] | None = None,
    tile: Tile | Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> tuple[Array, Array]:
    """(O, LSE) as the algorithm computes them, tile by tile in an SRAM of this GPU's size, with its rounding.

    q `(batch, heads, seq_len_q, head_dim)`, k and v `(batch, kv_heads, seq_len_k, head_dim)`, NumPy arrays of the
    problem's dtype (bfloat16 from ml_dtypes). O has q's shape and dtype, LSE is `(batch, heads, seq_len_q)` float32.
    """
    machine, _ = _machine(gpu, gpu_options)
    ready = prepare(algorithm, problem, machine, tile, lse=algorithm != "flash1")
    o, lse = run_program(ready.program, problem, q, k, v, watch=watch)
    assert lse is not None
    return o, lse


def prepare(
    algorithm: str, problem: Attention, gpu: Gpu, tile: Tile | Mapping[str, Any] | None, *, lse: bool = False,
    resources: str = "table",
) -> Prepared:  # fmt: skip
    """Build, trace and count an algorithm for a machine. Raises `TileDoesNotFit` or `OutOfMemory`, with the sum."""
    if algorithm not in PROGRAMS:
        raise MemsimError(f"there is no algorithm {algorithm!r}; choose one of {', '.join(PROGRAMS)}.")
    if resources not in SOURCES:
        raise MemsimError(f"resources is {resources!r}; it must be one of {', '.join(SOURCES)}.")
    if isinstance(tile, Tile):
        return _prepare_tile(algorithm, problem, gpu, tile, lse, resources)
    names = [field.name for field in fields(Tile)]
    if unknown := [name for name in tile or () if name not in names]:
        raise MemsimError(f"{name!r} is not a field of a tile; give any of {', '.join(names)}." for name in unknown)
    refusals = []
    for choice in _default_tiles(algorithm, problem, gpu, str(dict(tile or {}).get("load_path", "pointer"))):
        try:
            return _prepare_tile(algorithm, problem, gpu, replace(choice, **dict(tile or {})), lse, resources)
        except TileDoesNotFit as refusal:
            refusals.append(refusal)
    # What was asked for is best seen in the first; where nothing was, the last is the smallest tile there is.
    raise refusals[0] if tile else refusals[-1]


def _as_naive_takes(tile: Tile | Mapping[str, Any] | None) -> Tile | Mapping[str, Any] | None:
    if isinstance(tile, Tile):
        return replace(tile, load_path="pointer", grid_order=ROWS_FAST)
    of_flash = ("load_path", "grid_order")
    return {name: value for name, value in tile.items() if name not in of_flash} if tile is not None else None


def _default_tiles(algorithm: str, problem: Attention, gpu: Gpu, load_path: str) -> list[Tile]:
    if algorithm != "flash1":
        listed = [Tile(c.block_m, c.block_n, c.num_warps, c.num_stages) for c in gpu.tiles]
        return [*SPECIALIZED_TILES, *listed] if load_path == "descriptor-ws" else listed
    tile = paper_tile(problem, gpu.sm.sram.capacity_bytes)
    tiles = [tile]
    while tile.block_n > 16:
        block_n = tile.block_n // 2
        tile = replace(tile, block_n=block_n, block_m=min(block_n, tile.block_m))
        tiles.append(tile)
    room = room_of(gpu)
    return [_fitting_shape(t) for t in tiles] if room.mma_tiles else tiles


def _fitting_shape(tile: Tile) -> Tile:
    """The next smaller tile that tensor instructions take."""
    return replace(
        tile,
        block_m=max(16, 1 << tile.block_m.bit_length() - 1),
        block_n=max(16, 1 << tile.block_n.bit_length() - 1),
    )


def _prepare_tile(
    algorithm: str, problem: Attention, gpu: Gpu, tile: Tile, lse: bool, resources_from: str
) -> Prepared:  # fmt: skip
    program = build_program(algorithm, problem, tile, room_of(gpu), lse=lse)
    _check_hbm(program, gpu)
    traces = tuple(trace_launch(launch, program.room) for launch in program.launches)
    compiled = compile_now(gpu, algorithm, problem, tile, lse=lse) if resources_from == "compiled" else None
    resources = tuple(resources_of(gpu, trace, problem, tile, lse=lse, compiled=compiled) for trace in traces)
    return Prepared(program, tile, traces, resources, tuple(count(trace) for trace in traces))


def _check_hbm(program: Program, gpu: Gpu) -> None:
    needed = sum(t.total_bytes for t in program.tensors.values())
    if needed > gpu.hbm.capacity_bytes:
        parts = " + ".join(f"{t.name} {t.total_bytes}" for t in program.tensors.values())
        raise OutOfMemory(
            f"out of memory: {program.algorithm} needs {needed} B of {gpu.hbm.capacity_bytes} B of HBM: {parts}; "
            + (
                "take a smaller problem, or flash, which does not store S and P."
                if "S" in program.tensors
                else "take a smaller problem or a GPU with more HBM."
            )
        )


def _check_agreement(ready: Prepared, timing: RunTiming) -> None:
    """The replay moved what the trace says: two countings of the same bytes, made in different ways."""
    for counts, timed in zip(ready.counts, timing.launches, strict=True):
        # Zeros take no time in the replay: they cross no memory.
        read = counts.sram_fill_bytes - counts.sram_zero_fill_bytes
        counted, moved = (read, counts.sram_store_bytes), (timed.fill_bytes, timed.store_bytes)
        if counted != moved:
            raise AssertionError(f"{timed.name}: counted {counted} bytes filled and stored, replayed {moved}")


def _machine(gpu: str | Gpu, options: Mapping[str, str] | None) -> tuple[Gpu, str]:
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return (apply_options(machine, options) if options else machine), gpu if isinstance(gpu, str) else gpu.name


def _result(
    algorithm: str, problem: Attention, gpu: Gpu, given_name: str, gpu_options: dict[str, str], ready: Prepared,
    timing: RunTiming | None, inputs: str, host_bytes: int, lse: bool, l2_state: str,
) -> Result:  # fmt: skip
    launches = tuple(
        _launch(gpu, spec.useful_flops, trace, resources, counts, timing.launches[i] if timing else None)
        for i, (spec, trace, resources, counts) in enumerate(
            zip(ready.program.launches, ready.traces, ready.resources, ready.counts, strict=True)
        )
    )
    return Result(
        algorithm=algorithm,
        gpu=given_name,
        gpu_options=gpu_options,
        problem=asdict(problem),
        tile=asdict(ready.tile),
        levels=("hbm", "l2", "sram") if timing is not None and gpu.l2 is not None else ("hbm", "sram"),
        l2_state=l2_state,
        inputs=inputs,
        lse=lse,
        counted_only=timing is None,
        launches=launches,
        total=_total(problem, gpu, ready, launches, timing, host_bytes, lse),
        notes=notes_of(
            gpu,
            problem,
            ready.tile,
            ready.traces,
            ready.resources,
            lse=lse,
            replayed_by=None if timing is None else [timed.replayed_by for timed in timing.launches],
        ),
    )


def _launch(
    gpu: Gpu, useful_flops: int, trace: LaunchTrace, resources: Resources, counts: Counts, timed: LaunchTiming | None
) -> Launch:
    sums = asdict(counts)
    sums["fill_bytes_by_tensor"] = dict(counts.fill_bytes_by_tensor)
    sums["store_bytes_by_tensor"] = dict(counts.store_bytes_by_tensor)
    times: dict[str, Any] = {}
    # Two levels: what fills SRAM comes from HBM but for zeros, what leaves it goes there.
    hbm = (counts.sram_fill_bytes - counts.sram_zero_fill_bytes, counts.sram_store_bytes)
    if timed is not None:
        hbm = (timed.hbm_read_bytes, timed.hbm_write_bytes)
        sums["sram_fill_bytes"] -= timed.l1_hit_bytes
        if gpu.l2 is not None:
            tallies = timed.tallies
            times = {
                "l2_read_bytes_by_tensor": {name: tally.read_bytes for name, tally in tallies.items()},
                "l2_hit_rate_by_tensor": {
                    name: ratio(tally.read_bytes - tally.missed_bytes, tally.read_bytes)
                    for name, tally in tallies.items()
                },
                "l2_hit_rate": hit_rate(tallies.values()),
            }
        times |= {
            "l1_hit_bytes": timed.l1_hit_bytes,
            "code_bytes": timed.code_bytes,
            "blocks_left_out": timed.blocks_left_out,
            "time_s": timed.time_s,
            "sm_cycles": timed.time_s * timed.clock_hz,
            "clock_hz": timed.clock_hz,
            "replayed_by": timed.replayed_by,
            "bound": _largest(_causes(timed)),
            "busy": timed.busy,
            "waiting_for_memory": timed.waiting_for_memory,
        }
    return Launch(
        name=trace.name,
        blocks=trace.blocks,
        blocks_per_sm=resources.blocks_per_sm,
        limited_by=resources.limited_by,
        waves=cdiv(trace.blocks, gpu.sm.count * resources.blocks_per_sm),
        sram_bytes=resources.sram_bytes,
        registers=resources.registers,
        registers_from=resources.registers_from,
        stack_bytes=resources.stack_bytes,
        hbm_read_bytes=hbm[0],
        hbm_write_bytes=hbm[1],
        l2_dirty_bytes_at_end=timed.dirty_bytes_at_end if timed is not None else 0,
        useful_flops=useful_flops,
        **sums,
        **times,
    )


def hit_rate(tallies: Iterable[Tally]) -> float | None:
    """The share of what an L2 was asked for that it had; None where it was asked for nothing."""
    read = missed = 0
    for tally in tallies:
        read += tally.read_bytes
        missed += tally.missed_bytes
    return ratio(read - missed, read)


def _total(
    problem: Attention, gpu: Gpu, ready: Prepared, launches: tuple[Launch, ...], timing: RunTiming | None,
    host_bytes: int, lse: bool,
) -> Total:  # fmt: skip
    names = (
        "sram_fill_bytes", "sram_fill_requested_bytes", "sram_zero_fill_bytes", "sram_store_bytes",
        "sram_store_requested_bytes", "hbm_read_bytes", "hbm_write_bytes", "flops", "useful_flops", "exps", "alu_ops",
        "tile_operations",
    )  # fmt: skip
    sums = {name: sum(getattr(launch, name) for launch in launches) for name in names}
    hbm_bytes = sums["hbm_read_bytes"] + sums["hbm_write_bytes"]
    compulsory = compulsory_bytes(problem, lse=lse)
    lower = io_lower_bound_bytes(problem, on_chip_bytes(gpu))
    return Total(
        **sums,
        hbm_bytes=hbm_bytes,
        peak_hbm_bytes=sum(t.total_bytes for t in ready.program.tensors.values()),
        compulsory_bytes=compulsory,
        io_lower_bound_bytes=lower,
        over_compulsory=ratio(hbm_bytes, compulsory),
        over_lower_bound=ratio(hbm_bytes, lower),
        arithmetic_intensity=ratio(sums["useful_flops"], hbm_bytes),
        host_bytes=host_bytes,
        **(_total_levels(gpu, timing) | _total_times(launches, timing) if timing else {}),
    )


def _total_levels(gpu: Gpu, timing: RunTiming) -> dict[str, Any]:
    """What the caches did in all launches together."""
    levels: dict[str, Any] = {"l1_hit_bytes": sum(timed.l1_hit_bytes for timed in timing.launches)}
    if gpu.l2 is None:
        return levels
    tallies = [tally for timed in timing.launches for tally in timed.tallies.values()]
    return levels | {
        "l2_read_bytes": sum(tally.read_bytes for tally in tallies),
        "l2_hit_rate": hit_rate(tallies),
        "l2_dirty_bytes_at_end": timing.launches[-1].dirty_bytes_at_end,
    }


def _total_times(launches: tuple[Launch, ...], timing: RunTiming) -> dict[str, Any]:
    kernels = sum(timed.time_s for timed in timing.launches)
    total = kernels + timing.launch_overhead_s + timing.host_s
    causes = {"launch": timing.launch_overhead_s, "host": timing.host_s}
    busy: dict[str, float] = {}
    waiting = 0.0
    for timed in timing.launches:
        for name, share in _causes(timed).items():
            causes[name] = causes.get(name, 0.0) + timed.time_s * share
        for name, share in timed.busy.items():
            busy[name] = busy.get(name, 0.0) + share * timed.time_s
        waiting += timed.waiting_for_memory * timed.time_s
    return {
        "time_s": total,
        "launch_overhead_s": timing.launch_overhead_s,
        "host_s": timing.host_s,
        "bound": _largest(causes),
        "busy": {name: s / total for name, s in busy.items()} | {"host": timing.host_s / total} if total else {},
        "waiting_for_memory": waiting / kernels if kernels else 0.0,
    }


def _causes(timed: LaunchTiming) -> dict[str, float]:
    """What a launch's time is due to, as shares: the resource that is saturated, else what its blocks stood still for.

    Where one resource is busy nearly all the time, blocks also stand still for others that they overlap on, but
    relieving those gains at most what is left. HBM and the L2 count as saturated only if blocks wait for memory at all,
    and where one of them is busy most of the time a wait for latency is one for it. benchmarks/bound.py tries how often
    that is right.
    """
    blocked = sum(timed.waited.values())
    if not blocked:
        return {}
    causes = {name: s / blocked for name, s in timed.waited.items()}
    memory_wait = sum(causes.get(name, 0.0) for name in (*MEMORIES, "latency"))
    busiest = max(timed.busy, key=lambda name: timed.busy[name])
    if timed.busy[busiest] >= SATURATED_SHARE and (busiest not in MEMORIES or memory_wait >= LEAST_MEMORY_WAIT):
        return {busiest: 1.0}
    crowded = max(MEMORIES, key=lambda name: timed.busy.get(name, 0.0))
    if timed.busy.get(crowded, 0.0) >= CROWDED_SHARE:
        causes[crowded] = causes.get(crowded, 0.0) + causes.pop("latency", 0.0)
    return causes


def _largest(amounts: Mapping[str, float]) -> str | None:
    """The name with the largest amount, the first of equals; None if nothing has any."""
    name = max(amounts, key=lambda key: amounts[key], default=None)
    return name if name is not None and amounts[name] > 0 else None
