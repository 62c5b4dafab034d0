"""What the compiler made of kernels, kept on disk between runs: a JSON file a kernel, by all that it depends on.

The folder is `MEMSIM_CACHE`, else `memsim` in `XDG_CACHE_HOME`, else in ~/.cache. A file is written beside its place
and moved there whole, so writers may race; one that is damaged counts as absent. Where the
folder cannot be written nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import types
from collections.abc import Mapping
from functools import cache
from inspect import getsource
from pathlib import Path
from typing import Any

from memsim import _stream_bytes, stream
from memsim._cache import cache_folder
from memsim_kernels import _probe_worker, _sass, _stream


def key_of(request: Mapping[str, Any], kernel: Any) -> str:
    """A name for all that a compilation depends on: the request, the kernel's source with all it calls, Triton, the
    settings of its environment, and how the probe reads the result."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    facts = {
        **{name: value for name, value in request.items() if name not in ("file", "module")},
        "source": source_of(kernel.fn),
        "environment": {
            **get_cache_invalidating_env_vars(),
            **{name: value for name, value in os.environ.items() if "PTXAS" in name or name.endswith("_FP_FUSION")},
        },
        "tools": _tools(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def _tools() -> list[str]:
    from triton import __version__

    return [__version__, *map(getsource, (_sass, _stream, _probe_worker, _stream_bytes, stream))]


@cache
def source_of(kernel: types.FunctionType) -> str:
    """The source of a kernel function, of every one that it calls, and the value of every global that they read."""
    found: dict[str, str] = {}
    waiting = [kernel]
    while waiting:
        function = waiting.pop()
        name = f"{function.__module__}.{function.__qualname__}"
        if name in found:
            continue
        found[name] = getsource(function)
        for used, value in sorted(_globals_of(function).items()):
            if isinstance(getattr(value, "fn", None), types.FunctionType):
                waiting.append(value.fn)
            elif hasattr(value, "value"):
                found[f"{name}:{used}"] = repr(value.value)
            elif isinstance(value, int | float | str | tuple):
                found[f"{name}:{used}"] = repr(value)
    return "\n".join(f"{name}\n{text}" for name, text in sorted(found.items()))


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function names, and what it names of modules other than triton's own."""
    names = function.__code__.co_names
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, module in list(found.items()):
        if isinstance(module, types.ModuleType) and not module.__name__.startswith("triton"):
            found |= {f"{name}.{part}": getattr(module, part) for part in names if hasattr(module, part)}
    return found


def read(key: str) -> dict[str, Any] | None:
    """The entry, or None."""
    with contextlib.suppress(OSError, ValueError):
        entry = json.loads(_path(key).read_text(encoding="utf-8"))
        if isinstance(entry, dict) and entry.get("digest") == _digest(key, entry.get("answer")):
            return dict(entry["answer"])
    return None


def write(key: str, answer: Mapping[str, Any]) -> None:
    """Keep an answer, if the folder takes it."""
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{key[:16]}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as lines:
                json.dump({"digest": _digest(key, answer), "answer": answer}, lines)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise


def _digest(key: str, answer: Any) -> str:
    return hashlib.sha256(f"{key}{json.dumps(answer, sort_keys=True)}".encode()).hexdigest()


def _path(key: str) -> Path:
    return cache_folder() / "probe" / f"{key}.json"
