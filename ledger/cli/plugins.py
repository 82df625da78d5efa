"""Commands, our own and those of other packages, loaded only when they are called or their help is asked for.

What other packages bring stands in their entry points:

bitwitness.commands    name -> a typer.Typer (a group) or a function (a command)
bitwitness.verifiers   name -> function(path, policy, **options) -> list of {"name", "ok", "detail", …}
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
import typer.core
import typer.main

from ..errors import BitwitnessError
from .options import ProjectOption, choose_project

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "bitwitness.commands"
VERIFIERS = "bitwitness.verifiers"

Verifier = Callable[..., list[dict[str, Any]]]


class CommandNotInstalled(BitwitnessError):
    """A command's package cannot be imported. `name` is the command."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`ledger {name}` cannot be loaded: {reason}")
        self.name = name


class Place(NamedTuple):
    """Where a command or verifier is: an attribute of a module."""

    name: str
    module: str
    attr: str


class LazyGroup(typer.core.TyperGroup):
    """The root group: its own commands, then those of the entry points."""

    own: ClassVar[Mapping[str, Place]] = {}
    """Its own commands by name, in the order in which the overview lists them."""

    _overview = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.own, *sorted(entry_points(COMMANDS).keys() - self.own.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            place = self.own.get(cmd_name) or entry_points(COMMANDS).get(cmd_name)
            if place is None:
                return None
            if self._overview:
                return _placeholder(place)
            command = _load_command(place)
            self.add_command(command, cmd_name)
        return command if cmd_name == "init" else with_project(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # The parser itself would suggest only commands that are loaded already.
        if self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            if close := get_close_matches(args[0], names, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The overview shows one line of each command, and must not import what stands behind them.
        self._overview = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._overview = False


def load_verifier(name: str) -> Verifier | None:
    """The verifier of that name, None if no installed package brings one. No other package's comes before our own."""
    place = _own_entry_points(VERIFIERS).get(name) or entry_points(VERIFIERS).get(name)
    if place is None:
        return None
    verifier: Verifier = _load(place)
    return verifier


def with_project(command: Any) -> Any:
    """Give a command, or each command of a group, the option --project unless it has one of its own."""
    for sub in getattr(command, "commands", {}).values():
        with_project(sub)
    if not hasattr(command, "commands") and not any("--project" in param.opts for param in command.params):
        command.params.append(_project_option())
    return command


def _project_option() -> Any:
    app = typer.Typer(add_completion=False)

    @app.command()
    def carrier(project: ProjectOption = None) -> None:
        """Only its option is used."""

    (option,) = (param for param in typer.main.get_command(app).params if "--project" in param.opts)
    option.expose_value = False
    option.callback = lambda _ctx, _param, value: choose_project(value)
    return option


def _load_command(place: Place) -> Any:
    loaded = _load(place)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)  # one look for all help pages
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=place.name)
        root: Any = typer.main.get_command(app)
        return root.commands[place.name]
    app.command(place.name)(loaded)
    return typer.main.get_command(app)


def _load(place: Place) -> Any:
    try:
        return getattr(importlib.import_module(place.module), place.attr)
    except ImportError as error:
        raise CommandNotInstalled(place.name, str(error)) from None
    except AttributeError:
        raise CommandNotInstalled(place.name, f"{place.module} has no {place.attr}") from None


def entry_points(group: str) -> Mapping[str, Place]:
    """What the installed packages bring for a group, by name."""
    from importlib import metadata  # imports email; and then a file of every package is read

    return _places(metadata.entry_points(group=group))


def _own_entry_points(group: str) -> Mapping[str, Place]:
    from importlib import metadata

    try:
        return _places(metadata.distribution("bitwitness").entry_points.select(group=group))
    except metadata.PackageNotFoundError:
        return {}


def _places(points: Iterable[EntryPoint]) -> Mapping[str, Place]:
    return {point.name: Place(point.name, point.module, point.attr) for point in points}


def _placeholder(place: Place) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(place.name, help=summary(place))(lambda: None)
    return typer.main.get_command(app)


def summary(place: Place) -> str:
    """The first line of a command's help, read from its source without running it; "" if it cannot be found.

    That is the docstring of a function, or the constant `help=` of a Typer(...) that is assigned to the name.
    """
    try:
        spec = importlib.util.find_spec(place.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
        tree = ast.parse(source)
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == place.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _assigns(node, place.attr):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value).split("\n")[0]
    return ""


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
