"""Does what the simulator says of a kernel's SRAM and registers equal the shipped table of compiled kernels?

The rules of docs/design.md ("SRAM of a block") are held against every row, with the table itself put aside.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files

import pytest

from memsim import resources
from memsim._compiled import KEY_COLUMNS, key_of, read_table
from memsim.attention import Attention
from memsim.gpu import Gpu, gpu_names, load_gpu, override
from memsim.language import trace_launch
from memsim.programs import build_program
from memsim.resources import Resources, resources_of, room_of
from memsim.tile import RingRule, Room, Tile

ROOMY = {
    "sm.sram.capacity_bytes": 2**21, "sm.sram.block_limit_bytes": 2**20, "sm.registers.per_sm": 2**20,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One kernel of the table, as its texts and as what the simulator calls it."""

    texts: dict[str, str]
    problem: Attention
    tile: Tile

    @property
    def kernel(self) -> str:
        return self.texts["kernel"]

    @property
    def architecture(self) -> str:
        return self.texts["architecture"]

    @property
    def lse(self) -> bool:
        return self.texts["lse"] == "1"

    def number(self, column: str) -> int:
        return int(self.texts[column])

    @property
    def warp_groups(self) -> bool:
        return room_of(machine(self.architecture)).warp_group_products(self.tile, self.problem.dtype_bytes)

    def simulated(self) -> Resources:
        gpu = machine(self.architecture)
        algorithm = "flash" if self.kernel == "flash" else "naive"
        program = build_program(algorithm, self.problem, self.tile, room_of(gpu), lse=self.lse)
        trace = trace_launch(next(spec for spec in program.launches if spec.name == self.kernel), program.room)
        return resources_of(gpu, trace, self.problem, self.tile, lse=self.lse)


def text() -> list[str]:
    return files("memsim").joinpath("data/compiled.csv").read_text(encoding="utf-8").splitlines()


def table() -> Iterator[Row]:
    for texts in csv.DictReader(text()):
        odd = "0" in (texts["multiples_of_16"], texts["whole_tiles"])
        keys = int(texts["columns"] or 1024)
        length = keys - 24 * odd
        problem = Attention(
            1, 8, None, length, length, int(texts["head_dim"] or 64), texts["dtype"], texts["causal"] == "1"
        )
        tile = Tile(
            int(texts["block_m"] or 64), int(texts["block_n"] or 64), int(texts["num_warps"]),
            int(texts["num_stages"] or 3), texts["load_path"] or "pointer",
        )  # fmt: skip
        yield Row(texts, problem, tile)


def machine(architecture: str) -> Gpu:
    """A machine of this architecture on which every tile fits."""
    return override(load_gpu("h200"), {**ROOMY, "architecture": architecture})


ROWS = list(table())


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsim._compiled.shipped", dict)


def off(rows: list[Row]) -> list[int]:
    """Simulated less compiled SRAM."""
    return [row.simulated().sram_bytes - row.number("sram_bytes") for row in rows]


def where(keep: Callable[[Row], bool]) -> list[Row]:
    found = [row for row in ROWS if keep(row)]
    assert len(found) > 5
    return found


def exact_flash() -> list[Row]:
    """Pointer loads of 16-bit elements anywhere but in the warp-group products of sm_100."""
    return where(
        lambda r: r.kernel == "flash" and r.tile.load_path == "pointer" and r.problem.dtype_bytes == 2
        and not (r.architecture == "sm_100" and r.warp_groups)
    )  # fmt: skip


def test_every_row_is_found_under_its_own_key() -> None:
    assert len(ROWS) == len(read_table(text())) > 800
    for row in ROWS:
        key = key_of(row.kernel, row.architecture, row.problem, row.tile, row.lse)
        assert key == tuple(row.texts[name] for name in KEY_COLUMNS)


def test_every_tile_of_a_machine_file_is_in_the_table() -> None:
    shipped = read_table(text())
    for name in gpu_names():
        gpu = load_gpu(name)
        if gpu.architecture is None:
            continue
        for listed in gpu.tiles:
            tile = Tile(listed.block_m, listed.block_n, listed.num_warps, listed.num_stages)
            for causal, n in ((False, 1024), (True, 1024), (False, 1000), (True, 1000)):
                problem = Attention(1, 8, None, n, n, 64, causal=causal)
                assert key_of("flash", gpu.architecture, problem, tile, False) in shipped, (name, tile)


