"""Plots of results that there are: bytes per level, the roofline, busy shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsim._plot import Plot
from memsim._report_format import size
from memsim._report_heading import COUNTED, machine_facts, machine_line, problem_facts
from memsim.errors import MemsimError
from memsim.gpu import Gpu, apply_options, load_gpu
from memsim.result import Comparison, Launch, Result
from memsim.tile import Tile


def bytes_per_level(comparison: Comparison, gpu: Gpu | str | None = None) -> Plot:
    """Bytes of naive attention and of flash that cross each level, launch by launch, in whole sectors.

    `gpu` is the machine that was simulated, if not the one that the results name (of all these functions).
    """
    results = (comparison.naive, comparison.flash)
    rows = []
    for result in results:
        for launch in result.launches:
            crossed = {
                "SRAM filled": launch.sram_fill_bytes,
                "SRAM stored": launch.sram_store_bytes,
                "HBM read": launch.hbm_read_bytes,
                "HBM written": launch.hbm_write_bytes,
            }
            if launch.l2_read_bytes_by_tensor is not None:
                crossed["L2 read"] = sum(launch.l2_read_bytes_by_tensor.values())
            order = ("SRAM filled", "L2 read", "HBM read", "SRAM stored", "HBM written")
            rows += [
                {"level": level, "algorithm": result.algorithm, "launch": launch.name, "bytes": crossed[level]}
                for level in order
                if level in crossed
            ]
    rows.sort(key=lambda row: order.index(str(row["level"])))
    title = "Bytes that cross each level, naive attention against flash"
    caption = _caption(results, gpu)
    dirty = {result.algorithm: result.total.l2_dirty_bytes_at_end for result in results}
    if any(dirty.values()):
        left = " and ".join(f"{size(found)} of {name}" for name, found in dirty.items())
        caption += (f"Not yet written to HBM, but dirty in the L2 when the last launch ends: {left}.",)
    return Plot("bytes", title, caption, tuple(rows), {"l2_dirty_bytes_at_end": dirty}, notes_of_results(results))


def roofline(*results: Result, gpu: Gpu | str | None = None) -> Plot:
    """Each launch under the roofs of its machine: FLOP per HBM byte, and FLOP per second.

    FLOP are executed ones of matrix products; a launch that has none (softmax) is placed by its element-wise
    operations, under the roof of the ALU pipe. A launch that moved no HBM bytes is on no roofline and left out.
    """
    _timed(results, "a roofline needs times")
    machine = _machine(results[0], gpu)
    dtype = str(results[0].problem["dtype"])
    peaks = {"products": machine.tensor_flop_per_s(dtype), "element-wise": machine.alu_per_s}
    rows = []
    left_out = []
    for result in results:
        for launch in result.launches:
            row = _point(result.algorithm, launch, peaks, machine.hbm.bandwidth_bytes_per_s)
            if row is None:
                left_out.append(launch.name)
            else:
                rows.append(row)
    if not rows:
        raise MemsimError("there is nothing to plot: no launch moved HBM bytes and did any work.")
    used = {row["work"] for row in rows}
    roofs = [{"roof": "hbm", "bytes_per_s": machine.hbm.bandwidth_bytes_per_s}]
    roofs += [{"roof": work, "flop_per_s": peak} for work, peak in peaks.items() if work in used]
    caption = (*_caption(results, gpu), "Beside each launch: how much of what its roof allows it reaches.")
    if "element-wise" in used:
        names = ", ".join(row["launch"] for row in rows if row["work"] == "element-wise")
        caption += (f"Matrix products by their FLOP; {names}, which has none, by its element-wise operations.",)
    if left_out:
        caption += (f"Without {', '.join(left_out)}, which moved no HBM bytes.",)
    return Plot("roofline", "Roofline: each launch under what its GPU allows", caption, tuple(rows),
                {"roofs": roofs}, notes_of_results(results))  # fmt: skip


def busy_shares(*results: Result, gpu: Gpu | str | None = None) -> Plot:
    """How busy each resource is, launch after launch: its share of the time of each, from when to when it runs.

    Each launch comes after its share of the launch overhead; what the host link takes comes first.
    """
    _timed(results, "busy shares need times")
    rows = []
    for result in results:
        total = result.total
        assert total.launch_overhead_s is not None and total.host_s is not None
        at, gap = total.host_s, total.launch_overhead_s / len(result.launches)
        for launch in result.launches:
            assert launch.time_s is not None and launch.busy is not None
            start, at = at + gap, at + gap + launch.time_s
            shares = launch.busy | {"waiting_for_memory": launch.waiting_for_memory}
            rows += [
                {"algorithm": result.algorithm, "launch": launch.name, "resource": name, "share": share,
                 "start_s": start, "end_s": at}
                for name, share in shares.items()
            ]  # fmt: skip
    caption = (
        *_caption(results, gpu),
        "A bar's height is a share of its launch's time.",
        "Math waits: no block of an SM can go on for want of data.",
    )
    return Plot("busy", "How busy each resource is, over time", caption, tuple(rows), {}, notes_of_results(results))


def _point(algorithm: str, launch: Launch, peaks: dict[str, float], hbm: float) -> dict[str, Any] | None:
    assert launch.time_s is not None
    work = "products" if launch.flops else "element-wise"
    done = launch.flops or launch.alu_ops
    moved = launch.hbm_read_bytes + launch.hbm_write_bytes
    if not done or not moved or not launch.time_s:
        return None
    per_byte, per_s = done / moved, done / launch.time_s
    roof = min(peaks[work], hbm * per_byte)
    return {
        "algorithm": algorithm, "launch": launch.name, "work": work, "flop": done, "hbm_bytes": moved,
        "time_s": launch.time_s, "flop_per_byte": per_byte, "flop_per_s": per_s, "roof_flop_per_s": roof,
        "share_of_roof": per_s / roof, "bound": launch.bound,
    }  # fmt: skip


def _timed(results: Sequence[Result], needs: str) -> None:
    if not results:
        raise MemsimError("there is nothing to plot: give at least one result.")
    if any(result.counted_only for result in results):
        raise MemsimError(f"{needs}, and counting gives none: leave --count-only (count_only) out.")


def _machine(result: Result, gpu: Gpu | str | None) -> Gpu:
    if isinstance(gpu, Gpu):
        return gpu
    machine = load_gpu(gpu or result.gpu)
    return apply_options(machine, result.gpu_options) if result.gpu_options else machine


def _caption(results: Sequence[Result], gpu: Gpu | str | None) -> tuple[str, ...]:
    """The problem, the machine and the tile, a line each."""
    first = results[0]
    machine = _machine(first, gpu)
    problem = ", ".join(problem_facts(first.problem, lse=first.lse, inputs=first.inputs))
    facts = machine_facts(machine, warm=first.l2_state == "warm", counted=first.counted_only)
    without_l2 = machine.l2 is not None and "l2" not in first.levels
    tiles = list(dict.fromkeys(str(Tile(**result.tile)) for result in results))
    each = tiles if len(tiles) == 1 else [
        f"{Tile(**result.tile)} ({result.algorithm})" for result in results
    ]  # fmt: skip
    return (
        problem,
        machine_line(first.gpu, first.gpu_options, facts, without_l2=without_l2),
        f"tile {', '.join(each)}",
    )


def notes_of_results(results: Sequence[Result]) -> tuple[str, ...]:
    """What a reader must know of these results, each once."""
    said = [COUNTED] if results[0].counted_only else []
    return tuple(dict.fromkeys([*said, *(note for result in results for note in result.notes)]))
