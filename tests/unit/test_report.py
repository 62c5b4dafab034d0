"""What a person reads: it fits 80 columns, and every claim follows from the numbers at hand."""

import dataclasses
import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

import memsim
from memsim import Attention, Comparison, Result, Tile, load_gpu
from memsim._report_format import Paragraph, kib, number, percent, times
from memsim._report_gpus import fields_of, gpu_report, gpus_report
from memsim._report_story import math_s, moving_s, story
from memsim.gpu import apply_options
from memsim.report import MOST_SWEEP_ROWS, comparison_report, result_report, sweep_report
from memsim.sweep import SweepRow, SweepTable, sweep


def text_of(report: RenderableType, width: int = 80) -> str:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False).print(report, crop=False)
    return page.getvalue()


def as_line(text: str) -> str:
    return " ".join(text.split())


COMPARED: dict[str, tuple[Attention, str, Any]] = {
    "default": (Attention(heads=2, seq_len_q=1024, seq_len_k=1024), "h200", None),
    "two-level": (Attention(heads=2, seq_len_q=512, seq_len_k=512), "two-level", None),
    "decode": (Attention(heads=32, kv_heads=8, seq_len_q=1, seq_len_k=2048), "h200", None),
    "tiny": (Attention(heads=2, seq_len_q=64, seq_len_k=64), "h200", None),
    "wide": (Attention(heads=2, seq_len_q=256, seq_len_k=256, head_dim=512), "two-level", None),
    "small block": (Attention(heads=2, seq_len_q=256, seq_len_k=256), "two-level", Tile(2, 64, 4, 2)),
    "empty": (Attention(heads=2, seq_len_q=0, seq_len_k=64), "h200", None),
    "no keys": (Attention(heads=2, seq_len_q=64, seq_len_k=0), "h200", None),
    "float32": (Attention(heads=2, seq_len_q=128, seq_len_k=128, dtype="float32", causal=True), "a100-40gb", None),
}


@pytest.fixture(scope="module", params=COMPARED)
def compared(request: pytest.FixtureRequest) -> tuple[Comparison, memsim.Gpu]:
    problem, gpu, tile = COMPARED[request.param]
    return memsim.compare(problem, gpu=gpu, tile=tile), load_gpu(gpu)


def test_comparison_fits_80_columns_and_cuts_nothing(compared: tuple[Comparison, memsim.Gpu]) -> None:
    text = text_of(comparison_report(*compared))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "…" not in text and "nan" not in text and "e+" not in text
    for word in ("SRAM filled", "SRAM stored", "HBM read", "HBM written", "HBM total", "time", "peak HBM"):
        assert re.search(rf"^{word} ", text, re.MULTILINE), word


def test_story_says_flash_wins_only_where_it_does(compared: tuple[Comparison, memsim.Gpu]) -> None:
    comparison, gpu = compared
    told = as_line(" ".join(story(comparison, gpu)))
    naive, flash = comparison.naive.total, comparison.flash.total
    if not naive.hbm_bytes and not flash.hbm_bytes:
        assert told == "This problem has nothing to compute: no byte is moved."
        return
    fewer, faster = comparison.ratios["hbm_bytes"] or 0.0, comparison.ratios["time_s"] or 0.0
    through = " through HBM" if "l2" in comparison.naive.levels else ""
    assert ("times fewer bytes" in told) == (fewer >= 1.05)
    assert ("times more bytes" in told) == (0 < fewer <= 1 / 1.05)
    assert ("times less time" in told) == (faster >= 1.05)
    assert ("times longer" in told) == (0 < faster <= 1 / 1.05)
    if "times fewer bytes" in told:
        assert f"Flash moves {number(fewer)} times fewer bytes{through}" in told
    assert ("between SMs and L2" in told) == bool(through) or not naive.flops
    if "truck driver" in told:
        assert (naive.waiting_for_memory or 0.0) >= 0.5
        assert f"waits for memory {percent(naive.waiting_for_memory)} of the time" in told
    assert all(sentence.endswith(".") for sentence in story(comparison, gpu) if sentence)


