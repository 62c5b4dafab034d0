"""The interpreter's operations that a recording watches, each reporting to the current session before it acts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from memsim_kernels._record_arguments import ArgumentTable, dtype_name
from memsim_kernels._record_watch import Direction, Lanes, Watch

_READ: tuple[Direction, ...] = ("load",)
_WRITE: tuple[Direction, ...] = ("store",)
_READ_AND_WRITE: tuple[Direction, ...] = ("load", "store")
# NaN in the formats that the interpreter holds as bits.
_NAN_BITS = {"bf16": 0x7FC0, "fp8e5": 0x7F, "fp8e4nv": 0x7F, "fp8e4b15": 0x7F, "fp8e4b8": 0x80, "fp8e5b16": 0x80}

_SCALED_FORMATS = {
    "E4M3": "float8_e4m3fn", "E5M2": "float8_e5m2", "E2M3": "float6_e2m3", "E3M2": "float6_e3m2", "E2M1": "float4_e2m1",
    "BF16": "bfloat16", "FP16": "float16",
}  # fmt: skip


@dataclass
class Session:
    """One launch to be recorded: who watches it, its tensors, and which of its blocks run (all if None)."""

    watch: Watch
    table: ArgumentTable
    blocks: Iterable[tuple[int, ...]] | None
    poison_integers: bool
    launched: bool = False
    patched: set[str] = field(default_factory=set)
    scopes: list[Any] = field(default_factory=list)


# The interpreter is one per process, so recordings take turns; one may start inside another.
_turn = threading.RLock()
_sessions: list[Session | None] = []
_owner: int | None = None


def current() -> Session | None:
    """The session that this thread's operations report to."""
    return _sessions[-1] if _sessions and _owner == threading.get_ident() else None


@contextmanager
def reporting(session: Session | None) -> Iterator[None]:
    """Inside, this thread's operations report to `session`, or to nobody."""
    global _owner
    with _turn:
        outer, _owner = _owner, threading.get_ident()
        _sessions.append(session)
        try:
            yield
        finally:
            _sessions.pop()
            _owner = outer


