"""What a comparison shows, in sentences that follow from its numbers."""

from __future__ import annotations

from memsim import _report_story_l2 as l2
from memsim._report_format import BOUND_BY, number, percent, plural, seconds, size
from memsim._report_story_l2 import moved as moved_bytes
from memsim._report_story_l2 import stored
from memsim.gpu import Gpu
from memsim.result import Comparison, Result, ratio

_SAME = 1.05
"""What is less than 5 % apart is told as no difference."""
_LITTLE = 0.1
"""Waiting for less than this share of the time is told as hardly any."""
_BUSY = 0.85
"""A pipe that is busy for this share of the time leaves nothing to gain from overlap."""
_MOVING = ("hbm", "l2", "latency")
_PIPES = ("tensor", "exp", "alu", "sram")


def story(comparison: Comparison, gpu: Gpu) -> list[str]:
    """Paragraphs: what naive attention does, then what FlashAttention does instead."""
    naive, flash = comparison.naive, comparison.flash
    if not any(result.total.sram_fill_bytes + result.total.sram_store_bytes for result in (naive, flash)):
        return ["This problem has nothing to compute: no byte is moved."]
    if "l2" in naive.levels:
        cost, fewer, left = l2.cost_of_scores(naive), l2.fewer_bytes(naive, flash, gpu), l2.what_is_left(flash)
    else:
        cost, fewer, left = _cost_of_scores(naive), _fewer_bytes(comparison, gpu), _what_is_left(flash)
    first = [cost, *_waiting(naive, gpu)]
    second = [fewer, *_less_time(comparison, gpu), *left, *_peak(comparison)]
    return [" ".join(sentence for sentence in part if sentence) for part in (first, second)]


def math_s(result: Result) -> float:
    """Time of the arithmetic alone: the shares of tensor, exp and ALU pipes, one after the other, on all SMs."""
    return sum(
        (launch.time_s or 0.0) * sum((launch.busy or {}).get(pipe, 0.0) for pipe in ("tensor", "exp", "alu"))
        for launch in result.launches
    )


def moving_s(result: Result) -> float:
    """Time of HBM's bytes alone: HBM's share."""
    return sum((launch.time_s or 0.0) * (launch.busy or {}).get("hbm", 0.0) for launch in result.launches)


def _cost_of_scores(naive: Result) -> str:
    scores, total = moved_bytes(naive, "SP"), naive.total.hbm_bytes
    if not scores:
        return "Naive attention has no scores to move here."
    s, p = stored(naive, "S"), stored(naive, "P")
    sizes = f"{size(s)} each" if s == p else f"{size(s)} and {size(p)}"
    sentence = (
        f"Naive attention writes S and P to HBM ({sizes}) and fetches them again: {size(scores)}, "
        f"{percent(scores / total)} of the {size(total)} that it moves"
    )
    over = scores / naive.total.compulsory_bytes
    if over >= _SAME:
        sentence += f" and {number(over)} times what Q, K, V and O take together"
    elif over > 1 / _SAME:
        sentence += " and as much as Q, K, V and O take together"
    rest = total - scores
    if rest > naive.total.compulsory_bytes * _SAME:
        sentence += f". The other {size(rest)} are Q, K and V, fetched again and again, and O"
    return sentence + "."


def _waiting(naive: Result, gpu: Gpu) -> list[str]:
    total = naive.total
    if not total.time_s:
        return []
    moving = moving_s(naive)
    sentences = [
        f"Its math takes {seconds(math_s(naive))} on all {plural(gpu.sm.count, 'SM')}, the moving {seconds(moving)}."
    ]
    kernels_s = sum(launch.time_s or 0.0 for launch in naive.launches)
    waiting = total.waiting_for_memory or 0.0
    when, then = ("of the time", "the time")
    if kernels_s <= total.time_s * 0.75:
        when, then = ("of the time that its kernels run", "that time")
    if waiting >= 0.5 and kernels_s > total.time_s / 2:
        sentences.append(
            f"Naive's math waits for memory {percent(waiting)} {when}: most of {then} the GPU is a truck driver, "
            "moving numbers, not a mathematician."
        )
    elif waiting >= _LITTLE:
        sentences.append(f"Naive's math waits for memory {percent(waiting)} {when}.")
    else:
        sentences.append(f"Naive's math hardly waits for memory here: {percent(waiting)} {when}.")
    if waiting >= _LITTLE and moving < waiting * kernels_s / 2:
        sentences.append("Little of that wait is bandwidth: it is the latency of memory.")
    return [*sentences, *_outside(naive)]


def _outside(result: Result) -> list[str]:
    """What passes outside the kernels, where it is much."""
    total = result.total
    sentences = []
    if total.time_s and (total.launch_overhead_s or 0.0) > total.time_s / 4:
        launches = plural(sum(launch.blocks > 0 for launch in result.launches), "kernel")
        sentences.append(
            f"Starting {launches} takes {seconds(total.launch_overhead_s)} of its {seconds(total.time_s)}."
        )
    if total.time_s and (total.host_s or 0.0) > total.time_s / 4:
        sentences.append(
            f"Bringing Q, K and V over the host link takes {seconds(total.host_s)} of its {seconds(total.time_s)}: "
            "it is I/O-bound."
        )
    return sentences


