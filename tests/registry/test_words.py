"""Aliases, deprecation and revocation: signed words that the ledger keeps, the gate applies and no bundle can drop."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import EntryError
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.registry import words
from bitwitness.registry.bundles import bundle
from bitwitness.registry.catalog import list_models, show_model
from bitwitness.registry.catalog_tree import tree_lines
from bitwitness.registry.checks import exit_code
from bitwitness.registry.names import NoSuchModel, find_version
from bitwitness.registry.register import register
from bitwitness.registry.status import append_status, check_statuses

from .conftest import Registered
from .forge import Forge
from .project_fixture import add_audit, add_intent

Json = dict[str, Any]


def _answer(capsys: pytest.CaptureFixture[str], registered: Registered, *arguments: str, code: int = 0) -> Any:
    assert main(["--project", str(registered.project.root), *arguments]) == code
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in arguments else out


def _named(registered: Registered, name: str) -> str:
    with registered.project.open_ledger() as ledger:
        return str(find_version(ledger, name))


def test_an_alias_moves_and_goes(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    project = registered.project
    register(project, "demo-lm", "small", step=2)
    assert "demo-lm@champion is demo-lm/1" in _answer(capsys, registered, "model", "alias", "demo-lm/1", "champion")
    assert _named(registered, "demo-lm@champion") == "demo-lm/1"
    assert _named(registered, "demo-lm") == "demo-lm/2"
    moved = _answer(capsys, registered, "model", "alias", "demo-lm", "champion", "--json")
    assert (moved["version"], moved["new"]) == (2, True)
    assert _answer(capsys, registered, "model", "alias", "demo-lm/2", "champion", "--json")["new"] is False
    assert _named(registered, "demo-lm@champion") == "demo-lm/2"
    assert [row["aliases"] for row in list_models(project)] == [[], ["champion"]]
    assert "├── aliases: champion" in tree_lines(show_model(project, "demo-lm@champion"))
    assert _answer(capsys, registered, "verify", "demo-lm/1", "--policy", str(registered.policy)).endswith("verified\n")
    _answer(capsys, registered, "model", "alias", "demo-lm", "champion", "--remove")
    with pytest.raises(NoSuchModel, match="has no alias champion"):
        _named(registered, "demo-lm@champion")
    checks = verify_ledger(project.ledger_path, load_trust(project.trust_path)).checks
    assert not [check for check in checks if check.ok is False]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("alias", "demo-lm/7", "champion"), 2, "it has version 1"),
        (("alias", "other/1", "champion"), 2, "there is no model other"),
        (("alias", "demo-lm/1", "a b"), 2, "not an alias name"),
        (("alias", "demo-lm/1", "2"), 2, "read like a version"),
        (("alias", "demo-lm", "nobody", "--remove"), 2, "no alias nobody"),
        (("alias", "../demo-lm", "x"), 2, "NAME, NAME/VERSION or NAME@ALIAS"),
        (("deprecate", "demo-lm/1", "--undo"), 2, "neither deprecated nor revoked"),
        (("revoke", "demo-lm/1", "--reason", "a\nb"), 2, "printable ASCII"),
    ],
)
def test_words_that_are_refused(
    registered: Registered, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, reason: str
) -> None:
    with registered.project.open_ledger() as ledger:
        before = ledger.size
    assert main(["--project", str(registered.project.root), "model", *arguments]) == code
    err = capsys.readouterr().err
    assert reason in err and err.count("\n") == 1
    with registered.project.open_ledger() as ledger:
        assert ledger.size == before


def test_promotion_asks_for_a_policy(registered: Registered, tmp_path: Path) -> None:
    """What fails the policy gets no alias, by option or by bitwitness.toml; what passes has the policy's digest."""
    project = registered.project
    strict = tmp_path / "strict.toml"
    strict.write_text(registered.policy.read_text() + "min_version = 2\n")
    with pytest.raises(words.NotPromoted, match=r"does not pass .*, so champion is not set: min-version") as caught:
        words.set_alias(project, "demo-lm/1", "champion", strict)
    assert caught.value.exit_code == 1
    with project.config.open("a") as file:
        file.write(f'[aliases]\nchampion = "{strict}"\n')
    asked = type(project).find(project.root)
    with pytest.raises(words.NotPromoted):
        words.set_alias(asked, "demo-lm/1", "champion")
    words.set_alias(asked, "demo-lm/1", "challenger")
    register(asked, "demo-lm", "small")
    words.set_alias(asked, "demo-lm/2", "champion")
    with pytest.raises(words.NotPromoted, match="so champion stays at demo-lm/2: min-version"):
        words.set_alias(asked, "demo-lm/1", "champion")
    (word,) = show_model(asked, "demo-lm@champion")["words"]
    assert word["policy"] == __import__("hashlib").sha256(strict.read_bytes()).hexdigest()


