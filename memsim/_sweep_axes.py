"""The axes of a sweep: which names may vary, over which values, written one by one or as ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from memsim._gpu_files import keys, pattern_of, suggestion
from memsim._gpu_options import TEXT_KEYS
from memsim._option_list import AXES
from memsim._options import one_of
from memsim.errors import MemsimError
from memsim.units import ANY_UNITS, parse_quantity, quoted

ALGORITHM, TILE_AXIS = "algorithm", "tile"
_WORDS = (ALGORITHM, TILE_AXIS, "gpu", "dtype", "causal", "lse", "full", "inputs", "l2-state", "resources", "load-path",
          "grid-order", *TEXT_KEYS)  # fmt: skip
_TILE_SIDES = ("block-m", "block-n")
_TILE = re.compile(r"([0-9]+(?:Ki)?)x([0-9]+(?:Ki)?)")
_RIGHT = "give FROM:TO:xFACTOR or FROM:TO:+STEP, such as 32KiB:256KiB:x2"
_MOST_DIGITS = 40


@dataclass(frozen=True)
class Span:
    """Values from `start` to `stop`, both included, each the one before plus `step` or times `factor`.

    All are in base units; `unit` is the one that `start` was written in, and so are the texts. `count` is their
    number, known without making them.
    """

    start: Fraction
    count: int
    unit: str
    step: Fraction = Fraction(0)
    factor: Fraction = Fraction(1)

    def texts(self) -> Iterator[str]:
        value = self.start
        for _ in range(self.count):
            yield self.text(value)
            value = value * self.factor + self.step

    def text(self, value: Fraction) -> str:
        return f"{_decimal(value / ANY_UNITS[self.unit])}{self.unit}"


def axis_name(given: str) -> str:
    """The name of an axis as it is meant: underscores are dashes in options, not in a GPU's fields. Raises if there is
    no such axis."""
    name = given.replace("_", "-") if given.replace("_", "-") in AXES else given
    if name in AXES or name in (ALGORITHM, TILE_AXIS):
        return name
    known = keys().get(pattern_of(name))
    if "." not in name:
        raise MemsimError(f"there is no axis {quoted(name)}: {one_of(name, (ALGORITHM, TILE_AXIS, *AXES))}")
    if known is None:
        raise MemsimError(f"there is no axis {quoted(name)}: {suggestion(name)}")
    if known.children:
        raise MemsimError(f"{name} is more than one value: vary one of {', '.join(known.children)} in it.")
    return name


def options_set(axes: Collection[str]) -> set[str]:
    """The options and fields that axes give a value."""
    return {*axes, *(_TILE_SIDES if TILE_AXIS in axes else ())}


def options_of(point: Mapping[str, str]) -> dict[str, str]:
    """The options, not GPU fields, that a point sets: tile=64x32 is block-m 64 and block-n 32."""
    options = {name: text for name, text in point.items() if name in AXES}
    if TILE_AXIS in point:
        options |= zip(_TILE_SIDES, tile_sides(point[TILE_AXIS]), strict=True)
    return options


def tile_sides(text: str) -> tuple[str, str]:
    """block-m and block-n of a value of the axis "tile". Raises if it is none."""
    match = _TILE.fullmatch(text)
    if match is None:
        raise MemsimError(f"tile is {quoted(text)}: give BLOCK_MxBLOCK_N, such as 64x32.")
    return match[1], match[2]


def read_values(name: str, texts: Sequence[str]) -> tuple[str | Span, ...]:
    """Values as written, ranges read and counted but not yet spelled out. Raises if there are none, or for a range
    that is none."""
    if not texts or "" in texts:
        raise MemsimError(f"{name} is varied over an empty value: give values, separated by single commas.")
    return tuple(_span(name, text) if ":" in text and name not in _WORDS else text for text in texts)


def count_of(values: Sequence[str | Span]) -> int:
    """How many values these are."""
    return sum(value.count if isinstance(value, Span) else 1 for value in values)


def spelled_out(values: Sequence[str | Span]) -> tuple[str, ...]:
    """All values as texts."""
    return tuple(text for value in values for text in (value.texts() if isinstance(value, Span) else (value,)))


def _span(name: str, text: str) -> Span:
    parts = text.split(":")
    if len(parts) != 3 or parts[2][:1] not in ("x", "+") or not all(parts) or len(parts[2]) < 2:
        raise MemsimError(f"{name} is {quoted(text)}, which is no range: {_RIGHT}.")
    start, unit = parse_quantity(parts[0], name)
    stop, _ = parse_quantity(parts[1], name)
    by, by_unit = parse_quantity(parts[2][1:], name)
    if stop < start:
        raise MemsimError(f"{name} is {quoted(text)}, which ends below its start: {_RIGHT}.")
    span = Span(start, 1, unit)
    if parts[2][0] == "+":
        if by <= 0:
            raise MemsimError(f"{name} is {quoted(text)}, whose step is zero: {_RIGHT}.")
        steps, rest = divmod(stop - start, by)
        if rest:
            raise _misses(name, text, parts[1], span, start + steps * by, start + (steps + 1) * by)
        return Span(start, int(steps) + 1, unit, step=by)
    if by <= 1 or by_unit or start <= 0:
        raise MemsimError(
            f"{name} is {quoted(text)}; a range by a factor needs a start above zero and a factor above one: {_RIGHT}."
        )
    value, count = start, 1
    while value < stop:
        value, before, count = value * by, value, count + 1
        if value > stop:
            raise _misses(name, text, parts[1], span, before, value)
        if len(str(value.numerator)) > _MOST_DIGITS or len(str(value.denominator)) > _MOST_DIGITS:
            raise MemsimError(f"{name} is {quoted(text)}, whose values have too many digits: give a rounder factor.")
    return Span(start, count, unit, factor=by)


def _misses(name: str, text: str, stop: str, span: Span, below: Fraction, above: Fraction) -> MemsimError:
    near = " or ".join(map(span.text, (below, above)))
    return MemsimError(f"{name} is {quoted(text)}, which does not come to {stop}: end it at {near}.")


def _decimal(value: Fraction) -> str:
    """A fraction whose denominator is made of twos and fives, written out in full."""
    places, scaled = 0, value
    while scaled.denominator != 1:
        places, scaled = places + 1, scaled * 10
    digits = str(scaled.numerator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits
