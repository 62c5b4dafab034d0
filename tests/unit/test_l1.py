"""What does the L1 find, and what makes room? By hand."""

from __future__ import annotations

from memsim.machine.l1 import L1


def test_what_was_loaded_or_stored_is_found_again() -> None:
    l1 = L1(300)
    assert [l1.take(tile, 100) for tile in (0, 100, 0, 200, 100)] == [0, 0, 100, 0, 100]


def test_the_oldest_goes_first() -> None:
    l1 = L1(300)
    assert [l1.take(tile, 100) for tile in (0, 100, 200, 0, 300)] == [0, 0, 0, 100, 0]
    # Tile 100 was oldest.
    assert l1.take(0, 100) == 100
    assert l1.take(100, 100) == 0


def test_a_tile_may_be_there_in_part() -> None:
    """Room for one and three quarters: of two tiles, the older one keeps three quarters."""
    l1 = L1(175)
    assert [l1.take(tile, 100) for tile in (0, 100)] == [0, 0]
    assert l1.take(0, 100) == 75
    assert l1.take(100, 100) == 75


def test_a_tile_larger_than_the_l1_is_there_as_far_as_there_is_room() -> None:
    l1 = L1(60)
    assert l1.take(0, 100) == 0
    assert l1.take(0, 100) == 60
    assert L1(0).take(0, 100) == 0


def test_of_a_clipped_tile_only_that_much_is_held() -> None:
    l1 = L1(1000)
    l1.take(0, 100)
    assert l1.take(0, 40) == 40
    assert l1.take(0, 100) == 40
