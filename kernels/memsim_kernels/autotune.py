"""From a tuning to Triton's autotuner: a tile as a `triton.Config`, and a list of configs pruned to the few that the
simulator takes for the best, so that a real autotune compiles these only.

    triton.autotune(configs, ["seq_q", "seq_k"], {"early_config_prune": early_config_prune(keep=10)})(kernel)

as it stands for this package's flash kernels, and with `tile_of` and `problem_of` for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from memsim.api import DEFAULT_GPU
from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.gpu import Gpu, load_gpu
from memsim.grid import ROWS_FAST, grid_order
from memsim.tile import Tile
from memsim.tune import Candidate, Tuning, tune
from memsim_kernels._checks import capability_of, machine_of_capability

Arguments = Mapping[str, Any]
"""A launch's arguments by parameter name, constants included, without those of a config."""

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


def as_config(
    chosen: Tile | Candidate, problem: Attention | None = None, *, gpu: str | Gpu = DEFAULT_GPU
) -> Any:  # fmt: skip
    """A tile as the `triton.Config` of flash: `flash_pointer_kernel`'s for the load path "pointer", else
    `flash_descriptor_kernel`'s.

    What a config fixes beyond the tile may depend on the problem: whether tiles of keys are whole (descriptors), and
    how many planes a section has (head-sections, on this `gpu`) or a launch (persistent); `problem` is then needed. A
    persistent launch takes a grid of its own (`memsim.grid.GridOrder.blocks`). Raises `MemsimError` without.
    """
    tile = chosen.tile if isinstance(chosen, Candidate) else chosen
    described = tile.load_path != "pointer"
    if problem is None and (described or tile.grid_order in ("head-sections", "persistent")):
        raise MemsimError(f"what kernel tile {tile} takes depends on the problem: give that too.")
    constants: dict[str, Any] = {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "STAGES": tile.num_stages,
        "ORDER": tile.grid_order,
        "PLANES": 0,
    }
    if problem is not None:
        if described:
            even = problem.seq_len_k % tile.block_n == 0
            constants |= {"EVEN_KEYS": even, "SPECIALIZE": tile.load_path == "descriptor-ws"}
        machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
        order = grid_order(tile.grid_order, problem, machine, 1)
        constants["PLANES"] = problem.batch * problem.heads if order.name == "persistent" else order.planes
    return triton.Config(constants, num_warps=tile.num_warps, num_stages=tile.num_stages)


def tile_of(config: Any) -> Tile:
    """The tile of a config of flash, as `as_config` makes it; what it lacks of orders and load paths is rows-fast, by
    pointers. Raises `MemsimError` where a config has no tile."""
    constants = config.kwargs
    lacking = [name for name in ("BLOCK_M", "BLOCK_N") if name not in constants]
    if lacking:
        raise MemsimError(
            f"a config has no {' and no '.join(lacking)} ({config}): say with tile_of which memsim.Tile it stands for."
        )
    load_path = "pointer"
    if "SPECIALIZE" in constants:
        load_path = "descriptor-ws" if constants["SPECIALIZE"] else "descriptor"
    return Tile(
        constants["BLOCK_M"], constants["BLOCK_N"], config.num_warps, constants.get("STAGES", config.num_stages),
        load_path, constants.get("ORDER", ROWS_FAST),
    )  # fmt: skip


def problem_of(arguments: Arguments) -> Attention:
    """The problem of a launch of flash, from its arguments."""
    q = arguments["q_ptr"]
    heads = arguments["heads"]
    return Attention(
        batch=q.shape[0],
        heads=heads,
        kv_heads=heads // arguments["group"],
        seq_len_q=arguments["seq_q"],
        seq_len_k=arguments["seq_k"],
        head_dim=arguments["HEAD_DIM"],
        dtype=_DTYPES[q.dtype],
        causal=arguments["CAUSAL"],
    )


class EarlyPrune:
    """What Triton's autotuner calls to have a list of configs pruned. `tuning` is what the last call found."""

    def __init__(
        self, keep: int, gpu: str | Gpu | None, tile_of: Callable[[Any], Tile],
        problem_of: Callable[[Arguments], Attention], options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.tuning: Tuning | None = None
        self._keep, self._gpu, self._tile_of, self._problem_of = keep, gpu, tile_of, problem_of
        self._options = options

    def __call__(self, configs: Sequence[Any], named_args: Arguments, **kwargs: Any) -> list[Any]:
        """The best of the configs, the best first."""
        arguments = {**named_args, **kwargs}
        tiles: dict[Tile, list[Any]] = {}
        for config in configs:
            tiles.setdefault(self._tile_of(config), []).append(config)
        options = {"lse": bool(arguments.get("STORE_LSE", False)), **self._options}
        self.tuning = tune(
            self._problem_of(arguments), gpu=self._gpu or _machine_of(arguments), tiles=tiles, best=self._keep,
            **options,
        )  # fmt: skip
        kept = [config for candidate in self.tuning.best for config in tiles[candidate.tile]]
        return kept[: self._keep]


def early_config_prune(
    keep: int = 10, *, gpu: str | Gpu | None = None, tile_of: Callable[[Any], Tile] = tile_of,
    problem_of: Callable[[Arguments], Attention] = problem_of, **options: Any,
) -> EarlyPrune:  # fmt: skip
    """A function for `prune_configs_by={"early_config_prune": …}` that keeps the `keep` configs simulated fastest.

    `gpu` is whose times they are, else that of the tensors' device (an H200 on the CPU); `tile_of` says which tile a
    config stands for, `problem_of` which problem a launch's arguments pose; `options` go to `memsim.tune`. Configs that
    cannot run are left out, and so are those that are not compared: where the instructions of some of the kernels are
    known, the others; `tuning.refusals` of what is returned says how many. Raises `MemsimError` if no config can run.
    """
    return EarlyPrune(keep, gpu, tile_of, problem_of, options)


def _machine_of(arguments: Arguments) -> Gpu:
    device = next((x.device for x in arguments.values() if isinstance(x, torch.Tensor)), torch.device("cpu"))
    return machine_of_capability(capability_of(device))
