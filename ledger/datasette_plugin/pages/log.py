"""The log itself: all entries, one entry of any kind, its bytes and proof as files, and the checkpoints."""

from __future__ import annotations

from typing import Any

from ...checkpoint import parse_checkpoint
from ...entry.entries import KINDS
from ...note import parse_note
from .. import signed_rows
from ..answers import Asked, File, Moved, NotHere, Page
from ..evidence import evidence, proof_file, trusted
from ..links import Links

PER_PAGE = 100

RECENT = "SELECT entry, kind, signer, run, seq FROM log WHERE entry < ? ORDER BY entry DESC"


def index(asked: Asked) -> Page | Moved:
    size = asked.ledger.size
    wanted = asked.query.get("entry", "").strip().lower()
    if wanted:
        return Moved(_find(asked, wanted))
    before = asked.number("before")
    if before is None or before > size:
        before = size
    return Page(
        "entries.html",
        "Entries",
        "entries",
        {
            "size": size,
            "before": before,
            "rows": asked.records("log", RECENT + " LIMIT ?", before, PER_PAGE),
            "newer": min(before + PER_PAGE, size) if before < size else None,
            "older": before - PER_PAGE if before > PER_PAGE else None,
        },
    )


def _find(asked: Asked, text: str) -> str:
    """The page of an entry named by number, or by leaf hash or its first digits."""
    if text.isascii() and text.isdigit() and len(text) < 8:
        return asked.links.entry(int(text))
    if 8 <= len(text) <= 64 and not set(text) - set("0123456789abcdef"):
        found = asked.ledger.find_prefix(text)
        if len(found) == 1:
            return asked.links.entry(found[0])
        if found:
            raise NotHere(f"{len(found)} leaf hashes begin with {text}; give more digits.")
    raise NotHere("No entry has this number or leaf hash. Give a number, or at least 8 hex digits of the hash.")


def entry(asked: Asked) -> Page:
    number = int(asked.parts["number"])
    found = signed_rows.judged(asked, evidence(asked, number))
    return Page(
        "entry.html",
        f"Entry {number}",
        "entries",
        {
            "found": found,
            "kind": KINDS[found.kind],
            "place": _place(asked.links, found.kind, number, found.run, found.predicate),
            "size": asked.ledger.size,
        },
    )


def _place(links: Links, kind: str, number: int, run: Any, predicate: Any) -> tuple[str, str] | None:
    """The page that shows an entry of this kind best: (address, what it is)."""
    if run is None and kind in ("step", "run"):
        return None  # the tables lead to no such run
    if kind == "step":
        step = predicate["computed"]["step"]
        return links.step(run["name"], step), f"step {step} of run {run['name']}"
    if kind == "run":
        return links.run(run["name"]), f"run {run['name']}"
    if kind == "audit":
        return links.audit(number), "the audit"
    if kind == "release":
        named = f"{predicate['model']} {predicate['version']}"
        return links.version(predicate["model"], predicate["version"]), f"model {named}"
    if kind == "dataset":
        return links.dataset(number), f"dataset {predicate['name']}"
    if kind == "key":
        return links.key(predicate["key"]["keyid"]), f"{predicate['key']['role']} key"
    return None


def by_hash(asked: Asked) -> Moved:
    """An entry named by its leaf hash."""
    digest = asked.parts["hash"]
    found = asked.ledger.find(bytes.fromhex(digest))
    if found is None:
        raise NotHere(f"No entry of this ledger has the leaf hash {digest[:16]}….")
    return Moved(asked.links.entry(found))


def _number(asked: Asked) -> int:
    number = int(asked.parts["number"])
    if number >= asked.ledger.size:
        raise NotHere(f"This ledger has {asked.ledger.size:,} entries, numbered from 0; there is no entry {number}.")
    return number


def raw(asked: Asked) -> File:
    """The signed bytes of an entry, exactly."""
    number = _number(asked)
    return File(asked.ledger.entry(number), f"entry-{number}.json", "application/json", immutable=True)


def proof(asked: Asked) -> File:
    """The proof file of an entry to the newest checkpoint that covers it."""
    number = _number(asked)
    return File(proof_file(asked, number), f"entry-{number}.tlog-proof", "text/plain; charset=utf-8")


def checkpoints(asked: Asked) -> Page:
    before = asked.number("before")
    rows = asked.rows(
        "SELECT id, size, note FROM checkpoints WHERE id < ? ORDER BY id DESC LIMIT ?",
        before if before is not None else 2**62,
        PER_PAGE,
    )
    for row in rows:
        note = parse_note(row["note"])
        row["root"] = parse_checkpoint(note.text).root.hex()
        row["signers"] = [line.name for line in note.lines]
    older = rows[-1]["id"] if rows and rows[-1]["id"] > 0 else None
    trust, pinned = trusted(asked)
    context = {"rows": rows, "older": older, "trust": trust, "pinned": pinned, "size": asked.ledger.size}
    return Page("checkpoints.html", "Checkpoints", "checkpoints", context)


def checkpoint(asked: Asked) -> File:
    """A signed note, exactly."""
    number = int(asked.parts["number"])
    note = asked.value("SELECT note FROM checkpoints WHERE id = ?", number)
    if note is None:
        raise NotHere(f"This ledger has no checkpoint {number}.")
    return File(note.encode("utf-8"), f"checkpoint-{number}.txt", "text/plain; charset=utf-8", immutable=True)
