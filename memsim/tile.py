"""The tile: how much of the problem one thread block works on, and where its values live."""

from __future__ import annotations

from dataclasses import dataclass

from memsim.errors import MemsimError
from memsim.grid import ORDERS, ROWS_FAST

LARGEST_BLOCK = 2**16
LOAD_PATHS = ("pointer", "descriptor", "descriptor-ws")
HAVE_DESCRIPTORS = ("sm_90", "sm_100", "sm_103", "sm_120")
"""Compute capabilities with tensor descriptors (TMA)."""
_HAVE_WARP_GROUP_PRODUCTS = ("sm_90", "sm_100", "sm_103")


@dataclass(frozen=True, slots=True)
class Tile:
    """block_m rows of Q by block_n rows of K and V, worked on by num_warps warps with num_stages buffers.

    `load_path` is how a kernel asks for tiles: "pointer", an address an element; "descriptor", a box of a tensor
    (TMA); "descriptor-ws", the same with loads and math in different warps. `grid_order` is the order in which flash's
    blocks go over rows and heads (`memsim.grid`).
    """

    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 2
    load_path: str = "pointer"
    grid_order: str = ROWS_FAST

    def __post_init__(self) -> None:
        faults = []
        for name, most in (
            ("block_m", LARGEST_BLOCK),
            ("block_n", LARGEST_BLOCK),
            ("num_warps", 32),
            ("num_stages", 64),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                faults.append(f"{name} is {value!r}; it must be a whole number between 1 and {most}.")
        if not faults and self.num_warps & (self.num_warps - 1):
            faults.append(f"num_warps is {self.num_warps}; it must be a power of two.")
        if self.load_path not in LOAD_PATHS:
            faults.append(f"load_path is {self.load_path!r}; it must be one of {', '.join(LOAD_PATHS)}.")
        if self.grid_order not in ORDERS:
            faults.append(f"grid_order is {self.grid_order!r}; it must be one of {', '.join(ORDERS)}.")
        if faults:
            raise MemsimError(faults)

    def __str__(self) -> str:
        warps, stages = (
            f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((self.num_warps, "warp"), (self.num_stages, "stage"))
        )
        path = "" if self.load_path == "pointer" else f", {self.load_path}"
        order = "" if self.grid_order == ROWS_FAST else f", {self.grid_order}"
        return f"{self.block_m}×{self.block_n}, {warps}, {stages}{path}{order}"


SPECIALIZED_SEEN_RIGHT = frozenset(
    Tile(*shape, "descriptor-ws") for shape in ((128, 128, 4, 2), (128, 64, 4, 2), (128, 128, 4, 1))
)
"""Warp-specialised kernels seen right on an H200, full attention without LSE. With 3 stages or more they return NaN;
causal masks and the LSE come out wrong (memsim_kernels refuses them); with 64 rows O is stored by both math groups,
right and twice (ncu)."""


@dataclass(frozen=True, slots=True)
class RingRule:
    """Buffers each streamed tensor gets; `shared` means that K and V take turns in the same ones."""

    buffers: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Room:
    """Where a block may keep things.

    `registers`: the SM has a register file, so accumulators, S, P, m and l do not count against SRAM.
    `sram_limit_bytes`: the most SRAM one block may use, whatever the machine reserves already taken off.
    `mma_tiles`: tiles must suit tensor instructions, which take powers of two of at least 16.
    """

    registers: bool
    sram_limit_bytes: int
    mma_tiles: bool
    architecture: str | None

    def ring(self, tile: Tile, dtype_bytes: int) -> RingRule:
        """Buffers of a loop with num_stages stages; a single stage does not pipeline, and K and V take turns.

        Matrix products of whole warp groups (`warp_group_products`) keep num_stages buffers in flight. Those of single
        warps, and products without tensor instructions, read a buffer before the copy of the next tile is issued, so
        they hold one fewer (Triton 3.6 and 3.9, compiled; docs/design.md, "SRAM of a block").
        """
        if tile.num_stages == 1:
            return RingRule(1, shared=True)
        if self.mma_tiles and not self.warp_group_products(tile, dtype_bytes):
            return RingRule(tile.num_stages - 1, shared=False)
        return RingRule(tile.num_stages, shared=False)

    def warp_group_products(self, tile: Tile, dtype_bytes: int) -> bool:
        """Whether matrix products run asynchronously on groups of four warps and 64 rows (wgmma, tcgen05)."""
        return (
            self.architecture in _HAVE_WARP_GROUP_PRODUCTS
            and tile.block_m >= 64
            and tile.num_warps >= 4
            and dtype_bytes == 2
        )

    def padded_width(self, head_dim: int) -> int:
        """Columns a tile of head_dim takes in SRAM: the next power of two of at least 16 where MMA tiles rule."""
        return max(16, 1 << (head_dim - 1).bit_length()) if self.mma_tiles else head_dim

    def check_tile(self, tile: Tile) -> None:
        """Refuse block sizes that the tensor instructions of a real GPU cannot take, and loads that it cannot make."""
        faults = []
        if tile.load_path != "pointer" and self.architecture not in HAVE_DESCRIPTORS:
            faults.append(
                f"load_path is {tile.load_path}, but {self.architecture or 'this machine'} has no tensor descriptors; "
                "take pointer."
            )
        if self.mma_tiles:
            faults += self._shape_faults(tile)
        if faults:
            raise MemsimError(faults)

    @staticmethod
    def _shape_faults(tile: Tile) -> list[str]:
        return [
            f"{name} is {value}; this GPU's tensor instructions take powers of two of at least 16."
            for name, value in (("block_m", tile.block_m), ("block_n", tile.block_n))
            if value < 16 or value & (value - 1)
        ]


def cdiv(a: int, b: int) -> int:
    """Quotient rounded up."""
    return -(-a // b)
