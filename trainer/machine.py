"""Whether this machine computes what it must: the self-test of the arithmetic, before and after each audit.

The digests that it must give are shipped with the package (kernels/selftest.py). A processor that fails it proves
nothing about anybody's run, whatever it found.
"""

from __future__ import annotations

from bitwitness.kernels import selftest
from bitwitness.kernels.errors import KernelError


def machine_fault(threads: int) -> str | None:
    """What the self-test finds wrong with this machine, as the ledger may say it; None where it is sound."""
    try:
        found, due = selftest.digests(threads), selftest.golden()
    except (KernelError, OSError, ValueError) as error:
        return f"the self-test of this machine's arithmetic could not be made: {type(error).__name__}"
    wrong = sorted(name for name in found.keys() | due.keys() if found.get(name) != due.get(name))
    if not wrong:
        return None
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"this machine computes wrong: its self-test fails at {', '.join(wrong[:3])}{more}"
