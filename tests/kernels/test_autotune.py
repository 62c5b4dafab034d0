"""Does Triton's own autotuner take what memsim hands it, and try the few configs that the simulator takes for the best?

In the interpreter, with the autotuner's clock in our hands: what it would compile on a GPU is what it runs here.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from memsim_kernels._flash_kernels import flash_descriptor_kernel, flash_pointer_kernel
from memsim_kernels.autotune import as_config, early_config_prune, problem_of, tile_of
from memsim_kernels.flash import flash_calls
from memsim_kernels.inputs import random_inputs
from memsim_kernels.reference import attention as reference

from memsim import Attention, MemsimError, Tile, load_gpu, simulate, tune
from memsim.grid import ORDERS

PROBLEM = Attention(heads=2, kv_heads=1, seq_len_q=70, seq_len_k=130, head_dim=64, causal=True)
TILES = [Tile(m, n, 4, s) for m, n, s in itertools.product((16, 64, 128), (16, 32, 64), (1, 2, 3))]
GRIDLESS = ("BLOCK_M", "BLOCK_N", "STAGES", "ORDER", "PLANES", "EVEN_KEYS", "SPECIALIZE")


class Timed:
    """A benchmarker for the autotuner: runs what it is given, and says that each took longer than the one before."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, call: Callable[[], Any], quantiles: Any) -> list[float]:
        call()
        self.runs += 1
        return [float(self.runs)] * 3


def launch(tuner: Any, problem: Attention, load_path: str = "pointer") -> tuple[torch.Tensor, torch.Tensor]:
    """Run an autotuned kernel of flash on random inputs; what it gives, and what is right."""
    q, k, v = random_inputs(problem, seed=0)
    o = torch.empty_like(q)
    (call,) = flash_calls(problem, q, k, v, o, None, Tile(64, 64, load_path=load_path))
    constants = {name: value for name, value in call.constants.items() if name not in GRIDLESS}

    def grid(meta: dict[str, Any]) -> tuple[int, int, int]:
        return triton.cdiv(problem.seq_len_q, meta["BLOCK_M"]), problem.heads, problem.batch

    tuner[grid](*call.args, **constants)
    return o, reference(q, k, v, causal=problem.causal)[0]


def autotuned(configs: list[Any], prune: Any, bench: Timed, kernel: Any = flash_pointer_kernel) -> Any:
    decorate = triton.autotune(
        configs, key=["seq_q", "seq_k"], prune_configs_by={"early_config_prune": prune}, do_bench=bench
    )
    return decorate(kernel)


def test_the_autotuner_runs_the_best_of_the_list_and_gives_the_right_numbers() -> None:
    prune, bench = early_config_prune(keep=3), Timed()
    configs = [as_config(tile, PROBLEM) for tile in TILES]
    tuner = autotuned(configs, prune, bench)
    o, right = launch(tuner, PROBLEM)
    assert bench.runs == 3 < len(configs)
    torch.testing.assert_close(o.float(), right.float(), atol=2e-3, rtol=2e-2)
    found = prune.tuning
    assert found is not None
    assert [tile_of(config) for config in tuner.configs_timings] == [c.tile for c in found.best]
    # The first is timed fastest here, and is the one that the simulator takes for the best.
    assert tile_of(tuner.best_config) == found.tile
    by_hand = tune(PROBLEM, tiles=TILES, best=3)
    assert by_hand.best == found.best
    # Asked again for the same lengths, it times nothing.
    launch(tuner, PROBLEM)
    assert bench.runs == 3


def test_what_is_kept_is_what_simulates_fastest() -> None:
    """By exhaustive simulation, outside of the tuner."""
    prune = early_config_prune(keep=4)
    configs = [as_config(tile, PROBLEM) for tile in TILES]
    times = {}
    for tile in TILES:
        result = simulate("flash", PROBLEM, tile=tile)
        if result.launches[0].replayed_by == "instructions":
            times[tile] = result.total.time_s
    pruned = autotuned(configs, prune, Timed())
    pruned.nargs = {}
    kept = [tile_of(config) for config in pruned.prune_configs(arguments_of(PROBLEM))]
    fastest = sorted(times.values())  # type: ignore[type-var]
    assert [times[tile] for tile in kept] == fastest[:4]
    assert prune.tuning is not None
    not_compared = [refusal.count for refusal in prune.tuning.refusals if refusal.kind == "not-compared"]
    assert len(times) + sum(r.count for r in prune.tuning.refusals) == len(TILES) and not_compared


def arguments_of(problem: Attention, **constants: Any) -> dict[str, Any]:
    shape = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
    return {
        "q_ptr": torch.empty(shape, dtype=getattr(torch, problem.dtype), device="meta"), "group": problem.group,
        "heads": problem.heads, "seq_q": problem.seq_len_q, "seq_k": problem.seq_len_k, "HEAD_DIM": problem.head_dim,
        "CAUSAL": problem.causal, "STORE_LSE": False, **constants,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_problem_is_read_off_the_arguments(dtype: str) -> None:
    problem = Attention(2, 6, 3, 100, 200, 96, dtype, True)
    assert problem_of(arguments_of(problem)) == problem


def test_a_config_is_its_tile_and_back() -> None:
    for path, order in itertools.product(("pointer", "descriptor", "descriptor-ws"), ORDERS):
        tile = Tile(128, 64, 8, 2, path, order)
        config = as_config(tile, PROBLEM)
        assert tile_of(config) == tile
        assert (config.num_warps, config.num_stages) == (8, 2)
    assert as_config(tune(PROBLEM, tiles=TILES[-9:]).best[0], PROBLEM).kwargs["BLOCK_M"] == 128
    assert tile_of(triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=2, num_stages=1)) == Tile(64, 32, 2, 1)


