"""What each kernel declares of itself: FLOPs, exponentials, bytes asked for, as formulas of the problem and the tile.

Written from the kernels, apart from the simulator's programs and counting, and held against both by tests. Block
sides are powers of two, as the kernels' are; no formula loops over blocks. With

    HB = batch · heads    Nq, Nk = seq_len_q, seq_len_k    D = padded head_dim    row = head_dim · bytes of an element
    R = ⌈Nq / block_m⌉    C = ⌈Nk / block_n⌉

a row of Q, K, V or O is `row` bytes, and what lies outside a tensor is computed with but not moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.programs.naive import CHUNK_COLUMNS, WHOLE_ROW_COLUMNS
from memsim.tile import Tile, cdiv

LSE_BYTES = 4


@dataclass(frozen=True)
class Cost:
    """One launch. `flops` of its matrix products as executed, padding and masked pairs of visited tiles included;
    `useful_flops` those that visible pairs need; `exps` exponentials and logarithms, padding included.

    `read_bytes` and `written_bytes` are what it asks of memory, by tensor ("Q", "S", "LSE", …); the descriptors that a
    kernel makes for itself, 128 B each, are not among them.
    """

    name: str
    flops: int
    useful_flops: int
    exps: int
    read_bytes: Mapping[str, int]
    written_bytes: Mapping[str, int]

    @property
    def total_read_bytes(self) -> int:
        """Bytes asked for from memory."""
        return sum(self.read_bytes.values())

    @property
    def total_written_bytes(self) -> int:
        """Bytes written to memory."""
        return sum(self.written_bytes.values())


def costs_of(algorithm: str, problem: Attention, tile: Tile, *, lse: bool = False) -> tuple[Cost, ...]:
    """The costs of a kernel's launches, in order: `flash`, or `qk`, `softmax` and `pv`.

    A launch with nothing to do costs nothing. Raises `MemsimError` for another algorithm, and for a tile whose sides
    are not powers of two of at least 16.
    """
    if algorithm not in ("flash", "naive"):
        raise MemsimError(f"there is no kernel {algorithm!r}; choose flash or naive.")
    faults = [
        f"{name} is {side}; these kernels take powers of two of at least 16."
        for name, side in (("block_m", tile.block_m), ("block_n", tile.block_n))
        if side < 16 or side & (side - 1)
    ]
    if faults:
        raise MemsimError(faults)
    return (flash_cost(problem, tile, lse=lse),) if algorithm == "flash" else naive_costs(problem, tile, lse=lse)


def flash_cost(problem: Attention, tile: Tile, *, lse: bool = False) -> Cost:
    """The one launch of flash. With T tiles of K visited by all row blocks of a head together, and N rows in them:

    FLOPs 4·block_m·block_n·D·T·HB (Q·Kᵀ and P·V), exps (block_m·block_n + block_m)·T·HB (P, and the factor on what
    was there before); Q read once, K and V N·row each per head, O written once. The LSE adds one logarithm and 4 bytes
    a row.
    """
    heads, element_row = problem.batch * problem.heads, problem.head_dim * problem.dtype_bytes
    row_blocks = cdiv(problem.seq_len_q, tile.block_m)
    tiles, rows = visited_keys(problem, tile)
    return Cost(
        name="flash",
        flops=4 * tile.block_m * tile.block_n * padded_width(problem.head_dim) * tiles * heads,
        useful_flops=useful_flops(problem),
        exps=((tile.block_m * tile.block_n + tile.block_m) * tiles + lse * tile.block_m * row_blocks) * heads,
        read_bytes={
            "Q": heads * problem.seq_len_q * element_row,
            "K": heads * rows * element_row,
            "V": heads * rows * element_row,
        },
        written_bytes={"O": heads * problem.seq_len_q * element_row}
        | ({"LSE": heads * problem.seq_len_q * LSE_BYTES} if lse else {}),
    )


def naive_costs(problem: Attention, tile: Tile, *, lse: bool = False) -> tuple[Cost, Cost, Cost]:
    """The three launches of naive.

    `qk`: R·C·HB blocks of 2·block_m·block_n·D FLOPs; Q read C times, K of each query head R times, S written once.
    `softmax`: one row a block, padded to a power of two; S read and P written once, an exponential an element. Rows
    beyond 32,768 columns go in chunks of 4,096: S read twice, two exponentials an element, and one a chunk for the
    factor. `pv`: R·HB blocks of C steps of 2·block_m·block_n·D FLOPs; P read once, V of each query head R times, O
    written once. Causal computes and stores everything.
    """
    heads, element_row = problem.batch * problem.heads, problem.head_dim * problem.dtype_bytes
    row_tiles, key_tiles = cdiv(problem.seq_len_q, tile.block_m), cdiv(problem.seq_len_k, tile.block_n)
    scores_bytes = heads * problem.seq_len_q * problem.seq_len_k * problem.dtype_bytes
    queries_bytes, keys_bytes = (heads * n * element_row for n in (problem.seq_len_q, problem.seq_len_k))
    product = 2 * tile.block_m * tile.block_n * padded_width(problem.head_dim) * row_tiles * key_tiles * heads
    qk = Cost(
        name="qk",
        flops=product,
        useful_flops=useful_flops(problem) // 2,
        exps=0,
        read_bytes={"Q": key_tiles * queries_bytes, "K": row_tiles * keys_bytes},
        written_bytes={"S": scores_bytes},
    )
    columns = padded_width(max(1, problem.seq_len_k))
    chunks = cdiv(problem.seq_len_k, CHUNK_COLUMNS)
    whole = columns <= WHOLE_ROW_COLUMNS
    softmax = Cost(
        name="softmax",
        flops=0,
        useful_flops=0,
        exps=heads * problem.seq_len_q * ((columns if whole else chunks * (2 * CHUNK_COLUMNS + 1)) + lse),
        read_bytes={"S": scores_bytes * (1 if whole else 2)},
        written_bytes={"P": scores_bytes} | ({"LSE": heads * problem.seq_len_q * LSE_BYTES} if lse else {}),
    )
    pv = Cost(
        name="pv",
        flops=product,
        useful_flops=useful_flops(problem) // 2,
        exps=0,
        read_bytes={"P": scores_bytes, "V": row_tiles * keys_bytes},
        written_bytes={"O": queries_bytes},
    )
    return qk, softmax, pv


def useful_flops(problem: Attention) -> int:
    """4·head_dim FLOPs for each pair of a query and a key that it sees.

    Causal, the last min(Nq, Nk) rows see 1, 2, 3, … keys, and every row the Nk − Nq before those, if there are any.
    """
    pairs = problem.seq_len_q * problem.seq_len_k
    if problem.causal:
        steps = min(problem.seq_len_q, problem.seq_len_k)
        pairs = steps * (steps + 1) // 2 + problem.seq_len_q * max(0, problem.seq_len_k - problem.seq_len_q)
    return 4 * problem.head_dim * pairs * problem.batch * problem.heads


def visited_keys(problem: Attention, tile: Tile) -> tuple[int, int]:
    """(tiles of K, rows of K in them) that the row blocks of one head visit together.

    Full attention: R·C tiles, R·Nk rows. Causal, row block i of 1 … R visits ⌈k_i / block_n⌉ tiles, where
    k_i = i·block_m + Nk − Nq, at least 0 and at most Nk, is how many keys its last row sees. Only the last block
    reaches Nk. Write Nk − Nq = c·block_m − r with 0 ≤ r < block_m; then block i sees a key if i + c > 0.
    """
    keys, row_blocks = problem.seq_len_k, cdiv(problem.seq_len_q, tile.block_m)
    all_tiles = cdiv(keys, tile.block_n)
    if not problem.causal or not keys or not row_blocks:
        return row_blocks * all_tiles, row_blocks * keys
    shift = keys - problem.seq_len_q
    c = cdiv(shift, tile.block_m)
    r = c * tile.block_m - shift
    first, last = max(1, 1 + c), row_blocks - 1 + c
    if tile.block_n <= tile.block_m:
        # ⌈(x·block_m − r) / block_n⌉ = x·(block_m / block_n) − ⌊r / block_n⌋
        each = tile.block_m // tile.block_n
        tiles = each * (_triangle(last) - _triangle(first - 1)) - (last - first + 1) * (r // tile.block_n)
    else:
        # ⌈(x·block_m − r) / block_n⌉ = ⌈x / (block_n / block_m)⌉, as r < block_m
        each = tile.block_n // tile.block_m
        tiles = _sum_of_ceilings(last, each) - _sum_of_ceilings(first - 1, each)
    tiles += all_tiles
    # Blocks from this one on visit the last tile, which may be ragged.
    before = (all_tiles - 1) * tile.block_n
    reach_last = row_blocks - min(max((before - shift) // tile.block_m, 0), row_blocks - 1)
    return tiles, tiles * tile.block_n - reach_last * (all_tiles * tile.block_n - keys)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _sum_of_ceilings(n: int, divisor: int) -> int:
    """⌈1/divisor⌉ + ⌈2/divisor⌉ + … + ⌈n/divisor⌉."""
    whole, rest = divmod(n, divisor)
    return divisor * _triangle(whole) + rest * (whole + 1)


def padded_width(columns: int) -> int:
    """Columns a tile takes for so many: the next power of two of at least 16, as matrix instructions need."""
    return max(16, 1 << (columns - 1).bit_length())
