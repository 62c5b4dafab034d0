"""What a simulation found, typed, and as the JSON other tools rely on (`memsim.result/1`, `memsim.compare/1`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RESULT_SCHEMA = "memsim.result/1"
COMPARE_SCHEMA = "memsim.compare/1"


@dataclass(frozen=True)
class Launch:
    """One kernel. Bytes count whole 32-byte sectors but for `*_requested_bytes`; flops are executed, padding included.
    `sram_zero_fill_bytes` are fills beyond a tensor's end, which tensor descriptors make and no memory is read for.

    Where the machine has an L2 and the launch was replayed, `hbm_read_bytes` and `hbm_write_bytes` are what the L2 left
    over, `l2_dirty_bytes_at_end` what it had not yet written, `l2_read_bytes_by_tensor` what it was asked for and
    `l2_hit_rate_by_tensor` the share of it that it had. `l1_hit_bytes` were loaded again by an SM that still had them:
    they are no fills. `code_bytes` of the HBM reads are the kernel's own instructions, where caches are cold.
    `blocks_left_out` went like those before them and were accounted for, not replayed (none with `full`).
    `stack_bytes` per thread is what the compiled kernel spills, None where that is not known.
    `replayed_by` is "instructions" where the compiled kernel's own were replayed, "trace" where the program's records
    were. `time_s` is the kernel alone at `clock_hz`; these, `sm_cycles`, `bound`, `busy` and `waiting_for_memory` are
    None when only counted. `busy` is each resource's share of the launch's time, `waiting_for_memory` the share of the
    used SMs' time in which no block on them could go on for want of data.
    """

    name: str
    """The kernel: flash; qk, softmax or pv of naive; flash1."""
    blocks: int
    """Blocks in the grid."""
    blocks_per_sm: int
    """Blocks that an SM holds at the same time."""
    limited_by: str
    """What keeps a further block out: sram, registers, warps or blocks."""
    waves: int
    """Blocks over those that all SMs hold, rounded up."""
    sram_bytes: int
    """SRAM that a block takes."""
    registers: int | None
    """32-bit registers a thread; None where the machine has no register file."""
    registers_from: str
    """Where `registers` come from: "table", "compiled" or "estimate"."""
    stack_bytes: int | None
    """Bytes a thread that the compiled kernel spills; None where that is not known."""
    sram_fill_bytes: int
    """Bytes that arrive in the SMs, in whole sectors."""
    sram_fill_requested_bytes: int
    """Those of them that the program asked for."""
    sram_zero_fill_bytes: int
    """Fills beyond a tensor's end: zeros, for which no memory is read."""
    sram_store_bytes: int
    """Bytes that leave the SMs, in whole sectors."""
    sram_store_requested_bytes: int
    """Those of them that the program stored."""
    hbm_read_bytes: int
    """Bytes read from HBM."""
    hbm_write_bytes: int
    """Bytes written to HBM."""
    l2_dirty_bytes_at_end: int
    """Stored bytes that the L2 has not yet written when the launch ends."""
    flops: int
    """Floating-point operations of the matrix products, as executed."""
    useful_flops: int
    """Those of them that the problem needs."""
    exps: int
    """Operations of the exp pipe: exponentials and logarithms."""
    alu_ops: int
    """Element-wise float32 operations."""
    tile_operations: int
    """Trace records executed by all blocks together."""
    fill_bytes_by_tensor: dict[str, int]
    """`sram_fill_bytes` of each tensor, before what the L1 gives back."""
    store_bytes_by_tensor: dict[str, int]
    """`sram_store_bytes` of each tensor."""
    l1_hit_bytes: int = 0
    """Bytes that an SM loaded again and still had: no fills."""
    code_bytes: int = 0
    """HBM reads for the kernel's own instructions."""
    blocks_left_out: int = 0
    """Blocks that went like those before them and were accounted for, not replayed."""
    l2_read_bytes_by_tensor: dict[str, int] | None = None
    """What the L2 was asked for, by tensor; None where there was no L2."""
    l2_hit_rate_by_tensor: dict[str, float | None] | None = None
    """Share of that which it had; None for what was not asked for."""
    l2_hit_rate: float | None = None
    """Share of all that the L2 was asked for which it had."""
    time_s: float | None = None
    """Seconds of the kernel alone; None when only counted."""
    sm_cycles: float | None = None
    """The same in cycles of the SMs."""
    clock_hz: float | None = None
    """The clock that it ran at."""
    replayed_by: str | None = None
    """"instructions" or "trace"."""
    bound: str | None = None
    """The resource that held it back."""
    busy: dict[str, float] | None = None
    """Share of the launch's time in which each resource worked."""
    waiting_for_memory: float | None = None
    """Share of the used SMs' time in which no block could go on for want of data."""


