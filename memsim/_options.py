"""Options as text, from a command line or the axes of a sweep, to a checked request; all their faults in one error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from memsim._compiled import SOURCES
from memsim._kept_replays import KeptReplays
from memsim._option_list import AXES, PROBLEM, TILE
from memsim.api import DEFAULT_GPU, INPUTS, L2_STATES, compare, simulate, simulate_kept
from memsim.attention import DTYPE_BYTES, Attention
from memsim.errors import MemsimError
from memsim.gpu import SHORT_OPTIONS, Gpu, apply_options, load_gpu
from memsim.grid import ORDERS
from memsim.machine import Progress
from memsim.programs import PROGRAMS
from memsim.result import Comparison, Result
from memsim.tile import LOAD_PATHS, Tile
from memsim.units import parse_count, parse_number, quoted

T = TypeVar("T")


_COUNTS = tuple(name for name in PROBLEM if name not in ("dtype", "causal", "scale"))
_NAMED: Mapping[str, Iterable[str]] = {"load-path": LOAD_PATHS, "grid-order": ORDERS}
_MOST_CHANGED = 256
_SMALLEST = {"batch": 1, "seq_len_q": 1, "seq_len_k": 1, "head_dim": 1}


@dataclass(frozen=True)
class Request:
    """What is to be simulated. `gpu_name` is the name as given, `gpu` that machine with `gpu_options` applied."""

    algorithm: str
    problem: Attention
    gpu: Gpu
    gpu_name: str
    gpu_options: dict[str, str]
    tile: dict[str, Any]
    lse: bool = False
    inputs: str = "hbm"
    count_only: bool = False
    resources: str = "table"
    l2_state: str = "cold"
    full: bool = False

    def simulate(self, progress: Progress | None = None, kept: KeptReplays | None = None) -> Result:
        with _in_option_names():
            result = simulate_kept(kept, self.algorithm, self.problem, progress=progress, **self._arguments())
        return self._as_given(result)

    def compare(self, progress: Progress | None = None) -> Comparison:
        with _in_option_names():
            both = compare(self.problem, progress=progress, **self._arguments())
        return Comparison(self._as_given(both.naive), self._as_given(both.flash))

    def tile_operations(self, *algorithms: str) -> int:
        """How much there is to replay for these algorithms, counted."""
        with _in_option_names():
            counted = [simulate(name, self.problem, **self._arguments() | {"count_only": True}) for name in algorithms]
        return sum(result.total.tile_operations for result in counted)

    def _arguments(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "tile": self.tile or None,
            "lse": self.lse,
            "inputs": self.inputs,
            "resources": self.resources,
            "l2_state": self.l2_state,
            "full": self.full,
            "count_only": self.count_only,
        }

    def _as_given(self, result: Result) -> Result:
        return replace(result, gpu=self.gpu_name, gpu_options=self.gpu_options)


@dataclass
class Machines:
    """GPUs by name or path and options, each read once: a path may be a pipe, and a sweep asks often."""

    _loaded: dict[str, Gpu] = field(default_factory=dict)
    _changed: dict[tuple[str, tuple[tuple[str, str], ...]], Gpu] = field(default_factory=dict)

    def add(self, name: str, gpu: Gpu) -> None:
        """Have this be the machine of that name."""
        self._loaded[name] = gpu

    def load(self, name: str) -> Gpu:
        if name not in self._loaded:
            self._loaded[name] = load_gpu(name)
        return self._loaded[name]

    def get(self, name: str, options: Mapping[str, str]) -> Gpu:
        key = (name, tuple(options.items()))
        if key not in self._changed:
            if len(self._changed) >= _MOST_CHANGED:
                self._changed.clear()
            self._changed[key] = apply_options(self.load(name), options) if options else self.load(name)
        return self._changed[key]


class Faults(list[str]):
    """Sentences, collected so that all faults of an input are named together."""

    def attempt(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call returns, or None and its faults noted."""
        try:
            return call(*arguments)
        except MemsimError as error:
            self.extend(error.faults)
            return None

    def raise_any(self) -> None:
        """Raise all as one error, each once."""
        if self:
            raise MemsimError(dict.fromkeys(self))


_FIELD_NAMES = re.compile(
    r"(?<![\w.])(?:kv_heads|seq_len(?:_[qk])?|head_dim|block_[mn]|num_warps|num_stages|load_path|grid_order)(?!\w)"
)


