"""Do the package and its commands load where neither torch nor triton is installed?"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import memsim_kernels
import pytest

PACKAGE = Path(memsim_kernels.__file__).parent
COMMANDS = sorted(path.stem for path in PACKAGE.glob("_command_*.py"))
MODULES = ("memsim_kernels", "memsim_kernels.costs", *(f"memsim_kernels.{name}" for name in COMMANDS))


def load(module: str, *, without: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Import a module in a process of its own in which the packages `without` cannot be imported."""
    memsim = find_spec("memsim")
    assert memsim is not None and memsim.origin is not None
    code = f"import sys; sys.modules.update(dict.fromkeys({without!r})); import {module}"
    path = os.pathsep.join(dict.fromkeys((str(PACKAGE.parent), str(Path(memsim.origin).parents[1]))))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.parametrize("module", MODULES)
def test_it_loads_without_torch_and_triton(module: str) -> None:
    done = load(module, without=("torch", "triton"))
    assert done.returncode == 0, done.stderr


def test_a_module_that_needs_them_is_told_apart() -> None:
    for needed in ("torch", "triton"):
        assert f"import of {needed} halted" in load("memsim_kernels.flash", without=(needed,)).stderr
