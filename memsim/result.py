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
    blocks: int
    blocks_per_sm: int
    limited_by: str
    waves: int
    sram_bytes: int
    registers: int | None
    registers_from: str
    stack_bytes: int | None
    sram_fill_bytes: int
    sram_fill_requested_bytes: int
    sram_zero_fill_bytes: int
    sram_store_bytes: int
    sram_store_requested_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    l2_dirty_bytes_at_end: int
    flops: int
    useful_flops: int
    exps: int
    alu_ops: int
    tile_operations: int
    fill_bytes_by_tensor: dict[str, int]
    store_bytes_by_tensor: dict[str, int]
    l1_hit_bytes: int = 0
    code_bytes: int = 0
    blocks_left_out: int = 0
    l2_read_bytes_by_tensor: dict[str, int] | None = None
    l2_hit_rate_by_tensor: dict[str, float | None] | None = None
    l2_hit_rate: float | None = None
    time_s: float | None = None
    sm_cycles: float | None = None
    clock_hz: float | None = None
    replayed_by: str | None = None
    bound: str | None = None
    busy: dict[str, float] | None = None
    waiting_for_memory: float | None = None


@dataclass(frozen=True)
class Total:
    """All launches together. `time_s` includes `launch_overhead_s` and `host_s`; intensity is useful FLOPs per HBM
    byte; `io_lower_bound_bytes` is Saha & Ye's bound for what one SM can hold (memsim.bounds), which lies below the
    compulsory bytes where that is much; a ratio to 0 is None. `l2_read_bytes` and `l2_hit_rate` are None where there
    was no L2, `l2_dirty_bytes_at_end` is what the last launch left."""

    sram_fill_bytes: int
    sram_fill_requested_bytes: int
    sram_zero_fill_bytes: int
    sram_store_bytes: int
    sram_store_requested_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    hbm_bytes: int
    flops: int
    useful_flops: int
    exps: int
    alu_ops: int
    tile_operations: int
    peak_hbm_bytes: int
    compulsory_bytes: int
    io_lower_bound_bytes: int
    over_compulsory: float | None
    over_lower_bound: float | None
    arithmetic_intensity: float | None
    host_bytes: int
    l1_hit_bytes: int = 0
    l2_read_bytes: int | None = None
    l2_hit_rate: float | None = None
    l2_dirty_bytes_at_end: int = 0
    time_s: float | None = None
    launch_overhead_s: float | None = None
    host_s: float | None = None
    bound: str | None = None
    busy: dict[str, float] | None = None
    waiting_for_memory: float | None = None


@dataclass(frozen=True)
class Result:
    """One algorithm on one problem, tile and GPU. `gpu` is the name as given, `levels` what was simulated, the
    farthest first, `l2_state` what the first launch found in the L2 (nothing, "cold", or what the same run left,
    "warm"), `notes` what a reader must know of it."""

    algorithm: str
    gpu: str
    gpu_options: dict[str, str]
    problem: dict[str, Any]
    tile: dict[str, Any]
    levels: tuple[str, ...]
    inputs: str
    l2_state: str
    lse: bool
    counted_only: bool
    launches: tuple[Launch, ...]
    total: Total
    notes: tuple[str, ...] = ()

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
    flash: Result

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
