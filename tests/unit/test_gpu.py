"""Are the machine files right and sourced, and is whatever is wrong with one said key by key?"""

import copy
import pickle
import time
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim._gpu_files import named
from memsim.errors import MemsimError
from memsim.gpu import (
    SHORT_OPTIONS,
    Gpu,
    TileChoice,
    apply_options,
    gpu_from_table,
    gpu_names,
    load_gpu,
    override,
    template,
)

NAMES = ("a100-40gb", "a100-80gb", "b200", "h100-sxm", "h200-sxm", "rtx-4090", "two-level")
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def faults_of(error: pytest.ExceptionInfo[MemsimError]) -> list[str]:
    """The sentences, each checked to be one."""
    faults = list(error.value.faults)
    assert faults
    for fault in faults:
        assert fault.strip() == fault and fault.endswith((".", "?")) and fault.isprintable(), fault
        assert len(fault) < 600
    return faults


def numbers(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numeric leaves by dotted key."""
    leaves: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            leaves |= numbers(value, f"{prefix}{name}.")
        elif not isinstance(value, str | list | tuple):
            leaves[prefix + name] = value
    return leaves


def template_table() -> dict[str, Any]:
    return tomllib.loads(template())


def put(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the table with one key set, or taken away by `...`."""
    changed = copy.deepcopy(table)
    place: Any = changed
    *path, name = key.split(".")
    for part in path:
        place = place[int(part)] if part.isdecimal() else place.setdefault(part, {})
    at = int(name) if name.isdecimal() else name
    if value is ...:
        del place[at]
    else:
        place[at] = value
    return changed


def faults_with(key: str, value: Any) -> list[str]:
    """What is wrong with the template once `key` is `value`."""
    with pytest.raises(MemsimError) as error:
        gpu_from_table(put(template_table(), key, value))
    return faults_of(error)


# The machines that come with memsim


def test_the_machines_that_come_with_memsim() -> None:
    assert gpu_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert set(numbers(gpu.model_dump(exclude_unset=True))) | {"tiles"} <= set(gpu.sources)
    assert all(len(source) > 5 for source in gpu.sources.values())


@pytest.mark.parametrize(
    ("name", "published_flop_per_s"),
    [
        ("two-level", 71e12),  # GA102 whitepaper, float32 accumulation
        ("a100-40gb", 312e12),
        ("a100-80gb", 312e12),
        ("h100-sxm", 989e12),
        ("rtx-4090", 165.2e12),  # Ada whitepaper, float32 accumulation
        ("b200", 2.25e15),
    ],
)
def test_published_tensor_rate(name: str, published_flop_per_s: float) -> None:
    gpu = load_gpu(name)
    for dtype in ("float16", "bfloat16"):
        assert gpu.tensor_flop_per_s(dtype) == pytest.approx(published_flop_per_s, rel=0.01)


def test_the_h200_computes_like_an_h100() -> None:
    h100, h200 = load_gpu("h100-sxm"), load_gpu("h200")
    assert h200.sm.clock_hz == 1.83e9
    assert h200.tensor_flop_per_s("float16") == pytest.approx(989e12, rel=0.01)
    assert h200.sm.pipes == h100.sm.pipes
    assert h200.hbm.capacity_bytes == 150_109_880_320
    assert (h200.sm.sram.capacity_bytes, h200.sm.sram.block_limit_bytes) == (233_472, 232_448)
    assert (h200.launch.overhead_s, h200.validation) == (3.8e-6, "measured")


@pytest.mark.parametrize(
    ("name", "published_flop_per_s"),
    [
        ("two-level", 35.6e12),
        ("a100-80gb", 19.5e12),
        # NVIDIA gives 66.9 TFLOP/s at the top clock of 1.98 GHz, and the tensor pipe's 989 at 1.83.
        ("h200-sxm", 66.9e12 / 1.98 * 1.83),
        ("rtx-4090", 82.6e12),
    ],
)
def test_float32_runs_on_the_alu_at_the_published_rate(name: str, published_flop_per_s: float) -> None:
    gpu = load_gpu(name)
    assert gpu.sm.pipes.dot_pipe("float32") == "alu"
    assert gpu.sm.pipes.dot_pipe("float16") == "tensor"
    assert gpu.tensor_flop_per_s("float32") == 2 * gpu.alu_per_s == pytest.approx(published_flop_per_s, rel=0.01)


def test_published_sram_and_exp_rates() -> None:
    assert load_gpu("a100-40gb").sram_bandwidth_bytes_per_s == pytest.approx(19e12, rel=0.03)  # FA1 section 2.1
    assert load_gpu("h100-sxm").exp_per_s == pytest.approx(3.9e12, rel=0.01)  # FA3 section 3.1


def test_two_level_is_the_article() -> None:
    gpu = load_gpu("two-level")
    assert gpu.sram_bandwidth_bytes_per_s == pytest.approx(100 * gpu.hbm.bandwidth_bytes_per_s, rel=1e-5)
    assert (gpu.hbm.capacity_bytes, gpu.hbm.bandwidth_bytes_per_s) == (24_000_000_000, 936e9)
    assert gpu.sm.sram.capacity_bytes == gpu.sm.sram.block_limit_bytes == 192 * 1024
    assert gpu.sm.sram.reserved_per_block_bytes == 0
    assert gpu.l2 is None and gpu.sm.registers is None and gpu.architecture is None


@pytest.mark.parametrize(
    ("name", "block_limit_bytes"),
    [("a100-40gb", 166_912), ("a100-80gb", 166_912), ("rtx-4090", 101_376), ("h100-sxm", 232_448), ("b200", 232_448)],
)
def test_the_largest_block_is_what_the_driver_allows(name: str, block_limit_bytes: int) -> None:
    assert load_gpu(name).sm.sram.block_limit_bytes == block_limit_bytes


def test_the_two_a100_differ_in_hbm_and_nothing_else_a_kernel_sees() -> None:
    small, large = load_gpu("a100-40gb"), load_gpu("a100-80gb")
    assert (small.hbm.bandwidth_bytes_per_s, large.hbm.bandwidth_bytes_per_s) == (1.555e12, 2.039e12)
    assert (small.sm, small.launch, small.host, small.tiles) == (large.sm, large.launch, large.host, large.tiles)


def needed_sram_bytes(gpu: Gpu, tile: TileChoice, dtype: str, head_dim: int) -> int:
    """What flash needs by the compiler's rule of the architecture; on two levels accumulators and S count too."""
    ring = tile.num_stages if gpu.architecture in (None, "sm_90", "sm_100") else max(1, tile.num_stages - 1)
    inputs = ELEMENT_BYTES[dtype] * head_dim * (tile.block_m + 2 * ring * tile.block_n)
    return inputs if gpu.sm.registers else inputs + 4 * tile.block_m * (head_dim + tile.block_n + 2)


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256, 512])
@pytest.mark.parametrize("name", NAMES)
def test_some_default_tile_fits_every_head_dim(name: str, head_dim: int, dtype: str) -> None:
    gpu = load_gpu(name)
    fitting = [t for t in gpu.tiles if needed_sram_bytes(gpu, t, dtype, head_dim) <= gpu.sm.sram.block_limit_bytes]
    assert fitting
    assert gpu.tiles[-1] == TileChoice(block_m=16, block_n=16, num_warps=4, num_stages=1)
    # The smallest is a last resort, not what common problems get.
    assert dtype == "float32" or head_dim > 256 or fitting[0].block_m >= 32


def test_loading_is_fast() -> None:
    load_gpu("two-level")
    text = template()
    fastest_s = 1.0
    for _ in range(5):
        start_s = time.perf_counter()
        gpu_from_table(tomllib.loads(text))
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    assert fastest_s < 0.02


def test_a_gpu_can_be_a_key_and_travel_between_processes() -> None:
    gpu = load_gpu("h200")
    assert hash(gpu) == hash(load_gpu("h200-sxm"))
    again = pickle.loads(pickle.dumps(gpu))
    assert again == gpu and again.sources == gpu.sources
    with pytest.raises(ValueError, match="frozen"):
        gpu.name = "other"


# Files


def test_the_template_loads_and_says_what_each_key_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(template(), encoding="utf-8")
    gpu, h200 = load_gpu(path), load_gpu("h200")
    assert (gpu.name, gpu.validation) == ("my-gpu", "datasheet")
    assert gpu.model_dump(exclude={"name", "validation"}) == h200.model_dump(exclude={"name", "validation"})
    lines = template().splitlines()
    undescribed = [
        line
        for before, line in pairwise(lines)
        if " = " in line and not line.startswith("#") and '"' not in line and not before.startswith("#")
    ]
    assert all(line.split(" = ")[0] in ELEMENT_BYTES for line in undescribed)


def test_a_file_needs_no_sources_and_may_be_saved_with_a_byte_order_mark(tmp_path: Path) -> None:
    lines = []
    in_sources = False
    for line in template().splitlines():
        in_sources = line.endswith("source]") or (in_sources and not line.startswith("["))
        if not in_sources:
            lines.append(line)
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    gpu = load_gpu(str(path))
    assert gpu.sources == {}
    assert gpu.hbm == load_gpu("h200").hbm


