"""Servers that lie, withhold, damage or stall: never a mismatch, never a match of what was not computed."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

from bitwitness.ledger import jcs, keys
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.exchange.replay_export import export_run
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow import transport
from bitwitness.ledger.follow.mirror import NotServed, NotWhatWasSigned, WentBack
from bitwitness.ledger.follow.remote import Remote, RemoteError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.note import COSIGNATURE, Verifier, sign_note
from bitwitness.ledger.project import Project
from bitwitness.ledger.trust import load_trust
from bitwitness.trainer.auditing.audit import AuditReport, audit
from bitwitness.trainer.auditing.remote_venue import RemoteVenue, WaitsForLog, work_folder
from bitwitness.trainer.run import train

from .conftest import make_project, small_config
from .hostile_server import Answer, Twist, hostile
from .served import stranger


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("hostile") / "project")
    train(made, small_config(), threads=2)
    return made


@pytest.fixture(scope="module")
def alice(project: Project) -> Signer:
    return stranger(project, project.root.parent / "alice")


@pytest.fixture(scope="module")
def export(project: Project, alice: Signer) -> Path:
    folder = project.root.parent / "export"
    with project.open_ledger() as ledger:
        export_run(project, ledger, "r", folder)
        export_tiles(ledger, folder)
    return folder


def audited(url: str, project: Project, alice: Signer, tmp_path: Path, steps: tuple[int, int] = (5, 6)) -> AuditReport:
    """An audit by file of steps chosen by hand, which needs nobody to take an intent."""
    out = tmp_path / "audit.jsonl"
    out.unlink(missing_ok=True)
    with Remote(url) as remote:
        venue = RemoteVenue(remote, tmp_path / "work", project.trust_path, alice, out=out)
        return audit(venue, "r", steps=steps, threads=1)


def twist_of(part: str, change: bytes | None, times: int = 10**9) -> Twist:
    """Change a byte of every answer whose path holds `part` (or, with None, say 404), so many times."""
    count = itertools.count()

    def twist(path: str, answer: Answer) -> Answer:
        if part not in path or answer.status != 200 or next(count) >= times:
            return answer
        if change is None:
            return Answer(404, b"")
        data = bytearray(answer.data)
        data[-len(change) :] = change
        return Answer(200, bytes(data))

    return twist


def test_only_what_the_steps_need_is_fetched(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    with hostile(export) as server:
        assert audited(server.url, project, alice, tmp_path).result == "match"
        states = {path.split("/")[3] for path in server.requests if "/states/" in path}
        assert states == {"4"}
        fetched = server.sent
        assert audited(server.url, project, alice, tmp_path).result == "match"
        assert server.sent - fetched < fetched / 10  # the mirror, the state and the blocks are kept


def test_a_server_that_knows_no_ranges_will_do(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    with hostile(export, ranges=False) as server:
        assert audited(server.url, project, alice, tmp_path).result == "match"


@pytest.mark.parametrize("part", ["weights.safetensors", "tokens-00000.bin", "tree.bin", "documents.bin"])
def test_what_was_damaged_once_is_fetched_again(
    project: Project, alice: Signer, export: Path, tmp_path: Path, part: str
) -> None:
    with hostile(export, twist_of(part, b"\x5a\x5a", times=1)) as server:
        assert audited(server.url, project, alice, tmp_path).result == "match"


def test_a_state_that_stays_damaged_makes_the_replay_longer(
    project: Project, alice: Signer, export: Path, tmp_path: Path
) -> None:
    with hostile(export, twist_of("/4/weights.safetensors", b"\x5a")) as server:
        report = audited(server.url, project, alice, tmp_path)
        assert report.result == "match" and report.compared == (3, 4, 5, 6)


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("tokens-00000.bin", b"\x5a\x5a\x5a\x5a", "the data at hand is not what the ledger commits to"),
        ("tokens-00000.bin", None, "the data is not at hand"),
        ("documents.bin", b"\xff" * 112, "the data at hand is not what the ledger commits to"),
        ("tree.bin", b"\x00" * 3000, "the data at hand is not what the ledger commits to"),
        ("manifest.json", b'"private"}', "the data at hand is not what the ledger commits to"),
        ("manifest.json", None, "the data is not at hand"),
    ],
)
def test_wrong_or_withheld_data_is_unavailable(
    project: Project, alice: Signer, export: Path, tmp_path: Path, part: str, change: bytes | None, reason: str
) -> None:
    with hostile(export, twist_of(part, change)) as server:
        report = audited(server.url, project, alice, tmp_path, steps=(1, 6))
        assert report.result == "unavailable"
        missing = [unit for unit in report.units if unit.outcome != "match"]
        assert {(unit.outcome, unit.reason) for unit in missing} == {("unavailable", reason)}
        assert not any(unit.compared for unit in missing)


@pytest.mark.parametrize("length", [10, 10**6])
def test_files_of_another_size(project: Project, alice: Signer, export: Path, tmp_path: Path, length: int) -> None:
    def twist(path: str, answer: Answer) -> Answer:
        if "/states/" in path or "tokens-" in path:
            answer.data = (answer.data * (1 + length // max(1, len(answer.data))))[:length]
        return answer

    with hostile(export, twist) as server:
        assert audited(server.url, project, alice, tmp_path).result in ("match" if length > 10 else "unavailable",)


def test_an_answer_that_never_ends_is_cut(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    def twist(path: str, answer: Answer) -> Answer:
        if path.endswith("weights.safetensors"):
            return Answer(200, answer.data, {"Content-Length": str(2**40)}, endless=True)
        return answer

    with hostile(export, twist) as server:
        report = audited(server.url, project, alice, tmp_path)
        assert report.result == "match" and report.compared == tuple(range(1, 7))  # from the seed


def test_redirects_are_not_followed(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    with hostile(export) as elsewhere:

        def twist(path: str, answer: Answer) -> Answer:
            return Answer(302, b"", {"Location": elsewhere.url + path})

        with hostile(export, twist) as server, pytest.raises(RemoteError, match="redirects are not followed"):
            audited(server.url, project, alice, tmp_path)
        assert elsewhere.requests == []


def test_a_small_answer_that_unpacks_to_a_large_one(
    project: Project, alice: Signer, export: Path, tmp_path: Path
) -> None:
    bomb = gzip.compress(bytes(1 << 28), 9)

    def twist(path: str, answer: Answer) -> Answer:
        return Answer(200, bomb, {"Content-Encoding": "gzip"})

    with hostile(export, twist) as server, pytest.raises(RemoteError, match="larger than"):
        audited(server.url, project, alice, tmp_path)
    packed = lambda path, answer: Answer(200, b"no gzip", {"Content-Encoding": "gzip"})  # noqa: E731
    with hostile(export, packed) as server, pytest.raises(RemoteError, match="packed and damaged"):
        audited(server.url, project, alice, tmp_path)


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"x") + bytes(1 << 16), gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 9999],
    ids=["behind the end", "empty blocks"],
)
def test_a_packed_answer_that_unpacks_to_nothing_and_never_ends(
    project: Project, alice: Signer, export: Path, tmp_path: Path, data: bytes
) -> None:
    """Each of these is asked for whole, so its limit counts unpacked bytes, of which none comes."""

    def twist(path: str, answer: Answer) -> Answer:
        return Answer(200, data, {"Content-Encoding": "gzip", "Content-Length": str(2**40)}, endless=True)

    with hostile(export, twist) as server, pytest.raises(RemoteError, match="packed and damaged"):
        audited(server.url, project, alice, tmp_path)


def test_a_server_that_trickles_is_left(
    project: Project, alice: Signer, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_GRACE", -1.0)
    with hostile(export) as server, pytest.raises(RemoteError, match="too slowly"):
        audited(server.url, project, alice, tmp_path)


def test_other_entries_than_those_signed(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    with hostile(export, twist_of("tile/entries/", b"\x5a")) as server, pytest.raises(FoundWrong):
        audited(server.url, project, alice, tmp_path)
    with hostile(export, twist_of("tile/0/", b"\x5a")) as server, pytest.raises(NotWhatWasSigned):
        audited(server.url, project, alice, tmp_path)


def test_an_older_log_than_was_seen_before(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    with hostile(export) as server:
        assert audited(server.url, project, alice, tmp_path).result == "match"
    with project.open_ledger() as ledger:
        (older,) = [note for size, note in ledger.newest_checkpoints(2)][1:]

    def twist(path: str, answer: Answer) -> Answer:
        return Answer(200, older.encode()) if path == "checkpoint" else answer

    with hostile(export, twist) as server, pytest.raises(WentBack):
        audited(server.url, project, alice, tmp_path)


def test_a_signed_size_that_nobody_can_serve(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    body = Checkpoint(load_trust(project.trust_path).origin, 4 * 10**12, bytes(32)).format()
    huge = sign_note(body, load_trust(project.trust_path).origin, project.signer("log")).encode()

    def twist(path: str, answer: Answer) -> Answer:
        return Answer(200, huge) if path == "checkpoint" else answer

    with hostile(export, twist) as server:
        with pytest.raises(NotServed, match="4000000000000 entries and does not serve them"):
            audited(server.url, project, alice, tmp_path)
        assert len(server.requests) < 20
    with hostile(export) as server:
        assert audited(server.url, project, alice, tmp_path).result == "match"
    assert [path.read_bytes() for path in (tmp_path / "work" / "unserved").iterdir()] == [huge]


def others(project: Project, path: Path) -> Path:
    """A policy with the log's origin, and the keys of somebody else."""
    kept = load_trust(project.trust_path)
    log, root = keys.generate("log").public, keys.generate("root").public
    vkey = Verifier(kept.origin, log).vkey
    path.write_text(f'[log]\norigin = "{kept.origin}"\nkey = "{vkey}"\n[root]\nkey = "{root.raw.hex()}"\n')
    return path


