"""What the benchmarks share: a heading, tables, times, and functions measured in a process of their own.

`python benchmarks/_bench.py FILE FUNCTION ARGUMENTS` is that process: it imports FILE, calls FUNCTION with the JSON
ARGUMENTS, and prints what it returned and cost as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_SAMPLE_S = 0.05
_MARK = "measured: "


@dataclass(frozen=True)
class Measured:
    """What a call returned (as JSON has it) and cost after the imports of its file: seconds on the clock, seconds of
    processor time, bytes of memory at the most (of the whole process, imports too) and those before the call."""

    value: Any
    seconds: float
    processor_s: float
    peak_bytes: int
    bytes_before: int


class Failed(Exception):
    """A process of its own ended with an error; the message is the last line that it said."""


class TookLonger(Exception):
    """A process of its own was stopped at its limit of time."""


def heading(question: str) -> None:
    """The first line of a benchmark's docstring, where and when it runs."""
    print(f"{question.strip().splitlines()[0]}")
    today = datetime.now(UTC).date().isoformat()
    print(f"{today}, Python {platform.python_version()}, {os.cpu_count()} cores of {_processor()}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]] = (), widths: Sequence[int] = ()) -> list[int]:
    """Print a table, or its head with these widths, which it returns: rows may come later, one by one, by `line`."""
    least = widths or [0] * len(columns)
    found = [max(map(len, [name, *(row[at] for row in rows), " " * least[at]])) for at, name in enumerate(columns)]
    print()
    line(columns, found)
    for row in rows:
        line(row, found)
    return found


def line(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one row: the first cell to the left, all others to the right."""
    padded = [f"{c:<{w}}" if not at else f"{c:>{w}}" for at, (c, w) in enumerate(zip(cells, widths, strict=True))]
    print("  ".join(padded).rstrip(), flush=True)


def least_processor_s(call: Callable[[], object], repeats: int = 3) -> float:
    """The least processor time of some calls of the same, in seconds."""
    times = []
    for _ in range(repeats):
        since = time.process_time()
        call()
        times.append(time.process_time() - since)
    return min(times)


def seconds(value: float) -> str:
    """A time in seconds or milliseconds, three digits."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def megabytes(size_bytes: float) -> str:
    """Bytes of memory in units of 10^6."""
    return f"{size_bytes / 1e6:,.0f} MB"


def of_its_own(
    file: str, function: str, *arguments: Any, environment: Mapping[str, str] | None = None,
    limit_s: float | None = None, python: str | Path = sys.executable,
) -> Measured:  # fmt: skip
    """Call a function of a file in a process of its own. Raises `Failed`, or `TookLonger` than `limit_s`."""
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    command = [str(python), str(Path(__file__)), str(Path(file).resolve()), function, json.dumps(arguments)]
    try:
        done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TookLonger(f"more than {limit_s:g} s") from error
    said = [text for text in done.stdout.splitlines() if text.startswith(_MARK)]
    if done.returncode or not said:
        raise Failed((done.stderr.strip().splitlines() or [f"it ended without a word ({done.returncode})."])[-1])
    return Measured(**json.loads(said[-1].removeprefix(_MARK)))


def peak_bytes() -> int:
    """The most memory that this process has had, its children left out."""
    try:
        # Not getrusage, which counts what the process was before it began this program.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(next(text.split()[1] for text in status.splitlines() if text.startswith("VmHWM")))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


class FamilyMemory:
    """The memory of this process and of all that descend from it, sampled while the context lasts.

    `peak_bytes` is the largest sum of resident memory; pages that processes share count in each. Where there is no
    /proc it is this process alone.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.processes = 1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> FamilyMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.peak_bytes = max(self.peak_bytes, peak_bytes())

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            family = _family(os.getpid())
            self.processes = max(self.processes, len(family))
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, family)))


def _family(process: int) -> list[int]:
    found = [process]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, children.read_text(encoding="ascii").split())
            except OSError:
                continue
    return found


def _resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _measure(file: str, function: str, arguments: str) -> None:
    # Python leaves it out where PYTHONSAFEPATH is set.
    sys.path.insert(0, str(Path(__file__).parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    before = peak_bytes()
    clock, processor = time.perf_counter(), time.process_time()
    value = getattr(module, function)(*json.loads(arguments))
    cost = {"seconds": time.perf_counter() - clock, "processor_s": time.process_time() - processor}
    print(_MARK + json.dumps({"value": value, **cost, "peak_bytes": peak_bytes(), "bytes_before": before}))


if __name__ == "__main__":
    _measure(*sys.argv[1:])