def test_a_shipped_file_without_a_source_is_refused() -> None:
    table = put(template_table(), "hbm.source.latency_s", ...)
    gpu_from_table(table)
    with pytest.raises(MemsimError) as error:
        gpu_from_table(table, sources_required=True)
    assert faults_of(error) == ["hbm.latency_s has no source: give it one in [hbm.source]."]


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "gpu.toml"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text at byte 0"),
        (b"name = ", "is not TOML (Invalid value"),
        (b"a = " + b"9" * 5000, "is not TOML ("),
        (b"a = " + b"[" * 100_000, "nests too deeply"),
        (b"#" * (2**20 + 1), "is larger than 1048576 bytes"),
        (b"", "name is missing"),
    ],
)
def test_what_is_no_gpu_file(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(MemsimError) as error:
        load_gpu(write(tmp_path, data))
    assert said in faults_of(error)[0]


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(MemsimError) as error:
        load_gpu(tmp_path)
    (fault,) = faults_of(error)
    assert "is a directory: give the path of a TOML file" in fault


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(MemsimError) as error:
        load_gpu(tmp_path / "gpu.toml")
    (fault,) = faults_of(error)
    assert "cannot be read (permission denied)" in fault


@pytest.mark.parametrize("name", ["h20", "", "H200", "no/such/file.toml", "a\0b", "x" * 5000, "\x1b[31m"])
def test_an_unknown_name_is_told_the_names(name: str) -> None:
    with pytest.raises(MemsimError) as error:
        load_gpu(name)
    (fault,) = faults_of(error)
    assert "TOML file" in fault
    if len(name) < 1000:
        assert all(known in fault for known in NAMES)


# Faults, each by its key


def test_a_file_with_many_faults_names_them_all(tmp_path: Path) -> None:
    table = template_table()
    text = (
        template()
        .replace("\ncapacity_bytes = 150_109_880_320", "\ncapacty_bytes = 150_109_880_320")
        .replace("\nbandwidth_bytes_per_s = 9.8e12", "\nbandwidth_bytes_per_s = -9.8e12")
        .replace("\nclock_hz = 1.83e9", "\nclock = 1.98e9")
        .replace("\noverhead_s = 3.8e-6", "\noverhead_s = 1e400")
        .replace("\nlatency_s = 6e-6", "\nlatency_s = nan")
        .replace("\nmax_warps = 64", '\nmax_warps = "64"')
    )
    assert tomllib.loads(text) != table
    path = write(tmp_path, text.encode())
    with pytest.raises(MemsimError) as error:
        load_gpu(path)
    # A path too long for a sentence is shortened in it.
    where = f"In {named(str(path))}, "
    assert [fault.removeprefix(where) for fault in faults_of(error)] == [
        "hbm.capacty_bytes is not a key of a GPU: did you mean hbm.capacity_bytes?",
        "l2.bandwidth_bytes_per_s is -9800000000000.0, which is out of range: "
        "give a number of bytes per second from 1 to 1e18.",
        'sm.max_warps is the text "64", but must be a whole number from 1 to 1000000.',
        "sm.clock is not a key of a GPU: did you mean sm.clock_hz?",
        "launch.overhead_s is infinite, but must be a number of seconds from 0 to 1.",
        "host.latency_s is not a number (nan), but must be a number of seconds from 0 to 1.",
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hbm.capacity_bytes", ..., "hbm.capacity_bytes is missing: give a whole number of bytes from 1 to 1e15."),
        ("hbm.capacity_bytes", 1.5, "hbm.capacity_bytes is 1.5, but must be a whole number of bytes from 1 to 1e15."),
        ("hbm.capacity_bytes", 0, "hbm.capacity_bytes is 0, which is out of range: give"),
        ("hbm.capacity_bytes", 10**16, "hbm.capacity_bytes is 10000000000000000, which is out of range: give"),
        ("hbm.capacity_bytes", 10**400, "hbm.capacity_bytes is an integer of more than 20 digits, which is out of"),
        ("hbm.capacity_bytes", True, "hbm.capacity_bytes is true, but must be"),
        ("hbm.capacity_bytes", "80GB", 'hbm.capacity_bytes is the text "80GB", but must be a whole number of bytes'),
        ("hbm.capacity_bytes", [1], "hbm.capacity_bytes is a list, but must be"),
        ("hbm.capacity_bytes", {"a": 1}, "hbm.capacity_bytes is a table, but must be"),
        ("hbm.latency_s", -1e-9, "hbm.latency_s is -1e-09, which is out of range: give a number of seconds from 0"),
        ("hbm.bandwidth_bytes_per_s", float("nan"), "hbm.bandwidth_bytes_per_s is not a number (nan), but must be"),
        ("hbm.bandwidth_bytes_per_s", float("inf"), "hbm.bandwidth_bytes_per_s is infinite, but must be"),
        ("hbm", ..., "hbm is missing: give the table [hbm] with capacity_bytes, bandwidth_bytes_per_s, latency_s."),
        ("hbm", 3, "hbm is 3, but must be the table [hbm] with"),
        ("hbm.colour", 3, "hbm.colour is not a key of a GPU: the keys of [hbm] are capacity_bytes, bandwidth_"),
        ("colour", 3, "colour is not a key of a GPU: the keys of a GPU are name, architecture, validation, hbm,"),
        ("bandwidth_bytes_per_s", 3, "bandwidth_bytes_per_s is not a key of a GPU: did you mean"),
        ("validation", "guess", 'validation is the text "guess", but must be "datasheet" or "measured".'),
        ("architecture", "hopper", 'architecture is the text "hopper", but must be a compute capability such as'),
        ("name", "", 'name is the text "", but must be 1 to 100 plain characters.'),
        ("name", "a\nb", 'name is the text "a?b", but must be'),
        ("tiles", [], "tiles is empty: give at least one [[tiles]]"),
        ("tiles", 3, "tiles is 3, but must be tables [[tiles]] with block_m, block_n, num_warps, num_stages."),
        ("tiles.0", 3, "tiles.0 is 3, but must be"),
        ("tiles.0.block_m", 0, "tiles.0.block_m is 0, which is out of range"),
        ("tiles.1.block_nn", 1, "tiles.1.block_nn is not a key of a GPU: did you mean tiles.1.block_n?"),
        ("tiles.0.num_warps", 33, "tiles.0.num_warps is 33, which is out of range: give a whole number of warps"),
        ("tiles.0.num_stages", 65, "tiles.0.num_stages is 65, which is out of range"),
        ("tiles.0.block_m", 2**20, "tiles.0.block_m is 1048576, which is out of range"),
        ("sm.pipes.tensor_flop_per_clock.fp16", 1, "did you mean sm.pipes.tensor_flop_per_clock.float16?"),
        ("sm.pipes.tensor_flop_per_clock.float16", 0, "sm.pipes.tensor_flop_per_clock.float16 is 0, which is out of"),
        ("sm.pipes.exp_per_clock.float16", 32, "sm.pipes.exp_per_clock.float16 is not a key of a GPU: did you mean"),
        ("sm.pipes.alu_per_clock", {}, "sm.pipes.alu_per_clock is empty: give float32"),
        ("sm.pipes.alu_per_clock", 5, "sm.pipes.alu_per_clock is 5, but must be the table [sm.pipes.alu_per_clock]"),
        (
            "hbm.source.latncy_s",
            "x",
            "hbm.source.latncy_s is the source of nothing: name a key that the table beside it",
        ),
        ("hbm.source.latency_s", 5, "hbm.source.latency_s is 5, but must be a text naming the source."),
        ("hbm.source.latency_s", " ", "but must be a text naming the source."),
        (
            "hbm.source",
            "whitepaper",
            'hbm.source is the text "whitepaper", but must be a table with a text for each key',
        ),
        ("source.hbm", "x", "source.hbm is the source of nothing"),
        ("sm.source.registers", "x", "sm.source.registers is the source of nothing"),
        ("sm.registers", ..., "sm.warp_unit only rounds up warps for their registers: leave it out"),
        ("sm.registers.per_thread_limit", 65537, "sm.registers.per_thread_limit is 65537, but must be at most"),
        (
            "sm.sram.block_limit_bytes",
            232449,
            "sm.sram.block_limit_bytes is 232449, but sm.sram.capacity_bytes is 233472,",
        ),
        (
            "sm.sram.reserved_per_block_bytes",
            233472,
            "sm.sram.reserved_per_block_bytes is 233472, but must be less than",
        ),
    ],
)
def test_a_fault_is_named_with_what_would_be_right(key: str, value: Any, said: str) -> None:
    (fault,) = faults_with(key, value)
    assert said in fault


