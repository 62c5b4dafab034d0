"""From command-line tokens to named texts, and whatever is wrong with them to sentences.

cyclopts knows the commands, matches the options and prints the help; values stay text here, so that all faults of a
command can be named together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.exceptions import CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError
from rich.console import Console

from memsim._option_list import GROUPS, Option
from memsim._options import Faults, one_of
from memsim.errors import MemsimError
from memsim.units import quoted

Given = Mapping[str, Sequence[str | bool]]


@dataclass(frozen=True)
class Spec:
    """One command: what it takes and what it says about itself. `usage` is how it is called, without its options. It
    takes any number of a positional that is repeatable."""

    name: str
    help: str
    options: tuple[Option, ...]
    positional: Option | None = None
    usage: str = ""


@dataclass(frozen=True)
class Command:
    """A command that a package adds: what it is called with, and what runs it and returns the exit code."""

    spec: Spec
    run: Callable[[Line], int]


@dataclass(frozen=True)
class Line:
    """A command line as read: the texts of the options given, a flag's as "true" or "false", and its faults.

    Options of a line with faults can still be judged, so that all its faults are named together.
    """

    command: str
    positional: str | None
    options: dict[str, str]
    repeated: dict[str, list[str]]
    faults: Faults
    positionals: tuple[str, ...] = ()

    def flag(self, name: str) -> bool:
        return self.options.get(name) == "true"


def build_app(specs: Iterable[Spec], version: str, about: str) -> App:
    """The cyclopts application of these commands."""
    app = App(name="memsim", version=version, help=about, default_parameter=Parameter(negative=(), show_default=False))
    for spec in specs:
        usage = " ".join(("Usage: memsim", spec.name, *([spec.usage] if spec.usage else []), "[OPTIONS]"))
        app.command(_command(spec), name=spec.name, help=spec.help, usage=usage)
    return app


def parse(app: App, specs: Mapping[str, Spec], tokens: Sequence[str], console: Console) -> Line | None:
    """The line that these tokens make; None if help or the version was asked for and printed to `console`.

    Raises `MemsimError` where the line is not even that of a command.
    """
    faults = Faults()
    bound = None
    while bound is None:
        try:
            command, bound = _bind(app, tokens, console)
        except MissingArgumentError as error:
            # Whatever follows an option is its value, so it can only be the last token that lacks one.
            faults.append(f"{error.keyword or tokens[-1]} needs a value after it.")
            tokens = tokens[:-1]
        except CoercionError as error:
            # Only a flag's value is not taken as it is. Without it the rest can still be judged.
            flag = f"{error.token.keyword}={error.token.value}" if error.token else ""
            if flag not in tokens:
                raise MemsimError(_sentence(error, specs)) from None
            faults.append(_sentence(error, specs))
            tokens = [token for token in tokens if token != flag]
        except CycloptsError as error:
            raise MemsimError(_sentence(error, specs)) from None
    if not hasattr(command, "memsim_command"):
        command(*bound.args, **bound.kwargs)
        return None
    spec = specs[command.memsim_command]
    return _line(spec, _positionals(spec, bound.args, faults), bound.kwargs, faults)


def _bind(app: App, tokens: Sequence[str], console: Console) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """The command that the tokens name, and them bound to its signature; "--" is a token like any other."""
    command, bound, _, _ = app.parse_known_args(list(tokens), console=console, end_of_options_delimiter="")
    return command, bound


def _command(spec: Spec) -> Callable[..., Any]:
    def command(*_: Any, **__: Any) -> None:
        """Only its signature is of use: cyclopts binds tokens to it."""

    name = (spec.positional.name if spec.positional else "ARGUMENTS").upper()
    about = spec.positional.help if spec.positional else ""
    parameters = [
        # All tokens that no option takes, unknown options too.
        inspect.Parameter(
            "positionals",
            inspect.Parameter.VAR_POSITIONAL,
            annotation=Annotated[
                str,
                Parameter(
                    name=name,
                    help=about,
                    allow_leading_hyphen=True,
                    show=spec.positional is not None,
                    show_default=(spec.positional and spec.positional.default) or False,
                ),
            ],
        )
    ]
    groups = {
        option.group: Group(option.group, help=GROUPS.get(option.group, ""), sort_key=i)
        for i, option in enumerate(spec.options)
    }
    for option in spec.options:
        parameter = Parameter(
            name=f"--{option.name}",
            help=option.help,
            group=groups[option.group],
            negative=f"--{option.negative}" if option.negative else (),
            allow_leading_hyphen=not option.flag,
            n_tokens=None if option.flag else 1,
            metavar=None if option.flag else option.value,
            show_default=option.default or False,
        )
        kind = list[bool] if option.flag else list[str]
        parameters.append(
            inspect.Parameter(
                _parameter_name(option),
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[kind, parameter],
                default=(),
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.memsim_command = spec.name  # type: ignore[attr-defined]
    return command


def _parameter_name(option: Option) -> str:
    """What Python calls it: an option may be a word that Python keeps for itself, such as from."""
    return f"option_{option.name.replace('-', '_')}"


def _positionals(spec: Spec, tokens: Sequence[str], faults: Faults) -> list[str]:
    """The tokens that are none of an unknown option's."""
    names = [f"--{name}" for option in spec.options for name in (option.name, option.negative) if name]
    positionals: list[str] = []
    of_unknown_option = False
    for token in tokens:
        name, equals, _ = token.partition("=")
        if len(token) > 1 and token[0] == "-" and not token[1:2].isdecimal():
            faults.append(f"there is no option {quoted(name)}: {_near_option(name, names, spec)}")
            of_unknown_option = not equals
        elif of_unknown_option:
            of_unknown_option = False
        else:
            positionals.append(token)
    if spec.positional is not None and spec.positional.repeatable:
        return positionals
    most = 1 if spec.positional else 0
    for token in positionals[most:]:
        takes = f"takes one {spec.positional.name.upper()}" if spec.positional else "takes options only"
        faults.append(f"{quoted(token)} is one word too many: memsim {spec.name} {takes}.")
    return positionals[:most]


