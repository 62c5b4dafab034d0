"""Is a unit of a launch what its place in the grid says, worked out for many places at once?

Against each move by itself, in every grid order, on whole and ragged shapes, full and causal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim import Attention, Tile, load_gpu
from memsim.grid import ORDERS, GridOrder
from memsim.machine.handout import Handout
from memsim.machine.l2 import L2
from memsim.machine.levels import Memory
from memsim.machine.plan import LOOP, STORE, BodyPlan, LaunchPlan, bound_value, plan_launch
from memsim.machine.units import Units
from memsim.machine.untimed import Ledger

from ..laws.problems import HOPPER, scaled, traces_of

GPU = load_gpu("h200")


def order_of(name: str) -> GridOrder:
    return GridOrder(name, planes=2 if name == "head-sections" else 0, resident=5 if name == "persistent" else 0)


def units_of(plan: LaunchPlan, order: GridOrder, stride: int = 3) -> Units:
    return Units(plan, order, lambda body, shared_bytes: stride)


def moved_by(body: BodyPlan, env: dict[str, int]) -> list[tuple[Any, ...]]:
    """What each move of a body does: in a loop (bytes by trip, first trip, address where the variable is 0, step)."""
    if body.symbol is None:
        return [move.at(env) for move in body.moves]
    start, stop = bound_value(body.start, env), bound_value(body.stop, env)
    if stop <= start:
        return [([], start, None, move.step) for move in body.moves]
    return [(table[start:stop], start, address, step)
            for table, address, step in (move.over(env, stop) for move in body.moves)]  # fmt: skip


def filled_and_stored(plan: LaunchPlan, env: dict[str, int]) -> tuple[dict[str, int], int]:
    filled: dict[str, int] = {}
    stored = 0
    loops = [step[1] for step in plan.body.steps if step[0] == LOOP]
    for body in (plan.body, *loops):
        stores = {step[1] for step in body.steps if step[0] == STORE}
        for number, (move, found) in enumerate(zip(body.moves, moved_by(body, env), strict=True)):
            n_bytes = found[0] if body.symbol is None else sum(found[0])
            if number in stores:
                stored += n_bytes
            else:
                filled[move.access.tensor] = filled.get(move.access.tensor, 0) + n_bytes
    return filled, stored


def check_unit(found: Units, plan: LaunchPlan, env: dict[str, int], index: int) -> None:
    """A unit's moves equal those of its place, and its pieces are its loops' trips."""
    unit = found[index]
    assert [(n_bytes, address) for address, n_bytes in unit.moves] == moved_by(plan.body, env)
    assert len(unit.loops) == len(found.loops)
    for loop, body in zip(unit.loops, found.loops, strict=True):
        start, stop = bound_value(body.start, env), bound_value(body.stop, env)
        unmasked = stop if body.unmasked is None else bound_value(body.unmasked, env)
        ends = [piece.value + piece.plain + piece.masked for piece in loop.pieces]
        assert [piece.value for piece in loop.pieces] == ([start, *ends[:-1]] if stop > start else [])
        assert not ends or ends[-1] == stop
        assert sum(piece.masked for piece in loop.pieces) == max(0, stop - max(start, unmasked))
        for number, (table, first, address, step) in enumerate(moved_by(body, env)):
            assert loop.bytes[number] == sum(table)
            for piece, end in zip(loop.pieces, ends, strict=True):
                assert piece.bytes[number] == sum(table[piece.value - first : end - first])
            _, access, at, apart = loop.moves[number]
            assert access is body.moves[number].access
            assert address is None or (at, apart) == (address, step)


lengths = st.sampled_from((1, 17, 64, 100, 128, 129, 200))


@settings(max_examples=scaled(60))
@given(
    st.sampled_from(("flash", "naive")), lengths, lengths, st.sampled_from((16, 20, 64)), st.booleans(),
    st.sampled_from(((1, 1, 1), (2, 1, 2), (1, 2, 3))), st.sampled_from(tuple(ORDERS)), st.sampled_from((1, 3)),
    st.data(),
)  # fmt: skip
def test_units_are_their_places(
    algorithm: str, seq_q: int, seq_k: int, head_dim: int, causal: bool, heads: tuple[int, int, int], order_name: str,
    stride: int, data: st.DataObject,
) -> None:  # fmt: skip
    batch, kv_heads, group = heads
    problem = Attention(batch, kv_heads * group, kv_heads, seq_q, seq_k, head_dim, causal=causal)
    order = order_of(order_name)
    for trace in traces_of(algorithm, problem, Tile(32, 16, 4, 2), HOPPER).values():
        plan = plan_launch(trace, GPU)
        found = units_of(plan, order, stride)
        assert found.count == trace.blocks
        envs = [order.unit(plan.axes, index) for index in range(found.count)]
        for index in data.draw(st.lists(st.integers(0, found.count - 1), min_size=1, max_size=20)):
            check_unit(found, plan, envs[index], index)
        first, last = sorted(data.draw(st.tuples(*[st.integers(0, found.count)] * 2)))
        check_sums(found, plan, envs, first, last)


def check_sums(found: Units, plan: LaunchPlan, envs: list[dict[str, int]], first: int, last: int) -> None:
    """What units from the first to before the last move in all is the sum over them, however it is found."""
    filled: dict[str, int] = {}
    stored = 0
    for env in envs[first:last]:
        of_unit, stored_by_unit = filled_and_stored(plan, env)
        stored += stored_by_unit
        for tensor, n_bytes in of_unit.items():
            filled[tensor] = filled.get(tensor, 0) + n_bytes
    of_all, stored_by_all = found.totals(first, last)
    assert {name: n for name, n in of_all.items() if n} == {name: n for name, n in filled.items() if n}
    assert stored_by_all == stored
    # The same, move by move, and what of it is asked for by several.
    by_move: dict[str, int] = {}
    tiles: dict[tuple[str, int], int] = {}
    once = 0
    for moved in found.moved(first, last) if last > first else ():
        by_move[moved.access.tensor] = by_move.get(moved.access.tensor, 0) + int(moved.bytes.sum())
        for place, (address, n_bytes) in enumerate(zip(moved.addresses.tolist(), moved.bytes.tolist(), strict=True)):
            if moved.pieces is not None:
                assert sum(n for _, n in moved.pieces(place)) == n_bytes
            key = moved.access.tensor, address
            if moved.access.shared:
                tiles[key] = max(tiles.get(key, 0), n_bytes)
            else:
                once += n_bytes
    assert sum(by_move.values()) == sum(filled.values()) + stored
    if last > first:
        assert found.touched(first, last) == (sum(tiles.values()), once)


def test_units_of_a_plane_and_how_many_planes_share() -> None:
    """Flash in blocks of 64 of 200 rows: 4 to a plane, each K and V shared by 3 planes. Naive's qk has 4 × 2 blocks."""
    problem = Attention(2, 6, 2, 200, 128, 64)
    tile = Tile(64, 64, 4, 2)
    for algorithm, name, plane, loops in (
        ("flash", "flash", 4, 1),
        ("naive", "qk", 8, 0),
        ("naive", "softmax", 200, 0),
    ):
        trace = traces_of(algorithm, problem, tile, HOPPER)[name]
        found = units_of(plan_launch(trace, GPU), GridOrder())
        assert (found.plane, len(found.loops), found.alike) == (plane, loops, True)
        assert found.count % plane == 0
    flash = traces_of("flash", problem, tile, HOPPER)["flash"]
    found = units_of(plan_launch(flash, GPU), GridOrder())
    assert (found.shared_by, found.rows, found.ragged) == (3, 4, True)
    whole = traces_of("flash", Attention(2, 6, 2, 256, 128, 64), tile, HOPPER)["flash"]
    assert not units_of(plan_launch(whole, GPU), GridOrder()).ragged
    causal = traces_of("flash", Attention(2, 6, 2, 256, 256, 64, causal=True), tile, HOPPER)["flash"]
    assert not units_of(plan_launch(causal, GPU), GridOrder()).alike


