"""Random problems and machines for the fast path, and how far it is off on one of them.

Machines are an H200 of a few SMs, with an L2 of a megabyte or so or none: so that launches small enough to be replayed
whole in some hundredths of a second have many times as many blocks as run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from memsim import Attention, Gpu, Result, Tile, load_gpu, simulate
from memsim.gpu import override
from memsim.result import Launch, Total

LARGEST = 9_000
"""Steps of a launch, about, at most: a full replay of so many takes some hundredths of a second."""
FLASH_TILES = ((64, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 3), (32, 64, 4, 2),
               (64, 32, 4, 3), (16, 64, 4, 2))  # fmt: skip
NAIVE_TILES = ((64, 64, 4, 2), (128, 64, 8, 3))
WIDE = ((64, 64, 4, 2), (128, 64, 8, 3))
"""Tiles that are drawn with everything: head_dim 128, descriptors, a slower L2. A pace for each takes its time."""
ORDERS = ("rows-fast",) * 4 + ("rows-reversed", "rows-reversed", "heads-fast", "longest-first", "head-sections",
                               "persistent")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A problem, its tile, fields of the machine, and what the L2 holds at first."""

    algorithm: str
    problem: Attention
    tile: Tile
    machine: dict[str, Any] = field(default_factory=dict)
    l2_state: str = "cold"

    def run(self, *, full: bool, **more: Any) -> Result:
        """Simulate it."""
        gpu = override(h200(), self.machine)
        return simulate(
            self.algorithm, self.problem, gpu=gpu, tile=self.tile, l2_state=self.l2_state, full=full, **more
        )


@cache
def h200() -> Gpu:
    return load_gpu("h200")


def machine_of(
    sms: int, l2_bytes: int | None, *, hbm: float = 1.0, l2: float = 1.0, dirty: float = 0.45
) -> dict[str, Any]:
    """Fields of an H200 of so many SMs: HBM and L2 are as fast as their share of an H200's times `hbm` and `l2`; of the
    L2 the share `dirty` may be dirty."""
    whole = h200()
    assert whole.l2 is not None
    share = sms / whole.sm.count
    fields = {"sm.count": sms, "hbm.bandwidth_bytes_per_s": whole.hbm.bandwidth_bytes_per_s * share * hbm}
    if l2_bytes is None:
        return fields | {"l2": None}
    return fields | {
        "l2.capacity_bytes": l2_bytes,
        "l2.dirty_limit_bytes": int(l2_bytes * dirty),
        "l2.bandwidth_bytes_per_s": whole.l2.bandwidth_bytes_per_s * share * l2,
    }


def draw(choose: Callable[[Sequence[Any]], Any]) -> Case:
    """A case whose every part is one that `choose` takes of several."""
    algorithm = choose(("flash", "flash", "flash", "naive"))
    causal = choose((False, True))
    shape = choose(FLASH_TILES if algorithm == "flash" else NAIVE_TILES)
    wide = shape in WIDE
    head_dim = choose((64, 128)) if wide else 64
    # Powers of two, so that an SM's share of the L2's bandwidth is the same to the last bit, and with it its paces.
    sms = choose((1, 2, 2, 4, 8))
    size = choose((0.25, 0.5, 1, 1, 2, 4, None))
    machine = machine_of(
        sms, None if size is None else int(size * 2**20), hbm=choose((0.3, 1, 1, 3)) if size else 1,
        l2=choose((1, 1, 0.5)) if wide and algorithm == "flash" else 1, dirty=choose((0.45, 0.45, 1.0)),
    )  # fmt: skip
    if algorithm == "naive":
        tile = Tile(*shape)
    else:
        path = choose(("pointer", "pointer", "descriptor")) if wide else "pointer"
        tile = Tile(*shape, load_path=path, grid_order=choose(ORDERS))
    seq_q = choose((200, 256, 256, 384, 500, 512, 512, 777, 1024) + ((1501, 2048) if algorithm == "flash" else ()))
    seq_k = choose((seq_q, seq_q, seq_q, max(64, seq_q // 2 - 5), 2 * seq_q))
    group = choose((1, 1, 2, 3, 4))
    rows, trips = -(-seq_q // tile.block_m), -(-seq_k // tile.block_n)
    each = rows * min(64, trips) if algorithm == "flash" else 4 * seq_q + 2 * rows * trips
    # As many heads as give the launch its size, in one of the ways to have them.
    heads = max(1, int(choose((0.5, 1.0, 1.0)) * LARGEST / each))
    batch = choose([n for n in (1, 2, 5) if n * group <= heads] or [1])
    kv_heads = max(1, min(200, heads // (batch * group)))
    problem = Attention(batch, kv_heads * group, kv_heads, seq_q, seq_k, head_dim, causal=causal)
    return Case(algorithm, problem, tile, machine, choose(("cold", "cold", "cold", "warm")))


def off(fast: float, full: float) -> float:
    """By what share of the full replay's figure the fast path's is larger."""
    return fast / full - 1 if full else float(fast != 0)


def differences(fast: Launch | Total, full: Launch | Total) -> dict[str, float]:
    """How far the fast path is off, by figure: by what share of the full replay's, or, of what is a share, by what."""
    hbm = [of.hbm_read_bytes + of.hbm_write_bytes for of in (fast, full)]
    return {
        "time": off(fast.time_s or 0, full.time_s or 0),
        "HBM bytes": off(*hbm),
        "dirty bytes": off(fast.l2_dirty_bytes_at_end, full.l2_dirty_bytes_at_end),
        "fills": off(fast.sram_fill_bytes, full.sram_fill_bytes),
        "stores": off(fast.sram_store_bytes, full.sram_store_bytes),
        "busy": max(((fast.busy or {}).get(name, 0.0) - share for name, share in (full.busy or {}).items()), key=abs,
                    default=0.0),
        "waiting": (fast.waiting_for_memory or 0) - (full.waiting_for_memory or 0),
        "hit rate": (fast.l2_hit_rate or 0) - (full.l2_hit_rate or 0),
    }  # fmt: skip
