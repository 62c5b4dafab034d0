"""The instruction streams that ship with memsim, memsim/data/streams.npz, by the keys of the table of compiled kernels.

A NumPy file of plain arrays: `keys` and `names` are text, one a line; `stream_of_key` says which stream a key has;
`segment_ends` how many segments there are up to the end of each stream, `instruction_ends` how many instructions up to
the end of each segment, `loops` which segments are loops. Of a million instructions some thousands differ:
`vocabulary` has those, `instructions` their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import IO

import numpy as np
from numpy.typing import NDArray

from memsim._stream_bytes import pack, unpack
from memsim.stream import Segment, Stream

Key = tuple[str, ...]
_SEPARATOR = "|"


@dataclass(frozen=True)
class StreamTable:
    """Streams by key; each is put together when it is asked for."""

    numbers: Mapping[Key, int]
    names: tuple[str, ...]
    segment_ends: NDArray[np.int32]
    instruction_ends: NDArray[np.int32]
    loops: NDArray[np.bool_]
    vocabulary: NDArray[np.uint32]
    instructions: NDArray[np.uint16]

    def get(self, key: Key) -> Stream | None:
        """The stream of a key, None if there is none."""
        number = self.numbers.get(key)
        if number is None:
            return None
        first = int(self.segment_ends[number - 1]) if number else 0
        segments = []
        for n in range(first, int(self.segment_ends[number])):
            start = int(self.instruction_ends[n - 1]) if n else 0
            words = self.vocabulary[self.instructions[start : int(self.instruction_ends[n])]]
            segments.append(Segment(bool(self.loops[n]), unpack(words.tobytes())))
        return Stream(self.names[number], tuple(segments))


def write_streams(file: IO[bytes], streams: Mapping[Key, Stream]) -> None:
    """Write streams by key, equal ones once. Raises `ValueError` for more than 65,536 instructions that differ."""
    distinct = list(dict.fromkeys(streams.values()))
    numbers = {stream: n for n, stream in enumerate(distinct)}
    segments = [segment for stream in distinct for segment in stream.segments]
    packed = b"".join(pack(segment.instructions) for segment in segments)
    vocabulary, numbered = np.unique(np.frombuffer(packed, dtype="<u4"), return_inverse=True)
    if len(vocabulary) > 2**16:
        raise ValueError(f"{len(vocabulary)} different instructions are more than {2**16}")
    np.savez_compressed(
        file,
        keys=_text(_SEPARATOR.join(key) for key in streams),
        names=_text(stream.name for stream in distinct),
        stream_of_key=np.array([numbers[stream] for stream in streams.values()], dtype=np.int32),
        segment_ends=np.cumsum([len(stream.segments) for stream in distinct], dtype=np.int32),
        instruction_ends=np.cumsum([len(segment.instructions) for segment in segments], dtype=np.int32),
        loops=np.array([segment.loop for segment in segments], dtype=np.bool_),
        vocabulary=vocabulary,
        instructions=numbered.astype("<u2"),
    )


def read_streams(file: IO[bytes]) -> StreamTable:
    """The streams that `write_streams` wrote."""
    with np.load(file, allow_pickle=False) as arrays:
        keys = [tuple(line.split(_SEPARATOR)) for line in _lines(arrays["keys"])]
        return StreamTable(
            dict(zip(keys, arrays["stream_of_key"].tolist(), strict=True)),
            tuple(_lines(arrays["names"])),
            arrays["segment_ends"],
            arrays["instruction_ends"],
            arrays["loops"],
            arrays["vocabulary"],
            arrays["instructions"],
        )


@lru_cache(maxsize=1)
def shipped_streams() -> StreamTable:
    """The streams that ship with memsim."""
    with files("memsim").joinpath("data/streams.npz").open("rb") as file:
        return read_streams(file)


@lru_cache(maxsize=64)
def stream_of_key(key: Key) -> Stream | None:
    """The shipped stream of a kernel, None if there is none."""
    return shipped_streams().get(key)


def _text(lines: Iterable[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def _lines(text: NDArray[np.uint8]) -> list[str]:
    return text.tobytes().decode().splitlines()
