"""Hostile models, one line each: what is done, the check that refuses it, and its own reason; all in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.entry.key_entries import revocation
from bitwitness.ledger.keys import Signer
from bitwitness.registry.bundles import bundle
from bitwitness.registry.checks import exit_code
from bitwitness.registry.gating.gate import Request, decide
from bitwitness.registry.register import register

from . import project_fixture
from .conftest import Registered
from .forge import Forge

WEIGHTS = "model.safetensors"


def _signed(registered: Registered, change: Callable[[bytes], bytes], name: str = WEIGHTS) -> None:
    """Change a file, and have the publisher sign what it is now: only what is in it can be refused."""
    path = registered.folder / name
    data = change(path.read_bytes())
    path.write_bytes(data)
    forge = Forge(registered.project, registered.folder)
    release = forge.find("release")
    files = [dict(item) for item in forge.predicate(release)["files"]]
    for item in files:
        if item["name"] == name:
            item.update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    forge.change(release, files=files)
    _lean(forge)


def _lean(forge: Forge) -> None:
    """Write the bundle without the status, whose ledger root the forger cannot have."""
    forge.shown.discard(forge.find("status"))
    forge.status = None
    forge.write()


def _header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Registered], None]:
    def apply(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + length])
        text = change(table)
        text = json.dumps(table).encode() if text is None else text
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return lambda registered: _signed(registered, apply)


def _overlap(table: dict[str, Any]) -> None:
    names = [key for key in table if key != "__metadata__"]
    table[names[1]]["data_offsets"] = table[names[0]]["data_offsets"]
    table[names[1]]["shape"] = table[names[0]]["shape"]


def _huge(table: dict[str, Any]) -> None:
    last = max((value for key, value in table.items() if key != "__metadata__"), key=lambda v: v["data_offsets"])
    begin = last["data_offsets"][0]
    last.update(shape=[1 << 40], data_offsets=[begin, begin + (1 << 42)])


def _twice(table: dict[str, Any]) -> bytes:
    name = next(key for key in table if key != "__metadata__")
    return (json.dumps(table)[:-1] + f', "{name}": {json.dumps(table[name])}}}').encode()


def _nan(registered: Registered) -> None:
    """One NaN in place of another: equal to a program that compares numbers, other bits to us."""
    path = registered.folder / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-4:] = struct.pack("<I", 0x7FC00001)
    path.write_bytes(data)


def _file(name: str) -> Callable[[Registered], None]:
    return lambda registered: (registered.folder / name).touch()


def _listed(name: str) -> Callable[[Registered], None]:
    """The publisher signs a release that lists such a file."""

    def apply(registered: Registered) -> None:
        forge = Forge(registered.project, registered.folder)
        release = forge.find("release")
        forge.change(
            release, files=[*forge.predicate(release)["files"], {"name": name, "sha256": "ab" * 32, "bytes": 1}]
        )
        _lean(forge)

    return apply


def _link(registered: Registered) -> None:
    path = registered.folder / WEIGHTS
    path.rename(registered.folder.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def _gigabyte(registered: Registered) -> None:
    with open(registered.folder / bundle.FILE_NAME, "r+b") as file:
        file.truncate(1 << 30)


def _million(registered: Registered) -> None:
    (registered.folder / bundle.FILE_NAME).write_bytes(b'{"entries":[' + b"{}," * 1_000_000 + b"{}]}")


def _deep(registered: Registered) -> None:
    (registered.folder / bundle.FILE_NAME).write_bytes(b'{"a":' * 100_000)


def _other_log(registered: Registered) -> None:
    """Entries and proofs of another project's log, handed over as this one's."""
    other = project_fixture.make(registered.project.root.parent / "other")
    made = register(other.project, "demo-lm", "small")
    shutil.copy(made.path / bundle.FILE_NAME, registered.folder / bundle.FILE_NAME)


def _foreign_proofs(registered: Registered) -> None:
    """This log's checkpoint over another log's entries and proofs."""
    held = jcs.parse((registered.folder / bundle.FILE_NAME).read_bytes())
    _other_log(registered)
    path = registered.folder / bundle.FILE_NAME
    path.write_bytes(jcs.encode({**jcs.parse(path.read_bytes()), "checkpoint": held["checkpoint"]}))


def _other_weights(registered: Registered) -> None:
    """A valid bundle of the same run, for the weights of another step."""
    made = register(registered.project, "demo-lm", "small", step=2)
    shutil.copy(made.path / bundle.FILE_NAME, registered.folder / bundle.FILE_NAME)


def _revoked(registered: Registered) -> None:
    """The publisher's key was revoked before the release was logged."""
    forge = Forge(registered.project, registered.folder)
    root, publisher = (registered.project.signer(role) for role in ("root", "publisher"))
    forge.log.append(revocation(root, publisher.public, "publisher", forge.find("release")))
    forge.shown.add(len(forge.log) - 1)
    _lean(forge)


