"""Are streams kept and read back as they were, equal ones once, and does a launch get its own?"""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pytest

from memsim import Attention, Tile, _compiled, load_gpu
from memsim._compiled import CompiledKernel, from_table
from memsim._stream_bytes import pack, stream_from, unpack
from memsim._stream_table import StreamTable, read_streams, write_streams
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import resources_of, room_of
from memsim.stream import FMA, NO_BARRIER, PRODUCT, Instruction, Segment, Stream

LARGEST: Instruction = (31, 255, 3, 15, 7, 7, 63)
PLAIN: Instruction = (FMA, 0, 0, 1, NO_BARRIER, NO_BARRIER, 0)


def drawn(seed: int, count: int) -> tuple[Instruction, ...]:
    """So many instructions with every field anywhere in its range."""
    generator = random.Random(seed)
    return tuple(tuple(generator.randint(0, most) for most in LARGEST) for _ in range(count))  # type: ignore[misc]


def stream(*lengths: int, seed: int = 0) -> Stream:
    return stream_from(Segment(n % 2 == 1, drawn(seed + n, length)) for n, length in enumerate(lengths))


def kept(streams: dict[tuple[str, ...], Stream]) -> tuple[StreamTable, bytes]:
    file = io.BytesIO()
    write_streams(file, streams)
    return read_streams(io.BytesIO(file.getvalue())), file.getvalue()


def test_instructions_come_back_from_their_bytes() -> None:
    for instructions in ((), (PLAIN,), (LARGEST,), drawn(1, 500)):
        assert unpack(pack(instructions)) == instructions
        assert len(pack(instructions)) == 4 * len(instructions)


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize("value", ["more", -1])
def test_a_figure_without_room_is_refused(field: int, value: object) -> None:
    beyond = list(PLAIN)
    beyond[field] = LARGEST[field] + 1 if value == "more" else -1
    with pytest.raises(ValueError, match="has fields beyond"):
        pack([tuple(beyond)])  # type: ignore[list-item]


def test_a_stream_is_named_by_all_that_is_in_it() -> None:
    named = stream(3, 4, 2)
    assert named == stream(3, 4, 2) and hash(named) == hash(stream(3, 4, 2))
    first, loop, last = named.segments
    others = [stream(3, 4), stream(3, 4, 2, seed=7), stream_from([first, replace(loop, loop=False), last])]
    moved = [*first.instructions, loop.instructions[0]], loop.instructions[1:]
    others.append(
        stream_from([replace(first, instructions=tuple(moved[0])), replace(loop, instructions=moved[1]), last])
    )
    for field in range(7):
        changed = list(loop.instructions[0])
        changed[field] ^= 1
        instructions = (tuple(changed), *loop.instructions[1:])
        others.append(stream_from([first, Segment(True, instructions), last]))  # type: ignore[arg-type]
    assert len({named, *others}) == 1 + len(others)


def test_streams_are_kept_by_key_and_equal_ones_once() -> None:
    streams: dict[tuple[str, ...], Stream] = {
        ("flash", "a", ""): stream(3, 40, 2),
        ("flash", "b", ""): stream(5),
        ("qk", "", "1"): stream(3, 40, 2),
    }
    table, raw = kept(streams)
    assert len(table.names) == 2 and table.instructions.shape == (45 + 5,)
    for key, expected in streams.items():
        found = table.get(key)
        assert found == expected and found is not None and found.segments == expected.segments
    assert table.get(("flash", "c", "")) is None
    assert kept(streams)[1] == raw
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        assert {arrays[name].dtype.name for name in arrays} <= {"uint8", "uint16", "uint32", "int32", "bool"}


SQUARE = Attention(1, 8, None, 1024, 1024, 64)
KERNEL = CompiledKernel(sram_bytes=50_000, registers=100, stack_bytes=8, block_warps=4)


def test_a_launch_gets_the_stream_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the table by its key, without LSE where there is none with it; from the compiler as it comes; else none."""
    gpu, tile = load_gpu("h200"), Tile(64, 64, 4, 3)
    program = build_program("flash", SQUARE, tile, room_of(gpu))
    trace = trace_launch(program.launches[0], program.room)
    shipped, wide = from_table("flash", "sm_90", SQUARE, tile, False), replace(SQUARE, head_dim=128)
    assert shipped is not None and shipped.stream is not None
    assert len(shipped.stream.loops) == 2 and {i[0] for i in shipped.stream.loops[0].instructions} >= {FMA, PRODUCT}
    assert resources_of(gpu, trace, SQUARE, tile).stream == shipped.stream
    assert resources_of(gpu, trace, SQUARE, tile, lse=True).stream == shipped.stream
    other = from_table("flash", "sm_90", wide, tile, False)
    assert other is not None and other.stream not in (None, shipped.stream)
    compiled = replace(KERNEL, stream=stream(3))
    assert resources_of(gpu, trace, SQUARE, tile, compiled={"flash": compiled}).stream == stream(3)
    assert resources_of(gpu, trace, SQUARE, tile, compiled={"flash": KERNEL}).stream is None
    monkeypatch.setattr(_compiled, "shipped", dict)
    assert resources_of(gpu, trace, SQUARE, tile).stream is None
    assert resources_of(load_gpu("two-level"), trace, SQUARE, tile).stream is None