def _near_option(name: str, names: Sequence[str], spec: Spec) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:100], names, 1, 0.6) if len(name) > 3 else []
    return f"did you mean {near[0]}?" if near else f"memsim {spec.name} --help lists them."


def _line(spec: Spec, positionals: Sequence[str], given: Given, faults: Faults) -> Line:
    options: dict[str, str] = {}
    repeated: dict[str, list[str]] = {option.name: [] for option in spec.options if option.repeatable}
    for option in spec.options:
        texts = [str(v).lower() if isinstance(v, bool) else v for v in given.get(_parameter_name(option), ())]
        if not option.flag and any(text.startswith("--") for text in texts):
            follower = next(text for text in texts if text.startswith("--"))
            faults.append(f"--{option.name} needs a value after it, but {quoted(follower)} follows.")
        elif option.repeatable:
            repeated[option.name] = texts
        elif len(texts) > 1:
            names = f"--{option.name}" + (f" or --{option.negative}" if option.negative else "")
            faults.append(f"{names} is given {len(texts)} times: give it once.")
        elif texts:
            options[option.name] = texts[0]
    first = positionals[0] if positionals else None
    return Line(spec.name, first, options, repeated, faults, tuple(positionals))


def _sentence(error: CycloptsError, specs: Mapping[str, Spec]) -> str:
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        word = error.unused_tokens[0]
        if word.startswith("-"):
            return f"there is no option {quoted(word)} before a command: give one of {', '.join(specs)} first."
        return f"there is no command {quoted(word)}: {one_of(word, specs)}"
    if isinstance(error, CoercionError) and error.token is not None:
        return (
            f"{error.token.keyword or 'a flag'} is {quoted(error.token.value)}: it is a flag, give it without a value."
        )
    error.verbose = False
    return " ".join(str(error).split())