@dataclass(frozen=True)
class Total:
    """All launches together. `time_s` includes `launch_overhead_s` and `host_s`; intensity is useful FLOPs per HBM
    byte; `io_lower_bound_bytes` is Saha & Ye's bound for what one SM can hold (memsim.bounds), which lies below the
    compulsory bytes where that is much; a ratio to 0 is None. `l2_read_bytes` and `l2_hit_rate` are None where there
    was no L2, `l2_dirty_bytes_at_end` is what the last launch left."""

    sram_fill_bytes: int
    """Bytes that arrive in the SMs, in whole sectors."""
    sram_fill_requested_bytes: int
    """Those of them that the programs asked for."""
    sram_zero_fill_bytes: int
    """Fills beyond tensors' ends."""
    sram_store_bytes: int
    """Bytes that leave the SMs, in whole sectors."""
    sram_store_requested_bytes: int
    """Those of them that the programs stored."""
    hbm_read_bytes: int
    """Bytes read from HBM."""
    hbm_write_bytes: int
    """Bytes written to HBM."""
    hbm_bytes: int
    """Both together."""
    flops: int
    """Floating-point operations of the matrix products, as executed."""
    useful_flops: int
    """Those of them that the problem needs."""
    exps: int
    """Operations of the exp pipe."""
    alu_ops: int
    """Element-wise float32 operations."""
    tile_operations: int
    """Trace records executed by all blocks of all launches."""
    peak_hbm_bytes: int
    """The most that tensors take of HBM at once."""
    compulsory_bytes: int
    """Q, K and V read once, O (and LSE) written once."""
    io_lower_bound_bytes: int
    """What must cross at least, for what one SM can hold."""
    over_compulsory: float | None
    """`hbm_bytes` over `compulsory_bytes`; None where that is 0."""
    over_lower_bound: float | None
    """`hbm_bytes` over `io_lower_bound_bytes`; None where that is 0."""
    arithmetic_intensity: float | None
    """Useful FLOPs per HBM byte; None where no byte crosses."""
    host_bytes: int
    """Bytes that cross the host link."""
    l1_hit_bytes: int = 0
    """Bytes that SMs loaded again and still had."""
    l2_read_bytes: int | None = None
    """What the L2 was asked for; None where there was no L2."""
    l2_hit_rate: float | None = None
    """Share of it that the L2 had."""
    l2_dirty_bytes_at_end: int = 0
    """What the last launch left unwritten in the L2."""
    time_s: float | None = None
    """Seconds of all: launches, what starting them takes, the host link. None when only counted."""
    launch_overhead_s: float | None = None
    """The part of it that starting launches takes."""
    host_s: float | None = None
    """The part of it that the host link takes."""
    bound: str | None = None
    """The resource that held the run back."""
    busy: dict[str, float] | None = None
    """Share of the time in which each resource worked."""
    waiting_for_memory: float | None = None
    """Share of the used SMs' time in which no block could go on for want of data."""


@dataclass(frozen=True)
class Result:
    """One algorithm on one problem, tile and GPU. `gpu` is the name as given, `levels` what was simulated, the
    farthest first, `l2_state` what the first launch found in the L2 (nothing, "cold", or what the same run left,
    "warm"), `notes` what a reader must know of it."""

    algorithm: str
    """naive, flash or flash1."""
    gpu: str
    """The GPU, as it was named."""
    gpu_options: dict[str, str]
    """Fields of it that were changed, as text."""
    problem: dict[str, Any]
    """The fields of the `Attention`."""
    tile: dict[str, Any]
    """The fields of the `Tile` that was taken."""
    levels: tuple[str, ...]
    """What was simulated, the farthest first."""
    inputs: str
    """Where Q, K and V were at first: "hbm" or "host"."""
    l2_state: str
    """What the first launch found in the L2: "cold" or "warm"."""
    lse: bool
    """Whether the log-sum-exp was stored too."""
    counted_only: bool
    """Whether the replay was left out."""
    launches: tuple[Launch, ...]
    """The kernels, in their order."""
    total: Total
    """All launches together."""
    notes: tuple[str, ...] = ()
    """What a reader must know of it, in sentences."""

    def launch(self, name: str) -> Launch:
        """The launch of this name."""
        return next(launch for launch in self.launches if launch.name == name)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON-ready data, with its schema first."""
        return {"schema": RESULT_SCHEMA, **asdict(self)}


@dataclass(frozen=True)
class Comparison:
    """Naive attention beside FlashAttention on the same problem and GPU."""

    naive: Result
    """The result of naive attention."""
    flash: Result
    """The result of FlashAttention."""

    @property
    def ratios(self) -> dict[str, float | None]:
        """Naive over flash, per quantity; None where one of them is absent or zero."""
        names = ("hbm_bytes", "hbm_read_bytes", "hbm_write_bytes", "peak_hbm_bytes", "time_s")
        return {name: ratio(getattr(self.naive.total, name), getattr(self.flash.total, name)) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON-ready data, with its schema first."""
        return {
            "schema": COMPARE_SCHEMA,
            "ratios": self.ratios,
            "naive": self.naive.as_dict(),
            "flash": self.flash.as_dict(),
        }


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None where that says nothing."""
    return a / b if a is not None and b else None