def test_sram_of_flash_through_pointers() -> None:
    assert set(off(exact_flash())) == {0}
    assert {row.architecture for row in exact_flash()} >= {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}


@pytest.mark.parametrize(
    "fault",
    [
        lambda stages: RingRule(stages, shared=False),
        lambda stages: RingRule(max(1, stages - 1), shared=stages == 1),
        lambda stages: RingRule(stages + 1, shared=stages == 1),
    ],
    ids=["never shared", "one buffer fewer", "one buffer more"],
)
def test_a_rule_off_by_a_stage_is_noticed(fault: Callable[[int], RingRule], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = exact_flash()
    monkeypatch.setattr(Room, "ring", lambda self, tile, dtype_bytes: fault(tile.num_stages))
    assert sum(map(bool, off(rows))) > len(rows) / 10


def test_sram_of_flash_on_sm_100() -> None:
    """Barriers of asynchronous products and their alignment: to 1 KiB when pipelined, to 4 KiB with a single stage."""
    rows = where(
        lambda r: r.kernel == "flash" and r.architecture == "sm_100" and r.tile.load_path == "pointer" and r.warp_groups
    )
    found = off(rows)
    assert min(found) >= -1024 and max(found) <= 4096
    assert max(off([row for row in rows if row.tile.num_stages > 1])) <= 0


def test_sram_of_flash_in_float32() -> None:
    found = off(where(lambda r: r.kernel == "flash" and r.problem.dtype == "float32"))
    assert min(found) >= -1024 and max(found) <= 0


@pytest.mark.parametrize("load_path", ["descriptor", "descriptor-ws"])
def test_sram_of_flash_through_descriptors(load_path: str) -> None:
    """Never less than the compiler's, and at most 1 KiB more on sm_90."""
    found = off(where(lambda r: r.tile.load_path == load_path and r.architecture == "sm_90"))
    assert min(found) >= 0 and max(found) <= 1024


def test_sram_of_descriptors_on_sm_100() -> None:
    found = off(where(lambda r: r.tile.load_path == "descriptor" and r.architecture == "sm_100"))
    assert min(found) >= 0 and max(found) <= 2048


def test_sram_of_the_naive_kernels() -> None:
    """Of `pv` with few keys a tile, what O takes on its way out is counted whole, and is not always taken."""
    for kernel in ("qk", "softmax"):
        assert set(off([row for row in ROWS if row.kernel == kernel])) == {0}
    rows = [row for row in ROWS if row.kernel == "pv"]
    assert set(off([row for row in rows if row.tile.block_n >= 64])) == {0}
    assert min(off(rows)) >= 0


def test_warps_and_registers_of_warp_specialised_kernels() -> None:
    """The tile's warps three times; all registers of an SM dealt out evenly."""
    for row in ROWS:
        special = row.tile.load_path == "descriptor-ws"
        assert row.number("block_warps") == row.tile.num_warps * (3 if special else 1)
        if special:
            assert row.number("registers") == 65536 // (32 * row.number("block_warps")) // 8 * 8


def test_the_error_of_the_registers_estimate_is_as_stated() -> None:
    """Over the float16 kernels of flash, qk and pv. Planted: a tenth more shows."""
    rows = where(
        lambda r: r.kernel != "softmax" and r.tile.load_path != "descriptor-ws" and r.problem.dtype == "float16"
    )
    errors, faulty = [], []
    for row in rows:
        estimate = row.simulated()
        assert estimate.registers_from == "estimate" and estimate.registers is not None
        errors.append(abs(estimate.registers / row.number("registers") - 1))
        faulty.append(abs(1.1 * estimate.registers / row.number("registers") - 1))
    assert abs(sum(errors) / len(errors) - resources.ESTIMATE_MEAN_ERROR) < 0.005
    assert abs(max(errors) - resources.ESTIMATE_WORST_ERROR) < 0.01
    assert abs(sum(faulty) / len(faulty) - resources.ESTIMATE_MEAN_ERROR) > 0.005


def test_the_main_loop_is_a_loop_of_products() -> None:
    """Every flash and pv kernel in 16 bits has tensor instructions there, and every flash kernel exponentials."""
    for row in ROWS:
        if row.problem.dtype_bytes == 2 and row.kernel in ("flash", "pv"):
            assert row.number("main_tensor") > 0 and row.number("loops") > 0
            assert (row.number("main_exp") > 0) == (row.kernel == "flash")
