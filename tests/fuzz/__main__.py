"""One fuzz target for a while, with atheris: a parser refuses in one line or gives back the bytes that it read.

`python -m tests.fuzz` lists the targets, which are those of tests/ledger/test_parsers_hostile.py; what is signed is
also mutated and verified. `python -m tests.fuzz all SECONDS` runs each in turn, from new inputs each time;
`python -m tests.fuzz all --runs N` makes the same N inputs of each wherever it runs, which is what CI asks for.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FunctionType

TARGETS = ("json", "entry", "fork", "note", "checkpoint", "proof", "policy", "request", "bundle", "tile path", "vkey")


def fuzz(name: str, amount: list[str]) -> None:
    """Run one target, as much as libFuzzer's options in `amount` say.

    atheris ends the process, with an error if anything escaped.
    """
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
            *amount,
            f"-artifact_prefix={tempfile.gettempdir()}/",
            "-max_len=8192",
            "-rss_limit_mb=1024",
            "-timeout=10",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *limits, corpus], target)
        atheris.Fuzz()


def main(arguments: list[str]) -> int:
    names = (*TARGETS, "all")
    match arguments:
        case [name, seconds] if name in names and seconds.isdecimal():
            amount = [f"-max_total_time={seconds}"]
        case [name, "--runs", runs] if name in names and runs.isdecimal():
            amount = [f"-runs={runs}", "-seed=1"]
        case _:
            print("python -m tests.fuzz TARGET SECONDS, or TARGET --runs N; targets:", ", ".join(TARGETS), "or all")
            return 2
    if name != "all":
        fuzz(name, amount)
        return 0
    # str hashes vary from process to process, and with them the order of sets and what libFuzzer sees covered.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    for one in TARGETS:
        print(f"fuzz {one}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", one, *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-6000:], sep="\n")
            return 1
    return 0


sys.exit(main(sys.argv[1:]))
