"""Does an offset become the element it is, and a set of elements the rectangles that cover it? By brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memsim_kernels._record_layout import Layout, OutsideTensor, logical

from memsim.trace import ELEMENT_BYTES


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to five axes in any order in memory, with gaps between some and no step along others."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=5)))
    strides, step = [0] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        if draw(st.integers(0, 9)):
            step += draw(st.sampled_from((0, 0, 1, 3)))
            strides[axis] = step
            step *= shape[axis]
    dtype = draw(st.sampled_from(("int8", "float16", "float32")))
    return Layout("x", shape, tuple(strides), logical("x", shape, dtype))


def elements_by_offset(layout: Layout) -> dict[int, int]:
    """The first element, row-major, at each offset that has one."""
    found: dict[int, int] = {}
    for number, index in enumerate(itertools.product(*map(range, layout.shape))):
        found.setdefault(sum(i * stride for i, stride in zip(index, layout.strides, strict=True)), number)
    return found


@given(layout=layouts(), data=st.data())
def test_every_offset_is_its_element_or_none(layout: Layout, data: st.DataObject) -> None:
    esize, by_offset = ELEMENT_BYTES[layout.tensor.dtype], elements_by_offset(layout)
    for offset in range(-2, max(by_offset) + 3):
        at = np.array([offset * esize])
        if offset in by_offset:
            assert layout.elements(at, esize).tolist() == [by_offset[offset]]
        else:
            with pytest.raises(OutsideTensor) as refusal:
                layout.elements(at, esize)
            assert refusal.value.offset == offset
    chosen = data.draw(st.lists(st.sampled_from(sorted(by_offset)), max_size=40))
    wanted = sorted({by_offset[offset] for offset in chosen})
    got = layout.elements(np.array(chosen, dtype=np.int64) * esize, esize)
    assert got.tolist() == wanted
    tensor, covered = layout.tensor, []
    for r in layout.rectangles(got):
        for row, col in itertools.product(range(r.row, r.row + r.rows), range(r.col, r.col + r.cols)):
            assert row < tensor.rows and col < tensor.cols
            covered.append(((r.batch * tensor.heads + r.head) * tensor.rows + row) * tensor.cols + col)
    # Each element in one rectangle.
    assert sorted(covered) == wanted


@given(
    rows=st.integers(1, 9), cols=st.integers(1, 9), heads=st.integers(1, 3), data=st.data(),
)  # fmt: skip
def test_a_rectangle_is_one(rows: int, cols: int, heads: int, data: st.DataObject) -> None:
    shape = (heads, rows, cols)
    layout = Layout("x", shape, (rows * cols, cols, 1), logical("x", shape, "int8"))
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    height, width = data.draw(st.integers(1, rows - top)), data.draw(st.integers(1, cols - left))
    head = data.draw(st.integers(0, heads - 1))
    elements = [(head * rows + top + i) * cols + left + j for i in range(height) for j in range(width)]
    assert layout.rectangles(np.array(elements)) == [(0, head, top, left, height, width)]
