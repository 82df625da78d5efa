"""Where `ledger` begins: a Ctrl-C before and after the command's own time is one line, too, and not a traceback.

Imports next to nothing, so that there is hardly a moment before it.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line of this process; return its exit code."""
    watched = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us ignores it
    if watched:
        signal.signal(signal.SIGINT, _leave)
    from . import cli

    if watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = cli.main()
    if watched:
        signal.signal(signal.SIGINT, _leave)
    return code


def _leave(number: int, frame: object) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"interrupted\n")
    os._exit(128 + number)