def test_story_of_the_default_problem_names_its_figures() -> None:
    problem, gpu, _ = COMPARED["default"]
    comparison = memsim.compare(problem, gpu=gpu)
    told = as_line(" ".join(story(comparison, load_gpu(gpu))))
    scores_bytes = 2 * 1024 * 1024 * 2
    assert scores_bytes == comparison.naive.launch("qk").store_bytes_by_tensor["S"]
    assert "Naive attention writes S and P out of the SMs (4.19 MB each) and fetches them again: 16.8 MB" in told
    assert "The L2 still has 100.0 % of S and 100.0 % of P when they are fetched." in told
    assert "S and P never leave the SM, where they live in SRAM and registers" in told
    assert "they come in again for every block of 64 rows of Q" in told
    without = memsim.compare(problem, gpu=gpu, gpu_options={"l2": "none"})
    told = as_line(" ".join(story(without, apply_options(load_gpu(gpu), {"l2": "none"}))))
    assert "Naive attention writes S and P to HBM (4.19 MB each) and fetches them again: 16.8 MB" in told
    assert "they come in again for every block of 64 rows of Q" in told and "L2" not in told
    problem, gpu, _ = COMPARED["two-level"]
    told = as_line(" ".join(story(memsim.compare(problem, gpu=gpu), load_gpu(gpu))))
    assert "because S and P never leave the SRAM" in told and "registers" not in told


def changed(result: Result, **total: Any) -> Result:
    return dataclasses.replace(result, total=dataclasses.replace(result.total, **total))


def test_story_follows_the_numbers_not_the_names() -> None:
    gpu = load_gpu("h200")
    real = memsim.compare(Attention(heads=2, seq_len_q=512, seq_len_k=512), gpu_options={"l2": "none"})
    slow = Comparison(real.naive, changed(real.flash, time_s=1.0))
    assert "But it takes" in as_line(" ".join(story(slow, gpu)))
    heavy = Comparison(real.naive, changed(real.flash, hbm_bytes=2 * real.naive.total.hbm_bytes))
    assert "Flash moves 2 times more bytes here" in as_line(" ".join(story(heavy, gpu)))
    same = Comparison(real.naive, changed(real.flash, hbm_bytes=real.naive.total.hbm_bytes))
    assert "Flash moves about as many bytes" in as_line(" ".join(story(same, gpu)))
    calm = Comparison(changed(real.naive, waiting_for_memory=0.04), real.flash)
    told = as_line(" ".join(story(calm, gpu)))
    assert "hardly waits for memory here: 4.0 %" in told and "truck" not in told


def held_back(bound: str, waiting: float, *, blocks_per_sm: int = 1, **busy: float) -> str:
    """The story of a comparison whose flash side has these figures."""
    real = memsim.compare(Attention(heads=8, seq_len_q=2048, seq_len_k=2048), gpu="two-level", count_only=True)
    flash = changed(real.flash, time_s=1.0, bound=bound, waiting_for_memory=waiting, busy=busy)
    launch = dataclasses.replace(flash.launches[0], blocks_per_sm=blocks_per_sm)
    flash = dataclasses.replace(flash, launches=(launch,))
    naive = changed(real.naive, time_s=1.0, waiting_for_memory=0.5)
    return as_line(" ".join(story(Comparison(naive, flash), load_gpu("two-level"))))


def test_story_words_bound_and_waiting_together() -> None:
    phases = "With one block per SM its phases (products, exponentials, arithmetic) cannot overlap, so they add up."
    assert "by the bandwidth of HBM: its math waits for memory 40.0 % of the time." in held_back("hbm", 0.4, hbm=0.9)
    told = held_back("hbm", 0.02, hbm=0.9)
    assert "HBM, busy 90.0 % of the time, though its math waits for memory 2.0 % of the time only" in told
    told = held_back("tensor", 0.02, tensor=0.6)
    assert "(the tensor pipe), busy 60.0 % of the time, and hardly by memory: its math waits for memory 2.0 %" in told
    assert phases in told and "next limit" not in told
    for told in (held_back("tensor", 0.02, tensor=0.6, blocks_per_sm=2), held_back("exp", 0.02, exp=0.95)):
        assert "hardly by memory" in told and phases not in told
    assert "HBM is busy 80.0 % of the time and would be the next limit." in held_back("alu", 0.02, alu=0.7, hbm=0.8)
    assert "more than by memory, though its math waits for memory 30.0 %" in held_back("exp", 0.3, exp=0.5)
    assert "held back by starting kernels; while it runs, its math waits" in held_back("launch", 0.3)


