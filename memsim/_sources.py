"""Which memsim this is: a name for its sources and tables, so that what was found with others is told apart."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent


@cache
def sources_digest(without_prefixes: tuple[str, ...] = (), without_modules: tuple[str, ...] = ()) -> str:
    """SHA-256 of the package's Python files and tables, but for files whose path in the package begins with one of
    these prefixes and modules of these names, which say nothing of what is found."""
    digest = hashlib.sha256()
    for path in sorted((*_PACKAGE.rglob("*.py"), *(_PACKAGE / "data").iterdir())):
        name = path.relative_to(_PACKAGE).as_posix()
        if not name.startswith(without_prefixes) and path.stem not in without_modules:
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
