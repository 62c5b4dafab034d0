"""Faults of the real kernels, each an edit of their source, in a copy of the package that stands in front of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_FLASH, _CALLS = "_flash_kernels.py", "flash.py"


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` wherever it stands in a file of the package."""

    file: str
    old: str
    new: str


_K_LOAD = "        k = tl.load(k_tile + at * k_row, mask=k_ok, other=0.0)\n"
_O_STORE = """    tl.store(
        o_ptr + batch * o_batch + head * o_head + row_start * o_row + (m_in[:, None] * o_row + d_in[None, :] * o_col),
        o.to(o_ptr.dtype.element_ty), mask=row_ok[:, None] & d_ok[None, :],
    )
"""

FAULTS = {
    "no rescale of O": Fault(_FLASH, "o = o * factor[:, None]", "o = o"),
    "rescale of O but not l": Fault(_FLASH, "l = l * factor + tl.sum(p, 1)", "l = l + tl.sum(p, 1)"),
    "K's strides used for V": Fault(_FLASH, "v_tile + at * v_row", "v_tile + at * k_row"),
    "tail keys unmasked": Fault(_FLASH, 's = tl.where(col[None, :] < seq_k, s, -float("inf"))', "s = s"),
    "V's padding not zeroed": Fault(
        _FLASH, "v = tl.load(v_tile + at * v_row, mask=v_ok, other=0.0)", "v = tl.load(v_tile + at * v_row, mask=v_ok)"
    ),
    "causal off by one": Fault(_FLASH, "col[None, :] <= row[:, None] + shift", "col[None, :] < row[:, None] + shift"),
    "top-left instead of bottom-right": Fault(_FLASH, "shift = seq_k - seq_q", "shift = 0"),
    "int32 offsets": Fault(_FLASH, "batch = tl.program_id(2).to(tl.int64)", "batch = tl.program_id(2)"),
    "TF32 for float32": Fault(_CALLS, '"IEEE": not allow_tf32', '"IEEE": False'),
    "one K tile loaded twice": Fault(_FLASH, _K_LOAD, _K_LOAD + _K_LOAD),
    "O stored twice": Fault(_FLASH, _O_STORE, _O_STORE + _O_STORE),
    "tail keys unmasked behind descriptors": Fault(_CALLS, "problem.seq_len_k % tile.block_n == 0", "True"),
    "mask before a scale that is not positive": Fault(_CALLS, "problem.scale_value * LOG2E < _LEAST_SCALE", "False"),
    "O rounded after every tile": Fault(
        _FLASH,
        "o = tl.dot(p.to(v.dtype), v, o, input_precision=PRECISION)",
        "o = tl.dot(p.to(v.dtype), v, o, input_precision=PRECISION).to(v.dtype).to(tl.float32)",
    ),
    "LSE in base 2": Fault(
        _FLASH, "tl.log2(tl.where(l == 0.0, 1.0, l))) * LN2", "tl.log2(tl.where(l == 0.0, 1.0, l)))"
    ),
}


def plant(fault: Fault, folder: Path) -> None:
    """A copy of the package in `folder`, with the fault."""
    spec = find_spec("memsim_kernels")
    assert spec is not None and spec.submodule_search_locations
    copy = folder / "memsim_kernels"
    shutil.copytree(
        next(iter(spec.submodule_search_locations)), copy, ignore=shutil.ignore_patterns("__pycache__")
    )  # fmt: skip
    file = copy / fault.file
    text = file.read_text(encoding="utf-8")
    assert fault.old in text, f"{fault.file} has no {fault.old!r} to spoil"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
