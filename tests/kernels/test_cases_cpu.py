"""Do the real kernels, interpreted, do the right thing with inputs that broke systems like this one?

Each test is named after the row of the list of such inputs that it stands for; it tests the kind, not the instance.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from memsim_kernels import flash_attention, naive_attention
from memsim_kernels._checks import capability_of, machine_of_capability
from memsim_kernels.flash import flash_calls
from memsim_kernels.inputs import LAYOUTS, random_inputs
from memsim_kernels.naive import naive_calls
from memsim_kernels.tolerance import Expected, expected

from memsim import Attention, MemsimError, Tile, TileDoesNotFit

KERNELS: dict[str, Callable[..., Any]] = {"flash": flash_attention, "naive": naive_attention}
TILES = (Tile(16, 16, 4, 2), Tile(32, 16, 4, 1), Tile(16, 32, 4, 3))

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def run(kernel: str, p: Attention, tensors: tuple[torch.Tensor, ...], tile: Tile = TILES[0]) -> Any:
    return KERNELS[kernel](*tensors, causal=p.causal, scale=p.scale, tile=tile, return_lse=True)


def check(
    kernel: str, p: Attention, tile: Tile = TILES[0], **inputs: Any
) -> tuple[torch.Tensor, torch.Tensor, Expected]:
    """Run on random inputs; nothing may be further off than rounding explains, nor NaN."""
    tensors = random_inputs(p, 1, **inputs)
    o, lse = run(kernel, p, tensors, tile)
    wanted = expected(p, *tensors, kernel)
    assert o.shape == wanted.o.shape and lse.shape == wanted.lse.shape
    assert not wanted.wrong_o(o).any() and not wanted.wrong_lse(lse).any(), (p, tile)
    return o, lse, wanted


def test_the_check_of_numbers_finds_what_is_wrong(kernel: str) -> None:
    p = Attention(heads=2, seq_len_q=20, seq_len_k=9, head_dim=16, causal=True)
    o, lse, wanted = check(kernel, p)
    for row, value in ((15, float("nan")), (15, 0.0), (15, float("inf")), (3, 1e-3)):
        spoilt = o.clone()
        spoilt[0, 1, row] = value
        assert wanted.wrong_o(spoilt)[0, 1, row].all()
    for row, value in ((15, float("-inf")), (3, 0.0), (3, float("nan"))):
        spoilt = lse.clone()
        spoilt[0, 1, row] = value
        assert wanted.wrong_lse(spoilt)[0, 1, row]


def on(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """Let the tensors lie on a GPU of another compute capability, as far as the rules for tiles go."""
    for module in ("flash", "naive"):
        monkeypatch.setattr(f"memsim_kernels.{module}.capability_of", lambda device: capability)


@pytest.mark.parametrize("num_stages", [3, 4, 8])
def test_1_a_tile_too_large_for_an_sm89_block(kernel: str, num_stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, (8, 9))
    q = torch.zeros(1, 1, 2048, 128, dtype=torch.float16)
    with pytest.raises(TileDoesNotFit, match=r"needs \d+ B of 101376 B: "):
        KERNELS[kernel](q, q, q, tile=Tile(128, 128, 8, num_stages))
    for capability in ((7, 5), (12, 1)):
        on(monkeypatch, capability)
        with pytest.raises(MemsimError, match=r"compute capability .*; these kernels know 8\.0, 8\.9, 9\.0, 10\.0"):
            KERNELS[kernel](q, q, q)


def test_3_what_compiles_but_cannot_launch(kernel: str) -> None:
    q = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
    words = "needs 294912 B of 232448 B: Q 32768 . K 4×32768 . V 4×32768" if kernel == "flash" else "of 232448 B: "
    with pytest.raises(TileDoesNotFit, match=words):
        KERNELS[kernel](q, q, q, tile=Tile(128, 128, 8, 4))


@pytest.mark.parametrize("seq", [(5, 2), (40, 7), (33, 17), (40, 1), (20, 20)])
def test_4_5_rows_that_see_no_key(kernel: str, seq: tuple[int, int]) -> None:
    p = Attention(heads=2, seq_len_q=seq[0], seq_len_k=seq[1], head_dim=16, causal=True)
    for tile in TILES:
        o, lse, _ = check(kernel, p, tile)
        blind = seq[0] - seq[1]
        assert (o[:, :, :blind] == 0).all() and (o[:, :, blind:] != 0).any(-1).all()
        assert lse[:, :, :blind].isneginf().all() and lse[:, :, blind:].isfinite().all()


@pytest.mark.parametrize("seq", [(9, 0), (0, 9), (0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_6_nothing_to_see_or_nobody_to_see_it(kernel: str, seq: tuple[int, int], causal: bool) -> None:
    p = Attention(batch=2, heads=2, seq_len_q=seq[0], seq_len_k=seq[1], head_dim=20, causal=causal)
    for tile in TILES:
        o, lse, _ = check(kernel, p, tile)
        assert (o == 0).all() and lse.isneginf().all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_7_large_logits(kernel: str, dtype: str) -> None:
    for n, causal in ((50, False), (37, True)):
        p = Attention(heads=1, seq_len_q=n, seq_len_k=n, head_dim=64, dtype=dtype, causal=causal)
        o, lse, _ = check(kernel, p, sizes=(5.0, 3.0, 3.0))
        assert o.isfinite().all() and lse.isfinite().all()


@pytest.mark.parametrize("scale", [0.0, -0.125, -1.0, 1e-30])
@pytest.mark.parametrize("causal", [False, True])
def test_8_scales_that_are_not_positive(kernel: str, scale: float, causal: bool) -> None:
    p = Attention(heads=1, seq_len_q=20, seq_len_k=21, head_dim=16, causal=causal, scale=scale)
    check(kernel, p)
    for bad in (float("nan"), float("inf"), -float("inf"), -1e31):
        with pytest.raises(MemsimError, match="scale"):
            KERNELS[kernel](*random_inputs(p, 1), scale=bad)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("contiguous", "rows-first")])
def test_9_nan_in_all_padding(kernel: str, layout: str) -> None:
    p = Attention(heads=2, kv_heads=1, seq_len_q=21, seq_len_k=19, head_dim=20, causal=True)
    clean, poisoned = random_inputs(p, 3), random_inputs(p, 3, layouts=(layout,) * 3)
    whole = torch.as_strided(poisoned[1], (poisoned[1].untyped_storage().nbytes() // 2,), (1,), 0)
    assert whole.isnan().any()
    for a, b in zip(run(kernel, p, clean), run(kernel, p, poisoned), strict=True):
        assert torch.equal(a, b)


def test_13_one_query(kernel: str) -> None:
    for causal in (False, True):
        check(kernel, Attention(heads=2, seq_len_q=1, seq_len_k=20, head_dim=128, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
def test_14_shorter_than_the_smallest_tile(kernel: str, causal: bool) -> None:
    for seq_q, seq_k in product((1, 2, 5, 8), (1, 3, 8)):
        check(kernel, Attention(heads=1, seq_len_q=seq_q, seq_len_k=seq_k, head_dim=16, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
def test_15_as_many_queries_as_keys_or_not(kernel: str, causal: bool) -> None:
    for seq_q, seq_k in ((2, 5), (17, 50), (50, 17), (16, 48)):
        p = Attention(heads=1, seq_len_q=seq_q, seq_len_k=seq_k, head_dim=16, causal=causal)
        for tile in TILES[:2]:
            o, _, _ = check(kernel, p, tile)
        if causal and seq_k >= seq_q:
            # Bottom-right: the first row sees the first seq_k - seq_q + 1 keys, however many rows there are.
            q, k, v = random_inputs(p, 1)
            seen = seq_k - seq_q + 1
            first = KERNELS[kernel](q[:, :, :1], k[:, :, :seen], v[:, :, :seen], tile=TILES[0])
            assert torch.allclose(first, o[:, :, :1], atol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_17_a_layout_for_each_tensor(kernel: str, causal: bool) -> None:
    p = Attention(batch=2, heads=2, kv_heads=1, seq_len_q=18, seq_len_k=23, head_dim=24, causal=causal)
    same = run(kernel, p, random_inputs(p, 17))
    names = tuple(LAYOUTS)
    for shift in range(0, len(names), 2) if causal else range(1, len(names), 2):
        layouts = names[shift], names[(shift + 1) % len(names)], names[(shift + 3) % len(names)]
        for a, b in zip(same, run(kernel, p, random_inputs(p, 17, layouts=layouts)), strict=True):
            assert torch.equal(a, b), layouts


def calls_of(kernel: str, p: Attention, tile: Tile) -> Any:
    q, k, v = random_inputs(p, 0)
    if kernel == "flash":
        return flash_calls(p, q, k, v, torch.empty_like(q), None, tile)
    s = torch.empty(p.batch, p.heads, p.seq_len_q, p.seq_len_k, dtype=q.dtype)
    return naive_calls(p, q, k, v, s, torch.empty_like(s), torch.empty_like(q), None, tile)


@pytest.mark.parametrize("head_dim", [40, 59, 72, 80, 96, 160, 192, 256])
def test_18_any_head_dim(kernel: str, head_dim: int) -> None:
    p = Attention(heads=1, seq_len_q=18, seq_len_k=20, head_dim=head_dim, causal=True)
    check(kernel, p)
    # Tiles are as wide as the next power of two; the tensors, and so their strides, as wide as head_dim.
    width = {40: 64, 59: 64, 72: 128, 80: 128, 96: 128, 160: 256, 192: 256, 256: 256}[head_dim]
    for call in calls_of(kernel, p, TILES[0]):
        if call.name != "softmax":
            assert (call.constants["BLOCK_D"], call.constants["HEAD_DIM"]) == (width, head_dim)


@pytest.mark.parametrize(("heads", "kv_heads"), [(33, 2), (3, 2), (2, 3), (1, 2)])
def test_19_heads_that_do_not_divide(kernel: str, heads: int, kv_heads: int) -> None:
    q, k = torch.zeros(1, heads, 4, 16), torch.zeros(1, kv_heads, 4, 16)
    with pytest.raises(MemsimError, match="heads must be a multiple of kv_heads"):
        KERNELS[kernel](q, k, k)


def test_22_float32_is_float32(kernel: str) -> None:
    p = Attention(heads=1, seq_len_q=33, seq_len_k=40, head_dim=64, dtype="float32")
    q, k, v = random_inputs(p, 22)
    o, _, wanted = check(kernel, p)
    assert float((o.double() - wanted.o).abs().max()) < 2e-6
    for call in calls_of(kernel, p, TILES[0]):
        assert call.constants.get("IEEE", True)
    # TF32 keeps 10 bits of the mantissa: what it would give is well outside.
    rounded = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (q, k, v)]
    assert (
        float((KERNELS[kernel](*rounded, tile=TILES[0]).double() - expected(p, q, k, v, kernel).o).abs().max()) > 1e-5
    )


def test_the_rules_for_tiles_are_an_h200s_where_kernels_are_interpreted(kernel: str) -> None:
    assert machine_of_capability(capability_of(torch.device("cpu"))).architecture == "sm_90"
