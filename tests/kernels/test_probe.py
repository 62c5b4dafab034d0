"""Does the probe compile what a launch would run, keep its results, and say what went wrong?"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st
from memsim_kernels import _probe_cache, _probe_pool, probe
from memsim_kernels._plan import plan_calls
from memsim_kernels._probe_cache import source_of
from memsim_kernels._signature import signature_of
from memsim_kernels.calls import Call
from memsim_kernels.probe import Compiled, compile_call, compile_calls, compile_each
from memsim_kernels.resources_provider import compiled

from memsim import Attention, MemsimError, Tile

from . import probed, probed_fatal

PLAIN = Attention(1, 8, None, 1024, 1024, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path))
    return tmp_path / "probe"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be compiled."""

    class Unwanted:
        def __init__(self) -> None:
            raise AssertionError("a compiler was started")

    monkeypatch.setattr(_probe_pool, "Worker", Unwanted)


def small(kernel: Any = None, n: int = 64, block: int = 64, dtype: torch.dtype = torch.float32) -> Call:
    kernel = kernel or probed.scale
    x, out = (torch.empty(n, dtype=dtype, device="meta") for _ in range(2))
    constants = {"BLOCK": block} if "BLOCK" in kernel.arg_names else {}
    return Call(kernel.fn.__name__, kernel, (1,), (x, out, n), constants, {}, 4, 2)


def test_a_flash_kernel_compiled_where_kernels_are_interpreted() -> None:
    """Both loops are found, the main one is that without masks, and what it does is what such a loop does."""
    assert type(probed.scale).__name__ == "InterpretedFunction"
    heard: list[tuple[str, int, int]] = []
    calls = [*plan_calls("flash", replace(PLAIN, causal=True), Tile(64, 64, 4, 2))]
    calls += plan_calls("flash", PLAIN, Tile(64, 64, 4, 2, "descriptor-ws"))
    pointer, special = compile_calls(calls, "sm_90", progress=lambda *step: heard.append(step))
    assert heard == [("kernels", 1, 2), ("kernels", 2, 2)]
    assert (pointer.sram_bytes, pointer.block_warps, pointer.stack_bytes) == (2 * 64 * (64 + 4 * 64), 4, 0)
    assert pointer.registers is not None and 64 < pointer.registers <= 255
    assert pointer.main_loop is not None
    first, second = pointer.math_loops
    assert pointer.main_loop is first and sum(first.opcodes.values()) < sum(second.opcodes.values())
    mix = pointer.main_mix
    # S of 64×64 and the factors of 64 rows, over 128 threads; two products of a 64-wide tile by steps of 16.
    assert mix["exp"] == 64 * 64 // 128 + 2 and mix["tensor"] == 2 * 64 // 16
    assert mix["async_copy"] > 0 and mix["local_memory"] == 0 and sum(mix.values()) == sum(first.opcodes.values())
    assert special.block_warps == 12 and special.main_mix["async_copy"] == 0 and special.main_mix["tensor"] > 0


def test_a_kernel_without_a_loop_shows_all_of_itself() -> None:
    kernel = compile_call(small(), "sm_80")
    assert kernel.main_loop is None and kernel.math_loops == ()
    assert kernel.main_opcodes == kernel.opcodes and kernel.main_mix["global_memory"] == 2
    assert kernel.sram_bytes == 0 and kernel.resources.registers == kernel.registers
    with pytest.raises(MemsimError, match="compiled for its SRAM only"):
        compile_call(small(n=65), "sm_80", sram_only=True).resources  # noqa: B018


@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**64 - 1), st.sampled_from((0, 1, 16, -16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31))),
            st.booleans(), st.floats(allow_nan=False), st.none(),
            st.sampled_from(("float16", "bfloat16", "float32", "int32", "int64", "bool", "uint8", "float64")),
        ),
        min_size=3, max_size=3,
    ),
    st.integers(0, 3),
    st.lists(st.sampled_from(("x_ptr", "out_ptr", "n", 2)), max_size=2),
    st.lists(st.sampled_from(("x_ptr", "out_ptr", "n", 0)), max_size=2),
)  # fmt: skip
def test_launches_are_specialised_as_triton_does(
    values: list[Any], offset: int, opaque: list[str | int], unaligned: list[str | int]
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    args = tuple(
        torch.empty(8, dtype=getattr(torch, value))[offset:] if isinstance(value, str) else value for value in values
    )
    kernel = JITFunction(
        probed.scale.fn, do_not_specialize=opaque, do_not_specialize_on_alignment=unaligned
    )  # fmt: skip
    call = replace(small(), kernel=kernel, args=args, constants={"BLOCK": 32})
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, _ = bind(*args, BLOCK=32)
    _, types, constants, attributes = kernel._pack_args(backend, {}, bound, specialization, {})
    found = signature_of(call)
    assert found.types == types
    assert found.constants == {kernel.arg_names[path[0]]: value for path, value in constants.items()}
    assert set(found.divisible) == {kernel.arg_names[path[0]] for path, said in attributes.items() if said}


def test_what_triton_does_not_take_is_refused() -> None:
    call = replace(small(), args=("x", [1], 3), constants={"BLOCK": object()})
    with pytest.raises(MemsimError) as caught:
        signature_of(call)
    assert len(caught.value.faults) == 3
    assert "argument x_ptr of scale is a str" in caught.value.faults[0]
    assert "constant BLOCK of scale is <object" in caught.value.faults[2]


def test_what_does_not_compile_is_said_in_a_sentence_each() -> None:
    requests = [
        (small(), "sm_90"), (small(), "sm_91"), (small(probed.unfit), "sm_90"), (small(probed_fatal.fatal), "sm_90"),
        (small(n=65), "sm_90"),
    ]  # fmt: skip
    results = dict(compile_each(requests, jobs=1))
    assert isinstance(results[0], Compiled) and isinstance(results[4], Compiled)
    faults = [fault for n in (1, 2, 3) for fault in results[n].faults]  # type: ignore[union-attr]
    assert len(faults) == 3 and not any("\n" in fault for fault in faults)
    assert faults[0].startswith("there is no architecture 'sm_91' to compile for; sm_80")
    assert (
        "unfit does not compile for sm_90 with 4 warps, 2 stages" in faults[1] and "more than 64, please" in faults[1]
    )
    assert "the compiler ended with code 41: Assertion `false' failed." in faults[2]
    with pytest.raises(MemsimError) as caught:
        compile_calls([small(probed.unfit), small(), small(probed.unfit)], "sm_90")
    assert len(caught.value.faults) == 1


def test_results_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_call(small(), "sm_80")
    assert len(list(cache.iterdir())) == 1
    kept = pytest.MonkeyPatch()
    with kept.context() as patch:
        patch.setattr(_probe_pool, "Worker", None)
        assert compile_call(small(), "sm_80") == first
        assert compile_call(small(), "sm_80", sram_only=True).sram_bytes == first.sram_bytes
        for other in (small(n=65), small(block=128), small(dtype=torch.float16), replace(small(), num_warps=8)):
            with pytest.raises(TypeError):
                compile_call(other, "sm_80")
        with pytest.raises(TypeError):
            compile_call(small(), "sm_90")


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "cut", "other figure"])
def test_a_damaged_entry_is_made_again(damage: str, cache: Path) -> None:
    first = compile_call(small(), "sm_80", sram_only=True)
    (entry,) = cache.iterdir()
    whole = entry.read_text(encoding="utf-8")
    broken = {"cut": whole[:-9], "other figure": whole.replace('"block_warps": 4', '"block_warps": 5')}
    entry.write_text(broken.get(damage, damage), encoding="utf-8")
    assert compile_call(small(), "sm_80", sram_only=True) == first
    assert entry.read_text(encoding="utf-8") == whole
    assert [path.suffix for path in cache.iterdir()] == [".json"]