def _expired(registered: Registered) -> None:
    """The trainer's key had been replaced by another before the last step was signed with it."""
    forge = Forge(registered.project, registered.folder)
    fresh = Signer.from_seed("trainer", b"\7" * 32)
    key = {"algorithm": "ed25519", "keyid": fresh.keyid, "public": fresh.public.raw.hex(), "role": "trainer"}
    old = registered.project.signer("trainer").keyid
    index = forge.find("dataset") - 1  # a place before the run, where another key stood
    forge.log[index] = forge.sign(
        "key", {"action": "rotate", "key": key, "replaces": old, "time": project_fixture.TIME}
    )
    forge.shown.add(index)
    _lean(forge)


TABLE: list[tuple[str, Callable[[Registered], Any], str, str]] = [
    ("a path that leaves the folder", _listed("sub/model.safetensors"), "files", "none of the files"),
    ("a symbolic link", _link, "folder", "is a symbolic link"),
    ("a twin in case", _file("Model.safetensors"), "folder", "differ only in case"),
    ("a twin in Unicode", _file("model.safetensor\u017f"), "folder", "not a plain file name"),
    ("a file that nobody signed", _file("vocab.json"), "files", "is not listed in the release"),
    ("a tokenizer of somebody's", _file("tokenizer.json"), "export", "is not the one that the dataset was made with"),
    ("a card of somebody's", _file("README.md"), "export", "is not the card that follows from the bundle"),
    ("code beside the model", _file("modeling_llama.py"), "files", "is not listed in the release"),
    ("a pickle, .bin", _file("pytorch_model.bin"), "folder", "can run code"),
    ("a pickle, .pt", _file("model.pt"), "folder", "can run code"),
    ("a pickle, .pkl", _file("model.pkl"), "folder", "can run code"),
    ("a pickle that is listed", _listed("pytorch_model.bin"), "files", "none of the files"),
    ("a key twice in the header", _header(_twice), "weights", "twice"),
    ("overlapping offsets", _header(_overlap), "weights", "overlaps the one before it"),
    ("huge offsets", _header(_huge), "weights", "the file has only"),
    ("a deep header", _header(lambda table: b"[" * 4096), "weights", "nested"),
    ("a header that is longer than the file", lambda r: _signed(r, lambda d: b"\xff" * 8 + d[8:]), "weights", "claims"),
    ("a huge header", lambda r: _signed(r, lambda d: struct.pack("<Q", 100 << 20) + d[8:]), "weights", "claims"),
    ("a NaN of another payload", _nan, "weights", "has other values"),
    ("a bundle of a gigabyte", _gigabyte, "bundle", "more than the 8388608"),
    ("a million entries", _million, "bundle", "more than 400000 values"),
    ("deep nesting", _deep, "bundle", "nested deeper than 32"),
    ("another log's bundle", _other_log, "checkpoint", "not one of the policy's log"),
    ("another log's proofs", _foreign_proofs, "inclusion", "is not in the log"),
    ("a valid bundle for other weights", _other_weights, "weights", "has other values"),
    ("a revoked key", _revoked, "signatures", "revoked from entry"),
    ("a key that had been replaced", _expired, "signatures", "revoked from entry"),
]


@pytest.mark.parametrize(("change", "check", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_it_is_refused(registered: Registered, change: Callable[[Registered], Any], check: str, reason: str) -> None:
    change(registered)
    tracemalloc.start()
    assert reason in registered.refused(check)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../secret", "C:\\secret", ".", ""])
def test_a_release_cannot_even_name_what_lies_outside(registered: Registered, name: str) -> None:
    """An absolute path, or one with `..`, is no file name in an entry: the ledger's own form refuses it."""
    forge = Forge(registered.project, registered.folder)
    release = forge.find("release")
    files = [*forge.predicate(release)["files"], {"name": name, "sha256": "ab" * 32, "bytes": 1}]
    forge.change(release, files=files)
    _lean(forge)
    assert "is not file name" in registered.refused("inclusion")


def test_a_rollback_to_an_older_version(registered: Registered, tmp_path: Path) -> None:
    newer = register(registered.project, "demo-lm", "small")
    state = tmp_path / "seen.json"
    assert exit_code(decide(Request(newer.path, registered.policy, state=state)).checks) == 0
    checks = {c.name: c for c in decide(Request(registered.folder, registered.policy, state=state)).checks}
    assert checks["memory"].ok is False and "older than 2" in checks["memory"].detail


def test_weights_are_hashed_in_bounded_memory(registered: Registered) -> None:
    """A file of holes, as large as is signed, is read through a few buffers, whatever it claims."""
    path = registered.folder / WEIGHTS
    with open(path, "r+b") as file:
        file.truncate(256 << 20)
    forge = Forge(registered.project, registered.folder)
    release = forge.find("release")
    files = [dict(item) for item in forge.predicate(release)["files"]]
    files[1]["bytes"] = os.path.getsize(path)
    forge.change(release, files=files)
    _lean(forge)
    tracemalloc.start()
    assert "belong to no tensor" in registered.refused("weights")
    assert tracemalloc.get_traced_memory()[1] < 48 << 20
    tracemalloc.stop()
