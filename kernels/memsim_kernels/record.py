"""What a real kernel does to memory: its accesses, recorded while Triton's interpreter runs it on the CPU.

Any `@triton.jit` kernel: pointers, descriptors, block pointers, atomics, gathers, and tensors that exist only as an
address. An interpreted run costs milliseconds a tile, so record small problems, or a few blocks of large ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memsim.errors import MemsimError
from memsim.trace import ELEMENT_BYTES, Load, Record, Store, Tensor, Work
from memsim_kernels._record_arguments import DtypeName, dtype_name
from memsim_kernels.calls import Call


@dataclass(frozen=True)
class AddressOnly:
    """A tensor that is a shape, strides (in elements; contiguous if None) and a dtype, but no memory.

    Loads from it give 0, stores to it vanish, so it may be larger than memory. `dtype` is a name ("float16") or
    torch's own. torch tensors on the "meta" device are taken the same way.
    """

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...] | None = None

    device = "meta"

    def __post_init__(self) -> None:
        name = dtype_name(self.dtype)
        shape = tuple(self.shape)
        strides = _contiguous(shape) if self.strides is None else tuple(self.strides)
        faults = []
        if name not in ELEMENT_BYTES:
            faults.append(f"dtype is {name}; it must be one of {', '.join(ELEMENT_BYTES)}.")
        if any(n < 0 for n in shape):
            faults.append(f"shape is {shape}; its sizes must not be negative.")
        if len(strides) != len(shape):
            faults.append(f"strides are {strides}; shape {shape} needs {len(shape)} of them.")
        if faults:
            raise MemsimError(faults)
        object.__setattr__(self, "dtype", DtypeName(name))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)

    def stride(self, dim: int | None = None) -> Any:
        """The strides, in elements, or that of one axis."""
        assert self.strides is not None
        return self.strides if dim is None else self.strides[dim]

    def data_ptr(self) -> int:
        """There is no memory."""
        return 0


@dataclass(frozen=True)
class Recording:
    """What one launch did: the records of each block, in the order in which it ran them.

    `blocks` maps grid coordinates (x, y, z) to records, in linear order (x fastest), which is how hardware hands
    blocks out; only the blocks that were asked for are there. Records are `Load`, `Store` and `Work`, every position
    a constant. A rectangle of a tensor is one record, an irregular set of elements several; an element asked for
    twice in one access counts once, a masked-off lane not at all. An atomic is a load and a store of the same tile.
    `Work` is matrix products (pipe "tensor", "tf32" where float32 is not multiplied as such), exponentials and
    logarithms (pipe "exp"). `tensors` are the logical tensors by name; `shared` names axes whose elements all lie
    in one place (stride 0): an access anywhere along them is one at index 0.
    """

    kernel: str
    grid: tuple[int, int, int]
    tensors: Mapping[str, Tensor]
    shared: Mapping[str, frozenset[str]]
    blocks: Mapping[tuple[int, int, int], tuple[Record, ...]]

    @cached_property
    def loaded_bytes(self) -> dict[str, int]:
        """Bytes asked for by loads, by tensor."""
        return self._moved(Load)

    @cached_property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes asked for by stores, by tensor."""
        return self._moved(Store)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the matrix products, as executed."""
        return self._amount("tensor")

    @cached_property
    def exps(self) -> int:
        """Exponentials and logarithms."""
        return self._amount("exp")

    def number_of(self, block: tuple[int, int, int]) -> int:
        """A block's place in linear order."""
        x, y, z = block
        return x + self.grid[0] * (y + self.grid[1] * z)

    def _moved(self, kind: type[Load] | type[Store]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for records in self.blocks.values():
            for record in records:
                if isinstance(record, kind):
                    tile = record.tile
                    total[tile.tensor.name] += tile.rows * tile.cols * ELEMENT_BYTES[tile.tensor.dtype]
        return dict(total)

    def _amount(self, pipe: str) -> int:
        works = (record for records in self.blocks.values() for record in records if isinstance(record, Work))
        return sum(work.amount for work in works if work.pipe == pipe)


def record(
    kernel: Any,
    grid: Any,
    *args: Any,
    names: Mapping[str, str] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    blocks: Iterable[tuple[int, ...]] | None = None,
    check_overflow: bool = False,
    **kwargs: Any,
) -> Recording:
    """Interpret `kernel[grid](*args, **kwargs)` and return its accesses; its results are written as in any run.

    Tensor arguments may be torch tensors on the CPU or `AddressOnly`, also inside tuples and tensor descriptors. A
    tensor has its parameter's name, or the one that `names` gives for the parameter. It is seen as (batch, heads,
    rows, cols): (n,) as one row, (rows, cols) as one head, (heads, rows, cols) as one batch, more leading axes as
    batch; or as `tensors` says for its name, which must be the same shape but for axes of size 1.

    `blocks` picks the blocks to run by their grid coordinates (all if None). Masked lanes of loads without `other`
    hold NaN or the extreme integer, because on a GPU they hold garbage. `check_overflow` refuses integer arithmetic
    that does not fit its type, at half as much again; masked integer lanes then hold 0.

    Raises `MemsimError` outside the interpreter (TRITON_INTERPRET=1), and naming block, tensor and element offset
    where a lane that is not masked off touches no element of its tensor.
    """
    from memsim_kernels import _record_interpreter

    watch = _record_interpreter.run(
        kernel, grid, args, kwargs, names=names or {}, tensors=tensors or {}, blocks=blocks,
        check_overflow=check_overflow,
    )  # fmt: skip
    layouts = [argument.layout for argument in watch.arguments]
    return Recording(
        watch.kernel,
        watch.grid or (0, 0, 0),
        {layout.name: layout.tensor for layout in layouts},
        {layout.name: layout.shared for layout in layouts if layout.shared},
        watch.blocks,
    )


def record_call(
    call: Call,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    blocks: Iterable[tuple[int, ...]] | None = None,
    check_overflow: bool = False,
) -> Recording:
    """`record` for a launch as `flash_calls` and `naive_calls` make it, its tensors named as the simulator does."""
    return record(
        call.kernel, call.grid, *call.args, names=call.tensors, tensors=tensors, blocks=blocks,
        check_overflow=check_overflow, **call.constants, num_warps=call.num_warps, num_stages=call.num_stages,
    )  # fmt: skip


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    return tuple(strides)
