"""Watching a log that is mirrored: alarms where its head is stale, or somebody signs whom the watcher does not know."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..browse import Listed, enrolled_keys, list_entries
from ..entry.entries import kind_of
from ..entry.envelope import open_envelope
from ..errors import BitwitnessError, NoKnownSigner, SignatureError
from ..files import rfc3339
from ..files.durable import write_whole
from ..files.regular_file import read_regular
from ..note import Note, open_note
from ..store import Ledger
from .mirror import Mirror, NotServed, Update, WentBack
from .remote import Remote, RemoteError

KNOWN = "known-keys"
_KNOWN_HEAD = "bitwitness/known-keys/1"
_MAX_KNOWN = 16 << 20
LOOKED = "looked"
_LOOKED_HEAD = "bitwitness/looked/1"
_MAX_LOOKED = 100
_KEYID = re.compile("[0-9a-f]{64}")
_SKEW = 300.0
"""Seconds by which clocks may differ: what is stated later than that is in the future."""
_SHOWN = 5


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at.

    `name` is stale, future-time, unknown-signer, new-key, went-back or unserved.
    """

    name: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "detail": self.detail}


@dataclass(frozen=True)
class Watched:
    """One round: what the mirror took in (None if it was not led forward), and the alarms.

    `looked` is how many entries' times were looked at, in this round or before.
    """

    update: Update | None
    alarms: tuple[Alarm, ...]
    looked: int = 0


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
    What was copied before, or was to be by a round that did not come to its end, is what the first round found.
    A log that cannot be reached is stale at last, too.
    """
    known = _read_known(mirror, accept)
    seen = _seen_before(mirror) if known is None else 0
    alarms: list[Alarm] = []
    update: Update | None = None
    try:
        update = mirror.update(remote)
    except WentBack as error:
        alarms.append(Alarm("went-back", str(error)))
    except NotServed as error:
        alarms.append(Alarm("unserved", str(error)))
    except NoKnownSigner as error:
        alarms.append(Alarm("unknown-signer", str(error)))
    except RemoteError:
        if max_age is not None and mirror.project.ledger_path.exists():
            with mirror.open() as ledger:
                alarms += _stale(mirror, ledger, max_age, clock()) if ledger.size else []
        if not alarms:
            raise
        return Watched(None, tuple(alarms))
    with mirror.open() as ledger:
        if update is not None:
            alarms += [Alarm("unserved", str(item)) for item in update.unserved]
            alarms += _unknown_signers(mirror, update)
        alarms += _future(mirror, ledger, _read_looked(mirror, ledger.size), clock())
        alarms += _new_keys(mirror, ledger, known, accept, seen)
        if max_age is not None:
            alarms += _stale(mirror, ledger, max_age, clock())
        return Watched(update, tuple(alarms), ledger.size)


def told(mirror: Mirror, watched: Watched) -> None:
    """The alarms of a round were heard: what its entries state is not said again. Raises OSError.

    Until then it is, in whatever round the entries came: one that was stopped half way, or `ledger mirror`'s.
    """
    if watched.looked:
        write_whole(mirror.folder / LOOKED, f"{_LOOKED_HEAD} {watched.looked}\n".encode("ascii"))


def _read_looked(mirror: Mirror, size: int) -> int:
    """From which entry on nobody looked at times; all are looked at again where that cannot be told."""
    try:
        text = read_regular(mirror.folder / LOOKED, _MAX_LOOKED).decode("ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    found = re.fullmatch(rf"{_LOOKED_HEAD} ([0-9]{{1,19}})\n", text)
    looked = int(found[1]) if found else 0
    return looked if looked <= size else 0


def _unknown_signers(mirror: Mirror, update: Update) -> list[Alarm]:
    """Signatures under the log's own name by keys that are neither pinned nor took the pinned one's place."""
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


# Keys -----------------------------------------------------------------------------------------------------


def _read_known(mirror: Mirror, accept: bool) -> set[str] | None:
    """The keyids that are known; None where the next look takes all as known. Raises BitwitnessError if damaged."""
    path = mirror.folder / KNOWN
    try:
        head, *lines = read_regular(path, _MAX_KNOWN).decode("ascii").splitlines() or [""]
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        head, lines = "", []
    if head == f"{_KNOWN_HEAD} {len(lines)}" and all(_KEYID.fullmatch(line) for line in lines):
        return set(lines)
    if accept:
        return None
    raise BitwitnessError(
        f"{path} is damaged: put it back from a copy; or look at `ledger --project {mirror.folder} key list`, and give"
        " --accept to take all these keys as known"
    )


def _seen_before(mirror: Mirror) -> int:
    """How many entries the copy has, or was to have: those of the checkpoints that it kept before it copied them."""
    if not mirror.project.ledger_path.exists():
        return 0
    with mirror.open() as ledger:
        return max(ledger.size, *mirror.sizes_unserved(), 0)


def _new_keys(mirror: Mirror, ledger: Ledger, known: set[str] | None, accept: bool, seen: int) -> list[Alarm]:
    found = {row["keyid"]: row for row in enrolled_keys(ledger)}
    if not found:
        return []  # of a log that has shown nothing yet there is nothing to know
    if known is None or accept:
        taken = {keyid for keyid, row in found.items() if accept or not seen or row["entry"] < seen}
        known = (known or set()) | taken
        lines = sorted(known)
        text = "".join(f"{line}\n" for line in (f"{_KNOWN_HEAD} {len(lines)}", *lines))
        write_whole(mirror.folder / KNOWN, text.encode("ascii"))
    return [
        Alarm("new-key", f"entry {row['entry']} enrols an unknown {row['role']} key {keyid}")
        for keyid, row in found.items()
        if keyid not in known
    ]


# Times ----------------------------------------------------------------------------------------------------
#
# Ages go by what the log's own key and the policy's witnesses state. Whoever else is enrolled may state what he likes,
# and would speak for a log that has long been silent.


def _stale(mirror: Mirror, ledger: Ledger, max_age: float, now: float) -> list[Alarm]:
    query = "SELECT max(time) FROM statuses WHERE time <= ?"
    (status,) = ledger.connection.execute(query, (rfc3339.text_of_seconds(now + _SKEW),)).fetchone()
    times = [] if status is None else [datetime.fromisoformat(status).timestamp()]
    policy, note = mirror.trust.witnesses, _cosigned(mirror, ledger)
    if policy is not None and note is not None:
        sound = tuple(item for item in note.verified if (item.timestamp or 0) <= now + _SKEW)
        witnessed = policy.witnessed_at(replace(note, verified=sound))
        times += [] if witnessed is None else [float(witnessed)]
    if not times:
        said = "the log has no status entry (`ledger status` signs one), its checkpoint no cosignatures of the quorum"
        return [Alarm("stale", f"nothing says when it was last signed: {said}; {_hours(max_age)} are allowed")]
    newest = max(times)
    if now - newest <= max_age:
        return []
    said = f"the newest time that the log or its witnesses signed is {rfc3339.text_of_seconds(newest)}"
    return [Alarm("stale", f"{said}, {_hours(now - newest)} ago; {_hours(max_age)} are allowed")]


def _future(mirror: Mirror, ledger: Ledger, first: int, now: float) -> list[Alarm]:
    """Times that nobody can have seen: in entries from `first` on, in the newest status, in cosignatures."""
    limit, early = rfc3339.text_of_seconds(now + _SKEW), dict[int, str]()
    for index, data in ledger.entries(first):
        statement = open_envelope(data).statement
        item = Listed(index, kind_of(statement), "", None, statement)
        if item.time is not None and item.time > limit:
            early[index] = f"entry {index} ({item.kind}, by key {item.predicate['signer']}) states {item.time}"
    for item in list_entries(ledger, kind="status", limit=1):
        if item.time is not None and item.time > limit:
            early[item.index] = f"the log's newest status, entry {item.index}, states {item.time}"
    note = _cosigned(mirror, ledger)
    said = [early[index] for index in sorted(early)] + [
        f"the cosignature of {item.verifier.name} states {rfc3339.text_of_seconds(item.timestamp or 0)}"
        for item in (() if note is None else note.verified)
        if (item.timestamp or 0) > now + _SKEW
    ]
    if len(said) > _SHOWN:
        said = [*said[:_SHOWN], f"and {len(said) - _SHOWN} more"]
    return [Alarm("future-time", f"{text}, which is yet to come by this clock") for text in said]


def _cosigned(mirror: Mirror, ledger: Ledger) -> Note | None:
    """The newest checkpoint with the verified cosignatures of the policy's witnesses, if it has any."""
    text = ledger.latest_checkpoint()
    try:
        return None if text is None else open_note(text, mirror.trust.cosigners)
    except (NoKnownSigner, SignatureError):
        return None


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours"