def test_a_whole_float_passes_for_an_integer() -> None:
    gpu = gpu_from_table(put(template_table(), "hbm.capacity_bytes", 150.1e9))
    assert gpu.hbm.capacity_bytes == 150_100_000_000
    assert isinstance(gpu.hbm.capacity_bytes, int)


def test_l2_registers_and_architecture_may_be_left_out() -> None:
    table = template_table()
    for key in ("l2", "architecture", "source.architecture", "sm.registers", "sm.warp_unit", "sm.source.warp_unit"):
        table = put(table, key, ...)
    gpu = gpu_from_table(table)
    assert gpu.l2 is None and gpu.sm.registers is None and gpu.architecture is None


LEAVES = sorted(numbers(load_gpu("h200").model_dump()))
WRONG = st.one_of(
    st.sampled_from(
        [float("nan"), float("inf"), float("-inf"), -1, 0, -0.0, 1e300, 5e-324, 10**400, True, None, "", {}]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dates(),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, str, Any]]:
    """Ways in which a file goes wrong: keys that go, are misspelt, or hold something else."""
    tables = ["hbm", "l2", "sm", "sm.sram", "sm.pipes", "hbm.source", "tiles", "source", "tiles.0"]
    key = st.sampled_from(LEAVES + tables + [f"tiles.{n}.block_n" for n in range(2)])
    kind = st.sampled_from(["drop", "misspell", "set", "add"])
    return draw(st.lists(st.tuples(kind, key, WRONG), min_size=1, max_size=4))


