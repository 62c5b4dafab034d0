"""The file of a calibrated machine: a machine file's own text with other constants in its `[calibrated]` tables."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from memsim.errors import MemsimError
from memsim.gpu import Calibrated
from memsim.units import quoted

_TABLES = ("calibrated", "calibrated.source")
_HEADER = re.compile(r"^\[+([a-z0-9_.]+)\]+[ \t]*(#.*)?$")
_VALIDATION = re.compile(r'^validation = "[a-z]+"', re.MULTILINE)


def calibrated_text(text: str, constants: Calibrated, sources: Mapping[str, str]) -> str:
    """The text of a machine file with these constants, and where they come from. The rest of it stays as it is, and so
    do the sources of constants of which nothing new is said."""
    said = {**tomllib.loads(text).get("calibrated", {}).get("source", {}), **sources}
    tables = {
        _TABLES[0]: [f"{name} = {_number(value)}" for name, value in constants.model_dump().items()],
        _TABLES[1]: [f'{name} = "{_escaped(said[name])}"' for name in constants.model_dump() if name in said],
    }
    lines: list[str] = []
    written: set[str] = set()
    skipping = False
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            skipping = header[1] in _TABLES
            if skipping:
                lines += [line, *tables[header[1]], ""]
                written.add(header[1])
                continue
        if not skipping:
            lines.append(line)
    for name in _TABLES:
        if name not in written:
            lines += ["", f"[{name}]", *tables[name]]
    return _VALIDATION.sub('validation = "measured"', "\n".join(lines).rstrip("\n") + "\n", count=1)


class MachineFile:
    """The place of a machine file, checked when made: it can be written. Raises `MemsimError` where it cannot."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._target = Path(path)
        if not path.endswith(".toml"):
            raise MemsimError(f"out is {quoted(path)}: give a file that ends in .toml.")
        # Beside it a new file is made each time, which then takes its name.
        try:
            temporary = self._temporary()
            temporary.write_text("", encoding="utf-8")
            temporary.unlink()
            if self._target.is_dir():
                raise IsADirectoryError(21, "is a directory")
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from None

    def write(self, text: str) -> None:
        """Write the text, whole or not at all."""
        temporary = self._temporary()
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._unwritable(error) from None

    def _temporary(self) -> Path:
        return self._target.with_name(f".memsim-{os.urandom(6).hex()}.toml")

    def _unwritable(self, error: Exception) -> MemsimError:
        reason = (getattr(error, "strerror", None) or str(error)).lower().rstrip(".")
        return MemsimError(
            f"out is {quoted(self.path)}, which cannot be written ({reason}): give the path of a writable file."
        )


def _number(value: float) -> str:
    """As people write it: 692, 0.885, 1.83e9."""
    mantissa, exponent = f"{value:.9e}".split("e")
    if int(exponent) >= 6:
        return f"{float(mantissa):.10g}e{int(exponent)}"
    return f"{value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
