"""Does `memsim verify` notice when a real kernel is wrong, and do the tests?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from planted import FAULTS, plant

HERE = Path(__file__).parent
# The check that is to find each fault, and the tests that are to; a fault may show in both.
FOUND_BY = {
    "int32 offsets": "accesses",
    "TF32 for float32": "accesses",
    "one K tile loaded twice": "accesses",
    "O stored twice": "accesses",
    "V's padding not zeroed": "numbers",
}


def run_with(folder: Path, *command: str, profile: str = "ci") -> subprocess.CompletedProcess[str]:
    """A Python that finds the faulty package first."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(folder), *filter(None, [env.get("PYTHONPATH")])]
    env |= {"PYTHONPATH": os.pathsep.join(paths), "MEMSIM_HYPOTHESIS": profile, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize("name", FAULTS)
def test_verify_names_a_planted_fault(name: str, tmp_path: Path) -> None:
    plant(FAULTS[name], tmp_path)
    run = run_with(
        tmp_path, "-m", "memsim", "verify", "flash", "--checks", "numbers,accesses", "--jobs", "1", "--json"
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)
    differing = [outcome for outcome in found["outcomes"] if outcome["status"] == "differs"]
    assert differing and not found["holds"]
    assert FOUND_BY.get(name, "numbers") in {outcome["check"] for outcome in differing}
    # The first differing block, tile and element is named.
    assert all("block" in outcome["detail"] for outcome in differing)


@pytest.mark.parametrize("name", FAULTS)
def test_the_tests_fail_on_a_planted_fault(name: str, tmp_path: Path) -> None:
    plant(FAULTS[name], tmp_path)
    tests = str(HERE / f"test_{FOUND_BY.get(name, 'numbers')}.py")
    which = "more_elements" if name == "int32 offsets" else "flash"
    run = run_with(
        tmp_path, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb", "line",
        tests, "-k", which, profile="faulty",
    )  # fmt: skip
    assert run.returncode == 1, run.stdout[-2000:]
    assert " failed" in run.stdout


def test_verify_passes_the_kernels_as_they_are(tmp_path: Path) -> None:
    run = run_with(tmp_path, "-m", "memsim", "verify", "flash", "--checks", "numbers,accesses", "--json")
    assert run.returncode == 0, run.stdout
    found = json.loads(run.stdout)
    assert found["holds"] and not [o for o in found["outcomes"] if o["status"] == "differs"]
    assert sum(o["status"] == "agrees" for o in found["outcomes"]) >= 15
