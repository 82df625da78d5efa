"""`python -m bitwitness.kernels`: what runs here, and whether it computes what it must. Exit 1 where it does not."""

from __future__ import annotations

import argparse
import json
import os
import sys

from bitwitness.kernels import _native, selftest
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import ARITHMETIC, arithmetic_digest


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bitwitness.kernels",
        description="Print the instruction set in use, threads, compiler flags and the arithmetic's digest, and compare"
        " a self-test of every operator with the golden digests.",
        epilog="example: BITWITNESS_ISA=generic python -m bitwitness.kernels --threads 3",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of the self-test")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        report = {
            "isa": _native.isa(),
            "available": _native.available_isas(),
            "flags": _native.flags(),
            "threads": arguments.threads,
            "arithmetic": {"version": ARITHMETIC, "digest": arithmetic_digest()},
            "digests": selftest.digests(arguments.threads),
        }
    except KernelError as error:
        print(error, file=sys.stderr)
        return KernelError.exit_code
    expected = selftest.golden()
    found = report["digests"]
    wrong = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
    if arguments.json:
        print(json.dumps({**report, "wrong": sorted(wrong)}, indent=1))
    else:
        print(f"instruction set  {report['isa']} (of {', '.join(report['available'])}; BITWITNESS_ISA forces one)")
        print(f"threads          {report['threads']}")
        print(f"flags            {report['flags']}")
        print(f"arithmetic       {ARITHMETIC} {arithmetic_digest()}")
        for name, digest in found.items():
            print(f"{'WRONG' if name in wrong else 'ok':6}{name:28} {digest}")
        print(f"{len(found) - len(wrong)} of {len(expected)} digests as expected", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
