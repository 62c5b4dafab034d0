"""The pages of docs/, and what builds them, importable."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))

if str(DOCS / "_ext") not in sys.path:
    sys.path.append(str(DOCS / "_ext"))


def examples(page: Path) -> list[tuple[int, str]]:
    """The fenced pycon blocks of a page, each with its first line's number."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```pycon\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]
