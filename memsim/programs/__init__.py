"""The algorithms, one file each, and the dict that names them."""

from __future__ import annotations

from collections.abc import Callable

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.grid import ROWS_FAST
from memsim.language import Program
from memsim.programs import flash, flash1, naive
from memsim.tile import Room, Tile

Builder = Callable[[Attention, Tile, Room, bool], Program]

PROGRAMS: dict[str, Builder] = {"naive": naive.build, "flash": flash.build, "flash1": flash1.build}


def build_program(algorithm: str, problem: Attention, tile: Tile, room: Room, *, lse: bool = False) -> Program:
    """The program of an algorithm for a problem, a tile and a machine's room. `lse` also stores the log-sum-exp.

    Raises `MemsimError` for an unknown algorithm or a tile whose shape the machine cannot run.
    """
    if algorithm not in PROGRAMS:
        raise MemsimError(f"there is no algorithm {algorithm!r}; choose one of {', '.join(PROGRAMS)}.")
    room.check_tile(tile)
    if tile.load_path != "pointer":
        _check_load_path(algorithm, problem, tile)
    if tile.grid_order != ROWS_FAST:
        check_grid_order(algorithm, tile)
    return PROGRAMS[algorithm](problem, tile, room, lse)


def check_grid_order(algorithm: str, tile: Tile) -> None:
    """Refuse an order, not rows-fast, that an algorithm or a load path does not go in."""
    faults = []
    if algorithm != "flash":
        faults.append(f"grid_order is {tile.grid_order}, but {algorithm} goes rows-fast only; take rows-fast.")
    if tile.grid_order == "persistent" and tile.load_path == "descriptor-ws":
        faults.append(
            "grid_order is persistent, but a warp-specialised kernel may have one loop only; take the load_path "
            "descriptor, or another grid_order."
        )
    if faults:
        raise MemsimError(faults)


def _check_load_path(algorithm: str, problem: Attention, tile: Tile) -> None:
    faults = []
    if algorithm != "flash":
        faults.append(f"load_path is {tile.load_path}, but {algorithm} asks for tiles by pointers only; take pointer.")
    if problem.dtype_bytes != 2 or problem.head_dim % 8:
        faults.append(
            f"load_path is {tile.load_path}, but {problem.dtype} rows of {problem.head_dim} are not what tensor "
            "descriptors take here: 16-bit elements in rows of a multiple of 16 bytes; take pointer."
        )
    if faults:
        raise MemsimError(faults)
