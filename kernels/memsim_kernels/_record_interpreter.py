"""Triton's interpreter, watched: how a launch is recorded instead of merely run.

While a recording runs, the interpreter's grid loop is replaced by one that hands blocks out as hardware does, and its
memory operations and products report to a `Watch` (`_record_operations`). Both are undone afterwards.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

from memsim.errors import MemsimError
from memsim.trace import Tensor
from memsim_kernels._record_arguments import ArgumentTable
from memsim_kernels._record_operations import Session, current, reporting, watched
from memsim_kernels._record_watch import Block, Watch

_HOW = "set TRITON_INTERPRET=1 before triton and the kernel are imported"


def run(
    kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, names: Mapping[str, str],
    tensors: Mapping[str, Tensor], blocks: Iterable[tuple[int, ...]] | None, check_overflow: bool,
) -> Watch:  # fmt: skip
    """Interpret `kernel[grid](*args, **kwargs)`, or some of its blocks, and return what was seen."""
    watch = Watch(_name_of(kernel))
    session = Session(watch, ArgumentTable(names, tensors), blocks, poison_integers=not check_overflow)
    loop = {(interpreter, "GridExecutor"): _Executor, (interpreter, "_patch_lang"): _patch_once}
    with reporting(session), _replaced(loop | watched()), _builder_kept():
        builder = interpreter.interpreter_builder
        # Without `debug` the interpreter computes whether integers overflow, and then ignores it.
        builder.options = dataclasses.replace(
            builder.options, debug=check_overflow or builder.options.debug, sanitize_overflow=check_overflow
        )
        kernel[grid](*args, **kwargs)
    return watch


def _name_of(kernel: Any) -> str:
    """The kernel's name, if it is one that the interpreter runs."""
    innermost = kernel
    # Decorators such as triton.heuristics wrap a kernel and keep it as `fn`.
    while not isinstance(innermost, interpreter.InterpretedFunction | triton.JITFunction):
        if not hasattr(innermost, "fn"):
            raise MemsimError(f"a recording takes a @triton.jit kernel, not {kernel!r}.")
        innermost = innermost.fn
    if isinstance(innermost, triton.JITFunction):
        raise MemsimError(f"{innermost.fn.__name__} is compiled in this process; to record it, {_HOW}.")
    if not isinstance(tl.cdiv, interpreter.InterpretedFunction):
        raise MemsimError(f"Triton's own functions are compiled in this process; to record with them, {_HOW}.")
    return str(innermost.__name__)


class _Executor(interpreter.GridExecutor):  # type: ignore[misc]
    """Runs the launch that a session is about; others as Triton does."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        session = current()
        if session is None:
            super().__call__(*args, **kwargs)
            return
        watch = session.watch
        if session.launched:
            raise MemsimError(f"{watch.kernel} was launched again while recorded; give an autotuned kernel one config.")
        session.launched = True
        taken = inspect.getfullargspec(self.fn)
        kwargs = {k: v for k, v in kwargs.items() if k in taken.args or k in taken.kwonlyargs}
        with reporting(None):
            for hook in self.pre_run_hooks:
                hook(*args, **kwargs)
        try:
            interpreter._patch_lang(self.fn)
            given = {
                name: value if name in self.constexprs else interpreter._implicit_cvt(_stand_in(session, name, value))
                for name, value in inspect.getcallargs(self.fn, *args, **kwargs).items()
            }
            watch.arguments = session.table.finish()
            watch.grid = _grid(self.grid(given) if callable(self.grid) else self.grid)
            interpreter.interpreter_builder.set_grid_dim(*watch.grid)
            # Masked-off lanes hold NaN, of which a GPU does not warn either.
            with np.errstate(all="ignore"):
                for block in _chosen(watch.grid, session.blocks):
                    self._run_block(watch, block, given)
        finally:
            for scope in reversed(session.scopes):
                scope.restore()

    def _run_block(self, watch: Watch, block: Block, given: Mapping[str, Any]) -> None:
        interpreter.interpreter_builder.set_grid_idx(*block)
        try:
            with watch.block(block):
                self.fn(**given)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, MemsimError):
                    raise cause from None
                if isinstance(cause, AssertionError) and "overflow detected" in str(cause):
                    raise watch.fault(f"{cause}; compute in 64 bits.") from None
                cause = cause.__cause__
            if isinstance(error, InterpreterError):
                raise
            raise InterpreterError(repr(error)) from error


_PATCH_LANG = interpreter._patch_lang


def _patch_once(fn: Any) -> Any:
    """Triton gives its language the interpreter's meaning again for each function that a kernel calls, and forgets to
    take it back; here once a launch, and taken back."""
    session = current()
    if session is None:
        return _PATCH_LANG(fn)
    modules = list(fn.__globals__.values())
    seen = {name for name, module in (("tl", tl), ("core", tl.core)) if any(x is module for x in modules)}
    if not session.scopes or not seen <= session.patched:
        session.patched |= seen
        session.scopes.append(_PATCH_LANG(fn))
    return None


def _stand_in(session: Session, name: str, value: Any) -> Any:
    """An argument with a made-up address in place of each tensor."""
    if isinstance(value, tuple):
        parts = (_stand_in(session, f"{name}[{i}]", part) for i, part in enumerate(value))
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, TensorDescriptor):
        descriptor = copy.copy(value)
        descriptor.base = session.table.add(name, value.base)
        return descriptor
    return session.table.add(name, value) if hasattr(value, "data_ptr") else value


def _grid(given: Any) -> Block:
    sizes = (given,) if isinstance(given, int) else tuple(int(n) for n in given)
    if not 1 <= len(sizes) <= 3:
        raise MemsimError(f"the grid is {given!r}; it must have one to three axes.")
    x, y, z = sizes + (1,) * (3 - len(sizes))
    return x, y, z


def _chosen(grid: Block, blocks: Iterable[tuple[int, ...]] | None) -> Iterator[Block]:
    """The blocks to run in linear order, x fastest, as hardware hands them out."""
    if blocks is None:
        yield from ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
        return
    chosen: set[Block] = set()
    faults = []
    for block in blocks:
        x, y, z = (*block, 0, 0)[:3]
        if 0 <= x < grid[0] and 0 <= y < grid[1] and 0 <= z < grid[2]:
            chosen.add((x, y, z))
        else:
            faults.append(f"block {block} is not in the grid {grid}.")
    if faults:
        raise MemsimError(faults)
    yield from sorted(chosen, key=lambda block: block[::-1])


@contextmanager
def _replaced(members: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Attributes replaced, and put back afterwards."""
    before = {(owner, name): vars(owner)[name] for owner, name in members}
    try:
        for (owner, name), member in members.items():
            setattr(owner, name, member)
        yield
    finally:
        for (owner, name), member in before.items():
            setattr(owner, name, member)


@contextmanager
def _builder_kept() -> Iterator[None]:
    """The interpreter's one builder as it was, afterwards."""
    builder = interpreter.interpreter_builder
    before = dict(vars(builder))
    try:
        yield
    finally:
        vars(builder).clear()
        vars(builder).update(before)
