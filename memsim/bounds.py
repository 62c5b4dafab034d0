"""What any algorithm must move or take: compulsory bytes, the I/O lower bound of one SRAM."""

from __future__ import annotations

import math

from memsim.attention import Attention
from memsim.gpu import Gpu


def compulsory_bytes(problem: Attention, *, lse: bool = False) -> int:
    """Bytes of Q, K, V read once and O (and LSE, float32) written once; keys that no row sees are not needed."""
    sizes = problem.tensor_bytes()
    if problem.seq_len_q == 0 or problem.visible_pairs == 0:
        needed = sizes["O"]
    else:
        # Causal rows beyond the keys see nothing, and need no Q.
        rows = min(problem.seq_len_q, problem.seq_len_k) if problem.causal else problem.seq_len_q
        needed = sizes["Q"] // problem.seq_len_q * rows + sizes["K"] + sizes["V"] + sizes["O"]
    return needed + (4 * problem.batch * problem.heads * problem.seq_len_q if lse else 0)


def io_lower_bound_bytes(problem: Attention, sram_bytes: int) -> int:
    """Least bytes that cross into and out of one SRAM of this size, for any order of the standard products.

    Saha & Ye (2024, Theorem 3.1) show Θ(min(N²d/√M, N²d²/M)) per head for M elements of SRAM. The constant here
    follows from the red-blue pebble argument (Hong & Kung 1981; Irony, Toledo & Tiskin 2004): cut the run into
    phases of M transferred elements. A phase sees at most 2M elements of Q and K. Scores completed inside it need
    whole rows, at most (M/d)² of them, d products each; scores that are begun or left unfinished number at most 3M,
    and by Loomis-Whitney take √(M²·3M) products. So a phase does at most F = M²/d + √3·M^1.5 of the W =
    visible pairs · d products, and at least M·(W/F - 1) elements move. Blocks that share nothing in SRAM move what
    one SM running them in turn would, so the bound holds for their sum.
    """
    m, d = sram_bytes // problem.dtype_bytes, problem.head_dim
    if m == 0:
        return 0
    products = problem.visible_pairs * problem.batch * problem.heads * d
    phase: float = m * m / d + math.sqrt(3) * float(m) ** 1.5
    return max(0, math.floor(m * (products / phase - 1))) * problem.dtype_bytes


def on_chip_bytes(gpu: Gpu) -> int:
    """What a block can keep in one SM: SRAM, and registers where there are any."""
    return gpu.sm.sram.capacity_bytes + (4 * gpu.sm.registers.per_sm if gpu.sm.registers else 0)


def lower_bound_bytes(problem: Attention, sram_bytes: int, *, lse: bool = False) -> int:
    """The larger of the compulsory bytes and the I/O lower bound of one SRAM."""
    return max(compulsory_bytes(problem, lse=lse), io_lower_bound_bytes(problem, sram_bytes))
