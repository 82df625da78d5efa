"""Cosigned checkpoints from end to end: witness servers, by file, and what verifiers make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bitwitness.ledger import cli, keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import BitwitnessError, NoKnownSigner
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.note import open_note
from bitwitness.ledger.project import Project
from bitwitness.ledger.proof_file import verify_proof
from bitwitness.ledger.trust import Trust, TrustError, load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.ledger.witnessing.cosign import collect, find_target
from bitwitness.ledger.witnessing.witness import Witness

from .witness_process import WitnessProcess


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path / "project")


@pytest.fixture
def servers(project: Project, tmp_path: Path) -> Iterator[list[WitnessProcess]]:
    log = load_trust(project.trust_path).log
    running = [WitnessProcess(tmp_path / "witnesses", name, log, seed) for seed, name in enumerate(("w1", "w2"))]
    yield running
    for server in running:
        assert "Traceback" not in server.stop()


def grow(project: Project, number: int) -> None:
    """Append something: a further witness key's enrolment."""
    root = project.signer("root")
    with project.open_ledger(writable=True) as ledger:
        made = [keys.Signer.from_seed("witness", bytes([99, ledger.size + n]) * 16) for n in range(number)]
        ledger.append([enrolment(root, item.public, "witness") for item in made])


def pin(project: Project, policy: str) -> Trust:
    """Add [witnesses] to the project's trust.toml."""
    text = project.trust_path.read_text().split("\n[witnesses]")[0]
    project.trust_path.write_text(f'{text}\n[witnesses]\npolicy = """\n{policy}"""\n')
    return load_trust(project.trust_path)


def run(project: Project, *arguments: str) -> int:
    return cli.main(["--project", str(project.root), *arguments])


