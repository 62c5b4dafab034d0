"""What `memsim verify` verifies: cases, their default grid, and what a check found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from memsim.attention import Attention
from memsim.grid import ORDERS, ROWS_FAST
from memsim.tile import Tile, cdiv
from memsim_kernels._grids import Point
from memsim_kernels._ncu import point_of

CHECKS = {
    "numbers": "the interpreted kernel's O and LSE against float64 and against the simulator's own tiles",
    "accesses": "every load, store and matrix product of the interpreted kernel against the trace, in order",
    "resources": "SRAM and blocks per SM of the compiled kernel against the simulator's",
    "gpu-numbers": "the compiled kernel's O and LSE on this GPU, as above, and the same bits when run again",
    "gpu-counters": "bytes that ncu counts on this GPU against the simulator's",
}
"""The checks, in order, and what each compares."""

AGREES, DIFFERS, NOT_RUN, ESTIMATE = "agrees", "differs", "not run", "estimate"
CONTIGUOUS = ("contiguous",) * 3
STRIDED = ("rows-first", "every-second-row", "columns-first")
ALIGNED = ("rows-first", "every-second-row", "contiguous")


@dataclass(frozen=True)
class Case:
    """A point, the layouts of q, k and v, how large their numbers are, and whether they lie beyond 2^31 elements.

    Of a `far` case only some blocks are recorded, on tensors that are an address only, and there are no numbers.
    """

    point: Point
    layouts: tuple[str, str, str] = CONTIGUOUS
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0)
    far: bool = False

    def __str__(self) -> str:
        extra = [] if self.layouts == CONTIGUOUS else ["strided"]
        extra += ["beyond 2^31 elements"] if self.far else []
        return ", ".join([str(self.point), *extra])

    @property
    def label(self) -> str:
        """The case in few words, for a table: the tile as block_m×block_n, warps, stages."""
        t = self.point.tile
        shape, _, _ = str(self.point).partition(",")
        for name, short in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")):
            shape = shape.replace(name, short)
        tile = ", ".join(map(str, (f"{t.block_m}×{t.block_n}", t.num_warps, t.num_stages)))
        words = [f"{shape}, {tile}", *([t.load_path.replace("descriptor", "desc")] if t.load_path != "pointer" else [])]
        words += [t.grid_order] if t.grid_order != ROWS_FAST else []
        words += ["LSE"] if self.point.lse else []
        words += ["strided"] if self.layouts != CONTIGUOUS else []
        words += ["large scores"] if self.sizes != (1.0, 1.0, 1.0) else []
        return " ".join([*words, *(["far"] if self.far else [])])

    def as_dict(self) -> dict[str, Any]:
        """The case as JSON-ready data."""
        return asdict(self)


def case_of(data: dict[str, Any]) -> Case:
    """A case as it was written to JSON."""
    return Case(point_of(data["point"]), tuple(data["layouts"]), tuple(data["sizes"]), data["far"])


@dataclass(frozen=True)
class Outcome:
    """What one check found of one case, and a sentence on where or why: `agrees`, `differs`, `not run`, or `estimate`
    where the simulator only estimates a figure that came out otherwise.

    `figures` are what was compared: errors beside what is allowed, bytes, blocks.
    """

    case: int
    check: str
    status: str
    detail: str
    figures: dict[str, Any]


def unexpected(number: int, check: str, error: BaseException) -> Outcome:
    """A check that raised: what the kernel did is no answer."""
    said = " ".join(str(error).split())[:300]
    return Outcome(number, check, DIFFERS, f"it raised {type(error).__name__}: {said}", {})


def tile_operations(point: Point) -> int:
    """Tiles of K and V that the blocks of flash visit, or tiles of S for naive: what interpreting takes time for."""
    p, t = point.problem, point.tile
    tiles = cdiv(p.seq_len_q, t.block_m) * cdiv(p.seq_len_k, t.block_n) * p.heads * p.batch
    return tiles if point.algorithm == "flash" else 2 * tiles + p.seq_len_q * p.heads * p.batch


def default_cases() -> Iterator[Case]:
    """Small problems that reach every corner: ragged, causal both ways round, grouped heads, lengths 0 and 1, odd
    widths, strides, dtypes, large scores, offsets beyond 2^31, every load path."""
    problems = (
        Attention(batch=2, heads=2, kv_heads=1, seq_len_q=70, seq_len_k=50, head_dim=40),
        Attention(heads=2, seq_len_q=33, seq_len_k=90, head_dim=64, causal=True),
        Attention(heads=2, seq_len_q=60, seq_len_k=21, head_dim=24, causal=True, dtype="float32"),
        Attention(heads=3, seq_len_q=1, seq_len_k=70, head_dim=16, dtype="float32", scale=0.5),
        Attention(heads=1, seq_len_q=40, seq_len_k=0, head_dim=16),
        Attention(heads=1, seq_len_q=48, seq_len_k=64, head_dim=32, dtype="bfloat16", causal=True),
    )
    tiles = (Tile(16, 16, 4, 2), Tile(32, 16, 4, 3), Tile(16, 32, 4, 1))
    for number, problem in enumerate(problems):
        for algorithm in ("flash", "naive"):
            layouts = STRIDED if number % 2 == 0 else CONTIGUOUS
            tile = tiles[number % len(tiles)]
            yield Case(Point(algorithm, problem, tile, lse=True), layouts)
    large = Attention(heads=1, seq_len_q=50, seq_len_k=50, head_dim=16)
    yield Case(Point("flash", large, Tile(16, 16, 4, 2), lse=True), sizes=(5.0, 3.0, 3.0))
    described = Attention(heads=2, kv_heads=1, seq_len_q=70, seq_len_k=50, head_dim=40, causal=True)
    yield Case(Point("flash", described, Tile(32, 16, 4, 2, "descriptor"), lse=True), ALIGNED)
    specialized = replace(described, causal=False)
    yield Case(Point("flash", specialized, Tile(32, 16, 4, 2, "descriptor"), lse=True), ALIGNED)
    for scale, load_path in ((0.0, "pointer"), (-0.25, "descriptor")):
        scaled = Attention(heads=1, seq_len_q=40, seq_len_k=25, head_dim=16, causal=True, scale=scale)
        yield Case(Point("flash", scaled, Tile(16, 16, 4, 2, load_path), lse=True))
    yield Case(Point("flash", specialized, Tile(128, 64, 4, 2, "descriptor-ws")), ALIGNED)
    yield from _grid_orders(described)
    # cases of published kernels that took 32-bit offsets
    many = Attention(batch=4096, heads=8, seq_len_q=576, seq_len_k=576, head_dim=128)
    yield Case(Point("flash", many, Tile(64, 64, 4, 2), lse=True), far=True)
    yield Case(Point("naive", many, Tile(64, 64, 4, 2)), far=True)


def _grid_orders(problem: Attention) -> Iterator[Case]:
    """Every grid order, by turns through pointers and descriptors."""
    for number, order in enumerate(order for order in ORDERS if order != ROWS_FAST):
        load_path = ("pointer", "descriptor")[number % 2]
        yield Case(Point("flash", problem, Tile(16, 16, 4, 2, load_path, order), lse=True), ALIGNED)


def resource_points() -> Iterator[Point]:
    """Kernels whose SRAM and blocks per SM are compared: tiles of a size that one would launch."""
    for head_dim in (64, 128):
        for causal in (False, True):
            problem = Attention(heads=16, seq_len_q=1024, seq_len_k=1024, head_dim=head_dim, causal=causal)
            for tile in (
                Tile(64, 64, 4, 3),
                Tile(128, 64, 8, 2),
                Tile(128, 128, 8, 2),
                Tile(64, 64, 4, 3, "descriptor"),
            ):
                yield Point("flash", problem, tile)
            if not causal:
                yield Point("flash", problem, Tile(128, 128, 4, 2, "descriptor-ws"))
                yield Point("naive", problem, Tile(64, 64, 4, 3))


def gpu_points() -> Iterator[Point]:
    """Kernels whose numbers and counters are compared on a GPU."""
    for dtype in ("float16", "bfloat16"):
        for causal in (False, True):
            problem = Attention(
                heads=4, kv_heads=2, seq_len_q=300, seq_len_k=410, head_dim=128, dtype=dtype, causal=causal
            )
            yield Point("flash", problem, Tile(64, 64, 4, 3), lse=True)
            yield Point("flash", problem, Tile(64, 64, 4, 3, "descriptor"), lse=True)
            yield Point("naive", replace(problem, seq_len_k=416), Tile(64, 64, 4, 3), lse=True)
    yield Point("flash", replace(problem, causal=False), Tile(128, 128, 4, 2, "descriptor-ws"))
    single = Attention(heads=2, seq_len_q=130, seq_len_k=97, head_dim=72, dtype="float32", causal=True)
    yield Point("flash", single, Tile(32, 32, 4, 2), lse=True)
    yield Point("naive", single, Tile(32, 32, 4, 2), lse=True)


def cases_of(points: Iterable[Point]) -> Iterator[Case]:
    """The points that were asked for, contiguous and strided."""
    for point in points:
        yield Case(point)
        yield Case(point, ALIGNED if point.tile.load_path != "pointer" else STRIDED)
