"""Which entry is meant: by its index in the log, or by the first digits of its leaf hash."""

from __future__ import annotations

import re

from .errors import BitwitnessError
from .store import Ledger, NoSuchEntry

_INDEX = re.compile("0|[1-9][0-9]{0,18}")
_HASH_PREFIX = re.compile("[0-9a-f]{8,64}")


class AmbiguousHash(BitwitnessError):
    """Several entries' hashes begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"several entries begin with {prefix}; give more digits")
        self.prefix = prefix


def is_index(ledger: Ledger, text: str) -> bool:
    """Whether a text names an entry by its index; else it may be a hash or a run's name."""
    return bool(_INDEX.fullmatch(text)) and int(text) < ledger.size


def find_entry(ledger: Ledger, text: str, what: str = "an entry") -> int:
    """The index of an entry given by index or by 8 or more digits of its leaf hash.

    Raises AmbiguousHash, and NoSuchEntry, which says that none is `what`.
    """
    if is_index(ledger, text):
        return int(text)
    if _HASH_PREFIX.fullmatch(text):
        found = ledger.find_prefix(text)
        if len(found) > 1:
            raise AmbiguousHash(text)
        if found:
            return found[0]
    raise NoSuchEntry(f"{what} {text}", ledger.size)
