"""Is every fault of a measurement CSV named, and does what is written read back the same?"""

from __future__ import annotations

from pathlib import Path

import pytest

from memsim import MemsimError
from memsim.measurements import measurements_csv, read_measurements, write_measurements

from .measured import COUNTERS, memsim_, row_of

HEADER = measurements_csv([row_of()]).splitlines()[0]
GOOD = measurements_csv([row_of(values={"sram_fill_bytes": 8 * 2**20})]).splitlines()[1]


def cell(name: str, text: str) -> str:
    cells = GOOD.split(",")
    cells[HEADER.split(",").index(name)] = text
    return f"{HEADER}\n{','.join(cells)}\n"


BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", "is empty: give a CSV file with a header"),
    ("\n\n", "is empty"),
    (HEADER, "has a header and no rows"),
    (b"\x00\x01\x02", "is binary"),
    (b"\x89PNG\xff\xfe", "is not UTF-8 text at byte 0"),
    ("just some words\nand more", "line 1 of "),
    (f"{HEADER}\n{GOOD},1\n", "line 2 has 32 cells, but the header has 31."),
    (f"{HEADER}\n\n{GOOD[:-4]}\n", "line 3 has 27 cells, but the header has 31."),
    (f"{HEADER},kernel\n{GOOD},flash\n", 'line 1 of "'),
    (f'{HEADER}\n"{GOOD}\n', "line 2 of "),
    (HEADER.replace("batch,", "").replace("heads,kv_", "kv_") + "\n", "lacks the columns batch, heads: a row must say"),
    (cell("kernel", "flsh"), 'line 2: kernel is "flsh"; it must be one of flash, qk, softmax, pv.'),
    (cell("gpu", "h2OO"), 'line 2: gpu is "h2OO", which does not come with memsim'),
    (cell("gpu", ""), "line 2: gpu is empty"),
    (cell("dtype", "fp16"), "line 2: dtype is 'fp16'; it must be one of float16"),
    (cell("heads", "-3"), 'line 2: heads is "-3"; give a whole number from 0 to 2^62'),
    (cell("heads", "0"), "line 2: heads is 0; it must lie between 1 and 2^40."),
    (cell("kv_heads", "7"), "line 2: heads is 16 and kv_heads is 7; heads must be a multiple of kv_heads."),
    (cell("heads", "2.5"), 'line 2: heads is "2.5"; give a whole number'),
    (cell("causal", "yes"), 'line 2: causal is "yes"; give 0 or 1.'),
    (cell("block_m", "24"), "line 2: block_m is 24; this GPU's tensor instructions take powers of two"),
    (cell("block_m", "0"), "line 2: block_m is 0; it must be a whole number between 1 and 65536."),
    (cell("num_warps", "3"), "line 2: num_warps is 3; it must be a power of two."),
    (cell("grid_order", "zigzag"), 'line 2: grid_order is "zigzag"; it must be one of rows-fast'),
    (cell("load_path", "tma"), 'line 2: load_path is "tma"; it must be one of pointer'),
    (cell("sram_fill_bytes", "-1"), 'line 2: sram_fill_bytes is "-1"; give a whole number'),
    (cell("sram_fill_bytes", "nan"), 'line 2: sram_fill_bytes is "nan"; give a whole number'),
    (cell("sram_fill_bytes", "12.5"), 'line 2: sram_fill_bytes is "12.5"; give a whole number'),
    (cell("registers", "0"), "line 2: registers is 0; give a whole number from 1 to 2^62, or leave it empty."),
    (cell("blocks_per_sm", "0"), "line 2: blocks_per_sm is 0; give a whole number from 1 to 2^62"),
    (cell("sram_fill_bytes", "1e30"), 'line 2: sram_fill_bytes is "1e30"; give a whole number from 0 to 2^62'),
    (cell("sram_fill_bytes", "9" * 400), 'line 2: sram_fill_bytes is "999999'),
    (cell("duration_s", "inf"), 'line 2: duration_s is "inf"; give a number'),
    (cell("sram_fill_bytes", "x" * 200_000), "is not CSV (field larger than field limit"),
    (cell("batch", str(2**40)), "line 2: the problem has a tensor of"),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES, ids=[sentence[:40] for _, sentence in BAD_FILES])
def test_a_bad_file_is_one_sentence_and_code_2(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = memsim_("validate", str(path))
    assert (code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1 and err.startswith("memsim: ") and err[-2] == "."


def test_the_good_row_beside_the_bad_ones_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.csv"
    for text in (f"{HEADER}\n{GOOD}\n", f"\ufeff{HEADER}\r\n{GOOD}\r\n", f"{HEADER}\r{GOOD}\r"):
        path.write_bytes(text.encode())
        assert len(read_measurements(path).rows) == 1
        assert memsim_("validate", str(path))[0] in (0, 1)


def test_faults_of_a_file_are_named_together_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEADER}\n" + f"{GOOD.replace('flash', 'x', 1).replace('float16', 'y')}\n" * 30, encoding="utf-8")
    lines = memsim_("validate", str(path))[2].splitlines()
    assert len(lines) == 21 and lines[-1].endswith("more faults after these.") and "line 2: " in lines[0]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("validate",), "validate needs a FILE"),
        (("validate", "nowhere.csv"), 'there is no file called "nowhere.csv"'),
        (("validate", "."), "is a directory"),
        (("validate", str(COUNTERS), "--seq-len", "4096"), "--seq-len is for exports of ncu"),
        (("validate", str(COUNTERS), "--gpu", "h2OO"), 'There is no GPU and no file called "h2OO"'),
        (("validate", "--columns", "--json"), "--columns prints one table"),
        (("validate", str(COUNTERS), "x"), 'there is no file called "x"'),
    ],
)
def test_a_bad_command_is_one_sentence(args: tuple[str, ...], sentence: str) -> None:
    code, out, err = memsim_(*args)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    rows = read_measurements(COUNTERS).rows
    write_measurements(tmp_path / "copy.csv", rows)
    assert read_measurements(tmp_path / "copy.csv").rows == rows
    assert list(tmp_path.iterdir()) == [tmp_path / "copy.csv"]
    with pytest.raises(MemsimError, match="cannot be written"):
        write_measurements(tmp_path / "no" / "copy.csv", rows)
