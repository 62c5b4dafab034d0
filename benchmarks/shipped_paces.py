"""Are the paces that ship with memsim those of the model as it is?

    python benchmarks/shipped_paces.py           say so
    python benchmarks/shipped_paces.py --write   write memsim/data/paces.txt anew

They are what the default `memsim compare` needs of a core of an SM: some seconds of work, the same in every process. A
change of the core's sources makes them worthless; tests/unit/test_kept_paces.py then fails.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from _bench import heading

from memsim import compare
from memsim.machine import kept_paces


def made_anew() -> str:
    """The text of the file, with every pace found by running the core."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMSIM_CACHE"] = folder
        right, kept_paces.SHIPPED = kept_paces.SHIPPED, Path(folder, "none")
        kept_paces._shipped.cache_clear()
        try:
            compare()
        finally:
            kept_paces.SHIPPED = right
            kept_paces._shipped.cache_clear()
        (kept,) = Path(folder).glob("paces-*.txt")
        lines = sorted(line for line in kept.read_text(encoding="ascii").splitlines() if line)
    return "\n".join([kept_paces.model_digest(), *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    heading(__doc__ or "")
    text = made_anew()
    if parser.parse_args().write:
        kept_paces.SHIPPED.write_text(text, encoding="ascii")
    same = kept_paces.SHIPPED.exists() and kept_paces.SHIPPED.read_text(encoding="ascii") == text
    print(f"{len(text.splitlines()) - 1} paces, {len(text):,} B: {'as shipped' if same else 'not as shipped'}")


if __name__ == "__main__":
    main()