@pytest.mark.parametrize(("seq_k", "parted"), [(256, False), (251, True), (272, False), (260, True)])
def test_tiles_whose_rows_end_within_a_sector_store_parts_of_it(seq_k: int, parted: bool) -> None:
    """S has rows of 2 · seq_k bytes, cut into tiles of 64 columns: whole sectors where that is a multiple of 32."""
    qk = traces_of("naive", Attention(1, 1, None, 64, seq_k, 64), Tile(64, 64, 4, 2), HOPPER)["qk"]
    assert units_of(plan_launch(qk, GPU), GridOrder()).parts_sectors is parted


@given(st.sampled_from(tuple(ORDERS)), st.integers(1, 7), st.integers(1, 5), st.integers(1, 4))
def test_places_are_units_at_many_places(name: str, rows: int, heads: int, batch: int) -> None:
    order = order_of(name)
    axes = (("i", rows), ("head", heads), ("batch", batch))
    count = rows * heads * batch
    places = order.places(axes, np.arange(count))
    found = [{axis: int(values[index]) for axis, values in places.items()} for index in range(count)]
    assert found == [order.unit(axes, index) for index in range(count)]
    # Every place once, whatever the order.
    assert len({tuple(sorted(unit.items())) for unit in found}) == count


def test_blocks_that_are_left_out_are_not_handed_out() -> None:
    told: list[tuple[str, int, int]] = []
    handout = Handout("t", (("i", 10),), GridOrder(), lambda *said: told.append(said))
    assert [handout.take() for _ in range(4)] == [0, 1, 2, 3]
    handout.leave_out(3)
    assert handout.blocks == 7
    assert [handout.take() for _ in range(5)] == [4, 5, 6, None, None]
    assert [done for _, done, _ in told] == [0, 1, 2, 3, 3, 4, 5, 6]
    # What is told of is what is left to do.
    assert [of for _, _, of in told] == [10] * 4 + [7] * 4


