"""Do pictures of plots draw every figure, can everybody read them, do they fetch nothing; and what of bad input?"""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import memsim.plot
from memsim import Attention, compare
from memsim._plot_style import COLOURS, DASHES, SHAPES
from memsim.plot import Plot

from .measured import memsim_

PROBLEM = ("--heads", "2", "--seq-len", "256", "--head-dim", "64")
SMALL = Attention(heads=2, seq_len_q=256, seq_len_k=256, head_dim=64)
OPTIONS: dict[str, str | int | float] = {"gpu": "two-level", "heads": 2, "seq-len": 256, "head-dim": 64}
DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 300_000


def plots() -> dict[str, Plot]:
    """One of each kind, of small problems."""
    any_length = {name: value for name, value in OPTIONS.items() if name != "seq-len"}
    both = compare(SMALL, gpu="two-level")
    return {
        "bytes": memsim.plot.bytes_per_level(both),
        "roofline": memsim.plot.roofline(both.naive, both.flash),
        "busy": memsim.plot.busy_shares(both.naive, both.flash),
        "sram": memsim.plot.sram_sizes(OPTIONS, vary={"sram": "16KiB:64KiB:x2", "tile": ["16x16", "32x64"]}),
        "tiles": memsim.plot.tile_map("flash", OPTIONS, vary={"block-m": "32,64,256", "block-n": "32,256"}),
        "growth": memsim.plot.growth(any_length, vary={"seq-len": "64,256"}),
    }


@pytest.fixture(scope="module")
def each() -> dict[str, Plot]:
    return plots()


def json_of(*args: str) -> dict[str, Any]:
    code, out, err = memsim_(*args, "--json")
    assert (code, err) == (0, "")
    data: dict[str, Any] = json.loads(out)
    return data


# ---- pictures


