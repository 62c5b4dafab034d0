"""Does the recorder refuse in one plain sentence what a kernel may not do, and leave the interpreter as it was?"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import triton
from memsim_kernels.record import AddressOnly, record
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from memsim import MemsimError

from . import small_kernels as kernels


@pytest.mark.parametrize(
    ("first", "offset", "lanes"),
    ((95, 100, 11), (-3, -3, 3), (200, 200, 16), (-(2**30), -(2**30), 16)),
)
def test_out_of_bounds(first: int, offset: int, lanes: int) -> None:
    x, out = torch.randn(100), torch.zeros(16)
    with pytest.raises(MemsimError) as refusal:
        record(kernels.copy, (1,), x, out, first, 1, BLOCK=16, names={"x_ptr": "X"})
    assert refusal.value.faults == (
        f"copy, block (0, 0, 0): a load of X touches element offset {offset}, where shape (100,) and strides (1,) have "
        f"no element ({lanes} of 16 lanes); mask such lanes or mend the offset.",
    )


def test_a_store_out_of_bounds_writes_nothing() -> None:
    both = torch.zeros(32)
    with pytest.raises(MemsimError, match="a store of out_ptr touches element offset 8"):
        record(kernels.copy, (1,), torch.ones(16), both[:8], 0, 1, BLOCK=16)
    assert (both == 0).all()


def test_a_gap_between_rows_is_out_of_bounds() -> None:
    x = torch.randn(4, 8)[:, :5]
    with pytest.raises(MemsimError, match=r"x_ptr touches element offset 5, where shape \(4, 5\) and strides \(8, 1\)"):
        record(kernels.copy, (1,), x, torch.empty(8), 0, 1, BLOCK=8)


def test_between_elements() -> None:
    with pytest.raises(MemsimError, match=r"x_ptr touches element offset 1, .* \(1 of 1 lanes\)"):
        record(kernels.between, (1,), torch.zeros(8, dtype=torch.int16), torch.empty(1, dtype=torch.int16))


def test_an_offset_that_wrapped() -> None:
    # 50,000² − 2^32 is negative; as 64 bits the element would be there.
    with pytest.raises(MemsimError, match=r"offset -1794967296.*wrapped once would give that for .* 2500000000"):
        record(kernels.product_offset, (1,), AddressOnly((2**32,), "int8"), torch.empty(1), 50_000, 50_000)


@pytest.mark.parametrize(("a", "b"), ((70_000, 70_000), (46_341, 46_341)))
def test_overflow_that_stays_in_bounds_is_seen_by_checking_the_arithmetic(a: int, b: int) -> None:
    x, out = AddressOnly((2**40,), "int8"), torch.empty(1, dtype=torch.int8)
    with pytest.raises(MemsimError, match=r"block \(0, 0, 0\): int32 overflow detected for operation mul; .* 64 bits"):
        record(kernels.product_offset, (1,), x, out, a, b, check_overflow=True)
    record(kernels.product_offset, (1,), x, out, 46_340, 46_340, check_overflow=True)


def test_a_pointer_from_elsewhere() -> None:
    x = torch.ones(8)
    table = torch.tensor([x.data_ptr()])
    with pytest.raises(MemsimError, match="which belongs to no tensor argument of the launch"):
        record(kernels.follow, (1,), table, torch.empty(8), BLOCK=8)


@pytest.mark.parametrize(
    ("tensor", "words"),
    (
        (torch.zeros(12).as_strided((3, 4), (2, 1)), "elements overlap or interleave"),
        (torch.zeros(12).as_strided((2, 3), (3, 2)), "elements overlap or interleave"),
        (AddressOnly((2, 2), "float32", (-2, 1)), "must not be negative"),
        (AddressOnly((2**45,), "int8"), "spans 35184372088832 B of memory"),
        (torch.zeros(4, dtype=torch.complex64), "x_ptr is complex64; a recording takes float16"),
    ),
)
def test_tensors_that_cannot_be_told_apart(tensor: Any, words: str) -> None:
    with pytest.raises(MemsimError, match=words):
        record(kernels.copy, (1,), tensor, torch.empty(1), 0, 1, BLOCK=1)


def test_names_blocks_grids_and_kernels_that_are_not_there() -> None:
    x = torch.zeros(8)
    for words, arguments in (
        ("'nothing', which is no tensor argument", {"names": {"nothing": "X"}}),
        ("two arguments are named 'X'", {"names": {"x_ptr": "X", "out_ptr": "X"}}),
        (r"block \(1,\) is not in the grid \(1, 1, 1\). block \(0, 1\) is not", {"blocks": [(1,), (0, 1), (0,)]}),
    ):
        with pytest.raises(MemsimError, match=words):
            record(kernels.copy, (1,), x, x.clone(), 0, 1, BLOCK=8, **arguments)
    with pytest.raises(MemsimError, match="one to three axes"):
        record(kernels.copy, (1, 1, 1, 1), x, x.clone(), 0, 1, BLOCK=8)
    with pytest.raises(MemsimError, match=r"takes a @triton.jit kernel, not <built-in function len>"):
        record(len, (1,), x)


def test_what_an_address_may_be() -> None:
    with pytest.raises(MemsimError) as refusal:
        AddressOnly((2, -1), "float12", (1,))
    assert len(refusal.value.faults) == 3


def test_errors_of_the_kernel_itself_are_tritons() -> None:
    with pytest.raises(triton.runtime.errors.InterpreterError):
        record(kernels.copy, (1,), torch.zeros(8), 3, 0, 1, BLOCK=8)


def members() -> list[Any]:
    """What a recording replaces, and what the interpreter itself sets while it runs."""
    builder = interpreter.InterpreterBuilder
    return [
        *(vars(builder)[name] for name in sorted(vars(builder)) if name.startswith("create_")),
        TritonSemantic.atomic_max, TritonSemantic.atomic_min, interpreter.GridExecutor, interpreter._patch_lang,
        triton.language.load, triton.language.range, getattr(triton.language.core.tensor, "__index__", None),
        interpreter.interpreter_builder.options,
    ]  # fmt: skip


def watched(member: Any) -> bool:
    """A recording wraps an operation; Triton's own operations wrap nothing."""
    return hasattr(member, "__wrapped__") and member.__name__.startswith(("create_", "atomic_"))


