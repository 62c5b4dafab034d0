"""The process that compiles for the probe: requests on standard input, answers on standard output, a JSON line each.

Of its own, because a process that interprets kernels cannot compile them, and because a compiler that trips over its
own assertions takes its process with it. It needs triton, not torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from memsim_kernels._sass import find_loops, main_loop, opcodes_of, read_sass, read_usage
from memsim_kernels._stream import ARCHITECTURES_OF_STREAMS, packed, stream_of

WARP_THREADS = 32


class _Enough(Exception):
    """Shared memory is allocated, and no more is wanted. Carries the passes up to there."""


def main() -> None:
    """Answer requests until standard input ends."""
    # Compilers print; what they print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = compile_request(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """What the compiler makes of one request of `memsim_kernels.probe`, as the fields of its `Compiled`."""
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    kernel = getattr(_module(request["module"], request["file"]), request["kernel"])
    names = list(request["types"])
    divisible = {(names.index(name),): [["tt.divisibility", request["divisor"]]] for name in request["divisible"]}
    source = ASTSource(kernel, request["types"], request["constants"], divisible)
    target = GPUTarget("cuda", int(request["architecture"].removeprefix("sm_")), WARP_THREADS)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": request["num_warps"], "num_stages": request["num_stages"]})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = {"hash": "", "target": target, **options.__dict__}
    names_of_stages = list(stages)
    before = names_of_stages[: names_of_stages.index("llir")]
    for name in before:
        module = stages[name](module, metadata)
    if request["sram_only"]:
        _allocate(stages["llir"], module, metadata)
        warps = module.get_int_attr("ttg.total-num-warps") or request["num_warps"]
        return {"sram_bytes": module.get_int_attr("ttg.shared"), "block_warps": warps}
    for name in names_of_stages[len(before) :]:
        module = stages[name](module, metadata)
    found = {"sram_bytes": metadata["shared"], "block_warps": metadata["num_warps"]}
    return found | _read_binary(module, triton.knobs.nvidia.cuobjdump.path, request)


def _allocate(stage: Any, module: Any, metadata: dict[str, Any]) -> None:
    """Run the passes up to the allocation of shared memory; tensor memory comes next (Triton 3.6 and 3.9).

    What follows, the way to LLVM and PTX, takes ten times as long and changes nothing about it.
    """
    from triton._C.libtriton import nvidia

    def stop(passes: Any, *_: Any) -> None:
        raise _Enough(passes)

    with mock.patch.object(nvidia.passes.ttnvgpuir, "add_allocate_tensor_memory", stop):
        try:
            stage(module, metadata)
        except _Enough as enough:
            enough.args[0].run(module, "allocate_shared_memory")


def _read_binary(binary: bytes, cuobjdump: str, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        usage, sass = (
            subprocess.run([cuobjdump, what, path], check=True, capture_output=True, text=True).stdout
            for what in ("-res-usage", "-sass")
        )
    registers, stack = read_usage(usage)
    instructions = read_sass(sass)
    loops = find_loops(instructions)
    main = main_loop(loops)
    known = request["architecture"] in ARCHITECTURES_OF_STREAMS
    return {
        "registers": registers,
        "stack_bytes": stack,
        "opcodes": opcodes_of(instructions),
        "loops": [{"address": loop.address, "opcodes": loop.opcodes} for loop in loops],
        "main_loop": None if main is None else loops.index(main),
        "stream": packed(stream_of(instructions, loops, request["num_stages"]) if known else None),
    }


def _module(name: str, file: str) -> ModuleType:
    """The module that defines the kernel: by its name where that is the same file, else by its file."""
    try:
        module = importlib.import_module(name)
        if getattr(module, "__file__", None) == file:
            return module
    except ImportError:
        pass
    spec = importlib.util.spec_from_file_location(f"probed.{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Triton reads the source of a kernel through its module's name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
