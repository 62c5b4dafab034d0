"""The grids that `memsim measure` and `memsim verify` run when no problem is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from memsim.attention import Attention
from memsim.grid import ORDERS
from memsim.tile import Tile

COLD, CHAINED, WARM = "cold", "chained", "warm"
CACHE_STATES = {
    COLD: "every launch finds the caches flushed",
    CHAINED: "the launches of a point run one after the other and find what those before left; the first finds the "
    "caches full of something else that is clean",
    WARM: "a launch finds what the same launch, right before it, left",
}


@dataclass(frozen=True)
class Point:
    """One algorithm on one problem with one tile, its launches in one of `CACHE_STATES`."""

    algorithm: str
    problem: Attention
    tile: Tile
    lse: bool = False
    cache_state: str = COLD

    def __str__(self) -> str:
        p = self.problem
        lengths = f"{p.seq_len_q}" if p.seq_len_q == p.seq_len_k else f"{p.seq_len_q}/{p.seq_len_k}"
        heads = f"{p.heads}" if p.kv_head_count == p.heads else f"{p.heads}/{p.kv_head_count}"
        batch = f"{p.batch}×" if p.batch != 1 else ""
        facts = [f"{self.algorithm} {batch}{heads}×{lengths}×{p.head_dim}{' causal' if p.causal else ''} {p.dtype}"]
        return ", ".join([*facts, str(self.tile), *(["LSE"] if self.lse else []),
                          *([self.cache_state] if self.cache_state != COLD else [])])  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """What is measured: flash on each problem, full and causal, with each tile.

    Naive runs on the same problems where S is small enough, and on `naive_only`, with each of `NAIVE_TILES`. Of
    `warm` flash is measured chained (cold without a flush by ncu) and warm too, with each of `WARM_TILES`.
    """

    problems: tuple[Attention, ...]
    tiles: tuple[Tile, ...]
    naive_only: tuple[Attention, ...] = ()
    warm: tuple[Attention, ...] = ()

    @property
    def naive(self) -> tuple[Attention, ...]:
        """The problems that naive is measured on."""
        small = (p for p in self.problems if p.seq_len_q * p.seq_len_k * _row_pair_bytes(p) <= LARGEST_S_BYTES)
        return (*small, *self.naive_only)

    def points(self) -> Iterator[Point]:
        """Every point, problem by problem."""
        naive = dict.fromkeys(self.naive)
        for problem in dict.fromkeys((*self.problems, *self.naive_only)):
            posed = [replace(problem, causal=causal) for causal in (False, True)] if problem in self.problems else []
            for p, tile in itertools.product(posed, self.tiles):
                if tile.load_path != "descriptor-ws" or not p.causal:
                    yield Point("flash", p, tile)
            if problem in naive:
                for tile, state in itertools.product(NAIVE_TILES, (COLD, CHAINED)):
                    yield Point("naive", problem, tile, cache_state=state)
            if problem in self.warm:
                for p, tile, state in itertools.product(posed, WARM_TILES, (CHAINED, WARM)):
                    yield Point("flash", p, tile, cache_state=state)


def _row_pair_bytes(problem: Attention) -> int:
    """Bytes of S that one row of Q and one key take, over all heads."""
    return problem.batch * problem.heads * problem.dtype_bytes


def _square(
    heads: int, seq_len: int, head_dim: int, *, batch: int = 1, kv_heads: int | None = None, dtype: str = "float16",
    causal: bool = False,
) -> Attention:  # fmt: skip
    return Attention(batch, heads, kv_heads, seq_len, seq_len, head_dim, dtype, causal)


LARGEST_S_BYTES = 4.5e9
NAIVE_TILES = (Tile(64, 64, 4, 3), Tile(128, 128, 8, 3))
WARM_TILES = (Tile(64, 64, 4, 3), Tile(128, 64, 8, 2))
_TILES = (
    Tile(64, 32, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3), Tile(64, 64, 4, 4), Tile(64, 128, 4, 2),
    Tile(128, 32, 8, 3), Tile(128, 64, 4, 2), Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 128, 8, 2),
    Tile(32, 32, 4, 2), Tile(64, 64, 4, 3, "descriptor"), Tile(128, 64, 4, 2, "descriptor"),
    Tile(128, 128, 8, 2, "descriptor"), Tile(128, 128, 4, 2), Tile(128, 128, 4, 2, "descriptor-ws"),
)  # fmt: skip
_FIT = Grid(
    problems=(
        _square(16, 1024, 64),
        _square(64, 2048, 64),
        _square(8, 1000, 64),
        _square(16, 4096, 64, dtype="bfloat16"),
        _square(16, 1024, 128),
        _square(16, 4096, 128),
        _square(8, 1000, 128),
        _square(32, 2048, 128, kv_heads=8, dtype="bfloat16"),
        _square(4, 16384, 128),
        Attention(batch=2, heads=8, seq_len_q=512, seq_len_k=3000, head_dim=96),
        _square(1, 65536, 128),
        _square(16, 512, 128, batch=16),
        _square(1, 2048, 64),
        _square(128, 128, 64, batch=8),
    ),
    tiles=_TILES,
    naive_only=(_square(16, 1024, 64, batch=32),),
    warm=(_square(16, 1024, 128), _square(16, 4096, 128), _square(4, 16384, 128), _square(1, 65536, 128)),
)
_JUDGE = Grid(
    problems=(
        _square(16, 256, 64, batch=64),
        _square(16, 256, 128, batch=32),
        _square(1, 1024, 128),
        _square(16, 1024, 64, batch=64),
        _square(16, 8192, 128),
        _square(64, 4096, 64),
        _square(64, 4096, 128),
        _square(32, 3000, 128, kv_heads=8, dtype="bfloat16"),
        _square(1, 32768, 64),
        _square(12, 2048, 64),
        _square(4, 512, 128),
        _square(40, 1536, 128),
        Attention(heads=32, seq_len_q=256, seq_len_k=8192, head_dim=128),
        _square(2, 128, 64),
        _square(2, 32768, 128),
        _square(8, 16384, 64),
        _square(1, 131072, 64),
        _square(1, 131072, 128),
    ),
    tiles=(*_TILES, Tile(64, 32, 4, 2), Tile(32, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 4)),
    warm=(_square(4, 512, 128), _square(64, 4096, 64), _square(1, 32768, 64)),
)


def _grid_orders() -> Iterator[Point]:
    """Flash in every grid order: where K and V of the heads in flight fit in the L2, and where they do not."""
    for problem in (
        _square(16, 4096, 128), _square(16, 4096, 128, causal=True), _square(64, 8192, 128, causal=True),
        _square(4, 16384, 128, causal=True),
    ):  # fmt: skip
        for tile, order in itertools.product((Tile(64, 64, 4, 3), Tile(128, 64, 8, 2)), ORDERS):
            yield Point("flash", problem, replace(tile, grid_order=order))
    for order in ("rows-fast", "heads-fast"):
        yield Point("flash", _square(64, 65536, 128), Tile(64, 64, 4, 3, grid_order=order))


GRIDS: Mapping[str, Grid] = {"fit": _FIT, "judge": _JUDGE}
"""Problems that calibrated figures may be fitted to, and problems that only judge them: none is in both."""

_POINTS: Mapping[str, Callable[[], Iterator[Point]]] = {
    **{name: grid.points for name, grid in GRIDS.items()}, "grid-orders": _grid_orders,
}  # fmt: skip
GRID_NAMES = tuple(_POINTS)
"""Those, and flash in every grid order."""


def measured_points(grid: str = "fit") -> Iterator[Point]:
    """The points of one of `GRID_NAMES`."""
    yield from _POINTS[grid]()
