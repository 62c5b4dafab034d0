"""A sweep's rows as a Parquet file. Needs the extra `sweeps`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from memsim._cli_csv import TableFile
from memsim._sweep_table import SweepTable
from memsim.errors import MemsimError

_ROWS_A_GROUP = 10_000


class ParquetFile(TableFile[SweepTable]):
    """The place of a Parquet file. Raises `MemsimError` also if what writes it is not installed."""

    option = "parquet"

    def __init__(self, path: str) -> None:
        _pyarrow()
        super().__init__(path)

    def _fill(self, path: Path, table: SweepTable) -> None:
        """Columns, rows and order of the CSV file; whole numbers of 64 bits, or texts where they need more."""
        arrow, parquet = _pyarrow()
        kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
        columns = table.columns()
        too_large = _too_large(table)
        schema = arrow.schema(
            [(name, arrow.string() if name in too_large else kinds[kind]) for name, kind in columns.items()]
        )
        cells = table.cells()
        with parquet.ParquetWriter(str(path), schema) as writer:
            while rows := list(itertools.islice(cells, _ROWS_A_GROUP)):
                writer.write_table(
                    arrow.table(
                        [
                            arrow.array([_cell(value, name in too_large) for value in values], field.type)
                            for name, field, values in zip(columns, schema, zip(*rows, strict=True), strict=True)
                        ],
                        schema=schema,
                    )
                )


def _too_large(table: SweepTable) -> set[str]:
    """The columns with an integer of more than 64 bits."""
    names = list(table.columns())
    return {
        names[at] for cells in table.cells() for at, value in enumerate(cells)
        if type(value) is int and not -(2**63) <= value < 2**63
    }  # fmt: skip


def _cell(value: Any, as_text: bool) -> Any:
    if isinstance(value, str):
        # A path in characters that UTF-8 does not have.
        return value.encode("utf-8", "replace").decode()
    return str(value) if as_text and value is not None else value


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MemsimError(
            "a Parquet file needs pyarrow, which is not installed: pip install 'memsim[sweeps]'."
        ) from None
    return pyarrow, pyarrow.parquet
