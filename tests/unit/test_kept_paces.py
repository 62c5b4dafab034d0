"""Is a pace from disk the one that the core would give, whatever is on the disk?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memsim import compare
from memsim import stream as s
from memsim.machine import kept_paces, paced
from memsim.machine.core import CoreTimes, MemoryTimes
from memsim.machine.kept_paces import kept_pace_of
from memsim.machine.pace import Pace, pace_of
from memsim.stream import Segment, Stream

# Thirds, so that figures need all their digits.
CORE = CoreTimes(
    sub_partitions=4, fma=1 / 3, integer_multiply=2, alu=2, convert=4, exp=8, uniform=1, lsu_word=4, copy=16, mma=32,
    product_flop_per_cycle=1024, sram_bytes_per_cycle=1e12, exp_latency=61 / 3, shuffle_latency=24, sram_latency=22,
    uniform_latency=10, operand_latency=7, product_start=16, product_latency=35, barrier=26, fence=400,
    spill_latency=40, copies_at_banks=1, tensor_contention=0,
)  # fmt: skip
MEMORY = MemoryTimes(
    bytes_per_cycle=64, store_bytes_per_cycle=64, copy_latency=200, box_latency=600, load_latency=800
)  # fmt: skip
TRIP = ((s.EXP, 0, 0, 1, 0, s.NO_BARRIER, 0), (s.FMA, 0, 0, 3, s.NO_BARRIER, s.NO_BARRIER, 1))
LOOP = Stream("loop", (Segment(False, TRIP[:1]), Segment(True, TRIP * 3), Segment(False, TRIP)))
ONCE = Stream("once", (Segment(False, TRIP * 2),))
ASKED: tuple[tuple[Any, ...], ...] = (
    (LOOP, 1, 1, CORE, MEMORY, 0, 1, ()),
    (LOOP, 2, 2, CORE, MEMORY, 0, 1, ()),
    (ONCE, 1, 1, CORE, MEMORY, 0, 1, ()),
)
RIGHT = [repr(pace_of(*asked)) for asked in ASKED]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(asked: tuple[tuple[Any, ...], ...] = ASKED) -> tuple[list[str], int]:
    """What a process that has just begun finds, and how many paces it has a core run for."""
    ran = []

    def running(*arguments: Any) -> Pace:
        ran.append(arguments)
        return pace_of(*arguments)

    kept_paces._kept.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_paces, "pace_of", running)
        return [repr(kept_pace_of(*arguments)) for arguments in asked], len(ran)


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_kept_pace_is_the_pace_to_the_last_digit() -> None:
    assert found() == (RIGHT, 3)
    assert found() == (RIGHT, 0)
    assert "333333333" in RIGHT[0]


@pytest.mark.parametrize(
    "changed",
    [
        {0: replace(LOOP, name="other", segments=(*LOOP.segments[:2], Segment(False, TRIP * 2)))}, {1: 3}, {2: 2},
        {3: replace(CORE, exp=9)}, {3: replace(CORE, depend=False)}, {4: replace(MEMORY, copy_latency=201)}, {5: 1},
        {6: 2}, {7: (2,)},
    ],
)  # fmt: skip
def test_a_pace_of_anything_else_is_not_taken(changed: dict[int, Any]) -> None:
    found(ASKED[:1])
    other = tuple(changed.get(number, value) for number, value in enumerate(ASKED[0]))
    assert found((other,)) == ([repr(pace_of(*other))], 1)


def test_a_pace_of_another_model_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is its sources."""
    found()
    right = Path.read_bytes
    before = kept_paces.model_digest()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: right(path) + (b"#" if path.name == "core.py" else b""))
        kept_paces.model_digest.cache_clear()
        assert kept_paces.model_digest() != before
        assert found() == (RIGHT, 3)
    kept_paces.model_digest.cache_clear()
    assert found() == (RIGHT, 0)


