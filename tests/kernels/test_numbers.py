"""Do the real kernels, interpreted on the CPU, give the simulator's numbers and the right ones?

float16 and float32 only: the interpreter multiplies bfloat16 as bit patterns.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memsim_kernels import flash_attention, naive_attention, reference
from memsim_kernels._ready import ready
from memsim_kernels._verify_interpret import LEAST_EQUAL_SHARE
from memsim_kernels.inputs import random_inputs
from memsim_kernels.tolerance import expected

from memsim import Attention, MemsimError, Tile, compute

KERNELS = {"flash": flash_attention, "naive": naive_attention}
DTYPES = {"float16": torch.float16, "float32": torch.float32}


@st.composite
def problems(draw: st.DrawFn) -> Attention:
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return Attention(
        batch=draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads,
        seq_len_q=draw(st.integers(0, 70)), seq_len_k=draw(st.integers(0, 70)),
        head_dim=draw(st.sampled_from((1, 8, 16, 20, 40, 59, 64, 72))),
        dtype=draw(st.sampled_from(tuple(DTYPES))), causal=draw(st.booleans()),
        scale=draw(st.sampled_from((None, 1.0, 0.0, -0.25, 1e-45, 1e-300))),
    )  # fmt: skip


def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A random tensor of this shape in some layout: permuted, or every second row or column of a larger one."""
    layout = draw(st.sampled_from(("contiguous", "seq first", "gaps in rows", "gaps in columns")))
    batch, heads, seq, d = shape
    if layout == "seq first":
        return torch.randn((seq, batch, heads, d), generator=generator).to(dtype).permute(1, 2, 0, 3)
    if layout == "gaps in rows":
        return torch.randn((batch, heads, 2 * seq, d), generator=generator).to(dtype)[:, :, ::2]
    if layout == "gaps in columns":
        return torch.randn((batch, heads, seq, 2 * d), generator=generator).to(dtype)[..., ::2]
    return torch.randn(shape, generator=generator).to(dtype)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Attention, list[torch.Tensor]]:
    p = draw(problems())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kv = (p.batch, p.kv_head_count, p.seq_len_k, p.head_dim)
    shapes = ((p.batch, p.heads, p.seq_len_q, p.head_dim), kv, kv)
    return p, [strided(draw, shape, DTYPES[p.dtype], generator) for shape in shapes]


