"""The folder in which commands keep what is dear to compute: `MEMSIM_CACHE`, else `memsim` in `XDG_CACHE_HOME`, else in
~/.cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where kept files are. It need not exist."""
    own = os.environ.get("MEMSIM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "memsim")


def forget_oldest(path: Path, pattern: str, most: int) -> None:
    """Make room for a new file at `path`: of those like it, which other versions left, only the newest stay, so that
    there are `most` with it."""
    others = sorted(path.parent.glob(pattern), key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others[most - 1 :]:
        other.unlink(missing_ok=True)