def test_truck_driver_is_told_so_that_a_newcomer_understands_it() -> None:
    comparison = memsim.compare(Attention(heads=16, seq_len_q=1024, seq_len_k=1024), gpu="two-level")
    told = as_line(" ".join(story(comparison, load_gpu("two-level"))))
    assert "of the time: most of the time the GPU is a truck driver, moving numbers, not a mathematician." in told


def test_comparison_shows_what_makes_phases_serial() -> None:
    comparison = memsim.compare(Attention(heads=16, seq_len_q=512, seq_len_k=512), gpu="two-level")
    rows = {
        line[:23].strip(): line[23:].split()
        for line in text_of(comparison_report(comparison, load_gpu("two-level"))).splitlines()
    }
    launches = [*comparison.naive.launches, *comparison.flash.launches]
    assert rows["blocks per SM"] == [str(launch.blocks_per_sm) for launch in launches]
    assert rows["waves"] == [str(launch.waves) for launch in launches]
    assert rows["SRAM per block"] == " ".join(kib(launch.sram_bytes) for launch in launches).split()


@pytest.mark.parametrize("width", [20, 40, 50, 60, 70])
def test_narrow_tables_are_stacked_and_no_figure_is_cut(width: int) -> None:
    comparison = memsim.compare(Attention(heads=2, seq_len_q=256, seq_len_k=256), count_only=True)
    gpu = load_gpu("h200")
    for report in (comparison_report(comparison, gpu), result_report(comparison.naive, gpu), gpus_report([gpu])):
        wide, narrow = text_of(report, 200), text_of(report, width)
        assert "…" not in narrow
        assert set(re.findall(r"[\d.,]+ (?:[KMG]?B|KiB)", wide)) <= set(re.findall(r"[\d.,]+ (?:[KMG]?B|KiB)", narrow))
        if width >= 40:
            assert max(map(cell_len, narrow.splitlines())) <= width


def test_sweep_shows_the_tile_of_every_row_and_what_all_share() -> None:
    table = sweep("flash", {"block-m": ["32", "128"]}, {"heads": 2, "kv-heads": 1, "seq-len": 128, "sram": "192KiB"})
    text = as_line(text_of(sweep_report(table), 120))
    for part in (
        "Sweep of flash: 2 heads (1 of K and V), seq-len 128, head-dim 128, float16",
        "h200 (sram 192KiB): 132 SMs with 192 KiB of SRAM each, L2 of 60 MiB, HBM 4.80 TB/s",
        "tile (block-m × block-n, warps, stages): block-m as varied, the rest from the first of the GPU's tiles that",
        "32×64, 4, 3", "128×64, 4, 3", "At block-m 128: flash spills", "of its [calibrated] table", "L2 hits",
    ):  # fmt: skip
        assert part in text, part
    one = as_line(
        text_of(sweep_report(sweep("naive", {"sms": ["1", "2"], "gpu": ["h200"]}, {"seq-len": 64}, count_only=True)))
    )
    assert "64×64, 4, 3" in one and "tile 64×64, 4 warps, 3 stages (the first of" in one and "Counted without" in one


def test_math_and_moving_times_are_shares_of_the_launches() -> None:
    result = memsim.simulate("naive", Attention(heads=2, seq_len_q=256, seq_len_k=256), gpu="two-level")
    launches = result.launches
    assert moving_s(result) == pytest.approx(sum(x.busy["hbm"] * x.time_s for x in launches))  # type: ignore[index,operator]
    bytes_s = result.total.hbm_bytes / load_gpu("two-level").hbm.bandwidth_bytes_per_s
    assert moving_s(result) == pytest.approx(bytes_s, rel=1e-3)
    assert 0 < math_s(result) < sum(launch.time_s or 0.0 for launch in launches)


