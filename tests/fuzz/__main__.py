"""One fuzz target for a while, with atheris: a parser refuses in one line or gives back the bytes that it read.

`python -m tests.fuzz` lists the targets, which are those of tests/ledger/test_parsers_hostile.py; what is signed is
also mutated and verified. `python -m tests.fuzz all SECONDS` runs each in turn.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FunctionType

TARGETS = ("json", "entry", "fork", "note", "checkpoint", "proof", "policy", "request", "bundle", "tile path", "vkey")


def fuzz(name: str, seconds: int) -> None:
    """Run one target; atheris ends the process, with an error if anything escaped."""
    import atheris  # native

    from bitwitness.ledger.errors import BitwitnessError
    from tests.ledger.test_parsers_hostile import PARSERS, VERIFIERS, reads_or_refuses

    # Its import hook does not see modules that come through an editable install.
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and str(thing.__module__).startswith("bitwitness."):
            atheris.instrument_func(thing)
    if tuple(PARSERS) != TARGETS:
        raise SystemExit(f"TARGETS here are to be {tuple(PARSERS)}")
    original, read = PARSERS[name]
    verify = VERIFIERS.get(name)

    def target(data: bytes) -> None:
        reads_or_refuses(read, data)
        if verify is not None and data != original:
            try:
                verify(data)
            except BitwitnessError:
                return
            if name == "entry":  # a note may carry further signature lines, which nobody knows, without harm
                raise RuntimeError(f"a mutation of the {name} verifies")

    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "original").write_bytes(original)
        limits = [
            f"-max_total_time={seconds}",
            f"-artifact_prefix={tempfile.gettempdir()}/",
            "-max_len=8192",
            "-rss_limit_mb=1024",
            "-timeout=10",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *limits, corpus], target)
        atheris.Fuzz()


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in (*TARGETS, "all"):
        print("python -m tests.fuzz TARGET SECONDS; targets:", ", ".join(TARGETS), "or all")
        return 2
    name, seconds = arguments[0], int(arguments[1])
    if name != "all":
        fuzz(name, seconds)
        return 0
    for one in TARGETS:
        print(f"fuzz {one}", flush=True)
        done = subprocess.run([sys.executable, "-m", "tests.fuzz", one, str(seconds)], capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-6000:], sep="\n")
            return 1
    return 0


sys.exit(main(sys.argv[1:]))
