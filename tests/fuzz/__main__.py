"""One fuzz target for a while, with atheris: a reader refuses in one line, or takes what it read.

`python -m tests.fuzz` lists the targets: those of tests/ledger/test_parsers_hostile.py, which also give back the bytes
that they read, and whose signed things are mutated and verified; and readers of tests/hostile/readers.py, named in
FORMATS. `python -m tests.fuzz all SECONDS` runs each in turn, from new inputs each time; `python -m tests.fuzz all
--runs N` makes the same inputs wherever it runs, which is what CI asks for: N of each parser, and N / 2 of the formats
together, the target `formats`, in which the first byte says whose the others are.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType

PARSERS = (
    *("json", "entry", "fork", "note", "checkpoint", "proof", "policy", "request", "bundle", "hash tile", "tile path"),
    "vkey",
)
ALL_SIGNED = ("entry", "checkpoint", "bundle", "hash tile", "vkey")
"""Where no other bytes verify. To a note further signature lines may be added, which nobody knows, without harm."""
FORMATS = (
    *("statements", "proof extra", "drand round", "safetensors", "trust.toml", "run.toml", "recorded config"),
    *("llama config", "dataset manifest", "tokenizer.json", "parts", "captured model", "trace file", "trace record"),
    *("provenance", "status", "model.sig statement", "tokenizer vocabulary"),
)
"""Readers of tests/hostile/readers.py whose specimens are the same each time they are made."""
TOGETHER = "formats"
TARGETS = (*PARSERS, *FORMATS, TOGETHER)


Target = Callable[[bytes], object]


def fuzz(name: str, amount: list[str]) -> None:
    """Run one target, as much as libFuzzer's options in `amount` say.

    atheris ends the process, with an error if anything escaped.
    """
    import atheris  # native

    with tempfile.TemporaryDirectory() as folder:
        (corpus := Path(folder) / "corpus").mkdir()
        specimens, target = _parser(name) if name in PARSERS else _format(name, Path(folder))
        # Its import hook does not see modules that come through an editable install.
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and str(thing.__module__).startswith("bitwitness."):
                atheris.instrument_func(thing)
        for number, specimen in enumerate(specimens):
            (corpus / f"specimen-{number}").write_bytes(specimen)
        limits = [
            *amount,
            f"-artifact_prefix={tempfile.gettempdir()}/",
            f"-max_len={max(8192, *(2 * len(specimen) for specimen in specimens))}",
            "-rss_limit_mb=2048",
            "-timeout=10",
            "-verbosity=0",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], target)
        atheris.Fuzz()


def _parser(name: str) -> tuple[Sequence[bytes], Target]:
    from bitwitness.ledger.errors import BitwitnessError
    from tests.ledger.test_parsers_hostile import PARSERS as table
    from tests.ledger.test_parsers_hostile import VERIFIERS, reads_or_refuses

    if tuple(table) != PARSERS:
        raise SystemExit(f"PARSERS here are to be {tuple(table)}")
    original, read = table[name]
    verify = VERIFIERS.get(name)

    def target(data: bytes) -> None:
        reads_or_refuses(read, data)
        if verify is not None and data != original:
            try:
                verify(data)
            except BitwitnessError:
                return
            if name in ALL_SIGNED:
                raise RuntimeError(f"a mutation of the {name} verifies")

    return [original], target


def _format(name: str, folder: Path) -> tuple[Sequence[bytes], Target]:
    from tests.hostile.readers import FORMATS as table
    from tests.hostile.readers import refuses_in_one_line

    readers = []
    for number, one in enumerate(FORMATS if name == TOGETHER else [name]):
        (own := folder / str(number)).mkdir()
        readers.append(table[one](own))
    if len(readers) == 1:
        (reader,) = readers
        return reader.specimens, lambda data: refuses_in_one_line(reader.read, data)

    def target(data: bytes) -> None:
        refuses_in_one_line(readers[data[0] % len(readers) if data else 0].read, data[1:])

    return [bytes([at]) + specimen for at, reader in enumerate(readers) for specimen in reader.specimens], target


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
    for one in TARGETS if arguments[1] != "--runs" else (*PARSERS, TOGETHER):
        print(f"fuzz {one}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", one, *arguments[1:]]
        if one == TOGETHER and arguments[1] == "--runs":
            command[-1] = str(int(arguments[2]) // 2)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-6000:], sep="\n")
            return 1
    return 0


sys.exit(main(sys.argv[1:]))