def mutated(table: dict[str, Any], kind: str, key: str, value: Any) -> dict[str, Any]:
    path, _, name = key.rpartition(".")
    if kind == "drop":
        return put(table, key, ...)
    if kind == "misspell":
        letters = str(value)[:2]
        return put(put(table, key, ...), f"{path}.{name[:-2]}{letters}{name[-1]}".lstrip("."), value)
    return put(table, key if kind == "set" else f"{key}_x", value)


@given(mutations())
def test_a_broken_file_is_refused_in_sentences_and_nothing_else(changes: list[tuple[str, str, Any]]) -> None:
    table = template_table()
    for kind, key, value in changes:
        try:
            table = mutated(table, kind, key, value)
        except (KeyError, TypeError, IndexError, AttributeError):
            continue  # an earlier change took the place of this one away
    try:
        gpu = gpu_from_table(table)
    except MemsimError as error:
        assert error.faults
        for fault in error.faults:
            assert fault and fault.isprintable() and fault.endswith((".", "?"))
            assert len(fault) < 600
    else:
        assert_usable(gpu)


@given(st.binary(max_size=60), st.integers(0, 4000))
def test_a_file_overwritten_anywhere_is_refused_in_sentences(data: bytes, at: int) -> None:
    raw = template().encode()
    broken = raw[:at] + data + raw[at + len(data) :]
    try:
        text = broken.decode()
        table = tomllib.loads(text)
    except ValueError:
        return  # said by the file's reader, tested above
    try:
        gpu_from_table(table)
    except MemsimError as error:
        assert all(fault and fault.isprintable() for fault in error.faults)


@pytest.mark.parametrize("parts", [15, 100_000])
def test_a_key_of_many_parts_is_refused_at_once(tmp_path: Path, parts: int) -> None:
    text = template().replace("\n[sm]\n", "\n[sm]\n" + "a." * parts + "b = 1\n")
    with pytest.raises(MemsimError) as error:
        load_gpu(write(tmp_path, text.encode()))
    (fault,) = faults_of(error)
    assert ("sm.a is not a key of a GPU" if parts < 20 else "has a line with more than 20 dots") in fault


def assert_usable(gpu: Gpu) -> None:
    """Times computed from it are finite and above zero, down to the picosecond."""
    for rate in (gpu.hbm.bandwidth_bytes_per_s, gpu.sram_bandwidth_bytes_per_s, gpu.exp_per_s, gpu.alu_per_s):
        assert 0 < 2**62 / rate * 1e12 < float("inf")
        assert 0 < 1 / rate * 1e12 < float("inf")


# Single fields


