"""A sweep's results in one SQLite file, row by row as they get done, so that a sweep that was stopped goes on.

Each batch of rows is one transaction: whatever kills the process, the file holds all batches that were added and
nothing else. While a sweep runs, SQLite keeps the newest of them in a second file beside it (`-wal`), which goes when
the sweep ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, overload

from memsim._gpu_files import gpu_from_table
from memsim._options import Machines
from memsim._sweep_plan import SweepPlan
from memsim._sweep_points import Values
from memsim._sweep_sqlite import SIDE_FILES, connect, damaged, in_sentences, is_ours, mark_as_ours, reader, right
from memsim._sweep_table import COLUMN_TYPES, COLUMNS, Provenance, SweepRow, SweepTable
from memsim.errors import MemsimError
from memsim.units import quoted

RESULTS_SCHEMA = "memsim.sweep-results/1"
_LARGEST_INTEGER = 2**63 - 1
# What a person may have changed of a sweep, in the words that a refusal has for it.
_PARTS = {
    "schema": "its schema is {}",
    "memsim_version": "memsim {} made it",
    "simulator_digest": "a memsim with other sources made it",
    "algorithm": "its algorithm is {}",
    "axes": "its axes or their values are others",
    "options": "its options are others",
    "gpu_fields": "its GPU fields are others",
    "count_only": "its --count-only is {}",
    "gpu_digests": "its GPUs are described otherwise",
}


class Results:
    """The rows of one plan in the file at `path`: those that are there already (`done`), and those to come.

    A context. Raises `MemsimError` if the file holds another sweep or anything else, is damaged, is in use or cannot be
    written; it is then left as it is.
    """

    def __init__(self, path: str, plan: SweepPlan) -> None:
        self.path = path
        self._plan = plan
        with in_sentences("out", path):
            if not os.path.lexists(path):
                _create(path, plan)
            facts = _checked_facts("out", path)
            _refuse_another(path, facts, _facts(plan))
            self._connection = connect(path, "rw")
            try:
                # One sweep at a time; a lock that the system takes back, however this process ends.
                self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                self.done = bytearray(plan.points)
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    for number, _ in _read(self._connection, plan, "out", path):
                        self.done[number] = 1
                # Only now, because the header says it.
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                self._connection.close()
                raise
        self._insert = f"INSERT INTO rows VALUES ({', '.join('?' * (2 + len(plan.axes) + len(COLUMNS)))})"

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, rows: Sequence[tuple[int, Values, float]]) -> None:
        """Keep these rows: numbers of their points, values, and the seconds that each took."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        with in_sentences("out", self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for number, values, seconds in rows:
                point = [_storable(text) for text in self._plan.point(number).values()]
                cells = [_cell(value) for value in values]
                self._connection.execute(self._insert, (number, *point, *cells, _check(number, cells)))
                self._connection.execute("INSERT INTO made VALUES (?, ?, ?)", (number, at, seconds))
        for number, _, _ in rows:
            self.done[number] = 1

    def kept(self) -> Iterator[tuple[int, SweepRow]]:
        """The rows in the file with the numbers of their points, while it is held."""
        with in_sentences("out", self.path):
            yield from _read(self._connection, self._plan, "out", self.path)

    def close(self) -> None:
        """Let the file go, whole and alone. Raises `MemsimError` if it does not hold what it was given."""
        with contextlib.suppress(sqlite3.Error):
            # A file that is whole by itself can be read from where nothing may be written.
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def rows(self) -> StoredRows:
        """The rows in the file, read from it. To be asked for when it was let go."""
        rows = StoredRows(self.path, self._plan, "out")
        if len(rows) != sum(self.done):
            raise MemsimError(
                f"out is {quoted(self.path)}, which holds {len(rows)} of the {sum(self.done)} rows that were written "
                "to it: run the command again, on a disk that keeps what it is given."
            )
        return rows


class StoredRows(Sequence[SweepRow]):
    """The rows of a results file in the order of the product, read from it whenever they are asked for."""

    def __init__(self, path: str, plan: SweepPlan, option: str) -> None:
        self._path, self._plan, self._option = path, plan, option
        with self._connected() as connection:
            self._count: int = connection.execute("SELECT count(*) FROM rows").fetchone()[0]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SweepRow]:
        return self._from(0, -1)

    @overload
    def __getitem__(self, at: int) -> SweepRow: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SweepRow]: ...
    def __getitem__(self, at: int | slice) -> SweepRow | Sequence[SweepRow]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            return tuple(self._from(start, max(0, stop - start)))[::step] if step > 0 else tuple(self)[at]
        number = range(self._count)[at]
        return next(self._from(number, 1))

    def _from(self, start: int, count: int) -> Iterator[SweepRow]:
        with self._connected() as connection:
            for _, row in _read(connection, self._plan, self._option, self._path, start, count):
                yield row

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with in_sentences(self._option, self._path), contextlib.closing(reader(self._path)) as connection:
            yield connection


def read_results(path: str) -> SweepTable:
    """The table of a results file, as far as it was finished. Raises `MemsimError` if it is none or damaged."""
    with in_sentences("from", path):
        facts = _checked_facts("from", path)
        with contextlib.closing(reader(path)) as connection:
            described = dict(connection.execute("SELECT name, numbers FROM gpus"))
    machines = Machines()
    for name, numbers in described.items():
        machines.add(name, gpu_from_table(json.loads(numbers), f"In {quoted(path)}, "))
    plan = SweepPlan(
        facts["algorithm"], [(name, values) for name, values in facts["axes"]], facts["options"], facts["gpu_fields"],
        count_only=facts["count_only"], machines=machines,
    )  # fmt: skip
    made = Provenance(facts["memsim_version"], facts["simulator_digest"], facts["gpu_digests"])
    return plan.table(StoredRows(path, plan, "from"), made)


