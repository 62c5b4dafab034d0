"""Do inputs that broke systems like this one get the right answer or a plain refusal?

Each test is named after the row of the list of such inputs that it stands for; it tests the kind, not the instance.
"""

from __future__ import annotations

import json
import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from memsim import (
    Attention,
    MemsimError,
    OutOfMemory,
    Tile,
    TileDoesNotFit,
    compute,
    gpu_names,
    load_gpu,
    simulate,
)
from memsim.cli import run as memsim_run
from memsim.gpu import gpu_from_table, override, template
from memsim.numerics import Step

from ..laws.reference import error_and_bound, exact

ALGORITHMS = ("naive", "flash", "flash1")
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def sram_gpu(architecture: str, block_limit_bytes: int):  # type: ignore[no-untyped-def]
    """A machine of another architecture, as far as SRAM goes."""
    capacity = block_limit_bytes + 1024
    return override(
        load_gpu("rtx-4090"),
        {
            "architecture": architecture,
            "sm.sram.capacity_bytes": capacity,
            "sm.sram.block_limit_bytes": block_limit_bytes,
        },
    )


def arrays(p: Attention, seed: int = 0, factors: tuple[float, float, float] = (1, 1, 1)):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    shapes = [(p.batch, p.heads, p.seq_len_q)] + [(p.batch, p.kv_heads, p.seq_len_k)] * 2
    return [
        (rng.standard_normal((*shape, p.head_dim)) * factor).astype(DTYPES[p.dtype])
        for shape, factor in zip(shapes, factors, strict=True)
    ]


def run(algorithm: str, p: Attention, tile: Tile, gpu: str = "h200", **factors: tuple[float, float, float]):  # type: ignore[no-untyped-def]
    q, k, v = arrays(p, **factors)  # type: ignore[arg-type]
    o, lse = compute(algorithm, p, q, k, v, gpu=gpu, tile=tile)
    return o, lse, (q, k, v)


def check_numbers(algorithm: str, p: Attention, tile: Tile, gpu: str = "h200", **factors: tuple[float, float, float]):  # type: ignore[no-untyped-def]
    o, lse, (q, k, v) = run(algorithm, p, tile, gpu, **factors)
    assert np.isfinite(o.astype(np.float64)).all()
    if algorithm != "flash1":
        error, bound = error_and_bound(p, o, q, k, v)
        assert error <= bound, (algorithm, p, tile, error, bound)
    blind = np.isneginf(exact(p, q, k, v)[1])
    assert (np.isneginf(lse) == blind).all() and not np.isnan(lse).any()
    assert (o[blind] == 0).all()
    return o


@pytest.mark.parametrize("num_stages", [3, 4, 8])
def test_1_a_tile_too_large_for_an_sm89_block(num_stages: int) -> None:
    p = Attention(head_dim=128)
    with pytest.raises(TileDoesNotFit, match=r"needs \d+ B of 101376 B: Q 32768 \+ K "):
        simulate("flash", p, gpu="rtx-4090", tile=Tile(128, 128, 8, num_stages))
    assert simulate("flash", p, gpu="rtx-4090", count_only=True).launches[0].sram_bytes <= 101376


