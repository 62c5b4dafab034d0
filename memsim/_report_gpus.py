"""Machines as text and as JSON (`memsim.gpus/1`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memsim._gpu_files import ALIASES
from memsim._report_format import NONE, Figures, Paragraph, kib, size
from memsim.gpu import Gpu
from memsim.tile import Tile
from memsim.units import format_rate

GPUS_SCHEMA = "memsim.gpus/1"
VALIDATED = {"datasheet": "datasheet only", "measured": "measured"}


def gpus_report(gpus: Sequence[Gpu]) -> RenderableType:
    """The machines, one a line."""
    headings = ["HBM", "bandwidth", "L2", "SMs", "SRAM\nSM/block", "fp16\nFLOP/s", "validated"]
    rows = [
        (
            gpu.name,
            [
                size(gpu.hbm.capacity_bytes).replace(".0", ""),
                format_rate(gpu.hbm.bandwidth_bytes_per_s),
                kib(gpu.l2.capacity_bytes) if gpu.l2 else NONE,
                str(gpu.sm.count),
                _both(gpu.sm.sram.capacity_bytes, gpu.sm.sram.block_limit_bytes),
                format_rate(gpu.tensor_flop_per_s("float16"), ""),
                VALIDATED[gpu.validation],
            ],
        )
        for gpu in gpus
    ]
    return Group(
        Figures(headings, rows),
        "",
        Paragraph(", ".join(f"{short} is short for {name}" for short, name in ALIASES.items()) + "."),
        Paragraph("memsim gpus NAME prints every field with its source; memsim gpus --template, a file to start from."),
    )


def gpu_report(gpu: Gpu) -> RenderableType:
    """Every field of a machine, in base units, and below it where it is from; a default tile in one line."""
    lines = [(key, _plain(value)) for key, value in fields_of(gpu).items() if not key.startswith("tiles.")]
    lines += [(f"tiles.{index}", str(Tile(**tile.model_dump()))) for index, tile in enumerate(gpu.tiles)]
    width = max(len(key) for key, _ in lines) + 2
    report: list[RenderableType] = []
    for key, value in lines:
        line = Text(key, style="bold")
        line.append(" " * (width - len(key)), style="not bold").append(value, style="not bold")
        report.append(line)
        if (key.startswith("tiles.") and key != lines[-1][0]) or not _source(gpu, key):
            continue
        report.append(Padding(Paragraph(_source(gpu, key), style="dim"), (0, 0, 0, 4)))
    return Group(*report)


def _source(gpu: Gpu, key: str) -> str:
    return gpu.sources.get("tiles" if key.startswith("tiles.") else key, "")


def gpus_data(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """The machines as JSON-ready data, with the schema first."""
    return {"schema": GPUS_SCHEMA, "gpus": [_gpu_data(gpu) for gpu in gpus]}


def fields_of(gpu: Gpu) -> dict[str, int | float | str]:
    """The fields of a machine by dotted key."""
    return dict(_flat(gpu.model_dump(exclude_none=True), ""))


def _both(first_bytes: int, second_bytes: int) -> str:
    """Two sizes, their unit once if it is the same."""
    first, second = kib(first_bytes), kib(second_bytes)
    number, unit = first.split(" ")
    return f"{number}/{second}" if second.endswith(f" {unit}") else f"{first}/{second}"


def _gpu_data(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "validated": VALIDATED[gpu.validation],
        "hbm_capacity_bytes": gpu.hbm.capacity_bytes,
        "hbm_bandwidth_bytes_per_s": gpu.hbm.bandwidth_bytes_per_s,
        "l2_capacity_bytes": gpu.l2.capacity_bytes if gpu.l2 else None,
        "sms": gpu.sm.count,
        "sram_bytes_per_sm": gpu.sm.sram.capacity_bytes,
        "sram_bytes_per_block": gpu.sm.sram.block_limit_bytes,
        "sram_bandwidth_bytes_per_s": gpu.sram_bandwidth_bytes_per_s,
        "tensor_flop_per_s": gpu.tensor_flop_per_s("float16"),
        "exp_per_s": gpu.exp_per_s,
        "fields": fields_of(gpu),
        "sources": dict(gpu.sources),
    }


def _flat(value: Any, key: str) -> Iterator[tuple[str, int | float | str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{key}.{index}")
    else:
        yield key, value


def _plain(value: float | str) -> str:
    """A number as the file has it, a whole one in full up to seven digits: "65,536", "4.8e12", "989.4"."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.0f}" if value.is_integer() and value < 1e7 else re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.6g}")
