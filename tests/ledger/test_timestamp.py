"""Timestamps by a local authority: `openssl ts` answers, our client asks, both check."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwitness.ledger import timestamp
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.ledger.timestamp import TimestampRefused, TimestampUnavailable

from .tsa import Authority, make_authority, openssl, serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with serving(tmp_path_factory.mktemp("tsa") / "tsa") as made:
        yield made


def test_a_checkpoint_is_stamped_and_both_verifiers_agree(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.change = ""
    project = Project.create(tmp_path / "project")
    base = ["--project", str(project.root)]
    assert main([*base, "checkpoint"]) == 0
    capsys.readouterr()
    assert main([*base, "timestamp", "get", authority.url, "--ca", str(authority.roots), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    note, answer = (project.root / "timestamps" / f"{said['size']}.{kind}" for kind in ("note", "tsr"))
    files = [str(note), str(answer), "--ca", str(authority.roots)]
    assert main(["timestamp", "verify", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    openssl(tmp_path, "ts", "-verify", "-data", str(note), "-in", str(answer), "-CAfile", str(authority.roots))
    note.write_text(note.read_text() + "\n")
    assert main(["timestamp", "verify", *files]) == 1
    assert "other bytes" in capsys.readouterr().err


def test_what_is_no_timestamp_of_the_note_is_refused(authority: Authority, tmp_path: Path) -> None:
    authority.change = ""
    note = b"a note\n"
    roots = timestamp.load_roots(authority.roots.read_bytes())
    answer = timestamp.ask(authority.url, note)
    assert timestamp.check(answer, note, roots)
    other = tmp_path / "other"
    make_authority(other)
    with pytest.raises(TimestampRefused, match="not by an authority"):
        timestamp.check(answer, note, timestamp.load_roots((other / "ca.crt").read_bytes()))
    with pytest.raises(TimestampRefused, match="other bytes"):
        timestamp.check(answer, b"another\n", roots)
    for place in range(len(answer) // 2, len(answer), 97):
        damaged = bytearray(answer)
        damaged[place] ^= 1
        if damaged != answer:
            with pytest.raises((TimestampRefused, TimestampUnavailable)):
                timestamp.check(bytes(damaged), note, roots)
    for bad in (b"", b"\x30\x03", b"x" * (timestamp.LIMIT + 1)):
        with pytest.raises(TimestampRefused):
            timestamp.check(bad, note, roots)
    authority.change = "replay"
    with pytest.raises(TimestampRefused, match="another question"):
        timestamp.ask(authority.url, note)
    authority.change = "refused"
    with pytest.raises(TimestampUnavailable, match="answered 503"):
        timestamp.ask(authority.url, note)
    with pytest.raises(TimestampUnavailable, match="no PEM"):
        timestamp.load_roots(b"nothing")


def test_certificates_of_no_known_version(authority: Authority) -> None:
    pem = authority.roots.read_text().split("\n")
    der = bytearray(base64.b64decode("".join(line for line in pem if line and "-----" not in line)))
    at = der.index(bytes.fromhex("a003020102"))
    der[at + 4] = 77
    changed = f"{pem[0]}\n{base64.b64encode(der).decode()}\n-----END CERTIFICATE-----\n"
    with pytest.raises(TimestampUnavailable, match="version"):
        timestamp.load_roots(changed.encode())