def bound(p: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(O and LSE in float64, what max|out - O| may be): flash-attention's own bound."""
    exact, lse = reference.attention(q.double(), k.double(), v.double(), causal=p.causal, scale=p.scale)
    rounded = exact.to(q.dtype)
    plain, _ = reference.attention(q, k, v, causal=p.causal, scale=p.scale)
    unit = (rounded + 0.3 - 0.3).double() - rounded.double()
    return rounded.double(), lse, 2 * largest(plain.double() - rounded.double()) + 2 * largest(unit)


def largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def check(kernel: str, p: Attention, tensors: list[torch.Tensor], o: torch.Tensor, lse: torch.Tensor) -> None:
    exact, exact_lse, allowed = bound(p, *tensors)
    assert o.shape == exact.shape and not o.isnan().any()
    assert largest(o.double() - exact) <= allowed + 1e-6
    assert (lse.isneginf() == exact_lse.isneginf()).all()
    seen = ~exact_lse.isneginf()
    assert largest(lse.double()[seen] - exact_lse[seen]) <= expected(p, *tensors, kernel).lse_allowed
    assert (o[~seen] == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=60)
@given(given=inputs(), tile=st.sampled_from((Tile(16, 16, 4, 2), Tile(32, 16, 4, 1), Tile(16, 32, 4, 3))))
def test_numbers_over_random_problems_and_layouts(
    kernel: str, given: tuple[Attention, list[torch.Tensor]], tile: Tile
) -> None:
    p, tensors = given
    o, lse = KERNELS[kernel](*tensors, causal=p.causal, scale=p.scale, tile=tile, return_lse=True)
    check(kernel, p, tensors, o, lse)
    simulated, simulated_lse = compute(kernel, p, *(x.contiguous().numpy() for x in tensors), tile=tile)
    _, _, allowed = bound(p, *tensors)
    assert largest(o.double() - torch.from_numpy(simulated.astype(np.float64))) <= 2 * allowed + 1e-6
    assert (torch.from_numpy(simulated_lse).isneginf() == lse.isneginf()).all()
    if p.dtype == "float16" and o.numel() > 1000:
        # It rounds where the simulator does.
        assert float((o == torch.from_numpy(simulated)).double().mean()) > LEAST_EQUAL_SHARE


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_unsuitable_tile_is_refused_in_the_simulators_words(kernel: str) -> None:
    q = torch.randn(1, 1, 128, 128, dtype=torch.float16)
    with pytest.raises(
        MemsimError, match="needs 294912 B of 232448 B" if kernel == "flash" else "needs .* of 232448 B"
    ):
        KERNELS[kernel](q, q, q, tile=Tile(128, 128, 8, 4))
    with pytest.raises(MemsimError, match="powers of two"):
        KERNELS[kernel](q, q, q, tile=Tile(48, 16, 4, 1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_tensors_that_do_not_go_together_are_refused(kernel: str) -> None:
    q = torch.randn(1, 4, 8, 16)
    for bad, words in (
        ((q, q[:, :3], q[:, :3]), "multiple of"),
        ((q, q.half(), q), "must be the same"),
        ((q.double(), q.double(), q.double()), "float16, bfloat16 or float32"),
        ((q[0], q, q), "dimensions"),
        ((q, q, q[..., :8]), "must be the same"),
        ((torch.randn(1, 1, 4, 300),) * 3, "up to 256"),
    ):
        with pytest.raises(MemsimError, match=words):
            KERNELS[kernel](*bad)
    with pytest.raises(MemsimError, match="scale"):
        KERNELS[kernel](q, q, q, scale=math.nan)


def test_float32_is_not_tf32() -> None:
    q, k, v = (torch.randn(1, 1, 32, 64) for _ in range(3))
    exact, _ = reference.attention(q.double(), k.double(), v.double())
    for kernel in KERNELS.values():
        assert largest(kernel(q, k, v, tile=Tile(16, 16, 4, 1)).double() - exact) < 2e-6


def test_padding_full_of_nan_changes_nothing() -> None:
    clean = [torch.randn(1, 2, n, 20, dtype=torch.float16) for n in (21, 37, 37)]
    poisoned = []
    for x in clean:
        big = torch.full((1, 2, x.shape[2] + 40, 64), math.nan, dtype=x.dtype)
        big[:, :, : x.shape[2], :20] = x
        poisoned.append(big[:, :, : x.shape[2], :20])
    for kernel in KERNELS.values():
        a, b = (kernel(*tensors, causal=True, tile=Tile(16, 16, 4, 2)) for tensors in (clean, poisoned))
        assert torch.equal(a, b)


def test_rows_too_long_for_one_pass() -> None:
    q, k, v = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 33_000, 16), torch.randn(1, 1, 33_000, 16)
    exact, lse = reference.attention(q.double(), k.double(), v.double())
    o, got = naive_attention(q, k, v, tile=Tile(16, 1024, 4, 1), return_lse=True)
    assert largest(o.double() - exact) < 1e-5 and largest(got.double() - lse) < 1e-4


@settings(max_examples=40)
@given(
    rows=st.integers(1, 70), keys=st.integers(1, 70), group=st.integers(1, 3), causal=st.booleans(),
    head_dim=st.sampled_from((8, 16, 40, 64)), scale=st.sampled_from((None, 0.0, -0.25)), seed=st.integers(0, 2**31),
    tile=st.sampled_from((Tile(16, 16, 4, 2, "descriptor"), Tile(32, 16, 4, 1, "descriptor"))),
)  # fmt: skip
def test_flash_numbers_through_descriptors(
    rows: int, keys: int, group: int, head_dim: int, causal: bool, scale: float | None, seed: int, tile: Tile
) -> None:
    p = Attention(
        heads=group, kv_heads=1, seq_len_q=rows, seq_len_k=keys, head_dim=head_dim, causal=causal, scale=scale
    )  # fmt: skip
    inputs = random_inputs(p, seed, layouts=("rows-first", "contiguous", "every-second-row"))
    made = ready("flash", p, tile, inputs, lse=True)
    made.launch()
    assert made.lse is not None
    check("flash", p, list(inputs), made.o, made.lse)


def test_tf32_is_taken_where_it_is_allowed() -> None:
    from memsim_kernels.flash import flash_calls
    from memsim_kernels.naive import naive_calls
    from memsim_kernels.record import record_call

    from memsim.trace import Work

    p = Attention(heads=1, seq_len_q=16, seq_len_k=16, head_dim=16, dtype="float32")
    q, k, v, s, w, o = (torch.randn(1, 1, 16, 16) for _ in range(6))
    for allowed, dtype in ((False, "float32"), (True, "tf32")):
        tile = Tile(16, 16, 4, 1)
        calls = [
            *flash_calls(p, q, k, v, o, None, tile, allow_tf32=allowed),
            *naive_calls(p, q, k, v, s, w, o, None, tile, allow_tf32=allowed),
        ]
        recorded = [records for call in calls for records in record_call(call).blocks.values()]
        dots = {r.dtype for records in recorded for r in records if isinstance(r, Work) and r.pipe == "tensor"}
        assert dots == {dtype}


def test_rows_that_see_nothing_in_two_passes() -> None:
    """One row sees nothing at all, one nothing in its first chunk."""
    from memsim_kernels._naive_kernels import softmax_two_pass_kernel

    s = torch.randn(3, 40)
    s[0] = -math.inf
    s[1, :16] = -math.inf
    p, lse = torch.full_like(s, math.nan), torch.full((3,), math.nan)
    softmax_two_pass_kernel[(3,)](s, p, lse, 40, CHUNK=16, STORE_LSE=True)
    assert (p[0] == 0).all() and lse[0] == -math.inf
    assert torch.allclose(p[1:], torch.softmax(s[1:], -1), atol=1e-6)
    assert torch.allclose(lse[1:], torch.logsumexp(s[1:], -1), atol=1e-5)


def test_how_far_off_is_wrong() -> None:
    p = Attention(heads=1, seq_len_q=32, seq_len_k=64, head_dim=16)
    inputs = random_inputs(p, 3)
    wanted = expected(p, *inputs, "flash")
    assert not wanted.wrong_o(wanted.o.half()).any() and not wanted.wrong_lse(wanted.lse.float()).any()
    for off in (1.5 * wanted.o_allowed, math.nan):
        o = wanted.o.clone()
        o[0, 0, 5, 5] += off
        assert wanted.wrong_o(o).nonzero().tolist() == [[0, 0, 5, 5]]
    assert wanted.o_allowed < 0.01
    lse = wanted.lse.clone()
    lse[0, 0, 7] += 1e-4
    assert wanted.wrong_lse(lse).nonzero().tolist() == [[0, 0, 7]]
