"""The `ledger` command: wiring only.

Exit codes: 0 done or verified, 1 found wrong, 2 could not be done or checked, 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
import typer.main

from ..errors import Stopped
from . import output
from .options import ProjectOption, choose_project, forget_project
from .output import note, say
from .plugins import LazyGroup, Place

# Every command's module and function, or its group's Typer; in the order of the overview.
_COMMANDS = {
    "init": "project.init",
    "log": "read.log",
    "show": "read.show",
    "checkpoint": "checkpoint.checkpoint",
    "prove": "proof.prove",
    "verify": "verify.verify",
    "export": "export.export",
    "append": "submit.append",
    "fsck": "care.fsck",
    "rebuild": "care.rebuild",
    "mirror": "follow.mirror",
    "monitor": "follow.monitor",
    "serve": "project.serve",
    "key": "key.app",
    "witness": "witness.app",
    "timestamp": "timestamp.app",
}


_UNKNOWN = object()
"""The answer of a command that has not come to its end."""
_INTERRUPTED = 128 + signal.SIGINT


def _place(name: str) -> Place:
    module, _, attribute = _COMMANDS[name].partition(".")
    return Place(name, f"{__package__}.{module}", attribute)


class Ledger(LazyGroup):
    """`ledger` itself."""

    own = {name: _place(name) for name in _COMMANDS}  # noqa: RUF012


app = typer.Typer(
    cls=Ledger,
    name="ledger",
    help="Every training step, witnessed to the bit: train, audit, prove, verify, browse.",
    epilog="Exit codes: 0 done or verified, 1 found wrong, 2 could not be done or checked, or wrong usage; 130 stopped"
    " by Ctrl-C, 143 by SIGTERM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # which imports email, that no other command needs

        say(f"bitwitness {version('bitwitness')}")
        raise typer.Exit


@app.callback()
def root(
    project: ProjectOption = None,
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    choose_project(project)


def _open_streams() -> None:
    """Have all three standard streams open, so that no file of ours gets the number of one, nor what is said on it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    sys.stdout = output.heard_or_not(sys.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv unless given) and return its exit code. Never lets an expected error escape."""
    forget_project()
    _open_streams()
    answer: Any = _UNKNOWN
    # Plug-ins of pydantic would have a say in how a policy is read; and a file of every package is read to find them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        answer = typer.main.get_command(app)(
            args=None if arguments is None else list(arguments), prog_name="ledger", standalone_mode=False
        )
        sys.stdout.flush()
        if answer == _INTERRUPTED:  # so the command-line parser says it, which does not say a word
            note("interrupted")
        return answer if isinstance(answer, int) else 0
    except (BrokenPipeError, SystemExit) as error:
        # The reader (head, less) has gone, which makes no verdict another. Python must not flush to it once more.
        if not isinstance(error if isinstance(error, OSError) else error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return 2 if answer is _UNKNOWN else answer if isinstance(answer, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return _INTERRUPTED
    except Stopped as error:
        note(str(error))
        return error.exit_code
    except OSError as error:
        # A file or folder of the user's that does not let itself be read or written.
        note(f"error: {error.filename or 'system'}: {(error.strerror or str(error)).lower()}")
        output.drop_unsaid()
        return 2
    except (MemoryError, sqlite3.OperationalError) as error:
        note(f"error: {str(error) or 'out of memory'}")
        return 2
    except Exception as error:
        # Errors of ours say how they end, the command-line parser's are of usage, anything else is a bug: never 1,
        # which would say that something was found wrong.
        show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if callable(show):
            show()
            return 2
        if isinstance(code, int):
            note(f"error: {error}")
            return code
        note(f"error: {type(error).__name__}: {error}; this should not happen, please report it")
        if os.environ.get("BITWITNESS_TRACEBACK"):
            traceback.print_exc()
        return 2
