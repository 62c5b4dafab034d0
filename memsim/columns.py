"""The one table of measured columns: CSV column, field of a result, metric of ncu, unit, and what is claimed of it.

What each metric counts on an H200 is written in tests/fidelity/data/README.md; docs/validation.md prints this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memsim.errors import MemsimError
from memsim.trace import SECTOR_BYTES

KERNELS = ("flash", "qk", "softmax", "pv")
"""The kernels that rows are about, as launches are named."""

CLAIMS = {
    "exact": "simulated is to equal measured wherever the kernel's loads and rows allow it (memsim.claims)",
    "none": "shown with its error, never a failure",
    "not simulated": "read and kept, compared with nothing",
}
"""What the simulator claims of a column."""


@dataclass(frozen=True)
class Column:
    """One column of a measurement CSV.

    `kind` is how a cell is read: "count" (a whole number), "number", "flag" (0 or 1) or "text". `result` names the
    fields of a simulated launch (and of its run, for the launch overhead) that add up to it. `metrics` are the names
    that ncu has for it: the first that an export has is taken, or with `combine` all of them, made one number;
    `optional_metrics` join them where they are there. `sectors` says that the metric counts sectors of 32 bytes.
    `replayed` says that ncu does not collect it in one pass with the others, and is not asked for it where the caches
    are left as they are: a launch replayed finds what it left itself.
    """

    name: str
    kind: str
    unit: str = ""
    claim: str = "not simulated"
    result: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    combine: Callable[[Sequence[float]], float] | None = None
    optional_metrics: tuple[str, ...] = ()
    needed: bool = False
    always_written: bool = True
    sectors: bool = False
    replayed: bool = False


def _key(name: str, kind: str, *, needed: bool = True) -> Column:
    return Column(name, kind, needed=needed)


KEYS: Mapping[str, Column] = {
    column.name: column
    for column in (
        _key("kernel", "text"),
        _key("gpu", "text"),
        _key("dtype", "text"),
        *(_key(name, "count") for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")),
        _key("causal", "flag"),
        _key("lse", "flag"),
        *(_key(name, "count") for name in ("block_m", "block_n", "num_warps", "num_stages")),
        _key("grid_order", "text", needed=False),
        _key("load_path", "text"),
        _key("cache_state", "text", needed=False),
    )
}
"""What a row is about, in the order of the file."""

_SHARED_MEMORY_LIMIT = "launch__occupancy_limit_shared_mem"

MEASURED: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("registers", "count", "registers a thread", "none", ("registers",), ("launch__registers_per_thread",)),
        Column(
            "sram_bytes", "count", "B a block", "exact", ("sram_bytes",), ("launch__shared_mem_per_block_dynamic",)
        ),
        Column("stack_bytes", "count", "B a thread", "none", ("stack_bytes",)),
        Column(
            "blocks_per_sm", "count", "blocks", "exact", ("blocks_per_sm",),
            ("launch__occupancy_limit_blocks", "launch__occupancy_limit_registers", _SHARED_MEMORY_LIMIT,
             "launch__occupancy_limit_warps"), min, ("launch__occupancy_limit_barriers",),
        ),
        Column(
            "sram_fill_bytes", "count", "B", "exact", ("sram_fill_bytes",), ("l1tex__m_xbar2l1tex_read_bytes.sum",)
        ),
        Column(
            "sram_store_bytes", "count", "B", "exact", ("sram_store_bytes",), ("l1tex__m_l1tex2xbar_write_bytes.sum",),
            replayed=True,
        ),
        # Less than the fills where neighbouring SMs ask for the same sector at once: one request goes on for all.
        Column(
            "l2_read_bytes", "count", "B", metrics=("lts__t_sectors_srcunit_tex_op_read.sum",), always_written=False,
            sectors=True,
        ),
        # What one half of the L2 asks the other for is counted in both.
        Column(
            "l2_slice_read_bytes", "count", "B", metrics=("lts__t_sectors_op_read.sum",), always_written=False,
            sectors=True,
        ),
        Column("hbm_read_bytes", "count", "B", "none", ("hbm_read_bytes",), ("dram__bytes_read.sum",)),
        Column("hbm_write_bytes", "count", "B", "none", ("hbm_write_bytes",), ("dram__bytes_write.sum",)),
        Column("duration_s", "number", "s", "none", ("time_s",), ("gpu__time_duration.sum",)),
        Column("sm_cycles", "count", "cycles", "none", ("sm_cycles",), ("sm__cycles_elapsed.max",)),
        Column("instructions", "count", "warp instructions", metrics=("smsp__inst_executed.sum",), replayed=True),
        Column(
            "mufu_instructions", "count", "warp instructions", replayed=True,
            metrics=("sm__inst_executed_pipe_xu.sum",),
        ),
        Column(
            "tensor_instructions", "count", "warp instructions", replayed=True,
            metrics=("sm__inst_executed_pipe_tensor.sum",),
        ),
        Column(
            "event_time_s", "number", "s", "none", ("time_s", "launch_overhead_s"), always_written=False
        ),
        Column("event_time_spread", "number", "of event_time_s", always_written=False),
        # Blackwell's names have "sass" in them.
        Column(
            "spill_load_instructions", "count", "warp instructions", always_written=False, replayed=True,
            metrics=("smsp__inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_ld.sum"),
        ),
        Column(
            "spill_store_instructions", "count", "warp instructions", always_written=False, replayed=True,
            metrics=("smsp__inst_executed_op_local_st.sum", "smsp__sass_inst_executed_op_local_st.sum"),
        ),
    )
}  # fmt: skip
"""What was measured of a row, in the order of the file."""

ERROR = Column("error", "text", always_written=False)
"""Why a row has no measurement: the launch failed."""

COLUMNS: Mapping[str, Column] = {**KEYS, **MEASURED, ERROR.name: ERROR}

COMPARED = tuple(name for name, column in MEASURED.items() if column.result)
"""The columns that have something simulated beside them."""

TIMES = tuple(name for name in COMPARED if {"time_s", "sm_cycles"} & set(MEASURED[name].result))
"""Those of them that take a replay."""

HBM = ("hbm_read_bytes", "hbm_write_bytes")
"""Those that take one where there is an L2."""


def metrics_to_collect(*, single_pass: bool = False) -> tuple[str, ...]:
    """The metrics to ask ncu for (`--metrics`), the first name of each column's; with `single_pass` only those that
    it collects without a replay."""
    names: list[str] = []
    for column in MEASURED.values():
        if single_pass and column.replayed:
            continue
        names += column.metrics if column.combine else column.metrics[:1]
    return tuple(names)


def check_table(columns: Mapping[str, Column] = COLUMNS) -> None:
    """Raise if the table contradicts itself: an unknown claim, a claim on what is not simulated, a metric twice."""
    faults = []
    seen: dict[str, str] = {}
    for column in columns.values():
        if column.claim not in CLAIMS:
            faults.append(f"{column.name} claims {column.claim!r}: give one of {', '.join(CLAIMS)}.")
        elif (column.claim != "not simulated") != bool(column.result):
            faults.append(f"{column.name} claims {column.claim!r}, but its result fields are {column.result}.")
        for metric in (*column.metrics, *column.optional_metrics):
            if metric in seen:
                faults.append(f"{metric} stands for {seen[metric]} and for {column.name}: let it stand for one.")
            seen[metric] = column.name
    if faults:
        raise MemsimError(faults)


def markdown_table() -> str:
    """The table as docs/validation.md has it."""
    lines = ["| column | field of a launch | ncu metric | unit | claim |", "| --- | --- | --- | --- | --- |"]
    for column in MEASURED.values():
        if column.combine:
            metrics = "the smallest of " + ", ".join(f"`{m}`" for m in column.metrics)
            metrics += "".join(f", and of `{m}` where it is there" for m in column.optional_metrics)
        else:
            metrics = " or ".join(f"`{m}`" for m in column.metrics) or "–"
            metrics = f"{SECTOR_BYTES} × {metrics}" if column.sectors else metrics
        result = " + ".join(f"`{name}`" for name in column.result) or "–"
        lines.append(f"| `{column.name}` | {result} | {metrics} | {column.unit} | {column.claim} |")
    return "\n".join(lines) + "\n"
