"""The launches of a problem on real tensors, their outputs full of NaN until they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from memsim.attention import Attention
from memsim.tile import Tile
from memsim_kernels.calls import Call
from memsim_kernels.flash import flash_calls
from memsim_kernels.naive import naive_calls

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Ready:
    """Launches in order, and where they write O and, if asked for, the LSE."""

    calls: tuple[Call, ...]
    o: torch.Tensor
    lse: torch.Tensor | None

    def launch(self) -> None:
        """Launch all."""
        for call in self.calls:
            call.launch()


def ready(algorithm: str, problem: Attention, tile: Tile, inputs: Inputs, *, lse: bool) -> Ready:
    """The launches of "flash" or "naive" with this tile, whatever fits or not."""
    q, k, v = inputs

    def room(*shape: int, dtype: torch.dtype = q.dtype) -> torch.Tensor:
        return torch.full(shape, math.nan, dtype=dtype, device=q.device)

    o = room(*q.shape)
    sums = room(*q.shape[:3], dtype=torch.float32) if lse else None
    if algorithm == "flash":
        return Ready(flash_calls(problem, q, k, v, o, sums, tile), o, sums)
    s, p = (room(*q.shape[:3], problem.seq_len_k) for _ in range(2))
    return Ready(naive_calls(problem, q, k, v, s, p, o, sums, tile), o, sums)
