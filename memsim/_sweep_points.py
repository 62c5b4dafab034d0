"""Points of a sweep, each from its values to its row; here, or in a process that knows nothing else of the sweep."""

from __future__ import annotations

import functools
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memsim._kept_replays import KeptReplays
from memsim._options import Machines, Request, read_request
from memsim._sources import sources_digest
from memsim._sweep_axes import options_of
from memsim._sweep_table import COLUMNS, SweepRow
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.result import Result

Point = dict[str, str]
Values = tuple[object, ...]
"""A row without its point: the values of `COLUMNS`."""
Done = tuple[str, list[tuple[Values, float]]]

# What says nothing of a row's figures.
_WITHOUT = ("_cli_", "_command_", "_plot", "_report_", "_tune_")
_WITHOUT_MODULES = ("cli", "plot", "report", "tune")
_one_at_a_time = threading.Lock()
_KEPT = KeptReplays()
"""Of this process."""


@dataclass(frozen=True)
class Points:
    """What all points of a sweep share: texts as a request takes them, and the GPUs that they name, loaded."""

    algorithm: str
    options: Mapping[str, str]
    gpu_fields: Mapping[str, str]
    count_only: bool
    machines: Machines

    def row(self, point: Point, before: Callable[[Request], None] | None = None) -> SweepRow:
        """The row of a point. `before` is called with its request, if it makes one, before that is run."""
        found = self.outcome(point, before)
        return _ok(point, found) if isinstance(found, Result) else found

    def request(self, point: Point) -> Request:
        """The request of a point. Raises `MemsimError` for values that cannot be, or do not go together."""
        return read_request(
            {**self.options, **options_of(point)},
            {**self.gpu_fields, **{name: text for name, text in point.items() if "." in name}},
            algorithm=point.get("algorithm", self.algorithm), count_only=self.count_only, machines=self.machines,
        )  # fmt: skip

    def outcome(self, point: Point, before: Callable[[Request], None] | None = None) -> Result | SweepRow:
        """The whole result of a point, or the row that says why there is none."""
        try:
            request = self.request(point)
            if before is not None:
                before(request)
            return request.simulate(kept=_KEPT)
        except TileDoesNotFit as error:
            return SweepRow(point, "does-not-fit", str(error))
        except OutOfMemory as error:
            return SweepRow(point, "out-of-memory", str(error))
        except MemsimError as error:
            return SweepRow(point, "refused", str(error))


def values_of(row: SweepRow) -> Values:
    """A row's values of `COLUMNS`."""
    return tuple(getattr(row, name) for name in COLUMNS)


def row_of(point: Point, values: Values) -> SweepRow:
    """The row of a point that has these values."""
    return SweepRow(point, **dict(zip(COLUMNS, values, strict=True)))  # type: ignore[arg-type]


@functools.cache
def simulator_digest() -> str:
    """A name for the sources that rows depend on. Rows of two simulators do not go together."""
    return sources_digest(_WITHOUT, _WITHOUT_MODULES)[:16]


def run_points(pickled: bytes, points: Sequence[Point]) -> Done:
    """The simulator's digest, and for each point its row's values and the seconds that it took; `pickled` is a
    `Points`. Threads of one process take turns."""
    shared = _unpickled(pickled)
    done = []
    with _one_at_a_time:
        for point in points:
            since = time.perf_counter()
            row = shared.row(point)
            done.append((values_of(row), time.perf_counter() - since))
    return simulator_digest(), done


@functools.lru_cache(maxsize=2)
def _unpickled(pickled: bytes) -> Points:
    """Kept, so that what one point finds out of a GPU serves the next."""
    points = pickle.loads(pickled)
    assert isinstance(points, Points)
    return points


def _ok(point: Point, result: Result) -> SweepRow:
    total = result.total
    return SweepRow(
        point,
        "ok",
        block_m=result.tile["block_m"],
        block_n=result.tile["block_n"],
        num_warps=result.tile["num_warps"],
        num_stages=result.tile["num_stages"],
        load_path=result.tile["load_path"],
        grid_order=result.tile["grid_order"],
        blocks_per_sm=min(launch.blocks_per_sm for launch in result.launches),
        sram_bytes=max(launch.sram_bytes for launch in result.launches),
        sram_fill_bytes=total.sram_fill_bytes,
        sram_store_bytes=total.sram_store_bytes,
        hbm_bytes=total.hbm_bytes,
        l2_hit_rate=total.l2_hit_rate,
        flops=total.flops,
        time_s=total.time_s,
        bound=total.bound,
        waiting_for_memory=total.waiting_for_memory,
        over_compulsory=total.over_compulsory,
        notes=result.notes,
    )
