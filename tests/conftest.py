"""Hypothesis profiles, and which memsim the tests are about."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# `ci` draws the same examples in every run; `thorough` draws new ones, and many more.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("ci"), derandomize=False, max_examples=2_000)
# For kernels that are wrong on purpose: the first example that shows it is enough.
settings.register_profile("faulty", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("MEMSIM_HYPOTHESIS") or "ci")

# Nothing is kept from one test to the next, nor taken from what the user's own runs keep.
os.environ["MEMSIM_CACHE"] = os.devnull

# A Python that a test starts finds memsim where this one does, not in the current directory.
os.environ["PYTHONSAFEPATH"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Interpret the kernels unless a GPU is asked for; stop a run for the installed wheel that would import the
    checkout."""
    if config.getoption("markexpr") != "gpu":
        # Read when triton sees the first kernel, so before any test module is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    # Triton 3.9 warns where this is unset.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    spec = find_spec("memsim")
    origin = spec.origin if spec else None
    if os.environ.get("MEMSIM_TEST_INSTALLED") and (
        origin is None or Path(origin).is_relative_to(config.rootpath / "memsim")
    ):
        raise pytest.UsageError(f"these tests are for an installed memsim, but import memsim finds {origin}")
