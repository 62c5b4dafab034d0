"""What the simulator claims of a measured row, column by column, and why it claims no more.

Whether a count can be exact depends on how a kernel's loads and stores reach memory (an H200's counters,
tests/fidelity/data). Asynchronous copies and TMA pass the L1 by: what is asked for is what arrives. A plain load looks
in the L1 first, and what it finds there does not cross from the L2: the count is then the most that can arrive. A row
that does not start on a sector is stored as partial sectors, some of them sent more than once. A kernel that spills
registers moves those too.
"""

from __future__ import annotations

from dataclasses import dataclass

from memsim.columns import MEASURED
from memsim.measurements import Measurement
from memsim.trace import ELEMENT_BYTES, SECTOR_BYTES

RELATIONS = ("exact", "at most", "at least", "none")


@dataclass(frozen=True)
class Claim:
    """How measured stands to simulated: `exact` equal, `at most` no more than it, `at least` no less; `none` says
    nothing. `why` is the reason for what is less than exact, to stand after "because"; `slack_bytes` is how far beyond
    a bound the counter itself was seen to be."""

    relation: str
    why: str = ""
    slack_bytes: int = 0

    def holds(self, simulated: float, measured: float, rounded_by: float = 0.0) -> bool | None:
        """Whether it does, for a measured figure that is known to `rounded_by`; None where nothing is claimed."""
        if self.relation == "none":
            return None
        over = measured - simulated
        slack = rounded_by + self.slack_bytes
        return (self.relation == "at most" or over >= -slack) and (self.relation == "at least" or over <= slack)


EXACT = Claim("exact")
# Fills of softmax were counted up to two sectors off on an H200 at 16 to 50 MB, nine at 578 MB.
_COUNTER_SLACK_BYTES = 64
_COUNTER_SLACK = 1e-6


def claim_of(column: str, row: Measurement, compiled_stack_bytes: int | None = None) -> Claim:
    """The claim on one column of one row.

    `compiled_stack_bytes` is what the compiled kernel is known to spill, for rows that do not say whether they do.
    """
    if MEASURED[column].claim != "exact":
        return Claim("none", _UNCLAIMED[column])
    if column == "sram_bytes":
        return _sram(row, in_table=compiled_stack_bytes is not None)
    if column == "blocks_per_sm":
        return _blocks(row)
    if column == "sram_fill_bytes":
        return _with_spills(_fills(row), spills(row, compiled_stack_bytes))
    return _with_spills(_stores(row), spills(row, compiled_stack_bytes))


_OF_REPLAYS = "it is what a replay comes to: the accuracy table says how near that is"
_UNCLAIMED = {
    "registers": "they are the compiler's, from a table or an estimate",
    "stack_bytes": "it is the compiler's, from a table",
    "hbm_read_bytes": _OF_REPLAYS,
    "hbm_write_bytes": _OF_REPLAYS,
    "duration_s": _OF_REPLAYS,
    "sm_cycles": _OF_REPLAYS,
    "event_time_s": _OF_REPLAYS,
}


def spills(row: Measurement, compiled_stack_bytes: int | None = None) -> bool | None:
    """Whether the measured kernel keeps registers on a stack in memory; None where nothing says so."""
    stack = row.values.get("stack_bytes", compiled_stack_bytes)
    counted = [row.values.get(f"spill_{kind}_instructions") for kind in ("load", "store")]
    if "stack_bytes" not in row.values and None not in counted:
        return any(counted)
    return None if stack is None else stack > 0


def _on_sectors(elements: int, dtype: str) -> bool:
    return elements * ELEMENT_BYTES[dtype] % SECTOR_BYTES == 0


def _fills(row: Measurement) -> Claim:
    p = row.problem
    scores_on_sectors = _on_sectors(p.seq_len_k, p.dtype)
    if row.kernel == "softmax":
        if scores_on_sectors:
            return EXACT
        s_bytes = p.batch * p.heads * p.seq_len_q * p.seq_len_k * p.dtype_bytes
        slack = max(_COUNTER_SLACK_BYTES, int(_COUNTER_SLACK * s_bytes))
        return Claim("at most", "rows of S share sectors, which the L1 can give back", slack)
    if not _on_sectors(p.head_dim, p.dtype):
        return Claim("none", "rows of Q, K and V do not start on sectors")
    if row.kernel == "qk":
        return Claim("at most", "its loads are plain, and blocks on one SM can find each other's tiles in its L1")
    if row.kernel == "pv" and not scores_on_sectors:
        return Claim("none", "rows of P do not start on sectors: the L1 gives shared ones back, or they come twice")
    if p.dtype == "float32":
        return Claim("at most", "no float32 kernel has been measured")
    if row.num_stages == 1 and row.load_path == "pointer":
        return Claim("at most", "with one stage its loads are plain, and blocks on one SM can meet in its L1")
    return EXACT


def _stores(row: Measurement) -> Claim:
    p = row.problem
    stored = p.seq_len_k if row.kernel in ("qk", "softmax") else p.head_dim
    if not _on_sectors(stored, p.dtype):
        return Claim("at least", "stored rows do not start on sectors, and partial sectors are sent more than once")
    if row.load_path == "descriptor-ws" and row.block_m < 128:
        return Claim("at least", "a specialised block of fewer than 128 rows stores O from both of its warp groups")
    if row.lse and row.kernel in ("flash", "softmax") and not _on_sectors(_lse_run(row), "float32"):
        return Claim("at least", "the LSE of a block does not start on a sector, and partial sectors are sent again")
    return EXACT


def _lse_run(row: Measurement) -> int:
    """Rows whose LSE a block stores, or those of a head where its last block has fewer."""
    return 1 if row.kernel == "softmax" else row.problem.seq_len_q


def _with_spills(claim: Claim, spilling: bool | None) -> Claim:
    if spilling is False or claim.relation == "none":
        return claim
    why = "the kernel spills registers, and that traffic is not simulated"
    if spilling is None:
        why = "nothing says whether the kernel spills registers (stack_bytes is not given)"
    return Claim("none" if claim.relation == "at most" else "at least", why)


def _sram(row: Measurement, *, in_table: bool) -> Claim:
    if row.load_path != "pointer":
        why = "without the compiled kernel's own figure, the most that the barriers of descriptors take is counted"
        return EXACT if in_table else Claim("at most", why)
    if row.problem.dtype == "float32":
        return Claim("none", "the rule for SRAM is that of 16-bit types")
    if row.kernel != "softmax" and row.block_m < 64:
        return Claim("none", "the rule for SRAM is that of tiles of 64 rows or more")
    if row.kernel in ("qk", "pv") and not _inputs_outweigh_output(row):
        return Claim("none", "a tile that is larger than those it is made of can pass through SRAM on its way out")
    return EXACT


def _inputs_outweigh_output(row: Measurement) -> bool:
    """Whether the tiles that a block of qk or pv holds take the room of its output tile. Where they do not, kernels
    compiled for sm_90 took more SRAM in places: qk at head_dim 32, pv with one stage."""
    width = 1 << (row.problem.head_dim - 1).bit_length()
    if row.kernel == "qk":
        return width * (row.block_m + row.block_n) >= row.block_m * row.block_n
    return max(1, row.num_stages - 1) * row.block_n * (row.block_m + width) >= row.block_m * width


def _blocks(row: Measurement) -> Claim:
    if "registers" not in row.values:
        return Claim("none", "without measured registers it follows from a table or an estimate of them")
    if "sram_bytes" not in row.values and _sram(row, in_table=False) != EXACT:
        return Claim("none", "without a measured sram_bytes it follows from a close figure only")
    return EXACT
