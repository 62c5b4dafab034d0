"""Every picture of the documentation: runs the plot commands of docs/plots.md.

python docs/pictures.py              all of them, in a minute or two
python docs/pictures.py busy sram    those whose file's name has one of these words in it
python docs/pictures.py --replay     also replay what was measured anew, which takes some 20 minutes
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from memsim.cli import run
from memsim.plot import measured

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "plots.md"


def commands() -> list[list[str]]:
    """The words of the page's commands that draw a picture, without "memsim"."""
    lines = re.findall(r"^memsim (plot .* --out \S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def draw(words: Sequence[str], *, replay: bool) -> int:
    """Run one command; of what was measured, with the replays that are stored, unless it is to replay."""
    if words[1] != "measured" or replay:
        return run(words)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from fidelity import read_stored, validation_of

    measured(validation_of(Path(words[2]).name, read_stored())).save(words[-1])
    return 0


def main(arguments: Sequence[str]) -> int:
    """Draw what is asked for, and return 1 if a command failed."""
    os.chdir(ROOT)
    wanted = [word for word in arguments if word != "--replay"]
    failed = 0
    for words in commands():
        if not wanted or any(word in Path(words[-1]).name for word in wanted):
            print(shlex.join(["memsim", *words]), flush=True)
            failed += draw(words, replay="--replay" in arguments) != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
