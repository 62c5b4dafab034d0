"""The real Triton kernels, and what needs torch or triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memsim_kernels.costs import Cost, costs_of
    from memsim_kernels.flash import flash_attention
    from memsim_kernels.module import MultiHeadAttention
    from memsim_kernels.naive import naive_attention

__all__ = ["Cost", "MultiHeadAttention", "costs_of", "flash_attention", "naive_attention"]

# Imported when first asked for: the commands that live here load without torch.
_HOMES = {
    "Cost": "costs",
    "MultiHeadAttention": "module",
    "costs_of": "costs",
    "flash_attention": "flash",
    "naive_attention": "naive",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "triton"):
            raise
        raise ImportError(
            f"{name} needs torch and triton, and {missing.name} is not installed: pip install 'memsim[kernels]'."
        ) from None
