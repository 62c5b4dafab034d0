"""What does the L2 hold, miss, evict, merge and owe to HBM? Small made-up caches, every byte counted by hand.

HBM moves 1 B a picosecond after a latency of 100 ps, so that times can be read off the bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from memsim import Gpu, load_gpu
from memsim.gpu import override
from memsim.machine import l2 as module
from memsim.machine.hbm import Hbm
from memsim.machine.l2 import L2, Access, Tally, piece_bytes_of
from memsim.machine.levels import Memory

BASE = override(
    load_gpu("a100-40gb"),
    {
        "hbm.bandwidth_bytes_per_s": 1e12,
        "hbm.latency_s": 1e-10,
        "l2.latency_s": 1e-11,
        "l2.bandwidth_bytes_per_s": 1e13,
        "l2.partitions": 1,
    },
)

# Tiles of 100 bytes that several blocks ask for; and a tensor of rows of 100 bytes, read once, two rows to a piece.
K = Access("K", True, 0, 100, 1, 1000, 100, 100)
Q = Access("Q", False, 1_000_000, 200, 1, 1000, 100, 100)


def gpu(capacity_bytes: int, **l2: Any) -> Gpu:
    return override(BASE, {"l2.capacity_bytes": capacity_bytes} | {f"l2.{name}": value for name, value in l2.items()})


def cache(capacity_bytes: int, **l2: Any) -> tuple[L2, Hbm]:
    machine = gpu(capacity_bytes, **l2)
    hbm = Hbm(machine)
    made = L2(machine, hbm)
    made.begin_launch()
    return made, hbm


def reads(l2: L2, *tiles: int, now: int = 10_000, side: int = 0) -> list[int]:
    """Bytes that each tile of K, by number, is missed for by an SM on a side."""
    return [l2.read(now, K, 100 * tile, 100, side)[0] for tile in tiles]


def test_what_was_read_is_found_again() -> None:
    l2, hbm = cache(1000)
    assert reads(l2, 0, 0, 1, 0, 1) == [100, 0, 100, 0, 0]
    assert hbm.read_bytes == 200
    assert l2.tallies == {"K": Tally(500, 200)}


def test_the_least_recently_used_is_evicted() -> None:
    """Room for three. Tile 0 is used again before 3 comes, so 1 goes."""
    l2, _ = cache(300)
    assert reads(l2, 0, 1, 2, 0, 3) == [100, 100, 100, 0, 100]
    assert reads(l2, 0, 2, 3) == [0, 0, 0]
    assert reads(l2, 1) == [100]
    assert reads(l2, 0) == [100]


def test_a_loop_longer_than_the_cache_finds_nothing() -> None:
    """Least recently used is the worst there is for a loop that is one tile too long."""
    assert sum(reads(cache(400)[0], *range(4), *range(4))) == 400
    assert sum(reads(cache(400)[0], *range(5), *range(5))) == 1000


def everywhere(l2: L2, *tiles: int, partitions: int) -> list[int]:
    """Bytes missed when SMs on all sides ask for each tile, one side after the other."""
    return [sum(l2.read(10_000, K, 100 * tile, 100, side)[0] for side in range(partitions)) for tile in tiles]


@pytest.mark.parametrize("partitions, found", [(1, 4), (2, 2), (4, 1)])
def test_shared_tiles_take_room_in_every_partition(partitions: int, found: int) -> None:
    """Of four tiles that all sides read, the last ones are still there: 400 bytes of room, each of 100 a partition."""
    l2, hbm = cache(400, partitions=partitions)
    assert everywhere(l2, 0, 1, 2, 3, partitions=partitions) == [100] * 4
    # HBM is asked for one copy.
    assert hbm.read_bytes == 400
    again = everywhere(l2, *reversed(range(4)), partitions=partitions)
    assert [miss == 0 for miss in again] == [True] * found + [False] * (4 - found)


def test_who_asks_from_one_side_keeps_one_copy() -> None:
    """Two partitions: of a tile both halves at home, 50 bytes each, and 50 of the far half beside the SM."""
    l2, _ = cache(300, partitions=2)
    assert reads(l2, 0, 1) == [100, 100]
    assert reads(l2, 0, 1) == [0, 0]
    # The copies served the second round, so the far halves are oldest, 0b and 1b, and after them 0a.
    assert reads(l2, 2) == [100]
    assert reads(l2, 1) == [0]
    assert reads(l2, 0) == [50]


def test_a_copy_that_is_gone_is_fetched_from_its_home() -> None:
    """Room for 300 bytes: halves 0a and 0b at home, a copy of 0b beside side 0, then of 0a beside side 1."""
    l2, hbm = cache(300, partitions=2)
    assert reads(l2, 0) == [100]
    assert reads(l2, 0, side=1) == [0] and hbm.read_bytes == 100
    # 150 bytes more: what is longest unused goes, the copy beside side 0.
    assert reads(l2, 1) == [100]
    # Both halves are still at home.
    assert reads(l2, 0) == [0] and hbm.read_bytes == 200


def test_a_half_that_is_gone_from_its_home_is_read_from_hbm() -> None:
    """Room for 250 bytes: with tile 1 half 0a goes too. Side 1 has a copy of it, side 0 has to read it."""
    l2, hbm = cache(250, partitions=2)
    reads(l2, 0)
    reads(l2, 0, side=1)
    assert reads(l2, 1) == [100]
    assert reads(l2, 0, side=1) == [0]
    assert reads(l2, 0) == [50] and hbm.read_bytes == 250


def test_a_copy_that_is_used_grows_no_older() -> None:
    """Room for 300 bytes, two tiles of 150 from one side. Tile 0 is used again: of tile 1 goes what is not at home."""
    l2, hbm = cache(300, partitions=2)
    reads(l2, 0, 1, 0)
    # 150 bytes more: the far halves 0b and 1b, which copies stood for, and half 1a; copies of both stay.
    assert reads(l2, 2) == [100]
    assert reads(l2, 0) == [0] and hbm.read_bytes == 300


def test_a_copy_on_its_way_is_waited_for() -> None:
    """Side 1 asks at 50 for what side 0 asked for at 0: both have it at 200; at 150, of another tile, later."""
    l2, _ = cache(1000, partitions=2)
    assert l2.read(0, K, 0, 100, 0) == (100, 200)
    assert l2.read(50, K, 0, 100, 1) == (0, 200)
    l2.settle()
    l2.pieces[3].ready = 500
    assert l2.read(150, K, 0, 100, 1) == (0, 500)


def test_what_is_stored_is_found_from_every_side() -> None:
    l2, hbm = cache(1000, partitions=2)
    l2.write(0, K, 0, 100)
    assert [reads(l2, 0, side=side) for side in range(2)] == [[0], [0]] and hbm.read_bytes == 0


def test_stores_alone_push_out_the_oldest() -> None:
    l2, hbm = cache(200)
    for tile in range(3):
        l2.write(0, K, 100 * tile, 100)
    assert (hbm.write_bytes, l2.dirty_bytes) == (100, 200)


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_what_is_touched_once_takes_room_once(partitions: int) -> None:
    """Four rows fill 400 bytes, loaded or stored; a fifth pushes the first piece out."""
    for touch in ("read", "write"):
        l2, _ = cache(400, partitions=partitions)
        for row in range(4):
            getattr(l2, touch)(0, Q, Q.origin + 100 * row, 100)
        l2.begin_launch()
        assert [l2.read(0, Q, Q.origin + 100 * row, 100)[0] for row in range(4)] == [0] * 4
        l2, _ = cache(400, partitions=partitions)
        for row in range(5):
            getattr(l2, touch)(0, Q, Q.origin + 100 * row, 100)
        l2.begin_launch()
        # Two rows are a piece: with the fifth, both of the first are gone.
        assert [l2.read(0, Q, Q.origin + 100 * row, 100)[0] for row in (4, 0)] == [0, 100]


def test_a_second_request_for_what_is_on_its_way_waits_for_it_and_reads_nothing() -> None:
    """Asked for at 0: 100 ps of transfer, 100 of latency; the second, at 50, gets the same."""
    l2, hbm = cache(1000)
    assert l2.read(0, K, 0, 100) == (100, 200)
    assert l2.read(50, K, 0, 100) == (0, 200)
    assert l2.read(500, K, 0, 100) == (0, 200)
    assert hbm.read_bytes == 100 and hbm.pipe.busy_ps == 100
    # Another piece queues behind the first.
    assert l2.read(50, K, 100, 100) == (100, 300)


def test_a_larger_tile_is_missed_for_what_is_not_there() -> None:
    l2, hbm = cache(1000)
    assert l2.read(0, K, 0, 60)[0] == 60
    assert l2.read(0, K, 0, 100)[0] == 40
    assert l2.read(0, K, 0, 80)[0] == 0
    assert hbm.read_bytes == 100


def test_stores_stay_until_there_are_too_many_and_then_the_oldest_goes() -> None:
    """At most 250 dirty bytes: the third store has the first written, and it stays to be read."""
    l2, hbm = cache(1000, dirty_limit_bytes=250)
    for tile in range(2):
        l2.write(0, K, 100 * tile, 100)
    assert (hbm.write_bytes, l2.dirty_bytes) == (0, 200)
    l2.write(0, K, 200, 100)
    assert (hbm.write_bytes, l2.dirty_bytes) == (100, 200)
    assert hbm.read_bytes == 0, "a store of whole sectors reads nothing"
    assert reads(l2, 0, 1, 2) == [0, 0, 0]
    # Written once more, it is dirty once more.
    l2.write(0, K, 0, 100)
    assert (hbm.write_bytes, l2.dirty_bytes) == (200, 200)


def test_a_store_to_what_is_dirty_adds_nothing() -> None:
    l2, hbm = cache(1000, dirty_limit_bytes=100)
    for _ in range(5):
        l2.write(0, K, 0, 100)
    assert (hbm.write_bytes, l2.dirty_bytes) == (0, 100)


def test_what_is_evicted_dirty_is_written() -> None:
    l2, hbm = cache(200)
    l2.write(0, K, 0, 100)
    assert reads(l2, 1, 2) == [100, 100]
    assert (hbm.write_bytes, l2.dirty_bytes) == (100, 0)
    assert reads(l2, 0) == [100]


def test_a_flush_forgets_and_counts_nothing() -> None:
    l2, hbm = cache(1000)
    l2.write(0, K, 0, 100)
    reads(l2, 1)
    l2.flush()
    assert (hbm.write_bytes, l2.dirty_bytes) == (0, 0)
    assert reads(l2, 0, 1) == [100, 100]


def test_of_what_is_read_once_a_launch_finds_what_one_before_left() -> None:
    """Rows are not found again in the launch that reads them (none reads one twice), but in the next."""
    l2, hbm = cache(1000)
    assert l2.read(0, Q, Q.origin, 100)[0] == 100
    assert l2.read(0, Q, Q.origin + 100, 100)[0] == 100
    l2.begin_launch()
    assert l2.tallies == {}
    assert l2.read(0, Q, Q.origin, 100)[0] == 0
    assert l2.read(0, Q, Q.origin + 100, 100)[0] == 0
    assert l2.tallies == {"Q": Tally(200, 0)} and hbm.read_bytes == 200


def test_a_launch_finds_the_part_that_was_stored() -> None:
    """One of the two rows of a piece was stored; of the two that are read, one is missed."""
    l2, _ = cache(1000)
    l2.write(0, Q, Q.origin, 100)
    l2.begin_launch()
    assert [l2.read(0, Q, Q.origin + 100 * row, 100)[0] for row in range(2)] == [0, 100]


def test_tiles_of_a_wider_row_lie_in_all_the_pieces_that_their_rows_do() -> None:
    """A tensor of rows of 100 bytes, two to a piece; a tile of 50 bytes of each of four rows lies in two pieces."""
    narrow = Access("S", False, 0, 200, 4, 1000, 50, 100)
    whole = Access("S", False, 0, 200, 2, 1000, 100, 100)
    l2, _ = cache(10_000)
    l2.write(0, narrow, 0, 4 * 50)
    assert l2.dirty_bytes == 200
    l2.begin_launch()
    # Half of each piece is there.
    assert [l2.read(0, whole, 200 * piece, 200)[0] for piece in range(3)] == [100, 100, 200]


def test_a_tile_gives_each_piece_the_share_of_its_rows() -> None:
    """Three rows from the second on, two to a piece: one in the first, two in the second; at a head's end only one."""
    tile = Access("S", False, 0, 200, 3, 10, 50, 100)
    l2, _ = cache(10_000)
    l2.write(0, tile, 100, 3 * 50)
    l2.write(0, tile, 900, 50)
    l2.begin_launch()
    whole = Access("S", False, 0, 200, 2, 10, 100, 100)
    assert [l2.read(0, whole, 200 * piece, 200)[0] for piece in range(5)] == [150, 100, 200, 200, 150]