def test_collected_over_http_and_verified(
    project: Project, servers: list[WitnessProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one, two = servers
    assert run(project, "checkpoint", "--witness", one.url) == 0
    out, err = capsys.readouterr()
    assert "trust.toml does not name" in err
    trust = pin(project, one.line + two.line + "group both all w1 w2\nquorum both\n")
    opened = open_note(out, [trust.log, one.verifier])
    assert opened.by(one.verifier) is not None and not trust.witnesses.met_by(opened)  # type: ignore[union-attr]
    # Signing the same tree once more keeps the cosignature, and --witnesses adds the other one.
    assert run(project, "checkpoint") == 0
    assert capsys.readouterr().out == out
    assert run(project, "verify", str(project.ledger_path)) == 1
    assert "WRONG  witnesses: 0 of 5" in capsys.readouterr().out
    assert run(project, "checkpoint", "--witnesses", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["witnessed"] is True and answer["signers"][1:] == ["w1.example", "w2.example"]
    # The log grows; each witness checks the proof from what it cosigned.
    for number in (1, 4, 9):
        grow(project, number)
        assert run(project, "checkpoint", "--witness", two.url, "--witness", f"{one.verifier.vkey} {one.url}") == 0
    capsys.readouterr()
    assert run(project, "verify", str(project.ledger_path)) == 0
    assert "19 of 19 entries are under a checkpoint that the policy's witnesses cosigned" in capsys.readouterr().out
    proof = tmp_path / "p.tlog-proof"
    assert run(project, "prove", "--index", "3", "--out", str(proof)) == 0
    capsys.readouterr()
    assert run(project, "verify", str(proof)) == 0
    assert "witnesses: witnessed by w1.example, w2.example (2 of w1, w2), as of 20" in capsys.readouterr().out.replace(
        "w2.example, w1.example", "w1.example, w2.example"
    )
    assert run(project, "fsck") == 0


def test_without_the_quorum_a_proof_is_refused(project: Project, tmp_path: Path) -> None:
    other = keys.Signer.from_seed("witness", bytes([5]) * 32)
    vkey = note.Verifier("w.example", other.public, note.COSIGNATURE).vkey
    with project.open_ledger() as ledger:
        head = ledger.latest_checkpoint()
        assert head is not None
        from bitwitness.ledger.exchange.prove import prove

        text = prove(ledger, 2).format()
    trust = pin(project, f"witness w {vkey}\nquorum w\n")
    checks = {item.name: item.ok for item in verify_proof(text, trust)}
    assert checks == {"proof": True, "inclusion": True, "witnesses": False, "entry": True, "signature": True}
    assert all(item.name != "witnesses" for item in verify_proof(text, pin(project, "quorum none\n")))
    # A witness alone is not the log.
    body = note.parse_note(head).text
    only = note.Note(body, (note.cosignature_line(body, "w.example", other, 1),)).format()
    trust = pin(project, f"witness w {vkey}\nquorum w\n")
    checks = {item.name: item.ok for item in verify_proof(text.replace(head, only), trust)}
    assert checks["inclusion"] is False


def test_by_file(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signer = keys.Signer.from_seed("witness", bytes([5]) * 32)
    keys.save(signer, tmp_path / "w.pem")
    verifier = note.Verifier("w.example", signer.public, note.COSIGNATURE)
    asked, given, state = tmp_path / "request", tmp_path / "cosignature", tmp_path / "state.db"
    sign = ["witness", "sign", str(asked), "--key", str(tmp_path / "w.pem"), "--name", "w.example",
            "--state", str(state), "--out", str(given)]  # fmt: skip
    assert run(project, "checkpoint", "--request", str(asked)) == 0
    assert run(project, *sign) == 0
    assert run(project, "checkpoint", "--cosignature", str(given)) == 2  # no policy names the witness
    trust = pin(project, f"witness w {verifier.vkey}\nquorum w\n")
    assert run(project, "checkpoint", "--cosignature", str(given)) == 0
    grow(project, 3)
    assert run(project, "checkpoint", "--cosignature", str(given)) == 1  # of another checkpoint
    assert run(project, "checkpoint", "--request", str(asked)) == 0
    assert run(project, *sign) == 1
    assert "409: this witness has cosigned 5 entries" in capsys.readouterr().err
    assert run(project, "checkpoint", "--request", str(asked), "--since", "5") == 0
    assert run(project, *sign) == 0
    assert run(project, "checkpoint", "--cosignature", str(given)) == 0
    report = verify_ledger(project.ledger_path, trust)
    assert report.witnessed == 8 and not report.faults
    assert f"memory {state}: of {trust.origin} 8 entries are cosigned" in _signed_again(project, sign, capsys)
    # Unless it is named the memory stands beside the key, wherever the command is given.
    alone = [*sign[: sign.index("--state")], *sign[sign.index("--out") :]]
    assert f"memory {tmp_path / 'w.db'}: of {trust.origin} nothing yet" in _signed_again(project, alone, capsys)


def _signed_again(project: Project, sign: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run(project, *sign)
    return capsys.readouterr().err


def test_a_rolled_back_log_is_told_by_its_witness(
    project: Project, servers: list[WitnessProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = project.ledger_path.read_bytes()
    grow(project, 2)
    assert run(project, "checkpoint", "--witness", servers[0].url) == 0
    for path in project.root.glob("ledger.db*"):
        path.unlink()
    project.ledger_path.write_bytes(saved)
    assert run(project, "checkpoint", "--witness", servers[0].url) == 1
    assert "the log key has signed 7 entries, and the ledger holds 5" in capsys.readouterr().err
    (project.keys_dir / "log.head").unlink()  # as it is where the log cheats
    assert run(project, "checkpoint", "--witness", servers[0].url) == 1
    assert "has cosigned 7 entries, this ledger has 5" in capsys.readouterr().err
    other = keys.Signer.from_seed("witness", bytes([77]) * 32)
    with project.open_ledger(writable=True) as ledger:
        ledger.append([enrolment(project.signer("root"), other.public, "witness")])
    grow(project, 2)
    assert run(project, "checkpoint", "--witness", servers[0].url) == 2
    assert "consistency proof does not verify" in capsys.readouterr().err


def test_failures_keep_the_others_from_nothing(
    project: Project, servers: list[WitnessProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    dead = "http://127.0.0.1:9/"
    assert run(project, "checkpoint", "--witness", dead, "--witness", servers[0].url) == 2
    out, err = capsys.readouterr()
    assert "w1.example" in out and "cannot be reached" in err
    other = keys.Signer.from_seed("witness", bytes([66]) * 32)
    wrong = note.Verifier("w1.example", other.public, note.COSIGNATURE)
    grow(project, 1)
    assert run(project, "checkpoint", "--witness", f"{wrong.vkey} {servers[0].url}") == 2
    assert "no known key signed" in capsys.readouterr().err
    assert run(project, "checkpoint", "--witness", "nonsense") == 2
    assert run(project, "checkpoint", "--witnesses") == 2
    assert httpx.get(servers[0].url + "vkey").text.strip() == servers[0].verifier.vkey
    assert httpx.get(servers[0].url + "add-checkpoint").status_code == 405
    assert httpx.get(servers[0].url).status_code == 404
    assert httpx.post(servers[0].url + "add-checkpoint", content=b"x" * 1_200_000).status_code == 400


def test_a_witness_that_forgets_asks_and_gets_the_proof(project: Project, tmp_path: Path) -> None:
    """409 with the size, then the proof from there: what the ledger remembers of the witness may be wrong."""
    server = WitnessProcess(tmp_path / "w", "w1", load_trust(project.trust_path).log, 0)
    try:
        grow(project, 3)
        with project.open_ledger(writable=True) as ledger:
            signed = ledger.sign_checkpoint(project.signer("log"))
            first = collect(ledger, signed, [find_target(server.url, None)])
            assert first.failures == () and first.cosigners == (server.verifier,)
        grow(project, 3)
        with project.open_ledger(writable=True) as ledger:
            signed = ledger.sign_checkpoint(project.signer("log"))
            # A bare URL: nothing is remembered, so the first request is refused with 409 and the size.
            assert collect(ledger, signed, [find_target(server.url, None)]).failures == ()
    finally:
        server.stop()
    for path in server.state.parent.glob(f"{server.state.name}*"):
        path.unlink()
    again = WitnessProcess(tmp_path / "w", "w1", load_trust(project.trust_path).log, 0)
    try:
        grow(project, 1)
        with project.open_ledger(writable=True) as ledger:
            signed = ledger.sign_checkpoint(project.signer("log"))
            done = collect(ledger, signed, [find_target(f"{again.verifier.vkey} {again.url}", None)])
            assert done.failures == ()  # old 11, answered by 409 and 0
    finally:
        again.stop()


def test_log_key_replaced_by_two_signatures_on_one_checkpoint(project: Project, tmp_path: Path) -> None:
    old, root = project.signer("log"), project.signer("root")
    new = keys.Signer.from_seed("log", bytes([3]) * 32)
    from bitwitness.ledger.entry import entries, envelope

    from .small_ledger import TIME

    record = {"algorithm": "ed25519", "keyid": new.keyid, "public": new.public.raw.hex(), "role": "log"}
    predicate = {"signer": root.keyid, "action": "rotate", "key": record, "replaces": old.keyid, "time": TIME}
    with project.open_ledger(writable=True) as ledger:
        ledger.append([envelope.seal(entries.statement("key", None, predicate), root)])
        for signers in ([old], [new]):
            with pytest.raises(BitwitnessError, match="both sign the next"):
                ledger.sign_checkpoint(*signers)
        both = ledger.sign_checkpoint(new, old)
        assert len(note.parse_note(both).lines) == 2
        assert ledger.sign_checkpoint(new) == both
        ledger.append([enrolment(root, keys.generate("witness").public, "witness")])
        with pytest.raises(BitwitnessError, match="has ended"):
            ledger.sign_checkpoint(old)
        alone = ledger.sign_checkpoint(new)
        with pytest.raises(NoKnownSigner):
            open_note(alone, [load_trust(project.trust_path).log])
    trust = load_trust(project.trust_path)
    assert not verify_ledger(project.ledger_path, trust).faults
    # A writer that does not keep the rule is found.
    with project.open_ledger(writable=True) as ledger:
        head = Checkpoint(ledger.origin, ledger.size, ledger.root())
        ledger._insert_checkpoint(ledger.size, note.sign_note(head.format(), ledger.origin, old))
    (fault,) = verify_ledger(project.ledger_path, trust).faults
    assert "which ended at entry 5" in fault.detail


def test_a_checkpoint_of_a_new_log_key_is_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    signer = keys.Signer.from_seed("witness", bytes(32))
    pin(project, f"witness w {note.Verifier('w.example', signer.public, note.COSIGNATURE).vkey}\nquorum w\n")
    (project.keys_dir / "log.pem").rename(project.root / "old.pem")
    (project.keys_dir / "log.pub").rename(project.root / "old.pub")
    key = project.keys_dir / "log.pem"
    run = ("--project", str(project.root))
    assert cli.main(["key", "generate", "--role", "log", "--out", str(key)]) == 0
    rotate = [*run, "key", "rotate", str(project.root / "old.pub"), str(key.with_suffix(".pub"))]
    assert cli.main(rotate) == 0
    assert cli.main([*run, "checkpoint", "--also", str(project.root / "old.pem"), "--json"]) == 0
    grow(project, 1)
    capsys.readouterr()
    assert cli.main([*run, "checkpoint", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["witnessed"] is False and len(told["signers"]) == 1


def test_a_handover_without_the_old_key_is_found(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitwitness.ledger.entry import entries, envelope
    from bitwitness.ledger.sqlite import log_keys

    from .small_ledger import TIME

    old, root = project.signer("log"), project.signer("root")
    new = keys.Signer.from_seed("log", bytes([3]) * 32)
    record = {"algorithm": "ed25519", "keyid": new.keyid, "public": new.public.raw.hex(), "role": "log"}
    predicate = {"signer": root.keyid, "action": "rotate", "key": record, "replaces": old.keyid, "time": TIME}
    monkeypatch.setattr(log_keys, "check_signers", lambda *_: None)
    with project.open_ledger(writable=True) as ledger:
        ledger.append([envelope.seal(entries.statement("key", None, predicate), root)])
        ledger.sign_checkpoint(new)
    (fault,) = verify_ledger(project.ledger_path, load_trust(project.trust_path)).faults
    assert "needs both signatures" in fault.detail


@pytest.mark.parametrize("policy", ["", "quorum x\n", "log {other}\nquorum none\n"])
def test_policies_that_are_refused(project: Project, policy: str) -> None:
    other = note.Verifier("other.example", keys.Signer.from_seed("log", bytes(32)).public).vkey
    with pytest.raises(TrustError, match="witness policy"):
        pin(project, policy.format(other=other))
    pin(project, f"log {load_trust_log(project)}\nquorum none\n")


def load_trust_log(project: Project) -> Any:
    project.trust_path.write_text(project.trust_path.read_text().split("\n[witnesses]")[0])
    return load_trust(project.trust_path).log.vkey


def test_a_cosignature_in_the_logs_own_name_is_not_taken(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = load_trust(project.trust_path).log
    signer = keys.Signer.from_seed("witness", bytes([5]) * 32)
    own = note.Verifier(log.name, signer.public, note.COSIGNATURE)
    witness, asked = Witness(log.name, signer, [log], tmp_path / "w.db"), list[str]()

    def answer(_remote: Remote, _path: str, body: str, _limit: int) -> tuple[int, str, str]:
        asked.append(body)
        done = witness.add_checkpoint(body)
        return done.status, done.content_type, done.body

    monkeypatch.setattr(Remote, "post", answer)
    monkeypatch.setattr(Remote, "get", lambda *_: own.vkey.encode())
    with project.open_ledger(writable=True) as ledger:
        signed = ledger.sign_checkpoint(project.signer("log"))
        for text in ("http://w.example/", f"{own.vkey} http://w.example/"):
            done = collect(ledger, signed, [find_target(text, None)])
            assert done.note == signed and "the log's own name" in str(done.failures[0]) and not asked


def test_keep_checkpoint_refuses_what_is_not_this_ledgers(project: Project) -> None:
    log = project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        first = ledger.latest_checkpoint()
        assert first is not None
        wrong = Checkpoint("other", 5, ledger.root())
        with pytest.raises(BitwitnessError, match="of the log other"):
            ledger.keep_checkpoint(note.sign_note(wrong.format(), "other", log))
        wrong = Checkpoint(ledger.origin, 5, merkle.leaf_hash(b""))
        with pytest.raises(BitwitnessError, match="not those that the checkpoint signed"):
            ledger.keep_checkpoint(note.sign_note(wrong.format(), ledger.origin, log))
        ledger.append([enrolment(project.signer("root"), keys.generate("witness").public, "witness")])
        ledger.sign_checkpoint(log)
        with pytest.raises(BitwitnessError, match="a newer checkpoint"):
            ledger.keep_checkpoint(first)


def test_a_witness_in_process_is_the_same(project: Project, tmp_path: Path) -> None:
    signer = keys.Signer.from_seed("witness", bytes([5]) * 32)
    witness = Witness("w", signer, [load_trust(project.trust_path).log], tmp_path / "w.db")
    with project.open_ledger() as ledger:
        text = ledger.latest_checkpoint()
    answer = witness.add_checkpoint(f"old 0\n\n{text}")
    assert answer.status == 200
