"""From a TOML table to a `Gpu`, and every fault of the table to a sentence."""

from __future__ import annotations

import functools
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from memsim._gpu_models import Gpu, OneOf, shown
from memsim.errors import MemsimError
from memsim.units import quoted

Table = dict[str, Any]

ALIASES = {"h100": "h100-sxm", "h200": "h200-sxm"}
_SHIPPED = Path(__file__).parent / "gpus"
_LARGEST_FILE_BYTES = 2**20
_DEEPEST_TABLE = 3  # sm.pipes.tensor_flop_per_clock
_MOST_DOTS = 20
_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|#.*""")


@dataclass(frozen=True)
class Key:
    """One dotted key that a machine description may have; `least` is the least number it takes."""

    description: str
    right: str
    required: bool
    children: tuple[str, ...] = ()
    least: float = 0.0


@functools.cache
def keys() -> Mapping[str, Key]:
    """Every dotted key of a `Gpu`, tables included; a tile's are "tiles.N.block_m" and so on."""
    return dict(_walk(Gpu, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Key]]:
    for name, field in model.model_fields.items():
        key = prefix + name
        kind = _without_none(field.annotation)
        description, required = field.description or "", field.is_required()
        if get_origin(kind) is tuple:
            tile = get_args(kind)[0]
            right = f"tables [[{key}]] with {', '.join(tile.model_fields)}"
            yield key, Key(description, right, required, tuple(tile.model_fields))
            yield from _walk(tile, f"{key}.N.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            children = tuple(kind.model_fields)
            needed = ", ".join(child for child in children if kind.model_fields[child].is_required())
            yield key, Key(description, f"the table [{key}] with {needed}", required, children)
            yield from _walk(kind, f"{key}.")
        elif get_origin(kind) is Mapping:
            dtype, rate = get_args(kind)
            choices = _rule(dtype).choices
            yield key, Key(description, f"the table [{key}] with any of {', '.join(choices)}", required, choices)
            for choice in choices:
                yield f"{key}.{choice}", Key(f"for {choice}", _rule(rate).right, False, least=_rule(rate).low)
        else:
            rule = field.metadata[0] if field.metadata else _rule(kind)
            yield key, Key(description, _right(rule), required, least=getattr(rule, "low", 0.0))


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _rule(annotated: Any) -> Any:
    return annotated.__metadata__[0]


def _right(rule: Any) -> str:
    return " or ".join(quoted(choice) for choice in rule.choices) if isinstance(rule, OneOf) else str(rule.right)


def suggestion(key: str) -> str:
    """How to go on after naming the unknown `key`: the nearest key, or the keys of its table."""
    table, _, name = key.rpartition(".")
    pattern = pattern_of(table)
    siblings = keys()[pattern].children if pattern in keys() else tuple(k for k in keys() if "." not in k)
    near = [f"{table}.{near}".lstrip(".") for near in get_close_matches(name[:100], siblings, 1, 0.6)]
    near = near or get_close_matches(key[:100], list(keys()), 1, 0.7)
    if near:
        return f"did you mean {near[0]}?"
    return f"the keys of {f'[{table}]' if pattern in keys() and table else 'a GPU'} are {', '.join(siblings)}."


def pattern_of(key: str) -> str:
    """`key` as `keys()` has it: "tiles.0.block_m" is "tiles.N.block_m", and "tiles.0" is "tiles"."""
    return re.sub(r"^tiles\.[0-9]+(?=\.)", "tiles.N", re.sub(r"^tiles\.[0-9]+$", "tiles", key))


def field_of(key: str) -> Key | None:
    """What `key` is if it names one place in a machine: "tiles" and "tiles.0.block_m" do, "tiles.0" does not."""
    return None if re.search(r"\.([0-9]+$|N\.)", key) else keys().get(pattern_of(key))


def gpu_from_table(table: Mapping[str, Any], where: str = "", sources_required: bool = False) -> Gpu:
    """The machine that a table in the layout of the GPU files describes.

    `where` ("In my.toml, ") begins every sentence. Raises `MemsimError` with one sentence per fault.
    """
    numbers, sources, faults = _split(table)
    gpu = None
    try:
        gpu = Gpu.model_validate(numbers)
    except ValidationError as error:
        faults = [*_sentences(error), *faults]
    if sources_required:
        faults += [
            f"{key} has no source: give it one in [{_source_table(key)}]." for key in _unsourced(numbers, sources)
        ]
    if gpu is None or faults:
        raise MemsimError(where + fault for fault in faults)
    return with_sources(gpu, sources)


def with_sources(gpu: Gpu, sources: Mapping[str, str]) -> Gpu:
    """`gpu` saying of its numbers that they come from `sources`."""
    gpu._sources = dict(sources)
    return gpu


def table_of(gpu: Gpu) -> Table:
    """The numbers of `gpu` as nested tables of their own, without sources."""
    table = gpu.model_dump(exclude_none=True)
    table["tiles"] = list(table["tiles"])
    return table


def _split(table: Mapping[str, Any], prefix: str = "", depth: int = 0) -> tuple[Table, dict[str, str], list[str]]:
    """The numbers, the sources by dotted key, and what is wrong with the sources."""
    numbers: Table = {}
    sources: dict[str, str] = {}
    faults: list[str] = []
    for name, value in table.items():
        if name == "source":
            continue
        if isinstance(value, Mapping) and depth < _DEEPEST_TABLE:
            numbers[name], inner_sources, inner_faults = _split(value, f"{prefix}{name}.", depth + 1)
            sources.update(inner_sources)
            faults += inner_faults
        else:
            numbers[name] = value
    given = table.get("source", {})
    if not isinstance(given, Mapping):
        faults.append(f"{named(prefix + 'source')} is {shown(given)}, but must be a table with a text for each key.")
        return numbers, sources, faults
    for name, text in given.items():
        key = f"{prefix}{name}"
        known = keys().get(key)
        is_value = known is not None and (not known.children or key == "tiles")
        given_too = name in numbers and (is_value or not isinstance(numbers[name], Mapping))
        # A required value that the table lacks is reported as missing, which is enough.
        if not given_too and not (is_value and known and known.required):
            faults.append(f"{named(prefix + 'source.' + name)} is the source of nothing: {_nearest(name, numbers)}.")
        elif not isinstance(text, str) or not text.strip():
            faults.append(f"{named(prefix + 'source.' + name)} is {shown(text)}, but must be a text naming the source.")
        else:
            sources[key] = text
    return numbers, sources, faults


def _nearest(name: str, numbers: Table) -> str:
    values = [key for key, value in numbers.items() if not isinstance(value, Mapping)]
    near = get_close_matches(name[:100], values, 1, 0.6)
    return f"name a key that the table beside it gives{f', such as {near[0]}' if near else ''}"


def _unsourced(numbers: Mapping[str, Any], sources: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _unsourced(value, sources, f"{prefix}{name}.")
        elif not isinstance(value, str) and f"{prefix}{name}" not in sources:
            yield f"{prefix}{name}"


def _source_table(key: str) -> str:
    return ".".join((*key.split(".")[:-1], "source"))


def _sentences(error: ValidationError) -> list[str]:
    """One sentence for each thing that is wrong."""
    details = error.errors(include_url=False)
    missing = {_dotted(detail) for detail in details if detail["type"] == "missing"}
    unknown = {_dotted(detail): suggestion(_dotted(detail)) for detail in details if _is_unknown_key(detail)}
    misspelt = {text.removeprefix("did you mean ").removesuffix("?") for text in unknown.values()} & missing
    sentences: list[str] = []
    for detail in details:
        key = _dotted(detail)
        if detail["type"] == "sentences":
            sentences += detail["ctx"]["sentences"]
        elif key in unknown and _is_unknown_key(detail):
            sentences.append(f"{named(key)} is not a key of a GPU: {unknown[key]}")
        elif key not in misspelt:
            sentences.append(f"{named(key)} {_predicate(detail, keys().get(pattern_of(key)))}.")
    return sentences


def _predicate(detail: ErrorDetails, known: Key | None) -> str:
    right = known.right if known else "something else"
    if detail["type"] == "fault":
        return str(detail["ctx"]["predicate"])
    if detail["type"] == "missing":
        return f"is missing: give {right}"
    return f"is {shown(detail['input'])}, but must be {right}"


def _is_unknown_key(detail: ErrorDetails) -> bool:
    return detail["type"] == "extra_forbidden" or detail["loc"][-1:] == ("[key]",)


def _dotted(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"] if part != "[key]")


def named(key: str) -> str:
    return key if 0 < len(key) <= 80 and key.isprintable() and not key.isspace() else quoted(key)


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """The names of the machines that come with memsim."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def load_gpu(name_or_path: str | Path) -> Gpu:
    """The machine of that name, or the one that the TOML file at that path describes.

    Raises `MemsimError`: no such machine or file, a file that cannot be read, and one sentence for each fault in it.
    """
    name = ALIASES.get(str(name_or_path), str(name_or_path))
    if name in gpu_names():
        return _load_shipped(name)
    return gpu_from_table(_parse(_read(name), name), f"In {named(name)}, ")


def machine_text(name_or_path: str) -> str:
    """The text of the file of a machine that `load_gpu` takes."""
    name = ALIASES.get(name_or_path, name_or_path)
    return (_SHIPPED / f"{name}.toml").read_text(encoding="utf-8") if name in gpu_names() else _read(name)


@functools.cache
def _load_shipped(name: str) -> Gpu:
    table = tomllib.loads((_SHIPPED / f"{name}.toml").read_text(encoding="utf-8"))
    return gpu_from_table(table, f"In the {name} that comes with memsim, ", sources_required=True)


def _read(path: str) -> str:
    shown_path = quoted(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE_BYTES + 1)
    except IsADirectoryError:
        raise MemsimError(f"{shown_path} is a directory: give the path of a TOML file in it.") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        names = ", ".join(gpu_names())
        raise MemsimError(
            f"There is no GPU and no file called {shown_path}: give one of {names}, or the path of a TOML file."
        ) from None
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise MemsimError(f"{shown_path} cannot be read ({reason}): give the path of a readable TOML file.") from None
    if len(data) > _LARGEST_FILE_BYTES:
        raise MemsimError(f"{shown_path} is larger than {_LARGEST_FILE_BYTES} bytes: give the TOML file of a GPU.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MemsimError(f"{shown_path} is not UTF-8 text at byte {error.start}: save it as UTF-8.") from None


def _parse(text: str, path: str) -> Table:
    # tomllib takes memory in the square of a dotted key's length: one line of 100,000 dots would take tens of GB.
    if any(_QUOTED_OR_COMMENT.sub("", line).count(".") > _MOST_DOTS for line in text.splitlines()):
        raise MemsimError(f"{quoted(path)} has a line with more than {_MOST_DOTS} dots: give the TOML file of a GPU.")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise MemsimError(f"{quoted(path)} nests too deeply: give the TOML file of a GPU.") from None
    except ValueError as error:  # a TOMLDecodeError, or an integer of more digits than Python reads
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise MemsimError(f"{quoted(path)} is not TOML ({reason}): correct it there.") from None


_TEMPLATE_HEAD = """\
# A GPU for memsim. Numbers are in base units, with the unit in the key: bytes, bytes per second, seconds, hertz.
# These are the {name}'s; put your machine's in their place. A table [X.source] says where the numbers of [X] come
# from, key by key; in a file of your own a source may be left out.
# Leave out [l2] where there is no L2, [sm.registers] (with sm.warp_unit) where accumulators take SRAM, and
# architecture where there is no compiler to follow.
"""


def template() -> str:
    """A GPU file to start from: the H200's, with a comment above each key. It loads as it is."""
    name = "h200-sxm"
    own = {f'name = "{name}"': 'name = "my-gpu"', 'validation = "measured"': 'validation = "datasheet"'}
    lines: list[str] = []
    table = ""
    for line in (_SHIPPED / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[+([a-z0-9_.]+)\]+", line):
            table = f"{header[1]}."
        elif pair := re.match(r"([a-z0-9_]+) = ", line):
            known = keys().get(table.replace("tiles.", "tiles.N.") + pair[1])
            if known and known.description:
                lines.append(f"# {known.description}")
        if not line.startswith("#"):
            lines.append(own.get(line, line))
    return "\n".join((_TEMPLATE_HEAD.format(name=name), *lines)) + "\n"
