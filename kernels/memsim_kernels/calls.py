"""One launch as it is made: kernel, grid, arguments; to be launched, compiled or recorded from the same values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memsim.grid import GridOrder

LARGEST_HEAD_DIM = 256
"""The widest head that the kernels take."""


@dataclass(frozen=True)
class Call:
    """`kernel[grid](*args, **constants, num_warps, num_stages)`; `name` is what the simulator calls the launch.

    `args` are the kernel's run-time arguments in order (tensors and numbers), `constants` its `tl.constexpr` ones.
    `tensors` names the tensors among the arguments as the simulator does ("Q", "K", …), by parameter name. `order` is
    which units of the simulator's grid the programs work on, the first axis of `grid` counted fastest.
    """

    name: str
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Any]
    tensors: Mapping[str, str]
    num_warps: int
    num_stages: int
    order: GridOrder = field(default_factory=GridOrder)

    def launch(self) -> Any:
        """Launch it (or interpret it, under TRITON_INTERPRET=1); the compiled kernel where there is one."""
        return self.kernel[self.grid](
            *self.args, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Every argument by parameter name, constants included, in the kernel's order."""
        names = self.kernel.arg_names
        given = dict(zip((name for name in names if name not in self.constants), self.args, strict=True))
        return {name: given[name] if name in given else self.constants[name] for name in names}
