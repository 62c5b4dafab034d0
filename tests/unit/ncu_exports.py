"""Exports as ncu writes them, of launches on an H200: lines 154, 50, 52 and 54 of tests/fidelity/data/counters.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Metrics = Mapping[str, tuple[str, str]]
Launch = tuple[str, str, str, Metrics]


def metrics(
    fills: int, stores: int, read: int, written: int, duration_ns: int, cycles: int, registers: int, sram: int,
    limits: tuple[int, int, int, int], spills: tuple[int, int] = (0, 0),
) -> dict[str, tuple[str, str]]:  # fmt: skip
    """Metric → (unit, value) as `--print-units base` prints them."""
    named = zip(("blocks", "registers", "shared_mem", "warps"), limits, strict=True)
    return {
        "dram__bytes_read.sum": ("byte", f"{read:,}"),
        "dram__bytes_write.sum": ("byte", f"{written:,}"),
        "gpu__time_duration.sum": ("nsecond", f"{duration_ns:,}"),
        "l1tex__m_l1tex2xbar_write_bytes.sum": ("byte", f"{stores:,}"),
        "l1tex__m_xbar2l1tex_read_bytes.sum": ("byte", f"{fills:,}"),
        **{f"launch__occupancy_limit_{name}": ("block", str(limit)) for name, limit in named},
        "launch__registers_per_thread": ("register/thread", str(registers)),
        "launch__shared_mem_per_block_dynamic": ("byte/block", f"{sram:,}"),
        "sm__cycles_elapsed.max": ("cycle", f"{cycles:,}"),
        "sm__inst_executed_pipe_tensor.sum": ("inst", "3,145,728"),
        "sm__inst_executed_pipe_xu.sum": ("inst", "8,921,088"),
        "smsp__inst_executed.sum": ("inst", "113,819,648"),
        "smsp__inst_executed_op_local_ld.sum": ("inst", f"{spills[0]:,}"),
        "smsp__inst_executed_op_local_st.sum": ("inst", f"{spills[1]:,}"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "61.55"),
    }


FLASH: Launch = (
    "flash_pointer_kernel", "(256, 1, 1)", "(32, 16, 1)",
    metrics(1_090_519_040, 16_777_216, 50_353_664, 8_668_160, 309_824, 549_851, 160, 131_072, (32, 1, 1, 8)),
)  # fmt: skip
"""Problem: 16 heads, 4096, head_dim 128; tile 128×64, 8 warps, 3 stages."""

NAIVE: Sequence[Launch] = (
    (
        "qk_kernel", "(256, 1, 1)", "(16, 16, 8)",
        metrics(32_425_216, 19_569_920, 2_055_936, 2_304, 12_736, 22_345, 42, 16_384, (32, 5, 13, 8)),
    ),
    (
        "softmax_kernel", "(256, 1, 1)", "(8000, 1, 1)",
        metrics(16_128_000, 18_226_720, 16_005_632, 524_288, 15_456, 30_322, 20, 32, (32, 10, 216, 8)),
    ),
    (
        "pv_kernel", "(256, 1, 1)", "(16, 8, 1)",
        metrics(32_400_160, 1_024_000, 17_031_936, 2_560, 19_808, 35_834, 52, 32_768, (32, 4, 6, 8)),
    ),
)  # fmt: skip
"""Problem: 8 heads, 1000, head_dim 64; tile 64×64, 8 warps, 3 stages."""

OTHER: Launch = ("vectorized_elementwise_kernel", "(128, 1, 1)", "(3328, 1, 1)", FLASH[3])

_MESSAGES = (
    '==PROF== Connected to process 4242 (/usr/bin/python3.11)\n==PROF== Profiling "{}" - 0: 0%....100% - 9 passes\n'
)
_IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC",
)  # fmt: skip


def long_format(launches: Sequence[Launch], *, cc: str = "9.0", rules: bool = False) -> str:
    """`ncu --csv`: a metric a line. With `rules` the columns and lines of ncu's rules too."""
    header = (*_IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    header += ("Rule Name", "Rule Type", "Rule Description") if rules else ()
    lines = [_row(header)]
    for at, launch in enumerate(launches):
        start = (*_identity(at, launch, cc), "Command line profiler metrics")
        for name, (unit, value) in launch[3].items():
            # Here ncu leaves the rules' cells away, but for a comma.
            lines.append(_row((*start, name, unit, value)) + ("," if rules else ""))
        if rules:
            lines.append(_row((*start, "", "", "", "SOLBottleneck", "OPT", "High pipe\nutilization, says the rule")))
    lines.append("==PROF== Disconnected from process 4242")
    return 'loading weights: 12" of "tape\n' + _MESSAGES.format(launches[0][0]) + "\n".join(lines) + "\n"


def wide_format(launches: Sequence[Launch], *, cc: str = "9.0") -> str:
    """`ncu --page raw --csv`: a launch a line, a line of units beneath the header."""
    names = tuple(launches[0][3])
    lines = [_row((*_IDENTITY, *names)), _row(("",) * len(_IDENTITY) + tuple(launches[0][3][n][0] for n in names))]
    lines += [
        _row((*_identity(at, launch, cc), *(launch[3][n][1] for n in names))) for at, launch in enumerate(launches)
    ]
    return "\n".join(lines) + "\n"


def _identity(at: int, launch: Launch, cc: str) -> tuple[str, ...]:
    return (str(at), "4242", "python3.11", "127.0.0.1", launch[0], "1", "7", launch[1], launch[2], "0", cc)


def _row(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
