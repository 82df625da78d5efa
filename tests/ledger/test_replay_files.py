"""What `ledger serve` gives to auditors and takes from them: ranges of its own files, entries of enrolled auditors."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bitwitness.ledger import jcs, keys, merkle, tlog_proof
from bitwitness.ledger.datasette_plugin import replay_app
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.entry.envelope import MAX_ENTRY
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.exchange import inbox, submissions
from bitwitness.ledger.exchange.replay_files import ENTRIES, DataAddress, StateAddress, parse_address
from bitwitness.ledger.exchange.submissions import (
    MAX_OPEN_INTENTS,
    NotAccepted,
    TooMany,
    leave,
    receipt_for,
    submit,
    take_waiting,
)
from bitwitness.ledger.project import CONFIG, Project, config_text
from bitwitness.ledger.sqlite.ledger_file import LedgerFull
from bitwitness.ledger.sqlite.lock import LedgerLocked

from . import small_ledger as small

WEIGHTS = bytes(range(256)) * 2048
TOKENS = b"tokens of the dataset"
ROOT = small.digest("documents")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The small ledger as a project: a state of its run, its dataset, and things that nobody may read."""
    folder = tmp_path / "project"
    (folder / "keys").mkdir(parents=True)
    with small.with_run(folder / "ledger.db", 3) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    keys.save(small.SIGNERS["log"], folder / "keys" / "log.pem")
    (folder / CONFIG).write_text(config_text())
    state = folder / "runs" / "demo" / "states" / "step-00000002"
    state.mkdir(parents=True)
    (state / "weights.safetensors").write_bytes(WEIGHTS)
    (state / "notes.txt").write_text("private")
    data = folder / "data" / "text"
    data.mkdir(parents=True)
    write_manifest(data, "public")
    for name in ("tokens-00000.bin", "documents.bin", "tree.bin", "paths.bin", "text-00000.bin", "salts.bin"):
        (data / name).write_bytes(TOKENS)
    return Project.find(folder)


def write_manifest(folder: Path, visibility: str, root: str = ROOT) -> None:
    stated = {"dataset": {"root": root, "size": 3, "type": "dataset/1"}, "visibility": visibility}
    (folder / "manifest.json").write_bytes(jcs.encode(stated))


@pytest.fixture
def run(project: Project) -> str:
    with project.open_ledger() as ledger:
        found = ledger.find_run("demo")
    assert found is not None
    return found


def ask(project: Project, method: str, path: str, *, accept: bool = True, **given: Any) -> Any:
    datasette = make_datasette(project.ledger_path, public=True, log=project.signer("log") if accept else None)
    return asyncio.run(datasette.client.request(method, path, **given))


def state_path(run: str, step: int = 2, file: str = "weights.safetensors") -> str:
    return "/" + StateAddress(run, step, file).path


def test_addresses_are_read_character_by_character(run: str) -> None:
    for address in (StateAddress(run, 12, "optimizer.safetensors"), DataAddress(ROOT, "tokens-00012.bin")):
        assert parse_address(address.path) == address
    for path in (
        f"replay/states/{run}/02/weights.safetensors",
        f"replay/states/{run}/2/weights.safetensors\n",
        f"replay/states/{run}/2/weightsxsafetensors",
        f"replay/states/{run}/2/../2/weights.safetensors",
        f"replay/states/{run.upper()}/2/weights.safetensors",
        f"replay/data/{ROOT}/paths.bin",
        f"replay/data/{ROOT}/text-00000.bin",
        f"replay/data/{ROOT}/salts.bin",
        f"replay/data/{ROOT}/../../../../keys/log.pem",
        "replay/data/../bitwitness.toml",
        f"states/{run}/2/weights.safetensors",
    ):
        assert parse_address(path) is None, path


def test_ranges_of_a_state(project: Project, run: str) -> None:
    whole = ask(project, "GET", state_path(run))
    assert whole.status_code == 200 and whole.content == WEIGHTS and whole.headers["accept-ranges"] == "bytes"
    for first, last in ((0, 0), (5, 99), (len(WEIGHTS) - 1, len(WEIGHTS) - 1), (400_000, 10**9)):
        part = ask(project, "GET", state_path(run), headers={"range": f"bytes={first}-{last}"})
        end = min(last, len(WEIGHTS) - 1)
        assert part.status_code == 206 and part.content == WEIGHTS[first : end + 1]
        assert part.headers["content-range"] == f"bytes {first}-{end}/{len(WEIGHTS)}"
    rest = ask(project, "GET", state_path(run), headers={"range": "bytes=500000-"})
    assert rest.content == WEIGHTS[500000:]
    for stated in (f"bytes={len(WEIGHTS)}-", "bytes=-5", "bytes=0-1,5-6", "bytes=9-1", "lines=0-1", "bytes=x-1"):
        refused = ask(project, "GET", state_path(run), headers={"range": stated})
        assert refused.status_code == 416 and refused.headers["content-range"] == f"bytes */{len(WEIGHTS)}", stated
    head = ask(project, "HEAD", state_path(run))
    assert head.content == b"" and head.headers["content-length"] == str(len(WEIGHTS))
    assert ask(project, "POST", state_path(run)).status_code == 405
    assert ask(project, "GET", state_path(run, 1)).status_code == 404
    assert ask(project, "GET", state_path("0" * 64)).status_code == 404


