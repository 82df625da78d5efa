"""The `ledger` command: wiring only. Exit codes: 0 done or verified, 1 found wrong, 2 could not be done or checked."""

from __future__ import annotations

import os
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
import typer.main

from . import (
    cli_care,
    cli_checkpoint,
    cli_export,
    cli_follow,
    cli_key,
    cli_project,
    cli_proof,
    cli_read,
    cli_submit,
    cli_timestamp,
    cli_verify,
    cli_witness,
)
from .cli_options import ProjectOption, choose_project, forget_project
from .cli_output import note, say
from .cli_plugins import LazyGroup

app = typer.Typer(
    cls=LazyGroup,
    name="ledger",
    help="Every training step, witnessed to the bit: train, audit, prove, verify, browse.",
    epilog="Exit codes: 0 done or verified, 1 found wrong, 2 could not be done or checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
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


app.command("init")(cli_project.init)
app.command("log")(cli_read.log)
app.command("show")(cli_read.show)
app.command("checkpoint")(cli_checkpoint.checkpoint)
app.command("prove")(cli_proof.prove)
app.command("verify")(cli_verify.verify)
app.command("export")(cli_export.export)
app.command("append")(cli_submit.append)
app.command("fsck")(cli_care.fsck)
app.command("rebuild")(cli_care.rebuild)
app.add_typer(cli_key.app, name="key")
app.add_typer(cli_witness.app, name="witness")
app.add_typer(cli_timestamp.app, name="timestamp")
app.command("mirror")(cli_follow.mirror)
app.command("monitor")(cli_follow.monitor)
app.command("serve")(cli_project.serve)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv unless given) and return its exit code. Never lets an expected error escape."""
    forget_project()
    try:
        answer: Any = typer.main.get_command(app)(
            args=None if arguments is None else list(arguments), prog_name="ledger", standalone_mode=False
        )
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except (BrokenPipeError, SystemExit) as error:
        # The reader (head, less) has gone; what it wanted, it got. Python must not flush to it once more.
        if not isinstance(error if isinstance(error, OSError) else error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return 0
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return 130
    except OSError as error:
        # A file or folder of the user's that does not let itself be read or written.
        note(f"error: {error.filename or 'system'}: {(error.strerror or str(error)).lower()}")
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


if __name__ == "__main__":
    sys.exit(main())