def test_writers_may_race() -> None:
    answer = {"sram_bytes": 1, "block_warps": 4, "opcodes": {str(n): n for n in range(2_000)}}
    read: list[object] = []

    def work() -> None:
        for _ in range(20):
            _probe_cache.write("key", answer)
            read.append(_probe_cache.read("key"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 80 and all(entry == answer for entry in read)


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "file"))
    assert compile_call(small(), "sm_80", sram_only=True).sram_bytes == 0


def test_where_results_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _probe_cache.cache_folder() == tmp_path
    monkeypatch.delenv("MEMSIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _probe_cache.cache_folder() == tmp_path / "xdg" / "memsim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _probe_cache.cache_folder() == Path.home() / ".cache" / "memsim"


@pytest.fixture
def fresh_sources() -> Iterator[None]:
    source_of.cache_clear()
    yield
    source_of.cache_clear()


def test_a_kernels_key_has_all_that_it_is_made_of(monkeypatch: pytest.MonkeyPatch, fresh_sources: None) -> None:
    """Its source, that of what it calls, the constants these read, Triton's version and environment."""

    def key() -> str:
        source_of.cache_clear()
        return _probe_cache.key_of({"architecture": "sm_90"}, probed.scale)

    keys = [key()]
    assert key() == keys[0]
    source = source_of(probed.scale.fn)
    assert "def scale(" in source and "def helper(" in source and "FACTOR\n3" in source
    real = _probe_cache.getsource
    monkeypatch.setattr(_probe_cache, "getsource", lambda f: real(f).replace("x * FACTOR", "x / FACTOR"))
    keys.append(key())
    monkeypatch.setattr(_probe_cache, "getsource", real)
    monkeypatch.setattr(probed, "FACTOR", triton.language.constexpr(4))
    keys.append(key())
    monkeypatch.setattr(probed, "FACTOR", triton.language.constexpr(3))
    monkeypatch.setattr(_probe_cache, "_tools", lambda: ["3.7.0"])
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/elsewhere/ptxas")
    keys.append(key())
    monkeypatch.undo()
    assert len(set(keys)) == len(keys) and key() == keys[0]


def test_the_provider_names_launches_as_the_simulator_does() -> None:
    problem = Attention(1, 1, None, 48, 48, 64)
    found = compiled("naive", problem, Tile(16, 16, 4, 1), "sm_90", False)
    assert list(found) == ["qk", "softmax", "pv"] and all(kernel.block_warps == 4 for kernel in found.values())
    for algorithm, wrong, words in (
        ("flash1", problem, "there is no kernel of flash1"),
        ("flash", replace(problem, head_dim=512), "head_dim is 512; the kernels take up to 256"),
    ):
        with pytest.raises(MemsimError, match=words):
            compiled(algorithm, wrong, Tile(16, 16, 4, 1), "sm_90", False)


def test_planning_takes_no_memory() -> None:
    huge = Attention(64, 64, None, 2**18, 2**18, 128)
    for algorithm, lse in itertools.product(("flash", "naive"), (False, True)):
        for call in plan_calls(algorithm, huge, Tile(64, 64, 4, 2), lse=lse):
            assert all(x.device.type == "meta" for x in call.args if isinstance(x, torch.Tensor))


def test_importing_the_probe_imports_neither_torch_nor_triton() -> None:
    import subprocess
    import sys

    program = (
        "import sys, memsim_kernels._command_probe, memsim_kernels.probe, memsim_kernels.resources_provider; "
        "print([name for name in ('torch', 'triton') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
    assert probe.ARCHITECTURES[0] == "sm_80"