@pytest.mark.parametrize("name", NAMES)
def test_any_single_number_can_be_overridden(name: str) -> None:
    gpu = load_gpu(name)
    for key, value in numbers(gpu.model_dump(exclude_none=True)).items():
        less = value / 2 if isinstance(value, float) else max(1, value // 2)
        if key in ("sm.sram.capacity_bytes", "sm.registers.per_sm", "sm.max_warps"):
            less = value + 1
        if value == 0 or (key == "sm.warp_unit" and gpu.sm.registers is None):
            continue  # nothing else would be right
        changed = override(gpu, {key: less})
        assert numbers(changed.model_dump(exclude_none=True))[key] == less
        assert changed.sources[key] == "given by the caller in place of the file's"
        assert {k: v for k, v in changed.sources.items() if k != key} == {
            k: v for k, v in gpu.sources.items() if k != key
        }
        assert override(changed, {key: value}).model_dump() == gpu.model_dump()


def test_overrides_leave_the_gpu_itself_alone() -> None:
    gpu = load_gpu("h200")
    before = gpu.model_dump()
    override(gpu, {"tiles.0.block_m": 128, "sm.pipes.exp_per_clock.float32": 32, "l2": None})
    assert gpu.model_dump() == before
    assert gpu.tiles[0].block_m == 64


def test_parts_that_may_be_absent_can_be_removed_and_given() -> None:
    gpu = load_gpu("h200")
    without = override(gpu, {"l2": None, "sm.registers": None, "sm.warp_unit": None, "architecture": None})
    assert without.l2 is None and without.sm.registers is None and without.architecture is None
    assert not any(key.startswith(("l2", "sm.registers", "sm.warp_unit")) for key in without.sources)
    assert override(load_gpu("two-level"), {"l2": gpu.l2}).l2 == gpu.l2
    assert override(gpu, {"sm.pipes.tensor_flop_per_clock.float32": 1024}).sm.pipes.dot_pipe("float32") == "tensor"
    assert override(gpu, {"architecture": "sm_75"}).architecture == "sm_75"
    assert override(gpu, {"tiles": gpu.tiles[1:]}).tiles == gpu.tiles[1:]
    assert override(gpu, {}).model_dump() == gpu.model_dump()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hbm.capcity_bytes": 1}, "hbm.capcity_bytes is not a field of a GPU: did you mean hbm.capacity_bytes?"),
        ({"sources": {}}, "sources is not a field of a GPU"),
        ({"_sources": {}}, "is not a field of a GPU"),
        ({"": 1}, "is not a field of a GPU"),
        ({"tiles.0": 1}, "tiles.0 is not a field of a GPU"),
        ({"tiles.N.block_m": 16}, "tiles.N.block_m is not a field of a GPU"),
        ({"tiles.9.block_m": 16}, "tiles.9.block_m is not there: the tiles are 0 to 3."),
        ({"hbm": None}, "hbm is missing: give the table [hbm]"),
        ({"hbm.latency_s": None}, "hbm.latency_s is missing: give a number of seconds from 0 to 1."),
        ({"hbm.latency_s": "5ns"}, 'hbm.latency_s is the text "5ns", but must be'),
        ({"hbm.latency_s": float("nan")}, "hbm.latency_s is not a number (nan)"),
        ({"l2": None, "l2.capacity_bytes": 5}, "l2 and l2.capacity_bytes are both given: give one of them."),
        ({"sm.sram.capacity_bytes": 98304}, "sm.sram.block_limit_bytes is 232448, but sm.sram.capacity_bytes is 98304"),
        ({"sm": 3}, "sm is 3, but must be the table [sm] with"),
    ],
)
def test_an_override_that_is_wrong(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MemsimError) as error:
        override(load_gpu("h200"), changes)
    (fault,) = faults_of(error)
    assert said in fault


def test_every_fault_of_an_override_is_said() -> None:
    with pytest.raises(MemsimError) as error:
        override(load_gpu("h200"), {"hbm.latency_s": -1, "sm.count": 0, "sm.clock_hz": "fast"})
    assert [fault.split()[0] for fault in faults_of(error)] == ["hbm.latency_s", "sm.count", "sm.clock_hz"]


# Options as text


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("hbm-capacity", "24GB", {"hbm.capacity_bytes": 24_000_000_000}),
        ("hbm-bandwidth", "2TB/s", {"hbm.bandwidth_bytes_per_s": 2e12}),
        ("l2.capacity_bytes", "50MB", {"l2.capacity_bytes": 50_000_000}),
        ("sms", "66", {"sm.count": 66}),
        (
            "clock",
            "1.7GHz",
            {"sm.clock_hz": 1.7e9, "calibrated.clock_hz": 1.7e9, "calibrated.idle_tensor_clock_hz": 1.7e9},
        ),
        ("l2", "50MB", {"l2.capacity_bytes": 50_000_000}),
        ("l2", "1MB", {"l2.capacity_bytes": 1_000_000, "l2.dirty_limit_bytes": 1_000_000}),
        ("sram", "96KiB", {"sm.sram.capacity_bytes": 98304, "sm.sram.block_limit_bytes": 98304 - 1024}),
        ("launch-overhead", "4us", {"launch.overhead_s": 4e-6}),
        ("host-bandwidth", "12GB/s", {"host.bandwidth_bytes_per_s": 12e9}),
        ("hbm.latency_s", "5e-7", {"hbm.latency_s": 5e-7}),
        ("sm.sram.bandwidth_bytes_per_clock", "64", {"sm.sram.bandwidth_bytes_per_clock": 64}),
        ("sm.pipes.exp_per_clock.float32", "32.5", {"sm.pipes.exp_per_clock.float32": 32.5}),
        ("sm.registers.per_sm", "128Ki", {"sm.registers.per_sm": 131_072}),
        ("l2.bandwidth_bytes_per_s", "5TB/s", {"l2.bandwidth_bytes_per_s": 5e12}),
        ("sm.clock_hz", "1GHz", {"sm.clock_hz": 1e9}),
    ],
)
def test_an_option_sets_its_fields(option: str, text: str, expected: dict[str, float]) -> None:
    gpu = load_gpu("h200")
    changed = apply_options(gpu, {option: text})
    before, after = numbers(gpu.model_dump()), numbers(changed.model_dump())
    assert {key: value for key, value in after.items() if value != before[key]} == expected


