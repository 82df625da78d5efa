"""A verifier by an outsider, written from docs/formats alone: it imports nothing of the program.

Whatever is not right raises Wrong. Proofs are checked as RFC 9162 writes it down, not as the program does it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNED_BY = {
    "trainer": ("dataset", "run", "resume", "step", "state", "eval", "halt", "end"),
    "auditor": ("audit-intent", "audit", "recheck", "endorse"),
    "publisher": ("release", "endorse"),
    "root": ("key",),
    "log": ("status",),
}
ROLES = {
    kind: {role for role in SIGNED_BY if kind in SIGNED_BY[role]} for kinds in SIGNED_BY.values() for kind in kinds
}
KIND = re.compile("https://bitwitness.dev/([a-z-]+)/v1")
NUMBER = re.compile("0|[1-9][0-9]*")


class Wrong(Exception):
    """Found wrong."""


def need(true: bool, what: str) -> None:
    if not true:
        raise Wrong(what)


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def unbase64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Wrong("base64") from None
    need(base64.b64encode(data).decode() == text, "base64 in its one spelling")
    return data


def number(text: str) -> int:
    need(NUMBER.fullmatch(text) is not None and len(text) < 20 and int(text) < 2**63, "a number")
    return int(text)


def signed_by(key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except InvalidSignature:
        return False
    return True


# json.md


def read_json(data: bytes) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len({key for key, _ in items}) == len(items) and all(key.isascii() for key, _ in items), "keys")
        return dict(items)

    def never(_text: str) -> Any:
        raise Wrong("a float")

    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs, parse_float=never, parse_constant=never)
    except (ValueError, RecursionError):
        raise Wrong("JSON") from None
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    need("null" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", written), "null")
    need(written.encode() == data, "canonical JSON")
    return value


# merkle.md


def leaf(data: bytes) -> bytes:
    return sha256(b"\0", data)


def root(hashes: list[bytes]) -> bytes:
    if len(hashes) < 2:
        return hashes[0] if hashes else sha256()
    k = 1 << (len(hashes) - 1).bit_length() - 1
    return sha256(b"\1", root(hashes[:k]), root(hashes[k:]))


def check_inclusion(index: int, size: int, hashed: bytes, path: list[bytes], signed: bytes) -> None:
    """RFC 9162, 2.1.3.2."""
    need(0 <= index < size < 2**63 and all(len(item) == 32 for item in (hashed, signed, *path)), "an index")
    fn, sn, r = index, size - 1, hashed
    for p in path:
        need(sn != 0, "a proof that is not too long")
        if fn & 1 or fn == sn:
            r = sha256(b"\1", p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = sha256(b"\1", r, p)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0 and r == signed, "the signed root")


def both_roots(first: int, second: int, path: list[bytes]) -> tuple[bytes, bytes]:
    """RFC 9162, 2.1.4.2, with the first hash always there: the roots that follow for the two sizes."""
    need(0 < first < second < 2**63 and bool(path) and all(len(item) == 32 for item in path), "two sizes and a proof")
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        need(sn != 0, "a proof that is not too long")
        if fn & 1 or fn == sn:
            fr, sr = sha256(b"\1", c, fr), sha256(b"\1", c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = sha256(b"\1", sr, c)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0, "a proof that is long enough")
    return fr, sr


def check_consistency(first: int, second: int, first_hash: bytes, second_hash: bytes, path: list[bytes]) -> None:
    """The same tree needs no hashes; an old tree of 2^n entries is its own first hash."""
    if first == second:
        need(0 < first < 2**63 and not path and first_hash == second_hash and len(first_hash) == 32, "the same root")
        return
    need(bool(path), "a proof")
    whole = [] if first & first - 1 else [first_hash]
    need(both_roots(first, second, [*whole, *path]) == (first_hash, second_hash), "both signed roots")


# note.md and checkpoint.md


def read_vkey(vkey: str) -> tuple[str, bytes, int, bytes]:
    """(name, key id, type, key)."""
    name, key_id, encoded = vkey.split("+", 2)
    data = unbase64(encoded)
    kind, key = data[0], data[1:]
    need(sha256(name.encode(), b"\n", bytes([kind]), key)[:4].hex() == key_id and kind in (1, 4), "a vkey")
    return name, bytes.fromhex(key_id), kind, key


def open_note(note: bytes, *vkeys: str) -> tuple[str, list[str]]:
    """The text, and the keys that signed it."""
    try:
        whole = note.decode()
    except UnicodeDecodeError:
        raise Wrong("UTF-8") from None
    need(len(note) <= 1_000_000 and not any(char < " " and char != "\n" for char in whole), "characters")
    text, split, lines = whole.rpartition("\n\n")
    need(bool(split) and lines.endswith("\n") and lines.count("\n") <= 100, "signature lines")
    known = {read_vkey(vkey)[:2]: vkey for vkey in vkeys}
    signers = []
    for line in lines[:-1].split("\n"):
        need(line.startswith("— ") and line.count(" ") == 2, "a signature line")
        name, encoded = line[2:].split(" ")
        need(name != "" and "+" not in name and not any(char.isspace() for char in name), "a name")
        data = unbase64(encoded)
        need(len(data) > 4, "a signature")
        key_id, signature = data[:4], data[4:]
        if (name, key_id) not in known:
            continue
        _name, _id, kind, key = read_vkey(known[name, key_id])
        message = f"{text}\n"
        if kind == 4:
            seconds, signature = int.from_bytes(signature[:8], "big"), signature[8:]
            need(len(data) == 76 and seconds < 2**63, "a cosignature")
            message = f"cosignature/v1\ntime {seconds}\n{message}"
        need(signed_by(key, signature, message.encode()), f"the signature of {name}")
        signers.append(known[name, key_id])
    need(bool(signers), "a known signer")
    return f"{text}\n", signers


Line = list[tuple[str, int, int]]
"""Log keys, and the sizes of the trees that each signs: from, and to."""


def read_checkpoint(note: bytes, log: str | Line, *witnesses: str) -> tuple[int, bytes, list[str]]:
    """Size, root, and the names of who signed: a log key must have, whose name is the origin."""
    line = [(log, 0, 2**63)] if isinstance(log, str) else log
    text, signers = open_note(note, *(vkey for vkey, _from, _to in line), *witnesses)
    origin, stated, encoded, *more = text.split("\n")
    size, signed = number(stated), unbase64(encoded)
    need(more[-1] == "" and "" not in more[:-1] and origin == read_vkey(line[0][0])[0], "a checkpoint")
    need(any(vkey in signers and low <= size <= high for vkey, low, high in line), "the log's signature")
    need(len(signed) == 32 and (size > 0 or signed == sha256()), "a root")
    return size, signed, [read_vkey(vkey)[0] for vkey in signers]


# entries.md


def read_entry(data: bytes) -> tuple[dict[str, Any], Callable[[bytes], bool]]:
    """The statement, and whether a key has signed it."""
    need(len(data) <= 65_535, "a size")
    envelope = read_json(data)
    need(set(envelope) == {"payload", "payloadType", "signatures"}, "an envelope")
    (signed,) = envelope["signatures"]
    need(set(signed) == {"keyid", "sig"} and envelope["payloadType"] == "application/vnd.in-toto+json", "an envelope")
    payload = unbase64(envelope["payload"])
    statement = read_json(payload)
    need(set(statement) == {"_type", "predicateType", "subject", "predicate"}, "a statement")
    need(statement["_type"] == "https://in-toto.io/Statement/v1", "a statement")
    need(statement["predicate"]["signer"] == signed["keyid"], "one signer")
    encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)

    def by(key: bytes) -> bool:
        return hashlib.sha256(key).hexdigest() == signed["keyid"] and signed_by(key, unbase64(signed["sig"]), encoded)

    return statement, by


def kind_of(statement: dict[str, Any]) -> str:
    found = KIND.fullmatch(statement["predicateType"])
    need(found is not None and found[1] in ROLES, "a kind")
    return str(found[1] if found else "")


# handover.md


def follow(handovers: list[Any], vkey: str, root_key: bytes) -> Line:
    """The log keys to which handovers lead from the pinned one."""
    line = [(vkey, 0, 2**63)]
    for item in handovers:
        need(set(item) == {"checkpoint", "key"} and set(item["key"]) == {"entry", "hashes", "index"}, "a handover")
        now, since, _last = line[-1]
        origin, _id, _kind, key = read_vkey(now)
        entry, at = unbase64(item["key"]["entry"]), item["key"]["index"]
        statement, by = read_entry(entry)
        said = statement["predicate"]
        if said.get("replaces") != hashlib.sha256(key).hexdigest():
            continue
        need(kind_of(statement) == "key" and by(root_key) and said["key"]["role"] == "log", "the root's word")
        typed = b"\1" + bytes.fromhex(said["key"]["public"])
        key_id = sha256(origin.encode(), b"\n", typed)[:4].hex()
        new = f"{origin}+{key_id}+{base64.b64encode(typed).decode()}"
        _text, signers = open_note(item["checkpoint"].encode(), now, new)
        need({now, new} <= set(signers), "both signatures")
        size, signed, _names = read_checkpoint(item["checkpoint"].encode(), now)
        check_inclusion(at, size, leaf(entry), [bytes.fromhex(text) for text in item["key"]["hashes"]], signed)
        line[-1:] = [(now, since, at), (new, at + 1, 2**63)]
    return line


# proof.md and standalone-proof.md


def check_proof(proof: bytes, vkey: str, root_key: bytes) -> dict[str, Any]:
    """A `.tlog-proof` that stands alone: the statement that it proves."""
    head, split, note = proof.partition(b"\n\n")
    need(bool(split), "a checkpoint")
    first, extra, index, *hashes = head.decode("ascii", "replace").split("\n")
    need(first == "c2sp.org/tlog-proof@v1" and extra[:6] == "extra " and index[:6] == "index ", "a proof")
    at = number(index[6:])
    more = read_json(unbase64(extra[6:]))
    size, signed, _names = read_checkpoint(note, follow(more.pop("handovers", []), vkey, root_key))
    need(set(more) == {"entry", "signer"} and set(more["signer"]) == {"entry", "hashes", "index"}, "the extra line")
    entry, enrolment = unbase64(more["entry"]), unbase64(more["signer"]["entry"])
    check_inclusion(at, size, leaf(entry), [unbase64(item) for item in hashes], signed)
    statement, by = read_entry(entry)
    said, by_root = read_entry(enrolment)
    need(kind_of(said) == "key" and said["predicate"]["action"] in ("enrol", "rotate") and by_root(root_key), "a key")
    path = [bytes.fromhex(item) for item in more["signer"]["hashes"]]
    need(more["signer"]["index"] <= at, "a key that was there")
    check_inclusion(more["signer"]["index"], size, leaf(enrolment), path, signed)
    key = said["predicate"]["key"]
    need(key["role"] in ROLES[kind_of(statement)] and by(bytes.fromhex(key["public"])), "the entry's signature")
    return statement


# tiles.md


def read_tiles(folder: Path, vkey: str, root_key: bytes, *witnesses: str) -> tuple[list[bytes], list[str]]:
    """All entries of a log from its static files, and who signed; each tile holds what it must."""
    said: dict[str, Any] = {"format": "bitwitness/handovers/1", "handovers": []}
    if (folder / "handovers").exists():
        said = read_json((folder / "handovers").read_bytes())
    need(set(said) == {"format", "handovers"} and said["format"] == "bitwitness/handovers/1", "handovers")
    line = follow(said["handovers"], vkey, root_key)
    size, signed, names = read_checkpoint((folder / "checkpoint").read_bytes(), line, *witnesses)

    def tiles(level: str, count: int) -> list[bytes]:
        found = []
        for at in range(0, count, 256):
            digits = f"{at // 256:03d}"
            digits = digits.zfill(-(-len(digits) // 3) * 3)
            groups = [digits[place : place + 3] for place in range(0, len(digits), 3)]
            path = "/".join(["x" + group for group in groups[:-1]] + groups[-1:])
            partial = "" if count - at >= 256 else f".p/{count - at}"
            found.append((folder / f"tile/{level}/{path}{partial}").read_bytes())
        return found

    entries = []
    for bundle in tiles("entries", size):
        while bundle:
            length = int.from_bytes(bundle[:2], "big")
            need(len(bundle) >= 2 + length, "a bundle")
            entries.append(bundle[2 : 2 + length])
            bundle = bundle[2 + length :]
    hashes = [leaf(entry) for entry in entries]
    need(len(entries) == size and root(hashes) == signed, "the signed root")
    level = 0
    while hashes:
        need(b"".join(tiles(str(level), len(hashes))) == b"".join(hashes), f"tiles of level {level}")
        hashes = [root(hashes[at : at + 256]) for at in range(0, len(hashes) // 256 * 256, 256)]
        level += 1
    return entries, names


# fork.md


def check_fork(data: bytes, vkey: str, root_key: bytes) -> None:
    """Returns if the evidence convicts the log."""
    said = read_json(data.removesuffix(b"\n"))
    need(said["format"] == "bitwitness/fork/1", "a format")
    line = [(key, 0, 2**63) for key, _from, _to in follow(said.get("handovers", []), vkey, root_key)]
    if said["kind"] == "run":
        size, signed, _names = read_checkpoint(said["checkpoint"].encode(), line)
        places = []
        for item in said["entries"]:
            entry = unbase64(item["entry"])
            check_inclusion(item["index"], size, leaf(entry), [bytes.fromhex(text) for text in item["hashes"]], signed)
            predicate = read_entry(entry)[0]["predicate"]
            places.append((item["index"], predicate["run"], predicate["seq"]))
        (one, *place), (other, *same) = places
        need(one != other and place == same, "two entries for one place")
        return
    (size1, root1, _), (size2, root2, _) = (read_checkpoint(text.encode(), line) for text in said["checkpoints"])
    if said["kind"] == "roots":
        need(size1 == size2 and root1 != root2, "two roots")
        return
    need(said["kind"] == "history" and 0 < size1 < size2, "an older and a newer one")
    old, new = both_roots(size1, size2, [bytes.fromhex(item) for item in said["hashes"]])
    need(new == root2 and old != root1, "another history")
