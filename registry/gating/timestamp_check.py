"""The gate's check `timestamp`: an RFC 3161 authority of the policy said when the bundle's checkpoint existed.

A checkpoint has no time of its own, and a log can date its entries as it likes; the authority owes it nothing.
Answers are read by the package rfc3161-client (extra `timestamps`); without it the rule is not checkable.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta

from bitwitness.ledger.errors import BitwitnessError, FoundWrong

from ..bundles import bundle
from ..checks import CLOCK_SKEW, Check
from ..policy import Policy

NAME = "timestamp"


def timestamp_checks(read: bundle.Provenance, policy: Policy, now: datetime) -> list[Check]:
    """The POLICY check `timestamp` where the policy asks for one; else a word on those that nobody asked for."""
    asked, held = policy.timestamps, read.timestamps or []
    if asked is None:
        said = f"{len(held)} in the bundle, but the policy names no authority for them ([timestamps] authorities)"
        return [Check(NAME, None, said, "ASSURANCE", required=False)] if held else []
    try:
        times, refused = _times(held, read.checkpoint.encode(), asked.authorities.encode())
    except BitwitnessError as error:  # the package is missing
        return [Check(NAME, None, str(error), "POLICY")]
    if not times:
        said = "; ".join(refused[:3]) or "the bundle holds none (`ledger model timestamp`)"
        return [Check(NAME, False, f"the policy asks for a timestamp of the checkpoint: {said}", "POLICY")]
    newest = max(times)
    said = f"an authority of the policy says that the checkpoint existed by {min(times):%Y-%m-%d %H:%M:%S} UTC"
    if newest > now + CLOCK_SKEW:
        return [Check(NAME, None, f"{said}; {newest:%Y-%m-%d} is in the future: check the clock", "POLICY")]
    if asked.max_age is None:
        return [Check(NAME, True, said, "POLICY")]
    if newest < now - timedelta(days=asked.max_age):
        said = f"the newest timestamp is of {newest:%Y-%m-%d}, {asked.max_age} days are allowed"
        return [Check(NAME, False, said, "POLICY")]
    said += f", and stamped it on {newest:%Y-%m-%d}: {asked.max_age} days are allowed"
    return [Check(NAME, True, said, "POLICY")]


def _times(held: Sequence[str], note: bytes, roots: bytes) -> tuple[list[datetime], list[str]]:
    """The times by authorities under ``roots``, and why other timestamps do not count. Raises TimestampUnavailable."""
    from bitwitness.ledger import timestamp

    trusted = timestamp.load_roots(roots)
    times, refused = [], []
    for text in held:
        try:
            times.append(timestamp.check(base64.b64decode(text, validate=True), note, trusted))
        except (FoundWrong, timestamp.NotGranted) as error:
            refused.append(str(error))
        except ValueError:
            refused.append("a timestamp is not base64")
    return times, refused
