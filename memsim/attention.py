"""The problem: one forward attention over a batch of heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from memsim.errors import MemsimError

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

# A tensor of 2**56 bytes is larger than any memory; beyond it 64-bit byte counts could overflow.
_MAX_TENSOR_BYTES = 2**56


@dataclass(frozen=True)
class Attention:
    """O = softmax(Q·Kᵀ·scale)·V for every head of every sequence.

    Q and O are `(batch, heads, seq_len_q, head_dim)`, K and V `(batch, kv_heads, seq_len_k, head_dim)`,
    contiguous. Fewer `kv_heads` than `heads` is grouped-query attention (1 = multi-query): query head h reads
    K/V head h // (heads / kv_heads). `causal` is aligned bottom-right: query row r sees the keys up to
    r + seq_len_k - seq_len_q. A row that sees no key gives 0, and LSE -inf.

    `kv_heads=None` means `heads`; `scale=None` means 1/sqrt(head_dim). Raises `MemsimError` naming every fault.
    """

    batch: int = 1
    heads: int = 16
    kv_heads: int | None = None
    seq_len_q: int = 2048
    seq_len_k: int = 2048
    head_dim: int = 128
    dtype: str = "float16"
    causal: bool = False
    scale: float | None = None

    def __post_init__(self) -> None:
        faults = [*self._size_faults(), *self._value_faults()]
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if not faults:
            faults = self._joint_faults()
        if faults:
            raise MemsimError(faults)
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))

    def _size_faults(self) -> list[str]:
        faults = []
        for name, least in (
            ("batch", 1), ("heads", 1), ("kv_heads", 1), ("seq_len_q", 0), ("seq_len_k", 0), ("head_dim", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if name == "kv_heads" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                faults.append(f"{name} is {value!r}; it must be a whole number of at least {least}.")
            elif not least <= value <= 2**40:
                faults.append(f"{name} is {value}; it must lie between {least} and 2^40.")
        return faults

    def _value_faults(self) -> list[str]:
        faults = []
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            faults.append(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPE_BYTES)}.")
        if not isinstance(self.causal, bool):
            faults.append(f"causal is {self.causal!r}; it must be true or false.")
        if self.scale is not None:
            number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
            if not number or not abs(self.scale) <= 1e30:  # so written, NaN is refused too
                faults.append(f"scale is {self.scale!r}; it must be a finite number of at most 1e30 in size.")
        return faults

    def _joint_faults(self) -> list[str]:
        faults = []
        if self.heads % self.group_heads_or(1):
            faults.append(
                f"heads is {self.heads} and kv_heads is {self.kv_heads}; heads must be a multiple of kv_heads."
            )
        scores = self.batch * self.heads * self.seq_len_q * max(1, self.seq_len_k)
        largest = max(scores, self.batch * self.heads * max(self.seq_len_q, self.seq_len_k) * self.head_dim)
        if largest * self.dtype_bytes > _MAX_TENSOR_BYTES:
            faults.append(
                f"the problem has a tensor of {largest * self.dtype_bytes} B; "
                f"no tensor may be larger than 2^56 B ({_MAX_TENSOR_BYTES} B)."
            )
        return faults

    def group_heads_or(self, default: int) -> int:
        """kv_heads as a number, `default` while it is unset."""
        return default if self.kv_heads is None else self.kv_heads

    @property
    def kv_head_count(self) -> int:
        """Number of K/V heads."""
        return self.group_heads_or(self.heads)

    @property
    def group(self) -> int:
        """Query heads that share one K/V head."""
        return self.heads // self.kv_head_count

    @property
    def scale_value(self) -> float:
        """The factor on Q·Kᵀ."""
        assert self.scale is not None
        return self.scale

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @cached_property
    def visible_pairs(self) -> int:
        """Pairs (query row, key) that one head needs: all of them, or those on and below the causal diagonal."""
        rows, keys = self.seq_len_q, self.seq_len_k
        if not self.causal:
            return rows * keys
        # Row r sees clamp(r + keys - rows + 1, 0, keys): a staircase 1, 2, … over its last min(rows, keys) rows,
        # above a constant part where keys exceed rows.
        steps = min(rows, keys)
        return steps * (steps + 1) // 2 + rows * max(0, keys - rows)

    @property
    def useful_flops(self) -> int:
        """FLOPs of the two matrix products over the visible pairs only (2 per multiply-add)."""
        return 4 * self.head_dim * self.visible_pairs * self.batch * self.heads

    def tensor_bytes(self) -> dict[str, int]:
        """Bytes of Q, K, V and O."""
        q = self.batch * self.heads * self.seq_len_q * self.head_dim * self.dtype_bytes
        kv = self.batch * self.kv_head_count * self.seq_len_k * self.head_dim * self.dtype_bytes
        return {"Q": q, "K": kv, "V": kv, "O": q}
