"""Random problems, tiles and machines for the laws."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st

from memsim.attention import Attention
from memsim.gpu import Gpu, override
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.tile import Room, Tile
from memsim.trace import LaunchTrace

Array = npt.NDArray[Any]

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}

UNLIMITED = 2**40
TEXTBOOK = Room(registers=False, sram_limit_bytes=UNLIMITED, mma_tiles=False, architecture=None)
HOPPER = Room(registers=True, sram_limit_bytes=UNLIMITED, mma_tiles=True, architecture="sm_90")
AMPERE = Room(registers=True, sram_limit_bytes=UNLIMITED, mma_tiles=True, architecture="sm_80")
ROOMS = (TEXTBOOK, HOPPER, AMPERE)

ALGORITHMS = ("naive", "flash", "flash1")


def lengths(longest: int) -> st.SearchStrategy[int]:
    """Sequence lengths up to `longest`: nothing, a few, round ones and their neighbours, anything."""
    near = [n + off for n in (16, 32, 64, 128, 256, 512, 1024, 4096, 16384) for off in (-1, 0, 1)]
    return st.one_of(
        st.integers(0, min(20, longest)),
        st.sampled_from([n for n in near if n <= longest] or [longest]),
        st.integers(0, longest),
    )


@st.composite
def problems(draw: st.DrawFn, longest: int = 600, head_dims: tuple[int, int] = (1, 260)) -> Attention:
    """Any problem: ragged, grouped heads, both causal alignments, empty sequences."""
    group, kv_heads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    seq_len_q = draw(lengths(longest))
    seq_len_k = draw(st.one_of(st.just(seq_len_q), lengths(longest)))
    low, high = head_dims
    return Attention(
        batch=draw(st.integers(1, 3)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        seq_len_q=seq_len_q,
        seq_len_k=seq_len_k,
        head_dim=draw(
            st.one_of(st.sampled_from([d for d in (16, 64, 128) if low <= d <= high] or [low]), st.integers(low, high))
        ),
        dtype=draw(st.sampled_from(("float16", "bfloat16", "float32"))),
        causal=draw(st.booleans()),
    )


@st.composite
def tiles(draw: st.DrawFn, room: Room, largest: int = 256) -> Tile:
    """Any tile that the room's instructions take."""
    if room.mma_tiles:
        sizes = st.sampled_from([n for n in (16, 32, 64, 128, 256) if n <= largest])
    else:
        sizes = st.one_of(st.integers(1, min(20, largest)), st.integers(1, largest))
    return Tile(draw(sizes), draw(sizes), draw(st.sampled_from((1, 2, 4, 8))), draw(st.integers(1, 4)))


def traces_of(
    algorithm: str, problem: Attention, tile: Tile, room: Room, *, lse: bool = False
) -> dict[str, LaunchTrace]:
    """The trace of each launch, by name."""
    program = build_program(algorithm, problem, tile, room, lse=lse)
    return {launch.name: trace_launch(launch, room) for launch in program.launches}


def random_arrays(p: Attention, seed: int, scales: tuple[float, float, float] = (1, 1, 1)) -> tuple[Array, ...]:
    """Q, K, V of the problem's dtype, normally distributed, each times its scale."""
    rng = np.random.default_rng(seed)
    of_keys = (p.batch, p.kv_head_count, p.seq_len_k, p.head_dim)
    shapes = ((p.batch, p.heads, p.seq_len_q, p.head_dim), of_keys, of_keys)
    return tuple(
        (rng.standard_normal(shape) * scale).astype(DTYPES[p.dtype])
        for shape, scale in zip(shapes, scales, strict=True)
    )


def two_levels(gpu: Gpu) -> Gpu:
    """The machine as HBM and SRAM alone, replayed by traces."""
    parts = {"l2": gpu.l2, "calibrated": gpu.calibrated, "sm.core": gpu.sm.core}
    return override(gpu, {key: None for key, part in parts.items() if part is not None})


def scaled(examples: int) -> int:
    """So many examples where the profile asks for the usual 100, in proportion under another profile."""
    return math.ceil(examples * settings.default.max_examples / 100)