def _fewer_bytes(comparison: Comparison, gpu: Gpu) -> str:
    naive, flash = comparison.naive, comparison.flash
    fewer = ratio(naive.total.hbm_bytes, flash.total.hbm_bytes) or 0.0
    home, rooms = ("the SM", ", where they live in SRAM and registers") if gpu.sm.registers else ("the SRAM", "")
    scores, moved = moved_bytes(naive, "SP"), size(flash.total.hbm_bytes)
    # Beside S and P: what naive fetches and stores more often than flash, or the other way round.
    more_often = naive.total.hbm_bytes - scores - flash.total.hbm_bytes
    if 1 / _SAME < fewer < _SAME:
        kept = f"S and P, which never leave {home}, are only {size(scores)} here"
        return f"Flash moves about as many bytes, {moved}: {kept}."
    if fewer <= 1:
        saved = f"S and P never leave {home}, which saves {size(scores)}, but " if scores else ""
        return (
            f"Flash moves {number(1 / fewer)} times more bytes here, {moved}: {saved}it fetches Q, K and V more often, "
            f"which costs {size(-more_often)}."
        )
    sentence = f"Flash moves {number(fewer)} times fewer bytes, {moved}"
    if more_often > scores:
        return (
            f"{sentence}: fetching Q, K and V less often saves {size(more_often)}, and S and P, which never leave "
            f"{home}, {size(scores)} more."
        )
    sentence += f", because S and P never leave {home}{rooms}"
    if abs(more_often) < scores / 10:
        return sentence + "."
    if more_often > 0:
        return f"{sentence}: that saves {size(scores)}, and fetching Q, K and V less often {size(more_often)} more."
    return f"{sentence}: that saves {size(scores)}, of which fetching Q, K and V more often costs {size(-more_often)}."


def _less_time(comparison: Comparison, gpu: Gpu) -> list[str]:
    naive, flash = comparison.naive.total, comparison.flash.total
    if not naive.time_s or not flash.time_s:
        return []
    faster = naive.time_s / flash.time_s
    both = f"{seconds(flash.time_s)} instead of {seconds(naive.time_s)}"
    if faster >= _SAME:
        sentences = [f"It takes {number(faster)} times less time: {both}."]
    elif faster > 1 / _SAME:
        sentences = [f"It takes about as long: {both}."]
    else:
        sentences = [f"But it takes {number(1 / faster)} times longer: {both}."]
    launch = comparison.flash.launches[0]
    most = max(launch.blocks for launch in comparison.naive.launches)
    if launch.blocks < gpu.sm.count and (faster < _SAME or launch.blocks < most):
        idle = plural(gpu.sm.count - launch.blocks, "SM")
        sentences.append(f"Flash has only {plural(launch.blocks, 'block')}, so {idle} of {gpu.sm.count} stand idle.")
    return [*sentences, *_held_back(comparison.flash, gpu), *_outside(comparison.flash)]


def _held_back(result: Result, gpu: Gpu) -> list[str]:
    """What bounds a run, and how that goes together with how long its math waits for memory."""
    total, launch = result.total, result.launches[0]
    if total.bound is None:
        return []
    waiting = total.waiting_for_memory or 0.0
    waits, bound = f"waits for memory {percent(waiting)} of the time", f"It is held back by {BOUND_BY[total.bound]}"
    busy = total.busy or {}
    share = f", busy {percent(busy[total.bound])} of the time" if busy.get(total.bound) else ""
    if total.bound in _MOVING and waiting >= _LITTLE:
        return [f"{bound}: its math {waits}."]
    if total.bound in _MOVING:
        return [f"{bound}{share}, though its math {waits} only: it computes while the next tiles are on their way."]
    if total.bound not in _PIPES:
        return [f"{bound}; while it runs, its math {waits}."]
    if waiting >= _LITTLE:
        return [f"{bound}{share}, more than by memory, though its math {waits} too."]
    sentences = [f"{bound}{share}, and hardly by memory: its math {waits}."]
    if busy.get(total.bound, 0.0) < _BUSY and (launch.blocks_per_sm == 1 or launch.blocks <= gpu.sm.count):
        sentences.append(
            "With one block per SM its phases (products, exponentials, arithmetic) cannot overlap, so they add up."
        )
    if busy.get("hbm", 0.0) > max(0.5, busy.get(total.bound, 0.0)):
        sentences.append(f"HBM is busy {percent(busy['hbm'])} of the time and would be the next limit.")
    return sentences


def _what_is_left(flash: Result) -> list[str]:
    total, kv = flash.total, moved_bytes(flash, "KV")
    over = total.over_compulsory or 0.0
    if over < 1.2 or kv * 2 < total.hbm_bytes:
        return []
    problem, block_m = flash.problem, flash.tile["block_m"]
    again = [f"every block of {block_m} rows of Q"] if problem["seq_len_q"] > block_m else []
    again += ["every head of Q"] if problem["kv_heads"] < problem["heads"] else []
    if not again:
        return []
    return [
        f"What is left is mostly K and V, {size(kv)}: they come in again for {' and for '.join(again)}, "
        f"so flash still moves {number(over)} times what is compulsory."
    ]


def _peak(comparison: Comparison) -> list[str]:
    naive, flash = comparison.naive.total.peak_hbm_bytes, comparison.flash.total.peak_hbm_bytes
    if naive <= flash * _SAME:
        return []
    return [f"And HBM holds {size(flash)} at most, where naive needs {size(naive)}."]
