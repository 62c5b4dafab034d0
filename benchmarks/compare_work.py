"""How much work is the default `memsim compare`, beside starting up and importing?

The command runs in processes of its own. What all of it takes, less what importing the same modules takes, is its work:
processor time, the least of some runs. "cold" has an empty cache folder, "warm" what a run before has left there.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile

from _bench import heading, of_its_own, seconds, table

RUNS = 5
COMMANDS = {"memsim compare": ["compare"], "memsim compare --gpu two-level": ["compare", "--gpu", "two-level"]}


def command(arguments: list[str]) -> list[str]:
    """Run a command of memsim. Returns the modules that there are at its end."""
    from memsim.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(arguments)
    return list(sys.modules)


def imports(names: list[str]) -> int:
    """Import modules, those that can be had by their names."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return len(names)


def main() -> None:
    heading(__doc__ or "")
    rows = []
    for shown, arguments in COMMANDS.items():
        with tempfile.TemporaryDirectory() as kept:
            colds, warms = [], []
            for _ in range(RUNS):
                with tempfile.TemporaryDirectory() as empty:
                    colds.append(of_its_own(__file__, "command", arguments, environment={"MEMSIM_CACHE": empty}))
            for _ in range(RUNS + 1):
                warms.append(of_its_own(__file__, "command", arguments, environment={"MEMSIM_CACHE": kept}))
        # In the order in which they were imported.
        again = [of_its_own(__file__, "imports", warms[-1].value) for _ in range(RUNS)]
        imported = min(run.processor_s for run in again)
        for name, runs in (("cold", colds), ("warm", warms[1:])):
            whole = min(run.processor_s for run in runs)
            work = whole - imported
            rows.append([shown, name, seconds(whole), seconds(imported), seconds(work), f"{work / imported:.2f}"])
    table(("command", "cache", "all", "imports", "work", "work / imports"), rows)


if __name__ == "__main__":
    main()
