"""Instruction streams as bytes: four for an instruction, so that thousands of kernels' can be kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from memsim.stream import Instruction, Segment, Stream

# Bits of each field of an instruction, in its order; the lowest first.
_WIDTHS = (5, 8, 2, 4, 3, 3, 6)
_SHIFTS = tuple(sum(_WIDTHS[:n]) for n in range(len(_WIDTHS)))


def pack(instructions: Sequence[Instruction]) -> bytes:
    """The instructions, four bytes each. Raises `ValueError` where a figure has no room."""
    fields = np.array(instructions, dtype=np.int64).reshape(-1, len(_WIDTHS))
    if ((fields < 0) | (fields >> np.array(_WIDTHS) != 0)).any():
        raise ValueError(f"an instruction has fields beyond {_WIDTHS} bits")
    return bytes((fields << np.array(_SHIFTS)).sum(axis=1).astype("<u4").data)


def unpack(packed: bytes) -> tuple[Instruction, ...]:
    """The instructions that `pack` packed."""
    words = np.frombuffer(packed, dtype="<u4").astype(np.int64)[:, None]
    fields: list[Any] = (words >> np.array(_SHIFTS) & (1 << np.array(_WIDTHS)) - 1).tolist()
    return tuple(map(tuple, fields))


def stream_from(segments: Iterable[Segment]) -> Stream:
    """A stream by the digest of what is in it, so that equal ones have equal names."""
    parts = tuple(segments)
    digest = hashlib.blake2b(digest_size=12)
    for segment in parts:
        packed = pack(segment.instructions)
        digest.update(bytes([segment.loop]) + len(packed).to_bytes(4, "little") + packed)
    return Stream(digest.hexdigest(), parts)
