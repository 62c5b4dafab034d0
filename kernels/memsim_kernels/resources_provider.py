"""What `--resources compiled` asks: the launches of a problem, compiled for an architecture now.

It is the entry point "compiled" of the group "memsim.resources"; memsim loads it only when asked to.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsim._compiled import CompiledKernel
from memsim.attention import Attention
from memsim.tile import Tile
from memsim_kernels._plan import plan_calls


def compiled(
    algorithm: str, problem: Attention, tile: Tile, architecture: str, lse: bool
) -> Mapping[str, CompiledKernel]:
    """The compiled launches by name. Raises `MemsimError` where there is no kernel, or it does not compile."""
    from memsim_kernels.probe import compile_calls

    calls = plan_calls(algorithm, problem, tile, lse=lse)
    kernels = zip(calls, compile_calls(calls, architecture), strict=True)
    return {call.name: kernel.resources for call, kernel in kernels}