def in_option_names(fault: str) -> str:
    """A sentence about fields ("block_m is 8; …") with the names that options have ("block-m is 8; …")."""
    return _FIELD_NAMES.sub(lambda name: name[0].replace("_", "-"), fault)


@contextmanager
def _in_option_names() -> Iterator[None]:
    try:
        yield
    except MemsimError as error:
        raise type(error)(map(in_option_names, error.faults)) from None


def read_request(
    options: Mapping[str, str],
    gpu_fields: Mapping[str, str],
    *,
    algorithm: str = "flash",
    count_only: bool = False,
    machines: Machines | None = None,
) -> Request:
    """The request that options (names of `AXES`) and GPU fields (dotted keys) make, each value as text.

    Raises `MemsimError` with the faults of all of them together.
    """
    faults = Faults()
    faults.attempt(check_algorithm, algorithm)
    problem = _read_problem(options, faults)
    tile = faults.attempt(read_tile, options)
    gpu_name = options.get("gpu", DEFAULT_GPU)
    gpu_options = {name: text for name, text in options.items() if name in SHORT_OPTIONS} | dict(gpu_fields)
    gpu = _read_gpu(gpu_name, gpu_options, machines or Machines(), faults)
    lse = faults.attempt(read_flag, options.get("lse", "false"), "lse")
    inputs = faults.attempt(_read_inputs, options.get("inputs", "hbm"))
    resources = faults.attempt(_read_resources, options.get("resources", "table"))
    full = faults.attempt(read_flag, options.get("full", "false"), "full")
    l2_state = faults.attempt(_read_l2_state, options.get("l2-state", "cold"))
    faults.raise_any()
    assert problem is not None and tile is not None and gpu is not None and lse is not None
    assert inputs is not None and resources is not None and l2_state is not None and full is not None
    return Request(
        algorithm, problem, gpu, gpu_name, gpu_options, tile, lse, inputs, count_only, resources, l2_state, full
    )


def check_algorithm(name: str) -> None:
    """Raise if there is no such algorithm."""
    if name not in PROGRAMS:
        raise MemsimError(f"there is no algorithm {quoted(name)}: choose one of {', '.join(PROGRAMS)}.")


def check_value(name: str, text: str) -> None:
    """Raise if the option could not have this value whatever the others are; a GPU option only if unreadable."""
    check_text(name, text)
    if name in TILE:
        read_tile({name: text})
    elif name in PROBLEM:
        faults = Faults()
        _read_problem({name: text}, faults, alone=True)
        faults.raise_any()


def check_text(name: str, text: str) -> None:
    """Raise if the text is no value of the option, whether usable or not; a GPU's name is not looked up."""
    if name in SHORT_OPTIONS:
        SHORT_OPTIONS[name].parse(text, name)
    elif name in ("lse", "causal", "full"):
        read_flag(text, name)
    elif name == "inputs":
        _read_inputs(text)
    elif name == "resources":
        _read_resources(text)
    elif name == "l2-state":
        _read_l2_state(text)
    elif name == "dtype":
        _read_dtype(text)
    elif name == "scale":
        _read_scale(text)
    elif name in _NAMED:
        _read_named(text, name)
    elif name in _COUNTS or name in TILE:
        _read_count(text, name)


def settings_of(options: Mapping[str, str]) -> dict[str, int | bool | str]:
    """The problem's fields but its scale, as readable options or else the defaults set them, together or not."""
    fields: dict[str, int | bool | str] = dict(vars(Attention()))
    del fields["scale"]
    given = {name.replace("-", "_"): _read_count(options[name], name) for name in _COUNTS if name in options}
    rows = given.pop("seq_len", fields["seq_len_q"])
    fields |= {"seq_len_q": rows, "seq_len_k": rows, "kv_heads": given.get("heads", fields["heads"])} | given
    fields |= {"causal": options.get("causal") == "true", "dtype": options.get("dtype", fields["dtype"])}
    return fields


def read_flag(text: str, name: str) -> bool:
    """A flag's value where it is written out."""
    if text not in ("true", "false"):
        raise MemsimError(f"{name} is {quoted(text)}: give true or false.")
    return text == "true"


def one_of(name: str, choices: Iterable[str]) -> str:
    """How a sentence goes on after naming an unknown name: the nearest, or all there are."""
    from difflib import get_close_matches

    choices = tuple(choices)
    near = get_close_matches(name[:100], choices, 1, 0.6)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(choices)}."