def test_an_idle_gpu_is_named() -> None:
    problem, gpu, _ = COMPARED["decode"]
    told = as_line(" ".join(story(memsim.compare(problem, gpu=gpu), load_gpu(gpu))))
    assert "Flash has only 32 blocks, so 100 SMs of 132 stand idle." in told


def test_counted_reports_have_no_times() -> None:
    comparison = memsim.compare(Attention(heads=2, seq_len_q=256, seq_len_k=256), count_only=True)
    gpu = load_gpu("h200")
    for report in (comparison_report(comparison, gpu), result_report(comparison.naive, gpu)):
        text = text_of(report)
        assert "time  " not in text and "busy" not in text and "bound  " not in text.replace("lower bound", "")
        assert "Counted without a replay" in text
    assert "takes" not in " ".join(story(comparison, gpu)).replace("takes times", "")


@pytest.mark.parametrize("algorithm", ["naive", "flash", "flash1"])
@pytest.mark.parametrize("gpu", ["h200", "two-level"])
def test_result_fits_80_columns(algorithm: str, gpu: str) -> None:
    result = memsim.simulate(algorithm, Attention(heads=2, seq_len_q=128, seq_len_k=128), gpu=gpu)
    text = text_of(result_report(result, load_gpu(gpu)))
    assert max(map(cell_len, text.splitlines())) <= 80 and "…" not in text
    assert ("registers a thread" in text) == (gpu == "h200")
    assert ("h200: 132 SMs with 228 KiB of SRAM each, L2 of 60 MiB, HBM" in text) == (gpu == "h200")
    assert bool(re.search("^L2 hit rate ", text, re.MULTILINE)) == (gpu == "h200")
    for word in ("blocks", "waves", "blocks per SM", "limited by", "SRAM per block", "exponentials"):
        assert re.search(rf"^{word} ", text, re.MULTILINE), word


def test_heading_says_what_differs_from_the_plain_problem() -> None:
    problem = Attention(batch=3, heads=4, kv_heads=2, seq_len_q=8, seq_len_k=16, dtype="bfloat16", causal=True)
    options = {"sram": "128KiB", "sms": "9"}
    result = memsim.simulate("flash", problem, gpu_options=options, lse=True, inputs="host")
    text = as_line(text_of(result_report(result, load_gpu("h200"), ("block_m",)), 200))
    for part in (
        "3 sequences", "4 heads (2 of K and V)", "seq-len 8 × 16", "bfloat16", "causal", "with LSE",
        "inputs from the host", "h200 (sram 128KiB, sms 9): ", "L2 of 60 MiB",
        "block-m as asked for", "of it host link",
    ):  # fmt: skip
        assert part in text, part


def test_what_an_l2_does_is_reported() -> None:
    """Two heads of 8 blocks: Q is missed once, K and V are missed by the first of them."""
    problem = Attention(heads=2, seq_len_q=512, seq_len_k=512, head_dim=64)
    cold, warm = (memsim.simulate("flash", problem, l2_state=state) for state in ("cold", "warm"))
    launch = cold.launches[0]
    assert launch.l2_hit_rate_by_tensor == {"Q": 0.0, "K": 7 / 8, "V": 7 / 8}
    assert launch.l2_hit_rate == cold.total.l2_hit_rate == pytest.approx(2 * 7 / (2 * 8 + 1))
    text = text_of(result_report(cold, load_gpu("h200")))
    assert re.search(r"^L2 hit rate +82\.4 % +82\.4 %$", text, re.MULTILINE)
    assert re.search(r"^of K +87\.5 % *$", text, re.MULTILINE)
    assert re.search(r"^yet in L2 only +131 KB +131 KB$", text, re.MULTILINE)
    assert re.search(r"^replayed by +instructions *$", text, re.MULTILINE) and "found in L1" not in text
    text = text_of(result_report(warm, load_gpu("h200")))
    assert "a warm L2 of 60 MiB" in text and re.search(r"^HBM read +0 B +0 B$", text, re.MULTILINE)
    counted = memsim.simulate("flash", problem, count_only=True)
    text = text_of(result_report(counted, load_gpu("h200")))
    assert "without its L2 (counted only)" in text and "L2 hit rate" not in text and "L2 of" not in text


