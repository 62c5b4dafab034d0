"""How Triton's JIT specialises a launch: the type of every argument, and what the compiler may take for granted.

Triton (3.6 and 3.9, runtime/jit.py) compiles a whole number of 1 and None into the kernel, tells the compiler of
numbers and addresses that are multiples of 16, and takes other numbers as int32 where they fit, else int64; floats are
float32. So strides of 1,024 and 1,000 are different kernels. Of a parameter that `triton.jit` was told not to
specialise (`do_not_specialize`, `do_not_specialize_on_alignment`) the compiler learns no value, or no alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsim.errors import MemsimError
from memsim_kernels.calls import Call

DIVISOR = 16

_TYPES = {
    "bool": "u1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """`types` by parameter, in the kernel's order ("constexpr" for what is compiled in); the values of those;
    the parameters that are multiples of 16."""

    types: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[str, ...]


def signature_of(call: Call) -> Signature:
    """The signature that Triton's JIT would compile this launch for.

    Raises `MemsimError` for an argument that Triton does not take, or a constant that is no number, text or None.
    """
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = []
    faults = []
    opaque, unaligned = (_parameters(call.kernel, f"do_not_specialize{part}") for part in ("", "_on_alignment"))
    for name, value in call.arguments.items():
        if name in call.constants:
            if not isinstance(value, int | float | str | None):
                faults.append(f"constant {name} of {call.name} is {value!r}; the probe takes numbers, text and None.")
            types[name], constants[name] = "constexpr", value
            continue
        kind, multiple = _specialised(value, constant=name not in opaque)
        if kind is None:
            faults.append(f"argument {name} of {call.name} is a {type(value).__name__}; Triton takes tensors, numbers.")
            continue
        types[name] = kind
        if kind == "constexpr":
            constants[name] = value
        if multiple and name not in opaque | unaligned:
            divisible.append(name)
    if faults:
        raise MemsimError(faults)
    return Signature(types, constants, tuple(divisible))


def _parameters(kernel: Any, option: str) -> set[str]:
    """The parameters that an option of `triton.jit` names, by name or position."""
    given = getattr(kernel, option, None) or getattr(kernel, "kwargs", {}).get(option) or ()
    return {kernel.arg_names[item] if isinstance(item, int) else item for item in given}


def _specialised(value: Any, *, constant: bool) -> tuple[str | None, bool]:
    """(the argument's type, None if Triton has none for it; whether it is a multiple of 16). A 1 is compiled in if it
    may be `constant`."""
    if value is None:
        return "constexpr", False
    if isinstance(value, bool):
        return "u1", False
    if isinstance(value, int):
        if value == 1 and constant:
            return "constexpr", False
        kind = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
        return kind, value % DIVISOR == 0
    if isinstance(value, float):
        return "fp32", False
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        kind = _TYPES.get(str(value.dtype).removeprefix("torch."), "")
        return (f"*{kind}" if kind else None), value.data_ptr() % DIVISOR == 0
    return None, False