def drawn_rows(spec: Any) -> Iterator[dict[str, Any]]:
    """Every row of data in a specification."""
    if isinstance(spec, dict):
        yield from spec.get("data", {}).get("values", [])
        for value in spec.values():
            yield from drawn_rows(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from drawn_rows(value)


def check_drawn(plot: Plot, spec: dict[str, Any]) -> None:
    """All figures of the rows are in the picture."""
    shown = [value for row in drawn_rows(spec) for value in row.values() if type(value) in (int, float)]
    figures = {value for row in plot.rows for value in row.values() if type(value) in (int, float)}
    assert {value for value in figures if value not in shown} == set()


def test_pictures_draw_every_figure(each: dict[str, Plot]) -> None:
    for plot in each.values():
        check_drawn(plot, plot.spec())
        first = {name: value + 1 if type(value) in (int, float) else value for name, value in plot.rows[0].items()}
        with pytest.raises(AssertionError):
            check_drawn(replace(plot, rows=(first, *plot.rows[1:])), plot.spec())


def test_pictures_are_valid_vega_lite_with_titled_axes(each: dict[str, Plot]) -> None:
    altair = pytest.importorskip("altair")
    for plot in each.values():
        spec = plot.spec()
        altair.Chart.from_dict(spec)
        with pytest.raises(Exception, match="lair"):
            altair.Chart.from_dict(spec | {"background": ["lair"]})
        assert '"url"' not in json.dumps(spec)
        titles = {axis.get("title") for axis in axes_of(spec)}
        assert titles - {None}, plot.kind


def axes_of(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        for channel, value in spec.get("encoding", {}).items():
            if channel in ("x", "y"):
                yield value
        for value in spec.values():
            yield from axes_of(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from axes_of(value)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a picture asked for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.usefixtures("offline")
def test_every_kind_is_drawn_in_every_format(tmp_path: Path, each: dict[str, Plot]) -> None:
    pytest.importorskip("vl_convert")
    for kind, plot in each.items():
        for form in ("svg", "png", "html"):
            plot.save(str(tmp_path / f"{kind}.{form}"))
        svg = (tmp_path / f"{kind}.svg").read_text(encoding="utf-8")
        words = " ".join(re.findall(r">([^<>]+)<", svg))
        assert "2 heads" in words and "head-dim 64" in words and "two-level" in words
        assert "seq-len 256" in words or kind == "growth"
        png = (tmp_path / f"{kind}.png").read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        assert png.startswith(b"\x89PNG") and width > 600 and height > 500 and len(png) > 20_000
        page = (tmp_path / f"{kind}.html").read_text(encoding="utf-8")
        assert "default-src 'none'" in page and not re.search(r"(?:src|href)=[\"']?(?:https?:|//)", page)
        (data,) = re.findall(r'id="data">(.*?)</script>', page)
        assert json.loads(data) == json.loads(json.dumps(plot.as_dict()))
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".html"}


@pytest.mark.usefixtures("offline")
def test_words_of_an_svg_keep_their_digits(tmp_path: Path, each: dict[str, Plot]) -> None:
    pytest.importorskip("vl_convert")
    each["busy"].save(str(tmp_path / "busy.svg"))
    svg = (tmp_path / "busy.svg").read_text(encoding="utf-8")
    assert not re.search(r' transform="[^"]*\.\d{3}', svg)
    assert re.search(r'aria-label="[^"]*\.\d{3}', svg)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return math.fsum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_algorithms_are_told_apart_without_colour() -> None:
    assert abs(luminance(COLOURS["naive"]) - luminance(COLOURS["flash"])) > 0.2
    for styles in (SHAPES, {name: tuple(dash) for name, dash in DASHES.items()}):
        assert len(set(styles.values())) == len(styles) == len(COLOURS)


# ---- the page of a picture, and the documentation


def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


def opened(page: Path) -> tuple[str, list[str]]:
    """The page as a browser without a network has made it, and what its console says."""
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--proxy-server=http://127.0.0.1:9",
        "--enable-logging=stderr", "--virtual-time-budget=10000", f"--user-data-dir={page.parent / 'profile'}",
    ]  # fmt: skip
    done = subprocess.run(
        [browser(), *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_page_draws_itself_in_a_browser_without_a_word_on_the_console(tmp_path: Path) -> None:
    browser()
    pytest.importorskip("vl_convert")
    both = compare(SMALL, gpu="two-level", count_only=True)
    plot = memsim.plot.bytes_per_level(both)
    page = tmp_path / "page.html"
    plot.save(str(page))
    made, console = opened(page)
    assert console == [] and 'data-drawn="true"' in made
    drawn = "".join(re.findall(r"<svg .*?</svg>", made, re.DOTALL))
    for row in plot.rows:
        assert f"launch: {row['launch']}" in drawn or f">{row['level']}<" in drawn
    table = re.findall(r"<tr>((?:<td>[^<]*</td>)+)</tr>", made)
    cells = [tuple(re.findall(r"<td>([^<]*)</td>", line)) for line in table]
    assert cells == [tuple(map(str, row.values())) for row in plot.rows]
    # What such a test must see: a script that fails, and one that would fetch.
    page.write_text(
        page.read_text(encoding="utf-8").replace(
            "</body>", "<script>fetch('https://example.org/').catch(() => {}); nonsense();</script></body>"
        ),
        encoding="utf-8",
    )
    _, console = opened(page)
    assert any("nonsense is not defined" in line for line in console)
    assert any("Content Security Policy" in line and "example.org" in line for line in console)


def words_of(svg: str) -> list[str]:
    return sorted(re.findall(r">([^<>]+)</text>", svg))


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not there")
def test_the_documentations_pictures_are_there_small_and_drawn_by_its_commands() -> None:
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^memsim plot .* --out docs/(pictures/\S+\.svg)$", page, re.MULTILINE)
    shown = re.findall(r"^!\[[^\]]{20,}\]\((pictures/\S+)\)$", page, re.MULTILINE)
    stored = [f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()]
    assert drawn == shown and sorted(shown) == sorted(stored)
    assert [path.name for path in (DOCS / "pictures").iterdir() if path.stat().st_size > MOST_BYTES] == []


@pytest.mark.parametrize("name", ["bytes_two_level", "sram"])
def test_a_stored_picture_says_what_its_command_says_now(name: str, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^memsim (plot .*) --out docs/pictures/{name}\.svg$", page, re.MULTILINE)
    now = tmp_path / "now.svg"
    assert memsim_(*line.split(), "--out", str(now))[0] == 0
    stored = words_of((DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8"))
    assert len(stored) > 15 and stored == words_of(now.read_text(encoding="utf-8"))


# ---- the command


def test_a_picture_and_its_numbers_are_files(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    picture, rows = tmp_path / "p.svg", tmp_path / "p.csv"
    code, out, err = memsim_("plot", "bytes", *PROBLEM, "--out", str(picture), "--csv", str(rows))
    assert (code, out) == (0, "") and "the picture is in" in err and "rows are in" in err
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    lines = rows.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "level,algorithm,launch,bytes" and len(lines) == 1 + len(
        json_of("plot", "bytes", *PROBLEM)["rows"]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.svg"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "plot needs a KIND: choose one of bytes, roofline, busy, sram, tiles, growth, measured."),
        (("rooflin", "--json"), 'there is no plot "rooflin": did you mean roofline?'),
        (("bytes",), "plot has nowhere to draw: give --out FILE.svg, FILE.png or FILE.html, or --json or --csv FILE"),
        (("bytes", "--out", "a.gif"), 'out is "a.gif": give a file that ends in .svg, .png or .html.'),
        (("bytes", "--out", "/no/such/folder/a.svg"), "which cannot be written"),
        (("bytes", "--csv", "a.svg", "--out", "a.svg"), "csv and out are the same file: give two."),
        (("bytes", "more", "--json"), '"more" is one word too many: only plot measured takes files.'),
        (("bytes", "--json", "--heads", "0"), "heads is"),
        (("bytes", "--json", "--vary", "sram=1,2"), "plot bytes varies nothing: leave --vary out."),
        (("busy", "--json", "--by", "time"), "--by says nothing about plot busy: it is for tiles."),
        (("busy", "--json", "--count-only"), "plot busy needs times, and counting gives none: leave --count-only out."),
        (("tiles", "--json", "--count-only"), "times take a replay: leave --count-only out, or give --by hbm-bytes."),
        (("tiles", "--json", "--by", "colour"), 'by is "colour"; it must be one of time, hbm-bytes.'),
        (("tiles", "--json", "--algorithm", "fast"), 'there is no algorithm "fast": choose one of'),
        (("tiles", "--json", "--vary", "seq-len=1,2"), '"seq-len" cannot vary in this plot: vary block-m or block-n.'),
        (("growth", "--json", "--vary", "seq-len"), '--vary is "seq-len": give AXIS=V1,V2, such as seq-len=1Ki,2Ki.'),
        (("growth", "--json", "--vary", "seq-len=1:9:x2"), "which does not come to 9: end it at 8 or 16."),
        (("growth", "--json", "--seq-len", "64"), "seq-len is varied and has a value too: give one of them."),
        (("sram", "--json", "--sram", "64KiB"), "sram is varied and has a value too: give one of them."),
        (("sram", "--json", "--vary", "sram=1", "--vary", "sram=2"), "sram is varied twice: give all its values at"),
        (("measured", "--json"), "plot needs a FILE: give the path of a measurement CSV or of an export of ncu."),
        (("measured", "no.csv", "--json", "--sram", "1KiB"), "--sram: the files of plot measured say what was run"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(
    args: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = memsim_("plot", *args)
    assert (code, out) == (2, "") and sentence in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_a_picture_names_it_and_numbers_need_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, out, err = memsim_("plot", "bytes", *PROBLEM, "--out", str(tmp_path / "a.svg"))
    assert (code, out) == (2, "") and "pip install 'memsim[plots]'" in err and err.count("\n") == 1
    assert json_of("plot", "bytes", *PROBLEM)["schema"] == "memsim.plot/1"


def test_numbers_import_nothing_that_draws() -> None:
    code = (
        "import sys; from memsim.cli import run; run(['plot', 'bytes', '--heads', '1', '--seq-len', '64', '--json']); "
        "sys.exit(bool({'vl_convert', 'altair'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
