"""A mirror is verified under the policy that is named, whatever it was made under; and which log keys count."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bitwitness.ledger import cli, keys, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry import key_entries
from bitwitness.ledger.errors import BitwitnessError, NoKnownSigner
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.mirror import Mirror, NotWhatWasSigned, OtherPins
from bitwitness.ledger.follow.monitor import watch
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.verify_ledger import verify_ledger

from . import small_ledger as small
from .followed import LOG, Log, follow, policy_text

FRESH = keys.Signer.from_seed("log", bytes([3]) * 32)


def others(tmp_path: Path, which: str) -> Path:
    """A policy with the same origin, and other keys."""
    log_key, root = keys.generate("log").public, keys.generate("root").public
    pinned = Trust(
        small.ORIGIN,
        note.Verifier(small.ORIGIN, log_key if "log" in which else LOG.public),
        root if "root" in which else small.TRUST.root,
    )
    path = tmp_path / "honest.toml"
    path.write_text(policy_text(pinned))
    return path


@pytest.mark.parametrize("which", ["log and root", "log", "root"])
def test_a_mirror_made_under_other_keys_is_refused(
    log: Log, mirror: Mirror, tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who can have his trust.toml used once must not pass under the real one afterwards."""
    follow(mirror, log)
    honest = others(tmp_path, which)
    for command in ("mirror", "monitor"):
        assert cli.main([command, str(log.tiles), str(mirror.folder), "--policy", str(honest)]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        key = "log key" if "log" in which else "root key"
        assert f"is a copy of {small.ORIGIN} with another {key} than" in said.err and "give an empty folder" in said.err
    # Nor is the stored trust.toml what it goes by: the copy itself is held against the pins.
    shutil.copyfile(honest, mirror.folder / "trust.toml")
    for policy in (None, honest):
        said = "a log with another root key than the policy pins; " if "root" in which else ""
        with pytest.raises(OtherPins, match=f"{said}give an empty folder"):
            follow(Mirror(mirror.folder, policy), log)
    with pytest.raises(BitwitnessError):
        follow(Mirror(tmp_path / "fresh", honest), log)


def test_the_rules_of_the_named_policy_count(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    follow(mirror, log)
    witness = keys.Signer.from_seed("witness", bytes([4]) * 32)
    vkey = note.Verifier("w.example", witness.public, note.COSIGNATURE).vkey
    named = tmp_path / "witnessed.toml"
    named.write_text(policy_text() + f'[witnesses]\npolicy = """\nwitness w {vkey}\nquorum w\n"""\n')
    strict = Mirror(mirror.folder, named)
    with pytest.raises(NotWhatWasSigned, match="not witnessed"):
        follow(strict, log)
    assert strict.project.trust_path == named and mirror.project.trust_path == named.parent / "log" / "trust.toml"
    kept = Mirror(mirror.folder)
    assert kept.project.trust_path == mirror.folder / "trust.toml" and follow(kept, log) == 12


def sign(log: Log, *signers: keys.Signer) -> None:
    """Publish a checkpoint that our log would not sign."""
    with Ledger.open(log.path, writable=True) as ledger:
        body = Checkpoint(small.ORIGIN, ledger.size, ledger.root()).format()
        lines = tuple(note.signature_line(body, small.ORIGIN, signer) for signer in signers)
        ledger._insert_checkpoint(ledger.size, note.Note(body, lines).format())
        export_tiles(ledger, log.tiles)


def test_a_log_key_that_is_only_enrolled_signs_nothing(log: Log, mirror: Mirror) -> None:
    """It took the place of no key that is pinned."""
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([key_entries.enrolment(small.SIGNERS["root"], FRESH.public, "log")])
    log.publish()
    assert follow(mirror, log) == 13
    log.append("more")
    sign(log, FRESH)
    with pytest.raises(NoKnownSigner):
        follow(mirror, log)
    sign(log, FRESH, LOG)
    with Remote(str(log.tiles)) as remote:
        watched = watch(mirror, remote)
    assert [item.name for item in watched.alarms] == ["unknown-signer"]


def rotate(log: Log, fresh: keys.Signer = FRESH) -> None:
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([small.rotation("log", fresh)])


@pytest.mark.parametrize("signers", [(LOG,), (FRESH,)], ids=["the old key", "the new key"])
def test_a_handover_takes_both_keys(log: Log, mirror: Mirror, signers: tuple[keys.Signer, ...]) -> None:
    follow(mirror, log)
    rotate(log)
    sign(log, *signers)
    with pytest.raises(BitwitnessError):
        follow(mirror, log)
    sign(log, FRESH)  # what the old key alone led to does not make the new one count
    with pytest.raises(BitwitnessError):
        follow(mirror, log)
    sign(log, LOG, FRESH)
    with Remote(str(log.tiles)) as remote:
        watched = watch(mirror, remote, accept=True)  # the copy was made before the new key was there
    assert watched.update is not None and watched.update.size == 13 and not watched.alarms
    log.append("later")
    log.publish(FRESH)
    assert follow(mirror, log) == 15
    report = verify_ledger(mirror.project.ledger_path, small.TRUST)
    assert not report.faults and report.covered == 15


def test_a_handover_that_was_cut_short_still_counts(log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(mirror, log)
    rotate(log)
    log.publish(FRESH, LOG)
    monkeypatch.setattr(Ledger, "keep_checkpoint", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        follow(mirror, log)
    monkeypatch.undo()
    log.append("later")
    log.publish(FRESH)
    assert follow(mirror, log) == 15
    report = verify_ledger(mirror.project.ledger_path, small.TRUST)
    assert not report.faults and report.covered == 15 and report.checkpoints == 3


def test_a_policy_is_kept_whole_or_not_at_all(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(path: Path, data: bytes, **_options: object) -> None:
        path.with_name(f"{path.name}.part").write_bytes(data[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr("bitwitness.ledger.files.durable.replace", cut)
    with pytest.raises(KeyboardInterrupt):
        Mirror(tmp_path / "new", log.policy)
    assert not (tmp_path / "new" / "trust.toml").exists()
    monkeypatch.undo()
    mirror = Mirror(tmp_path / "new", log.policy)
    assert (mirror.folder / "trust.toml").read_bytes() == log.policy.read_bytes() and follow(mirror, log) == 12
