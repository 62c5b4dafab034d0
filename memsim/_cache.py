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
