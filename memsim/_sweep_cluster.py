"""Workers of a Dask cluster, as a pool that takes points. Needs the extra `sweeps`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from memsim._sweep_points import Done, Point, run_points, simulator_digest
from memsim.errors import MemsimError
from memsim.units import quoted

_CONNECT_S = 5.0
_LOOK_S = 2.0


class Cluster:
    """The workers of the scheduler at an address. It gives what a dead worker had to others itself, a few times.

    `dead` are the errors of a call whose workers died, or that was lost with the connection.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ModuleNotFoundError:
            raise MemsimError(
                "a cluster needs Dask's distributed, which is not installed: pip install 'memsim[sweeps]'."
            ) from None
        self._distributed: Any = distributed
        self._address = address
        self.dead: tuple[type[BaseException], ...] = (distributed.KilledWorker, CancelledError)
        self._client: Any = None
        self._executor: Any = None
        self._slots, self._asked_at = 1, -math.inf
        self._logged: dict[str, int] = {}

    def open(self) -> None:
        """Connect. Raises `MemsimError` within some seconds: no scheduler, no workers, or none with this memsim."""
        self._be_quiet()
        try:
            self._connect()
            with warnings.catch_warnings():
                # Of versions that differ there; whether memsim is the same is asked below.
                warnings.simplefilter("ignore")
                self._client = self._distributed.Client(self._address, timeout=_CONNECT_S, set_as_default=False)
                self._ask_workers()
                self._executor = self._client.get_executor(pure=False)
        except BaseException:
            self.close()
            raise

    def slots(self) -> int:
        """Threads of all workers, which may come and go."""
        if time.monotonic() - self._asked_at > _LOOK_S:
            with contextlib.suppress(OSError):
                self._slots = sum(self._client.nthreads().values())
            self._asked_at = time.monotonic()
        return max(1, self._slots)

    def submit(self, pickled: bytes, points: Sequence[Point]) -> Future[Done]:
        future: Future[Done] = self._executor.submit(run_points, pickled, points)
        return future

    def look_after(self, died: bool) -> None:
        """Raises `MemsimError` if the scheduler is gone for longer than a moment."""
        since = time.monotonic()
        while self._client.status != "running":
            if time.monotonic() - since > _CONNECT_S or self._client.status == "closed":
                raise self._refused("whose scheduler is gone: start it again")
            time.sleep(0.1)

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(timeout=_CONNECT_S)
        for name, level in self._logged.items():
            logging.getLogger(name).setLevel(level)

    def _connect(self) -> None:
        """See that a scheduler answers. A client of anything else takes long to find out, and to end."""

        async def identity() -> Any:
            async with self._distributed.rpc(self._address, timeout=_CONNECT_S) as scheduler:
                return await asyncio.wait_for(scheduler.identity(), _CONNECT_S)

        try:
            # In a thread of its own, because this one may have a loop that runs.
            with ThreadPoolExecutor(1) as thread:
                found = thread.submit(asyncio.run, identity()).result()
        except Exception as error:
            # What is no scheduler answers with bytes that mean anything.
            reason = _reason(error) if isinstance(error, (OSError, ValueError)) else "something else does"
            raise self._refused(f"where no Dask scheduler answers ({reason}): start one there") from None
        if found.get("type") != "Scheduler":
            raise self._refused("which is no scheduler: give the scheduler's address")

    def _ask_workers(self) -> None:
        """See that there are workers, and that they find what we would."""
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_S)
        except (TimeoutError, self._distributed.TimeoutError):
            raise self._refused("which has no workers: start some") from None
        try:
            found = set(self._client.run(simulator_digest).values())
        except Exception as error:
            raise self._refused(f"whose workers cannot run memsim ({_reason(error)}): install it on them") from None
        if found != {simulator_digest()}:
            raise self._refused("whose workers have another memsim: install this one on them")

    def _be_quiet(self) -> None:
        """It logs lost connections in many lines; what matters of them is said here in one."""
        for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "distributed"]:
            logger = logging.getLogger(name)
            self._logged[name] = logger.level
            logger.setLevel(logging.CRITICAL)

    def _refused(self, what: str) -> MemsimError:
        return MemsimError(f"cluster is {quoted(self._address)}, {what}, or give --jobs instead.")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