def _facts(plan: SweepPlan) -> dict[str, Any]:
    """All that a row depends on beside its point. Nothing of when or where it was made."""
    return {
        "schema": RESULTS_SCHEMA,
        "memsim_version": plan.provenance.memsim_version,
        "simulator_digest": plan.provenance.simulator_digest,
        "algorithm": plan.algorithm,
        "axes": [[name, list(values)] for name, values in plan.axes.items()],
        "options": plan.options,
        "gpu_fields": plan.gpu_fields,
        "count_only": plan.count_only,
        "gpu_digests": dict(plan.provenance.gpu_digests),
    }


def _create(path: str, plan: SweepPlan) -> None:
    """A file without rows, in its place at once or not at all."""
    target = Path(path)
    for left_over in (f"{path}{suffix}" for suffix in SIDE_FILES):
        # SQLite would take what is in there for rows of the new file.
        if os.path.lexists(left_over):
            raise MemsimError(
                f"{quoted(left_over)} is there without its results file: move it away, or bring that back."
            )
    temporary = target.with_name(f".memsim-{os.urandom(6).hex()}.db")
    try:
        with open(temporary, "xb"):
            pass
        with contextlib.closing(connect(str(temporary), "rw")) as connection, connection:
            mark_as_ours(connection)
            connection.execute("BEGIN")
            for statement in _tables(plan):
                connection.execute(statement)
            facts = {**_facts(plan), "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
            connection.executemany("INSERT INTO sweep VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])
            digests = plan.provenance.gpu_digests
            gpus = [(_storable(name), digests[name], json.dumps(gpu)) for name, gpu in plan.gpus.items()]
            connection.executemany("INSERT INTO gpus VALUES (?, ?, ?)", gpus)
        try:
            os.link(temporary, target)
        except OSError:
            # A file system without links.
            if os.path.lexists(target):
                raise
            os.rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _tables(plan: SweepPlan) -> Iterator[str]:
    axes = [_named(name) for name in plan.axes]
    yield "CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
    yield "CREATE TABLE gpus (name TEXT PRIMARY KEY, digest TEXT NOT NULL, numbers TEXT NOT NULL)"
    # No types: an integer that SQLite has no room for stays text, digit by digit.
    yield f"CREATE TABLE rows (point INTEGER PRIMARY KEY, {', '.join((*axes, *COLUMNS))}, row_check INTEGER NOT NULL)"
    yield "CREATE TABLE made (point INTEGER PRIMARY KEY, at TEXT NOT NULL, seconds REAL NOT NULL)"
    facts = [f"(SELECT value FROM sweep WHERE name = '{name}') AS {name}" for name in _PARTS if name != "axes"]
    gpu = 'rows."gpu"' if "gpu" in plan.axes else "(SELECT name FROM gpus)"
    yield (
        f"CREATE VIEW results AS SELECT rows.*, {', '.join(facts)}, {gpu} AS of_gpu, "
        f"(SELECT digest FROM gpus WHERE name = {gpu}) AS gpu_digest, made.at AS made_at, made.seconds AS made_seconds "
        "FROM rows JOIN made USING (point)"
    )


def _checked_facts(option: str, path: str) -> dict[str, Any]:
    """What the file says that it holds. Raises unless it is a whole file of results, of the schema that we know."""
    if not is_ours(path):
        raise MemsimError(f"{option} is {quoted(path)}, which holds no results of a sweep: {right(option)}.")
    with contextlib.closing(reader(path)) as connection:
        schema = connection.execute("SELECT value FROM sweep WHERE name = 'schema'").fetchone()
        if schema is None or schema[0] != json.dumps(RESULTS_SCHEMA):
            found = quoted(json.loads(schema[0])) if schema else "missing"
            raise MemsimError(
                f"{option} is {quoted(path)}, whose schema is {found}; this memsim knows {RESULTS_SCHEMA}: "
                f"{right(option)}."
            )
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise damaged(option, path)
        facts = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM sweep")}
        if not _PARTS.keys() <= facts.keys():
            raise damaged(option, path)
        return facts


def _refuse_another(path: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    others = [words.format(json.dumps(found[name])) for name, words in _PARTS.items() if found[name] != wanted[name]]
    if others:
        raise MemsimError(
            f"out is {quoted(path)}, which holds another sweep ({', '.join(others)}): {right('out')}."
        )  # fmt: skip


def _read(
    connection: sqlite3.Connection, plan: SweepPlan, option: str, path: str, start: int = 0, count: int = -1
) -> Iterator[tuple[int, SweepRow]]:
    """Rows in order, each held against its check."""
    select = f"SELECT point, {', '.join(COLUMNS)}, row_check FROM rows ORDER BY point LIMIT ? OFFSET ?"
    for number, *cells, check in connection.execute(select, (count, start)):
        if check != _check(number, cells) or not 0 <= number < plan.points:
            raise damaged(option, path)
        yield number, SweepRow(plan.point(number), *map(_value, COLUMNS, cells))


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return json.dumps(value)
    return str(value) if type(value) is int and abs(value) > _LARGEST_INTEGER else value


def _value(name: str, cell: Any) -> Any:
    if type(cell) is not str:
        return cell
    return _notes(cell) if name == "notes" else int(cell) if COLUMN_TYPES[name] is int else cell


@functools.lru_cache(maxsize=256)
def _notes(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _check(number: int, cells: Sequence[object]) -> int:
    return zlib.crc32(json.dumps([number, *cells]).encode())


def _storable(text: str) -> str:
    """A text in characters that UTF-8 has; what a point is follows from its number, not from this."""
    return text.encode("utf-8", "replace").decode()


def _named(column: str) -> str:
    return f'"{column}"'
