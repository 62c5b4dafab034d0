"""How fast do replays run: tile operations a second of one core's processor time?

Fixed problems, the least of some runs, in this process. The last column is the same for each timeout that a bare SimPy
loop goes through in a second of this run, so that machines can be compared.
"""

from __future__ import annotations

import functools

import simpy
from _bench import heading, least_processor_s, line, seconds, table

import memsim

CASES = [
    ("flash", memsim.Attention(), memsim.Tile(128, 64, 8, 3)),
    ("flash", memsim.Attention(seq_len_q=4096, seq_len_k=4096), memsim.Tile(128, 64, 8, 3)),
    ("flash", memsim.Attention(seq_len_q=4096, seq_len_k=4096, causal=True), memsim.Tile(128, 64, 8, 3)),
    ("naive", memsim.Attention(), memsim.Tile(128, 128, 8, 3)),
    ("flash1", memsim.Attention(batch=16, head_dim=64), memsim.Tile(64, 128, 8, 1)),
]
COLUMNS = ("algorithm, heads × N × d", "tile ops", "time", "tile ops a second", "for a SimPy timeout")
WIDTHS = (40, 10, 8, 17, 19)
TIMEOUTS = 200_000


def bare_loop() -> None:
    """One SimPy process that waits again and again."""
    environment = simpy.Environment()

    def wait():
        for _ in range(TIMEOUTS):
            yield environment.timeout(1)

    environment.process(wait())
    environment.run()


def main() -> None:
    heading(__doc__ or "")
    timeouts_per_s = TIMEOUTS / least_processor_s(bare_loop)
    print(f"SimPy {simpy.__version__}: {timeouts_per_s:,.0f} timeouts a second")
    table(COLUMNS, widths=WIDTHS)
    for algorithm, problem, tile in CASES:
        call = functools.partial(memsim.simulate, algorithm, problem, tile=tile)
        operations = call().total.tile_operations
        took = least_processor_s(call)
        label = f"{algorithm}, {problem.batch * problem.heads} × {problem.seq_len_q:,} × {problem.head_dim}"
        label += ", causal" if problem.causal else ""
        rate = operations / took
        line([label, f"{operations:,}", seconds(took), f"{rate:,.0f}", f"{rate / timeouts_per_s:.2f}"], WIDTHS)


if __name__ == "__main__":
    main()