def test_another_memory_may_be_below_the_l2_for_a_while() -> None:
    memory = Memory(GPU)
    assert memory.l2 is not None
    l2: L2 = memory.l2
    ledger = Ledger()
    with l2.beside(ledger):
        assert l2.read_shared(5, 1 << 20, 4096, 0) == (4096, 0)
    assert (ledger.read_bytes, ledger.write_bytes, memory.hbm.read_bytes) == (4096, 0, 0)
    # The L2 has the tile, and HBM is below again, also after an error.
    assert l2.read_shared(10, 1 << 20, 4096, 0)[0] == 0
    with pytest.raises(KeyError), l2.beside(ledger):
        raise KeyError
    assert l2.read_shared(10, 1 << 21, 4096, 0)[0] == 4096
    assert (ledger.read_bytes, memory.hbm.read_bytes) == (4096, 4096)


def double(right: Any) -> Any:
    return lambda self, first, last: (right(self, first, last)[0], 2 * right(self, first, last)[1])


FAULTS = {
    "a row of units too many": ("totals", lambda right: lambda self, first, last: right(self, first, last + 1)),
    "stores counted twice": ("totals", double),
    "the unit after it": ("__getitem__", lambda right: lambda self, index: right(self, (index + 1) % self.count)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traces_of("flash", Attention(1, 3, None, 200, 200, 64, causal=True), Tile(64, 64, 4, 2), HOPPER)["flash"]
    plan = plan_launch(trace, GPU)
    envs = [GridOrder().unit(plan.axes, index) for index in range(trace.blocks)]

    def check() -> None:
        found = units_of(plan, GridOrder())
        check_unit(found, plan, envs[4], 4)
        check_sums(found, plan, envs, 1, 7)

    check()
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(Units, name, wrong(getattr(Units, name)))
    with pytest.raises(AssertionError):
        check()
