"""Do the compiled kernels give the simulator's numbers and the right ones, twice the same, on a GPU?

pytest -m gpu tests/gpu (with -n 12 it compiles side by side). Each test is one compiled kernel, or a few, over many
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memsim_kernels import flash_attention, naive_attention
from memsim_kernels.inputs import as_array, random_inputs
from memsim_kernels.tolerance import Expected, expected

from memsim import Attention, MemsimError, Tile, compute
from memsim.grid import ORDERS
from memsim.tile import SPECIALIZED_SEEN_RIGHT

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16", "float32")
# Layouts of q, k and v that make one compiled kernel each.
LAYOUTS = {
    "contiguous": ("contiguous",) * 3,
    "strided": ("rows-first", "every-second-row", "rows-first"),
    "odd": ("odd-strides", "every-second-column", "odd-strides"),
}
EXAMPLES = 50


@st.composite
def problems(draw: st.DrawFn, dtype: str, head_dim: int, causal: bool) -> Attention:
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return Attention(
        batch=draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads,
        seq_len_q=draw(st.integers(0, 300)), seq_len_k=draw(st.integers(0, 300)),
        head_dim=head_dim, dtype=dtype, causal=causal, scale=draw(st.sampled_from((None, 0.5))),
    )  # fmt: skip


def check_numbers(kernel: str, p: Attention, tensors: tuple[torch.Tensor, ...], tile: Tile, *, lse: bool) -> None:
    """Against float64 and against the simulator's own tiles; the same bits when run again."""
    function = {"flash": flash_attention, "naive": naive_attention}[kernel]

    def run() -> tuple[torch.Tensor, torch.Tensor | None]:
        out = function(*tensors, causal=p.causal, scale=p.scale, tile=tile, return_lse=lse)
        return out if lse else (out, None)

    o, got_lse = run()
    wanted = expected(p, *tensors, kernel)
    assert not wanted.wrong_o(o).any()
    if got_lse is not None:
        assert not wanted.wrong_lse(got_lse).any()
    again, _ = run()
    assert torch.equal(o.view(torch.uint8), again.view(torch.uint8))
    check_simulator(kernel, p, tensors, tile, o, wanted)


def check_simulator(
    kernel: str, p: Attention, tensors: tuple[torch.Tensor, ...], tile: Tile, o: torch.Tensor, wanted: Expected
) -> None:
    simulated, lse = compute(kernel, p, *(as_array(x) for x in tensors), tile=tile)
    difference = (o.double().cpu() - torch.from_numpy(simulated.astype("float64"))).abs()
    assert (difference <= 2 * wanted.o_allowed).all()
    assert (torch.from_numpy(lse).isneginf() == wanted.lse.isneginf().cpu()).all()


def keys() -> Iterator[tuple[str, str, int, bool, bool, str, Tile]]:
    """(kernel, dtype, head_dim, causal, LSE, layouts, tile): each one compile of flash, or of naive's three kernels."""
    tiles = {"float16": Tile(64, 64, 4, 3), "bfloat16": Tile(128, 64, 8, 2), "float32": Tile(32, 32, 4, 2)}
    for dtype in DTYPES:
        for causal in (False, True):
            for layouts, head_dim in (("contiguous", 64), ("strided", 80), ("odd", 40)):
                lse = (head_dim == 64) == causal
                yield "flash", dtype, head_dim, causal, lse, layouts, tiles[dtype]
            yield "naive", dtype, 64, causal, True, "strided", tiles[dtype]
            yield "naive", dtype, 59, causal, False, "odd", Tile(32, 32, 4, 1)
    for dtype in DTYPES[:2]:
        for causal in (False, True):
            for head_dim, tile in ((64, Tile(64, 128, 4, 2)), (128, Tile(64, 64, 4, 3)), (256, Tile(64, 32, 4, 2))):
                descriptor = Tile(tile.block_m, tile.block_n, tile.num_warps, tile.num_stages, "descriptor")
                layouts = "strided" if head_dim == 64 else "contiguous"
                yield "flash", dtype, head_dim, causal, head_dim == 64, layouts, descriptor
    for number, order in enumerate(order for order in ORDERS if order != "rows-fast"):
        for load_path in ("pointer", "descriptor"):
            tile = Tile(64, 64, 4, 3, load_path, order)
            yield "flash", DTYPES[number % 2], 128, load_path == "pointer", True, "contiguous", tile
    for tile in sorted(SPECIALIZED_SEEN_RIGHT, key=str):
        yield "flash", "float16", 128, False, False, "contiguous", tile
        yield "flash", "bfloat16", 64, False, False, "strided", tile


