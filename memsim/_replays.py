"""Replays of many measured launches: side by side, and kept, so that a run that was stopped goes on where it was.

What is kept lies in a file of lines in the cache folder, by all that a replay depends on: the simulator's own sources
and tables, the machine, the launch, what ran before it, and what of the model is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from memsim._cache import cache_folder, forget_oldest
from memsim._processes import Processes
from memsim._simulated import Simulated, Simulator, replay_chain
from memsim._sources import sources_digest
from memsim.gpu import Gpu
from memsim.machine import Progress
from memsim.measurements import Measurement

Figures = dict[str, float]
_ROWS_A_TASK = 6
_MOST_FILES_KEPT = 8
# What says nothing of a replay: reports, commands, and what reads and judges measurements.
_OTHER_SOURCES = (
    "_report_",
    "_command_",
    "_cli_",
    "_option",
    "_plot",
    "_accuracy",
    "_checks",
    "_replays",
    "_processes",
    "_cache",
    "_sweep_",
    "_tune_",
)
_OTHER_MODULES = (
    "cli", "report", "sweep", "tune", "plot", "validate", "claims", "calibrate", "ncu", "columns", "measurements",
)  # fmt: skip


@dataclass(frozen=True)
class _Chain:
    """Launches that one replay shows: a row, or those of naive attention in a row; `keys` name them in what is kept,
    None where a launch is not asked for itself."""

    gpu: Gpu
    rows: tuple[Measurement, ...]
    keys: tuple[str | None, ...]


Task = tuple[Sequence[_Chain], frozenset[str]]


def replay_rows(
    rows: Sequence[Measurement], launches: Sequence[Simulated], *, without: frozenset[str] = frozenset(), jobs: int = 1,
    keep: bool = False, progress: Progress | None = None,
) -> list[Figures]:  # fmt: skip
    """What replays say of launches (`memsim._simulated.REPLAYED`), each with the row that it is of.

    With `keep` what was found before is taken, and what is found now is there for the next time.
    """
    names = [_key(row, launch, without) for row, launch in zip(rows, launches, strict=True)]
    kept = Kept() if keep else None
    found: dict[str, Figures] = {}
    if kept is not None:
        found.update(kept.figures)
    wanted = dict.fromkeys(names)
    chains = [c for c in _chains(rows, launches, names) if not all(key in found for key in c.keys if key)]
    done = sum(name in found for name in wanted)

    def say() -> None:
        if progress is not None:
            progress("replays", done, len(wanted))

    say()
    tasks: list[Task] = [(group, without) for group in _groups(chains)]
    with Processes(jobs if len(chains) > 1 else 1) as processes:
        for _, results in processes.map(_replay, tasks):
            new = {key: figures for key, figures in results.items() if key not in found}
            found |= new
            done += sum(key in wanted for key in new)
            if kept is not None:
                kept.add(new)
            say()
    return [found[name] for name in names]


def _replay(task: Task) -> dict[str, Figures]:
    chains, without = task
    found: dict[str, Figures] = {}
    for chain in chains:
        simulator = Simulator(chain.gpu)
        launches = [simulator.launch(row) for row in chain.rows]
        figures = replay_chain(launches, without)
        found |= {key: of for key, of in zip(chain.keys, figures, strict=True) if key is not None}
    return found


def _chains(rows: Sequence[Measurement], launches: Sequence[Simulated], names: Sequence[str]) -> list[_Chain]:
    """The replays that show all launches, the longest only of chains that begin alike."""
    chains: dict[tuple[str | None, ...], _Chain] = {}
    key_of_row = {id(row): name for row, name in zip(rows, names, strict=True)}
    for row, launch, name in zip(rows, launches, names, strict=True):
        keys = (*(key_of_row.get(id(before)) for before in launch.rows_before), name)
        chains.setdefault(keys, _Chain(launch.gpu, (*launch.rows_before, row), keys))
    covered = {key for chain in chains.values() for key in chain.keys[:-1]}
    return [chain for chain in chains.values() if chain.keys[-1] not in covered]


def _groups(chains: Sequence[_Chain]) -> list[list[_Chain]]:
    """A few chains each, of one kernel and tile where they can be: these share the paces of their instructions."""
    alike: dict[object, list[_Chain]] = {}
    for chain in chains:
        row = chain.rows[-1]
        alike.setdefault((row.kernel, row.tile, row.problem.head_dim, row.problem.causal), []).append(chain)
    return [group[at : at + _ROWS_A_TASK] for group in alike.values() for at in range(0, len(group), _ROWS_A_TASK)]


def _key(row: Measurement, launch: Simulated, without: frozenset[str]) -> str:
    """A name for all that the replay of a launch depends on, but for the simulator itself."""
    facts = [_facts(before) for before in launch.rows_before]
    text = json.dumps([_machine(launch.gpu), launch.launched[1], _facts(row), facts, launch.warm, sorted(without)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _facts(row: Measurement) -> list[object]:
    measured = [row.values.get(name) for name in ("sram_bytes", "registers")]
    tile = [getattr(row.tile, name) for name in row.tile.__slots__]
    return [row.kernel, repr(row.problem), tile, row.lse, row.whole_rows, measured]


@cache
def _machine(gpu: Gpu) -> str:
    return hashlib.sha256(gpu.model_dump_json().encode()).hexdigest()


def simulator_digest() -> str:
    """A name for the sources and tables that replays depend on."""
    return sources_digest(_OTHER_SOURCES, _OTHER_MODULES)


@dataclass
class Kept:
    """The figures kept for the simulator as it is now. Where the folder cannot be written, nothing is."""

    figures: dict[str, Figures] = field(default_factory=dict)
    path: Path = field(default_factory=lambda: cache_folder() / f"replays-{simulator_digest()[:16]}.jsonl")

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError):
            for line in self.path.read_text(encoding="utf-8").splitlines():
                # A line that is damaged counts as absent.
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    kept = json.loads(line)
                    self.figures[kept["key"]] = {name: value + 0 for name, value in kept["figures"].items()}

    def add(self, figures: dict[str, Figures]) -> None:
        """Keep these too."""
        with contextlib.suppress(OSError):
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                forget_oldest(self.path, "replays-*.jsonl", _MOST_FILES_KEPT)
            with open(self.path, "a", encoding="utf-8") as file:
                file.writelines(json.dumps({"key": key, "figures": of}) + "\n" for key, of in figures.items())