def _read_problem(options: Mapping[str, str], faults: Faults, *, alone: bool = False) -> Attention | None:
    """The problem. `alone` judges each option by itself: the fields that are not given take whatever suits."""
    before = len(faults)
    if {"seq-len", "seq-len-q", "seq-len-k"} <= set(options):
        faults.append("seq-len is given beside seq-len-q and seq-len-k, so it says nothing: give two at most.")
    values: dict[str, Any] = {}
    for name in _COUNTS:
        if name in options:
            values[name.replace("-", "_")] = faults.attempt(_read_count, options[name], name)
    if "dtype" in options:
        values["dtype"] = faults.attempt(_read_dtype, options["dtype"])
    if "causal" in options:
        values["causal"] = faults.attempt(read_flag, options["causal"], "causal")
    if "scale" in options:
        values["scale"] = faults.attempt(_read_scale, options["scale"])
    readable = {name: value for name, value in values.items() if value is not None}
    rows = readable.pop("seq_len", None)
    if rows is not None:
        readable = {"seq_len_q": rows, "seq_len_k": rows} | readable
    if alone or len(faults) > before:
        # The rest is judged all the same, but not against the default of what could not be read.
        readable = _SMALLEST | {"heads": _in_range(readable.get("kv_heads", 1))} | readable
    problem_faults = Faults()
    problem = problem_faults.attempt(lambda: Attention(**readable))
    # One value in two fields has one fault.
    followers = {"kv_heads is"} - {f"{name} is" for name in values}
    if rows is not None and not {"seq_len_q", "seq_len_k"} & set(values):
        followers.add("seq_len_k is")
        problem_faults[:] = [fault.replace("seq_len_q", "seq_len", 1) for fault in problem_faults]
    faults.extend(in_option_names(fault) for fault in problem_faults if not fault.startswith(tuple(followers)))
    return problem


def _in_range(heads: int) -> int:
    return heads if 1 <= heads <= 2**40 else 1


def _read_count(text: str, name: str) -> int:
    return parse_count(text, name, AXES[name].least)


def _read_dtype(text: str) -> str:
    if text not in DTYPE_BYTES:
        raise MemsimError(f"dtype is {quoted(text)}; it must be one of {', '.join(DTYPE_BYTES)}.")
    return text


def _read_named(text: str, name: str) -> str:
    if text not in _NAMED[name]:
        raise MemsimError(f"{name} is {quoted(text)}; it must be one of {', '.join(_NAMED[name])}.")
    return text


def read_tile(options: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the tile that the options set, each and together as they may be."""
    faults = Faults()
    tile: dict[str, Any] = {}
    for name in TILE:
        if name in options:
            read: Callable[[str, str], Any] = _read_named if name in _NAMED else _read_count
            value = faults.attempt(read, options[name], name)
            if value is not None:
                tile[name.replace("-", "_")] = value
    with _in_option_names():
        faults.attempt(lambda: Tile(**({"block_m": 16, "block_n": 16} | tile)))
        faults.raise_any()
    return tile


def _read_gpu(name: str, options: Mapping[str, str], machines: Machines, faults: Faults) -> Gpu | None:
    gpu = faults.attempt(machines.load, name)
    if gpu is not None:
        return faults.attempt(machines.get, name, options)
    for short in SHORT_OPTIONS.keys() & options.keys():
        faults.attempt(SHORT_OPTIONS[short].parse, options[short], short)
    return None


def _read_inputs(text: str) -> str:
    if text not in INPUTS:
        raise MemsimError(f"inputs is {quoted(text)}; it must be one of {', '.join(INPUTS)}.")
    return text


def _read_resources(text: str) -> str:
    if text not in SOURCES:
        raise MemsimError(f"resources is {quoted(text)}; it must be one of {', '.join(SOURCES)}.")
    return text


def _read_l2_state(text: str) -> str:
    if text not in L2_STATES:
        raise MemsimError(f"l2-state is {quoted(text)}; it must be one of {', '.join(L2_STATES)}.")
    return text


def _read_scale(text: str) -> float:
    """A number that may be negative."""
    stripped = text.strip()
    try:
        size = parse_number(stripped.removeprefix("-"), "scale")
    except MemsimError:
        raise MemsimError(f"scale is {quoted(text)}: give a finite number, such as 0.125 or -1.") from None
    return -size if stripped.startswith("-") else size