@pytest.mark.parametrize("key", list(keys()), ids=lambda key: "-".join(map(str, key[:6])) + f"-{key[6]}")
def test_numbers_over_random_shapes(key: tuple[str, str, int, bool, bool, str, Tile]) -> None:
    kernel, dtype, head_dim, causal, lse, layouts, tile = key

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(p=problems(dtype, head_dim, causal), seed=st.integers(0, 2**31))
    def many(p: Attention, seed: int) -> None:
        suits = tile.load_path == "pointer" or (p.seq_len_q and p.seq_len_k)
        if suits:
            check_numbers(kernel, p, random_inputs(p, seed, layouts=LAYOUTS[layouts], device="cuda"), tile, lse=lse)

    many()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_the_default_tile_on_long_sequences(dtype: str, head_dim: int, causal: bool) -> None:
    for seq_q, seq_k in ((512, 512), (1000, 777), (300, 1025), (1, 4096), (2048, 2048)):
        p = Attention(
            batch=2,
            heads=4,
            kv_heads=2,
            seq_len_q=seq_q,
            seq_len_k=seq_k,
            head_dim=head_dim,
            dtype=dtype,
            causal=causal,
        )
        tensors = random_inputs(p, seq_q, device="cuda")
        for lse in (False, True):
            results = [flash_attention(*tensors, causal=causal, return_lse=lse) for _ in range(4)]
            outputs = [r[0] if lse else r for r in results]
            wanted = expected(p, *tensors, "flash")
            assert not wanted.wrong_o(outputs[0]).any()
            assert not lse or not wanted.wrong_lse(results[0][1]).any()
            assert all(torch.equal(outputs[0], other) for other in outputs[1:])
        wanted = expected(p, *tensors, "naive")
        assert not wanted.wrong_o(naive_attention(*tensors, causal=causal)).any()


