"""Do the real kernels go over their units in the order that they are asked for, with the same numbers in every one?"""

from __future__ import annotations

import pytest
import torch
from memsim_kernels import flash_attention
from memsim_kernels._grids import Point
from memsim_kernels._ready import ready
from memsim_kernels.accesses import difference_from_program, first_difference
from memsim_kernels.calls import Call
from memsim_kernels.flash import order_of
from memsim_kernels.inputs import random_inputs
from memsim_kernels.measure import refusal_of
from memsim_kernels.record import record_call

from memsim import Attention, Tile
from memsim.grid import ORDERS, GridOrder
from memsim.language import trace_launch

from .launches import ROOM, make

PROBLEM = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=70, seq_len_k=50, head_dim=24, causal=True)
OTHERS = tuple(order for order in ORDERS if order != "rows-fast")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of three planes and room for seven blocks: neither divides what there is."""
    small = {"head-sections": GridOrder("head-sections", planes=3), "persistent": GridOrder("persistent", resident=7)}

    def order(problem: Attention, tile: Tile, capability: tuple[int, int], *, lse: bool) -> GridOrder:
        return small.get(tile.grid_order) or order_of(problem, tile, capability, lse=lse)

    monkeypatch.setattr("memsim_kernels.flash.order_of", order)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("load_path", ["pointer", "descriptor"])
@pytest.mark.parametrize("order", OTHERS)
def test_every_access_is_the_simulators_in_order(order: str, load_path: str) -> None:
    made = make("flash", PROBLEM, Tile(16, 16, 4, 2, load_path, order), lse=True)
    (call,) = made.calls
    assert len(call.grid) == 1 and call.order.name == order
    assert difference_from_program(made.program, made.calls) is None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("order", OTHERS)
def test_another_order_is_noticed(order: str) -> None:
    """A kernel that goes over its units otherwise than it says."""
    made = make("flash", PROBLEM, Tile(16, 16, 4, 2, grid_order=order))
    (call,) = made.calls
    (spec,) = made.program.launches
    trace, recording = trace_launch(spec, ROOM), record_call(call, tensors=made.program.tensors)
    assert first_difference(trace, recording, call.order) is None
    wrong = {
        "head-sections": GridOrder("head-sections", planes=4), "persistent": GridOrder("persistent", resident=6),
    }.get(order, GridOrder())  # fmt: skip
    assert first_difference(trace, recording, wrong) is not None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("load_path", ["pointer", "descriptor"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_numbers_are_the_same_bits(load_path: str, causal: bool) -> None:
    problem = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=70, seq_len_k=50, head_dim=24, causal=causal)
    inputs = random_inputs(problem, 5)
    found = {}
    for order in ORDERS:
        made = ready("flash", problem, Tile(16, 16, 4, 2, load_path, order), inputs, lse=True)
        made.launch()
        assert made.lse is not None and not made.o.isnan().any()
        found[order] = (made.o, made.lse)
    for o, lse in found.values():
        assert torch.equal(o, found["rows-fast"][0]) and torch.equal(lse, found["rows-fast"][1])


def test_the_public_function_takes_them() -> None:
    q = torch.randn(1, 2, 40, 16, dtype=torch.float16)
    found = [flash_attention(q, q, q, tile=Tile(16, 16, 4, 2, grid_order=order)) for order in ORDERS]
    assert all(torch.equal(o, found[0]) for o in found)
    specialised = Tile(128, 64, 4, 2, "descriptor-ws", "persistent")
    assert "may have one loop only" in refusal_of(Point("flash", Attention(), specialised), "h200")


def test_a_persistent_grid_is_what_there_is_room_for() -> None:
    """Of the tile that runs at two blocks on each of 132 SMs; and all units where those are fewer."""
    long = Attention(heads=16, seq_len_q=4096, seq_len_k=4096, head_dim=128)
    assert grid_of(long, Tile(64, 64, 4, 3, grid_order="persistent")) == (264,)
    assert grid_of(PROBLEM, Tile(64, 64, 4, 3, grid_order="persistent")) == (16,)
    assert grid_of(long, Tile(64, 64, 4, 3, grid_order="heads-fast")) == (1024,)
    assert grid_of(long, Tile(64, 64, 4, 3)) == (64, 16, 1)


def grid_of(problem: Attention, tile: Tile) -> tuple[int, ...]:
    (call,) = make("flash", problem, tile, device="meta").calls
    assert isinstance(call, Call)
    return call.grid
