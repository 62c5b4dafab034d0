"""Do the front door's own decisions hold: what is passed on, which tile is refused, what is divided by what?"""

from __future__ import annotations

import json

import pytest

from memsim import Attention, TileDoesNotFit, compare, load_gpu, simulate
from memsim.cli import run

SMALL = Attention(heads=2, seq_len_q=64, seq_len_k=64, head_dim=64)


def test_compare_hands_everything_to_both() -> None:
    both = compare(SMALL, gpu="two-level", gpu_options={"sram": "96KiB"}, inputs="host", lse=True, count_only=True)
    for result in (both.naive, both.flash):
        assert (result.inputs, result.lse, result.counted_only) == ("host", True, True)
        assert (result.gpu, result.gpu_options) == ("two-level", {"sram": "96KiB"})
        assert result.total.host_bytes == 3 * 2 * 64 * 64 * 2
    timed = compare(SMALL, inputs="host")
    assert timed.naive.total.host_s and timed.naive.total.host_s == timed.flash.total.host_s


def test_intensity_is_useful_flops_over_hbm_bytes() -> None:
    p = Attention(heads=1, seq_len_q=65, seq_len_k=65, head_dim=48, causal=True)
    total = simulate("flash", p, count_only=True).total
    assert total.useful_flops == 4 * 48 * (65 * 66 // 2) < total.flops
    assert total.arithmetic_intensity == total.useful_flops / (total.hbm_read_bytes + total.hbm_write_bytes)


def test_without_a_tile_the_smallest_is_refused_and_with_one_the_first() -> None:
    p = Attention(heads=1, seq_len_q=64, seq_len_k=64, head_dim=8192)
    smallest = load_gpu("h200").tiles[-1]
    with pytest.raises(TileDoesNotFit, match=f"tile {smallest.block_m}×{smallest.block_n}, "):
        simulate("flash", p)
    with pytest.raises(TileDoesNotFit, match="tile 128×64, "):
        simulate("flash", p, tile={"block_m": 128})


def test_gpus_lists_tensor_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpus"]) == 0
    printed = capsys.readouterr().out
    for name, rate in (("a100-40gb", "312"), ("h100-sxm", "989"), ("h200-sxm", "989"), ("two-level", "71")):
        line = next(line for line in printed.splitlines() if name in line)
        assert rate in line, line


def test_the_story_tells_of_shared_heads_only_where_heads_share(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for kv_heads in ("8", "2"):
        assert run(["compare", "--heads", "8", "--kv-heads", kv_heads, "--seq-len", "512"]) == 0
        texts[kv_heads] = " ".join(capsys.readouterr().out.split())
    assert "every head" in texts["2"] and "every head" not in texts["8"]


def test_json_of_a_comparison_is_that_of_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--heads", "2", "--seq-len", "64", "--head-dim", "64", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(compare(SMALL).as_dict()))