@pytest.mark.parametrize("head_dim", [59, 72, 96, 160, 192, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_18_any_head_dim(head_dim: int, dtype: str) -> None:
    p = Attention(heads=2, seq_len_q=130, seq_len_k=70, head_dim=head_dim, dtype=dtype, causal=True)
    tensors = random_inputs(p, head_dim, device="cuda")
    assert not expected(p, *tensors, "flash").wrong_o(flash_attention(*tensors, causal=True)).any()
    assert not expected(p, *tensors, "naive").wrong_o(naive_attention(*tensors, causal=True)).any()


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_4_5_6_13_14_15_rows_that_see_nothing_and_short_sequences(kernel: str) -> None:
    tile = Tile(64, 64, 4, 2)
    for seq_q, seq_k in ((5, 2), (5, 0), (100, 37), (1, 20), *((n, n) for n in range(1, 9)), (2, 5), (37, 100)):
        for causal in (False, True):
            p = Attention(heads=2, seq_len_q=seq_q, seq_len_k=seq_k, head_dim=128, causal=causal)
            check_numbers(kernel, p, random_inputs(p, seq_q, device="cuda"), tile, lse=True)


@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_7_large_logits(kernel: str, dtype: str) -> None:
    p = Attention(heads=2, seq_len_q=333, seq_len_k=333, head_dim=64, dtype=dtype, causal=True)
    tensors = random_inputs(p, 7, device="cuda", sizes=(5.0, 3.0, 3.0))
    check_numbers(kernel, p, tensors, Tile(64, 64, 4, 2), lse=kernel == "flash")


def test_16_bfloat16_1025_causal() -> None:
    p = Attention(heads=4, seq_len_q=1025, seq_len_k=1025, head_dim=64, dtype="bfloat16", causal=True)
    for tile in (Tile(64, 64, 4, 3), Tile(128, 64, 8, 3), Tile(64, 64, 4, 3, "descriptor")):
        check_numbers("flash", p, random_inputs(p, 16, device="cuda"), tile, lse=True)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("load_path", ["pointer", "descriptor"])
def test_21_every_number_of_warps_and_stages(load_path: str, block_m: int, num_warps: int, num_stages: int) -> None:
    for block_n in (32, 64, 128):
        for causal in (False, True):
            p = Attention(heads=2, seq_len_q=300, seq_len_k=333, head_dim=64, causal=causal)
            tensors = random_inputs(p, num_stages, device="cuda")
            tile = Tile(block_m, block_n, num_warps, num_stages, load_path)
            check_numbers("flash", p, tensors, tile, lse=True)


@pytest.mark.parametrize("layouts", list(LAYOUTS.values())[1:], ids=list(LAYOUTS)[1:])
@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_9_17_strides_of_their_own_with_nan_between(kernel: str, layouts: tuple[str, str, str]) -> None:
    """The same numbers as on contiguous copies, whatever lies around them."""
    p = Attention(batch=2, heads=4, kv_heads=2, seq_len_q=130, seq_len_k=77, head_dim=40, causal=True)
    function = {"flash": flash_attention, "naive": naive_attention}[kernel]
    strided = random_inputs(p, 9, layouts=layouts, device="cuda")
    one, other = (
        function(*tensors, causal=True, tile=Tile(64, 64, 4, 2))
        for tensors in (strided, [x.contiguous() for x in strided])
    )
    assert not one.isnan().any()
    wanted = expected(p, *strided, kernel)
    assert not wanted.wrong_o(one).any() and not wanted.wrong_o(other).any()


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_20_the_same_input_four_times(kernel: str) -> None:
    p = Attention(heads=8, seq_len_q=700, seq_len_k=900, head_dim=128, dtype="bfloat16", causal=True)
    tensors = random_inputs(p, 20, device="cuda")
    function = {"flash": flash_attention, "naive": naive_attention}[kernel]
    first, *others = (function(*tensors, causal=True) for _ in range(4))
    assert all(torch.equal(first.view(torch.int16), other.view(torch.int16)) for other in others)


def test_22_float32_is_ieee_unless_tf32_is_allowed() -> None:
    p = Attention(heads=2, seq_len_q=200, seq_len_k=200, head_dim=64, dtype="float32")
    tensors = random_inputs(p, 22, device="cuda")
    exact = expected(p, *tensors, "flash").o
    for function in (flash_attention, naive_attention):
        ieee, tf32 = (
            float((function(*tensors, tile=Tile(32, 32, 4, 2), allow_tf32=allowed).double() - exact).abs().max())
            for allowed in (False, True)
        )
        assert ieee < 2e-6 < 1e-5 < tf32 < 1e-2


def test_23_integer_scores_are_exact() -> None:
    from memsim_kernels.naive import naive_calls

    p = Attention(heads=1, seq_len_q=16, seq_len_k=16, head_dim=16, dtype="bfloat16", scale=1.0)
    q, k, v = (torch.randint(-3, 4, (1, 1, 16, 16), device="cuda").to(torch.bfloat16) for _ in range(3))
    s, probabilities, o = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
    qk, _, _ = naive_calls(p, q, k, v, s, probabilities, o, None, Tile(16, 16, 4, 1))
    qk.launch()
    assert torch.equal(s.double(), q.double() @ k.double().transpose(-1, -2))


def test_what_is_not_seen_right_is_not_offered() -> None:
    p = Attention(heads=2, seq_len_q=256, seq_len_k=256, head_dim=64)
    q, _, _ = random_inputs(p, 0, device="cuda")
    with pytest.raises(MemsimError, match="seen right"):
        flash_attention(q, q, q, tile=Tile(128, 64, 4, 3, "descriptor-ws"))
    for asked in ({"causal": True}, {"return_lse": True}):
        with pytest.raises(MemsimError, match="full attention without LSE"):
            flash_attention(q, q, q, tile=Tile(128, 128, 4, 2, "descriptor-ws"), **asked)
    with pytest.raises(MemsimError, match="contiguous"):
        flash_attention(q[..., ::2], q[..., ::2], q[..., ::2], tile=Tile(64, 64, 4, 2, "descriptor"))