def _lane_bytes(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


def _lanes(mask: Any, shape: tuple[int, ...]) -> Lanes:
    """A mask as an array of bool; Triton 3.6 passes an array where a descriptor made it."""
    lanes: Lanes = np.broadcast_to(np.asarray(mask if isinstance(mask, np.ndarray) else mask.data, dtype=bool), shape)
    return lanes


def _poison(dtype: Any, shape: tuple[int, ...], integers: bool) -> Any:
    """What masked-off lanes hold on a GPU, where it is garbage: NaN, or the extreme integer."""
    kind = _get_np_dtype(dtype)
    if dtype.name in _NAN_BITS:
        return np.full(shape, _NAN_BITS[dtype.name], dtype=kind)
    if kind.kind == "f":
        return np.full(shape, np.nan, dtype=kind)
    if kind.kind == "b" or not integers:
        return np.full(shape, kind.kind == "b", dtype=kind)
    return np.full(shape, np.iinfo(kind).min if kind.kind == "i" else np.iinfo(kind).max, dtype=kind)


def _touch(session: Session, pointers: Any, lanes: Lanes, directions: tuple[Direction, ...]) -> tuple[Any, Lanes]:
    """Report an access; pointers into real memory, and the lanes that have some."""
    addresses, real = session.watch.access(pointers.data, lanes, _lane_bytes(pointers), directions)
    return TensorHandle(addresses, pointers.dtype), real


def _masked_load(original: Callable[..., Any], builder: Any, pointers: Any, mask: Any, other: Any, *rest: Any,
                 **named: Any) -> Any:  # fmt: skip
    session = current()
    if session is None:
        return original(builder, pointers, mask, other, *rest, **named)
    lanes = _lanes(mask, pointers.data.shape)
    dtype = pointers.get_element_ty()
    real_pointers, real = _touch(session, pointers, lanes, _READ)
    if other is None and not real.all():
        other = TensorHandle(_poison(dtype, lanes.shape, session.poison_integers), dtype)
    if other is not None and real is not lanes:
        # Memory that is not there reads as 0.
        other = TensorHandle(np.where(lanes, np.zeros((), dtype=other.data.dtype), other.data), other.dtype)
    return original(builder, real_pointers, TensorHandle(real, tl.int1), other, *rest, **named)


def _masked_store(original: Callable[..., Any], builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any,
                  **named: Any) -> Any:  # fmt: skip
    session = current()
    if session is None:
        return original(builder, pointers, value, mask, *rest, **named)
    real_pointers, real = _touch(session, pointers, _lanes(mask, pointers.data.shape), _WRITE)
    return original(builder, real_pointers, value, TensorHandle(real, tl.int1), *rest, **named)


def _atomic_rmw(original: Callable[..., Any], builder: Any, operation: Any, pointers: Any, value: Any, mask: Any,
                *rest: Any, **named: Any) -> Any:  # fmt: skip
    session = current()
    if session is None:
        return original(builder, operation, pointers, value, mask, *rest, **named)
    lanes = _lanes(mask, pointers.data.shape)
    real_pointers, real = _touch(session, pointers, lanes, _READ_AND_WRITE)
    result = original(builder, operation, real_pointers, value, TensorHandle(real, tl.int1), *rest, **named)
    missing = np.where(lanes, np.zeros((), dtype=result.data.dtype),
                       _poison(result.dtype, lanes.shape, session.poison_integers))  # fmt: skip
    return TensorHandle(np.where(real, result.data, missing), result.dtype)


def _atomic_cas(original: Callable[..., Any], builder: Any, pointers: Any, compare: Any, value: Any, *rest: Any,
                **named: Any) -> Any:  # fmt: skip
    session = current()
    if session is None:
        return original(builder, pointers, compare, value, *rest, **named)
    lanes = np.ones(pointers.data.shape, dtype=bool)
    real_pointers, real = _touch(session, pointers, lanes, _READ_AND_WRITE)
    if real.all():
        return original(builder, real_pointers, compare, value, *rest, **named)
    result = np.zeros(lanes.shape, dtype=compare.data.dtype)
    if real.any():
        parts = (TensorHandle(np.broadcast_to(x.data, lanes.shape)[real], x.dtype)
                 for x in (real_pointers, compare, value))  # fmt: skip
        result[real] = original(builder, *parts, *rest, **named).data
    return TensorHandle(result, compare.dtype)


def _one_access(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    session = current()
    if session is None:
        return original(*args, **named)
    with session.watch.one_access():
        return original(*args, **named)


def _dot(original: Callable[..., Any], builder: Any, a: Any, b: Any, out: Any, precision: Any, *rest: Any,
         **named: Any) -> Any:  # fmt: skip
    session = current()
    if session is not None:
        dtype = dtype_name(a.dtype.scalar)
        if dtype == "float32" and precision != ir.INPUT_PRECISION.IEEE:
            # The interpreter multiplies in float32 all the same; a GPU does not.
            dtype = "tf32"
        session.watch.work("tensor", 2 * a.data.size * b.data.shape[-1], "dot", dtype)
    return original(builder, a, b, out, precision, *rest, **named)


def _dot_scaled(original: Callable[..., Any], builder: Any, a: Any, a_scale: Any, a_format: Any, *rest: Any,
                **named: Any) -> Any:  # fmt: skip
    result = original(builder, a, a_scale, a_format, *rest, **named)
    session = current()
    if session is not None:
        # Two 4-bit elements lie in each byte.
        elements = a.data.size * (2 if a_format == ir.ScaleDotElemTypeTY.E2M1 else 1)
        dtype = _SCALED_FORMATS[str(a_format).rsplit(".", 1)[-1]]
        session.watch.work("tensor", 2 * elements * result.data.shape[-1], "dot", dtype)
    return result


def _on_exp_pipe(operation: str) -> Callable[..., Any]:
    def work(original: Callable[..., Any], builder: Any, x: Any, *rest: Any, **named: Any) -> Any:
        session = current()
        if session is not None:
            session.watch.work("exp", int(x.data.size), operation, dtype_name(x.dtype.scalar))
        return original(builder, x, *rest, **named)

    return work


def _around(owner: Any, name: str, watcher: Callable[..., Any]) -> Callable[..., Any]:
    original = vars(owner)[name]

    @wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return watcher(original, *args, **named)

    return call


_WATCHERS: dict[tuple[Any, str], Callable[..., Any]] = {
    (InterpreterBuilder, "create_masked_load"): _masked_load,
    (InterpreterBuilder, "create_masked_store"): _masked_store,
    (InterpreterBuilder, "create_atomic_rmw"): _atomic_rmw,
    (InterpreterBuilder, "create_atomic_cas"): _atomic_cas,
    (InterpreterBuilder, "create_dot"): _dot,
    (InterpreterBuilder, "create_dot_scaled"): _dot_scaled,
    (InterpreterBuilder, "create_exp"): _on_exp_pipe("exp"),
    (InterpreterBuilder, "create_exp2"): _on_exp_pipe("exp"),
    (InterpreterBuilder, "create_log"): _on_exp_pipe("log"),
    (InterpreterBuilder, "create_log2"): _on_exp_pipe("log"),
    # A float's maximum is two atomics, of the lanes below 0 and of the others; a gather goes row by row.
    (TritonSemantic, "atomic_max"): _one_access,
    (TritonSemantic, "atomic_min"): _one_access,
    (InterpreterBuilder, "create_descriptor_gather"): _one_access,
    (InterpreterBuilder, "create_descriptor_scatter"): _one_access,
}


def watched() -> dict[tuple[Any, str], Callable[..., Any]]:
    """The operations as they are now, each made to report first; none inside another session, where they do."""
    if len(_sessions) > 1:
        return {}
    # Not every Triton has them all.
    there = {(owner, name): watcher for (owner, name), watcher in _WATCHERS.items() if name in vars(owner)}
    return {(owner, name): _around(owner, name, watcher) for (owner, name), watcher in there.items()}
