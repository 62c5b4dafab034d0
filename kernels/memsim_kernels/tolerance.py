"""How far a kernel's O and LSE may be from the right ones: measured from a plain low-precision run, not guessed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memsim.attention import Attention
from memsim_kernels.reference import attention

# Of the logarithm of a sum: float32 arithmetic, sums of up to some thousand terms.
_LSE_RELATIVE = 2e-6
_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@dataclass(frozen=True)
class Expected:
    """O rounded to the input dtype and LSE, in float64, and by how much each may be off.

    `o_allowed` is flash-attention's own bound, `2·max|pt − ref| + 2·max|ref + 0.3 − 0.3 − ref|`, with `pt` the plain
    algorithm in the input dtype and the second term evaluated in it. `lse_allowed` grows with the largest score, and
    for naive with the rounding of S to the dtype.
    """

    o: torch.Tensor
    lse: torch.Tensor
    o_allowed: float
    lse_allowed: float

    def wrong_o(self, o: torch.Tensor) -> torch.Tensor:
        """Where an O is wrong: too far off, not a number, or not exactly 0 in a row that sees nothing."""
        off = ~((o.double() - self.o).abs() <= self.o_allowed)
        return off | (self.lse.isneginf()[..., None] & (o != 0))

    def wrong_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """Where an LSE is wrong: too far off, or not -inf exactly where it must be."""
        seen = ~self.lse.isneginf()
        off = ~((lse.double() - self.lse).abs() <= self.lse_allowed)
        return torch.where(seen, off, ~lse.isneginf())


def expected(problem: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, algorithm: str) -> Expected:
    """What an algorithm ("flash", "naive") must give for these inputs."""
    scale = problem.scale_value
    exact, lse = attention(q.double(), k.double(), v.double(), causal=problem.causal, scale=scale)
    rounded = exact.to(q.dtype)
    plain, _ = attention(q, k, v, causal=problem.causal, scale=scale)
    unit = (rounded + 0.3 - 0.3).double() - rounded.double()
    o_allowed = 2 * largest(plain.double() - rounded.double()) + 2 * largest(unit) + 1e-6
    score = abs(scale) * largest(q.double().norm(dim=-1)) * largest(k.double().norm(dim=-1))
    rounding = 2 * _EPSILON[problem.dtype] * score if algorithm == "naive" else 0.0
    return Expected(rounded.double(), lse, o_allowed, _LSE_RELATIVE * (10 + score) + rounding)


def largest(x: torch.Tensor) -> float:
    """The largest size of an element; 0 of none."""
    return float(x.abs().max()) if x.numel() else 0.0
