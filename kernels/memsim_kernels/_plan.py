"""The launches of a problem, made of tensors that have a shape and no storage: no GPU and no memory is taken."""

from __future__ import annotations

from memsim.attention import Attention
from memsim.errors import MemsimError
from memsim.tile import Tile
from memsim_kernels.calls import LARGEST_HEAD_DIM, Call

ALGORITHMS = ("flash", "naive")


def plan_calls(algorithm: str, problem: Attention, tile: Tile, *, lse: bool = False) -> tuple[Call, ...]:
    """The launches of "flash" or "naive" on contiguous tensors; none where O is empty.

    Raises `MemsimError` for an algorithm without kernels and for rows wider than they take.
    """
    import torch

    from memsim_kernels.flash import flash_calls
    from memsim_kernels.naive import naive_calls

    faults = []
    if algorithm not in ALGORITHMS:
        faults.append(f"there is no kernel of {algorithm}; {' and '.join(ALGORITHMS)} have some.")
    if problem.head_dim > LARGEST_HEAD_DIM:
        faults.append(f"head_dim is {problem.head_dim}; the kernels take up to {LARGEST_HEAD_DIM}.")
    if faults:
        raise MemsimError(faults)
    dtype = getattr(torch, problem.dtype)

    def tensor(heads: int, rows: int, columns: int) -> torch.Tensor:
        return torch.empty((problem.batch, heads, rows, columns), dtype=dtype, device="meta")

    q, o = (tensor(problem.heads, problem.seq_len_q, problem.head_dim) for _ in range(2))
    k, v = (tensor(problem.kv_head_count, problem.seq_len_k, problem.head_dim) for _ in range(2))
    sums = torch.empty(q.shape[:3], dtype=torch.float32, device="meta") if lse else None
    if algorithm == "flash":
        return flash_calls(problem, q, k, v, o, sums, tile)
    s, p = (tensor(problem.heads, problem.seq_len_q, problem.seq_len_k) for _ in range(2))
    return naive_calls(problem, q, k, v, s, p, o, sums, tile)
