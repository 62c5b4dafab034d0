"""What `memsim probe` prints: one column a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._options import Request
from memsim._report_format import Figures, kib, plural
from memsim._report_heading import problem_facts, spaced
from memsim.tile import Tile
from memsim_kernels._sass import CLASSES

if TYPE_CHECKING:
    from memsim_kernels._command_probe import Probed

_CLASS_NAMES = {
    "tensor": "tensor", "exp": "exp (MUFU)", "fp32": "float32", "conversion": "conversions",
    "shared_memory": "shared memory", "tensor_memory": "tensor memory", "async_copy": "asynchronous copies",
    "global_memory": "global memory", "local_memory": "local memory", "control": "control", "other": "other",
}  # fmt: skip
_LIMITS = {"sram": "SRAM", "registers": "registers", "warps": "warps", "blocks": "blocks"}


def probe_report(request: Request, tile: Tile, probed: Sequence[Probed]) -> RenderableType:
    """Resources of every launch, and the instructions of its main loop."""
    facts = problem_facts(vars(request.problem), lse=request.lse, inputs="hbm")
    title = Text(f"{request.algorithm} compiled for {request.gpu.architecture}: ", "bold").append(
        ", ".join([*facts, f"tile {tile}"]), "not bold"
    )
    names = [p.kernel.kernel for p in probed]
    resources = [
        ("SRAM of a block", [f"{p.kernel.sram_bytes:,} B" for p in probed]),
        ("registers a thread", [str(p.kernel.registers) for p in probed]),
        ("stack a thread", [f"{p.kernel.stack_bytes:,} B" for p in probed]),
        ("warps of a block", [str(p.kernel.block_warps) for p in probed]),
        (f"blocks an SM of {request.gpu.name}", [f"{p.blocks_per_sm} ({_LIMITS[p.limited_by]})" for p in probed]),
        ("loops with arithmetic", [str(len(p.kernel.math_loops)) for p in probed]),
    ]
    mixes = [p.kernel.main_mix for p in probed]
    mix = [(_CLASS_NAMES[name], [f"{one[name]:,}" for one in mixes]) for name in CLASSES if any(m[name] for m in mixes)]
    whole = [name for name, p in zip(names, probed, strict=True) if p.kernel.main_loop is None]
    of_what = "Instructions of a warp in the main loop, once through"
    of_what += f" ({' and '.join(whole)}: the whole kernel, which has no such loop)." if whole else "."
    rows = [*mix, ("together", [f"{sum(one.values()):,}" for one in mixes])]
    return Group(
        title,
        "",
        Figures(names, resources, "resource"),
        *spaced([of_what]),
        "",
        Figures(names, rows, "class"),
        *spaced(_notes(request, probed)),
    )


def _notes(request: Request, probed: Sequence[Probed]) -> list[str]:
    limit = request.gpu.sm.sram.block_limit_bytes
    notes = []
    for p in probed:
        kernel = p.kernel
        if kernel.sram_bytes > limit:
            notes.append(
                f"{kernel.kernel} needs {kernel.sram_bytes:,} B of SRAM and a block may have {limit:,} B "
                f"({kib(limit)}): it compiles and would not start."
            )
        spills = kernel.main_mix["local_memory"]
        if kernel.stack_bytes and spills:
            many = plural(spills, "instruction")
            notes.append(f"{kernel.kernel} spills: {many} of its main loop go to local memory.")
    return notes
