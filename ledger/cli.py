"""The `ledger` command: wiring only. Exit codes: 0 done or verified, 1 found wrong, 2 could not be done or checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
import typer.main

from . import cli_care, cli_checkpoint, cli_export, cli_follow, cli_key, cli_project, cli_proof, cli_read, cli_witness
from .cli_options import ProjectOption, choose_project, forget_project
from .cli_output import note
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


@app.callback()
def root(project: ProjectOption = None) -> None:
    choose_project(project)


app.command("init")(cli_project.init)
app.command("log")(cli_read.log)
app.command("show")(cli_read.show)
app.command("checkpoint")(cli_checkpoint.checkpoint)
app.command("prove")(cli_proof.prove)
app.command("verify")(cli_proof.verify)
app.command("export")(cli_export.export)
app.command("fsck")(cli_care.fsck)
app.command("rebuild")(cli_care.rebuild)
app.add_typer(cli_key.app, name="key")
app.add_typer(cli_witness.app, name="witness")
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
    except Exception as error:
        # Errors of ours and of the command-line parser say how they end; anything else is a bug and shows itself.
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        show = getattr(error, "show", None)
        if callable(show):
            show()
        else:
            note(f"error: {error}")
        return code


if __name__ == "__main__":
    sys.exit(main())
