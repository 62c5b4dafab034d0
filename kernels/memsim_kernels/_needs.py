"""What the commands share: what may not be installed, and how much runs at once."""

from __future__ import annotations

from importlib.util import find_spec

from memsim.errors import MemsimError
from memsim.units import parse_count

EXTRA = "pip install 'memsim[kernels]'"


def need_torch(command: str) -> None:
    """Raise a sentence naming the extra where torch or triton is missing."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MemsimError(f"{command} needs {' and '.join(missing)}, which {verb} not installed: {EXTRA}.")


def read_jobs(text: str) -> int:
    """How many processes or threads at once; at least one."""
    jobs = parse_count(text, "jobs", 1)
    if not 1 <= jobs <= 1024:
        raise MemsimError(f"jobs is {jobs}: give 1 to 1024.")
    return jobs