def test_no_path_leaves_what_is_published(project: Project, run: str) -> None:
    for path in (
        f"/replay/states/{run}/2/notes.txt",
        f"/replay/states/{run}/2/..%2f..%2f..%2f..%2fkeys%2flog.pem",
        f"/replay/data/{ROOT}/%2e%2e/%2e%2e/bitwitness.toml",
        f"/replay/data/{ROOT}/paths.bin",
        f"/replay/data/{ROOT}/text-00000.bin",
        f"/replay/data/{ROOT}/salts.bin",
        "/replay/",
        "/replay/data/text/tokens-00000.bin",
    ):
        answer = ask(project, "GET", path)
        assert answer.status_code == 404 and str(project.root) not in answer.text, path
    # Even the owner's own link or pipe in the place of a file is not followed into waiting for ever.
    weights = project.runs_dir / "demo" / "states" / "step-00000002" / "weights.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    assert ask(project, "GET", state_path(run)).status_code == 404


def test_only_the_public_dataset_that_the_ledger_names(project: Project) -> None:
    path = "/" + DataAddress(ROOT, "tokens-00000.bin").path
    assert ask(project, "GET", path).content == TOKENS
    folder = project.data_dir / "text"
    write_manifest(folder, "private")
    assert ask(project, "GET", path).status_code == 404
    write_manifest(folder, "public", small.digest("another"))  # built anew under the old name
    assert ask(project, "GET", path).status_code == 404
    (folder / "manifest.json").write_bytes(b"[]")
    assert ask(project, "GET", path).status_code == 404
    write_manifest(folder, "public")
    with project.open_ledger(writable=True) as ledger:  # the same root, once private, stays private
        said = {
            "name": "text",
            "dataset": small.tree("dataset/1", 3, "documents"),
            "documents": 3,
            "tokens": 1000,
            "bytes": 1000,
            "tokenizer": {"name": "bytes", "vocabulary": 257},
            "visibility": "private",
            "time": "2026-01-02T03:04:06Z",
        }
        ledger.append([small.seal("dataset", said)])
    assert ask(project, "GET", path).status_code == 404


# What is sent --------------------------------------------------------------------------------------------


def intent(run: str, number: int = 0, signer: keys.Signer | None = None) -> bytes:
    said = {
        "beacon": {"kind": "none"},
        "first": 0,
        "last": 3,
        "root": merkle.root(map(merkle.leaf_hash, small.key_entries()[:5])).hex(),
        "run": run,
        "samples": number,
        "size": 5,
        "time": small.TIME,
    }
    return small.seal("audit-intent", said, signer=signer)


def test_an_entry_is_taken_once_and_proven(project: Project, run: str) -> None:
    data = intent(run)
    first = ask(project, "POST", "/" + ENTRIES, content=data)
    assert first.status_code == 201
    again = ask(project, "POST", "/" + ENTRIES, content=data)
    assert again.status_code == 200
    proof = tlog_proof.parse(first.text)
    head, _note = tlog_proof.verify(proof, merkle.leaf_hash(data), [small.TRUST.log], small.ORIGIN)
    with project.open_ledger() as ledger:
        assert (ledger.size, head.size) == (proof.index + 1, proof.index + 1)
        assert ledger.entry(proof.index) == data


def test_what_is_not_taken(project: Project, run: str) -> None:
    with project.open_ledger() as ledger:
        size, step = ledger.size, ledger.entry(ledger.size - 1)
    stranger = keys.generate("auditor")
    forged = intent(run).replace(small.SIGNERS["auditor"].keyid.encode()[:8], b"00000000")
    flipped = bytearray(intent(run))
    flipped[flipped.index(b'"sig":"') + 10] ^= 1
    for data, status in (
        (step, 403),
        (small.key_entries()[0], 403),
        (small.DATASET, 403),
        (intent(run, signer=stranger), 403),
        (intent("0" * 64), 422),
        (forged, 422),
        (bytes(flipped), 422),
        (b"", 422),
        (b"{}", 422),
        (b"\xff" * 100, 422),
        (b"x" * (MAX_ENTRY + 1), 413),
    ):
        answer = ask(project, "POST", "/" + ENTRIES, content=data)
        assert answer.status_code == status, (data[:60], answer.text)
        assert str(project.root) not in answer.text and answer.text.count("\n") == 1
    assert ask(project, "GET", "/" + ENTRIES).status_code == 405
    assert ask(project, "POST", "/" + ENTRIES, content=intent(run), accept=False).status_code == 403
    with project.open_ledger() as ledger:
        assert ledger.size == size


