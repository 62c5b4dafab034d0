"""The interpreter as a GPU would be: what a masked-off lane holds is garbage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test has compiled the next need not compile again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMSIM_CACHE", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(autouse=True, scope="session")
def garbage_in_masked_lanes() -> Iterator[None]:
    """Floats of masked-off lanes that no `other` is given for are NaN; Triton's interpreter makes them 0."""
    from triton.runtime import interpreter

    load = interpreter.InterpreterBuilder.create_masked_load

    def spoiled(self: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        element = ptrs.get_element_ty()
        kind = interpreter._get_np_dtype(element)
        if other is None and kind.kind == "f":
            other = interpreter.TensorHandle(np.full(ptrs.data.shape, np.nan, dtype=kind), element)
        return load(self, ptrs, mask, other, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_load", spoiled)
        yield