def test_columns_of_a_row_add_up_to_it() -> None:
    narrow = Access("S", False, 0, 400, 4, 1000, 50, 100)
    l2, hbm = cache(10_000)
    for column in range(2):
        l2.write(0, narrow, 50 * column, 4 * 50)
    assert l2.dirty_bytes == 400 and hbm.write_bytes == 0
    l2.begin_launch()
    assert l2.read(0, Access("S", False, 0, 400, 4, 1000, 100, 100), 0, 400)[0] == 0


def test_a_sector_in_two_rows_is_fetched_once() -> None:
    """Rows of 100 bytes that lie in 4 or 5 sectors of 32: 640 bytes asked for of 400 that there are."""
    ragged = Access("S", False, 0, 400, 4, 1000, 100, 100)
    l2, hbm = cache(10_000)
    for row in range(4):
        l2.read(0, ragged, 100 * row, 160)
    assert hbm.read_bytes <= 2 * 400
    l2.begin_launch()
    assert sum(l2.read(0, ragged, 100 * row, 100)[0] for row in range(4)) == 0


def test_spilled_bytes_take_room_once() -> None:
    l2, _ = cache(300, partitions=2)
    for row in range(2):
        l2.read(0, Q, Q.origin + 100 * row, 100)
    l2.begin_launch(local_bytes=100)
    assert l2.read(0, Q, Q.origin, 100)[0] == 0


