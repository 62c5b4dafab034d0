"""Does `MultiHeadAttention` compute what `torch.nn.MultiheadAttention` does with the same weights, without copies?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memsim_kernels import MultiHeadAttention
from memsim_kernels.module import KERNELS
from torch import nn

from memsim import MemsimError, Tile

TILE = Tile(16, 16, 4, 2)
# Absolute, on outputs of about 1: torch rounds S and P as this does, but sums in another order.
ALLOWED = {torch.float32: 2e-5, torch.float16: 1e-2}

Case = tuple[nn.MultiheadAttention, list[torch.Tensor]]


@st.composite
def cases(draw: st.DrawFn, *, square: bool = False) -> Case:
    """A module of torch's in eval mode with random weights, and inputs for it."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    heads, head_dim = draw(st.integers(1, 3)), draw(st.sampled_from((4, 8, 20, 32)))
    embed_dim, dtype = heads * head_dim, draw(st.sampled_from(tuple(ALLOWED)))
    dims = [embed_dim, embed_dim, embed_dim] if draw(st.booleans()) else [embed_dim, draw(st.integers(1, 40)), 24]
    batch_first, batch = draw(st.booleans()), draw(st.one_of(st.none(), st.integers(1, 3)))
    mha = nn.MultiheadAttention(
        embed_dim, heads, dropout=0.1, bias=draw(st.booleans()), kdim=dims[1], vdim=dims[2],
        batch_first=batch_first, dtype=dtype,
    ).eval()  # fmt: skip
    if mha.in_proj_bias is not None:
        nn.init.normal_(mha.in_proj_bias)
        nn.init.normal_(mha.out_proj.bias)
    seq_q = draw(st.integers(1, 40))
    lengths = [seq_q, *[seq_q if square else draw(st.integers(1, 40))] * 2]
    shapes = [
        (n, d) if batch is None else (batch, n, d) if batch_first else (n, batch, d)
        for n, d in zip(lengths, dims, strict=True)
    ]
    return mha, [torch.randn(shape).to(dtype) for shape in shapes]


@torch.no_grad()
def difference(case: Case, kernel: str, torchs: dict[str, Any], ours: dict[str, Any]) -> float:
    """The largest difference from torch, in units of what is allowed."""
    mha, inputs = case
    expected, _ = mha(*inputs, need_weights=False, **torchs)
    out, weights = MultiHeadAttention.from_torch(mha, kernel=kernel, tile=TILE)(*inputs, **ours)
    assert weights is None and out.shape == expected.shape and out.dtype == expected.dtype
    return float((out - expected).abs().max()) / ALLOWED[out.dtype]


def causal_mask(case: Case, shift: int) -> torch.Tensor:
    """True where torch shall not look: keys beyond the query's own position plus `shift`."""
    mha, (query, key, _) = case
    axis = 0 if query.dim() == 2 or not mha.batch_first else 1
    return torch.ones(query.shape[axis], key.shape[axis], dtype=torch.bool).triu(1 + shift)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20)
