"""Reference pages as Markdown, made from memsim's own tables."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memsim_docs import fields
from memsim_docs.runs import ROOT, PageFault, run


def markdown(name: str) -> str:
    """The Markdown of one `<!-- reference: name -->`."""
    if name not in _MADE:
        raise PageFault(f"there is no reference {name!r}; there is {', '.join(_MADE)}.")
    return _MADE[name]()


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _as_json(text: str) -> str:
    """A docstring in the words of JSON."""
    return re.sub(r"\bNone\b", "null", text)


def _commands() -> str:
    from memsim._option_list import GROUPS
    from memsim.cli import _SPECS

    parts = []
    for spec in _SPECS.values():
        usage = " ".join(word for word in ("memsim", spec.name, spec.usage, "[OPTIONS]") if word)
        parts.append(f"## memsim {spec.name}\n\n{spec.help}\n\n```\n{usage}\n```\n")
        if spec.positional is not None:
            default = f" Without it: {_code(spec.positional.default)}." if spec.positional.default else ""
            parts.append(f"`{spec.positional.name.upper()}`: {spec.positional.help}{default}\n")
        for group in dict.fromkeys(option.group for option in spec.options):
            about = f" {GROUPS[group]}" if group in GROUPS else ""
            parts.append(f"**{group}.**{about}\n")
            rows = (
                (
                    _code(f"--{option.name}" + ("" if option.flag else f" {option.value}"))
                    + (f" {_code('--' + option.negative)}" if option.negative else ""),
                    option.help,
                    _code(option.default or ""),
                )
                for option in spec.options
                if option.group == group
            )
            parts.append(_table(("option", "meaning", "default"), rows))
    return "\n".join(parts)


def _example(command: str) -> dict[str, Any]:
    """The JSON of a command; of a comparison without its two results, which are described by themselves."""
    with contextlib.chdir(ROOT):
        output = run(f"{command} --json")
    if output.code:
        raise PageFault(f"`{command} --json` ended with exit code {output.code}: {output.err}")
    data: dict[str, Any] = json.loads(output.out)
    return data | {"naive": None, "flash": None} if data["schema"] == "memsim.compare/1" else data


def _json() -> str:
    parts = []
    for schema, (meanings_of, commands) in fields.SCHEMAS.items():
        examples = [_example(command) for command in commands]
        meanings = meanings_of()
        fields.check(schema, meanings, *examples)
        parts.append(f"## {schema}\n\nFor example of `{commands[0]} --json`.\n")
        parts.append(_table(("key", "meaning"), ((_code(key), _as_json(text)) for key, text in meanings.items())))
    for schema, meanings_of in fields.WITHOUT_EXAMPLE.items():
        parts.append(f"## {schema}\n")
        parts.append(_table(("key", "meaning"), ((_code(key), text) for key, text in meanings_of().items())))
    return "\n".join(parts)


def _keys() -> str:
    from memsim.columns import KEYS

    kinds = {"count": "whole number", "flag": "0 or 1"}
    rows = (
        (_code(c.name), kinds.get(c.kind, c.kind), "needed" if c.needed else "may be absent") for c in KEYS.values()
    )
    return _table(("column", "holds", ""), rows)


def _measured() -> str:
    from memsim.columns import markdown_table

    return markdown_table()


def _claims() -> str:
    from memsim.columns import CLAIMS

    return _table(("claim", "meaning"), ((_code(name), text) for name, text in CLAIMS.items()))


def _of_class(meanings: Mapping[str, str]) -> str:
    return _table(("column", "meaning"), ((_code(key), text) for key, text in meanings.items()))


def _sweep_columns() -> str:
    from memsim._sweep_table import COLUMNS, SweepRow

    meanings = fields.attributes(SweepRow)
    return _of_class({name: meanings[name] for name in COLUMNS})


def _tune_columns() -> str:
    from dataclasses import fields as fields_of

    from memsim import Candidate, Tile

    meanings = fields.attributes(Candidate)
    of_tile = dict.fromkeys((field.name for field in fields_of(Tile)), "Of its tile.")
    notes = {"notes": meanings.pop("notes")}
    rank = {"rank": meanings.pop("rank")}
    del meanings["tile"]
    return _of_class(rank | of_tile | meanings | notes)


_VALIDATE_COLUMNS = {
    "file": "The file that the row is in.",
    "line": "Its line there.",
    "column": "The measured column.",
    "simulated": "The simulated figure.",
    "measured": "The measured one.",
    "error": "Simulated over measured, less one.",
    "relation": "What is claimed: equal, at most, at least, or nothing.",
    "holds": "Whether it holds (0 or 1), empty where nothing is claimed.",
}


def _validate_columns() -> str:
    from memsim._validate_table import COLUMNS
    from memsim.columns import KEYS

    missing = [name for name in COLUMNS if name not in _VALIDATE_COLUMNS and name not in KEYS]
    if missing:
        raise PageFault(f"nothing says what the columns {', '.join(missing)} of memsim validate --csv are.")
    return _of_class({name: _VALIDATE_COLUMNS.get(name, "As in the measurements.") for name in COLUMNS})


def _python() -> str:
    import memsim

    lines = ["```{eval-rst}"]
    for name in memsim.__all__:
        value = getattr(memsim, name)
        if not isinstance(value, type):
            lines += [f".. autofunction:: memsim.{name}", ""]
        elif issubclass(value, Exception):
            lines += [f".. autoexception:: memsim.{name}", ""]
        else:
            members = [] if name == "Gpu" else ["   :members:"]
            lines += [f".. autoclass:: memsim.{name}", *members, ""]
    return "\n".join([*lines, "```"])


_MADE: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "json": _json,
    "keys": _keys,
    "measured": _measured,
    "claims": _claims,
    "sweep-columns": _sweep_columns,
    "tune-columns": _tune_columns,
    "validate-columns": _validate_columns,
    "python": _python,
}
