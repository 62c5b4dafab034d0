"""Kernels with a fault planted in their source."""

from __future__ import annotations

import importlib.util
from itertools import count
from pathlib import Path
from types import ModuleType

_number = count()


def edited(module: ModuleType, folder: Path, *edits: tuple[str, str]) -> ModuleType:
    """A copy of a module in which each text, which must occur, is replaced; a file, because Triton reads sources."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    for before, after in edits:
        assert before in source, f"the kernel no longer has {before!r}"
        source = source.replace(before, after)
    path = folder / f"edited_{next(_number)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy
