"""Does `check_trace` name the first illegal record, for each rule; and are indices what they say?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memsim.trace import (
    Bound,
    Buffer,
    IllegalTrace,
    Index,
    LaunchTrace,
    Load,
    Loop,
    Ring,
    Store,
    Tensor,
    TileRef,
    Work,
    check_trace,
    place_tensors,
    symbol,
    walk,
)

T = Tensor("T", 1, 1, 64, 64, "float16")
ZERO = Index()


def tile(**parts: Any) -> TileRef:
    return replace(TileRef(T, ZERO, ZERO, symbol("i") * 16, ZERO, 16, 64), **parts)


LOAD = Load(tile(), "a")
USE = Work("tensor", 8, "dot", "float16", ("a",), "b")
STORE = Store(tile(), "b")
LEGAL = (LOAD, USE, STORE)


def launch(*body: Any, axes: tuple[tuple[str, int], ...] = (("i", 4),)) -> LaunchTrace:
    return LaunchTrace("launch", axes, body)


def test_a_legal_trace_is_handed_back() -> None:
    trace = launch(*LEGAL)
    assert check_trace(trace) is trace


@pytest.mark.parametrize(
    "record, said",
    [
        (replace(USE, pipe="mufu"), "Work: pipe 'mufu' is none of"),
        (replace(USE, amount=-1), "Work: a negative amount of work"),
        (replace(USE, sram_bytes=-1), "Work: a negative amount of work"),
        (replace(USE, reads=("c",)), "Work: dot reads 'c', which nothing has made"),
        (Store(tile(), "c"), "Store: stores 'c', which nothing has made"),
        (Load(tile(row=symbol("j")), "c"), "Load: row depends on 'j', which no axis or loop defines"),
        (Load(tile(batch=symbol("j")), "c"), "Load: batch depends on 'j'"),
        (Load(tile(head=symbol("j")), "c"), "Load: head depends on 'j'"),
        (Store(tile(col=symbol("j")), "b"), "Store: col depends on 'j'"),
        (Load(tile(row=Index("i", 1, -16, 0)), "c"), "Load: row can be negative"),
        (Load(tile(col=Index(offset=-1)), "c"), "Load: col can be negative"),
        (Load(tile(row=Index("i", 0, 1, 0)), "c"), "Load: row can be negative"),
        (Load(tile(rows=0), "c"), "Load: an empty tile of T"),
        (Load(tile(cols=0), "c"), "Load: an empty tile of T"),
        (Load(tile(tensor=replace(T, address=256)), "c"), "Load: T is not aligned to 512 B"),
        (Load(tile(), "c", Ring("K", 2, 64)), "Load: ring 'K' is filled outside any loop"),
        (Loop("i", 0, 4, ()), "Loop: loop variable 'i' is already in use"),
        (Loop("j", 0, Bound("k", lambda v: v), ()), "Loop: bound depends on 'k', which no axis or loop defines"),
        (Loop("j", Bound("j", lambda v: v), 4, ()), "Loop: bound depends on 'j'"),
    ],
)
def test_the_first_illegal_record_is_named(record: Any, said: str) -> None:
    with pytest.raises(IllegalTrace) as illegal:
        check_trace(launch(LOAD, USE, record, replace(USE, pipe="second fault")))
    assert str(illegal.value).startswith(f"launch[2] {said}")


def test_a_record_in_a_loop_is_named_by_its_place() -> None:
    bad = Load(tile(), "c", Ring("K", 0, 64))
    with pytest.raises(IllegalTrace, match=r"^launch\[1\] Loop\[1\] Load: ring 'K' has no buffer$"):
        check_trace(launch(LOAD, Loop("j", 0, 2, (LOAD, bad))))


def test_two_axes_of_one_name_are_illegal() -> None:
    with pytest.raises(IllegalTrace, match="two grid axes share a name"):
        check_trace(launch(*LEGAL, axes=(("i", 4), ("i", 2))))


def test_a_loop_variable_ends_with_its_loop() -> None:
    inside = Loop("j", 0, 2, (Load(tile(row=symbol("j")), "c"),))
    check_trace(launch(inside, Loop("j", 0, 3, ())))
    with pytest.raises(IllegalTrace, match=r"launch\[1\] Load: row depends on 'j'"):
        check_trace(launch(inside, Load(tile(row=symbol("j")), "d")))


def test_what_a_launch_starts_with_is_known() -> None:
    check_trace(replace(launch(Store(tile(), "o")), values=("o",)))


def test_indices() -> None:
    index = Index("i", 3, 16, 5)
    assert [index.at(value) for value in (0, 2, 3, 7)] == [5, 5, 21, 37]
    assert index.over(np.array([0, 2, 3, 7])).tolist() == [5, 5, 21, 37]
    assert 2 * symbol("i") * 4 == Index("i", 1, 8, 0)
    assert symbol("i") // 2 // 3 == Index("i", 6, 1, 0)
    assert Index("i", 1, 2, 3) * 4 == Index("i", 1, 8, 12)
    assert Index.of(7) == Index(offset=7) and Index.of(index) is index
    with pytest.raises(ValueError, match="only a bare symbol can be divided"):
        symbol("i") * 2 // 2
    with pytest.raises(ValueError, match="only a bare symbol can be divided"):
        Index("i", 1, 1, 3) // 2


def test_tensors_lie_side_by_side_and_aligned() -> None:
    placed = place_tensors(
        tuple(Tensor(name, 1, 1, rows, 5, "float16") for name, rows in (("a", 1), ("b", 52), ("c", 1)))
    )
    assert [t.address for t in placed] == [0, 512, 512 + 1024]
    assert [t.total_bytes for t in placed] == [10, 520, 10]


def test_strides_of_a_tensor() -> None:
    tensor = Tensor("t", 2, 3, 5, 7, "float32")
    assert (tensor.row_bytes, tensor.head_bytes, tensor.total_bytes) == (28, 140, 840)


def test_a_launch_knows_its_blocks_and_room() -> None:
    trace = replace(launch(axes=(("i", 4), ("head", 3), ("batch", 2))), buffers=(Buffer("Q", 1, 10), Buffer("K", 3, 7)))
    assert trace.blocks == 24
    assert trace.sram_bytes == 31
    assert launch(axes=(("i", 0), ("head", 3))).blocks == 0


def test_a_walk_has_the_loops_around_each_record() -> None:
    inner = Loop("k", 0, 2, (USE,))
    outer = Loop("j", 0, 2, (LOAD, inner))
    assert list(walk((outer, STORE))) == [(LOAD, (outer,)), (USE, (outer, inner)), (STORE, ())]
