"""Sizes of files as people write them on a command line."""

from __future__ import annotations

import re

from ..errors import BitwitnessError

_SIZE = re.compile(r"([1-9][0-9]{0,12})(?:(B?)|([KMGT])(B|IB)?)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}

SIZES = "bytes, 500MB or 5GB (by 1000), 500M or 5G (by 1024)"
"""What parse_size reads, for help texts."""


class SizeRefused(BitwitnessError):
    """Not a size of a file."""


def parse_size(text: str) -> int:
    """Bytes of a size: 5GB counts by 1000, as hubs do, 5G and 5GiB by 1024. Raises SizeRefused."""
    parsed = _SIZE.fullmatch(text.strip().upper())
    if parsed is None:
        raise SizeRefused(
            f"{text[:40]!a} is not a size: give bytes, 500MB or 5GB (by 1000), or 500M, 5G or 5GiB (by 1024)"
        )
    number, _, unit, suffix = parsed.groups()
    factor: int = (1000 if suffix == "B" else 1024) ** _POWERS.get(unit, 0)
    return int(number) * factor
