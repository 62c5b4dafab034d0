"""What the compiler makes of a kernel for a GPU that need not be there: SRAM, registers, stack, instructions.

`compile_call` takes a `Call`, which `flash_calls` and `naive_calls` also make of tensors without storage
(`torch.empty(..., device="meta")`), so that nothing is allocated and no GPU is asked. Compilation runs in processes of
its own and its results are kept on disk (`memsim_kernels._probe_cache`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memsim._compiled import CompiledKernel
from memsim.errors import MemsimError
from memsim.stream import Stream
from memsim_kernels import _probe_cache
from memsim_kernels._probe_pool import answers
from memsim_kernels._sass import Loop, by_class
from memsim_kernels._signature import DIVISOR, signature_of
from memsim_kernels._stream import unpacked
from memsim_kernels.calls import Call

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""Those that Triton 3.6 and 3.9 both compile for."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel. `sram_bytes` of a block; `block_warps`, its warps, those that the compiler added included.

    `registers` and `stack_bytes` (spills and arrays, in local memory) are per thread. `opcodes` counts the instructions
    of the whole kernel by name, `loops` those of each loop, `main_loop` is one of them by the rule of
    `memsim_kernels._sass`; `stream` is what the replay of an SM executes, on the architectures that it is known for
    (`memsim_kernels._stream`). All of these are None or empty where only SRAM was asked for.
    """

    kernel: str
    architecture: str
    sram_bytes: int
    block_warps: int
    registers: int | None = None
    stack_bytes: int | None = None
    opcodes: dict[str, int] | None = None
    loops: tuple[Loop, ...] = ()
    main_loop: Loop | None = None
    stream: Stream | None = None

    @property
    def resources(self) -> CompiledKernel:
        """What the simulator needs of it."""
        if self.registers is None or self.stack_bytes is None:
            raise MemsimError(f"{self.kernel} was compiled for its SRAM only; compile it without sram_only.")
        return CompiledKernel(self.sram_bytes, self.registers, self.stack_bytes, self.block_warps, self.stream)

    @property
    def math_loops(self) -> tuple[Loop, ...]:
        """The loops with matrix products, float32 or exp instructions in them, not those that only wait or copy."""
        return tuple(loop for loop in self.loops if loop.share(("tensor", "fp32", "exp")))

    @property
    def main_opcodes(self) -> dict[str, int]:
        """Instructions of the main loop by name, once through, of one warp; of the whole kernel if it has none."""
        return dict(self.main_loop.opcodes if self.main_loop else self.opcodes or {})

    @property
    def main_mix(self) -> dict[str, int]:
        """The same by class (`memsim_kernels._sass.CLASSES`)."""
        return by_class(self.main_opcodes)


def compile_call(call: Call, architecture: str, *, sram_only: bool = False) -> Compiled:
    """What the compiler makes of a launch for an architecture ("sm_90").

    `sram_only` stops when shared memory is allocated, some ten times sooner. Raises `MemsimError` for an unknown
    architecture and for a kernel that does not compile.
    """
    return compile_calls([call], architecture, jobs=1, sram_only=sram_only)[0]


def compile_calls(
    calls: Sequence[Call],
    architecture: str,
    *,
    jobs: int = 2,
    sram_only: bool = False,
    progress: Progress | None = None,
) -> list[Compiled]:
    """The same of many launches, by so many processes at once. Raises all that is wrong as one `MemsimError`."""
    found: list[Compiled | MemsimError | None] = [None] * len(calls)
    requests = [(call, architecture) for call in calls]
    for number, result in compile_each(requests, jobs=jobs, sram_only=sram_only, progress=progress):
        found[number] = result
    faults = [fault for result in found if isinstance(result, MemsimError) for fault in result.faults]
    if faults:
        raise MemsimError(dict.fromkeys(faults))
    return [result for result in found if isinstance(result, Compiled)]


def compile_each(
    requests: Sequence[tuple[Call, str]],
    *,
    jobs: int = 2,
    sram_only: bool = False,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Compiled | MemsimError]]:
    """(number of the request, what came of it) for launches and architectures, as they come.

    `progress` is called with ("kernels", done, of how many).
    """
    waiting: dict[str, list[int]] = {}
    asked: dict[str, dict[str, Any]] = {}
    done = 0

    def step(number: int, result: Compiled | MemsimError) -> tuple[int, Compiled | MemsimError]:
        nonlocal done
        done += 1
        if progress is not None:
            progress("kernels", done, len(requests))
        return number, result

    for number, (call, architecture) in enumerate(requests):
        try:
            request = _request(call, architecture, sram_only)
        except MemsimError as error:
            yield step(number, error)
            continue
        key, kept = _kept(request, call)
        if kept is not None:
            yield step(number, kept)
            continue
        asked.setdefault(key, request)
        waiting.setdefault(key, []).append(number)
    keys = list(asked)
    for position, answer in answers([asked[key] for key in keys], jobs):
        key = keys[position]
        if "error" not in answer:
            _probe_cache.write(key, answer)
        for number in waiting[key]:
            call, architecture = requests[number]
            yield step(number, _failure(call, architecture, answer) or _compiled(call, architecture, answer))


def _request(call: Call, architecture: str, sram_only: bool) -> dict[str, Any]:
    if architecture not in ARCHITECTURES:
        raise MemsimError(f"there is no architecture {architecture!r} to compile for; {', '.join(ARCHITECTURES)} are.")
    signature = signature_of(call)
    function = call.kernel.fn
    return {
        "module": function.__module__,
        "file": inspect.getfile(function),
        "kernel": function.__name__,
        "types": signature.types,
        "constants": signature.constants,
        "divisible": signature.divisible,
        "divisor": DIVISOR,
        "num_warps": call.num_warps,
        "num_stages": call.num_stages,
        "architecture": architecture,
        "sram_only": sram_only,
    }


def _kept(request: dict[str, Any], call: Call) -> tuple[str, Compiled | None]:
    """(the request's key, what is kept under it). A kernel that was compiled to the end answers for its SRAM too."""
    key = _probe_cache.key_of(request, call.kernel)
    keys = [key]
    if request["sram_only"]:
        keys.append(_probe_cache.key_of(request | {"sram_only": False}, call.kernel))
    for name in keys:
        answer = _probe_cache.read(name)
        if answer is not None:
            return key, _compiled(call, request["architecture"], answer)
    return key, None


def _compiled(call: Call, architecture: str, answer: dict[str, Any]) -> Compiled:
    loops = tuple(Loop(**loop) for loop in answer.get("loops", ()))
    main = answer.get("main_loop")
    return Compiled(
        kernel=call.name,
        architecture=architecture,
        sram_bytes=answer["sram_bytes"],
        block_warps=answer["block_warps"],
        registers=answer.get("registers"),
        stack_bytes=answer.get("stack_bytes"),
        opcodes=answer.get("opcodes"),
        loops=loops,
        main_loop=None if main is None else loops[main],
        stream=unpacked(answer.get("stream")),
    )


def _failure(call: Call, architecture: str, answer: dict[str, Any]) -> MemsimError | None:
    if "error" not in answer:
        return None
    reason = " ".join(str(answer["error"]).split())
    reason = reason if len(reason) <= 300 else f"{reason[:300]}…"
    settings = json.dumps(dict(call.constants), default=str)
    return MemsimError(
        f"{call.name} does not compile for {architecture} with {call.num_warps} warps, {call.num_stages} stages and "
        f"{settings}: {reason}"
    )
