"""One figure as ncu prints it: thousands separators, units, and how much its digits leave open."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from memsim.columns import Column
from memsim.errors import MemsimError
from memsim.units import LARGEST, quoted

# ncu scales in steps of 1000, and names what a figure is a rate of after a slash ("Kbyte/block").
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12}
_BYTES = {f"{prefix}{byte}": power for prefix, power in _PREFIXES.items() for byte in ("byte", "B")}
_SECONDS = {
    "second": 0, "s": 0, "msecond": -3, "ms": -3, "usecond": -6, "us": -6, "µs": -6, "nsecond": -9, "ns": -9,
}  # fmt: skip
_NOUNS = {
    "warp instructions": "inst", "cycles": "cycle", "blocks": "block", "registers a thread": "register",
    "sectors": "sector",
}  # fmt: skip
_PLAIN = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?")
_GROUPED = re.compile(r"[0-9]{1,3}(,[0-9]{3}){1,12}(\.[0-9]{1,40})?")
_MISSING = ("", "n/a", "(!) n/a", "nan", "-nan", "inf", "-inf")


@dataclass(frozen=True)
class Cell:
    """One metric of one launch as printed: its text, its unit, and its line in the file."""

    text: str
    unit: str
    line: int


def read_cell(cell: Cell, what: str, column: Column) -> tuple[int | float, float]:
    """(the figure in the column's unit, how far off it may be for its few digits); `what` names it in a sentence.
    Of a column of `sectors` the figure is their number.

    A count printed whole is off by nothing; "131.07 Kbyte" is 131,070 B, off by up to 5 B.
    """
    what = f"line {cell.line}: {what}"
    if cell.text.lower() in _MISSING:
        raise MemsimError(f"{what} is {quoted(cell.text)}, so it was not measured: profile again, or leave it out.")
    if not (_PLAIN.fullmatch(cell.text) or _GROUPED.fullmatch(cell.text)):
        raise MemsimError(f"{what} is {quoted(cell.text)}; give a number as ncu prints it, such as 1,093,143,552.")
    power = _power(cell.unit, column)
    if power is None:
        raise MemsimError(f"{what} has the unit {quoted(cell.unit)}, which is none for {_unit(column)}.")
    printed = Decimal(cell.text.replace(",", ""))
    value = printed.scaleb(power)
    if value > LARGEST:
        raise MemsimError(f"{what} is {quoted(cell.text)}, which is too large: the most is {LARGEST}.")
    if column.kind != "count":
        return float(value), 0.0
    exponent = printed.as_tuple().exponent
    assert isinstance(exponent, int)
    off = Decimal(5).scaleb(exponent + power - 1)
    if value != value.to_integral_value() and off < Decimal("0.5"):
        raise MemsimError(f"{what} is {quoted(cell.text)}; it must be a whole number.")
    return int(value.to_integral_value()), float(off) if off > Decimal("0.5") else 0.0


def _unit(column: Column) -> str:
    return "sectors" if column.sectors else column.unit


def _power(unit: str, column: Column) -> int | None:
    """The power of ten that a printed unit stands for, beside the column's; None if it is no unit of that kind."""
    name = unit.split("/")[0].strip()
    wanted = _unit(column)
    if wanted == "s":
        return _SECONDS.get(name)
    if wanted.startswith("B"):
        return _BYTES.get(name)
    noun = _NOUNS[wanted]
    return 0 if not name else _PREFIXES.get(name.removesuffix(noun)) if name.endswith(noun) else None