def test_constants_that_were_fitted_are_no_whole_numbers() -> None:
    """Whatever unit their names end in, or none: a share, a cost, cycles."""
    changed = apply_options(
        load_gpu("h200"),
        {"calibrated.store_cost": "2.5", "calibrated.merged_share": "0.6", "calibrated.launch_cycles": "3000.5"},
    )
    assert changed.calibrated is not None
    assert (changed.calibrated.store_cost, changed.calibrated.merged_share) == (2.5, 0.6)
    assert changed.calibrated.launch_cycles == 3000.5
    with pytest.raises(MemsimError, match=r"calibrated\.store_cost is 0, which is out of range"):
        override(load_gpu("h200"), {"calibrated.store_cost": 0})


def test_a_longer_hbm_latency_is_one_of_what_was_fitted_too() -> None:
    gpu = load_gpu("h200")
    changed = apply_options(gpu, {"hbm-latency": "600ns", "clock": "1GHz"})
    assert gpu.calibrated is not None and changed.calibrated is not None
    more = (600 - 348) * 1.0  # cycles of 1 ns
    assert changed.hbm.latency_s == 6e-7
    assert changed.calibrated.hbm_copy_cycles == pytest.approx(gpu.calibrated.hbm_copy_cycles + more)
    assert changed.calibrated.load_cycles == pytest.approx(gpu.calibrated.load_cycles + more)
    assert changed.calibrated.copy_cycles == gpu.calibrated.copy_cycles
    assert apply_options(load_gpu("two-level"), {"hbm-latency": "0"}).hbm.latency_s == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sm.core": None}, "calibrated is given without sm.core: the replay of compiled kernels needs both"),
        ({"calibrated": None}, "sm.core is given without calibrated: the replay of compiled kernels needs both"),
        (
            {"l2.dirty_limit_bytes": 62_914_561},
            "l2.dirty_limit_bytes is 62914561, but must be at most l2.capacity_bytes, 62914560.",
        ),
    ],
)
def test_what_the_l2_and_the_core_need_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MemsimError) as error:
        override(load_gpu("h200"), changes)
    (fault,) = faults_of(error)
    assert said in fault
    without = override(load_gpu("h200"), {"calibrated": None, "sm.core": None, "l2.dirty_limit_bytes": None})
    assert without.calibrated is None and without.sm.core is None and without.l2.dirty_limit_bytes is None


def test_partitions_of_the_l2() -> None:
    partitions = {name: gpu.l2.partitions for name in gpu_names() if (gpu := load_gpu(name)).l2 is not None}
    assert partitions == {
        "a100-40gb": 2, "a100-80gb": 2, "b200": 2, "h100-sxm": 2, "h200-sxm": 2, "rtx-4090": 1,
    }  # fmt: skip


def test_other_options() -> None:
    gpu = load_gpu("h200")
    assert apply_options(gpu, {"l2": "none"}).l2 is None
    assert apply_options(gpu, {"name": "mine", "validation": "datasheet"}).name == "mine"
    assert apply_options(gpu, {"architecture": "none"}).architecture is None
    assert apply_options(gpu, {"tiles.1.num_stages": "4"}).tiles[1].num_stages == 4
    assert apply_options(gpu, {}) == gpu


def test_sram_bandwidth_is_of_all_sms_whatever_else_is_set() -> None:
    options = {"sram-bandwidth": "20TB/s", "sms": "10", "sm.clock_hz": "1GHz"}
    gpu = apply_options(load_gpu("h200"), options)
    assert gpu.sram_bandwidth_bytes_per_s == pytest.approx(20e12)
    assert gpu.sm.sram.bandwidth_bytes_per_clock == pytest.approx(2000)