@pytest.mark.parametrize("path", ["pointer", "descriptor", "descriptor-ws"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_config_has_the_constants_of_the_launch(path: str, order: str) -> None:
    """Those that a launch of this tile fixes itself, and none that the launch does not have."""
    problem = Attention(heads=6, seq_len_q=128, seq_len_k=256, head_dim=64)
    tensors = [torch.empty(1, 6, n, 64, dtype=torch.float16, device="meta") for n in (128, 256, 256, 128)]
    tile = Tile(64, 64, 4, 2, path, order)
    (call,) = (
        flash_calls(problem, *tensors, None, tile) if (path, order) != ("descriptor-ws", "persistent") else (None,)
    )
    if call is None:
        return
    config = as_config(tile, problem)
    assert config.kwargs == {name: call.constants[name] for name in GRIDLESS if name in call.constants}
    kernel = flash_pointer_kernel if path == "pointer" else flash_descriptor_kernel
    assert {*config.kwargs} <= {*kernel.arg_names}


def test_what_depends_on_the_problem_asks_for_it() -> None:
    for tile in (Tile(64, 64, load_path="descriptor"), Tile(64, 64, grid_order="persistent")):
        with pytest.raises(MemsimError, match="depends on the problem: give that too"):
            as_config(tile)
    with pytest.raises(MemsimError, match=r"a config has no BLOCK_M and no BLOCK_N .* say with tile_of"):
        early_config_prune()([triton.Config({"BLOCK": 64})], arguments_of(PROBLEM))
    with pytest.raises(MemsimError, match="no candidate is possible"):
        early_config_prune()([as_config(Tile(128, 128, 4, 4))], arguments_of(Attention(head_dim=256)))


def test_a_kernel_of_another_signature_says_what_its_arguments_mean() -> None:
    """Configs and arguments under other names, and a GPU that is not here."""
    prune = early_config_prune(
        keep=2, gpu="a100-80gb", tile_of=lambda c: Tile(c.kwargs["M"], c.kwargs["N"], c.num_warps, c.num_stages),
        problem_of=lambda arguments: Attention(heads=2, seq_len_q=arguments["n"], seq_len_k=arguments["n"]),
    )  # fmt: skip
    configs = [triton.Config({"M": m, "N": 32}, num_warps=4, num_stages=s) for m in (32, 64, 128) for s in (2, 3)]
    kept = prune(configs, {}, n=128)
    assert len(kept) == 2 and all(config in configs for config in kept)
    assert prune.tuning is not None and prune.tuning.gpu == "a100-80gb"
    assert prune.tuning.problem["seq_len_k"] == 128


def test_configs_of_one_tile_go_together() -> None:
    configs = [as_config(Tile(64, 64, 4, 3)), as_config(Tile(64, 64, 4, 2)), as_config(Tile(64, 64, 4, 3))]
    kept = early_config_prune(keep=2)(configs, arguments_of(PROBLEM))
    assert len(kept) == 2 and len({id(config) for config in kept}) == 2
    one = early_config_prune(keep=1)(configs, arguments_of(PROBLEM))
    assert len(one) == 1


def test_an_autotuner_of_compiled_kernels_prunes_the_same() -> None:
    """Not interpreted: Triton's JITFunction under its Autotuner, as far as that goes without a GPU."""
    code = (
        "import torch, triton\n"
        "from memsim import Attention, Tile\n"
        "from memsim_kernels._flash_kernels import flash_pointer_kernel as kernel\n"
        "from memsim_kernels.autotune import as_config, early_config_prune, tile_of\n"
        "configs = [as_config(Tile(m, 64, 4, s)) for m in (64, 128) for s in (2, 3)]\n"
        "prune = {'early_config_prune': early_config_prune(keep=1)}\n"
        "tuner = triton.autotune(configs, ['seq_q'], prune_configs_by=prune)(kernel)\n"
        "q = torch.empty((1, 2, 128, 64), dtype=torch.float16, device='meta')\n"
        "tuner.nargs = {'q_ptr': q, 'group': 1, 'heads': 2, 'seq_q': 128, 'seq_k': 128}\n"
        "(kept,) = tuner.prune_configs({'HEAD_DIM': 64, 'CAUSAL': False, 'STORE_LSE': False})\n"
        "print(type(tuner.fn).__name__, tile_of(kept))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    problem = Attention(heads=2, seq_len_q=128, seq_len_k=128, head_dim=64)
    best = tune(problem, tiles=[Tile(m, 64, 4, s) for m in (64, 128) for s in (2, 3)]).tile
    assert done.stdout.split(maxsplit=1) == ["JITFunction", f"{best}\n"]


def test_a_pruner_that_ranks_backwards_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from memsim_kernels import autotune

    from memsim import tune as tuning_function

    def backwards(*args: Any, **kwargs: Any) -> Any:
        from dataclasses import replace

        found = tuning_function(*args, **kwargs | {"best": 1000})
        return replace(found, ranked=found.ranked[::-1], wanted=kwargs["best"])

    monkeypatch.setattr(autotune, "tune", backwards)
    kept = early_config_prune(keep=2)([as_config(tile, PROBLEM) for tile in TILES], arguments_of(PROBLEM))
    assert [tile_of(config) for config in kept] != [c.tile for c in tune(PROBLEM, tiles=TILES, best=2).best]


def test_the_machine_is_that_of_the_device() -> None:
    prune = early_config_prune(keep=1)
    prune([as_config(Tile(64, 64, 4, 2))], arguments_of(PROBLEM))
    assert prune.tuning is not None and prune.tuning.machine == load_gpu("h200")
