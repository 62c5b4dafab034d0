"""Does the README show what the commands print, and does its Python run?"""

import re
from pathlib import Path

import pytest

from memsim.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_output_shown_is_the_output_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--gpu", "two-level"])
    assert not stop.value.code
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    shown = next(block for block in blocks("") if "FlashAttention: 16 heads" in block)
    assert [line.rstrip() for line in shown.strip().splitlines()] == printed


def test_the_python_shown_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    bytes_time_bound, saving, swept, tuned = capsys.readouterr().out.splitlines()
    assert int(bytes_time_bound.split()[0]) > 0
    assert float(saving) > 1
    assert swept.count(",") == 5 and "None" not in swept
    assert "Held back by" in tuned and "None" not in tuned