@given(case=cases())
def test_it_computes_what_torchs_does(kernel: str, case: Case) -> None:
    assert difference(case, kernel, {}, {}) <= 1


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20)
@given(case=cases(square=True))
def test_causal_with_as_many_queries_as_keys_is_torchs(kernel: str, case: Case) -> None:
    masked = {"attn_mask": causal_mask(case, 0), "is_causal": True}
    assert difference(case, kernel, masked, {"is_causal": True}) <= 1


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20)
@given(case=cases(), data=st.data())
def test_causal_with_more_keys_is_aligned_bottom_right(kernel: str, case: Case, data: st.DataObject) -> None:
    queries, keys = causal_mask(case, 0).shape
    if queries > keys:
        mha, (query, key, value) = case
        # The first queries - keys rows would see nothing, for which torch returns NaN.
        axis = 0 if query.dim() == 2 or not mha.batch_first else 1
        case = mha, [query.narrow(axis, queries - keys, keys), key, value]
        queries = keys
    mask = causal_mask(case, keys - queries)
    assert difference(case, kernel, {"attn_mask": mask}, {"is_causal": True}) <= 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_other_weights_masks_and_heads_are_told_apart(kernel: str) -> None:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    case = mha, [torch.randn(2, 9, 32), *[torch.randn(2, 17, 32)] * 2]
    assert difference(case, kernel, {}, {}) <= 1
    # torch's is_causal means this top-left mask.
    assert difference(case, kernel, {"attn_mask": causal_mask(case, 0)}, {"is_causal": True}) > 100
    module = MultiHeadAttention.from_torch(mha, kernel=kernel, tile=TILE)
    with torch.no_grad():
        expected, _ = mha(*case[1], need_weights=False)
        for fault in ("wq", "wk", "wv", "wo"):
            weight = getattr(module, fault).weight
            weight[0] += 0.1
            assert float((module(*case[1])[0] - expected).abs().max()) > 100 * ALLOWED[torch.float32]
            weight[0] -= 0.1
        module.num_heads, module.kv_heads, module.head_dim = 2, 2, 16
        assert float((module(*case[1])[0] - expected).abs().max()) > 100 * ALLOWED[torch.float32]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_are_shared(kernel: str, kv_heads: int) -> None:
    torch.manual_seed(kv_heads)
    grouped = MultiHeadAttention(32, 4, kv_heads=kv_heads, batch_first=True, kernel=kernel, tile=TILE)
    repeated = MultiHeadAttention(32, 4, batch_first=True, kernel=kernel, tile=TILE)
    state = grouped.state_dict()
    for name in ("wk.weight", "wk.bias", "wv.weight", "wv.bias"):
        state[name] = state[name].unflatten(0, (kv_heads, 8)).repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
    repeated.load_state_dict(state)
    x = torch.randn(2, 21, 32)
    assert torch.allclose(grouped(x, x, x)[0], repeated(x, x, x)[0], atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(2, 9, 24), (9, 24)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_heads_are_views(
    kernel: str, shape: tuple[int, ...], batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MultiHeadAttention(24, 3, batch_first=batch_first, kernel=kernel, tile=TILE)
    seen: dict[str, list[int]] = {"projected": [], "read": [], "written": [], "merged": []}

    def keep(what: str, *tensors: torch.Tensor) -> None:
        seen[what] += [x.untyped_storage().data_ptr() for x in tensors]

    function = KERNELS[kernel]

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **rest: Any) -> Any:
        keep("read", q, k, v)
        o = function(q, k, v, **rest)
        keep("written", o)
        return o

    monkeypatch.setitem(KERNELS, kernel, watched)
    for part in (module.wq, module.wk, module.wv):
        part.register_forward_hook(lambda _, inputs, out: keep("projected", out))
    module.wo.register_forward_pre_hook(lambda _, inputs: keep("merged", *inputs))
    x = torch.randn(shape)
    module(x, x, x)
    assert seen["read"] == seen["projected"] and seen["merged"] == seen["written"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_state_goes_there_and_back(kernel: str) -> None:
    first, second = (
        MultiHeadAttention(24, 3, kv_heads=1, kdim=10, vdim=7, bias=False, kernel=kernel, tile=TILE) for _ in range(2)
    )
    assert set(first.state_dict()) == {"wq.weight", "wk.weight", "wv.weight", "wo.weight"}
    second.load_state_dict(first.state_dict())
    inputs = torch.randn(6, 2, 24), torch.randn(8, 2, 10), torch.randn(8, 2, 7)
    assert torch.equal(first(*inputs)[0], second(*inputs)[0])


def test_a_copy_is_a_copy_in_the_same_mode() -> None:
    mha = nn.MultiheadAttention(16, 2, dropout=0.5, dtype=torch.float16)
    module = MultiHeadAttention.from_torch(mha)
    assert module.training and module.dropout == 0.5 and module.wq.weight.dtype == torch.float16
    assert not MultiHeadAttention.from_torch(mha.eval()).training
    before = module.wo.weight.clone()
    nn.init.zeros_(mha.out_proj.weight)
    assert torch.equal(module.wo.weight, before)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_it_is_one_graph(kernel: str, backend: str) -> None:
    torch._dynamo.reset()
    module = MultiHeadAttention(24, 3, batch_first=True, kernel=kernel, tile=TILE)
    x = torch.randn(2, 9, 24)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x, x, x, is_causal=True)[0], module(x, x, x, is_causal=True)[0])


