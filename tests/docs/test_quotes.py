"""Does a number that no longer holds stop the documentation?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .pages import DOCS

from memsim_docs import fields, quotes, runs  # isort: skip

TABLE = """\
                  naive   flash  ratio
HBM total       1.35 GB  554 MB  2.44x
of it read      1.07 GB  545 MB  1.97x
"""
PAGE = """\
# A page

```{run} memsim gpus two-level
:name: gpu
```

The machine has {calc}`82 <gpu.gpus[0].sms>` SMs and {out}`24,000,000,000 <hbm.capacity_bytes>` B, by
{given}`2` rules of L2 and `3` more.
"""
CONF = """\
import sys
sys.path.insert(0, {folder!r})
extensions = ["myst_parser", "memsim_docs"]
"""


@pytest.mark.parametrize(
    "said, where",
    [("1.35 GB", "HBM total"), ("554 MB", "HBM total @ flash"), ("2.44x", "HBM total @ ratio"), ("1.07 GB", "read")],
)
def test_a_number_that_was_printed(said: str, where: str) -> None:
    quotes.check_printed(said, where, TABLE)


@pytest.mark.parametrize(
    "said, where, why",
    [
        ("1.36 GB", "HBM total", "not what was printed"),
        ("35 GB", "HBM total", "not what was printed"),
        ("2.4", "HBM total", "not what was printed"),
        ("1.35 GB", "of it read", "not what was printed"),
        ("1.35 GB", "HBM total @ flash", "under 'flash'"),
        ("1.35 GB", "HBM in all", "no line"),
    ],
)
def test_a_number_that_was_not_printed(said: str, where: str, why: str) -> None:
    with pytest.raises(runs.PageFault, match=why):
        quotes.check_printed(said, where, TABLE)


def test_numbers_that_are_computed() -> None:
    data = {"a": {"bytes": 1_350_000_000, "launches": [{"name": "qk", "time_s": 7.17e-4}]}}
    quotes.check_computed("1.35 GB", "a.bytes", data.__getitem__)
    quotes.check_computed("1,350 MB", "a.bytes", data.__getitem__)
    quotes.check_computed("717 µs", "a.launches.qk.time_s", data.__getitem__)
    quotes.check_computed("50 %", "a.bytes / 2700000000", data.__getitem__)
    for said, expression in [
        ("1.36 GB", "a.bytes"), ("718 µs", "a.launches.qk.time_s"), ("1.35 GB", "a.flops"), ("1.35 ells", "a.bytes"),
        ("717 µs", "a.launches.pv.time_s"),
    ]:  # fmt: skip
        with pytest.raises(runs.PageFault):
            quotes.check_computed(said, expression, data.__getitem__)


@pytest.mark.parametrize("text", ["float16, L2 and sm_90", "no number", "FlashAttention-3"])
def test_what_is_no_number(text: str) -> None:
    assert quotes.unquoted(text) is None


@pytest.mark.parametrize("text", ["16 heads", "takes 2.4 times as long", "(2018)", "64×64"])
def test_what_is_one(text: str) -> None:
    assert quotes.unquoted(text)


def test_a_command_that_fails_and_one_that_is_not_ours() -> None:
    page = runs.Page()
    with pytest.raises(runs.PageFault, match="exit code 2, not 0"):
        page.run("memsim gpus nowhere")
    with pytest.raises(runs.PageFault, match="neither"):
        page.run("ls")
    assert "two-level" in page.run("memsim gpus two-level").out
    page.close()


def test_keys_without_a_meaning_and_meanings_without_a_key() -> None:
    with pytest.raises(runs.PageFault, match=r"nothing says what b\[\]\.c mean"):
        fields.check("s", {"a": "", "b": ""}, {"a": 1, "b": [{"c": 1}]})
    with pytest.raises(runs.PageFault, match="no key is called z"):
        fields.check("s", {"a": "", "z": ""}, {"a": 1})


def build(folder: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Build one page of a checked folder."""
    (folder / "conf.py").write_text(CONF.format(folder=str(DOCS / "_ext")), encoding="utf-8")
    (folder / "index.md").write_text("# All\n\n```{toctree}\ntutorial/page\n```\n", encoding="utf-8")
    (folder / "tutorial").mkdir()
    (folder / "tutorial" / "page.md").write_text(page, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(folder),
        str(folder / "out"),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_page_whose_numbers_hold(tmp_path: Path) -> None:
    built = build(tmp_path, PAGE)
    assert built.returncode == 0, built.stderr


def test_a_page_with_planted_faults(tmp_path: Path) -> None:
    page = PAGE.replace("`82 <", "`83 <").replace("`24,0", "`25,0").replace("{given}`2`", "2")
    page += "\n```{run} memsim gpus nowhere\n```\n\n```{section} design.md No such heading\n```\n"
    page += "\n<!-- reference: nothing -->\n"
    built = build(tmp_path, page)
    assert built.returncode == 1
    for said in (
        "'83' is said to be", "'25,000,000,000' is not what was printed", "held against nothing: 2 rules of L2",
        "exit code 2, not 0", "no heading 'No such heading'", "no reference 'nothing'",
    ):  # fmt: skip
        assert said in built.stderr, said
