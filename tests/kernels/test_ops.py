"""Are the kernels good PyTorch operators: traced without a break, checked as in eager mode, forward only?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from memsim_kernels import flash_attention, naive_attention
from memsim_kernels.ops import outputs, register
from torch._dynamo.testing import CompileCounterWithBackend

from memsim import MemsimError, Tile

KERNELS = {"flash": flash_attention, "naive": naive_attention}
OPERATORS = {"flash": torch.ops.memsim.flash_attention.default, "naive": torch.ops.memsim.naive_attention.default}
TILE = Tile(16, 32, 4, 2)
BACKENDS = ("eager", "aot_eager")

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def qkv(seq_q: int = 20, seq_k: int = 37, *, head_dim: int = 16, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seq_q)
    shapes = ((batch, 4, seq_q, head_dim), (batch, 2, seq_k, head_dim), (batch, 2, seq_k, head_dim))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lse", [False, True])
def test_compiled_without_a_break_it_gives_the_same_bits(kernel: str, backend: str, lse: bool) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out = KERNELS[kernel](q * 2, k, v, causal=True, scale=0.25, tile=TILE, return_lse=lse)
        return (out[0] + 1, out[1]) if lse else out + 1

    tensors = qkv()
    compiled = torch.compile(attention, backend=backend, fullgraph=True)(*tensors)
    plain = attention(*tensors)
    for a, b in zip(compiled, plain, strict=True) if lse else ((compiled, plain),):
        assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("tile", [None, TILE])
def test_one_graph_serves_every_length(kernel: str, tile: Tile | None) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda q, k, v: KERNELS[kernel](q, k, v, tile=tile), backend=counter, fullgraph=True, dynamic=True
    )
    for seq_q, seq_k in ((20, 37), (5, 64), (33, 7)):
        tensors = qkv(seq_q, seq_k)
        assert torch.equal(compiled(*tensors), KERNELS[kernel](*tensors, tile=tile))
    assert counter.frame_count == 1


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "rows first", "gaps in columns", "no keys"])
def test_the_registration_passes_pytorchs_own_checks(kernel: str, layout: str, lse: bool) -> None:
    tensors = qkv(7, 0 if layout == "no keys" else 18)
    if layout == "rows first":
        tensors = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in tensors]
    if layout == "gaps in columns":
        tensors = [x.repeat_interleave(2, 3)[..., ::2] for x in tensors]
    torch.library.opcheck(OPERATORS[kernel], tuple(tensors), {"causal": True, "lse": lse, "tile": (16, 16, 4, 1)})


def test_those_checks_catch_an_operator_that_traces_other_than_it_runs(kernel: str) -> None:
    def wrong_strides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        o, lse = outputs(q, lse=False)
        return o.transpose(2, 3).contiguous().transpose(2, 3), lse

    def aliased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        return q, outputs(q, lse=False)[1]

    for run in (wrong_strides, aliased):
        broken: Any = register(f"{run.__name__}_instead_of_{kernel}", run)
        with pytest.raises(Exception, match=r"(?i)stride|alias"):
            torch.library.opcheck(broken, tuple(qkv()))


def test_outputs_are_new_and_in_the_order_of_q(kernel: str) -> None:
    _, k, v = qkv()
    q = torch.randn(2, 20, 4, 16).transpose(1, 2)
    o = KERNELS[kernel](q, k, v, tile=TILE)
    assert o.stride() == q.stride() and o.data_ptr() not in {x.data_ptr() for x in (q, k, v)}
    assert o.transpose(1, 2).reshape(2, 20, 64).data_ptr() == o.data_ptr()


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_a_bad_input_is_refused_in_a_sentence_also_when_traced(kernel: str, backend: str | None) -> None:
    q, k, v = qkv()
    for arguments, keywords, words in (
        ((q, k[..., :8], v[..., :8]), {}, "batch and head_dim must be the same"),
        ((q[0], k, v), {}, "q has 3 dimensions"),
        ((q[:, :3], k, v), {}, "multiple of kv_heads"),
        ((q, k.half(), v), {}, "k is torch.float16 and q is torch.float32"),
        ((q, k, v), {"tile": Tile(48, 16, 4, 1)}, "powers of two"),
        ((q, k, v), {"tile": Tile(128, 128, 8, 64)}, "of 232448 B"),
        ((q, k, v), {"tile": Tile(16, 16, 4, 1, "descriptor")}, "take .*pointer"),
    ):
        function: Callable[..., Any] = lambda *x, keywords=keywords: KERNELS[kernel](*x, **keywords)  # noqa: E731
        run = torch.compile(function, backend=backend, fullgraph=True) if backend else function
        with pytest.raises(MemsimError, match=words):
            run(*arguments)
        torch._dynamo.reset()


def test_arguments_of_another_kind_are_refused(kernel: str) -> None:
    q, k, v = qkv()
    function = KERNELS[kernel]
    for bad, name in ((np.zeros((2, 2, 37, 16)), "ndarray"), (None, "NoneType"), ([1.0], "list")):
        with pytest.raises(MemsimError, match=f"k is a {name}; it must be a torch.Tensor"):
            function(q, bad, v)
        with pytest.raises(MemsimError, match=f"q is a {name}; it must be a torch.Tensor"):
            function(bad, k, v)
    with pytest.raises(MemsimError, match="v is a sparse or nested tensor"):
        function(q, k, v.to_sparse())
    with pytest.raises(MemsimError, match="k is on meta and q on cpu"):
        function(q, k.to("meta"), v)
    for keywords in ({"causal": 1}, {"causal": None}, {"return_lse": "yes"}, {"allow_tf32": 0}):
        with pytest.raises(MemsimError, match="must be true or false"):
            function(q, k, v, **keywords)
    for scale in ("0.5", True, 10**40, float("nan"), float("inf"), np.float32(1)):
        with pytest.raises(MemsimError, match=r"scale is .* at most 1e30 in size"):
            function(q, k, v, scale=scale)
    with pytest.raises(MemsimError, match=r"must be a memsim\.Tile"):
        function(q, k, v, tile=(16, 16, 4, 1))
    assert torch.equal(function(q, k, v, scale=1, tile=TILE), function(q, k, v, scale=1.0, tile=TILE))
    with pytest.raises(MemsimError, match="block_m, block_n, num_warps, num_stages"):
        OPERATORS[kernel](q, k, v, tile=(16, 16))


def test_every_fault_is_named(kernel: str) -> None:
    with pytest.raises(MemsimError) as refusal:
        KERNELS[kernel](None, 3, qkv()[2], causal=1, scale="x", tile=7)
    assert len(refusal.value.faults) == 5


def test_gradients_are_refused_not_left_out(kernel: str) -> None:
    q, k, v = qkv()
    wanting = k.clone().requires_grad_()
    words = "forward pass only; call them under torch.no_grad"
    with pytest.raises(MemsimError, match=words):
        KERNELS[kernel](q, wanting, v, tile=TILE)
    with pytest.raises(MemsimError, match=words):
        OPERATORS[kernel](q, wanting, v)
    for backend in BACKENDS:
        # Traced, the sentence comes inside PyTorch's report of a failed trace.
        compiled = torch.compile(lambda *x: KERNELS[kernel](*x, tile=TILE), backend=backend, fullgraph=True)
        with pytest.raises(Exception, match=words):
            compiled(q, wanting, v)
    expected = KERNELS[kernel](q, k, v, tile=TILE)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(KERNELS[kernel](q, wanting, v, tile=TILE), expected)
    with torch.no_grad():
        assert torch.equal(compiled(q, wanting, v), expected)


def test_empty_tensors_give_empty_or_zero_outputs(kernel: str) -> None:
    function = KERNELS[kernel]
    for tensors in (qkv(batch=0), qkv(0, 5), qkv(0, 0)):
        o, lse = function(*tensors, return_lse=True, causal=True)
        assert o.shape == tensors[0].shape and lse.shape == o.shape[:3] and not o.numel()
    o, lse = function(*qkv(5, 0), return_lse=True)
    assert (o == 0).all() and lse.isneginf().all()
    q, k, v = qkv()
    for bad in ((q[:, :0], k, v), (q, k[:, :0], v[:, :0]), (q[..., :0], k[..., :0], v[..., :0])):
        with pytest.raises(MemsimError, match=r"heads is 0|head_dim is 0"):
            function(*bad)
    # An empty batch is checked like any other.
    with pytest.raises(MemsimError, match="multiple of kv_heads"):
        function(q[:0, :3], k[:0], v[:0])


def test_grids_beyond_what_a_launch_can_have_are_refused(kernel: str) -> None:
    one = torch.zeros(1)
    limits: list[tuple[int, int, int]] = [(65_536, 1, 1), (1, 65_536, 1)]
    if kernel == "naive":
        limits += [(300, 300, 1), (1, 1, 65_536 * 16)]
    for batch, heads, seq_q in limits:
        q, k = one.expand(batch, heads, seq_q, 16), one.expand(batch, heads, 1, 16)
        with pytest.raises(MemsimError, match="a launch can have 2147483647 × 65535 × 65535 at most"):
            KERNELS[kernel](q, k, k, tile=Tile(16, 16, 4, 1))


def test_tensors_elsewhere_than_on_a_gpu_are_refused_unless_interpreted(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from memsim_kernels import _flash_kernels, _naive_kernels

    function = {"flash": _flash_kernels.flash_pointer_kernel, "naive": _naive_kernels.qk_kernel}[kernel]
    assert not isinstance(function, triton.runtime.JITFunction), "these tests interpret the kernels"
    monkeypatch.setattr(triton.runtime, "JITFunction", type(function))
    with pytest.raises(MemsimError, match="the tensors are on cpu; these kernels take those of a CUDA GPU"):
        KERNELS[kernel](*qkv())
