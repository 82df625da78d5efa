"""Watching a log that is mirrored: alarms where its head is stale, or somebody signs whom the watcher does not know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import rfc3339
from .browse import enrolled_keys, list_entries
from .mirror import Mirror, Update, WentBack
from .remote import Remote
from .store import Ledger
from .tile_export import write_whole

KNOWN = "known-keys"
_RECENT = 200


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at: `name` is stale, unknown-signer, new-key or went-back."""

    name: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "detail": self.detail}


@dataclass(frozen=True)
class Watched:
    """One round: what the mirror took in (None if the log went back), and the alarms."""

    update: Update | None
    alarms: tuple[Alarm, ...]


def watch(
    mirror: Mirror,
    remote: Remote,
    *,
    max_age: float | None = None,
    accept: bool = False,
    clock: Callable[[], float] = time.time,
) -> Watched:
    """Bring the mirror up to date and look for alarms; `max_age` in seconds. Raises what Mirror.update raises.

    The first round takes the keys that it finds as known; later ones raise an alarm for each new one until `accept`.
    """
    alarms: list[Alarm] = []
    update: Update | None = None
    try:
        update = mirror.update(remote)
    except WentBack as error:
        alarms.append(Alarm("went-back", str(error)))
    with mirror.open() as ledger:
        if update is not None:
            alarms += _unknown_signers(mirror, ledger, update)
        alarms += _new_keys(mirror, ledger, accept)
        if max_age is not None:
            alarms += _stale(mirror, ledger, update, max_age, clock())
    return Watched(update, tuple(alarms))


def _unknown_signers(mirror: Mirror, ledger: Ledger, update: Update) -> list[Alarm]:
    """Signatures under the log's own name by keys that neither the policy pins nor the root enrolled."""
    verified = {(item.line.name, item.line.key_id) for item in update.note.verified}
    strange = [
        line
        for line in update.note.lines
        if line.name == mirror.trust.origin and (line.name, line.key_id) not in verified
    ]
    return [
        Alarm("unknown-signer", f"the checkpoint is signed in the log's name by an unknown key {line.key_id.hex()}")
        for line in strange
    ]


def _new_keys(mirror: Mirror, ledger: Ledger, accept: bool) -> list[Alarm]:
    path = mirror.folder / KNOWN
    found = {row["keyid"]: row for row in enrolled_keys(ledger)}
    first = not path.exists()
    known = set() if first else set(path.read_bytes().decode("ascii", "replace").split())
    if first or accept:
        write_whole(path, "".join(f"{keyid}\n" for keyid in sorted(known | found.keys())).encode("ascii"))
        return []
    return [
        Alarm("new-key", f"entry {row['entry']} enrols an unknown {row['role']} key {keyid}")
        for keyid, row in found.items()
        if keyid not in known
    ]


def _stale(mirror: Mirror, ledger: Ledger, update: Update | None, max_age: float, now: float) -> list[Alarm]:
    policy = mirror.trust.witnesses
    seen = None if update is None or policy is None else policy.witnessed_at(update.note)
    newest = max([_entry_time(ledger)] + ([] if seen is None else [float(seen)]))
    if now - newest <= max_age:
        return []
    when = rfc3339.text_of_seconds(newest)
    said = "the log has no entry" if newest <= 0 else f"the newest time in the log is {when}"
    return [Alarm("stale", f"{said}, {_hours(now - newest)} ago; {_hours(max_age)} are allowed")]


def _entry_time(ledger: Ledger) -> float:
    """The newest time that the last entries state, seconds since 1970; 0 for an empty log."""
    times = [item.time for item in list_entries(ledger, limit=_RECENT) if item.time is not None]
    if not times:
        return 0.0
    return rfc3339.parse(max(times)).timestamp()


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours"
