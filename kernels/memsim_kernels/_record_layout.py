"""Where the elements of one tensor argument lie: from offsets in memory to rectangles of the logical tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memsim.errors import MemsimError
from memsim.trace import ELEMENT_BYTES, Ints, Tensor

AXES = ("batch", "head", "row", "col")


class Rectangle(NamedTuple):
    """Rows [row, row + rows) and columns [col, col + cols) of one head."""

    batch: int
    head: int
    row: int
    col: int
    rows: int
    cols: int


class OutsideTensor(Exception):
    """`lanes` of an access touch no element of the tensor; `offset` is the first such, in elements from its start."""

    def __init__(self, offset: int, lanes: int) -> None:
        super().__init__(offset, lanes)
        self.offset = offset
        self.lanes = lanes


@dataclass(frozen=True)
class _Axis:
    """`size` elements, `stride` elements apart in memory and `weight` apart in the logical tensor."""

    size: int
    stride: int
    weight: int


class Layout:
    """One tensor argument: `shape` and `strides` in elements, seen as the logical `tensor` (batch, head, row, col).

    An axis of stride 0 has all its elements in one place, so an access to any of them is one to the first; `shared`
    names such axes. Raises `MemsimError` where elements otherwise overlap or interleave, because an address then
    does not say which element it is.
    """

    def __init__(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...], tensor: Tensor) -> None:
        self.name = name
        self.shape = shape
        self.strides = strides
        self.tensor = tensor
        self.shared = _shared_axes(shape, strides, tensor)
        self._empty = 0 in shape
        self._axes = _axes(shape, strides)
        self._element_bytes = ELEMENT_BYTES[tensor.dtype]
        if any(stride < 0 for stride in strides):
            raise MemsimError(f"{name} has strides {strides}; they must not be negative.")
        if not self._empty:
            self._check_nested()

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return 0 if self._empty else (last + 1) * self._element_bytes

    def elements(self, offsets: Ints, access_bytes: int) -> Ints:
        """The logical elements that lanes at these byte offsets touch: row-major numbers, sorted, each once.

        A lane moves `access_bytes`. Raises `OutsideTensor`.
        """
        if access_bytes != self._element_bytes:
            offsets = self._as_elements(offsets, access_bytes)
        elif self._element_bytes > 1:
            whole = offsets // self._element_bytes
            self._refuse(offsets, whole * self._element_bytes != offsets)
            offsets = whole
        rest = offsets
        number = np.zeros_like(offsets)
        outside = (offsets < 0) | self._empty
        for axis in self._axes:
            if axis.stride == 1:
                index, rest = rest, np.zeros_like(rest)
            else:
                index = rest // axis.stride
                rest = rest - index * axis.stride
            outside |= index >= axis.size
            number += index if axis.weight == 1 else index * axis.weight
        outside |= rest != 0
        if outside.any():
            raise OutsideTensor(int(offsets[outside][0]), int(outside.sum()))
        return sorted_once(number)

    def rectangles(self, elements: Ints) -> list[Rectangle]:
        """Sorted logical elements as few rectangles: runs within a row, and equal runs of consecutive rows."""
        if not elements.size:
            return []
        t = self.tensor
        col = elements % t.cols
        opens = np.ones(elements.size, dtype=bool)
        opens[1:] = (np.diff(elements) != 1) | (col[1:] == 0)
        starts = np.flatnonzero(opens)
        lengths = np.diff(starts, append=elements.size)
        cols, rows = col[starts], elements[starts] // t.cols
        if (lengths != lengths[0]).any() or (cols != cols[0]).any():
            order = np.lexsort((rows, lengths, cols))
            lengths, cols, rows = lengths[order], cols[order], rows[order]
        opens = np.ones(rows.size, dtype=bool)
        opens[1:] = (
            (np.diff(rows) != 1) | (rows[1:] % t.rows == 0) | (np.diff(lengths) != 0) | (np.diff(cols) != 0)
        )  # fmt: skip
        starts = np.flatnonzero(opens)
        heights = np.diff(starts, append=rows.size)
        found = []
        for start, height in zip(starts.tolist(), heights.tolist(), strict=True):
            head, row = divmod(int(rows[start]), t.rows)
            at = (*divmod(head, t.heads), row, int(cols[start]))
            found.append(Rectangle(*at, height, int(lengths[start])))
        return sorted(found)

    def holds(self, offset: int) -> bool:
        """Whether an element lies at this offset, in elements."""
        try:
            self.elements(np.array([offset * self._element_bytes], dtype=np.int64), self._element_bytes)
        except OutsideTensor:
            return False
        return True

    def _as_elements(self, offsets: Ints, access_bytes: int) -> Ints:
        """Element offsets of lanes of another width, through a pointer that was cast."""
        if access_bytes > self._element_bytes:
            parts = np.arange(0, access_bytes, self._element_bytes, dtype=np.int64)
            offsets = (offsets[:, None] + parts).ravel()
            self._refuse(offsets, offsets % self._element_bytes != 0)
        return offsets // self._element_bytes

    def _refuse(self, offsets: Ints, wrong: np.ndarray) -> None:
        if wrong.any():
            raise OutsideTensor(int(offsets[wrong][0] // self._element_bytes), int(wrong.sum()))

    def _check_nested(self) -> None:
        """Refuse strides with which a smaller axis reaches into the next element of a larger one."""
        reach = 0
        for axis in reversed(self._axes):
            if axis.stride <= reach:
                raise MemsimError(
                    f"{self.name} has shape {self.shape} and strides {self.strides}, with which elements overlap or "
                    "interleave; a recording needs strides that tell them apart."
                )
            reach += (axis.size - 1) * axis.stride


def _axes(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[_Axis, ...]:
    """The axes that move an address, the largest stride first; neighbours that make one run of memory are one."""
    found: list[_Axis] = []
    weight = 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if size > 1 and stride:
            inner = found[-1] if found else None
            if inner and stride == inner.size * inner.stride and weight == inner.size * inner.weight:
                found[-1] = _Axis(inner.size * size, inner.stride, inner.weight)
            else:
                found.append(_Axis(size, stride, weight))
        weight *= size
    return tuple(sorted(found, key=lambda axis: -axis.stride))


def _shared_axes(shape: tuple[int, ...], strides: tuple[int, ...], tensor: Tensor) -> frozenset[str]:
    """Axes of the logical tensor whose elements all lie in one place."""
    seen = (tensor.batch, tensor.heads, tensor.rows, tensor.cols)
    longer = [stride for size, stride in zip(shape, strides, strict=True) if size > 1]
    names = [name for name, size in zip(AXES, seen, strict=True) if size > 1]
    # With more than four dimensions the leading ones are one batch axis, shared only if all of them are.
    extra = max(0, len(longer) - len(names))
    folded = [max(longer[: extra + 1]), *longer[extra + 1 :]] if extra else longer
    return frozenset(name for name, stride in zip(names, folded, strict=True) if stride == 0)


def sorted_once(numbers: Ints) -> Ints:
    """Numbers sorted, each once."""
    if (np.diff(numbers) > 0).all():
        return numbers
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=numbers[0] - 1) > 0]


def logical(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A shape as (batch, heads, rows, cols): the last is cols, then rows, then heads; what leads is batch."""
    *leading, heads, rows, cols = (1,) * max(0, 4 - len(shape)) + shape
    return Tensor(name, math.prod(leading), heads, rows, cols, dtype)


def same_apart_from_ones(shape: tuple[int, ...], tensor: Tensor) -> bool:
    """Whether a shape is the tensor's once axes of size 1 are left out."""
    of_tensor = (tensor.batch, tensor.heads, tensor.rows, tensor.cols)
    return [n for n in shape if n != 1] == [n for n in of_tensor if n != 1]