def exchanged(kept: bytes) -> bytes:
    """The first pace and the second each under the other's key."""
    first, second, *others = kept.strip().split(b"\n\n")
    return b"\n\n".join([second[:32] + first[32:], first[:32] + second[32:], *others])


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "not text": lambda kept: b"\xff\x00 \n\n" * 100,
    "empty": lambda kept: b"",
    "cut short": lambda kept: kept[:-9],
    "one digit": lambda kept: kept.replace(b" 30.333", b" 30.334"),
    "lines run together": lambda kept: kept.replace(b"\n", b""),
    "keys exchanged": exchanged,
}


def damaged(how: str, folder: Path) -> tuple[list[str], int]:
    """What is found in a file that was damaged."""
    found()
    whole = the_file(folder).read_bytes()
    the_file(folder).write_bytes(DAMAGE[how](whole))
    assert the_file(folder).read_bytes() != whole
    return found()


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_does_no_harm_and_is_filled_again(how: str, folder: Path) -> None:
    paces, ran = damaged(how, folder)
    assert paces == RIGHT and ran > 0
    assert found() == (RIGHT, 0)


@pytest.mark.parametrize("how", ["one digit", "keys exchanged"])
def test_where_nothing_is_checked_wrong_figures_go_through(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_paces, "_check", lambda key, text: "0" * 16)
    paces, ran = damaged(how, folder)
    assert paces != RIGHT and ran == 0


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("", encoding="utf-8")
    assert found() == (RIGHT, 3) and found() == (RIGHT, 3)
    monkeypatch.delenv("MEMSIM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nowhere)
    assert found() == (RIGHT, 3)


def test_what_is_kept_stays_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(ASKED[:1])
    line = the_file(folder).stat().st_size
    monkeypatch.setattr(kept_paces, "_MOST_BYTES", 4 * line)
    for latency in range(20):
        found(((ONCE, 1, 1, CORE, replace(MEMORY, copy_latency=latency), 0, 1),))
        assert the_file(folder).stat().st_size < 6 * line
    for number in range(9):
        monkeypatch.setattr(kept_paces, "model_digest", lambda number=number: f"model{number}")
        found(ASKED[:1])
    assert len([*folder.iterdir()]) == 4 and (folder / "paces-model8.txt").exists()


PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from test_kept_paces import ASKED, RIGHT, kept_pace_of, replace
for latency in range(30):
    for stream, resident, warps, core, memory, *rest in ASKED:
        kept_pace_of(stream, resident, warps, core, replace(memory, copy_latency=latency), *rest)
assert [repr(kept_pace_of(*asked)) for asked in ASKED] == RIGHT
"""


def test_two_processes_may_keep_paces_at_once(folder: Path) -> None:
    text = PROCESS.format(folder=str(Path(__file__).parent))
    processes = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    later = tuple(
        (stream, resident, warps, core, replace(memory, copy_latency=latency), *rest)
        for latency in range(30)
        for stream, resident, warps, core, memory, *rest in ASKED
    )
    assert found(ASKED) == (RIGHT, 0)
    assert found(later) == ([repr(pace_of(*asked)) for asked in later], 0)


def test_the_paces_that_ship_are_of_the_model_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default comparison runs no core, and each pace that ships is the one that a core gives."""
    asked = []

    def noted(*arguments: Any) -> Pace:
        asked.append(arguments)
        return kept_pace_of(*arguments)

    monkeypatch.setattr(paced, "kept_pace_of", noted)
    compare()
    assert kept_paces.SHIPPED.read_text().startswith(kept_paces.model_digest())
    assert asked and not folder.exists()
    assert found((asked[0], asked[-1])) == ([repr(pace_of(*asked[0])), repr(pace_of(*asked[-1]))], 0)


def test_paces_of_another_model_that_shipped_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ships is found only under the name of the model that runs."""
    found()
    (kept,) = (tmp_path / "cache").iterdir()
    shipped = tmp_path / "paces.txt"
    monkeypatch.setattr(kept_paces, "SHIPPED", shipped)
    for model, ran in ((kept_paces.model_digest(), 0), ("0123456789abcdef", 3)):
        shipped.write_text(f"{model}\n{kept.read_text()}")
        monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / f"empty {ran}"))
        kept_paces._shipped.cache_clear()
        assert found() == (RIGHT, ran)
    monkeypatch.undo()
    kept_paces._shipped.cache_clear()
