"""The tensor arguments of a recorded launch, and the made-up addresses that tell them apart.

Argument number i gets the address (i + 1) · 2^44, congruent to its real one modulo 512, and everything within 2^43
bytes of it is its own. So tensors that share memory stay apart, and an offset that is out of bounds still says of
which tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsim.errors import MemsimError
from memsim.trace import ELEMENT_BYTES, TENSOR_ALIGNMENT_BYTES, Tensor, place_tensors
from memsim_kernels._record_layout import Layout, logical, same_apart_from_ones

REGION_BITS = 44
LARGEST_SPAN_BYTES = 2 ** (REGION_BITS - 1)

# What Triton calls the types that the project names as torch does.
_TRITON_NAMES = {
    "int1": "bool", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn", "fp8e4b8": "float8_e4m3fnuz", "fp8e5": "float8_e5m2", "fp8e5b16": "float8_e5m2fnuz",
}  # fmt: skip


def dtype_name(dtype: Any) -> str:
    """A dtype of torch or Triton by the project's name."""
    name = str(dtype).rsplit(".", 1)[-1]
    return _TRITON_NAMES.get(name, name)


class DtypeName(str):
    """A dtype by name, with what a tensor descriptor asks of one."""

    @property
    def itemsize(self) -> int:
        return ELEMENT_BYTES[self]

    @property
    def is_floating_point(self) -> bool:
        return "float" in self


@dataclass(frozen=True)
class Address:
    """What the interpreter gets in place of a tensor."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        """The made-up address."""
        return self.address


@dataclass(frozen=True)
class Argument:
    """A tensor argument, from its made-up address to its logical tensor; `real` is None where it has no memory."""

    layout: Layout
    made_up: int
    real: int | None

    @property
    def name(self) -> str:
        return self.layout.name


@dataclass(frozen=True)
class _Given:
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    made_up: int
    real: int | None


class ArgumentTable:
    """Collects the tensors of one launch. `names` renames parameters; `tensors` gives the logical tensor by name."""

    def __init__(self, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
        self._names = dict(names)
        self._tensors = tensors
        self._given: list[_Given] = []

    def add(self, parameter: str, tensor: Any) -> Address:
        """The stand-in for a tensor passed as this parameter."""
        name = self._names.pop(parameter, parameter)
        if any(one.name == name for one in self._given):
            raise MemsimError(f"two arguments are named {name!r}; give each tensor argument a name of its own.")
        dtype = dtype_name(tensor.dtype)
        if dtype not in ELEMENT_BYTES:
            raise MemsimError(f"{name} is {dtype}; a recording takes {', '.join(ELEMENT_BYTES)}.")
        device = str(getattr(tensor, "device", "cpu"))
        if device not in ("cpu", "meta"):
            raise MemsimError(f"{name} is on {device}; recordings are made on the CPU, so copy it there.")
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        real = None if device == "meta" else int(tensor.data_ptr())
        base = (len(self._given) + 1) << REGION_BITS
        made_up = base + (real or 0) % TENSOR_ALIGNMENT_BYTES
        self._given.append(_Given(name, shape, strides, dtype, made_up, real))
        return Address(tensor.dtype, made_up)

    def finish(self) -> tuple[Argument, ...]:
        """Every argument in order, with its logical tensor: the one given for its name, or one placed after those."""
        if self._names:
            raise MemsimError(f"names has {p!r}, which is no tensor argument of the kernel." for p in self._names)
        free = max((t.address + t.total_bytes for t in self._tensors.values()), default=0)
        free = -(-free // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
        own = [one for one in self._given if one.name not in self._tensors]
        placed = place_tensors(tuple(logical(one.name, one.shape, one.dtype) for one in own))
        tensors = {t.name: replace(t, address=free + t.address) for t in placed}
        return tuple(self._argument(one, tensors.get(one.name)) for one in self._given)

    def _argument(self, given: _Given, own: Tensor | None) -> Argument:
        tensor = own if own is not None else self._tensors[given.name]
        if own is None and (tensor.dtype != given.dtype or not same_apart_from_ones(given.shape, tensor)):
            wanted = (tensor.batch, tensor.heads, tensor.rows, tensor.cols)
            raise MemsimError(
                f"{given.name} is {given.dtype} {given.shape}; to be seen as {tensor.dtype} {wanted} it must be the "
                "same but for axes of size 1."
            )
        layout = Layout(given.name, given.shape, given.strides, tensor)
        if layout.span_bytes > LARGEST_SPAN_BYTES:
            raise MemsimError(
                f"{given.name} spans {layout.span_bytes} B of memory; a recording tells tensors apart up to "
                f"{LARGEST_SPAN_BYTES} B."
            )
        return Argument(layout, given.made_up, given.real)
