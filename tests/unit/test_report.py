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
from memsim.report import MOST_SWEEP_ROWS, comparison_report, result_report, sweep_report
from memsim.sweep import SweepRow, SweepTable, sweep


def text_of(report: RenderableType, width: int = 80) -> str:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False).print(report)
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
    assert ("times fewer bytes" in told) == (fewer >= 1.05)
    assert ("times more bytes" in told) == (0 < fewer <= 1 / 1.05)
    assert ("times less time" in told) == (faster >= 1.05)
    assert ("times longer" in told) == (0 < faster <= 1 / 1.05)
    if "times fewer bytes" in told:
        assert f"Flash moves {number(fewer)} times fewer bytes" in told
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
    assert "Naive attention writes S and P to HBM (4.19 MB each) and fetches them again: 16.8 MB" in told
    assert "S and P never leave the SM, where they live in SRAM and registers" in told
    assert "they come in again for every block of 64 rows of Q" in told
    problem, gpu, _ = COMPARED["two-level"]
    told = as_line(" ".join(story(memsim.compare(problem, gpu=gpu), load_gpu(gpu))))
    assert "because S and P never leave the SRAM" in told and "registers" not in told


def changed(result: Result, **total: Any) -> Result:
    return dataclasses.replace(result, total=dataclasses.replace(result.total, **total))


def test_story_follows_the_numbers_not_the_names() -> None:
    gpu = load_gpu("h200")
    real = memsim.compare(Attention(heads=2, seq_len_q=512, seq_len_k=512))
    slow = Comparison(real.naive, changed(real.flash, time_s=1.0))
    assert "But it takes" in as_line(" ".join(story(slow, gpu)))
    heavy = Comparison(real.naive, changed(real.flash, hbm_bytes=2 * real.naive.total.hbm_bytes))
    assert "Flash moves 2 times more bytes here" in as_line(" ".join(story(heavy, gpu)))
    same = Comparison(real.naive, changed(real.flash, hbm_bytes=real.naive.total.hbm_bytes))
    assert "Flash moves about as many bytes" in as_line(" ".join(story(same, gpu)))
    calm = Comparison(changed(real.naive, waiting_for_memory=0.04), real.flash)
    told = as_line(" ".join(story(calm, gpu)))
    assert "hardly waits for memory here: 4.0 %" in told and "truck" not in told


def test_math_and_moving_times_are_shares_of_the_launches() -> None:
    result = memsim.simulate("naive", Attention(heads=2, seq_len_q=256, seq_len_k=256))
    launches = result.launches
    assert moving_s(result) == pytest.approx(sum(x.busy["hbm"] * x.time_s for x in launches))  # type: ignore[index,operator]
    bytes_s = result.total.hbm_bytes / load_gpu("h200").hbm.bandwidth_bytes_per_s
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
    for word in ("blocks", "waves", "blocks per SM", "limited by", "SRAM of a block", "exponentials"):
        assert re.search(rf"^{word} ", text, re.MULTILINE), word


def test_heading_says_what_differs_from_the_plain_problem() -> None:
    problem = Attention(batch=3, heads=4, kv_heads=2, seq_len_q=8, seq_len_k=16, dtype="bfloat16", causal=True)
    options = {"sram": "128KiB", "sms": "9"}
    result = memsim.simulate("flash", problem, gpu_options=options, lse=True, inputs="host")
    text = as_line(text_of(result_report(result, load_gpu("h200"), ("block_m",)), 200))
    for part in (
        "3 sequences", "4 heads (2 of K and V)", "seq_len 8 × 16", "bfloat16", "causal", "with LSE",
        "inputs from the host", "h200 (sram 128KiB, sms 9)", "block_m as asked for", "of it host link",
    ):  # fmt: skip
        assert part in text, part


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
        assert re.search(rf"^{re.escape(key)} ", text, re.MULTILINE)
    for source in gpu.sources.values():
        assert as_line(source) in as_line(text)


def test_sweep_leaves_columns_out_before_it_cuts_any() -> None:
    axes = {"seq-len": ["64", "1Ki"], "block-m": ["32", "1Ki"], "gpu": ["two-level"], "hbm-bandwidth": ["2TB/s"]}
    table = sweep("flash", axes, {"heads": 1})
    wide, narrow = text_of(sweep_report(table), 200), text_of(sweep_report(table), 70)
    assert "× compulsory" in wide and "SRAM" in wide and "SRAM" not in narrow.split("─")[0]
    for text in (wide, narrow):
        assert "does-not-fit" in text and "…" not in text and "of 196608 B" in as_line(text)
    assert max(map(cell_len, narrow.splitlines())) <= 70


def test_long_sweeps_show_their_first_rows() -> None:
    rows = tuple(SweepRow({"heads": str(i)}, "ok", hbm_bytes=i) for i in range(MOST_SWEEP_ROWS + 5))
    text = text_of(sweep_report(SweepTable({}, {"heads": ("…",)}, len(rows), rows)))
    assert f"first {MOST_SWEEP_ROWS} of {len(rows)} rows" in text
    assert len(text.splitlines()) < MOST_SWEEP_ROWS + 10


@pytest.mark.parametrize(
    ("shown", "right"),
    [
        (percent(0.853), "85.3 %"), (percent(None), "–"), (times(2.444), "2.44×"), (times(33.0), "33×"),
        (times(35526.4), "35,526×"), (number(0.0621), "0.062"), (number(None), "–"), (number(0), "0"),
        (kib(233472), "228 KiB"), (kib(16), "16 B"), (kib(131584), "128.5 KiB"), (kib(60 * 2**20), "60 MiB"),
        (kib(10**15), "1,000 TB"),
    ],
)  # fmt: skip
def test_figures_have_three_to_four_digits(shown: str, right: str) -> None:
    assert shown == right


def test_a_number_stays_with_its_unit() -> None:
    text = text_of(Paragraph("it takes 294 µs and 39.8 % of 1.35 GB on 132 SMs. " * 20), 47)
    assert not re.search(r"[0-9]\n(µs|%|GB)", text) and max(map(len, text.splitlines())) <= 47
