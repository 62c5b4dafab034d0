"""The plan of a sweep: its axes and all that its points share, checked before anything is run."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memsim._gpu_files import table_of
from memsim._gpu_options import read_field
from memsim._option_list import AXES, PROBLEM
from memsim._options import Faults, Machines, Request, check_algorithm, check_text, check_value, settings_of
from memsim._sweep_axes import (
    ALGORITHM,
    TILE_AXIS,
    Span,
    axis_name,
    count_of,
    options_set,
    read_values,
    spelled_out,
    tile_sides,
)
from memsim._sweep_points import Point, Points, simulator_digest
from memsim._sweep_table import Provenance, SweepRow, SweepTable, as_text
from memsim.api import DEFAULT_GPU, INPUTS, L2_STATES
from memsim.errors import MemsimError
from memsim.gpu import SHORT_OPTIONS, Gpu

MOST_POINTS = 1_000_000
_MOST_FAULTS_OF_AN_AXIS = 20


class SweepPlan:
    """A sweep that was checked and can be run point by point, in any order.

    `options` are names of problem, tile, GPU or run options, `gpu_fields` dotted keys of a GPU; the axes are either,
    or "algorithm", or "tile". `machines` holds GPUs that are not to be looked up. Raises `MemsimError` with every fault
    of what all points share, and with every value of an axis that cannot be read; what else goes wrong at a point
    becomes its row.
    """

    def __init__(
        self, algorithm: str, axes: Sequence[tuple[str, Sequence[str]]], options: Mapping[str, str],
        gpu_fields: Mapping[str, str], *, count_only: bool = False, machines: Machines | None = None,
    ) -> None:  # fmt: skip
        self._machines = machines or Machines()
        self.algorithm = algorithm
        # In one order, so that a command says the same however its options are ordered.
        self.options = {name: options[name] for name in sorted(options, key=[*AXES].index)}
        self.gpu_fields = dict(sorted(gpu_fields.items()))
        self.count_only = count_only
        self.axes: dict[str, tuple[str, ...]] = {}
        faults = Faults()
        if not axes:
            faults.append("nothing is varied: give at least one axis with its values, such as seq-len=1Ki,2Ki.")
        values: dict[str, tuple[str | Span, ...]] = {}
        for name, texts in axes:
            faults.attempt(self._add_axis, name, tuple(texts), values)
        self.points = math.prod(map(count_of, values.values()))
        if self.points > MOST_POINTS:
            faults.append(f"the sweep has {self.points} points; take fewer values: at most {MOST_POINTS} points.")
        else:
            self.axes = {name: spelled_out(found) for name, found in values.items()}
            self._check_options(faults)
            self._check_axes(faults)
        faults.raise_any()

    @functools.cached_property
    def shared(self) -> Points:
        """What all points share, as another process takes it."""
        return Points(self.algorithm, self.options, self.gpu_fields, self.count_only, self._machines)

    def pickled(self) -> bytes:
        """`shared` for `run_points`."""
        return pickle.dumps(self.shared)

    def point(self, number: int) -> Point:
        """The values of a point by its number in the product, the last axis fastest."""
        texts = {}
        for name in reversed(self.axes):
            number, at = divmod(number, len(self.axes[name]))
            texts[name] = self.axes[name][at]
        return {name: texts[name] for name in self.axes}

    def row(self, number: int, before: Callable[[Request], None] | None = None) -> SweepRow:
        """Run one point. `before` is called with its request, if it makes one, before that is run."""
        return self.shared.row(self.point(number), before)

    def table(self, rows: Sequence[SweepRow], provenance: Provenance | None = None) -> SweepTable:
        """The table of the rows that there are."""
        made = provenance or self.provenance
        return SweepTable(self._shown(), self.axes, self.points, rows, self.count_only, self._gpu(), made)

    @functools.cached_property
    def gpus(self) -> dict[str, dict[str, Any]]:
        """The numbers of each GPU that the sweep names, by its name as given, before options change them."""
        return {name: table_of(self._machines.load(name)) for name in self._gpu_names()}

    @functools.cached_property
    def provenance(self) -> Provenance:
        """What makes the rows, if they are made here and now."""
        from memsim import __version__

        return Provenance(__version__, simulator_digest(), {name: _digest(gpu) for name, gpu in self.gpus.items()})

    def _shown(self) -> dict[str, str]:
        """What all points share: the problem's sizes by themselves, and not those that follow from an axis."""
        settings = {name.replace("_", "-"): as_text(value) for name, value in settings_of(self.options).items()}
        follow = {"heads": ["kv-heads"], "seq-len": ["seq-len-q", "seq-len-k"]}
        varied = {*self.axes, *(name for axis in self.axes for name in follow.get(axis, []))} - {*self.options}
        given = {name: text for name, text in self.options.items() if name not in PROBLEM or name == "scale"}
        run = {"lse": "false", "inputs": INPUTS[0], "l2-state": L2_STATES[0]}
        shared = {"algorithm": self.algorithm, "gpu": DEFAULT_GPU, **settings, **run}
        return {name: text for name, text in (shared | given | self.gpu_fields).items() if name not in varied}

    def _gpu(self) -> Gpu | None:
        """The machine with what all points change of it, or without where that is right together with an axis only."""
        if "gpu" in self.axes:
            return None
        name = self.options.get("gpu", DEFAULT_GPU)
        try:
            return self._machines.get(name, self._fixed_fields())
        except MemsimError:
            return self._machines.load(name)

    def _fixed_fields(self) -> dict[str, str]:
        return {name: text for name, text in self.options.items() if name in SHORT_OPTIONS} | self.gpu_fields

    def _gpu_names(self) -> tuple[str, ...]:
        return self.axes.get("gpu") or (self.options.get("gpu", DEFAULT_GPU),)

    def _add_axis(self, given: str, texts: tuple[str, ...], values: dict[str, tuple[str | Span, ...]]) -> None:
        name = axis_name(given)
        if name in values:
            raise MemsimError(f"{name} is varied twice: give all its values at once.")
        for other in values:
            if options_set([name]) & options_set([other]):
                raise MemsimError(f"{name} and {other} are both varied, and set the same: vary one of them.")
        for option in sorted(options_set([name]) & {*self.options, *self.gpu_fields}):
            other = "" if option == name else f"{option} "
            raise MemsimError(f"{name} is varied and {other}has a value too: give one of them.")
        values[name] = read_values(name, texts)

    def _check_options(self, faults: Faults) -> None:
        """What all points share is refused for what is wrong with it whatever the axes are."""
        if "algorithm" not in self.axes:
            faults.attempt(check_algorithm, self.algorithm)
        for name, text in self.options.items():
            if name == "gpu":
                faults.attempt(self._machines.load, text)
            else:
                faults.attempt(check_value, name, text)
        for name, text in self.gpu_fields.items():
            faults.attempt(read_field, name, text)
        # The GPU's fields may be right only together or on some GPU, so they are judged here where none varies.
        if not faults and not any(name == "gpu" or name in SHORT_OPTIONS or "." in name for name in self.axes):
            faults.attempt(self._machines.get, self.options.get("gpu", DEFAULT_GPU), self._fixed_fields())

    def _check_axes(self, faults: Faults) -> None:
        """A value that is none of its axis, such as a size that is no number, ends the sweep before it starts."""
        for name, values in self.axes.items():
            found = Faults()
            for text in values:
                if name == ALGORITHM:
                    found.attempt(check_algorithm, text)
                elif name == TILE_AXIS:
                    found.attempt(_check_tile, text)
                elif name == "gpu":
                    found.attempt(self._machines.load, text)
                elif name in AXES:
                    found.attempt(check_text, name, text)
                else:
                    found.attempt(read_field, name, text)
                if len(found) >= _MOST_FAULTS_OF_AN_AXIS:
                    break
            faults.extend(found)


def _check_tile(text: str) -> None:
    for option, side in zip(("block-m", "block-n"), tile_sides(text), strict=True):
        check_text(option, side)


def _digest(gpu: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(gpu, sort_keys=True).encode()).hexdigest()[:16]