def test_a_body_without_a_length_is_read_no_further_than_an_entry(project: Project) -> None:
    read = 0

    async def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            assert read < 50, "the whole body was read"
            yield b"x" * 4096

    assert ask(project, "POST", "/" + ENTRIES, content=endless()).status_code in (413, 500)


def test_an_auditor_cannot_fill_the_log_with_intents(project: Project, run: str) -> None:
    with project.open_ledger(writable=True) as ledger:
        ledger.append([intent(run, number) for number in range(MAX_OPEN_INTENTS)])
    with pytest.raises(TooMany):
        submit(project, project.signer("log"), intent(run, 1000))
    assert ask(project, "POST", "/" + ENTRIES, content=intent(run, 1000)).status_code == 429


def test_a_log_that_is_being_written_is_waited_for(project: Project, run: str) -> None:
    with project.open_ledger(writable=True), pytest.raises(LedgerLocked):
        submit(project, project.signer("log"), intent(run), patience=0.2)
    assert submit(project, project.signer("log"), intent(run)).new


def while_writing(project: Project, data: bytes) -> Any:
    """The answer to an entry that is sent while somebody else writes the ledger, who looks into the inbox."""
    with ThreadPoolExecutor(1) as pool, project.open_ledger(writable=True) as ledger:
        answer = pool.submit(ask, project, "POST", "/" + ENTRIES, content=data)
        while not answer.done():
            take_waiting(project, ledger, project.signer("log"))
            time.sleep(0.01)
        return answer.result()


def test_an_entry_is_taken_in_while_a_run_writes_the_log(project: Project, run: str) -> None:
    answer = while_writing(project, intent(run))
    assert answer.status_code == 200
    tlog_proof.verify(tlog_proof.parse(answer.text), merkle.leaf_hash(intent(run)), [small.TRUST.log], small.ORIGIN)
    assert list(project.inbox_dir.iterdir()) == []
    # What its sender does not show is held to the same rules, and the reason reaches him.
    answer = while_writing(project, intent("0" * 64, 1))
    assert (answer.status_code, answer.text.count("\n")) == (403, 1) and "run" in answer.text
    assert list(project.inbox_dir.iterdir()) == []


def test_an_entry_waits_for_the_next_writer(project: Project, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_app, "_PATIENCE", 0.2)
    with project.open_ledger(writable=True):
        answer = ask(project, "POST", "/" + ENTRIES, content=intent(run))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    with project.open_ledger(writable=True) as ledger:
        assert take_waiting(project, ledger, project.signer("log")) == 1
        assert take_waiting(project, ledger, project.signer("log")) == 0
    assert ask(project, "POST", "/" + ENTRIES, content=intent(run)).status_code == 200


def waiting_name(number: int, keyid: str = "0" * 64) -> str:
    return f"{number:064x}.{keyid}"


def test_what_lies_in_the_inbox_is_not_believed(project: Project, run: str) -> None:
    """Whoever can put files there gets in no more than by sending."""
    project.inbox_dir.mkdir()
    forged = bytearray(intent(run))
    forged[forged.index(b'"sig":"') + 10] ^= 1
    with project.open_ledger() as ledger:
        step = ledger.entry(ledger.size - 1)
    for number, data in enumerate((bytes(forged), step, intent(run, signer=keys.generate("auditor")), b"{}", b"")):
        (project.inbox_dir / waiting_name(number)).write_bytes(data)
    (project.inbox_dir / waiting_name(9)).symlink_to(project.config)
    (project.inbox_dir / waiting_name(10)).mkdir()
    (project.inbox_dir / "notes.txt").write_text("not an entry")
    with project.open_ledger(writable=True) as ledger:
        size = ledger.size
        assert take_waiting(project, ledger, project.signer("log")) == 0
        assert ledger.size == size
    left = sorted(path.name for path in project.inbox_dir.iterdir())
    refused = [f"{waiting_name(number)}.refused" for number in (0, 1, 2, 3, 4, 9, 10)]
    assert left == sorted([*refused, waiting_name(10), "notes.txt"])


