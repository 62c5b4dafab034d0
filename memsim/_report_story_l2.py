"""The sentences of a comparison that an L2 changes: what crosses between it and the SMs, what HBM has left to move."""

from __future__ import annotations

from memsim._report_format import number, percent, size
from memsim.gpu import Gpu
from memsim.result import Result, ratio

_SAME = 1.05
_FOUND = 0.5
"""What the L2 has at least this share of is told as found there."""


def crossed(result: Result) -> int:
    """Bytes that cross between the SMs and the L2, in and out."""
    total = result.total
    return total.sram_fill_bytes - total.sram_zero_fill_bytes + total.sram_store_bytes


def moved(result: Result, tensors: str) -> int:
    """Bytes that these tensors move in and out of the SMs."""
    return sum(
        by_tensor.get(tensor, 0)
        for launch in result.launches
        for by_tensor in (launch.fill_bytes_by_tensor, launch.store_bytes_by_tensor)
        for tensor in tensors
    )


def stored(result: Result, tensor: str) -> int:
    """Bytes of a tensor that leave the SMs."""
    return sum(launch.store_bytes_by_tensor.get(tensor, 0) for launch in result.launches)


def cost_of_scores(naive: Result) -> str:
    """What naive attention's S and P cost, and what of that HBM sees."""
    scores, total = moved(naive, "SP"), crossed(naive)
    if not scores:
        return "Naive attention has no scores to move here."
    s, p = stored(naive, "S"), stored(naive, "P")
    sizes = f"{size(s)} each" if s == p else f"{size(s)} and {size(p)}"
    sentence = (
        f"Naive attention writes S and P out of the SMs ({sizes}) and fetches them again: {size(scores)}, "
        f"{percent(min(1.0, scores / total))} of the {size(total)} that cross between SMs and L2"
    )
    over = scores / naive.total.compulsory_bytes
    if over >= _SAME:
        sentence += f" and {number(over)} times what Q, K, V and O take together"
    return f"{sentence}. {_found_again(naive)} {_through_hbm(naive)}"


def _found_again(naive: Result) -> str:
    """Whether S and P are still in the L2 when they are fetched."""
    rates = {
        name: rate
        for launch in naive.launches
        for name, rate in (launch.l2_hit_rate_by_tensor or {}).items()
        if name in "SP" and rate is not None
    }
    shares = [f"{percent(rate)} of {name}" for name, rate in rates.items()]
    if not shares:
        return "None of it is fetched."
    if all(rate == 0 for rate in rates.values()):
        return "None of S and P is still in the L2 when it is fetched."
    only = "only " if all(rate < _FOUND for rate in rates.values()) else ""
    return f"The L2 still has {only}{' and '.join(shares)} when they are fetched."


def _through_hbm(result: Result) -> str:
    total = result.total
    share = percent(total.l2_hit_rate)
    left = f", and {size(total.l2_dirty_bytes_at_end)} are yet to be written" if total.l2_dirty_bytes_at_end else ""
    return (
        f"Of all that is fetched the L2 has {share}, so HBM moves {size(total.hbm_bytes)}: "
        f"{size(total.hbm_read_bytes)} read and {size(total.hbm_write_bytes)} written{left}."
    )


def fewer_bytes(naive: Result, flash: Result, gpu: Gpu) -> str:
    """Flash's bytes beside naive's, at both levels."""
    home, rooms = ("the SM", ", where they live in SRAM and registers") if gpu.sm.registers else ("the SRAM", "")
    fewer = ratio(naive.total.hbm_bytes, flash.total.hbm_bytes)
    scores, hbm = moved(naive, "SP"), size(flash.total.hbm_bytes)
    inner = ratio(crossed(naive), crossed(flash)) or 0.0
    if inner >= _SAME:
        across = f"{number(inner)} times fewer cross between SMs and L2, {size(crossed(flash))}"
    elif inner > 1 / _SAME:
        across = f"about as many cross between SMs and L2, {size(crossed(flash))}"
    else:
        across = f"{number(1 / inner)} times more cross between SMs and L2, {size(crossed(flash))}" if inner else ""
    across = f"; {across}" if across else ""
    why = f" S and P never leave {home}{rooms}." if scores else ""
    if not naive.total.hbm_bytes:
        return f"Flash moves {hbm} through HBM, where naive moves nothing{across}.{why}"
    if fewer is None:
        return f"Flash moves nothing through HBM, where naive moves {size(naive.total.hbm_bytes)}{across}.{why}"
    if fewer >= _SAME:
        return f"Flash moves {number(fewer)} times fewer bytes through HBM, {hbm}{across}.{why}"
    if fewer > 1 / _SAME:
        return f"Flash moves about as many bytes through HBM, {hbm}{across}.{why}"
    return f"Flash moves {number(1 / fewer)} times more bytes through HBM here, {hbm}{across}.{why}"


def what_is_left(flash: Result) -> list[str]:
    """How often K and V come in, and who has them."""
    kv, total = moved(flash, "KV"), flash.total
    if kv * 2 < crossed(flash):
        return []
    problem, block_m = flash.problem, flash.tile["block_m"]
    again = [f"every block of {block_m} rows of Q"] if problem["seq_len_q"] > block_m else []
    again += ["every head of Q"] if problem["kv_heads"] < problem["heads"] else []
    if not again:
        return []
    launch = flash.launches[0]
    reads, rates = launch.l2_read_bytes_by_tensor or {}, launch.l2_hit_rate_by_tensor or {}
    asked = sum(reads.get(name, 0) for name in "KV")
    had = sum(reads.get(name, 0) * (rates.get(name) or 0.0) for name in "KV")
    over = total.over_compulsory or 0.0
    left = (
        f"HBM still moves {number(over)} times what is compulsory"
        if over >= 1.2
        else "HBM moves little more than is compulsory"
    )
    return [
        f"K and V are {size(kv)} of that: they come in again for {' and for '.join(again)}. The L2 has "
        f"{percent(ratio(had, asked))} of it: {left}."
    ]
