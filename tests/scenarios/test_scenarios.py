"""Does every scenario print what is stored, and is what is stored true?

Each script is run and compared with its stored text. The key figures of that text are then held against closed forms
and published figures, so that storing a wrong output again does not make it right.
"""

import ast
import re
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from math import ceil, sqrt
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"
EXPECTED = SCENARIOS / "expected"
NAMES = sorted(path.stem for path in SCENARIOS.glob("*.py"))


def stored(name: str) -> str:
    return (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


def numbers(line: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", line)]


def rows(text: str, pattern: str) -> list[str]:
    """The lines that match from their beginning."""
    return [line for line in text.splitlines() if re.match(pattern, line)]


@pytest.mark.parametrize("name", NAMES)
def test_prints_what_is_stored(name: str) -> None:
    printed = StringIO()
    with redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py"])
        runpy.run_path(str(SCENARIOS / f"{name}.py"), run_name="__main__")
    assert printed.getvalue() == stored(name)


def test_an_altered_figure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "online_softmax.txt").write_text(stored("online_softmax").replace("5.551", "5.552"), encoding="utf-8")
    monkeypatch.setitem(globals(), "EXPECTED", tmp_path)
    with pytest.raises(AssertionError, match=r"5\.552"):
        test_prints_what_is_stored("online_softmax")


def test_stored_texts_and_scripts_are_the_same_set() -> None:
    assert sorted(path.name for path in EXPECTED.iterdir()) == [f"{name}.txt" for name in NAMES]
    readme = (SCENARIOS / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\((\w+)\.py\)", readme))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_form(name: str) -> None:
    source = (SCENARIOS / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 70
    tree = ast.parse(source)
    assert (ast.get_docstring(tree) or "").splitlines()[0].endswith("?")
    imported = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert not [module for module in imported if "._" in module]
    tops = {module.split(".")[0] for module in imported}
    assert tops <= {"memsim", "memsim_kernels", "numpy", *sys.stdlib_module_names} and "memsim" in tops

    lines = stored(name).splitlines()
    assert len(lines) < 60 and max(map(len, lines)) <= 120
    answer = " ".join(stored(name).rsplit("\n\n", 1)[1].split())
    assert answer.startswith("Answer: ") and answer.endswith(".") and re.search(r"\d", answer)
    assert not re.search(r"\. ", answer), "one sentence"


def test_flash_vs_naive_bytes_are_the_closed_forms() -> None:
    heads, d, block = 16, 128, 64
    two_level = stored("flash_vs_naive").split("h200")[0]
    tables = rows(two_level, r" *[\d,]+ +[\d,]+ +[\d,]+ +\d+\.\d\d ")
    assert len(tables) == 6
    for line in tables:
        n, naive_mb, flash_mb, moved, written, held, *times = numbers(line)
        # Two bytes an element; qk, softmax and pv write and read S and P once each.
        tiles = n / block
        flash = 2 * heads * d * (2 * n + 2 * n * tiles)
        naive = 2 * heads * (tiles**2 * 2 * block * d + 4 * n * n + n * tiles * d + n * d)
        assert (naive_mb, flash_mb, moved) == (round(naive / 1e6), round(flash / 1e6), round(naive / flash, 2))
        assert written == round((2 * n * n + n * d) / (n * d)) and held == round((4 * n * d + 2 * n * n) / (4 * n * d))
        for algorithm_bytes, us in zip((naive, flash), times, strict=False):
            assert us >= algorithm_bytes / 936e9 * 1e6 - 0.5
        assert not times or times[0] / times[1] > 1.5


def test_flash_vs_naive_refuses_what_does_not_fit() -> None:
    for n in (32768, 65536):
        (line,) = rows(stored("flash_vs_naive").split("h200")[0], f" *{n:,} ")
        assert f"naive needs {2 * 16 * (4 * n * 128 + 2 * n * n)} B of 24000000000 B of HBM" in line


def test_vary_sram_bytes_fall_and_stay_above_a_bound_that_says_something() -> None:
    n, d = 65536, 64
    compulsory_mb = 4 * n * d * 2 / 1e6
    before = float("inf")
    lines = rows(stored("vary_sram"), r" *[\d,]+ +\d+ x ")
    assert len(lines) == 8
    for line in lines:
        kib, block_m, block_n, flash_mb, bound_mb, over, _, _, naive_mb, share, gain = numbers(line)
        m = kib * 1024 / 2
        bound = 2 * m * (n * n * d / (m * m / d + sqrt(3) * m**1.5) - 1) / 1e6
        assert bound_mb == round(bound) and bound > compulsory_mb
        flash = 2 * d * (2 * n + 2 * n * ceil(n / block_m)) / 1e6
        assert flash_mb == round(flash) and bound <= flash < before
        assert over == round(flash / bound, 1) and gain == pytest.approx(naive_mb / flash, abs=0.051)
        # Q, one K/V buffer, O and S in float32, m and l.
        assert 2 * d * (block_m + block_n) + 4 * block_m * (d + block_n + 2) <= kib * 1024
        assert share / 100 * naive_mb >= 4 * n * n * 2 / 1e6 * 0.99
        before = flash


def check_ski_slope(text: str) -> None:
    """Flash's bytes are the closed form of a tile that fits, fall as SRAM grows, and never pass the bound."""
    n, d = 4096, 64
    lines = [numbers(line) for line in rows(text, r" *[\d,]+ +\d+ x \d+ ")]
    assert [line[0] for line in lines] == [2**power for power in range(13)]
    before = (float("inf"), float("inf"))
    for kib, block_m, block_n, flash_mb, naive_mb, bound_mb, over in lines:
        m = kib * 1024 / 2
        bound = max(2 * m * (n * n * d / (m * m / d + sqrt(3) * m**1.5) - 1), 2 * 4 * n * d)
        flash = 2 * d * (2 * n + 2 * n * ceil(n / block_m))
        assert bound_mb == round(bound / 1e6, 1) and flash_mb == round(flash / 1e6, 1)
        assert bound <= flash < naive_mb * 1e6 and over == pytest.approx(flash / bound, abs=0.051)
        assert flash <= before[0] and naive_mb <= before[1]
        # Q, one K/V buffer, O and S in float32, m and l; the next larger power of two would not fit.
        needed = [
            2 * d * (rows_of_q + block_n) + 4 * rows_of_q * (d + block_n + 2) for rows_of_q in (block_m, 2 * block_m)
        ]
        assert needed[0] <= kib * 1024 and (needed[1] > kib * 1024 or block_m == n)
        before = (flash, naive_mb)
    assert lines[-1][3] == lines[-1][5] and lines[0][3] > 20 * lines[0][5]


def test_ski_slope_falls_to_the_bytes_that_none_can_avoid_and_stays_above_the_bound() -> None:
    check_ski_slope(stored("ski_slope"))


@pytest.mark.parametrize(
    "figure, wrong", (("64 x 1      68.2", "128 x 1     34.6"), ("    34.6 ", "    44.6 "), ("19.5", "9.5"))
)
def test_a_slope_that_breaks_a_law_is_noticed(figure: str, wrong: str) -> None:
    text = stored("ski_slope")
    assert text.count(figure) == 1
    with pytest.raises(AssertionError):
        check_ski_slope(text.replace(figure, wrong))


def test_design_space_flash_pays_less_the_less_sram_and_the_faster_hbm() -> None:
    text = stored("design_space")
    cells = {line.split("  ")[0]: numbers(line.split("  ", 1)[1]) for line in rows(text, r"\d+ KiB|N = ")}
    times, moved = ({name: row[at::2] for name, row in cells.items()} for at in (0, 1))
    two_level = [name for name in cells if "KiB" in name]
    assert len(two_level) == 4 and len(cells) == 6 and all(len(row) == 4 for row in times.values())
    assert [times[name][0] for name in two_level] == sorted(times[name][0] for name in two_level)
    for name in two_level:
        # Where HBM is the slowest both wait for it, and time goes as bytes do.
        assert times[name][0] == max(times[name]) == pytest.approx(moved[name][0], rel=0.06)
    # At 20 KiB 16 x 16 fits and no other: Q, a K/V buffer, O and S in float32, m and l.
    heads, n, d, m = 4, 512, 128, 16
    assert 2 * d * 2 * m + 4 * m * (d + m + 2) <= 20 * 1024 < 2 * d * (m + 32) + 4 * m * (d + 32 + 2)
    flash = 2 * heads * d * (2 * n + 2 * n * n // m)
    naive = 2 * heads * (2 * n * n * d // m + 4 * n * n + n * n * d // m + n * d)
    assert moved["20 KiB of SRAM"] == [round(naive / flash, 1)] * 4
    balances = next(numbers(line)[-4:] for line in rows(text, r"two-level with"))
    said = " ".join(text.split("Answer:")[1].split())
    lost = [(name, b) for name in cells for t, b in zip(times[name], balances, strict=True) if t < 1]
    assert lost and all(f"{name.split()[0]} KiB with {b:g}" in said for name, b in lost)
    # The L2 holds all of S, or little of it: only then does HBM's bandwidth matter.
    held, beyond = (times[name] for name in cells if name not in two_level)
    assert max(held) - min(held) < 0.1 < max(beyond) - min(beyond)


def test_vary_tile_bytes_and_sram_are_the_closed_forms() -> None:
    heads, n, d, stages, sms = 20, 1024, 128, 2, 82
    bytes_table, time_table = (part.split("\n\n")[0] for part in stored("vary_tile").split("block_m \\ block_n")[1:])
    columns = [int(x) for x in numbers(bytes_table.splitlines()[0])]
    seen_refused = 0
    for line, times in zip(bytes_table.splitlines()[1:], time_table.splitlines()[1:], strict=True):
        block_m, *cells = re.findall(r"\[[\d,]+ KiB\]|[\d,]+(?: \(\d+, \d+\))?", line)
        m = int(block_m)
        time_cells = re.findall(r"\[[\d,]+ KiB\]|[\d,]+(?: \(\d+, \d+\))?", times)[1:]
        for block_n, cell, time in zip(columns, cells, time_cells, strict=True):
            sram = 2 * d * m + 2 * stages * 2 * d * block_n + 4 * m * (d + block_n + 2)
            moved = 2 * heads * d * (2 * n + 2 * n * ceil(n / m))
            if sram > 192 * 1024:
                seen_refused += 1
                assert cell == time == f"[{sram / 1024:,.0f} KiB]"
                continue
            assert cell == f"{moved / 1e6:,.0f}"
            us, per_sm, waves = numbers(time)
            # At most 16 blocks and 48 warps, of 4 a block.
            assert per_sm == min(192 * 1024 // sram, 12) and waves == ceil(heads * ceil(n / m) / (sms * per_sm))
            assert us >= max(moved / 936e9, 4 * heads * n * n * d / (512 * sms * 1.695e9)) * 1e6 - 0.5
    assert 0 < seen_refused < 30


def test_online_softmax_is_the_worked_example() -> None:
    text = stored("online_softmax")
    first, second = rows(text, r" +[12]  \[\[")
    assert first.split()[-8:] == ["[2,", "1]", "2", "0.000", "1.000,", "0.368", "1.368", "5.839"]
    assert second.split()[-8:] == ["[3,", "1]", "3", "0.368", "1.000,", "0.135", "1.639", "9.096"]
    assert "O / l = 5.551. " in text and "in float64: 5.551." in text
    assert "O = 5.840 after block 1, l = 1.638 and O = 9.094 after block 2, and O / l = 5.551." in text


def test_tile_walk_passes_k_and_v_once_for_each_block_of_q() -> None:
    flash, naive = stored("tile_walk").split("\nflash\n")[1].split("\nnaive\n")
    words = [word for line in rows(flash, r" *\d+ +\d+ +\d+  ") for word in line.split()[3:]]
    assert words == [
        word
        for i in range(4)
        for word in (f"Q{i}", *(f"{x}{j}" for j in range(4) for x in "KV"), "->", f"O{i}")
    ]  # fmt: skip
    for section, kib in ((flash, 4 * (8 + 4 * 16 + 8)), (naive, 16 * (8 + 8 + 2) + 2 * 32 + 32 + 16 * 8 + 32)):
        lines = [numbers(line)[:3] for line in rows(section, r" *\d+ +\d+ +\d+  ")]
        assert sum(row[1] for row in lines) == lines[-1][2] == kib
        assert f"counted without running: {kib} KiB; Q, K, V read once and O written once: 128 KiB" in section
    assert "passes once for each of the 4 blocks of Q" in " ".join(naive.split())


def test_three_bounds_are_three_and_the_bound_is_what_helps() -> None:
    text = stored("three_bounds")
    names = ("prefill", "decode", "decode from host")
    bounds = []
    for name in names:
        first, second = rows(text, rf"{name} +\d")
        _, *alone, tensor, hbm, host, us = numbers(first.rsplit(maxsplit=1)[0])
        assert us >= max(alone)
        assert [tensor, hbm, host] == pytest.approx([100 * x / us for x in alone], abs=1)
        bounds.append(first.split()[-1])
        resources = ("tensor", "hbm", "host")
        busy, saved = (tensor, hbm, host), numbers(second)[1:]
        assert resources[saved.index(max(saved))] == resources[busy.index(max(busy))] == bounds[-1]
    assert bounds == ["tensor", "hbm", "host"]
    answer = " ".join(text.split("Answer:")[1].split())
    assert all(
        f"{n} is {w}" in answer for n, w in zip(names, ("compute-bound", "memory-bound", "I/O-bound"), strict=True)
    )


def test_paper_block_sweep_is_the_papers_algorithm_1() -> None:
    batch_heads, n, d = 64 * 16, 1024, 64
    figures = {int(numbers(line)[0]): numbers(line)[5] for line in rows(stored("paper_block_sweep"), r" +\d+ ")}
    assert figures == {64: 7.12, 128: 3.77, 256: 2.09, 512: 1.25, 384: 1.67}
    for block_n, gb in figures.items():
        passes = ceil(n / block_n)
        # K and V once; Q each pass; O, m and l (float32) read and written each pass, and initialised.
        one = 2 * 2 * n * d + passes * 2 * n * d + (1 + 2 * passes) * (2 * n * d + 2 * 4 * n)
        assert gb == round(batch_heads * one / 1e9, 2)


def test_l2_cliff_falls_where_k_and_v_no_longer_fit() -> None:
    flash, naive = stored("l2_cliff").split("naive, 1 head")
    table = [numbers(line.replace("%", "")) for line in rows(flash, r" *[\d,]+ +\d+\.\d +")]
    assert [line[0] for line in table] == [2**power for power in range(13, 18)]
    before = 0.0
    for n, kept_mb, copies, cold, warm, read_mb, over in table:
        assert kept_mb == round(2 * n * 128 * 2 / 1e6, 1)
        assert copies == pytest.approx(2 * kept_mb / 62.91, abs=0.011)
        assert over == pytest.approx(read_mb / (1.5 * kept_mb), rel=0.02) and over >= before - 0.02
        # In half the L2, K and V are read once; beyond the whole of it, again and again.
        assert (1 <= over <= 1.02 and warm == 100) if copies < 1 else over > 2
        assert 0 <= cold <= warm
        before = over
    lines = [numbers(line.replace("%", "")) for line in rows(naive, r" *[\d,]+ +[\d,.]+ +\d+\.\d%")]
    for n, s_mb, found_s, found_p, hbm_mb, without in lines:
        assert s_mb == round(2 * n * n / 1e6, 1)
        # Q and K, and P and V, for each of the (n / 64)² tiles and n / 64 blocks of rows; S and P; O.
        assert without == round(
            (2 * (n / 64) ** 2 * 64 * 128 * 2 + 4 * n * n * 2 + n / 64 * n * 256 + n * 256) / 1e6, 1
        )
        assert hbm_mb < without and found_s <= found_p + 0.1
    assert lines[0][2:4] == [100, 100] and lines[-1][2] == 0
    assert [line[2] for line in lines] == sorted((line[2] for line in lines), reverse=True)


def test_where_it_is_memory_bound_is_counted_from_the_table() -> None:
    text = stored("where_is_it_memory_bound")
    table, answer = text.split("Answer:")
    memory = {"hbm", "l2", "latency"}
    bounds = []
    for gpu in ("two-level", "h200"):
        part = table.split(f"\n{gpu}\n")[1].split("\n\n")[0]
        lines = rows(part, r" +[\d,]+  [a-z]")
        bounds.append([[name in memory for name in re.findall(r"[a-z]\w+(?= \d+%)", line)] for line in lines])
        shares = [float(share) for line in lines for share in re.findall(r" {2,}(\d+)%", line)]
        # On two levels HBM moves all that crosses; an L2 leaves less.
        assert (set(shares) == {100}) if gpu == "two-level" else max(shares) < 100
    two_level, h200 = ([held for line in part for held in line] for part in bounds)
    apart = sum(one != other for one, other in zip(two_level, h200, strict=True))
    said = " ".join(answer.split())
    assert f"holds back {sum(two_level)} of {len(two_level)} launches on two levels and {sum(h200)} on the H200" in said
    assert f"the two machines disagree on {apart}" in said
    assert not any(line[3] for line in bounds[1]), "flash on an H200 is not held back by memory"


def test_naive_vs_flash_on_gpu_is_near_what_was_measured() -> None:
    text = stored("naive_vs_flash_on_gpu")
    lines = [numbers(line)[-6:] for line in rows(text, r"\d+x[\d/]+x\d+ ")]
    assert len(lines) >= 8
    for sram, sram_1, _, _, took, took_1 in lines:
        assert sram_1 == pytest.approx(sram, rel=0.03) and took_1 == pytest.approx(took, rel=0.35)
    assert "bytes into and out of SRAM are simulated exactly" in " ".join(text.split())


def test_predictions_are_near_what_was_measured() -> None:
    lines = rows(stored("predict_and_measure"), r"\d+×\S+( causal)? +\d+×\d+, ")
    assert len(lines) == 40
    for line in lines:
        *_, cycles, simulated, read, simulated_read = numbers(line)
        assert simulated == pytest.approx(cycles, rel=0.15) and simulated_read == pytest.approx(read, rel=0.02, abs=0.1)


def test_grid_orders_come_in_the_order_measured() -> None:
    lines = rows(stored("grid_orders"), r"\d+×\S+( causal)? +[a-z]+(-[a-z]+)* ")
    found = {(line.split()[-5], line.split()[0]): numbers(line)[-4:] for line in lines}
    assert len(found) == 8
    causal = {key: figures for key, figures in found.items() if key[1] == "16×4096×128"}
    assert sorted(causal, key=lambda key: causal[key][0]) == sorted(causal, key=lambda key: causal[key][1])
    for measured, simulated, _, _ in found.values():
        assert simulated == pytest.approx(measured, rel=0.15)
