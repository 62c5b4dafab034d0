"""The grids that `memsim measure` and `memsim verify` run when no problem is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memsim.attention import Attention
from memsim.tile import Tile


@dataclass(frozen=True)
class Point:
    """One algorithm on one problem with one tile."""

    algorithm: str
    problem: Attention
    tile: Tile
    lse: bool = False

    def __str__(self) -> str:
        p = self.problem
        lengths = f"{p.seq_len_q}" if p.seq_len_q == p.seq_len_k else f"{p.seq_len_q}/{p.seq_len_k}"
        heads = f"{p.heads}" if p.kv_head_count == p.heads else f"{p.heads}/{p.kv_head_count}"
        batch = f"{p.batch}×" if p.batch != 1 else ""
        facts = [f"{self.algorithm} {batch}{heads}×{lengths}×{p.head_dim}{' causal' if p.causal else ''} {p.dtype}"]
        return ", ".join([*facts, str(self.tile), *(["LSE"] if self.lse else [])])


MEASURED_PROBLEMS = (
    Attention(heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=64),
    Attention(heads=64, seq_len_q=2048, seq_len_k=2048, head_dim=64),
    Attention(heads=8, seq_len_q=1000, seq_len_k=1000, head_dim=64),
    Attention(heads=16, seq_len_q=4096, seq_len_k=4096, head_dim=64, dtype="bfloat16"),
    Attention(heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=128),
    Attention(heads=16, seq_len_q=4096, seq_len_k=4096, head_dim=128),
    Attention(heads=8, seq_len_q=1000, seq_len_k=1000, head_dim=128),
    Attention(heads=32, kv_heads=8, seq_len_q=2048, seq_len_k=2048, head_dim=128, dtype="bfloat16"),
    Attention(heads=4, seq_len_q=16384, seq_len_k=16384, head_dim=128),
    Attention(batch=2, heads=8, seq_len_q=512, seq_len_k=3000, head_dim=96),
)
MEASURED_TILES = (
    Tile(64, 32, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3), Tile(64, 64, 4, 4), Tile(64, 128, 4, 2),
    Tile(128, 32, 8, 3), Tile(128, 64, 4, 2), Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 128, 8, 2),
    Tile(32, 32, 4, 2), Tile(64, 64, 4, 3, "descriptor"), Tile(128, 64, 4, 2, "descriptor"),
    Tile(128, 128, 8, 2, "descriptor"), Tile(128, 128, 4, 2), Tile(128, 128, 4, 2, "descriptor-ws"),
)  # fmt: skip
NAIVE_TILES = (Tile(64, 64, 4, 3), Tile(128, 128, 8, 3))


def measured_points() -> Iterator[Point]:
    """Flash on every problem, full and causal, with every tile; naive on those whose S is of a moderate size."""
    for problem in MEASURED_PROBLEMS:
        for causal in (False, True):
            posed = replace(problem, causal=causal)
            for tile in MEASURED_TILES:
                if tile.load_path != "descriptor-ws" or not causal:
                    yield Point("flash", posed, tile)
        for tile in NAIVE_TILES:
            yield Point("naive", problem, tile)
