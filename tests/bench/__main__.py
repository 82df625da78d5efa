"""Measure, print, and write bench/results.json: `python -m tests.bench [PART…] [--rounds N]`, all parts unless named.

Both sides get the same allocator settings: large buffers are kept, not returned to the system after each step,
since page faults are most of what an untuned eager step loses. Exit 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- operators -->\n", "<!-- end of operators -->\n"

Measured = tuple[dict[str, float], Any]
"""Keys, and whatever else is worth keeping."""


def gemm(rounds: int) -> Measured:
    """The products of a step against torch.mm."""
    from .audited import config_for
    from .gemm import bench_gemm

    found = bench_gemm(config_for("small", window=512, windows=4), rounds)
    return {f"gemm_{precision}_vs_torch": mean for precision, mean in found["means"].items()}, found


def step(rounds: int) -> Measured:
    """A whole step against eager and torch.compile: `small`, 2,048 tokens, two threads."""
    from .step import bench_step

    found = bench_step("small", window=512, windows=4, rounds=rounds)
    return found["ratios"], found


def base(rounds: int) -> Measured:
    """The same of `base`, 512 tokens."""
    from .step import bench_step

    found = bench_step("base", window=512, windows=1, rounds=rounds, suffix="_base")
    return found["ratios"], found


def single(rounds: int) -> Measured:
    """The same of `small` on one thread."""
    from .step import bench_step

    found = bench_step("small", window=512, windows=4, rounds=rounds, threads=1, suffix="_1_thread")
    return found["ratios"], found


def ops(rounds: int) -> Measured:
    """Every operator against its counterpart; writes the table of docs/performance.md, too."""
    from .audited import config_for
    from .operators import bench_operators, table

    found = bench_operators(config_for("small", window=512, windows=4), rounds)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table(found) + "\n" + END + rest.partition(END)[2], encoding="utf-8")
    return {"operators": found}, {"rounds": rounds}  # type: ignore[dict-item]


def rss(rounds: int) -> Measured:
    """Peak memory of steps against eager."""
    from .rss import bench_rss

    found = bench_rss()
    return found["ratios"], found


def captured(rounds: int) -> Measured:
    """A model of one's own over the built-in one, the same model: a step's time and peak memory."""
    from .captured import bench_captured

    found = bench_captured(rounds=rounds)
    return found["ratios"], found


def parts(rounds: int) -> Measured:
    """A step that commits to its parts over one that does not."""
    from .parts import bench_parts

    found = bench_parts(rounds=rounds)
    return {"parts_overhead": found["parts_overhead"]}, found


def ranks(rounds: int) -> Measured:
    """A step of two ranks with one thread each over one of two threads."""
    from .ranks import bench_ranks

    found = bench_ranks(rounds=rounds)
    return {"ranks_vs_threads": found["ranks_vs_threads"]}, found


def audit(rounds: int) -> Measured:
    """An audit beside training: time and memory of a replayed step, and everything but the replay."""
    from .audit import bench_audit

    found = bench_audit("small")
    return {key: value for key, value in found.items() if key != "details"}, found["details"]


def ledger(rounds: int) -> Measured:
    """Appends, proofs, verification, memory and disk of the ledger, up to a million entries."""
    from .ledger import bench_ledger

    return bench_ledger(), None


def registry(rounds: int) -> Measured:
    """The gate: weights verified a second beside sha256sum, and what a verification costs besides hashing."""
    from .registry import bench_registry

    return bench_registry(rounds=min(rounds, 7)), None


PARTS: dict[str, Callable[[int], Measured]] = {
    part.__name__: part
    for part in (gemm, step, ops, rss, captured, parts, ranks, audit, single, base, ledger, registry)
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__.partition("\n")[0],
        epilog="\n".join(f"{name:8} {part.__doc__}" for name, part in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every contestant (15)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, "-m", "tests.bench", *sys.argv[1:]], {**os.environ, **MALLOC})
    from . import results

    misses = []
    for name in arguments.parts or PARTS:
        keys, details = PARTS[name](arguments.rounds)
        found = results.merge(results.read(), name, keys, details)
        results.write(found)  # after each part: a later one that is broken off loses nothing
        print(json.dumps({name: keys}, indent=1), flush=True)
        misses += results.missed(found, keys)
    for line in misses:
        print(line, file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