def test_an_inbox_is_bounded(project: Project, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_WAITING", 2)
    for number in range(2):
        leave(project, intent(run, number))
    leave(project, intent(run, 1))
    with pytest.raises(inbox.InboxFull):
        leave(project, intent(run, 2))


def second_auditor(project: Project) -> keys.Signer:
    signer = keys.generate("auditor")
    with project.open_ledger(writable=True) as ledger:
        ledger.append([enrolment(small.SIGNERS["root"], signer.public, "auditor", time=small.TIME)])
    return signer


def test_one_key_takes_no_more_than_its_part_of_an_inbox(project: Project, run: str) -> None:
    """What was refused counts until it was told, or an hour has passed; others get in all the while."""
    honest = second_auditor(project)
    bad = [intent("0" * 64, number) for number in range(inbox.MAX_OF_ONE)]
    for data in bad:
        leave(project, data)
    with pytest.raises(inbox.InboxFull, match="try again later"):
        leave(project, intent(run))
    leave(project, intent(run, signer=honest))
    with project.open_ledger(writable=True) as ledger:
        assert take_waiting(project, ledger, project.signer("log")) == 1
    with pytest.raises(inbox.InboxFull):
        leave(project, intent(run))
    with pytest.raises(NotAccepted, match="run"):
        receipt_for(project, bad[0])
    leave(project, intent(run))
    reasons = list(project.inbox_dir.glob("*.refused"))
    assert len(reasons) == inbox.MAX_OF_ONE - 1
    for path in reasons:
        os.utime(path, (time.time() - inbox.REFUSED_FOR - 60,) * 2)
    with project.open_ledger(writable=True) as ledger:
        assert take_waiting(project, ledger, project.signer("log")) == 1
    assert list(project.inbox_dir.iterdir()) == []


def test_reasons_are_bounded(project: Project, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_REFUSED", 2)
    project.inbox_dir.mkdir()
    for number in range(5):
        path = project.inbox_dir / f"{waiting_name(number)}.refused"
        path.write_text("no")
        os.utime(path, (time.time() - 60 + number,) * 2)
    leave(project, intent(run))
    left = sorted(path.name for path in project.inbox_dir.glob("*.refused"))
    assert left == [f"{waiting_name(number)}.refused" for number in (3, 4)]


def test_a_full_disk_refuses_nobody(project: Project, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(project, intent(run))
    with project.open_ledger(writable=True) as ledger:
        with monkeypatch.context() as full:
            full.setattr(ledger, "append", Mock(side_effect=LedgerFull(project.ledger_path, 1)))
            with pytest.raises(LedgerFull):
                take_waiting(project, ledger, project.signer("log"))
        assert take_waiting(project, ledger, project.signer("log")) == 1


def test_a_revoked_auditor_is_refused(project: Project, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once and with 403, whether or not somebody writes the log; and nothing of his waits."""
    monkeypatch.setattr(replay_app, "_PATIENCE", 0.0)
    honest = second_auditor(project)
    leave(project, intent(run, 1))
    with project.open_ledger(writable=True) as ledger:
        ledger.append([small.revocation("auditor", ledger.size)])
        size = ledger.size
        with pytest.raises(NotAccepted, match="revoked"):
            leave(project, intent(run))
        answer = ask(project, "POST", "/" + ENTRIES, content=intent(run))
        assert answer.status_code == 403 and "revoked" in answer.text
        # What waited when he was revoked is refused, too.
        assert take_waiting(project, ledger, project.signer("log")) == 0
        assert [path.suffix for path in project.inbox_dir.iterdir()] == [".refused"]
        assert ask(project, "POST", "/" + ENTRIES, content=intent(run, signer=honest)).status_code == 503
    with pytest.raises(NotAccepted, match="revoked"):
        submit(project, project.signer("log"), intent(run))
    answer = ask(project, "POST", "/" + ENTRIES, content=intent(run))
    assert answer.status_code == 403 and "revoked" in answer.text
    # Also where he is revoked between the first look and the append.
    monkeypatch.setattr(submissions, "_check_sender", lambda ledger, entry: None)
    assert ask(project, "POST", "/" + ENTRIES, content=intent(run)).status_code == 403
    with project.open_ledger() as ledger:
        assert ledger.size == size


def test_the_old_copy_of_a_ledger_without_a_project_gives_nothing(project: Project, run: str, tmp_path: Path) -> None:
    shutil.copyfile(project.ledger_path, tmp_path / "alone.db")
    datasette = make_datasette(tmp_path / "alone.db", public=True)
    assert asyncio.run(datasette.client.get(state_path(run))).status_code == 404
