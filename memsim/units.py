"""Quantities as people write them ("96KiB", "2TB/s", "600ns"), to base units and back.

Every parser takes the text and, optionally, the name of what it sets, with which its sentence then begins, and the
least that this may be, which is what a negative one is answered with. It accepts exactly the spellings of its table, is
exact where the result is a whole number, and raises `MemsimError` otherwise.
KiB is 1024 bytes, KB is 1000: "K" and "kb" are refused because they are read both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from memsim.errors import MemsimError

LARGEST = 2**62
"""No quantity may exceed this: it keeps counts within 64-bit integers, in memory and in JSON."""

BYTE_UNITS: Mapping[str, int] = {
    "": 1,
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
}
COUNT_UNITS: Mapping[str, int] = {"": 1, "Ki": 1024, "Mi": 1024**2}
BANDWIDTH_UNITS: Mapping[str, int] = {unit and f"{unit}/s": factor for unit, factor in BYTE_UNITS.items()}
SECOND_UNITS: Mapping[str, Fraction] = {
    "": Fraction(1),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "\N{MICRO SIGN}s": Fraction(1, 10**6),
    "\N{GREEK SMALL LETTER MU}s": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
    "ps": Fraction(1, 10**12),
}
HERTZ_UNITS: Mapping[str, int] = {"": 1, "Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
ANY_UNITS: Mapping[str, int | Fraction] = {
    **BYTE_UNITS, **COUNT_UNITS, **BANDWIDTH_UNITS, **SECOND_UNITS, **HERTZ_UNITS,
}  # fmt: skip
"""No unit means two things."""

_BYTES_RIGHT = (
    "a number followed by B, KiB, MiB, GiB or TiB (steps of 1024) or KB, MB, GB or TB (steps of 1000), "
    "or a plain number of bytes"
)
_BANDWIDTH_RIGHT = (
    "a number followed by B/s, KiB/s, MiB/s, GiB/s or TiB/s (steps of 1024) or KB/s, MB/s, GB/s or TB/s "
    "(steps of 1000), or a plain number of bytes per second"
)
_MOST = f"the most is {LARGEST} in base units, in at most 40 digits and with an exponent of at most 99"
_NUMBER = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?\s*(.*)", re.DOTALL)


def quoted(text: object) -> str:
    """`text` in double quotes, on one line and at most 60 characters long, fit to stand in a sentence."""
    plain = "".join(char if char.isprintable() else "?" for char in str(text)[:61])
    return f'"{plain[:59]}…"' if len(plain) > 60 else f'"{plain}"'


def parse_bytes(text: str, name: str = "The size", least: float = 0) -> int:
    """A size in bytes: "96KiB" is 98304, "2MB" is 2000000, "1.5MiB" is 1572864, "98304" is itself."""
    return _whole(text, name, BYTE_UNITS, _BYTES_RIGHT, least)


def parse_count(text: str, name: str = "The count", least: float = 0) -> int:
    """A number of elements or of parts: "128Ki" is 131072, "2Mi" is 2097152, "132" is itself."""
    right = "a number followed by Ki (1024) or Mi (1048576), or a plain whole number"
    return _whole(text, name, COUNT_UNITS, right, least)


def parse_bandwidth(text: str, name: str = "The bandwidth", least: float = 0) -> float:
    """A bandwidth in bytes per second: "2TB/s" is 2e12, "100GiB/s" is 107374182400, "936e9" is itself."""
    return float(_value(text, name, BANDWIDTH_UNITS, _BANDWIDTH_RIGHT, least))


def parse_seconds(text: str, name: str = "The time", least: float = 0) -> float:
    """A time in seconds: "600ns" is 6e-7, "3.8us" is 3.8e-6, "6e-7" is itself."""
    right = "a number followed by s, ms, us, ns or ps, or a plain number of seconds"
    return float(_value(text, name, SECOND_UNITS, right, least))


def parse_hertz(text: str, name: str = "The clock", least: float = 0) -> float:
    """A clock rate in hertz: "1.7GHz" is 1.7e9, "1410MHz" is 1.41e9, "1.7e9" is itself."""
    right = "a number followed by Hz, kHz, MHz or GHz, or a plain number of hertz"
    return float(_value(text, name, HERTZ_UNITS, right, least))


def parse_number(text: str, name: str = "The number", least: float = 0) -> float:
    """A number without a unit, such as a rate per clock: "128", "673.4"."""
    return float(_value(text, name, {"": 1}, "a plain number, without a unit", least))


def parse_quantity(text: str, name: str = "The quantity") -> tuple[Fraction, str]:
    """A number with any of these units: its exact value in base units, and the unit ("96KiB" is 98304 and "KiB")."""
    value = _value(text, name, ANY_UNITS, "a number, with a unit or without", 0)
    match = _NUMBER.fullmatch(text.strip())
    assert match is not None
    return value, match[4]


def format_bytes(size_bytes: float) -> str:
    """A size to three digits in steps of 1000 ("33.6 MB"); exact below 1000 bytes ("512 B")."""
    return _format(size_bytes, "B", "KMGT")


def format_rate(per_second: float, unit: str = "B/s") -> str:
    """A rate to three digits in steps of 1000: "4.80 TB/s", and with unit "FLOP/s" "989 TFLOP/s"."""
    return _format(per_second, unit, "KMGT")


def format_count(count: float, unit: str = "") -> str:
    """A count in full up to 999,999 ("131,072"), beyond that to three digits ("68.7 G", "68.7 GFLOP")."""
    if abs(count) < 1_000_000:
        return f"{f'{count:,.0f}' if _is_whole(count) else _three_digits(count)} {unit}".rstrip()
    return _format(count, unit, "KMGTP")


def format_seconds(seconds: float) -> str:
    """A time to three digits: "3.80 µs", "1.23 ms", "0 s"."""
    if not seconds:
        return "0 s"
    for unit, per_second in (("ps", 1e12), ("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if float(f"{abs(seconds) * per_second:.3g}") < 1000:
            return f"{_three_digits(seconds * per_second)} {unit}"
    return f"{_three_digits(seconds)} s"


def _whole(text: str, name: str, units: Mapping[str, int], right: str, least: float) -> int:
    value = _value(text, name, units, right, least)
    if value.denominator != 1:
        raise MemsimError(f"{name} is {quoted(text)}, which does not come out whole: give {right}.")
    return value.numerator


def _value(
    text: str, name: str, units: Mapping[str, int] | Mapping[str, Fraction] | Mapping[str, int | Fraction], right: str,
    least: float,
) -> Fraction:  # fmt: skip
    """The exact value of `text` in base units, from 0 to `LARGEST`."""
    shown = quoted(text)
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise MemsimError(f"{name} is {shown}, which is not a finite number: give {right}.")
    sign, digits, exponent, unit = match.groups()
    if unit not in units:
        raise MemsimError(f"{name} is {shown}, which has an unknown unit {quoted(unit)}: give {right}.")
    # Checked before the number is built: "1e999999999" would have that many digits.
    if len(digits) > 40 or len((exponent or "").lstrip("+-0")) > 2:
        raise MemsimError(f"{name} is {shown}, which is too large or too finely written: {_MOST}.")
    value = Fraction(f"{digits}e{exponent or 0}") * Fraction(units[unit])
    if sign == "-" and value:
        raise MemsimError(f"{name} is {shown}, which is negative: give {_at_least(least)}.")
    if value > LARGEST:
        raise MemsimError(f"{name} is {shown}, which is too large: {_MOST}.")
    return value


def _at_least(least: float) -> str:
    if least >= 1:
        return f"{least:g} or more"
    return "more than zero" if least else "zero or more"


def _format(value: float, unit: str, prefixes: str) -> str:
    if abs(value) < 1000:
        shown = f"{value:.0f}" if _is_whole(value) else _three_digits(value)
        return f"{shown} {unit}".rstrip()
    scaled = float(value)
    for prefix in prefixes:
        scaled /= 1000
        # Rounded first, so that 999,999 comes out as 1.00 M and not as 1000 K.
        if float(f"{abs(scaled):.3g}") < 1000:
            return f"{_three_digits(scaled)} {prefix}{unit}"
    return f"{scaled:,.0f} {prefixes[-1]}{unit}"


def _is_whole(value: float) -> bool:
    return float(value).is_integer()


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    size = abs(rounded)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{rounded:.0f}" if size >= 100 else f"{rounded:.1f}" if size >= 10 else f"{rounded:.2f}"