def test_the_interpreter_is_left_as_it_was() -> None:
    before = members()
    # Nor did any recording before this one leave something behind.
    assert not any(map(watched, before)) and interpreter.GridExecutor.__module__ == interpreter.__name__
    x, out = torch.randn(100), torch.empty(100)
    record(kernels.control_flow, (1,), x, out, 70, BLOCK=32, PARTS=2, check_overflow=True)
    assert members() == before
    with pytest.raises(MemsimError):
        record(kernels.control_flow, (1,), x, out[:5], 70, BLOCK=32, PARTS=2)
    assert members() == before
    kernels.add[(2,)](x, x, out, 100, BLOCK=64)
    assert torch.equal(out, x + x)


def test_recordings_and_launches_within_a_recording() -> None:
    x, inner_out, outer_out = torch.randn(8), torch.zeros(8), torch.zeros(8)
    inner = []

    def hook(*args: Any, **kwargs: Any) -> None:
        kernels.add[(1,)](x, x, inner_out, 8, BLOCK=8)
        inner.append(record(kernels.add, (1,), x, inner_out, inner_out, 8, BLOCK=8))

    kernels.copy.pre_run_hooks.append(hook)
    try:
        outer = record(kernels.copy, (1,), x, outer_out, 0, 1, BLOCK=8)
    finally:
        kernels.copy.pre_run_hooks.remove(hook)
    assert torch.equal(outer_out, x) and torch.allclose(inner_out, 3 * x)
    assert outer.loaded_bytes == {"x_ptr": 32} and inner[0].loaded_bytes == {"x_ptr": 32, "y_ptr": 32}


COMPILED = """
import sys
import triton
sys.path.insert(0, sys.argv[1])
import small_kernels
from memsim_kernels.record import AddressOnly, record
x = AddressOnly((8,), "float32")
record(small_kernels.copy, (1,), x, x, 0, 1, BLOCK=8)
"""


def test_outside_the_interpreter_it_says_so() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, os.path.dirname(__file__)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "memsim.errors.MemsimError: copy is compiled in this process; to record it, set TRITON_INTERPRET=1 before "
        "triton and the kernel are imported."
    )
