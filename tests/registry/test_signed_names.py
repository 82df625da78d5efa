"""Names are what signed entries say: edited tables and old bundles put back change no verdict on a named version."""

from __future__ import annotations

import json
import shutil
import sqlite3
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.key_entries import revocation
from bitwitness.ledger.keys import generate
from bitwitness.registry import words
from bitwitness.registry.bundles import bundle
from bitwitness.registry.catalog import list_models, show_model
from bitwitness.registry.names import AliasUnsound, find_version
from bitwitness.registry.register import register
from bitwitness.registry.signed_names import WordsUnsound

from .conftest import Registered


def _verify(registered: Registered, capsys: pytest.CaptureFixture[str], name: str, code: int) -> dict[str, Any]:
    """The checks by name of `ledger verify NAME`, or what stands on stderr under the name `error`."""
    arguments = ["--project", str(registered.project.root), "verify", name, "--policy", str(registered.policy)]
    assert main([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    return {"error": err} if not out else {check["name"]: check for check in json.loads(out)["checks"]}


@pytest.fixture
def promoted(registered: Registered) -> Registered:
    """demo-lm/1 is champion, demo-lm/2 (another step) is revoked."""
    register(registered.project, "demo-lm", "small", step=2)
    words.set_alias(registered.project, "demo-lm/1", "champion")
    return registered


def _edit(registered: Registered, *statements: str) -> None:
    with sqlite3.connect(registered.project.ledger_path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


def test_the_resolution_of_an_alias_is_a_check(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    checks = _verify(promoted, capsys, "demo-lm@champion", 0)
    with promoted.project.open_ledger() as ledger:
        entry = ledger.size - 1
    publisher = promoted.project.signer("publisher").keyid[:16]
    assert checks["alias"]["detail"] == f"champion → demo-lm/1, entry {entry}, by publisher {publisher}…"
    assert checks["name"]["ok"] is checks["revoked-here"]["ok"] is True


def test_an_edited_alias_is_found(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    """The table says another version than the signed word: the gate says so, and no command goes by the table."""
    _edit(
        promoted,
        "UPDATE endorsements SET release = (SELECT entry FROM releases WHERE version = 2) WHERE alias = 'champion'",
    )
    checks = _verify(promoted, capsys, "demo-lm@champion", 1)
    assert checks["alias"]["ok"] is False
    assert "demo-lm@champion is demo-lm/2 by the tables of ledger.db" in checks["alias"]["detail"]
    assert "says demo-lm/1" in checks["alias"]["detail"]
    with promoted.project.open_ledger() as ledger, pytest.raises(AliasUnsound):
        find_version(ledger, "demo-lm@champion")
    with pytest.raises(AliasUnsound):
        list_models(promoted.project)
    # The table cannot keep a publisher from moving the alias to where the table has it.
    assert words.set_alias(promoted.project, "demo-lm/2", "champion").new is True


def test_an_alias_that_only_the_table_has(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(promoted, "UPDATE endorsements SET alias = 'stable' WHERE alias = 'champion'")
    error = _verify(promoted, capsys, "demo-lm@stable", 2)["error"]
    assert "the tables were edited" in error and error.count("\n") == 1
    with promoted.project.open_ledger() as ledger, pytest.raises(AliasUnsound, match="none does"):
        find_version(ledger, "demo-lm@stable")


def test_what_is_shown_is_what_was_signed(promoted: Registered) -> None:
    """Tables that hide a revocation, name another licence or loss, or turn an audit round change nothing."""
    words.say(promoted.project, "demo-lm/2", "revoked", "wrong data")
    before = [show_model(promoted.project, name) for name in ("demo-lm/1", "demo-lm/2")], list_models(promoted.project)
    assert before[1][1]["state"] == "revoked" and before[0][1]["reason"] == "wrong data"
    _edit(
        promoted,
        "UPDATE endorsements SET statement = 'restored', reason = 'all is well' WHERE statement = 'revoked'",
        "UPDATE releases SET license = 'MIT', step = 3, weights = 'ab' WHERE version = 1",
        "UPDATE evals SET mean_bits = '3ff0000000000000', tokens = 1",
        "UPDATE audits SET result = 'mismatch', basis = 'beacon'",
        "UPDATE runs SET name = 'better'",
    )
    shown = [show_model(promoted.project, name) for name in ("demo-lm/1", "demo-lm/2")], list_models(promoted.project)
    assert shown == before
    with pytest.raises(words.WordRefused, match="is revoked, which nothing takes back"):
        words.say(promoted.project, "demo-lm/2", "restored")
    _edit(promoted, "UPDATE releases SET version = 9 WHERE version = 1")
    with pytest.raises(WordsUnsound, match="call another release demo-lm/9 than its entries"):
        show_model(promoted.project, "demo-lm/9")


def test_an_alias_by_a_key_that_was_revoked(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    project = promoted.project
    with project.open_ledger(writable=True) as ledger:
        publisher = project.signer("publisher")
        ledger.append([revocation(project.signer("root"), publisher.public, "publisher", ledger.size - 1)])
    check = _verify(promoted, capsys, "demo-lm@champion", 1)["alias"]
    assert check["ok"] is False and "was revoked from entry" in check["detail"] and "again" in check["detail"]


def test_a_signature_that_is_not_one(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does the policy's root key vouch for words of a ledger with other keys."""
    other = promoted.project.root / "other.toml"
    text, root = promoted.policy.read_text(), promoted.project.signer("root").public.raw.hex()
    other.write_text(text.replace(root, generate("root").public.raw.hex()))
    arguments = ["--project", str(promoted.project.root), "verify", "demo-lm@champion", "--policy", str(other)]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert "does not count under the policy's root key" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["demo-lm/1", "demo-lm@champion"])
def test_an_old_bundle_of_a_revoked_version(
    promoted: Registered, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The bundle of before the revocation is put back: by its path it still passes, by its name it does not."""
    old = (promoted.folder / bundle.FILE_NAME).read_bytes()
    arguments = ["--project", str(promoted.project.root), "model", "revoke", "demo-lm/1", "--reason", "wrong data"]
    assert main(arguments) == 0
    capsys.readouterr()
    (promoted.folder / bundle.FILE_NAME).write_bytes(old)
    assert main(["verify", str(promoted.folder), "--policy", str(promoted.policy)]) == 0
    capsys.readouterr()
    check = _verify(promoted, capsys, name, 1)["revoked-here"]
    assert check["ok"] is False
    assert check["detail"].startswith("the ledger here revoked it: demo-lm/1, entry ")
    assert check["detail"].endswith(": wrong data")


def test_an_old_bundle_of_a_deprecated_version(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    old = (promoted.folder / bundle.FILE_NAME).read_bytes()
    assert main(["--project", str(promoted.project.root), "model", "deprecate", "demo-lm/1"]) == 0
    capsys.readouterr()
    (promoted.folder / bundle.FILE_NAME).write_bytes(old)
    assert _verify(promoted, capsys, "demo-lm/1", 0)["deprecated-here"]["ok"] is None
    promoted.policy.write_text(promoted.policy.read_text() + "refuse_deprecated = true\n")
    assert _verify(promoted, capsys, "demo-lm/1", 1)["deprecated-here"]["ok"] is False


def test_a_key_that_was_revoked_since(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    project = promoted.project
    with project.open_ledger(writable=True) as ledger:
        trainer = project.signer("trainer")
        ledger.append([revocation(project.signer("root"), trainer.public, "trainer", 7)])
    check = _verify(promoted, capsys, "demo-lm/1", 1)["revoked-here"]
    assert check["ok"] is False and "revoked the key of entry" in check["detail"]


def test_another_version_in_the_folder(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    other = promoted.folder.parent / "2"
    shutil.rmtree(promoted.folder)
    shutil.copytree(other, promoted.folder)
    check = _verify(promoted, capsys, "demo-lm/1", 1)["name"]
    assert check["ok"] is False and "the folder holds demo-lm/2" in check["detail"]


def test_a_released_version_that_is_not_on_disk(promoted: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(promoted.folder)
    error = _verify(promoted, capsys, "demo-lm/1", 2)["error"]
    assert "`ledger model refresh demo-lm/1`" in error and error.count("\n") == 1


def test_a_policy_that_was_named_is_nobodys_else(
    registered: Registered, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that the command found around the model may have come with it."""
    monkeypatch.chdir(registered.project.root)
    for arguments, ok in (["--policy", "trust.toml"], True), ([], None):
        assert main(["verify", "models/demo-lm/1", *arguments, "--json"]) == 0
        check = json.loads(capsys.readouterr().out)["checks"][0]
        assert check["name"] == "policy" and check["ok"] is ok
        assert ("name yours by --policy" in check["detail"]) is (ok is None)
        assert "root key with keyid " in check["detail"]
