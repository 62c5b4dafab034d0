"""The real Triton kernels, and what needs torch or triton."""

from memsim_kernels.flash import flash_attention
from memsim_kernels.naive import naive_attention

__all__ = ["flash_attention", "naive_attention"]
