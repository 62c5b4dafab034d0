"""Processes that compile, kept for as long as there is something to compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import Empty, SimpleQueue
from typing import IO, Any

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from memsim_kernels._probe_worker import main; main()"
)  # fmt: skip


class Worker:
    """One process of `memsim_kernels._probe_worker`."""

    def __init__(self) -> None:
        # Read by triton when it is imported: under it nothing compiles.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        # Triton 3.9 warns where this is unset; 1 is what it then takes.
        environment.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=environment, encoding="utf-8",
        )  # fmt: skip

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; where the process ends instead, an answer that says so."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        return dict(json.loads(line)) if line.endswith("\n") else {"error": self._last_words(), "ended": True}

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                continue

    def _last_words(self) -> str:
        self._process.wait()
        self._said.seek(0)
        words = self._said.read().decode(errors="replace")
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        # Of an assertion the first line says what it was; a traceback's last one does.
        telling = next((line for line in lines if "Assertion" in line), lines[-1] if lines else "")
        return f"the compiler ended with code {self._process.returncode}" + (f": {telling}" if telling else "")


def answers(requests: Sequence[Mapping[str, Any]], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the request, its answer) as they come, from so many processes at once."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers: list[Worker] = []

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            worker = idle.get_nowait()
        except Empty:
            worker = Worker()
            workers.append(worker)
        found = worker.ask(request)
        if "ended" not in found:
            idle.put(worker)
        return found

    threads = ThreadPoolExecutor(max(1, min(jobs, len(requests))))
    try:
        numbers = {threads.submit(answer, request): n for n, request in enumerate(requests)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        threads.shutdown()