def test_only_publishers_move_aliases_and_revoke(registered: Registered) -> None:
    """Neither the ledger takes such a word of an auditor, nor the verifier or the gate if a log took it."""
    auditor = registered.project.signer("auditor")
    forge = Forge(registered.project, registered.folder)
    said = {"release": forge.leaf(forge.find("release")), "time": "2026-01-02T03:04:05Z"}
    for fields in ({"statement": "revoked"}, {"statement": "deprecated"}, {"statement": "alias", "alias": "x"}):
        entry = seal(statement("endorse", None, {**said, **fields, "signer": auditor.keyid}), auditor)
        with (
            registered.project.open_ledger(writable=True) as ledger,
            pytest.raises(EntryError, match="needs a publisher key"),
        ):
            ledger.append([entry])
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append(
            [seal(statement("endorse", None, {**said, "statement": "approved", "signer": auditor.keyid}), auditor)]
        )
    forge.add("endorse", {**said, "statement": "revoked"}, role="auditor")
    forge.write()
    assert "a auditor key signed it, not a publisher key" in registered.refused("signatures")


@pytest.mark.parametrize("fields", [{"statement": "alias"}, {"statement": "approved", "alias": "x"}])
def test_an_alias_stands_with_its_statement(fields: Json) -> None:
    with pytest.raises(EntryError, match="alias"):
        statement(
            "endorse", None, {"signer": "ab" * 32, "release": "ab" * 32, "time": "2026-01-02T03:04:05Z", **fields}
        )


