"""Compiling many kernels side by side, before the first of them is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from triton.runtime.errors import OutOfResources

from memsim.errors import MemsimError


def warm(calls: Iterable[Callable[[], object]], jobs: int, done: Callable[[int, int], None] | None = None) -> None:
    """Run calls once each over `jobs` threads, so that whatever they compile is there afterwards.

    Triton's passes and ptxas leave the interpreter lock, so threads do compile side by side. A call that is refused
    or needs more than the GPU has is left out; `done` hears how many are finished, of how many.
    """
    todo = list(calls)

    def attempt(call: Callable[[], object]) -> None:
        with suppress(MemsimError, OutOfResources):
            call()

    with ThreadPoolExecutor(jobs) as pool:
        for finished, _ in enumerate(pool.map(attempt, todo), 1):
            if done is not None:
                done(finished, len(todo))