def test_plain_loads_that_an_sm_still_has_are_no_fills() -> None:
    """The kernel of qk reads Q and K by plain loads: four blocks of 64 × 64 on one SM want two tiles of each."""
    problem = Attention(heads=1, seq_len_q=128, seq_len_k=128, head_dim=64)
    naive, counted = (
        memsim.simulate("naive", problem, gpu_options={"sms": "1"}, count_only=only) for only in (False, True)
    )
    found = {launch.name: launch.l1_hit_bytes for launch in naive.launches}
    assert found == {"qk": (8 - 4) * 64 * 64 * 2, "softmax": 0, "pv": 0}
    assert naive.total.l1_hit_bytes == found["qk"]
    assert naive.launch("qk").sram_fill_bytes == counted.launch("qk").sram_fill_bytes - found["qk"]
    assert re.search(r"^found in L1 +32.8 KB +32.8 KB$", text_of(result_report(naive, load_gpu("h200"))), re.MULTILINE)


@pytest.mark.parametrize(
    ("gpu", "tile", "algorithm", "said", "unsaid"),
    [
        ("h200", None, "flash", ["instructions, with constants calibrated on an H200"], ["data-sheet"]),
        ("h200", Tile(16, 32, 2, 1), "flash", ["data-sheet rates, because no instructions of a kernel"], ["H200"]),
        ("a100-40gb", None, "naive", ["data-sheet rates: they were held against no hardware"], ["calibrated"]),
        ("two-level", None, "naive", [], ["Times"]),
    ],
)
def test_what_times_rest_on_is_said(
    gpu: str, tile: Tile | None, algorithm: str, said: list[str], unsaid: list[str]
) -> None:
    result = memsim.simulate(algorithm, Attention(heads=2, seq_len_q=128, seq_len_k=128), gpu=gpu, tile=tile)
    notes = " ".join(result.notes)
    assert all(part in notes for part in said) and not any(part in notes for part in unsaid)
    by = {launch.replayed_by for launch in result.launches}
    assert by == {"instructions" if "calibrated on" in notes else "trace"}


def test_a_changed_machine_is_not_one_that_was_measured() -> None:
    result = memsim.simulate("flash", Attention(heads=2, seq_len_q=128, seq_len_k=128), gpu_options={"sms": "66"})
    notes = " ".join(result.notes)
    assert "held against no hardware like this" in notes and "an H200" not in notes


def test_spills_take_time_where_instructions_are_replayed() -> None:
    spilling = Tile(128, 64, 4, 3)
    for options, said in (({}, "whose bytes are not counted, though they take their time"), (
        {"calibrated": "none", "sm.core": "none"}, "whose traffic is not simulated"
    )):  # fmt: skip
        result = memsim.simulate(
            "flash", Attention(heads=2, seq_len_q=256, seq_len_k=256), tile=spilling, gpu_options=options
        )
        assert result.launches[0].stack_bytes and said in " ".join(result.notes)


def test_names_in_brackets_are_not_taken_for_markup() -> None:
    result = memsim.simulate("flash", Attention(heads=1, seq_len_q=16, seq_len_k=16), count_only=True)
    named = dataclasses.replace(result, gpu="[red]my[/red] gpu", gpu_options={"[b]": "[/]"})
    assert "[red]my[/red] gpu ([b] [/])" in text_of(result_report(named, load_gpu("h200")), 200)


def test_gpus_fit_80_columns() -> None:
    gpus = [load_gpu(name) for name in memsim.gpu_names()]
    text = text_of(gpus_report(gpus))
    assert max(map(cell_len, text.splitlines())) <= 80 and "…" not in text
    assert all(gpu.name in text for gpu in gpus)