def test_a_policy_is_enforced_on_what_another_one_let_in(
    project: Project,
    alice: Signer,
    export: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who hands over a trust.toml of his own first does not pass under the real one afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    named = {"theirs": project.trust_path, "honest": others(project, tmp_path / "honest.toml")}

    def status(policy: str, *more: str) -> int:
        command = ["audit", str(export), "r", "--policy", str(named[policy]), "--steps", "1:2", "--threads", "1"]
        key = str(project.root.parent / "alice" / "alice.pem")
        return main([*command, "--key", key, "--out", str(tmp_path / f"{policy}.jsonl"), *more])

    assert status("theirs") == 0
    assert status("honest") == 2
    assert "no known key signed it" in capsys.readouterr().err
    for folder in (tmp_path / "cache" / "bitwitness").iterdir():  # where only he looks, and with the cache given
        assert (main(["mirror", str(export), str(folder), "--policy", str(named["honest"])])) == 2
        assert status("honest", "--work", str(folder)) == 2
        capsys.readouterr()
    assert not (tmp_path / "honest.jsonl").exists()
    place = work_folder(named["theirs"])
    assert main(["trace", str(export), "r", "--step", "1", "--policy", str(named["honest"]), "--work", str(place)]) == 2
    assert "with another log key than" in capsys.readouterr().err


def test_the_rules_of_the_named_policy_count(project: Project, alice: Signer, export: Path, tmp_path: Path) -> None:
    assert audited(str(export), project, alice, tmp_path).result == "match"
    witness = Verifier("w.example", keys.generate("witness").public, COSIGNATURE).vkey
    named = tmp_path / "named.toml"
    named.write_text(
        project.trust_path.read_text() + f'\n[witnesses]\npolicy = """\nwitness w {witness}\nquorum none\n"""\n'
    )
    with Remote(str(export)) as remote:
        venue = RemoteVenue(remote, tmp_path / "work", named, alice, out=tmp_path / "drawn.jsonl")
        with pytest.raises(WaitsForLog):  # its witness is known, so the intent that names it was made
            audit(venue, "r", threads=1, beacon="witness:w")


@pytest.mark.parametrize("answer", [b"", b"ok\n", b"c2sp.org/tlog-proof@v1\nindex 0\n\nx\n0\n=\n\n"])
def test_a_receipt_without_a_proof_ends_the_audit(
    project: Project, alice: Signer, export: Path, tmp_path: Path, answer: bytes
) -> None:
    def twist(path: str, given: Answer) -> Answer:
        return Answer(200, answer) if path.startswith("POST") else given

    with hostile(export, twist) as server, Remote(server.url) as remote:
        venue = RemoteVenue(remote, tmp_path / "work", project.trust_path, alice)
        with pytest.raises(BitwitnessError) as raised:
            audit(venue, "r", threads=1)
        assert raised.value.exit_code == 2  # nobody signed it
        assert server.requests.count("POST replay/entries") == 1  # no sample was drawn, no state fetched
        assert not any("/states/" in path for path in server.requests)


def test_a_damaged_manifest_of_one_s_own_is_not_published(project: Project, tmp_path: Path) -> None:
    manifest = project.data_dir / "text" / "manifest.json"
    data = manifest.read_bytes()
    try:
        for files in (None, 5, [5], [{}]):
            changed = {**jcs.parse(data), "files": files}
            manifest.write_bytes(jcs.encode({name: value for name, value in changed.items() if value is not None}))
            with project.open_ledger() as ledger, pytest.raises(BitwitnessError, match=r"damaged manifest.json"):
                export_run(project, ledger, "r", tmp_path / "export")
    finally:
        manifest.write_bytes(data)
