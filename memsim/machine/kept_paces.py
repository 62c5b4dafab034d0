"""Paces kept on disk, so that a second process need not run the core again.

Those of the default comparison ship with memsim (`data/paces.txt`; `python benchmarks/shipped_paces.py --write` makes
it). Others are kept by who finds them, in a file of lines in the cache folder, named by the model that found them. A
line is added in one write, so processes may share the file; one that is damaged counts as absent. Where the folder
cannot be written nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import cache, lru_cache
from pathlib import Path

from memsim import stream as stream_module
from memsim._cache import cache_folder, forget_oldest
from memsim.machine import core as core_module
from memsim.machine import pace as pace_module
from memsim.machine import steps, sub_partition
from memsim.machine.pace import Pace, pace_of
from memsim.machine.steps import PIPES, WAITS, CoreTimes, MemoryTimes
from memsim.stream import Stream

# Some ten thousand paces; a file that has grown larger is begun anew.
_MOST_BYTES = 4 << 20
_MOST_FILES = 4
SHIPPED = Path(__file__).parents[1] / "data" / "paces.txt"
"""The file of those that ship: the model's name, then a line for each pace, as where others are kept."""
_KEY_DIGITS, _CHECK_DIGITS = 32, 16


def kept_pace_of(
    stream: Stream, resident: int, warps: int, core: CoreTimes, memory: MemoryTimes, box_bytes: int, groups: int = 1,
    further_trips: tuple[int, ...] = (),
) -> Pace:  # fmt: skip
    """`pace_of` the same, from disk if it is there."""
    arguments = (resident, warps, core, memory, box_bytes, groups, further_trips)
    try:
        kept = _kept(cache_folder() / f"paces-{model_digest()}.txt")
    except (RuntimeError, OSError):
        # There is no home either, or no source to name the model by.
        return pace_of(stream, *arguments)
    facts = repr((_content(stream), *arguments))
    key = _digest(facts.encode(), _KEY_DIGITS)
    found = _shipped().find(key) or kept.find(key)
    if found is None:
        found = pace_of(stream, *arguments)
        kept.add(key, found)
    return found


@cache
def model_digest() -> str:
    """A name for what a pace depends on beside its arguments: the sources."""
    sources = (core_module, pace_module, steps, sub_partition, stream_module)
    texts = [Path(str(module.__file__)).read_bytes() for module in sources]
    return _digest(b"\0".join(texts), _CHECK_DIGITS)


@cache
def _shipped() -> _Kept:
    """The paces that ship with memsim, none if they are of another model."""
    kept = _Kept(SHIPPED)
    return kept if kept.names(model_digest()) else _Kept(SHIPPED.with_name("none"))


@lru_cache(maxsize=1024)
def _content(stream: Stream) -> str:
    return _digest(repr(stream.segments).encode(), _KEY_DIGITS)


def _digest(text: bytes, digits: int) -> str:
    return hashlib.sha256(text).hexdigest()[:digits]


class _Kept:
    """The paces of a file as it was at first, and those added since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, bytes] = {}
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                self._lines[line[:_KEY_DIGITS].decode("latin-1")] = line[_KEY_DIGITS + 1 :]

    def names(self, model: str) -> bool:
        """Whether the file says that it is of this model."""
        return model in self._lines

    def find(self, key: str) -> Pace | None:
        """The pace, if it is kept whole."""
        check, _, text = self._lines.get(key, b"").partition(b" ")
        if check.decode("latin-1") != _check(key, text):
            return None
        enter, leave, trips, *shares = json.loads(text)
        busy, waited = (dict(zip(names, of, strict=True)) for names, of in zip((PIPES, WAITS), shares, strict=True))
        return Pace(enter, leave, tuple(trips), busy, waited)

    def add(self, key: str, pace: Pace) -> None:
        """Keep a pace, if the folder takes it."""
        text = json.dumps([pace.enter, pace.exit, pace.trips, [*pace.busy.values()], [*pace.waited.values()]]).encode()
        line = f"{_check(key, text)} ".encode() + text
        with contextlib.suppress(OSError):
            if not self._path.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                forget_oldest(self._path, "paces-*.txt", _MOST_FILES)
            elif self._path.stat().st_size > _MOST_BYTES:
                self._path.unlink(missing_ok=True)
            with open(self._path, "ab", buffering=0) as file:
                # It begins a line even where one before was cut short.
                file.write(b"\n" + key.encode() + b" " + line + b"\n")
            self._lines[key] = line


@lru_cache(maxsize=4)
def _kept(path: Path) -> _Kept:
    return _Kept(path)


def _check(key: str, text: bytes) -> str:
    return _digest(key.encode() + text, _CHECK_DIGITS)