@pytest.mark.parametrize("name", memsim.gpu_names())
def test_a_gpu_shows_every_field_and_source(name: str) -> None:
    gpu = load_gpu(name)
    text = text_of(gpu_report(gpu), 400)
    for key in fields_of(gpu):
        if not key.startswith("tiles."):
            assert re.search(rf"^{re.escape(key)} ", text, re.MULTILINE)
    for index, tile in enumerate(gpu.tiles):
        assert re.search(
            rf"^tiles.{index} +{tile.block_m}×{tile.block_n}, {tile.num_warps} warps, ", text, re.MULTILINE
        )
    for source in gpu.sources.values():
        assert as_line(source) in as_line(text)
    assert as_line(text).count(as_line(gpu.sources["tiles"])) == 1
    assert max(map(cell_len, text_of(gpu_report(gpu)).splitlines())) <= 80


def test_sweep_leaves_columns_out_before_it_cuts_any() -> None:
    axes = {"seq-len": ["64", "1Ki"], "block-m": ["32", "1Ki"], "gpu": ["two-level"], "hbm-bandwidth": ["2TB/s"]}
    table = sweep("flash", axes, {"heads": 1})
    wide, narrow = text_of(sweep_report(table), 200), text_of(sweep_report(table), 70)
    assert "× compulsory" in wide and "SRAM/block" in wide and "96.2 KiB" in wide and "Left out" not in wide
    assert "SRAM" not in narrow.split("─")[0].split("\n\n")[-1]
    assert "Left out at this width: tile, blocks/SM, SRAM/block, time, bound, waits" in as_line(narrow)
    assert "--csv and --json have all columns." in narrow and "Left out" in text_of(sweep_report(table), 30)
    for text in (wide, narrow):
        assert "does-not-fit" in text and "…" not in text and "of 196608 B" in as_line(text)
    assert max(map(cell_len, narrow.splitlines())) <= 70


def test_long_sweeps_show_their_first_rows() -> None:
    rows = tuple(SweepRow({"heads": str(i)}, "ok", hbm_bytes=i) for i in range(MOST_SWEEP_ROWS + 5))
    text = text_of(sweep_report(SweepTable({}, {"heads": ("…",)}, len(rows), rows)))
    assert text.startswith("Sweep\n")
    assert f"first {MOST_SWEEP_ROWS} of {len(rows)} rows" in text
    assert len(text.splitlines()) < MOST_SWEEP_ROWS + 10


@pytest.mark.parametrize(
    ("shown", "right"),
    [
        (percent(0.853), "85.3 %"), (percent(None), "–"), (times(2.444), "2.44×"), (times(33.0), "33×"),
        (times(35526.4), "35,526×"), (number(0.0621), "0.062"), (number(None), "–"), (number(0), "0"),
        (kib(233472), "228 KiB"), (kib(16), "16 B"), (kib(131584), "128.5 KiB"), (kib(8200), "8.01 KiB"),
        (kib(60 * 2**20), "60 MiB"),
        (kib(10**15), "1,000 TB"),
    ],
)  # fmt: skip
def test_figures_have_three_to_four_digits(shown: str, right: str) -> None:
    assert shown == right


def test_a_number_stays_with_its_unit() -> None:
    text = text_of(Paragraph("it takes 294 µs and 39.8 % of 1.35 GB on 132 SMs. " * 20), 47)
    assert not re.search(r"[0-9]\n(µs|%|GB)", text) and max(map(len, text.splitlines())) <= 47


def test_one_of_a_kind_is_singular() -> None:
    assert str(Tile(16, 16, 1, 1)) == "16×16, 1 warp, 1 stage"
    result = memsim.simulate("flash", Attention(heads=1, seq_len_q=16, seq_len_k=16), tile=Tile(16, 16, 1, 1))
    text = text_of(result_report(result, load_gpu("h200"), ("block_m", "block_n", "num_warps", "num_stages")))
    assert "flash: 1 head, " in text and "tile 16×16, 1 warp, 1 stage (as asked for)" in text
