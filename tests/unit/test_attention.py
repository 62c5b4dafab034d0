"""Is the problem what it says it is, and is every fault of it named?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim import Attention, MemsimError, Tile


@given(st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_visible_pairs_are_those_one_can_point_at(rows: int, keys: int, causal: bool) -> None:
    pairs = [(r, c) for r in range(rows) for c in range(keys) if not causal or c <= r + keys - rows]
    problem = Attention(1, 1, None, rows, keys, 1, causal=causal)
    assert problem.visible_pairs == len(pairs)
    assert problem.useful_flops == 4 * len(pairs)


def test_causal_is_aligned_bottom_right() -> None:
    """Two rows of five keys see 4 and 5 of them; five rows of two keys see 0, 0, 0, 1, 2."""
    assert Attention(1, 1, None, 2, 5, 1, causal=True).visible_pairs == 9
    assert Attention(1, 1, None, 5, 2, 1, causal=True).visible_pairs == 3


def test_what_is_left_out_follows() -> None:
    problem = Attention(heads=6, head_dim=64)
    assert problem.kv_heads == 6 and problem.group == 1
    assert problem.scale == problem.scale_value == 0.125
    grouped = Attention(heads=6, kv_heads=2)
    assert grouped.group == 3 and grouped.kv_head_count == 2


@pytest.mark.parametrize("dtype, element", [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_bytes_of_its_tensors(dtype: str, element: int) -> None:
    problem = Attention(2, 6, 3, 10, 20, 7, dtype)
    assert problem.dtype_bytes == element
    of_queries, of_keys = 2 * 6 * 10 * 7 * element, 2 * 3 * 20 * 7 * element
    assert problem.tensor_bytes() == {"Q": of_queries, "K": of_keys, "V": of_keys, "O": of_queries}
    assert problem.useful_flops == 4 * 7 * 200 * 12  # two products, a multiply and an add each


@pytest.mark.parametrize(
    "given_, said",
    [
        ({"batch": 0}, "batch is 0; it must lie between 1 and 2^40."),
        ({"heads": -1}, "heads is -1"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"seq_len_q": -1}, "seq_len_q is -1; it must lie between 0 and 2^40."),
        ({"seq_len_k": 2**40 + 1}, "seq_len_k is 1099511627777"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"head_dim": 64.0}, "head_dim is 64.0; it must be a whole number"),
        ({"batch": True}, "batch is True; it must be a whole number"),
        ({"seq_len_q": "128"}, "seq_len_q is '128'"),
        ({"batch": np.int64(2)}, "batch is "),
        ({"dtype": "float64"}, "dtype is 'float64'; it must be one of float16, bfloat16, float32."),
        ({"dtype": []}, "dtype is []"),
        ({"dtype": None}, "dtype is None"),
        ({"causal": 1}, "causal is 1; it must be true or false."),
        ({"scale": math.nan}, "scale is nan"),
        ({"scale": math.inf}, "scale is inf"),
        ({"scale": 1e31}, "scale is 1e+31"),
        ({"scale": 10**400}, "scale is 1000"),
        ({"scale": "1"}, "scale is '1'"),
        ({"scale": True}, "scale is True"),
        ({"heads": 3, "kv_heads": 2}, "heads is 3 and kv_heads is 2; heads must be a multiple of kv_heads."),
        ({"heads": 2, "kv_heads": 4}, "heads must be a multiple of kv_heads"),
        ({"seq_len_q": 2**40, "seq_len_k": 2**40}, "no tensor may be larger than 2^56 B"),
        ({"batch": 2**40}, "no tensor may be larger than 2^56 B"),
    ],
)
def test_faults_are_named(given_: dict[str, object], said: str) -> None:
    with pytest.raises(MemsimError) as fault:
        Attention(**given_)  # type: ignore[arg-type]
    assert len(fault.value.faults) == 1
    assert said in fault.value.faults[0]
    assert fault.value.faults[0].endswith(".") or fault.value.faults[0].endswith(").")


def test_every_fault_is_named() -> None:
    with pytest.raises(MemsimError) as fault:
        Attention(batch=0, heads=0, seq_len_q=-3, dtype="int8", causal="yes", scale=math.inf)  # type: ignore[arg-type]
    assert [sentence.split()[0] for sentence in fault.value.faults] == [
        "batch", "heads", "seq_len_q", "dtype", "causal", "scale",
    ]  # fmt: skip


@pytest.mark.parametrize("scale", [0, 0.0, -0.5, 1e30, -1e30, 3])
def test_any_finite_scale_is_taken(scale: float) -> None:
    assert Attention(scale=scale).scale_value == scale


@pytest.mark.parametrize(
    "given_, said",
    [
        ({"block_m": 0}, "block_m is 0; it must be a whole number between 1 and 65536."),
        ({"block_n": 2**16 + 1}, "block_n is 65537"),
        ({"num_warps": 3}, "num_warps is 3; it must be a power of two."),
        ({"num_warps": 64}, "num_warps is 64"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"num_stages": True}, "num_stages is True"),
        ({"block_m": 16.0}, "block_m is 16.0"),
    ],
)
def test_faults_of_a_tile_are_named(given_: dict[str, object], said: str) -> None:
    with pytest.raises(MemsimError) as fault:
        Tile(**{"block_m": 16, "block_n": 16, **given_})  # type: ignore[arg-type]
    assert [said in sentence for sentence in fault.value.faults] == [True]


def test_a_tile_says_what_it_is() -> None:
    assert str(Tile(128, 64, 8, 3)) == "128×64, 8 warps, 3 stages"
