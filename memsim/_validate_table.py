"""A validation as a CSV file: a line for each column of each row, simulated beside measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from memsim.validate import Validation

_PROBLEM = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "dtype", "causal")
_TILE = ("block_m", "block_n", "num_warps", "num_stages", "load_path")
COLUMNS = (
    "file", "line", "kernel", "gpu", *_PROBLEM, "lse", *_TILE, "grid_order", "cache_state", "column", "simulated",
    "measured", "error", "relation", "holds",
)  # fmt: skip


@dataclass(frozen=True)
class ValidateTable:
    """The lines of a validation of the file at `path`."""

    validation: Validation
    path: str

    def lines(self) -> Iterator[dict[str, object]]:
        """The cells of each line, by column."""
        for row in self.validation.rows:
            m = row.measurement
            keys: dict[str, object] = {"file": m.source or self.path, "line": m.line}
            keys |= {name: _flag(getattr(m.problem, name)) for name in _PROBLEM}
            keys |= {
                name: _flag(getattr(m, name)) for name in ("kernel", "gpu", "lse", *_TILE, "grid_order", "cache_state")
            }
            for check in row.checks:
                figures = {"simulated": check.simulated, "measured": check.measured, "error": check.error}
                yield keys | figures | {"column": check.column, "relation": check.relation, "holds": _flag(check.holds)}

    def write_csv(self, file: TextIO) -> None:
        """Write the lines; what is not known is empty."""
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.lines())


def _flag(value: object) -> object:
    return int(value) if isinstance(value, bool) else value
