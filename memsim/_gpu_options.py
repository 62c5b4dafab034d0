"""A machine with single fields replaced, from Python values or from the text of command-line options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from memsim._gpu_files import Table, field_of, gpu_from_table, keys, named, suggestion, table_of, with_sources
from memsim._gpu_models import Gpu
from memsim.errors import MemsimError
from memsim.units import parse_bandwidth, parse_bytes, parse_count, parse_hertz, parse_number, parse_seconds

_Parse = Callable[[str, str, float], float]

_BY_SUFFIX: Mapping[str, _Parse] = {
    "_bytes_per_s": parse_bandwidth,
    "_bytes_per_clock": parse_number,
    "_per_clock": parse_number,
    "_bytes": parse_bytes,
    "_hz": parse_hertz,
    "_s": parse_seconds,
    # Constants that were fitted are no whole numbers.
    "calibrated": parse_number,
}
TEXT_KEYS = ("name", "architecture", "validation")
_GIVEN = "given by the caller in place of the file's"


@dataclass(frozen=True)
class ShortOption:
    """One short name for what is often changed: how its text is read and which fields follow from it.

    `changes` gets the machine's table with all other changes made, for what depends on them. `value` is what help
    calls its text.
    """

    parse: Callable[[str, str], Any]
    changes: Callable[[Table, Any], Mapping[str, Any]]
    help: str
    value: str


def _field(key: str, parse: _Parse, text: str, value: str) -> ShortOption:
    return ShortOption(_reader(key, parse), lambda table, read: {key: read}, text, value)


def _reader(key: str, parse: _Parse) -> Callable[[str, str], float]:
    return lambda text, name: parse(text, name, keys()[key].least)


def _l2_size(text: str, name: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(parse_bytes(text, name, keys()["l2.capacity_bytes"].least))
    except MemsimError as error:
        raise MemsimError(
            f"{fault.removesuffix('.')}; or none, for a machine without one." for fault in error.faults
        ) from None


def _l2(table: Table, capacity_bytes: int | None) -> Mapping[str, Any]:
    if capacity_bytes is None:
        return {"l2": None}
    if "l2" not in table:
        raise MemsimError(
            f"l2 is {capacity_bytes} B, but {table['name']} has none whose bandwidth and latency it could have: take a "
            "GPU that has an L2, or set l2.capacity_bytes, l2.bandwidth_bytes_per_s and l2.latency_s."
        )
    changes = {"l2.capacity_bytes": capacity_bytes}
    limit = table["l2"].get("dirty_limit_bytes")
    # What it keeps dirty cannot be more than it holds.
    return changes if limit is None or limit <= capacity_bytes else changes | {"l2.dirty_limit_bytes": capacity_bytes}


def _clock(table: Table, clock_hz: float) -> Mapping[str, Any]:
    """The clock, and those that were measured: what is given holds whatever runs."""
    measured = ("calibrated.clock_hz", "calibrated.idle_tensor_clock_hz") if "calibrated" in table else ()
    return dict.fromkeys(("sm.clock_hz", *measured), clock_hz)


def _hbm_latency(table: Table, latency_s: float) -> Mapping[str, Any]:
    """The latency, and what was fitted of it, longer or shorter by as much."""
    fitted = table.get("calibrated")
    if fitted is None:
        return {"hbm.latency_s": latency_s}
    more = (latency_s - table["hbm"]["latency_s"]) * fitted["clock_hz"]
    cycles = {name: max(0.0, fitted[name] + more) for name in ("hbm_copy_cycles", "load_cycles")}
    return {"hbm.latency_s": latency_s} | {f"calibrated.{name}": value for name, value in cycles.items()}


def _sram(table: Table, capacity_bytes: int) -> Mapping[str, Any]:
    reserved = table["sm"]["sram"]["reserved_per_block_bytes"]
    if isinstance(reserved, int) and capacity_bytes <= reserved:
        raise MemsimError(
            f"sram is {capacity_bytes} B, but must be more than the {reserved} B that a block has reserved."
        )
    return {"sm.sram.capacity_bytes": capacity_bytes, "sm.sram.block_limit_bytes": capacity_bytes - reserved}


def _sram_bandwidth(table: Table, bytes_per_s: float) -> Mapping[str, Any]:
    sm_clocks_per_s = table["sm"]["count"] * table["sm"]["clock_hz"]
    # A count or a clock of zero has a sentence of its own.
    return {"sm.sram.bandwidth_bytes_per_clock": bytes_per_s / sm_clocks_per_s} if sm_clocks_per_s else {}


SHORT_OPTIONS: Mapping[str, ShortOption] = {
    "hbm-capacity": _field("hbm.capacity_bytes", parse_bytes, "size of HBM, such as 24GB", "SIZE"),
    "hbm-bandwidth": _field("hbm.bandwidth_bytes_per_s", parse_bandwidth, "bandwidth of HBM, such as 2TB/s", "RATE"),
    "hbm-latency": ShortOption(
        _reader("hbm.latency_s", parse_seconds), _hbm_latency, "latency of HBM, such as 600ns", "TIME"
    ),
    "l2": ShortOption(_l2_size, _l2, "size of the L2, such as 30MiB, or none to do without", "SIZE|none"),
    "sms": _field("sm.count", parse_count, "number of SMs", "N"),
    "clock": ShortOption(
        _reader("sm.clock_hz", parse_hertz), _clock, "clock of the SMs, whatever runs, such as 1.7GHz", "CLOCK"
    ),
    "sram": ShortOption(
        _reader("sm.sram.capacity_bytes", parse_bytes), _sram,
        "SRAM of one SM, such as 96KiB; a block may use all of it but what is reserved", "SIZE",
    ),
    "sram-bandwidth": ShortOption(
        _reader("sm.sram.bandwidth_bytes_per_clock", parse_bandwidth), _sram_bandwidth,
        "SRAM bandwidth of all SMs together, such as 20TB/s", "RATE",
    ),
    "launch-overhead": _field("launch.overhead_s", parse_seconds, "time that a launch costs, such as 4us", "TIME"),
    "host-bandwidth": _field(
        "host.bandwidth_bytes_per_s", parse_bandwidth, "bandwidth of the host link, such as 50GB/s", "RATE"
    ),
}  # fmt: skip
"""The short names, without the leading dashes."""

_LAST = ("hbm-latency", "sram", "sram-bandwidth")  # they follow from fields that other options may set


def override(gpu: Gpu, changes: Mapping[str, Any]) -> Gpu:
    """`gpu` with the fields under these dotted keys replaced, checked like a file.

    None removes what may be absent: {"l2": None}. The source of a replaced field says that the caller gave it.
    Raises `MemsimError` with one sentence per fault.
    """
    table = table_of(gpu)
    _replace(table, changes)
    return _checked(gpu, table, changes)


def apply_options(gpu: Gpu, options: Mapping[str, str]) -> Gpu:
    """`gpu` with options applied: short names of `SHORT_OPTIONS` or dotted keys, each with its value as text.

    A dotted key takes the units of its suffix: sizes for `_bytes`, times for `_s`, and so on; "none" removes what may
    be absent. Raises `MemsimError` with one sentence per fault.
    """
    faults: list[str] = []
    short: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for name, text in options.items():
        try:
            if name in SHORT_OPTIONS:
                short[name] = SHORT_OPTIONS[name].parse(text, name)
            else:
                changes[name] = read_field(name, text)
        except MemsimError as error:
            faults += error.faults
    if faults:
        raise MemsimError(faults)
    table = table_of(gpu)
    _replace(table, changes)
    for name in sorted(short, key=lambda name: name in _LAST):
        follows = SHORT_OPTIONS[name].changes(table, short[name])
        faults += [f"{name} sets {key}, which is given too: give one of them." for key in follows if key in changes]
        _replace(table, follows)
        changes |= follows
    if faults:
        raise MemsimError(faults)
    return _checked(gpu, table, changes)


def read_field(key: str, text: str) -> Any:
    """The value that `text` means for the field at `key`. Raises if it means none, whatever the machine."""
    known = field_of(key)
    if known is None:
        near = [] if "." in key else get_close_matches(key[:100], SHORT_OPTIONS, 1, 0.7)
        raise MemsimError(
            f"{named(key)} is not a field of a GPU: {f'did you mean {near[0]}?' if near else suggestion(key)}"
        )
    if text == "none" and not known.required:
        return None
    if key in TEXT_KEYS:
        return text
    if known.children:
        raise MemsimError(f"{key} is more than one value: set one of {', '.join(known.children)} in it.")
    table, _, name = key.rpartition(".")
    for suffix, parse in _BY_SUFFIX.items():
        if name.endswith(suffix) or table.endswith(suffix):
            return parse(text, key, known.least)
    return parse_count(text, key, known.least)


def _replace(table: Table, changes: Mapping[str, Any]) -> None:
    """Sets the fields in `table`, whatever their values: `_checked` judges those."""
    faults: list[str] = []
    for key, value in changes.items():
        *path, name = key.split(".")
        if field_of(key) is None:
            faults.append(f"{named(key)} is not a field of a GPU: {suggestion(key)}")
            continue
        above = next((above for above in changes if key.startswith(f"{above}.")), None)
        if above is not None:
            faults.append(f"{above} and {key} are both given: give one of them.")
            continue
        place: Any = table
        for part in path:
            if part.isdecimal():
                if int(part[:9]) >= len(place):
                    faults.append(f"{key} is not there: the tiles are 0 to {len(place) - 1}.")
                    break
                place = place[int(part)]
            else:
                place = place.setdefault(part, {})
        else:
            if value is None:
                place.pop(name, None)
            else:
                place[name] = value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
    if faults:
        raise MemsimError(faults)


def _checked(gpu: Gpu, table: Table, changes: Mapping[str, Any]) -> Gpu:
    changed = gpu_from_table(table)
    given = {"tiles" if key.startswith("tiles.") else key: value for key, value in changes.items()}
    kept = {
        key: source
        for key, source in gpu.sources.items()
        if not any(key == other or key.startswith(f"{other}.") for other in given)
    }
    said = {key: _GIVEN for key, value in given.items() if value is not None and key not in TEXT_KEYS}
    return with_sources(changed, kept | said)
