"""Law 10: every field of a machine file changes some result, or is not there.

The fields are read from the model, so one that is added and used nowhere fails here. Labels, which results and reports
only repeat, are not held to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from memsim import Attention, Gpu, MemsimError, Tile, load_gpu, simulate
from memsim._gpu_files import keys, pattern_of
from memsim.gpu import override
from memsim.machine import l2
from memsim.machine.hbm import Hbm

LABELS = {"name", "validation"}
BASES = ("h200", "a100-40gb", "two-level")

Scenario = tuple[str, Attention, Tile | None, str]

# What a kernel of sm_90 is known by: its instructions are replayed on an H200.
KNOWN = Tile(64, 64, 4, 3)

# Chosen so that each limit in turn is what decides. None takes the machine's own tile.
SCENARIOS: tuple[Scenario, ...] = (
    ("flash", Attention(1, 4, None, 128, 128, 64), None, "hbm"),
    ("flash", Attention(1, 4, None, 64, 64, 192, "float32"), None, "host"),
    ("naive", Attention(1, 2, None, 96, 64, 64), Tile(32, 32, 4, 2), "hbm"),
    # Little SRAM, few registers and one warp a block: the number of blocks decides.
    ("flash", Attention(1, 8, None, 512, 64, 16), Tile(16, 16, 1, 1), "hbm"),
    # Many warps a block: warps decide. Two warps, which are counted as four: registers do.
    ("flash", Attention(1, 4, None, 512, 32, 16), Tile(16, 16, 16, 1), "hbm"),
    ("flash", Attention(1, 8, None, 512, 32, 64), Tile(64, 64, 2, 1), "hbm"),
    ("flash", Attention(1, 8, None, 512, 32, 128), Tile(128, 64, 4, 1), "hbm"),
    # Kernels whose instructions are known: products of warp groups and of single warps, boxes, spills beyond the L1,
    # softmax, which has no products. And an L2 that is too small, below a loop that outruns it.
    ("naive", Attention(1, 4, None, 1024, 1024, 64), KNOWN, "hbm"),
    ("flash", Attention(1, 8, None, 256, 1024, 128, "bfloat16"), KNOWN, "hbm"),
    ("flash", Attention(1, 8, None, 256, 1024, 128), Tile(32, 64, 4, 3), "hbm"),
    ("flash", Attention(1, 8, None, 256, 1024, 64), Tile(128, 128, 4, 2), "hbm"),
    ("flash", Attention(1, 8, None, 256, 1024, 128), Tile(128, 64, 8, 2), "hbm"),
    ("flash", Attention(1, 8, None, 256, 1024, 64), Tile(64, 64, 4, 3, "descriptor"), "hbm"),
    ("flash", Attention(1, 32, None, 1024, 4096, 128), Tile(64, 64, 4, 3), "hbm"),
    # SRAM decides, and a bfloat16 product is one of its own.
    ("flash", Attention(1, 8, None, 512, 64, 64, "bfloat16"), Tile(32, 32, 4, 3), "hbm"),
)


def machine(name: str) -> Gpu:
    """A shipped machine with few SMs and little L2, so that small problems fill it, and with leave for a larger SRAM
    reserve."""
    gpu = load_gpu(name)
    changes: dict[str, Any] = {"sm.count": 4, "sm.sram.block_limit_bytes": gpu.sm.sram.capacity_bytes - 40_000}
    if gpu.l2 is not None:
        changes |= {
            "l2.capacity_bytes": 2**20,
            "l2.bandwidth_bytes_per_s": gpu.l2.bandwidth_bytes_per_s * 4 / gpu.sm.count,
        }
    if gpu.l2 is not None and gpu.l2.dirty_limit_bytes is not None:
        changes["l2.dirty_limit_bytes"] = 2**18
    return override(gpu, changes)


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from leaves(item, f"{prefix}{name}.{index}.")
        else:
            yield prefix + name


def value_of(gpu: Gpu, key: str) -> Any:
    value: Any = gpu.model_dump()
    for part in key.split("."):
        value = value[int(part)] if part.isdecimal() else value[part]
    return value


def others(key: str, value: Any) -> list[Any]:
    """Other values that the field could have."""
    if key == "architecture":
        return ["sm_80", "sm_90", "sm_100", None]
    if isinstance(value, int):
        return [value * 2, value // 2, 2 * value + 1, value * 16, value // 16, 1, value + 16_384]
    return [value * 2, value / 2, value * 1000, value / 1000]


@cache
def outcome(gpu: Gpu, scenario: Scenario) -> Any:
    """What a scenario gives: its result without the names that a caller gave, or its refusal."""
    algorithm, problem, tile, inputs = scenario
    try:
        result = simulate(algorithm, problem, gpu=gpu, tile=tile, inputs=inputs).as_dict()
    except MemsimError as refused:
        return str(refused)
    return {name: part for name, part in result.items() if name not in ("gpu", "notes")}


def changes_something(base: Gpu, key: str) -> bool:
    for value in others(key, value_of(base, key)):
        try:
            changed = override(base, {key: value})
        except MemsimError:
            continue  # not a value of this field beside the others
        if any(outcome(changed, scenario) != outcome(base, scenario) for scenario in SCENARIOS):
            return True
    return False


def fields_of(name: str) -> list[str]:
    # What is absent, or as it is where a file does not name it, is not a field of this machine's file.
    table = machine(name).model_dump(exclude_defaults=True)
    # Of the default tiles the first is taken here; that the others are when it does not fit is for the unit tests.
    return [key for key in leaves(table) if key not in LABELS and not (key.startswith("tiles.") and key[6] != "0")]


@pytest.mark.parametrize("base, key", [(base, key) for base in BASES for key in fields_of(base)])
def test_every_field_changes_some_result(base: str, key: str) -> None:
    assert changes_something(machine(base), key)


def test_every_field_of_the_model_is_tried() -> None:
    """The shipped machines above have them all between them."""
    model = {key for key, known in keys().items() if not known.children} - LABELS
    tried = {pattern_of(key) for base in BASES for key in fields_of(base)}
    # float32 on the tensor pipe is what no shipped machine has; it is tried below.
    assert model - tried == {"sm.pipes.tensor_flop_per_clock.float32"}


def test_a_tensor_rate_for_float32_is_used() -> None:
    base = machine("h200")
    changed = override(base, {"sm.pipes.tensor_flop_per_clock.float32": 512})
    scenario = SCENARIOS[1]
    assert scenario[1].dtype == "float32"
    assert outcome(changed, scenario) != outcome(base, scenario)


def test_a_field_that_decided_nothing_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: an L2 whose partitions keep no copies."""
    base = machine("h200")
    assert changes_something(base, "l2.partitions")
    made = l2.L2.__init__

    def without_copies(self: l2.L2, gpu: Gpu, hbm: Hbm) -> None:
        made(self, override(gpu, {"l2.partitions": 1}), hbm)

    monkeypatch.setattr(l2.L2, "__init__", without_copies)
    read = l2.L2.read
    monkeypatch.setattr(l2.L2, "read", lambda self, now, access, at, size, side=0: read(self, now, access, at, size))
    outcome.cache_clear()
    assert not changes_something(base, "l2.partitions")
    outcome.cache_clear()


@pytest.mark.parametrize("key", sorted(LABELS))
def test_a_field_that_nobody_reads_is_noticed(key: str) -> None:
    """The planted fault: a label, held to the law with values that it may have."""
    base = machine("h200")
    value = {"name": "another", "validation": "datasheet"}[key]
    assert value != value_of(base, key)
    assert all(outcome(override(base, {key: value}), scenario) == outcome(base, scenario) for scenario in SCENARIOS)