def test_a_deprecated_version(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    _answer(capsys, registered, "model", "deprecate", "demo-lm/1", "--reason", "use 2")
    checks = registered.verdict()
    assert exit_code(checks.values()) == 0
    assert checks["deprecation"].ok is None and "use 2" in checks["deprecation"].detail
    assert "├── deprecated: use 2" in tree_lines(show_model(registered.project, "demo-lm/1"))
    registered.policy.write_text(registered.policy.read_text() + "refuse_deprecated = true\n")
    assert "use 2" in registered.refused("deprecation")
    _answer(capsys, registered, "model", "deprecate", "demo-lm/1", "--undo")
    assert exit_code(registered.verdict().values()) == 0


def test_a_revoked_version(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _answer(capsys, registered, "model", "revoke", "demo-lm/1", "--reason", "wrong data", "--json")
    assert answer["statement"] == "revoked" and answer["bundle"] == str(registered.folder / bundle.FILE_NAME)
    assert "wrong data" in registered.refused("revocations")
    with pytest.raises(words.WordRefused, match="is revoked"):
        words.set_alias(registered.project, "demo-lm/1", "champion")
    with pytest.raises(words.WordRefused, match="nothing takes back"):
        words.say(registered.project, "demo-lm/1", "restored")
    assert words.say(registered.project, "demo-lm/1", "revoked").new is False
    # Whoever drops the word is found by the status; whoever drops the status too has nothing that lists the audits.
    held = jcs.parse((registered.folder / bundle.FILE_NAME).read_bytes())
    ledger_words = [item for item in held["entries"] if b"endorse/v1" in _payload(item)]
    held["entries"] = [item for item in held["entries"] if item not in ledger_words]
    (registered.folder / bundle.FILE_NAME).write_bytes(jcs.encode(held))
    assert "left out or added" in registered.refused("status")
    assert "the release is revoked" in registered.refused("revocations")


def _payload(item: Json) -> bytes:
    import base64

    return base64.b64decode(item["entry"]["payload"])


def test_a_refreshed_bundle_tells_what_came_later(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    before = (registered.folder / bundle.FILE_NAME).read_bytes()
    weights = (registered.folder / "model.safetensors").stat().st_mtime_ns
    with registered.project.open_ledger(writable=True) as ledger:
        intent = add_intent(registered.project, ledger, registered.run)
        add_audit(registered.project, ledger, registered.run, intent, "mismatch")
    assert registered.verdict()["audit"].ok is True
    _answer(capsys, registered, "model", "refresh", "demo-lm/1")
    assert "does not replay" in registered.refused("audit")
    assert (registered.folder / "model.safetensors").stat().st_mtime_ns == weights
    assert [path.name for path in registered.folder.parent.iterdir()] == ["1"]
    # The leaves are hashed again if the bundle that is there cannot be used, and give the same bytes.
    after = (registered.folder / bundle.FILE_NAME).read_bytes()
    for broken in (b"{}", before.replace(b'"weights":[{"bytes"', b'"weights":[{"byte"')):
        (registered.folder / bundle.FILE_NAME).write_bytes(broken)
        _answer(capsys, registered, "model", "refresh", "demo-lm/1", "--json")
        assert (registered.folder / bundle.FILE_NAME).read_bytes() == after
    data = bytearray((registered.folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (registered.folder / "model.safetensors").write_bytes(data)
    (registered.folder / bundle.FILE_NAME).unlink()
    _answer(capsys, registered, "model", "refresh", "demo-lm/1", code=1)


def test_two_versions_are_compared(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    register(registered.project, "demo-lm", "small", step=2, license="MIT")
    found = _answer(capsys, registered, "model", "diff", "demo-lm/1", "demo-lm/2", "--json")
    assert found["fields"]["license"] == ["Apache-2.0", "MIT"]
    assert found["fields"]["lineages[0].step"] == [4, 2]
    assert "lineages[0].run.id" not in found["fields"]
    assert found["tensors"]["changed"] and found["tensors"]["equal"] == 0
    text = _answer(capsys, registered, "model", "diff", "demo-lm/1", "demo-lm/2")
    assert "- lineages[0].step: 4" in text and "+ lineages[0].step: 2" in text and "~ model.norm.weight" in text
    same = _answer(capsys, registered, "model", "diff", "demo-lm/1", "demo-lm/1", "--json")
    assert same["fields"] == {} and same["tensors"]["changed"] == []


def test_status_is_signed_and_checked(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    project = registered.project
    with project.open_ledger() as ledger:
        size = ledger.size
    assert "status 0" in _answer(capsys, registered, "status")  # nothing happened since the release
    words.set_alias(project, "demo-lm/1", "champion")
    made = _answer(capsys, registered, "status", "--json")
    assert (made["sequence"], made["entry"]) == (1, size + 1)
    assert "ok" in _answer(capsys, registered, "status", "--check")
    # A log that signs a status which does not follow from its entries is found out.
    log = project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        append_status(ledger, log)
        lie = {**{k: v for k, v in made.items() if k != "entry"}, "signer": log.keyid, "sequence": 7}
        lie["revoked_releases"] = ["ab" * 32]
        ledger.append([seal(statement("status", None, lie), log)])
        last = check_statuses(ledger)[-1]
    assert last.ok is False and "ledger, revoked_releases" in last.detail
    _answer(capsys, registered, "status", "--check", code=1)


def test_a_clock_that_was_ahead_is_not_waited_for(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of a day ahead stands there; the next one is signed now."""
    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.registry.words.rfc3339.now", lambda: "2999-01-01T00:00:00Z")
        words.set_alias(registered.project, "demo-lm/1", "champion")
        words.remove_alias(registered.project, "demo-lm", "champion")
    begun = time.monotonic()
    words.set_alias(registered.project, "demo-lm/1", "champion")
    words.remove_alias(registered.project, "demo-lm", "champion")
    words.set_alias(registered.project, "demo-lm/1", "champion")  # in the same second as before
    assert time.monotonic() - begun < 10