def test_autocast_chooses_the_dtype() -> None:
    module = MultiHeadAttention(24, 3, tile=TILE)
    x = torch.randn(9, 24)
    with torch.autocast("cpu", dtype=torch.float16):
        out = module(x.half(), x, x)[0]
    assert out.dtype == torch.float16 and torch.allclose(out.float(), module(x, x, x)[0], atol=1e-2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_refused(kernel: str) -> None:
    module = MultiHeadAttention(24, 3, kernel=kernel, tile=TILE)
    x = torch.randn(9, 24)
    expected = module(x, x, x)[0]
    assert not expected.requires_grad
    with pytest.raises(MemsimError, match="forward pass only"):
        module(x.clone().requires_grad_(), x, x)
    module.requires_grad_(True)
    with pytest.raises(MemsimError, match="forward pass only"):
        module(x, x, x)
    with torch.no_grad():
        assert torch.equal(module(x, x, x)[0], expected)


def test_what_torch_can_and_this_cannot_is_refused() -> None:
    mha = nn.MultiheadAttention(16, 2, dropout=0.5)
    x = torch.randn(5, 16)
    module = MultiHeadAttention.from_torch(mha.eval(), tile=TILE)
    for asked, words in (
        ({"key_padding_mask": torch.zeros(5, dtype=torch.bool)}, "key_padding_mask is given"),
        ({"attn_mask": torch.zeros(5, 5)}, "attn_mask is given"),
        ({"attn_mask": torch.zeros(5, 5), "is_causal": True}, "attn_mask is given"),
        ({"need_weights": True}, "need_weights is true"),
        ({"is_causal": 1}, "must be true or false"),
    ):
        with pytest.raises(MemsimError, match=words):
            module(x, x, x, **asked)
    with pytest.raises(MemsimError, match=r"dropout is 0\.5 in training"):
        module.train()(x, x, x)
    for added in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(MemsimError, match=added):
            MultiHeadAttention.from_torch(nn.MultiheadAttention(16, 2, **{added: True}))
    with pytest.raises(MemsimError, match=r"mha is a Linear; it must be a torch\.nn\.MultiheadAttention"):
        MultiHeadAttention.from_torch(nn.Linear(3, 3))


def test_sizes_and_inputs_that_do_not_suit_are_refused() -> None:
    for sizes, words in (
        ({"embed_dim": 10, "num_heads": 3}, "embed_dim must be a multiple of num_heads"),
        ({"embed_dim": 12, "num_heads": 6, "kv_heads": 4}, "num_heads must be a multiple of kv_heads"),
        ({"embed_dim": 0, "num_heads": True}, "num_heads is True; it must be a whole number"),
        ({"embed_dim": 600, "num_heads": 2}, "256 columns at most"),
        ({"embed_dim": 16, "num_heads": 2, "kernel": "fast"}, "must be flash or naive"),
        ({"embed_dim": 16, "num_heads": 2, "dropout": 2}, "between 0 and 1"),
    ):
        with pytest.raises(MemsimError, match=words):
            MultiHeadAttention(**sizes)
    module = MultiHeadAttention(16, 2, kdim=8, tile=TILE)
    q, k, v = torch.randn(5, 3, 16), torch.randn(7, 3, 8), torch.randn(7, 3, 16)
    for bad, words in (
        ((q, v, v), "key has 16 columns; it must have 8"),
        ((q, k[0], v), "key has 2 dimensions"),
        ((q[None], k, v), "query has 4 dimensions"),
        ((q, k, v[:5]), "they may differ in columns only"),
        ((q[:, :2], k, v), "the batch, dimension 1, must be the same"),
        ((q, k.half(), v), "key is torch.float16 and the weights torch.float32"),
        ((q, k, v.to("meta")), "value is on meta and the weights on cpu"),
        ((q, k, None), "value is a NoneType"),
        ((None, k, v), "query is a NoneType"),
    ):
        with pytest.raises(MemsimError, match=words):
            module(*bad)
