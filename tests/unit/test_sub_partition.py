"""In which order do warps take their turns? Turns written by hand, one a letter; a capital is another simpy process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence

import pytest
import simpy

from memsim.machine import sub_partition
from memsim.machine.sub_partition import Block, SubPartition


def turns_of(asked: dict[str, Sequence[float]], others: dict[str, Sequence[float]] | None = None) -> list[str]:
    """Who had a turn, in order: each asks for its first time at the beginning, in its last turn for none."""
    found = []
    partition = SubPartition()

    def warp(name: str, times: Sequence[float]) -> Generator[float | None, None, None]:
        for time in times:
            found.append(name)
            yield time
        found.append(name)
        yield None

    def other(name: str, times: Sequence[float]) -> Generator[simpy.Event, None, None]:
        for time in times:
            yield env.timeout(time - env.now)
            found.append(name)

    env = simpy.Environment()
    for name, (first, *times) in asked.items():
        partition.ask(first, warp(name, times).__next__)
    for name, times in (others or {}).items():
        env.process(other(name, times))
    env.process(partition.run(env))
    env.run()
    return found


def check_ties() -> None:
    assert turns_of({"a": [5], "b": [5], "c": [5]}) == ["a", "b", "c"]
    # b asks for 9 at 1, before a does at 2; c at the same time as a, and after it.
    assert turns_of({"a": [2, 9], "b": [1, 9], "c": [2, 9]}) == ["b", "a", "c", "b", "a", "c"]


def test_turns_go_by_time() -> None:
    assert turns_of({"a": [0, 3, 4], "b": [1, 2.5, 7]}) == ["a", "b", "b", "a", "a", "b"]


def test_who_asked_first_for_the_same_time_goes_first() -> None:
    check_ties()


def test_an_order_that_is_turned_round_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_partition, "bisect_right", bisect_left)
    with pytest.raises(AssertionError):
        check_ties()


def test_turns_wait_for_what_other_processes_do_before() -> None:
    """They run ahead of the environment's clock only where nothing else is due."""
    assert turns_of({"a": [1, 2, 3, 4], "b": [2.5]}, {"X": [2.25, 3.5]}) == ["a", "a", "X", "b", "a", "X", "a"]


def test_who_waits_at_a_barrier_goes_on_in_the_order_of_coming() -> None:
    partition = SubPartition()
    block = Block(partition, 3)
    found = []

    def warp(name: str, time: float) -> Generator[float | None, None, None]:
        yield time
        if not block.meet(time, turns[name]):
            yield None
        found.append((name, block.released))
        yield block.released
        found.append((name, block.released))
        yield None

    turns = {name: warp(name, time).__next__ for name, time in (("a", 2.0), ("b", 7.0), ("c", 1.0))}
    for turn in turns.values():
        partition.ask(0.0, turn)
    env = simpy.Environment()
    env.process(partition.run(env))
    env.run()
    # c came first, and the last did not have to wait.
    assert found == [(name, 7.0) for name in ("b", "c", "a", "b", "c", "a")]
