"""What each key of a command's JSON means: from the docstrings of dataclasses, and here for what is none."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from memsim_docs.runs import PageFault

OPEN = ("busy", "by_tensor", "gpu_options", "gpu_digests", "point", "options", "fields", "sources", "versions",
        "checks", "skipped", "opcodes", "classes", "problem", "tile", "figures")  # fmt: skip
"""The last words of keys whose own keys depend on what was asked, or are those of a dataclass described elsewhere."""


def attributes(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass. Raises `PageFault` if a field has none."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    fields = []
    for line, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            fields.append(line.target.id)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[line.target.id] = str(following.value.value)
    if missing := [name for name in fields if name not in found]:
        raise PageFault(f"of {cls.__name__} no docstring says what {', '.join(missing)} are.")
    return found


def under(prefix: str, meanings: Mapping[str, str]) -> dict[str, str]:
    """The same with the key that they are under."""
    return {f"{prefix}{name}": text for name, text in meanings.items()}


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of JSON data; below a key that is open, none."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            key = f"{prefix}{name}"
            yield key
            if not name.endswith(OPEN) or isinstance(inner, list):
                yield from paths(inner, f"{key}.")
    elif isinstance(value, list):
        for element in value:
            yield from paths(element, f"{prefix[:-1]}[].")


def check(schema: str, meanings: Mapping[str, str], *examples: Any) -> None:
    """Raise unless every key of the examples has a meaning, and of every meaning there is a key."""
    found = dict.fromkeys(path for data in examples for path in paths(data))
    if unknown := [key for key in found if key not in meanings]:
        raise PageFault(f"{schema}: nothing says what {', '.join(unknown)} mean.")
    if absent := [key for key in meanings if key not in found]:
        raise PageFault(f"{schema}: no key is called {', '.join(absent)}.")


def result() -> dict[str, str]:
    """`memsim.result/1`."""
    from memsim import Launch, Result, Total

    own = attributes(Result)
    of = {"launches": under("launches[].", attributes(Launch)), "total": under("total.", attributes(Total))}
    keys = {"schema": "`memsim.result/1`."}
    for name, text in own.items():
        keys |= {name: text} | of.get(name, {})
    return keys


def compare() -> dict[str, str]:
    """`memsim.compare/1`, of which naive and flash are results."""
    return {
        "schema": "`memsim.compare/1`.",
        "ratios": "Naive over flash; null where one of them is absent or zero.",
        "ratios.hbm_bytes": "Of HBM bytes.",
        "ratios.hbm_read_bytes": "Of HBM reads.",
        "ratios.hbm_write_bytes": "Of HBM writes.",
        "ratios.peak_hbm_bytes": "Of the most that tensors take of HBM.",
        "ratios.time_s": "Of time.",
        "naive": "A `memsim.result/1`.",
        "flash": "A `memsim.result/1`.",
    }


_MADE = {
    "memsim_version": "The version of memsim that made it.",
    "simulator_digest": "A digest of its sources and tables.",
    "gpu_digests": "A digest of each GPU's numbers, by its name as given.",
    "axes": "The axes, in their order.",
    "axes[].name": "The name of one.",
    "axes[].values": "Its values, as text.",
}


def sweep() -> dict[str, str]:
    """`memsim.sweep/1`."""
    from memsim._sweep_table import SweepRow

    return {
        "schema": "`memsim.sweep/1`.",
        "options": "The values that all points share, by option.",
        "counted_only": "Whether the replay was left out.",
        **_MADE,
        "points": "How many rows a finished sweep has.",
        "notes": "What holds for every row that has figures.",
        "rows": "The points, the last axis fastest.",
        **under("rows[].", attributes(SweepRow)),
    }


def tune() -> dict[str, str]:
    """`memsim.tune/1`."""
    from memsim import Candidate

    return {
        "schema": "`memsim.tune/1`.",
        "algorithm": "The algorithm.",
        "gpu": "The GPU, as it was named.",
        "gpu_options": "Fields of it that were changed, as text.",
        "problem": "The fields of the `Attention`.",
        "lse": "Whether the log-sum-exp is stored too.",
        "inputs": "Where Q, K and V are at first.",
        "l2_state": "What the first launch finds in the L2.",
        "by": "What candidates are ranked by: time or hbm-bytes.",
        "counted_only": "Whether nothing was replayed.",
        "block_sram_bytes": "The most SRAM that a block may take; null where there was no limit.",
        "candidates": "How many candidates there were.",
        "wanted": "How many of the best were wanted.",
        "passed_over": "How many were not tried, because the least that they could cost is more than what the best do.",
        "interrupted": "Whether there are others that were not come to.",
        **_MADE,
        "tried": "How many were tried.",
        "notes": "What holds for all of the best.",
        "refusals": "Why others were not tried.",
        "refusals[].kind": "The kind of reason.",
        "refusals[].count": "How many there were of it.",
        "refusals[].example": "The reason of one of them, in a sentence.",
        "best": "The best, in their order.",
        **under("best[].", attributes(Candidate)),
        "best[].why": "What held it back, in sentences.",
    }


def gpus() -> dict[str, str]:
    """`memsim.gpus/1`."""
    return {
        "schema": "`memsim.gpus/1`.",
        "gpus": "The GPUs that come with memsim, or the one that was named.",
        "gpus[].name": "The name in its file.",
        "gpus[].validated": '"measured" if figures were held against the machine\'s own, else "datasheet only".',
        "gpus[].hbm_capacity_bytes": "Size of HBM.",
        "gpus[].hbm_bandwidth_bytes_per_s": "Bandwidth of HBM.",
        "gpus[].l2_capacity_bytes": "Size of the L2; null where there is none.",
        "gpus[].sms": "SMs.",
        "gpus[].sram_bytes_per_sm": "SRAM of an SM.",
        "gpus[].sram_bytes_per_block": "The most that one block may ask for.",
        "gpus[].sram_bandwidth_bytes_per_s": "Bandwidth of all SRAMs together.",
        "gpus[].tensor_flop_per_s": "Peak rate of float16 matrix products.",
        "gpus[].exp_per_s": "Peak rate of exponentials.",
        "gpus[].fields": "Every field of its file, by dotted key.",
        "gpus[].sources": "Where each comes from, by dotted key.",
    }


def validate() -> dict[str, str]:
    """`memsim.validate/1`."""
    line = {
        "key": "The line's key.", "name": "What it is about.",
        "kind": '"error", "order" (Kendall\'s τ) or "pick" (measured time over the best).',
        "of": "What is counted: rows, or problems.", "count": "How many there are.", "exact": "How many are exact.",
        "mean": "The mean; null where there is nothing to judge.", "worst": "The worst.",
        "worst_at": "The row that has it.", "mean_bar": "What the mean is to reach; null for no bar.",
        "worst_bar": "What the worst is to reach; null for no bar.",
        "mean_in_seconds": "Of a time, the mean error in seconds rather than cycles.",
        "met": "Whether it meets its bars; null where it has none.",
    }  # fmt: skip
    check = {
        "column": "The measured column.", "simulated": "The simulated figure.", "measured": "The measured one.",
        "relation": "How measured is to stand to simulated: exact, at most, at least, none.",
        "why": "Why no more is claimed, in words.", "detail": "What else is known of it.",
        "counted": "The figure that the claim is on, where a replay simulates less: what the L1 gives back.",
        "holds": "Whether the claim holds; null where nothing is claimed.", "exact": "Whether both are equal.",
        "error": "Simulated over measured, less one; null where it says nothing.",
    }  # fmt: skip
    summary = {
        "kernel": "The kernel.", "column": "The measured column.", "rows": "Rows that have a figure.",
        "exact": "Those on which simulated equals measured.", "claimed": "Those on which something is claimed.",
        "missed": "Those on which it does not hold.", "mean_error": "Mean size of the error.",
        "median_error": "Median.", "worst_error": "Worst.", "worst_line": "The line that has it.",
        "worst_row": "The row in words.",
    }  # fmt: skip
    spill = {
        "line": "The line of the file.", "row": "The row in words.",
        "fill_excess_bytes": "Fills beyond its tiles; null where not measured.",
        "store_excess_bytes": "Stores beyond its tiles; null where not measured.",
        "stack_bytes": "Stack a thread.", "load_instructions": "Spill loads.", "store_instructions": "Spill stores.",
    }  # fmt: skip
    spread = {
        "causal": "Of causal launches, or of full ones.", "launches": "How many were measured more than once.",
        "mean": "Largest over least, less one: the mean.", "worst": "The worst.",
    }  # fmt: skip
    row = {
        "line": "The line of the file.", "name": "The row in words.", "kernel": "The kernel.", "gpu": "The GPU.",
        "problem": "The fields of the `Attention`.", "tile": "The tile.", "lse": "Whether LSE was stored.",
        "grid_order": "The order of the blocks.", "cache_state": "cold, chained or warm.",
        "checks": "One for each measured column.", **under("checks[].", check),
    }  # fmt: skip
    return {
        "schema": "`memsim.validate/1`.",
        "holds": "Whether every claim holds.",
        "claims": "How many claims there are.",
        "claims.held": "Those that hold.",
        "claims.missed": "Those that do not.",
        "unknown_columns": "Columns of the file that are not known, and not read.",
        "other_kernels": "Kernels of an export that are not attention's.",
        "unchecked_columns": "Columns that no row has a figure for.",
        "not_replayed_tile_operations": "What a replay of the rows would take, where times were not asked for.",
        "accuracy": "The accuracy table.",
        **under("accuracy[].", line),
        "accuracy_without": "The same for models without some parts (`--without`), by their names.",
        "published_mean_errors_of_times": "Published errors, for scale.",
        "published_mean_errors_of_times[].of": "Whose.",
        "published_mean_errors_of_times[].mean": "The mean error.",
        "spreads_of_hbm_reads": "How far HBM reads lie apart where launches were measured more than once.",
        **under("spreads_of_hbm_reads[].", spread),
        "failed_launches": "Rows that have an error in place of a measurement: `line`, `name`, `error`.",
        "spills": "Rows whose kernels spill.",
        **under("spills[].", spill),
        "summaries": "Each column over all rows of each kernel.",
        **under("summaries[].", summary),
        "rows": "Every row.",
        **under("rows[].", row),
    }


def calibrate() -> dict[str, str]:
    """`memsim.calibrate/1`."""
    errors = ("rows", "problems", "mean", "worst", "worst_row")
    of = {
        "fitted_before": "The error on the rows that were fitted to, before.",
        "fitted": "The same, now.",
        "left_out_before": "The error on problems that were left out, before; null where there are none.",
        "left_out": "The same, now.",
        "judged_before": "The error on problems that only judge, before; null where there are none.",
        "judged": "The same, now.",
    }
    return {
        "schema": "`memsim.calibrate/1`.",
        "before": "The constants before, by name.",
        "constants": "The constants now, by name.",
        "iterations": "The iterations that it took.",
        **{name: f"{text} Of it: {', '.join(f'`{error}`' for error in errors)}." for name, text in of.items()},
    }


def probe() -> dict[str, str]:
    """`memsim.probe/1`."""
    launch = {
        "name": "The kernel.", "sram_bytes": "SRAM of a block.", "registers": "Registers a thread.",
        "stack_bytes": "Bytes a thread that it spills.", "block_warps": "Warps of a block, those for loads included.",
        "blocks_per_sm": "Blocks that an SM holds.", "limited_by": "What keeps a further block out.",
        "opcodes": "How many instructions there are of each opcode.", "loops": "Its loops.",
        "loops[].address": "Where the loop begins.", "loops[].main": "Whether it is the one over tiles of K and V.",
        "loops[].classes": "Its instructions by pipe.", "loops[].opcodes": "Its instructions by opcode.",
    }  # fmt: skip
    return {
        "schema": "`memsim.probe/1`.",
        "algorithm": "The algorithm.",
        "gpu": "The GPU, as it was named.",
        "architecture": "What was compiled for.",
        "triton": "The version of Triton that compiled.",
        "problem": "The fields of the `Attention`.",
        "tile": "The fields of the `Tile`.",
        "lse": "Whether the log-sum-exp is stored too.",
        "launches": "The compiled kernels.",
        **under("launches[].", launch),
    }


def verify() -> dict[str, str]:
    """`memsim.verify/1`."""
    return {
        "schema": "`memsim.verify/1`.",
        "holds": "Whether nothing disagrees and something agrees.",
        "gpu": "The GPU whose SRAM and registers are simulated and compiled for.",
        "versions": "Versions of what ran.",
        "checks": "What each check asks.",
        "skipped": "Why checks were not run at all.",
        "cases": "What was checked, in words.",
        "outcomes": "Each check of each case.",
        "outcomes[].case": "The number of the case, from 0.",
        "outcomes[].check": "The check.",
        "outcomes[].status": "agrees, differs, not run, or estimate.",
        "outcomes[].detail": "Where or why, in a sentence.",
        "outcomes[].figures": "What was compared.",
    }


def measure() -> dict[str, str]:
    """`memsim.measure/1`."""
    return {
        "schema": "`memsim.measure/1`.",
        "file": "The CSV that was written.",
        "gpu": "The GPU.",
        "rows": "How many rows it has.",
        "failed": "Rows without a launch: `name`, `error`.",
        "measured": "The cells of every row, by column.",
    }


def plot() -> dict[str, str]:
    """`memsim.plot/1`, of all kinds together."""
    rows = {
        "level": "Of bytes: the level that they cross.", "algorithm": "naive or flash.", "launch": "The launch.",
        "bytes": "Of bytes: how many.", "work": "Of a roofline: what its work is.",
        "flop": "Of a roofline: how much of it.", "hbm_bytes": "HBM bytes.", "time_s": "Seconds.",
        "flop_per_byte": "Of a roofline: work over HBM bytes.", "flop_per_s": "Of a roofline: work over time.",
        "roof_flop_per_s": "Of a roofline: the most that could be had there.",
        "share_of_roof": "Of a roofline: the share of that which it reaches.",
        "bound": "Of a roofline: what held it back.", "resource": "Of busy: the resource.",
        "share": "Of busy: the share of the launch's time in which it works.",
        "start_s": "Of busy: when the launch starts.", "end_s": "Of busy: when it ends.",
        "sram_bytes": "Of sram: the SRAM of an SM.", "lower_bound_bytes": "Of sram: what must cross at least.",
        "naive_bytes": "Of sram: what naive moves in its best tile.", "naive_tile": "Of sram: that tile.",
        "flash_bytes": "Of sram: what flash moves in its best tile.", "flash_tile": "Of sram: that tile.",
        "seq_len": "Of growth: the length.", "l2_dirty_bytes_at_end": "Of growth: stored bytes left in the L2.",
        "peak_hbm_bytes": "Of growth: the most that tensors take of HBM.",
        "compulsory_bytes": "Of growth: the compulsory bytes.",
        "status": "Of growth and tiles: ok, or why there are no figures.", "reason": "The same in a sentence.",
        "block_m": "Of tiles: rows of Q of a block.", "block_n": "Of tiles: rows of K and V of one step.",
        "num_warps": "Of tiles: warps of a block.", "num_stages": "Of tiles: stages of the pipeline.",
        "replayed_by": 'Of tiles: "instructions" or "trace".',
        "stack_bytes": "Of tiles: bytes a thread that it spills.",
        "compared": "Of tiles: whether it is ranked with the others.", "best": "Of tiles: whether it is the best.",
    }  # fmt: skip
    return {
        "schema": "`memsim.plot/1`.",
        "kind": "The kind of plot.",
        "title": "Its title.",
        "caption": "Its caption, line by line.",
        "notes": "What a reader must know of the figures.",
        "l2_dirty_bytes_at_end": "Of bytes: stored bytes left in the L2 at the end.",
        "l2_dirty_bytes_at_end.naive": "By naive.",
        "l2_dirty_bytes_at_end.flash": "By flash.",
        "roofs": "Of a roofline: the roofs of the machine.",
        "roofs[].roof": "The resource.",
        "roofs[].bytes_per_s": "Its rate, of a memory; null of a pipe.",
        "roofs[].flop_per_s": "Its rate, of a pipe; null of a memory.",
        "by": "Of tiles: what they are ranked by.",
        "rows": "What is drawn. Of simulated against measured, rows have `quantity`, `kernel`, `row`, `simulated` and "
        "`measured`.",
        **under("rows[].", rows),
    }


_SMALL = "--gpu two-level --heads 1"
SCHEMAS = {
    "memsim.result/1": (result, ("memsim simulate flash --gpu h200 --heads 1 --seq-len 128",)),
    "memsim.compare/1": (compare, ("memsim compare --gpu two-level --heads 1 --seq-len 128",)),
    "memsim.sweep/1": (sweep, ("memsim sweep --gpu two-level --heads 1 --seq-len 128 --vary sms=8,82 --count-only",)),
    "memsim.tune/1": (
        tune,
        ("memsim tune --gpu two-level --heads 1 --seq-len 128 --count-only --by hbm-bytes --best 2",),
    ),
    "memsim.plot/1": (
        plot,
        (
            f"memsim plot bytes {_SMALL} --seq-len 128",
            f"memsim plot roofline {_SMALL} --seq-len 128",
            f"memsim plot busy {_SMALL} --seq-len 128",
            f"memsim plot sram {_SMALL} --seq-len 128 --vary sram=64KiB,128KiB",
            f"memsim plot tiles {_SMALL} --seq-len 128 --vary block-m=32,256 --vary block-n=32,64",
            f"memsim plot growth {_SMALL} --vary seq-len=128,256",
        ),
    ),
    "memsim.gpus/1": (gpus, ("memsim gpus two-level",)),
    "memsim.validate/1": (validate, ("memsim validate tests/fidelity/data/counters.csv",)),
}
"""What says what each schema's keys mean, and commands that print all of them."""

WITHOUT_EXAMPLE = {
    "memsim.calibrate/1": calibrate,
    "memsim.probe/1": probe,
    "memsim.verify/1": verify,
    "memsim.measure/1": measure,
}
"""Those whose commands take minutes, Triton or a GPU. Tests hold what can be held of them."""
