"""The errors a caller can cause, each carrying plain sentences."""

from __future__ import annotations

from collections.abc import Iterable


class MemsimError(ValueError):
    """Bad input. `faults` holds one plain sentence per fault: what is wrong and what would be right."""

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__(" ".join(self.faults))


class TileDoesNotFit(MemsimError):
    """A tile that was asked for needs more SRAM, registers or warps than a block may have."""


class OutOfMemory(MemsimError):
    """The tensors of a run do not fit in HBM; the sentence spells out the sum."""
