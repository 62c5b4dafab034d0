"""The options of a request: what each is called, takes and means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memsim._compiled import SOURCES
from memsim.api import DEFAULT_GPU, INPUTS, L2_STATES
from memsim.attention import DTYPE_BYTES
from memsim.gpu import SHORT_OPTIONS
from memsim.grid import ORDERS, ROWS_FAST
from memsim.tile import LOAD_PATHS


@dataclass(frozen=True)
class Option:
    """One option without its leading dashes. A flag takes no value; `negative` is the flag that says false.

    `value` is what help calls the text of one that takes one, `default` what holds without it, `least` the least
    number that it may be.
    """

    name: str
    group: str
    help: str
    value: str = "TEXT"
    default: str | None = None
    least: int = 0
    flag: bool = False
    negative: str | None = None
    repeatable: bool = False


def _table(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


PROBLEM = _table(
    Option("batch", "Problem", "Sequences.", "N", "1", 1),
    Option("heads", "Problem", "Heads of Q.", "N", "16", 1),
    Option("kv-heads", "Problem", "Heads of K and V.", "N", "as many as heads", 1),
    Option("seq-len", "Problem", "Rows of Q and of K and V; counts may be written 2Ki.", "N", "2048"),
    Option("seq-len-q", "Problem", "Rows of Q, where they differ.", "N", "seq-len"),
    Option("seq-len-k", "Problem", "Rows of K and V, where they differ.", "N", "seq-len"),
    Option("head-dim", "Problem", "Width of a row of Q, K and V.", "N", "128", 1),
    Option("dtype", "Problem", f"One of {', '.join(DTYPE_BYTES)}.", "DTYPE", "float16"),
    Option("causal", "Problem", "A row sees the keys up to its own position only.", flag=True),
    Option("scale", "Problem", "Factor on the scores.", "FACTOR", "1/sqrt(head-dim)"),
)
TILE = _table(
    Option("block-m", "Tile", "Rows of Q of one block.", "N", least=1),
    Option("block-n", "Tile", "Rows of K and V of one step.", "N", least=1),
    Option("num-warps", "Tile", "Warps of one block.", "N", least=1),
    Option("num-stages", "Tile", "Stages of the K/V pipeline: that many buffers, or one fewer.", "N", least=1),
    Option(
        "load-path", "Tile", "How flash asks for tiles: by pointers, by tensor descriptors (TMA), or by descriptors "
        "with loads and math in different warps; naive takes pointers.", "|".join(LOAD_PATHS), LOAD_PATHS[0],
    ),
    Option(
        "grid-order", "Tile", "In which order flash's blocks go over rows and heads; naive takes the first.",
        "|".join(ORDERS), ROWS_FAST,
    ),
)  # fmt: skip
MACHINE = _table(
    Option(
        "gpu", "GPU", "A shipped GPU (memsim gpus lists them), or the path of a TOML file.", "NAME_OR_FILE", DEFAULT_GPU
    ),
    *(
        Option(name, "GPU", f"{short.help[0].upper()}{short.help[1:]}.", short.value)
        for name, short in SHORT_OPTIONS.items()
    ),
)
RUN = _table(
    Option("lse", "Run", "Also store the log-sum-exp of every row (not by default).", flag=True, negative="no-lse"),
    Option(
        "inputs", "Run", 'Where Q, K and V are at first: "hbm", or "host" to have them cross the host link.',
        "|".join(INPUTS), INPUTS[0],
    ),
    Option(
        "l2-state", "Run", "What the first launch finds in the L2: nothing, or what the same run left there.",
        "|".join(L2_STATES), L2_STATES[0],
    ),
    Option(
        "full", "Run", "Replay every block; else blocks that go like those before them are left out and accounted for.",
        flag=True,
    ),
    Option(
        "resources", "Run", "Where SRAM, registers and spills of the kernels come from: rules and a shipped table, or "
        "Triton, which compiles them for this problem (extra kernels).", "|".join(SOURCES), SOURCES[0],
    ),
)  # fmt: skip
FLASH_ONLY = ("load-path", "grid-order")
"""Those of the tile that are flash's: naive has one of each."""
AXES: Mapping[str, Option] = PROBLEM | TILE | MACHINE | RUN
"""The options that a request is made of: what a sweep may vary by a short name."""

GROUPS: Mapping[str, str] = {
    "Tile": "What is not given comes from the first of the GPU's tiles that fits.",
    "GPU": "What is not given is as in the GPU's file.",
}
"""What help says above some groups of options."""
