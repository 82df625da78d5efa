"""RFC 3161 timestamps inside bundles: an authority's word on the checkpoint, which a policy may ask for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.registry.bundles import bundle
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.interop import timestamps
from bitwitness.registry.policy import PolicyError, TimestampTrust, load_policy, parse_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.verify import examine

from ..ledger.tsa import Authority, make_authority, serving
from .conftest import Registered

Json = dict[str, Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with serving(tmp_path_factory.mktemp("tsa") / "tsa") as made:
        yield made


@pytest.fixture
def stamped(registered: Registered, authority: Authority, capsys: pytest.CaptureFixture[str]) -> Registered:
    base = ["--project", str(registered.project.root), "model", "timestamp", "demo-lm/1", authority.url]
    assert main([*base, "--ca", str(authority.roots), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "demo-lm"
    return registered


def checks_of(registered: Registered, roots: Path | None, days: int | None = None, later: int = 0) -> dict[str, Check]:
    policy = load_policy(registered.policy)
    if roots is not None:
        asked = TimestampTrust(authorities=roots.read_text(), max_age=days)
        policy = policy.model_copy(update={"timestamps": asked})
    checks = examine(registered.folder, policy, now=datetime.now(UTC) + timedelta(days=later)).checks
    return {check.name: check for check in checks}


def test_a_bundle_with_a_timestamp(stamped: Registered, authority: Authority) -> None:
    checks = checks_of(stamped, authority.roots, 3)
    assert exit_code(checks.values()) == 0
    assert checks["timestamp"].ok is True and checks["timestamp"].category == "POLICY"
    assert f"{datetime.now(UTC):%Y-%m}" in checks["timestamp"].detail
    # Nobody must look at it.
    unasked = checks_of(stamped, None)
    assert unasked["timestamp"].ok is None and not unasked["timestamp"].required and exit_code(unasked.values()) == 0
    # A policy in a file says it so.
    pem = authority.roots.read_text()
    stamped.policy.write_text(f'{stamped.policy.read_text()}\n[timestamps]\nauthorities = """\n{pem}"""\nmax_age = 3\n')
    assert main(["verify", str(stamped.folder), "--policy", str(stamped.policy)]) == 0


def test_a_timestamp_that_is_asked_for_and_does_not_count(
    stamped: Registered, authority: Authority, tmp_path: Path
) -> None:
    old = checks_of(stamped, authority.roots, 3, later=4)["timestamp"]
    assert old.ok is False and "3 days are allowed" in old.detail
    assert checks_of(stamped, authority.roots, later=4)["timestamp"].ok is True  # no age was asked for
    early = checks_of(stamped, authority.roots, 3, later=-4)["timestamp"]
    assert early.ok is None and early.required and "check the clock" in early.detail
    make_authority(tmp_path / "other")
    other = checks_of(stamped, tmp_path / "other" / "ca.crt")["timestamp"]
    assert other.ok is False and "not by an authority" in other.detail
    refresh(stamped.project, "demo-lm")  # the same log: the same checkpoint, but nobody stamped what is made anew
    gone = checks_of(stamped, authority.roots)["timestamp"]
    assert gone.ok is False and "the bundle holds none (`ledger model timestamp`)" in gone.detail


def test_a_timestamp_of_another_checkpoint(stamped: Registered, authority: Authority) -> None:
    path = stamped.folder / bundle.FILE_NAME
    held = bundle.parse(path.read_bytes()).timestamps
    with stamped.project.open_ledger(writable=True) as ledger:
        from bitwitness.registry.status import append_status

        from .project_fixture import add_intent

        add_intent(stamped.project, ledger, stamped.run)
        append_status(ledger, stamped.project.signer("log"))
    refresh(stamped.project, "demo-lm")
    moved = bundle.parse(path.read_bytes()).model_copy(update={"timestamps": held})
    path.write_bytes(moved.encode())
    check = checks_of(stamped, authority.roots)["timestamp"]
    assert check.ok is False and "other bytes than this note" in check.detail
    timestamps.add(stamped.project, "demo-lm", authority.url, authority.roots.read_bytes())
    assert checks_of(stamped, authority.roots)["timestamp"].ok is True  # one that counts is enough


def test_what_cannot_be_read(stamped: Registered, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stamped.folder / bundle.FILE_NAME
    read: Json = jcs.parse(path.read_bytes(), max_bytes=bundle.SIZE_LIMIT)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rfc3161_client", None)
        check = checks_of(stamped, authority.roots)["timestamp"]
        assert check.ok is None and check.required and "pip install 'bitwitness[timestamps]'" in check.detail
    for wrong in (["AAAA"], ["AAA"], ["é"], [], ["AAAA"] * 9, ["A" * ((1 << 17) + 4)]):
        path.write_bytes(json.dumps({**read, "timestamps": wrong}, sort_keys=True, separators=(",", ":")).encode())
        checks = checks_of(stamped, authority.roots)
        assert exit_code(checks.values()) == 1
        assert checks["bundle"].ok is False or "not a timestamp response" in checks["timestamp"].detail
    path.write_bytes(jcs.encode({**read, "timestamps": read["timestamps"] * 8}))
    with pytest.raises(timestamps.TooMany, match="holds 8 timestamps already"):
        timestamps.add(stamped.project, "demo-lm", authority.url, authority.roots.read_bytes())


def test_a_bundle_that_is_made_anew_meanwhile_stays(
    registered: Registered, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority takes its time: what was said of the version since is not put back by the older bundle."""
    from bitwitness.ledger import timestamp
    from bitwitness.registry import words

    ask = timestamp.ask

    def slow(url: str, data: bytes) -> bytes:
        answer = ask(url, data)
        words.say(registered.project, "demo-lm/1", "deprecated")
        refresh(registered.project, "demo-lm/1")
        return answer

    monkeypatch.setattr(timestamp, "ask", slow)
    with pytest.raises(BitwitnessError, match="was made anew while the authority answered"):
        timestamps.add(registered.project, "demo-lm/1", authority.url, authority.roots.read_bytes())
    read = bundle.parse((registered.folder / bundle.FILE_NAME).read_bytes())
    assert read.timestamps is None
    assert "deprecation" in checks_of(registered, None)


def test_policies_on_timestamps(registered: Registered) -> None:
    text = registered.policy.read_text()
    for wrong, reason in (
        ('authorities = "nobody"', "timestamps.authorities: no PEM certificates to trust"),
        ('authority = "x"', "unknown key timestamps.authority|the key timestamps.authorities is missing"),
        ("max_age = 3", "the key timestamps.authorities is missing"),
    ):
        with pytest.raises(PolicyError, match=reason):
            parse_policy(f"{text}\n[timestamps]\n{wrong}\n".encode(), registered.policy)
