"""Does the reference say what every key is, of the JSON that the documentation's build does not print itself?"""

from __future__ import annotations

import json
import re
from dataclasses import fields as fields_of
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memsim_kernels._command_measure import _data as measure_data
from memsim_kernels.verify import Outcome, Verification

from memsim.calibrate import CALIBRATE_SCHEMA, Calibration
from memsim.cli import main

from . import pages  # isort: skip

from memsim_docs import fields  # isort: skip

assert pages.DOCS.is_dir()


def check(schema: str, data: Any) -> None:
    meanings = fields.WITHOUT_EXAMPLE[schema]()
    assert data["schema"] == schema
    fields.check(schema, meanings, data)


def test_probe(capsys: pytest.CaptureFixture[str]) -> None:
    command = "probe flash --heads 1 --seq-len 64 --head-dim 16 --block-m 64 --block-n 16 --num-stages 2 --json"
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert not stop.value.code
    check("memsim.probe/1", json.loads(capsys.readouterr().out))


def test_verify() -> None:
    outcome = Outcome(0, "numbers", "agrees", "", {"error": 0.0})
    check("memsim.verify/1", Verification("h200", {"numpy": "2"}, (), (outcome,), {}).as_dict())


def test_measure() -> None:
    check("memsim.measure/1", measure_data(SimpleNamespace(gpu="h200", rows=[]), Path("out.csv")))  # type: ignore[arg-type]


def test_calibrate() -> None:
    named = {"schema": CALIBRATE_SCHEMA} | {field.name: None for field in fields_of(Calibration)}
    check("memsim.calibrate/1", named)


def test_every_schema_has_its_section() -> None:
    """All that the sources name, but for what `memsim measure` writes beside its CSV."""
    sources = [*(pages.ROOT / "memsim").rglob("*.py"), *(pages.ROOT / "kernels").rglob("*.py")]
    found = {name for path in sources for name in re.findall(r'"(memsim\.\w+/\d)"', path.read_text(encoding="utf-8"))}
    assert found - {"memsim.provenance/1"} == {*fields.SCHEMAS, *fields.WITHOUT_EXAMPLE}
