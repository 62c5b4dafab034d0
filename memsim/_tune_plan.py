"""What is tuned: the candidates of an algorithm on a machine, as the plan of a sweep over the fields of a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memsim._option_list import TILE
from memsim._options import Faults, Machines
from memsim._sweep_axes import TILE_AXIS, axis_name, options_set
from memsim._sweep_plan import SweepPlan
from memsim.api import DEFAULT_GPU
from memsim.errors import MemsimError
from memsim.gpu import SHORT_OPTIONS, Gpu
from memsim.grid import ORDERS, ROWS_FAST
from memsim.tile import HAVE_DESCRIPTORS, LOAD_PATHS

SIDES = ("16", "32", "64", "128", "256")
WARPS = ("4", "8")
STAGES = ("1", "2", "3", "4")
# Of full attention the other orders change only what meets in the L2, for the worse on every problem measured
# (docs/validation.md).
ORDERS_OF_FULL = (ROWS_FAST, "persistent")


def default_axes(algorithm: str, gpu: Gpu | None, *, causal: bool) -> dict[str, tuple[str, ...]]:
    """What each field of a tile is tried with where nothing is said of it.

    Load paths and grid orders are flash's. A machine without an architecture knows nothing of warps: its pipes are the
    SM's.
    """
    architecture = None if gpu is None else gpu.architecture
    paths: tuple[str, ...] = LOAD_PATHS[:1]
    orders: tuple[str, ...] = (ROWS_FAST,)
    if algorithm == "flash":
        paths = LOAD_PATHS if architecture in HAVE_DESCRIPTORS else paths
        orders = tuple(ORDERS) if causal else ORDERS_OF_FULL
    warps = WARPS[:1] if architecture is None else WARPS
    return dict(zip(TILE, (SIDES, SIDES, warps, STAGES, paths, orders), strict=True))


def tune_plan(
    algorithm: str, vary: Sequence[tuple[str, Sequence[str]]], options: Mapping[str, str],
    gpu_fields: Mapping[str, str], *, count_only: bool, machines: Machines,
) -> SweepPlan:  # fmt: skip
    """The plan whose points are the candidates: `vary` gives axes of a tile (block-m to grid-order, or tile) their
    values, an option a single one, the rest are the machine's.

    Raises `MemsimError` with every fault of the axes and of what all candidates share.
    """
    faults = Faults()
    for name, _ in vary:
        faults.attempt(_check_axis, name)
    varied = options_set([name.replace("_", "-") for name, _ in vary])
    fixed = {name: (text,) for name, text in options.items() if name in TILE and name not in varied}
    shared = {name: text for name, text in options.items() if name not in fixed}
    changes = {name: text for name, text in options.items() if name in SHORT_OPTIONS} | dict(gpu_fields)
    # What is wrong with the machine the plan says, with all other faults.
    gpu = Faults().attempt(machines.get, options.get("gpu", DEFAULT_GPU), changes)
    defaults = default_axes(algorithm, gpu, causal=options.get("causal") == "true")
    axes = list(vary)
    axes += [(name, fixed.get(name, values)) for name, values in defaults.items() if name not in varied]
    plan = faults.attempt(
        lambda: SweepPlan(algorithm, axes, shared, gpu_fields, count_only=count_only, machines=machines)
    )
    faults.raise_any()
    assert plan is not None
    return plan


def _check_axis(given: str) -> None:
    name = axis_name(given)
    if name not in TILE and name != TILE_AXIS:
        raise MemsimError(
            f"tune varies the tile, and {name} is none of its fields ({', '.join((TILE_AXIS, *TILE))}): give it one "
            "value as an option, or take memsim sweep."
        )
