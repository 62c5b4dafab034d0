"""How fast the full replay runs, in processor time of one core: tile operations a second, seconds of fixed problems."""

from __future__ import annotations

import time

import memsim

CASES = [
    ("flash", memsim.Attention(), memsim.Tile(128, 64, 8, 3)),
    ("flash", memsim.Attention(seq_len_q=4096, seq_len_k=4096), memsim.Tile(128, 64, 8, 3)),
    ("flash", memsim.Attention(seq_len_q=4096, seq_len_k=4096, causal=True), memsim.Tile(128, 64, 8, 3)),
    ("naive", memsim.Attention(), memsim.Tile(128, 128, 8, 3)),
    ("flash1", memsim.Attention(batch=16, head_dim=64), memsim.Tile(64, 128, 8, 1)),
]
REPEATS = 3


def main() -> None:
    print(f"{'algorithm':10}{'heads':>6}{'N':>6}{'d':>5}{'causal':>8}{'tile ops':>12}{'seconds':>9}{'tile ops/s':>12}")
    for algorithm, problem, tile in CASES:
        seconds = []
        for _ in range(REPEATS):
            start = time.process_time()
            result = memsim.simulate(algorithm, problem, tile=tile)
            seconds.append(time.process_time() - start)
        best, operations = min(seconds), result.total.tile_operations
        print(
            f"{algorithm:10}{problem.batch * problem.heads:>6}{problem.seq_len_q:>6}{problem.head_dim:>5}"
            f"{problem.causal!s:>8}{operations:>12,}{best:>9.2f}{operations / best:>12,.0f}"
        )


if __name__ == "__main__":
    main()
