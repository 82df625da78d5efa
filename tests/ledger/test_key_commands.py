"""`ledger key enrol | rotate | revoke | append`: with the root key at hand, or on a machine without the ledger."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import _edwards, cli, jcs, keys
from bitwitness.ledger.entry import key_entries
from bitwitness.ledger.errors import BadKey, BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path / "project")


@pytest.fixture
def run(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, inside: bool = True) -> tuple[int, str, str]:
        prefix = ["--project", str(project.root)] if inside else []
        code = cli.main([*prefix, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def listed(run: Run) -> dict[str, Any]:
    code, out, _err = run("key", "list", "--json")
    assert code == 0
    return {row["keyid"]: row for row in json.loads(out)}


def made(run: Run, role: str, name: str) -> str:
    code, out, _err = run("key", "generate", "--role", role, "--out", f"{name}.pem", "--json")
    assert code == 0
    return str(json.loads(out)["keyid"])


def test_enrol_and_revoke_in_the_project(run: Run, project: Project) -> None:
    keyid = made(run, "auditor", "alice")
    code, out, _err = run("key", "enrol", "alice.pub", "--name", "auditor-2", "--json")
    assert code == 0
    assert json.loads(out) == [{"entry": 5, "action": "enrol", "role": "auditor", "keyid": keyid}]
    assert listed(run)[keyid]["name"] == "auditor-2"
    assert run("key", "enrol", "alice.pub")[0] != 0  # a second time
    assert run("key", "revoke", keyid[:12])[0] == 0
    assert listed(run)[keyid]["revoked_from"] == 6
    assert run("key", "revoke", "alice.pub", "--from", "5")[0] == 0
    assert listed(run)[keyid]["revoked_from"] == 5
    assert not verify_ledger(project.ledger_path, load_trust(project.trust_path)).faults


def test_the_root_key_stays_offline(run: Run, project: Project, tmp_path: Path) -> None:
    usb = tmp_path / "usb"
    usb.mkdir(mode=0o700)
    for suffix in (".pem", ".pub"):
        shutil.move(project.keys_dir / f"root{suffix}", usb / f"root{suffix}")
    keyid = made(run, "trainer", "bob")
    assert "root.pem" in run("key", "enrol", "bob.pub")[2]
    root = ("--root", usb / "root.pem")
    # No project is needed where the root key is.
    assert run("key", "enrol", "bob.pub", *root, "--out", "bob.entry", inside=False)[0] == 0
    assert run("key", "enrol", "bob.pub", *root, "--out", "bob.entry", inside=False)[0] == 2  # never over a file
    code, out, _err = run("key", "append", "bob.entry")
    assert code == 0 and out == f"entry 5: enrol trainer key {keyid}\n"
    assert run("key", "revoke", "bob.pub", "--from", "9", *root, "--out", "end.entry", inside=False)[0] == 0
    assert run("key", "revoke", "bob.pub", *root, "--out", "x.entry", inside=False)[0] == 2  # from where on?
    assert run("key", "append", "end.entry")[0] == 0
    assert listed(run)[keyid]["revoked_from"] == 9


def test_rotate_the_log_key_and_sign_with_both(run: Run, project: Project, tmp_path: Path) -> None:
    new = made(run, "log", "log2")
    code, _out, err = run("key", "rotate", project.keys_dir / "log.pub", "log2.pub")
    assert code == 0 and "--also OLD.pem" in err
    assert "both sign the next" in run("checkpoint")[2]
    for suffix in (".pem", ".pub"):
        shutil.move(project.keys_dir / f"log{suffix}", tmp_path / f"old{suffix}")
        shutil.move(tmp_path / f"log2{suffix}", project.keys_dir / f"log{suffix}")
    assert "both sign the next" in run("checkpoint")[2]
    code, out, _err = run("checkpoint", "--also", "old.pem")
    assert code == 0 and out.count("— bitwitness.invalid/") == 2
    assert listed(run)[new]["replaces"] is not None
    made(run, "witness", "w")
    assert run("key", "enrol", "w.pub")[0] == 0
    assert run("checkpoint")[0] == 0
    # Who still pins the old key verifies the whole ledger, by the root's word.
    assert run("verify", project.ledger_path)[0] == 0
    assert run("fsck")[0] == 0


def test_what_is_refused(run: Run, project: Project, tmp_path: Path) -> None:
    made(run, "auditor", "alice")
    made(run, "root", "evil")
    for arguments, said in (
        (("key", "enrol", "alice.pub", "--root", "alice.pem"), "auditor key, not a root key"),
        (("key", "enrol", "alice.pub", "--root", "evil.pem"), "not enrolled"),
        (("key", "enrol", "nobody.pub"), "no such file"),
        (("key", "rotate", "alice.pub", project.keys_dir / "log.pub"), "replaces one of its own role"),
        (("key", "rotate", "alice.pub", "alice.pub"), ""),
        (("key", "revoke", "alice.pub", "--from", "3"), ""),
        (("key", "revoke", "1234"), "0 enrolled keys"),
        (("key", "append", "alice.pub"), ""),
    ):
        code, out, err = run(*arguments)
        assert code in (1, 2) and said in err and not out, arguments
        assert len(err.splitlines()) == 1
    with pytest.raises(BitwitnessError, match="root key"):
        key_entries.enrolment(keys.generate("log"), keys.generate("log").public, "log")
    _code, data, _err = run("show", "0", "--raw")
    (tmp_path / "again").write_text(data)
    assert run("key", "append", "again")[0] != 0
    assert run("log", "--json")[1].count('"kind"') == 5


LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "ec" + "ff" * 30 + "7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
]
NON_CANONICAL = ["ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f", "01" + "00" * 30 + "80"]


@pytest.mark.parametrize("public", LOW_ORDER + NON_CANONICAL)
def test_keys_that_no_honest_machine_makes_are_not_enrolled(run: Run, public: str, tmp_path: Path) -> None:
    with pytest.raises(BadKey):
        _edwards.check_point(bytes.fromhex(public))
    record = {"algorithm": "ed25519", "keyid": keys.keyid(bytes.fromhex(public)), "public": public, "role": "auditor"}
    (tmp_path / "bad.pub").write_bytes(jcs.encode(record) + b"\n")
    code, _out, err = run("key", "enrol", "bad.pub")
    assert code == 2 and "bad.pub" in err


def test_an_encrypted_root_key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("horse\n")
    secret.chmod(0o600)
    code, _out, _err = run(
        "key", "generate", "--role", "root", "--out", "r.pem", "--passphrase-file", secret, inside=False
    )
    assert code == 0 and "ENCRYPTED" in (tmp_path / "r.pem").read_text()
    assert run("key", "generate", "--role", "log", "--out", "l.pem", inside=False)[0] == 0
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    enrol = ("key", "enrol", "l.pub", "--root", "r.pem", "--out", "e")
    assert run(*enrol, inside=False)[0] == 2
    monkeypatch.setenv("BITWITNESS_PASSPHRASE_FILE", str(secret))
    assert run(*enrol, inside=False)[0] == 0
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "wrong")
    assert run(*enrol, inside=False)[0] == 2
