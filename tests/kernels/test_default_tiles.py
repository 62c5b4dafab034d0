"""Is there a tile for every problem that asks for none, on every GPU whose rules are known?"""

from __future__ import annotations

import pytest
from memsim_kernels._checks import _MACHINES, LARGEST_HEAD_DIM, check_tile, machine_of_capability
from memsim_kernels.costs import padded_width
from memsim_kernels.naive import DEFAULT_TILE, default_tile
from memsim_kernels.tiles import FLOAT32, choose

from memsim import Attention, Gpu, MemsimError, Tile, TileDoesNotFit, simulate

GPUS = {name: machine_of_capability(capability) for capability, name in _MACHINES.items()}
DTYPES = ("float16", "bfloat16", "float32")
# Either side of every width that a tile can have, and some between.
HEAD_DIMS = (1, 8, 15, 16, 17, 32, 33, 40, 59, 64, 65, 72, 80, 96, 128, 129, 160, 192, 255, LARGEST_HEAD_DIM)


def defaults(algorithm: str, p: Attention, gpu: Gpu) -> set[Tile]:
    """The tiles taken for a problem, whatever the tensors' layout and with or without LSE."""
    if algorithm == "naive":
        return {default_tile(p, gpu)}
    descriptors = (False, True) if p.dtype_bytes == 2 and p.head_dim % 8 == 0 else (False,)
    return {choose(p, gpu, None, descriptors=d, lse=lse) for d in descriptors for lse in (False, True)}


@pytest.mark.parametrize("algorithm", ["flash", "naive"])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_tile_fits(algorithm: str, gpu: str, dtype: str) -> None:
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            p = Attention(heads=1, seq_len_q=256, seq_len_k=256, head_dim=head_dim, dtype=dtype, causal=causal)
            for tile in defaults(algorithm, p, GPUS[gpu]):
                check_tile(algorithm, dtype, head_dim, causal, tile, GPUS[gpu])
                # The simulator runs it too: more blocks than none fit on an SM.
                launches = simulate(algorithm, p, gpu=GPUS[gpu], tile=tile, count_only=True).launches
                assert all(launch.blocks_per_sm >= 1 for launch in launches)
                if dtype != "float32" and head_dim <= 128:
                    # Fewer rows than 64 leave the tensor cores of every one of these GPUs idle.
                    assert tile.block_m >= 64
                if dtype == "float32" and (algorithm, gpu) != ("flash", "h200"):
                    # Not measured there. What keeps its kernels from spilling fits on every one of them.
                    assert tile == FLOAT32[max(64, padded_width(head_dim))]


def test_the_check_refuses_what_does_not_fit() -> None:
    with pytest.raises(TileDoesNotFit):
        check_tile("naive", "float32", 256, False, DEFAULT_TILE, GPUS["rtx-4090"])
    assert default_tile(Attention(head_dim=256, dtype="float32"), GPUS["rtx-4090"]) != DEFAULT_TILE


def test_a_gpu_whose_rules_are_not_known_is_refused() -> None:
    with pytest.raises(MemsimError, match=r"compute capability 7\.5; these kernels know"):
        machine_of_capability((7, 5))
    # A small step within a generation keeps the generation's rules.
    assert machine_of_capability((10, 3)).architecture == "sm_100"
