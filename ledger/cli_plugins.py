"""Commands of other packages, by entry points, loaded only when they are called or their help is asked for.

bitwitness.commands    name -> a typer.Typer (a group) or a function (a command)
bitwitness.verifiers   name -> function(path, policy, **options) -> list of {"name", "ok", "detail", …}
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer
import typer.core
import typer.main

from .cli_options import ProjectOption, choose_project
from .errors import BitwitnessError

COMMANDS = "bitwitness.commands"
VERIFIERS = "bitwitness.verifiers"

Verifier = Callable[..., list[dict[str, Any]]]


class CommandNotInstalled(BitwitnessError):
    """A command's package cannot be imported. `name` is the command."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`ledger {name}` cannot be loaded: {reason}")
        self.name = name


class LazyGroup(typer.core.TyperGroup):
    """The root group: its own commands, then those of the entry points."""

    _overview = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_found(COMMANDS)) - set(self.commands))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            point = _found(COMMANDS).get(cmd_name)
            if point is None:
                return None
            if self._overview:
                return _placeholder(point)
            command = _load_command(point)
            self.add_command(command, cmd_name)
        return command if cmd_name == "init" else with_project(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The overview shows one line of each command, and must not import what stands behind them.
        self._overview = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._overview = False


def load_verifier(name: str) -> Verifier | None:
    """The verifier of that name, None if no installed package brings one."""
    point = _found(VERIFIERS).get(name)
    if point is None:
        return None
    verifier: Verifier = _load(point)
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


def _load_command(point: EntryPoint) -> Any:
    loaded = _load(point)
    app = loaded
    if not isinstance(loaded, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(point.name)(loaded)
    app.rich_markup_mode = None  # one look for all help pages
    return typer.main.get_command(app)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ImportError as error:
        raise CommandNotInstalled(point.name, str(error)) from None
    except AttributeError:
        raise CommandNotInstalled(point.name, f"{point.module} has no {point.attr}") from None


def _found(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _placeholder(point: EntryPoint) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(point.name, help=summary(point))(lambda: None)
    return typer.main.get_command(app)


def summary(point: EntryPoint) -> str:
    """The first line of a command's help, read from its source without running it; "" if it cannot be found.

    That is the docstring of a function, or the constant `help=` of a Typer(...) that is assigned to the name.
    """
    try:
        spec = importlib.util.find_spec(point.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
        tree = ast.parse(source)
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _assigns(node, point.attr):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value).split("\n")[0]
    return ""


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
