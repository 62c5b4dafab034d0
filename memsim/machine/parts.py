"""The parts of the model that a replay can leave out, to see what each is worth."""

from __future__ import annotations

from collections.abc import Mapping

from memsim.errors import MemsimError

L2, CONTENTION, BUFFER_REUSE, DEPENDENCES = "l2", "contention", "buffer-reuse", "dependences"
PIPES, L1, BLOCK_START, COLD_MISSES = "pipes", "l1", "block-start", "cold-misses"

PARTS: Mapping[str, str] = {
    L2: "the L2: every fill is then an HBM read",
    CONTENTION: "what the resident blocks of an SM share: each then has pipes of its own",
    BUFFER_REUSE: "waiting for copies and for free buffers: tiles are then always there",
    DEPENDENCES: "the compiler's waits: instructions then issue as soon as their pipe is free",
    PIPES: "instructions: the replay then goes by the trace",
    L1: "the L1 for plain loads",
    BLOCK_START: "what a block takes to start and to drain",
    COLD_MISSES: "the pace of blocks whose tiles come from HBM: it is then that of tiles in the L2",
}
"""Every part by name: what is left out."""


def check_parts(names: frozenset[str]) -> None:
    """Raise `MemsimError` for a name that no part has."""
    if unknown := sorted(names - PARTS.keys()):
        raise MemsimError(f"{name!r} is no part of the model; give any of {', '.join(PARTS)}." for name in unknown)
