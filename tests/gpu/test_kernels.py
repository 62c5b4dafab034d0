"""Do the compiled kernels give the right numbers, twice the same, on a GPU? (pytest -m gpu tests/gpu)"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memsim_kernels import flash_attention, naive_attention, reference
from memsim_kernels.tiles import SPECIALIZED_SEEN_RIGHT

from memsim import MemsimError, Tile

pytestmark = pytest.mark.gpu

KERNELS = {"flash": flash_attention, "naive": naive_attention}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, o: torch.Tensor) -> torch.Tensor:
    """Within flash-attention's own bound of float64; returns the exact LSE."""
    exact, lse = reference.attention(q.double(), k.double(), v.double(), causal=causal)
    rounded = exact.to(q.dtype)
    plain, _ = reference.attention(q, k, v, causal=causal)
    unit = (rounded + 0.3 - 0.3).double() - rounded.double()
    allowed = 2 * largest(plain.double() - rounded.double()) + 2 * largest(unit) + 1e-6
    assert not o.isnan().any() and largest(o.double() - rounded.double()) <= allowed
    assert (o[lse.isneginf()] == 0).all()
    return lse


def random(layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    batch, heads, seq, d = shape
    if layout == "seq first":
        return torch.randn((seq, batch, heads, d), device="cuda").to(dtype).permute(1, 2, 0, 3)
    if layout == "gaps":
        return torch.randn((batch, heads, 2 * seq, d), device="cuda").to(dtype)[:, :, ::2]
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=110, deadline=None)
@given(
    batch=st.integers(1, 3), seq_q=st.integers(0, 400), seq_k=st.integers(0, 400), head_dim=st.sampled_from((64, 72)),
    group=st.sampled_from((1, 2)), causal=st.booleans(), layout=st.sampled_from(("contiguous", "seq first", "gaps")),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_random_problems_and_layouts(
    kernel: str, dtype: torch.dtype, batch: int, seq_q: int, seq_k: int, head_dim: int, group: int, causal: bool,
    layout: str, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    q, k, v = (random(layout, (batch, h, n, head_dim), dtype) for h, n in ((2 * group, seq_q), (2, seq_k), (2, seq_k)))
    o, lse = KERNELS[kernel](q, k, v, causal=causal, return_lse=True)
    exact = check(q, k, v, causal, o)
    assert (lse.isneginf() == exact.isneginf()).all()
    seen = ~exact.isneginf()
    assert largest(lse.double()[seen] - exact[seen]) <= (1e-4 if dtype == torch.float32 or kernel == "flash" else 0.1)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_the_default_choice(dtype: torch.dtype, head_dim: int, causal: bool) -> None:
    for seq_q, seq_k in ((512, 512), (1000, 777), (300, 1024), (1, 4096)):
        q = random("contiguous", (2, 4, seq_q, head_dim), dtype)
        k, v = (random("contiguous", (2, 2, seq_k, head_dim), dtype) for _ in range(2))
        for lse in (False, True):
            results = [flash_attention(q, k, v, causal=causal, return_lse=lse) for _ in range(4)]
            outputs = [r[0] if lse else r for r in results]
            check(q, k, v, causal, outputs[0])
            assert all(torch.equal(outputs[0], other) for other in outputs[1:])


@pytest.mark.parametrize("tile", sorted(SPECIALIZED_SEEN_RIGHT, key=str), ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_warp_specialised_tile_that_is_offered(tile: Tile, head_dim: int) -> None:
    for seq_q, seq_k in ((512, 512), (257, 300), (64, 1000), (1, 1)):
        q = random("contiguous", (2, 4, seq_q, head_dim), torch.float16)
        k, v = (random("contiguous", (2, 2, seq_k, head_dim), torch.float16) for _ in range(2))
        o = flash_attention(q, k, v, tile=tile)
        check(q, k, v, False, o)
        assert torch.equal(o, flash_attention(q, k, v, tile=tile))


def test_what_is_not_seen_right_is_not_offered() -> None:
    q = random("contiguous", (1, 2, 256, 64), torch.float16)
    with pytest.raises(MemsimError, match="seen right"):
        flash_attention(q, q, q, tile=Tile(128, 64, 4, 3, "descriptor-ws"))
    for asked in ({"causal": True}, {"return_lse": True}):
        with pytest.raises(MemsimError, match="full attention without LSE"):
            flash_attention(q, q, q, tile=Tile(128, 128, 4, 2, "descriptor-ws"), **asked)
    with pytest.raises(MemsimError, match="contiguous"):
        flash_attention(q[..., ::2], q[..., ::2], q[..., ::2], tile=Tile(64, 64, 4, 2, "descriptor"))