def test_spilled_bytes_take_room() -> None:
    l2, _ = cache(300)
    reads(l2, 0, 1, 2)
    l2.begin_launch(local_bytes=150)
    assert reads(l2, 2) == [0]
    assert reads(l2, 0) == [100]
    l2.begin_launch()
    assert sum(reads(l2, 3, 4, 0, 3, 4)) == 200


def test_time_begins_anew_with_what_is_held() -> None:
    memory = Memory(gpu(1000))
    assert memory.l2 is not None
    memory.begin_launch()
    assert memory.fetch(1_000, K, 0, 100) == (1_200, 100, True)
    memory.restart()
    # A hit: 10 ps of transfer and 10 of the L2's latency.
    assert memory.fetch(0, K, 0, 100) == (20, 10, False)
    memory.forget()
    assert memory.fetch(0, K, 0, 100)[2]


def test_without_an_l2_every_request_is_for_hbm() -> None:
    memory = Memory(override(BASE, {"l2": None}))
    assert [memory.fetch(0, K, 0, 100) for _ in range(2)] == [(200, 100, True), (300, 200, True)]
    assert memory.put(0, K, 0, 100) == 400
    assert memory.counts() == (200, 100, 300)
    assert memory.tallies == {} and memory.dirty_bytes == 0


@pytest.mark.parametrize(
    "total_bytes, row_bytes, size",
    [
        (1 << 20, 256, 1 << 16),
        (1 << 20, 6000, 60_000),
        (1 << 20, 1 << 17, 1 << 17),
        (1 << 33, 128, 1 << 20),
        (0, 0, 1 << 16),
    ],
)
def test_pieces_are_whole_rows_and_not_too_many(total_bytes: int, row_bytes: int, size: int) -> None:
    assert piece_bytes_of(total_bytes, row_bytes) == size
    assert -(-total_bytes // size) <= 1 << 13


FAULTS: dict[str, Any] = {
    "no order of use": ("test_the_least_recently_used_is_evicted", "move_to_end"),
    "one copy": ("test_shared_tiles_take_room_in_every_partition", "copies"),
    "no homes": ("test_a_copy_that_is_gone_is_fetched_from_its_home", "homes"),
    "never ready": ("test_a_second_request_for_what_is_on_its_way_waits_for_it_and_reads_nothing", "ready"),
    "dirty is forgotten": ("test_what_is_evicted_dirty_is_written", "clean"),
    "launches share nothing": ("test_of_what_is_read_once_a_launch_finds_what_one_before_left", "launch"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes one thing out of the L2, and the test that asks for it must fail."""
    name, part = FAULTS[fault]
    if part == "move_to_end":
        unordered = type("Unordered", (OrderedDict,), {"move_to_end": lambda self, key, last=True: None})
        monkeypatch.setattr(module, "OrderedDict", unordered)
    elif part == "copies":
        monkeypatch.setattr(module._Piece, "weight", property(lambda self: 1, lambda self, value: None))
    elif part == "homes":
        right = module.L2.read
        monkeypatch.setattr(
            module.L2, "read", lambda self, now, access, address, n_bytes, side=0: right(
                self, now, access, address + side * 10_000, n_bytes, side
            )
        )  # fmt: skip
    elif part == "ready":
        monkeypatch.setattr(module._Piece, "ready", property(lambda self: 0, lambda self, value: None))
    elif part == "clean":
        monkeypatch.setattr(module.L2, "_clean", lambda self, now, piece: None)
    else:

        def forgets(self: L2, local_bytes: int = 0) -> None:
            self.flush()
            self.tallies = {}

        monkeypatch.setattr(module.L2, "begin_launch", forgets)
    arguments = (4, 1) if part == "copies" else ()
    with pytest.raises(AssertionError):
        globals()[name](*arguments)
