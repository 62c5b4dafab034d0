"""What stands above and below the figures of a run: its problem, its machine, its tile, and what a reader must know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._option_list import FLASH_ONLY
from memsim._report_format import Paragraph, kib, plural
from memsim.gpu import Gpu
from memsim.result import Result
from memsim.tile import Tile
from memsim.units import format_rate

# As fields of a tile and as options.
_FLASH_ONLY = {*FLASH_ONLY, *(name.replace("-", "_") for name in FLASH_ONLY)}

COUNTED = "Counted without a replay, so there are no times."


def heading(title: str, result: Result, gpu: Gpu) -> RenderableType:
    """The problem and the machine of a result, a line each where they fit."""
    facts = problem_facts(result.problem, lse=result.lse, inputs=result.inputs)
    no_l2 = gpu.l2 is not None and "l2" not in result.levels
    machine = machine_facts(gpu, warm=result.l2_state == "warm", counted=result.counted_only)
    line = machine_line(result.gpu, result.gpu_options, machine, without_l2=no_l2)
    return Group(titled(title, facts), Paragraph(line))


def titled(title: str, facts: Iterable[str]) -> Text:
    """The title in bold, then the facts."""
    said = ", ".join(facts)
    return Text(f"{title}{': ' if said else ''}", style="bold").append(said, style="not bold")


def problem_facts(problem: Mapping[str, Any], *, lse: bool, inputs: str) -> list[str]:
    """The problem's fields in words; those that it lacks are left out."""
    p = problem
    facts = [plural(p["batch"], "sequence")] if p.get("batch", 1) != 1 else []
    if "heads" in p:
        of_kv = f" ({p['kv_heads']} of K and V)" if p.get("kv_heads", p["heads"]) != p["heads"] else ""
        facts.append(plural(p["heads"], "head") + of_kv)
    elif "kv_heads" in p:
        facts.append(f"{plural(p['kv_heads'], 'head')} of K and V")
    rows = {name: f"{p[name]:,}" for name in ("seq_len_q", "seq_len_k") if name in p}
    if len(rows) == 2:
        facts.append(f"seq-len {' × '.join(dict.fromkeys(rows.values()))}")
    else:
        facts += [f"{name.replace('_', '-')} {text}" for name, text in rows.items()]
    facts += [f"head-dim {p['head_dim']}"] if "head_dim" in p else []
    facts += [p["dtype"]] if "dtype" in p else []
    facts += ["causal"] if p.get("causal") else []
    return facts + (["with LSE"] if lse else []) + (["inputs from the host"] if inputs == "host" else [])


def machine_facts(
    gpu: Gpu, varied: Collection[str] = (), *, warm: bool = False, counted: bool = False
) -> list[str]:  # fmt: skip
    """What matters most of a machine, but for the options and fields that are varied; of its L2 if it is replayed."""
    count, sram = plural(gpu.sm.count, "SM"), f"{kib(gpu.sm.sram.capacity_bytes)} of SRAM"
    has_count = not {"sms", "sm.count"} & {*varied}
    has_sram = "sram" not in varied and not any(name.startswith("sm.sram.") for name in varied)
    facts = [f"{count} with {sram} each"] if has_count and has_sram else []
    facts += [count] if has_count and not has_sram else []
    facts += [f"{sram} in each SM"] if has_sram and not has_count else []
    if gpu.l2 is not None and not counted and not {"l2", "l2.capacity_bytes"} & {*varied}:
        facts.append(f"{'a warm ' if warm else ''}L2 of {kib(gpu.l2.capacity_bytes)}")
    if not {"hbm-bandwidth", "hbm.bandwidth_bytes_per_s"} & {*varied}:
        facts.append(f"HBM {format_rate(gpu.hbm.bandwidth_bytes_per_s)}")
    return facts


def machine_line(name: str, changed: Mapping[str, str], facts: Collection[str], *, without_l2: bool) -> str:
    """The machine as it was named, what was changed of it, and what is not simulated of it, before its facts."""
    options = ", ".join(f"{option} {text}" for option, text in changed.items())
    l2 = " without its L2 (counted only)" if without_l2 else ""
    return f"{name}{f' ({options})' if options else ''}{l2}{': ' if facts else ''}{', '.join(facts)}"


def tile_origin(algorithm: str | None, asked: Collection[str], varied: Collection[str] = ()) -> str:
    """Where a tile comes from. `asked` and `varied` name fields that were given; `algorithm` is None if it varies."""
    if algorithm == "naive":
        asked, varied = ([name for name in names if name not in _FLASH_ONLY] for names in (asked, varied))
    shape, varied_shape = ({*names} - _FLASH_ONLY for names in (asked, varied))
    if len(shape) == 4 or len(varied_shape) == 4:
        return "as varied" if varied else "as asked for"
    names = [f"{_options(asked)} as asked for"] if asked else []
    names += [f"{_options(varied)} as varied"] if varied else []
    if len(shape | varied_shape) == 4:
        return ", ".join(names)
    chosen = "chosen as its paper does" if algorithm == "flash1" else "the first of the GPU's tiles that fits"
    if names:
        chosen = "the rest " + ("" if algorithm == "flash1" else "from ") + chosen
    if algorithm is None:
        chosen += ", for flash1 as its paper does"
    return ", ".join([*names, chosen])


def tile_lines(results: Iterable[Result], asked: Collection[str]) -> list[RenderableType]:
    """The tile of each result, in one line if it is the same."""
    tiles = {result.algorithm: (str(Tile(**result.tile)), tile_origin(result.algorithm, asked)) for result in results}
    if len(set(tiles.values())) == 1:
        tile, origin = next(iter(tiles.values()))
        return [Paragraph(f"tile {tile} ({origin})")]
    return [Paragraph(f"tile of {name}: {tile} ({origin})") for name, (tile, origin) in tiles.items()]


def spaced(texts: Iterable[str]) -> list[RenderableType]:
    """Paragraphs, an empty line before each."""
    return [line for text in texts for line in ("", Paragraph(text))]


def notes(*results: Result) -> list[RenderableType]:
    """What a reader must know of these results."""
    said = [COUNTED] if results[0].counted_only else []
    return spaced(dict.fromkeys([*said, *(note for result in results for note in result.notes)]))


def _options(names: Collection[str]) -> str:
    return ", ".join(sorted(name.replace("_", "-") for name in names))
