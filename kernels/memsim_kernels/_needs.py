"""What a command needs that may not be installed."""

from __future__ import annotations

from importlib.util import find_spec

from memsim.errors import MemsimError

EXTRA = "pip install 'memsim[kernels]'"


def need_torch(command: str) -> None:
    """Raise a sentence naming the extra where torch or triton is missing."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MemsimError(f"{command} needs {' and '.join(missing)}, which {verb} not installed: {EXTRA}.")
