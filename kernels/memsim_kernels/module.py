"""Multi-head attention with one of the kernels behind it, for weights trained elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memsim.errors import MemsimError
from memsim.tile import Tile
from memsim_kernels.calls import LARGEST_HEAD_DIM
from memsim_kernels.flash import flash_attention
from memsim_kernels.naive import naive_attention

KERNELS = {"flash": flash_attention, "naive": naive_attention}


class MultiHeadAttention(nn.Module):
    """Wo·concat(heads) of attention over Wq·query, Wk·key and Wv·value: what `torch.nn.MultiheadAttention` computes
    in eval mode, given the same weights (`from_torch`).

    Inputs are `(batch, seq, dim)` with `batch_first`, `(seq, batch, dim)` without, or `(seq, dim)`; the dims of query,
    key and value are `embed_dim`, `kdim`, `vdim`. `kernel` is "flash" or "naive", `tile` its tile (None for its
    default). Fewer `kv_heads` than `num_heads` is grouped-query attention. The heads that a kernel reads, and the ones
    it writes, are views of the projections: nothing is copied in between.

    Forward only, so the parameters do not require gradients. Raises `MemsimError` for sizes that do not suit, and for
    what `torch.nn.MultiheadAttention` can do and this cannot: dropout in training, masks, weights.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_heads: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        kernel: str = "flash",
        tile: Tile | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.kernel, self.tile = dropout, batch_first, kernel, tile
        self._check_sizes()
        self.head_dim = embed_dim // num_heads
        kv_width = self.kv_heads * self.head_dim
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.wq = nn.Linear(embed_dim, embed_dim, **made)
        self.wk = nn.Linear(self.kdim, kv_width, **made)
        self.wv = nn.Linear(self.vdim, kv_width, **made)
        self.wo = nn.Linear(embed_dim, embed_dim, **made)
        self.requires_grad_(False)

    def _check_sizes(self) -> None:
        faults = [
            f"{name} is {value!r}; it must be a whole number of at least 1."
            for name in ("embed_dim", "num_heads", "kv_heads", "kdim", "vdim")
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int) or value < 1
        ]
        if not faults:
            if self.embed_dim % self.num_heads:
                faults.append(
                    f"embed_dim is {self.embed_dim} and num_heads is {self.num_heads}; "
                    "embed_dim must be a multiple of num_heads."
                )
            elif self.embed_dim // self.num_heads > LARGEST_HEAD_DIM:
                faults.append(
                    f"embed_dim is {self.embed_dim} and num_heads is {self.num_heads}; a head may have "
                    f"{LARGEST_HEAD_DIM} columns at most."
                )
            if self.num_heads % self.kv_heads:
                faults.append(
                    f"num_heads is {self.num_heads} and kv_heads is {self.kv_heads}; "
                    "num_heads must be a multiple of kv_heads."
                )
        if not isinstance(self.kernel, str) or self.kernel not in KERNELS:
            faults.append(f"kernel is {self.kernel!r}; it must be {' or '.join(KERNELS)}.")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout <= 1:
            faults.append(f"dropout is {self.dropout!r}; it must lie between 0 and 1.")
        if faults:
            raise MemsimError(faults)

    @classmethod
    def from_torch(
        cls, mha: nn.MultiheadAttention, *, kernel: str = "flash", tile: Tile | None = None
    ) -> MultiHeadAttention:
        """A copy of the weights, layout, mode, device and dtype of `mha`, with one of the kernels behind them."""
        if not isinstance(mha, nn.MultiheadAttention):
            raise MemsimError(f"mha is a {type(mha).__name__}; it must be a torch.nn.MultiheadAttention.")
        faults = []
        if mha.bias_k is not None or mha.bias_v is not None:
            faults.append("mha has add_bias_kv, a further key and value that this module does not have.")
        if mha.add_zero_attn:
            faults.append("mha has add_zero_attn, a further key and value of zeros that this module does not have.")
        if faults:
            raise MemsimError(faults)
        weight = mha.out_proj.weight
        module = cls(
            mha.embed_dim, mha.num_heads, dropout=mha.dropout, bias=mha.in_proj_bias is not None, kdim=mha.kdim,
            vdim=mha.vdim, batch_first=mha.batch_first, kernel=kernel, tile=tile, device=weight.device,
            dtype=weight.dtype,
        )  # fmt: skip
        state = {"wo.weight": weight}
        projections = ("wq", "wk", "wv")
        if mha.in_proj_weight is not None:
            weights: tuple[torch.Tensor, ...] = mha.in_proj_weight.chunk(3)
        else:
            weights = (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
        state |= {f"{name}.weight": part for name, part in zip(projections, weights, strict=True)}
        if mha.in_proj_bias is not None:
            biases = zip(projections, mha.in_proj_bias.chunk(3), strict=True)
            state |= {f"{name}.bias": part for name, part in biases} | {"wo.bias": mha.out_proj.bias}
        module.load_state_dict(state)
        module.train(mha.training)
        return module

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """(output in query's layout, None), arguments as for `torch.nn.MultiheadAttention`.

        `is_causal` needs no mask beside it and is aligned bottom-right: the last query sees the last key. With as many
        queries as keys that is the mask torch means; otherwise torch's `is_causal` is aligned top-left.
        """
        self._refuse(key_padding_mask, need_weights, attn_mask)
        self._check_inputs(query, key, value)
        rows_first = not self.batch_first and query.dim() == 3
        q, k, v = (
            self._heads(project(x), rows_first) for project, x in ((self.wq, query), (self.wk, key), (self.wv, value))
        )
        o = KERNELS[self.kernel](q, k, v, causal=is_causal, tile=self.tile)
        assert isinstance(o, torch.Tensor)
        o = o.permute(2, 0, 1, 3) if rows_first else o.transpose(1, 2)
        merged = o.flatten(2)
        # nn.Module's call is untyped.
        out: torch.Tensor = self.wo(merged if query.dim() == 3 else merged[0])
        return out, None

    def _heads(self, x: torch.Tensor, rows_first: bool) -> torch.Tensor:
        """`(batch, heads, seq, head_dim)`, a view of a projection."""
        heads = x.unflatten(-1, (-1, self.head_dim))
        if x.dim() == 2:
            return heads.transpose(0, 1)[None]
        return heads.permute(1, 2, 0, 3) if rows_first else heads.transpose(1, 2)

    def _refuse(self, key_padding_mask: object, need_weights: bool, attn_mask: object) -> None:
        faults = []
        if key_padding_mask is not None:
            faults.append("key_padding_mask is given; these kernels take no mask, so leave the padding keys out.")
        if attn_mask is not None:
            faults.append("attn_mask is given; these kernels take no mask but is_causal=True.")
        if need_weights:
            faults.append("need_weights is true; these kernels do not return the weights, so take need_weights=False.")
        if self.training and self.dropout > 0:
            faults.append(f"dropout is {self.dropout:g} in training; these kernels drop nothing, so call eval() first.")
        if faults:
            raise MemsimError(faults)

    def _check_inputs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        faults = []
        for name, x, columns, weight in (
            ("query", query, self.embed_dim, self.wq.weight),
            ("key", key, self.kdim, self.wk.weight),
            ("value", value, self.vdim, self.wv.weight),
        ):
            if not isinstance(x, torch.Tensor):
                faults.append(f"{name} is a {type(x).__name__}; it must be a torch.Tensor.")
            elif x.dim() not in (2, 3) or (isinstance(query, torch.Tensor) and x.dim() != query.dim()):
                faults.append(f"{name} has {x.dim()} dimensions; query, key and value must have 3, or 2 unbatched.")
            elif x.shape[-1] != columns:
                faults.append(f"{name} has {x.shape[-1]} columns; it must have {columns}.")
            elif x.device != weight.device:
                faults.append(f"{name} is on {x.device} and the weights on {weight.device}; move one to the other.")
            elif x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
                faults.append(f"{name} is {x.dtype} and the weights {weight.dtype}; convert one to the other.")
        if not faults:
            if key.shape[:-1] != value.shape[:-1]:
                faults.append(
                    f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}; they may differ in columns only."
                )
            batch = 0 if self.batch_first else 1
            if query.dim() == 3 and query.shape[batch] != key.shape[batch]:
                faults.append(
                    f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}; the batch, dimension {batch}, "
                    "must be the same."
                )
        if faults:
            raise MemsimError(faults)

    def extra_repr(self) -> str:
        """The heads and what is behind them, for `print`."""
        return (
            f"num_heads={self.num_heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
            f"kernel={self.kernel!r}, batch_first={self.batch_first}"
        )
