"""Does every grid order go over every unit once, in the order that it is named for, and is it refused elsewhere?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim import Attention, MemsimError, Tile, simulate
from memsim.gpu import load_gpu
from memsim.grid import ORDERS, GridOrder, grid_order
from memsim.programs import build_program
from memsim.resources import room_of

from .measured import memsim_

H200 = load_gpu("h200")
AXES = (("i", 3), ("head", 2), ("batch", 2))


@given(
    name=st.sampled_from(tuple(ORDERS)), sizes=st.tuples(*(st.integers(1, 7),) * 3), planes=st.integers(1, 60),
    resident=st.integers(1, 400),
)  # fmt: skip
def test_every_order_goes_over_every_unit_once(
    name: str, sizes: tuple[int, int, int], planes: int, resident: int
) -> None:
    axes = tuple(zip(("i", "head", "batch"), sizes, strict=True))
    order = GridOrder(name, planes, resident)
    units = sizes[0] * sizes[1] * sizes[2]
    wanted = {(i, head, batch) for i in range(sizes[0]) for head in range(sizes[1]) for batch in range(sizes[2])}
    assert {tuple(order.unit(axes, index).values()) for index in range(units)} == wanted
    shared = [tuple(unit.values()) for block in range(order.blocks(axes)) for unit in order.units_of_block(axes, block)]
    assert len(shared) == units and set(shared) == wanted
    assert order.blocks(axes) == (min(resident, units) if name == "persistent" else units)


@pytest.mark.parametrize(
    ("order", "places"),
    [
        (GridOrder("rows-fast"), "000 100 200 010 110 210 001 101 201 011 111 211"),
        (GridOrder("heads-fast"), "000 010 001 011 100 110 101 111 200 210 201 211"),
        (GridOrder("rows-reversed"), "200 100 000 210 110 010 201 101 001 211 111 011"),
        (GridOrder("longest-first"), "200 210 201 211 100 110 101 111 000 010 001 011"),
        (GridOrder("head-sections", planes=3), "200 210 201 100 110 101 000 010 001 211 111 011"),
    ],
)  # fmt: skip
def test_the_order_is_the_one_that_it_is_named_for(order: GridOrder, places: str) -> None:
    """As row, head, batch."""
    gone_over = [order.unit(AXES, index) for index in range(12)]
    assert " ".join("".join(str(unit[name]) for name, _ in AXES) for unit in gone_over) == places


def test_a_persistent_block_takes_every_so_many_th_unit() -> None:
    order = GridOrder("persistent", resident=5)
    rows = [unit["i"] + 3 * unit["head"] + 6 * unit["batch"] for unit in order.units_of_block(AXES, 1)]
    assert rows == [1, 6, 11]


def test_sections_have_k_and_v_in_half_the_l2() -> None:
    long = Attention(heads=64, seq_len_q=8192, seq_len_k=8192, head_dim=128)
    half = 62_914_560 // 2
    assert grid_order("head-sections", long, H200, 1).planes == half // (2 * 8192 * 128 * 2) == 7
    grouped = Attention(heads=64, kv_heads=16, seq_len_q=8192, seq_len_k=8192, head_dim=128)
    assert grid_order("head-sections", grouped, H200, 1).planes == 7 * 4
    longest = Attention(heads=8, kv_heads=4, seq_len_q=131_072, seq_len_k=131_072, head_dim=128)
    assert grid_order("head-sections", longest, H200, 1).planes == 2
    short = Attention(batch=2, heads=4, seq_len_q=64, seq_len_k=64, head_dim=64)
    assert grid_order("head-sections", short, H200, 1).planes == 8
    assert grid_order("head-sections", long, load_gpu("two-level"), 1).planes == 64


def test_as_many_blocks_as_there_is_room_for() -> None:
    assert grid_order("persistent", Attention(), H200, 3).resident == 3 * 132


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("zigzag",), "grid_order is 'zigzag'; it must be one of rows-fast, heads-fast"),
        (("head-sections",), "planes is 0; a section has at least 1"),
        (("persistent",), "resident is 0; there is room for at least 1 block"),
    ],
)
def test_orders_that_cannot_be(given: tuple[str], words: str) -> None:
    with pytest.raises(MemsimError) as error:
        GridOrder(*given)
    assert words in str(error.value)


def test_a_tile_has_one_of_them() -> None:
    assert str(Tile(64, 64, 4, 2, grid_order="longest-first")) == "64×64, 4 warps, 2 stages, longest-first"
    assert str(Tile(64, 64, 4, 2)) == "64×64, 4 warps, 2 stages"
    with pytest.raises(MemsimError, match="grid_order is 'zigzag'; it must be one of"):
        Tile(64, 64, grid_order="zigzag")


@pytest.mark.parametrize("algorithm", ["naive", "flash1"])
def test_only_flash_takes_another(algorithm: str) -> None:
    with pytest.raises(MemsimError, match=f"but {algorithm} goes rows-fast only; take rows-fast"):
        build_program(algorithm, Attention(), Tile(64, 64, grid_order="heads-fast"), room_of(H200))


def test_a_specialised_block_is_not_persistent() -> None:
    with pytest.raises(MemsimError, match="a warp-specialised kernel may have one loop only"):
        build_program("flash", Attention(), Tile(128, 64, 4, 2, "descriptor-ws", "persistent"), room_of(H200))


def test_bytes_do_not_depend_on_it() -> None:
    problem = Attention(batch=2, heads=3, seq_len_q=300, seq_len_k=200, head_dim=64, causal=True)
    fills = {
        simulate("flash", problem, tile=Tile(64, 64, 4, 2, grid_order=order), count_only=True).total.sram_fill_bytes
        for order in ORDERS
    }
    assert len(fills) == 1


def test_the_option_and_its_json() -> None:
    small = ("--seq-len", "256", "--heads", "2", "--count-only")
    code, out, _ = memsim_("simulate", "flash", *small, "--grid-order", "longest-first", "--json")
    assert code == 0 and '"grid_order": "longest-first"' in out
    code, out, _ = memsim_("compare", *small, "--grid-order", "longest-first", "--json")
    assert code == 0 and out.count('"grid_order": "rows-fast"') == 1
    code, _, said = memsim_("simulate", "naive", *small, "--grid-order", "heads-fast")
    assert code == 2 and "grid-order is heads-fast, but naive goes rows-fast only" in said
    code, _, said = memsim_("simulate", "flash", *small, "--grid-order", "zigzag")
    assert code == 2 and 'grid-order is "zigzag"; it must be one of rows-fast' in said