def test_sram_leaves_room_for_what_is_reserved_whatever_that_is() -> None:
    gpu = apply_options(load_gpu("h200"), {"sram": "64KiB", "sm.sram.reserved_per_block_bytes": "4KiB"})
    assert gpu.sm.sram.block_limit_bytes == 60 * 1024
    assert apply_options(load_gpu("two-level"), {"sram": "64KiB"}).sm.sram.block_limit_bytes == 64 * 1024


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sram": "96K"}, ['sram is "96K", which has an unknown unit "K"']),
        ({"sram": "1KiB"}, ["sram is 1024 B, but must be more than the 1024 B that a block has reserved."]),
        ({"sram": "2PiB"}, ['unknown unit "PiB"']),
        ({"sram": "2000TB"}, ["sm.sram.capacity_bytes is 2000000000000000", "sm.sram.block_limit_bytes is 1999999"]),
        ({"sms": "0", "sram-bandwidth": "1TB/s"}, ["sm.count is 0, which is out of range"]),
        ({"sms": "-1"}, ['sms is "-1", which is negative: give 1 or more.']),
        ({"sram": "-1"}, ['sram is "-1", which is negative: give 1 or more.']),
        ({"sram-bandwidth": "-1"}, ['sram-bandwidth is "-1", which is negative: give more than zero.']),
        ({"sm.sram.reserved_per_block_bytes": "-1"}, ["which is negative: give zero or more."]),
        ({"l2": "much"}, ['l2 is "much", which is not a finite number']),
        ({"l2": "0"}, ["l2.capacity_bytes is 0", "l2.dirty_limit_bytes is 0"]),
        ({"l2": "1MB", "l2.capacity_bytes": "1MB"}, ["l2 sets l2.capacity_bytes, which is given too"]),
        ({"sms": "1.5"}, ['sms is "1.5", which does not come out whole']),
        ({"clock": "nan", "hbm-latency": "inf"}, ['clock is "nan"', 'hbm-latency is "inf"']),
        ({"hbm-bandwidth": "1e400"}, ['hbm-bandwidth is "1e400", which is too large']),
        ({"hbm-bandwidth": "0"}, ["hbm.bandwidth_bytes_per_s is 0.0, which is out of range"]),
        ({"srm": "96KiB"}, ["srm is not a field of a GPU: did you mean sram?"]),
        ({"hbm.latency": "5ns"}, ["hbm.latency is not a field of a GPU: did you mean hbm.latency_s?"]),
        ({"sm": "5"}, ["sm is more than one value: set one of count, clock_hz"]),
        ({"hbm.latency_s": "none"}, ['hbm.latency_s is "none", which is not a finite number']),
        (
            {"sram": "96KiB", "sm.sram.capacity_bytes": "96KiB"},
            ["sram sets sm.sram.capacity_bytes, which is given too"],
        ),
        ({"sms": "5", "sm.count": "5"}, ["sms sets sm.count, which is given too"]),
    ],
)
def test_an_option_that_is_wrong(options: dict[str, str], said: list[str]) -> None:
    with pytest.raises(MemsimError) as error:
        apply_options(load_gpu("h200"), options)
    faults = faults_of(error)
    assert len(faults) == len(said)
    assert all(part in fault for part, fault in zip(said, faults, strict=True))


def test_an_l2_of_a_size_alone_is_not_a_whole_l2() -> None:
    with pytest.raises(MemsimError) as error:
        apply_options(load_gpu("two-level"), {"l2.capacity_bytes": "50MB"})
    assert [fault.split(":")[0] for fault in faults_of(error)] == [
        "l2.bandwidth_bytes_per_s is missing",
        "l2.latency_s is missing",
    ]


@given(
    st.dictionaries(
        st.sampled_from([*SHORT_OPTIONS, *LEAVES, "tiles", "tiles.0", "tiles.N.block_m", "tiles.5.block_m"]),
        st.text(max_size=12),
        max_size=4,
    )
)
def test_any_text_as_an_option_is_applied_or_refused(options: dict[str, str]) -> None:
    try:
        assert_usable(apply_options(load_gpu("h200"), options))
    except MemsimError as error:
        assert all(fault and fault.isprintable() for fault in error.faults)


def test_tiles_with_more_warps_than_an_sm_are_named() -> None:
    faults = faults_with("sm.max_warps", 2)
    assert "tiles.0.num_warps is 4, but must be at most sm.max_warps, 2." in faults[0]