def test_1_tuning_offers_a_tile_that_fits_an_sm89_block(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["--heads", "2", "--seq-len", "256", "--head-dim", "128", "--gpu", "rtx-4090"]
    varied = [
        "--vary",
        "tile=128x128,64x64",
        "--num-warps",
        "8",
        "--vary",
        "num-stages=2,3",
        "--grid-order",
        "rows-fast",
    ]
    assert memsim_run(["tune", *problem, *varied, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] and all(0 < candidate["sram_bytes"] <= 101376 for candidate in found["best"])
    (refusal,) = [refusal for refusal in found["refusals"] if refusal["kind"] == "does-not-fit"]
    assert refusal["count"] == 1 and "128×128" in refusal["example"] and "of 101376 B" in refusal["example"]
    # Nothing that fits: a sentence, and no tile.
    assert memsim_run(["tune", *problem, "--vary", "tile=128x128", "--num-stages", "3"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "no candidate is possible on rtx-4090" in printed.err


def test_2_wide_heads_on_an_sm75_block() -> None:
    gpu = sram_gpu("sm_75", 65536)
    p = Attention(head_dim=512, heads=1, seq_len_q=64, seq_len_k=64)
    with pytest.raises(TileDoesNotFit, match="of 65536 B"):
        simulate("flash", p, gpu=gpu, tile=Tile(32, 32, 4, 2))
    assert simulate("flash", p, gpu=gpu, tile=Tile(16, 16, 4, 1)).launches[0].blocks_per_sm >= 1


def test_3_what_compiles_but_cannot_launch() -> None:
    with pytest.raises(TileDoesNotFit) as refusal:
        simulate("flash", Attention(head_dim=128), gpu="h200", tile=Tile(128, 128, 8, 4))
    assert "needs 294912 B of 232448 B: Q 32768 + K 4×32768 + V 4×32768" in str(refusal.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seq", [(5, 2), (40, 7), (33, 17), (70, 1), (20, 20)])
def test_4_5_rows_that_see_no_key(algorithm: str, seq: tuple[int, int]) -> None:
    p = Attention(heads=2, seq_len_q=seq[0], seq_len_k=seq[1], head_dim=16, causal=True)
    for tile in (Tile(16, 16, 4, 2), Tile(64, 32, 4, 1)):
        o = check_numbers(algorithm, p, tile)
        blind = max(0, seq[0] - seq[1])
        assert (o[:, :, :blind] == 0).all() and (o[:, :, blind:] != 0).any(axis=-1).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [(9, 0), (0, 9), (0, 0)])
def test_6_nothing_to_see_or_nobody_to_see_it(algorithm: str, causal: bool, seq: tuple[int, int]) -> None:
    p = Attention(heads=2, seq_len_q=seq[0], seq_len_k=seq[1], head_dim=16, causal=causal)
    for gpu in ("h200", "two-level"):
        o, lse, _ = run(algorithm, p, Tile(16, 16, 4, 2), gpu)
        assert o.shape == (1, 2, seq[0], 16) and (o == 0).all() and np.isneginf(lse).all()
        result = simulate(algorithm, p, gpu=gpu, tile=Tile(16, 16, 4, 2))
        assert result.total.hbm_read_bytes >= 0 and result.total.time_s is not None
        assert result.total.useful_flops == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_7_large_logits(algorithm: str, dtype: str) -> None:
    for n in (100, 129, 200):
        p = Attention(heads=2, seq_len_q=n, seq_len_k=n, head_dim=64, dtype=dtype)
        check_numbers(algorithm, p, Tile(64, 32, 4, 2), factors=(5, 3, 3))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scale", [0.0, -0.125, -1.0, 1e-30])
@pytest.mark.parametrize("causal", [False, True])
def test_8_scales_that_are_not_positive(algorithm: str, scale: float, causal: bool) -> None:
    p = Attention(heads=2, seq_len_q=40, seq_len_k=50, head_dim=16, causal=causal, scale=scale)
    check_numbers(algorithm, p, Tile(16, 16, 4, 2))
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(MemsimError, match="scale"):
            Attention(scale=bad)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_9_nan_in_all_padding(algorithm: str, dtype: str) -> None:
    p = Attention(heads=2, kv_heads=1, seq_len_q=21, seq_len_k=37, head_dim=20, dtype=dtype, causal=True)
    clean = arrays(p)
    padded = []
    for array in clean:
        big = np.full((*array.shape[:2], array.shape[2] + 50, array.shape[3] + 50), np.nan, array.dtype)
        big[:, :, : array.shape[2], : array.shape[3]] = array
        padded.append(big[:, :, : array.shape[2], : array.shape[3]])
    for tile in (Tile(16, 16, 4, 2), Tile(32, 64, 4, 1)):
        a, lse_a = compute(algorithm, p, *clean, tile=tile)
        b, lse_b = compute(algorithm, p, *padded, tile=tile)
        assert a.tobytes() == b.tobytes() and lse_a.tobytes() == lse_b.tobytes()


@pytest.mark.parametrize("algorithm", ["flash", "flash1"])
def test_11_12_offsets_beyond_32_bits(algorithm: str) -> None:
    p = Attention(batch=4096, heads=8, seq_len_q=576, seq_len_k=576, head_dim=128)
    assert ((p.batch - 1) * 576 * 8 + 7) * 128 > 2**31 - 1
    result = simulate(algorithm, p, tile=Tile(64, 64, 4, 1), count_only=True)
    one = simulate(algorithm, Attention(1, 8, 8, 576, 576, 128), tile=Tile(64, 64, 4, 1), count_only=True)
    for name in ("sram_fill_bytes", "sram_store_bytes", "flops", "exps", "compulsory_bytes"):
        assert getattr(result.total, name) == 4096 * getattr(one.total, name)
    long = Attention(heads=1, seq_len_q=16, seq_len_k=2**21, head_dim=4096, dtype="float32")
    total = simulate("flash", long, gpu="two-level", gpu_options={"hbm-capacity": "1TB", "sram": "64MiB"},
                     tile=Tile(16, 16, 4, 1), count_only=True).total  # fmt: skip
    assert total.sram_fill_bytes == 4 * 4096 * (16 + 2 * 2**21)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seq", [(1, 20), (1, 1), (8, 8), (3, 7), (20, 1), (5, 64), (64, 5), (200, 90)])
@pytest.mark.parametrize("causal", [False, True])
def test_13_14_15_short_and_unequal_lengths(algorithm: str, seq: tuple[int, int], causal: bool) -> None:
    p = Attention(heads=1, seq_len_q=seq[0], seq_len_k=seq[1], head_dim=128, causal=causal)
    check_numbers(algorithm, p, Tile(64, 64, 4, 2))


@pytest.mark.parametrize("head_dim", [40, 59, 72, 80, 96, 160, 192, 256])
def test_18_head_dims_between_powers_of_two(head_dim: int) -> None:
    p = Attention(heads=2, seq_len_q=33, seq_len_k=50, head_dim=head_dim)
    for algorithm in ALGORITHMS:
        check_numbers(algorithm, p, Tile(32, 16, 4, 2))
    launch = simulate("flash", p, tile=Tile(64, 32, 4, 2)).launches[0]
    padded = 1 << (head_dim - 1).bit_length()
    assert launch.sram_bytes == 2 * padded * (64 + 4 * 32)
    assert launch.sram_fill_requested_bytes == 2 * head_dim * 2 * (33 + 2 * 50)
    assert launch.flops == 4 * 64 * 64 * padded * 2


@pytest.mark.parametrize("heads,kv_heads", [(33, 2), (3, 2), (2, 4), (1, 3)])
def test_19_heads_that_do_not_group(heads: int, kv_heads: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MemsimError, match="heads must be a multiple of kv_heads"):
        Attention(heads=heads, kv_heads=kv_heads)
    assert memsim_run(["simulate", "flash", "--heads", str(heads), "--kv-heads", str(kv_heads)]) == 2
    assert "multiple of" in capsys.readouterr().err


def test_23_integers_in_bfloat16_scores_are_exact() -> None:
    p = Attention(heads=1, seq_len_q=48, seq_len_k=48, head_dim=16, dtype="bfloat16", scale=1.0)
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-3, 4, (1, 1, 48, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))
    stored: dict[tuple[int, ...], np.ndarray] = {}

    def watch(step: Step) -> None:
        if step.operation == "store" and step.name == "S":
            stored[step.at] = step.values  # type: ignore[index]

    compute("naive", p, q, k, k, tile=Tile(16, 16, 4, 1), watch=watch)
    assert len(stored) == 9
    for (_, _, row, col), tile in stored.items():
        exact_scores = q[0, 0].astype(int) @ k[0, 0].astype(int).T
        assert (tile == exact_scores[row : row + 16, col : col + 16]).all()


def test_24_every_figure_is_in_bytes() -> None:
    p = Attention(heads=1, seq_len_q=64, seq_len_k=64, head_dim=64)
    for gpu in ("two-level", "h200"):
        result = simulate("flash", p, gpu=gpu, tile=Tile(64, 64, 4, 2))
        total = result.total
        code_bytes = result.launches[0].code_bytes
        assert total.hbm_read_bytes - code_bytes == total.sram_fill_bytes == 3 * 64 * 64 * 2
        # What an L2 keeps is yet to be written.
        assert total.hbm_write_bytes + total.l2_dirty_bytes_at_end == total.sram_store_bytes == 64 * 64 * 2


def test_25_streaming_writes_read_nothing() -> None:
    problem = Attention(heads=1, seq_len_q=1000, seq_len_k=1000, head_dim=64)
    result = simulate("naive", problem, gpu_options={"l2": "none"})
    for launch in result.launches:
        assert set(launch.fill_bytes_by_tensor) == {"qk": {"Q", "K"}, "softmax": {"S"}, "pv": {"P", "V"}}[launch.name]
        assert launch.hbm_read_bytes == sum(launch.fill_bytes_by_tensor.values()) - launch.l1_hit_bytes
    # Nor does an L2 fetch what is to be overwritten: S, P and O are not there when they are first stored.
    with_l2 = simulate("naive", Attention(heads=1, seq_len_q=1024, seq_len_k=1024, head_dim=64))
    assert [launch.hbm_read_bytes - launch.code_bytes for launch in with_l2.launches] == [
        2 * 1024 * 64 * 2,
        0,
        1024 * 64 * 2,
    ]


@pytest.mark.parametrize("algorithm", ["flash", "flash1"])
def test_26_bytes_depend_on_sram(algorithm: str) -> None:
    p = Attention(heads=1, seq_len_q=4096, seq_len_k=4096, head_dim=64)
    best = []
    for sram in ("256KiB", "128KiB", "64KiB", "32KiB"):
        totals = []
        for m, n in product((16, 32, 64, 128, 256, 512), repeat=2):
            try:
                result = simulate(algorithm, p, gpu="two-level", gpu_options={"sram": sram}, tile=Tile(m, n, 4, 1),
                                  count_only=True)  # fmt: skip
            except TileDoesNotFit:
                continue
            totals.append(result.total.hbm_bytes)
        best.append(min(totals))
    assert best == sorted(best) and len(set(best)) == len(best)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_27_a_decode_step_reads_k_and_v(kv_heads: int) -> None:
    p = Attention(batch=3, heads=8, kv_heads=kv_heads, seq_len_q=1, seq_len_k=777, head_dim=64)
    result = simulate("flash", p)
    once = 2 * 777 * 64 * 2
    assert result.launches[0].fill_bytes_by_tensor["K"] + result.launches[0].fill_bytes_by_tensor["V"] == 3 * 8 * once
    assert result.total.compulsory_bytes == 3 * kv_heads * once + 2 * 3 * 8 * 64 * 2


def test_30_larger_than_hbm(capsys: pytest.CaptureFixture[str]) -> None:
    p = Attention(heads=16, seq_len_q=131072, seq_len_k=131072, head_dim=128)
    for count_only in (False, True):
        with pytest.raises(OutOfMemory, match="S 549755813888 \\+ P 549755813888"):
            simulate("naive", p, count_only=count_only)
    assert simulate("flash", p, count_only=True).total.peak_hbm_bytes == 4 * 16 * 131072 * 128 * 2
    assert memsim_run(["compare", "--seq-len", "131072"]) == 2
    assert "out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change,named",
    [
        (("[hbm]", "bandwith_bytes_per_s = 1e12"), "hbm.bandwith_bytes_per_s"),
        (("capacity_bytes", -1), "hbm.capacity_bytes"),
        (("capacity_bytes", 1e400), "hbm.capacity_bytes"),
        (("capacity_bytes", math.nan), "hbm.capacity_bytes"),
        (("capacity_bytes", "96 KiB"), "hbm.capacity_bytes"),
    ],
)
def test_31_a_gpu_file_with_a_fault(change: tuple[str, object], named: str) -> None:
    import tomllib

    table = tomllib.loads(template())
    if change[0] == "[hbm]":
        table["hbm"]["bandwith_bytes_per_s"] = table["hbm"].pop("bandwidth_bytes_per_s")
    else:
        table["hbm"][change[0]] = change[1]
    table["sm"]["count"] = -5
    with pytest.raises(MemsimError) as fault:
        gpu_from_table(table, "", sources_required=False)
    assert any(named in sentence for sentence in fault.value.faults)
    assert any("sm.count" in sentence for sentence in fault.value.faults)
    assert all(sentence.rstrip()[-1] in ".?" for sentence in fault.value.faults)


def test_every_shipped_gpu_runs_the_default_problem() -> None:
    for name in gpu_names():
        for algorithm in ALGORITHMS:
            assert simulate(algorithm, gpu=name, count_only=True).total.hbm_bytes > 0
