"""Following a log: copies over HTTP and from folders, every kind of fork with its evidence, and alarms."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bitwitness.ledger import cli, jcs, keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow import fork
from bitwitness.ledger.follow.mirror import ForkFound, Mirror, NotWhatWasSigned, WentBack
from bitwitness.ledger.follow.monitor import watch
from bitwitness.ledger.follow.remote import Remote, RemoteError
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.verify_ledger import verify_ledger

from . import outside
from . import small_ledger as small
from .followed import LOG, Log, follow, policy_text, raw_log, status

LEDGER = [sys.executable, "-c", "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"]


def entries(path: Path) -> list[bytes]:
    with Ledger.open(path) as ledger:
        return [data for _index, data in ledger.entries()]


def evidence(mirror: Mirror) -> bytes:
    (path,) = (mirror.folder / "forks").iterdir()
    return path.read_bytes()


def test_a_copy_is_the_log(log: Log, mirror: Mirror) -> None:
    sizes = []
    for number in (0, 1, 250, 300, 5):
        if number:
            log.append(f"run{number}", number)
            log.publish()
        sizes.append(follow(mirror, log))
        assert entries(mirror.project.ledger_path) == entries(log.path)
        assert follow(mirror, log) == sizes[-1]
    report = verify_ledger(mirror.project.ledger_path, small.TRUST)
    assert not report.faults and report.size == sizes[-1] and report.checkpoints == len(sizes)
    # The copy is exported to the same files.
    with Ledger.open(mirror.project.ledger_path) as ledger:
        export_tiles(ledger, mirror.folder / "out")
    for path in (mirror.folder / "out").rglob("*"):
        if path.is_file() and ".p" not in path.parts[-2]:
            assert path.read_bytes() == (log.tiles / path.relative_to(mirror.folder / "out")).read_bytes()


def test_over_http_from_ledger_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Project.create(tmp_path / "project")
    with project.open_ledger(writable=True) as ledger:
        root = project.signer("root")
        ledger.append([enrolment(root, keys.generate("witness").public, "witness") for _ in range(300)])
        ledger.sign_checkpoint(project.signer("log"))
    command = [*LEDGER, "--project", str(project.root), "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        copy = str(tmp_path / "copy")
        assert cli.main(["mirror", url, copy]) == 2
        assert "give --policy" in capsys.readouterr().err
        assert cli.main(["mirror", url, copy, "--policy", str(project.trust_path), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["size"] == answer["new"] == 305 and answer["witnessed"] is None
        assert cli.main(["mirror", url, copy]) == 0
        assert "305 entries, 0 new, self-asserted" in capsys.readouterr().out
    finally:
        server.terminate()
        server.wait(timeout=20)
    assert cli.main(["mirror", url, copy]) == 2
    assert cli.main(["--project", copy, "fsck"]) == 0
    assert cli.main(["--project", copy, "prove", "--index", "77"]) == 0
    assert cli.main(["verify", f"{copy}/ledger.db", "--policy", str(project.trust_path)]) == 0


def test_full_tiles_stand_in_for_partial_ones_that_are_gone(log: Log, mirror: Mirror) -> None:
    log.append("long", 300)
    log.publish()
    kept = (log.tiles / "checkpoint").read_bytes()
    log.append("longer", 300)
    log.publish()
    for path in list(log.tiles.rglob("*.p")):
        if "001.p" in str(path) and "/1/" not in str(path):
            shutil.rmtree(path)
    (log.tiles / "checkpoint").write_bytes(kept)
    assert follow(mirror, log) == 12 + 301


def test_two_roots_for_one_size(log: Log, mirror: Mirror) -> None:
    other = log.twin("other")
    log.append("this")
    other.append("that")
    log.publish(), other.publish()
    follow(mirror, log)
    with pytest.raises(ForkFound, match="two roots for 14 entries"):
        follow(mirror, other)
    convicted(evidence(mirror), "signed two roots for 14 entries")
    follow(mirror, log)


def test_a_longer_log_that_does_not_begin_with_what_was_signed(log: Log, mirror: Mirror) -> None:
    for size in (1, 4):  # old sizes that are no power of two, and one that is: 14, 16
        shutil.rmtree(mirror.folder / "forks", ignore_errors=True)
        other = log.twin(f"other{size}")
        log.append(f"this{size}")
        other.append(f"that{size}", 9)
        log.publish(), other.publish()
        follow(mirror, log)
        with pytest.raises(ForkFound, match="do not begin with"):
            follow(mirror, other)
        convicted(evidence(mirror), "have root")


def test_a_shorter_log_of_another_history(log: Log, mirror: Mirror) -> None:
    other = log.twin("other")
    log.append("this", 5)
    other.append("that", 1)
    log.publish(), other.publish()
    follow(mirror, log)
    with pytest.raises(ForkFound):
        follow(mirror, other)
    convicted(evidence(mirror), "have root")


def test_an_old_checkpoint_is_no_fork(log: Log, mirror: Mirror) -> None:
    older = log.twin("older")
    log.append("more")
    log.publish()
    follow(mirror, log)
    with pytest.raises(WentBack, match="of 12 entries, but showed one of 14"):
        follow(mirror, older)
    assert not (mirror.folder / "forks").exists()
    assert follow(mirror, log) == 14


def test_two_entries_for_one_place_in_a_run(log: Log, mirror: Mirror) -> None:
    one = small.chain("run", [("step", small.step(1, "run")), ("step", small.step(2, "run"))])
    other = small.chain("run", [("step", {**small.step(1, "run"), "observed": {"time": small.TIME}})])
    assert one[0] == other[0]
    raw_log(log, [*small.key_entries(), small.DATASET, *one, other[1]])
    with pytest.raises(ForkFound, match="entries 8 and 10 are both entry 1 of run"):
        follow(mirror, log)
    convicted(evidence(mirror), "entries 8 and 10 of the log example.org/small are both entry 1 of run")
    with Ledger.open(mirror.project.ledger_path) as ledger:
        assert ledger.size == 10  # what went before it is kept


@pytest.mark.parametrize("case", ["signature", "unknown signer", "garbage", "first", "root key"])
def test_signed_entries_that_are_not_valid(log: Log, mirror: Mirror, case: str) -> None:
    data = [*small.key_entries(), small.DATASET]
    if case == "signature":
        data.append(data[3].replace(b'"sig":"', b'"sig":"AAAA', 1))
    elif case == "unknown signer":
        data.append(small.seal("dataset", small_dataset(), signer=keys.Signer.from_seed("trainer", bytes(32))))
    elif case == "garbage":
        data.append(b"not an entry")
    elif case == "first":
        data = data[1:]
    else:
        root = keys.Signer.from_seed("root", bytes(32))
        data = [enrolment(root, root.public, "root")]
    raw_log(log, data)
    with pytest.raises(FoundWrong):
        follow(mirror, log)


def small_dataset() -> small.Json:
    from bitwitness.ledger.entry.envelope import open_envelope

    predicate: small.Json = dict(open_envelope(small.DATASET).statement["predicate"])
    del predicate["signer"]
    return predicate | {"name": "other"}


def damage(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_other_bytes_than_signed(log: Log, mirror: Mirror) -> None:
    cases: dict[str, tuple[str, Callable[[Path], None]]] = {
        "a leaf hash": ("tile/0/000.p/12", damage),
        "an entry": ("tile/entries/000.p/12", damage),
        "a cut bundle": ("tile/entries/000.p/12", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        "a long tile": ("tile/0/000.p/12", lambda path: path.write_bytes(path.read_bytes() + bytes(32))),
        "no tile": ("tile/0/000.p/12", lambda path: path.unlink()),
        "a signature": ("checkpoint", lambda path: damage(path, -20)),
        "no checkpoint": ("checkpoint", lambda path: path.unlink()),
        "a huge checkpoint": ("checkpoint", lambda path: path.write_bytes(b"x" * 1_100_000)),
    }
    for name, (where, change) in cases.items():
        path = log.tiles / where
        saved = path.read_bytes()
        change(path)
        with pytest.raises(BitwitnessError):
            follow(mirror, log)
        path.write_bytes(saved)
        with mirror.open() as ledger:
            assert ledger.size == 0, name
    assert follow(mirror, log) == 12


def test_a_round_that_was_cut_short_is_completed(log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append("long", 600)
    log.publish()
    real, calls = Ledger.append, [0]

    def failing(self: Ledger, data: object) -> object:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return real(self, data)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "append", failing)
    with pytest.raises(KeyboardInterrupt):
        follow(mirror, log)
    monkeypatch.undo()
    with mirror.open() as ledger:
        assert ledger.size == 256
    other = log.twin("other")  # what was seen is remembered, though not all of it was copied
    shutil.copyfile(log.path, other.path)
    raw_log(other, [*entries(log.path)[:-1], small.DATASET])
    with pytest.raises(ForkFound):
        follow(mirror, other)
    assert follow(mirror, log) == 613


def test_a_policy_that_asks_for_witnesses(log: Log, tmp_path: Path) -> None:
    witness = keys.Signer.from_seed("witness", bytes([4]) * 32)
    vkey = note.Verifier("w.example", witness.public, note.COSIGNATURE).vkey
    log.policy.write_text(policy_text() + f'[witnesses]\npolicy = """\nwitness w {vkey}\nquorum w\n"""\n')
    mirror = Mirror(tmp_path / "copy", log.policy)
    with pytest.raises(NotWhatWasSigned, match="not witnessed"):
        follow(mirror, log)
    path = log.tiles / "checkpoint"
    body = note.parse_note(path.read_text()).text
    path.write_text(path.read_text() + note.cosignature_line(body, "w.example", witness, 5).format())
    with Remote(str(log.tiles)) as remote:
        update = mirror.update(remote)
    assert update.witnessed and "witnessed by w.example" in update.assurance


def test_the_log_key_is_replaced(log: Log, mirror: Mirror) -> None:
    follow(mirror, log)
    new = keys.Signer.from_seed("log", bytes([3]) * 32)
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([small.rotation("log", new)])
    log.publish(new, LOG)
    assert follow(mirror, log) == 13
    log.append("later")
    log.publish(new)
    assert follow(mirror, log) == 15
    with Ledger.open(log.path, writable=True) as ledger:  # the old key goes on by itself
        writer = small.begin(ledger, "stolen")
        head = Checkpoint(small.ORIGIN, ledger.size, ledger.root())
        writer.append("step", small.step(1, "stolen"))
        ledger._insert_checkpoint(head.size, note.sign_note(head.format(), small.ORIGIN, LOG))
        export_tiles(ledger, log.tiles)
    with pytest.raises(NotWhatWasSigned, match="has ended"):
        follow(mirror, log)


def test_alarms(log: Log, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    now = 1767323045.0 + 3600  # an hour after small.TIME

    def alarms(**options: float) -> list[str]:
        with Remote(str(log.tiles)) as remote:
            return [item.name for item in watch(mirror, remote, clock=lambda: now, **options).alarms]  # type: ignore[arg-type]

    assert alarms(max_age=3700) == ["stale"] and alarms() == []  # nobody of the log has said when
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([status(0)])
    log.publish()
    assert alarms(max_age=3700) == []
    assert alarms(max_age=3500) == ["stale"]
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([enrolment(small.SIGNERS["root"], keys.generate("trainer").public, "trainer", time=small.TIME)])
    older = log.twin("older")
    log.publish()
    assert alarms() == ["new-key"] and alarms() == ["new-key"]
    assert alarms(accept=True) == [] and alarms() == []
    path = log.tiles / "checkpoint"
    stranger = keys.Signer.from_seed("log", bytes([5]) * 32)
    text = path.read_text()
    line = note.signature_line(note.parse_note(text).text, small.ORIGIN, stranger)
    path.write_text(text + line.format())
    assert alarms() == ["unknown-signer"]
    path.write_bytes((older.tiles / "checkpoint").read_bytes())
    assert alarms() == ["went-back"]
    assert cli.main(["monitor", str(log.tiles), str(mirror.folder)]) == 1
    assert "ALARM  went-back" in capsys.readouterr().out
    path.write_text(text)
    assert cli.main(["monitor", str(log.tiles), str(mirror.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alarms"] == []
    assert cli.main(["monitor", str(log.tiles), str(mirror.folder), "--max-age", "1"]) == 1
    assert cli.main(["monitor", "http://127.0.0.1:9/", str(mirror.folder)]) == 2


def test_folders_that_are_no_mirrors(log: Log, tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    with pytest.raises(BitwitnessError, match="keys of its own"):
        Mirror(project.root, log.policy)
    with pytest.raises(BitwitnessError, match="--policy"):
        Mirror(tmp_path / "new")
    mirror = Mirror(tmp_path / "copy", log.policy)
    follow(mirror, log)
    other = tmp_path / "other.toml"
    verifier = note.Verifier("example.org/else", LOG.public)
    other.write_text(policy_text(Trust("example.org/else", verifier, small.TRUST.root)))
    with pytest.raises(BitwitnessError, match="with another origin than"):
        Mirror(tmp_path / "copy", other)
    for url in ("http://", "http://h/?q=1", "ftp://h/", str(tmp_path / "nowhere")):
        with pytest.raises(RemoteError):
            Remote(url)


# Evidence -------------------------------------------------------------------------------------------------


def convicted(data: bytes, said: str) -> None:
    """Evidence convinces with the log's key alone, and no changed byte of it does."""
    (check,) = fork.verify_fork(data, small.TRUST)
    assert check.ok is False and said in check.detail
    outside.check_fork(data, small.TRUST.log.vkey, small.TRUST.root.raw)
    assert fork.looks_like_fork(data)
    other = Trust(small.ORIGIN, note.Verifier(small.ORIGIN, keys.generate("log").public), small.TRUST.root)
    assert fork.verify_fork(data, other)[0].ok is None
    for at in range(0, len(data) - 1, max(1, len(data) // 150)):
        changed = bytearray(data)
        changed[at] ^= 1
        (check,) = fork.verify_fork(bytes(changed), small.TRUST)
        assert check.ok is None, at


def test_evidence_of_nothing(log: Log) -> None:
    with Ledger.open(log.path) as ledger:
        first = ledger.latest_checkpoint()
    log.append("more")
    log.publish()
    with Ledger.open(log.path) as ledger:
        second = ledger.latest_checkpoint()
        assert first is not None and second is not None
        hashes = fork.prefix_hashes(12, 14, ledger.node)
        placed = [fork.PlacedEntry(n, ledger.entry(n), ledger.inclusion_proof(n, 14)) for n in (8, 9)]
    nothing = [
        fork.two_roots(first, first),
        fork.two_roots(first, second),
        fork.two_histories(first, second, hashes),
        fork.two_histories(second, first, hashes),
        fork.two_histories(first, second, hashes[:-1]),
        fork.two_entries(second, placed),
        fork.two_entries(second, [placed[0], placed[0]]),
        b"{}",
        b"",
        *(b'{"checkpoints":[],"format":"bitwitness/fork/1","kind":%b}' % kind for kind in (b"{}", b"[]", b"1")),
    ]
    for data in nothing:
        (check,) = fork.verify_fork(data, small.TRUST)
        assert check.ok is None, data[:200]


def test_evidence_is_read_strictly(log: Log) -> None:
    """Each of these would convict, or be taken for something else, without its check."""
    with Ledger.open(log.path) as ledger:
        text, roots = ledger.latest_checkpoint(), [ledger.root(size) for size in (0, 12)]
        placed = [fork.PlacedEntry(n, ledger.entry(n), ledger.inclusion_proof(n, 12)) for n in (6, 8)]
    assert text is not None
    forged, empty = (
        note.sign_note(Checkpoint(small.ORIGIN, size, root).format(), small.ORIGIN, LOG)
        for size, root in ((12, bytes(32)), (0, roots[0]))
    )
    good = jcs.parse(fork.two_roots(text, forged))
    assert fork.verify_fork(jcs.encode(good), small.TRUST)[0].ok is False
    history = {"format": fork.FORMAT, "kind": "history", "checkpoints": [empty, text], "hashes": [roots[1].hex()]}
    run = jcs.parse(fork.two_entries(text, placed))
    first, second = run["entries"]
    wide = {**first, "hashes": [roots[1].hex()] * 65}
    for value, said in (
        ([], "not bitwitness/fork/1"),
        ({**good, "format": "bitwitness/fork/2"}, "not bitwitness/fork/1"),
        ({**good, "kind": "history"}, "not one of its kinds"),
        ({**good, "more": 1}, "not one of its kinds"),
        (history, "not an older and a newer one"),
        ({**history, "checkpoints": [text, forged]}, "not an older and a newer one"),
        ({**good, "checkpoints": [1, 2]}, "a checkpoint is not text"),
        ({**good, "checkpoints": [text, forged, text]}, "another length"),
        ({**good, "checkpoints": text}, "another length"),
        ({**history, "checkpoints": [forged, text], "hashes": [1]}, "not an older and a newer one"),
        ({**history, "hashes": [1]}, "not an older and a newer one"),
        ({**run, "entries": [{**first, "more": 1}, second]}, "not {entry, hashes, index}"),
        ({**run, "entries": [{**first, "index": True}, second]}, "not {entry, hashes, index}"),
        ({**run, "entries": [{**first, "entry": 1}, second]}, "not standard padded base64"),
        ({**run, "entries": [{**first, "hashes": ["zz" * 32]}, second]}, "not 64 hex digits"),
        ({**run, "entries": [{**first, "hashes": [1]}, second]}, "not 64 hex digits"),
        ({**run, "entries": [wide, second]}, "another length"),
        (run, "is in no run"),
    ):
        (check,) = fork.verify_fork(jcs.encode(value), small.TRUST)
        assert check.ok is None and said in check.detail, (said, check.detail)


def test_prefix_hashes_of_every_pair_of_sizes() -> None:
    leaves = [merkle.leaf_hash(b"%d" % number) for number in range(40)]
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([merkle.node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    for size2 in range(1, 41):
        for size1 in range(1, size2 + 1):
            hashes = fork.prefix_hashes(size1, size2, lambda level, index: levels[level][index])
            assert fork.fold_prefix(size1, size2, hashes) == (merkle.root(leaves[:size1]), merkle.root(leaves[:size2]))


def test_the_command_verifies_evidence(
    log: Log, mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = log.twin("other")
    log.append("this")
    other.append("that")
    log.publish(), other.publish()
    assert cli.main(["mirror", str(log.tiles), str(mirror.folder)]) == 0
    assert cli.main(["mirror", str(other.tiles), str(mirror.folder)]) == 1
    assert "FORK: two roots" in capsys.readouterr().err
    (path,) = (mirror.folder / "forks").iterdir()
    assert cli.main(["verify", str(path), "--policy", str(log.policy)]) == 1
    assert "WRONG  fork: the log example.org/small signed two roots" in capsys.readouterr().out
    path.write_bytes(path.read_bytes().replace(b'"kind":"roots"', b'"kind":"rooms"'))
    assert cli.main(["verify", str(path), "--policy", str(log.policy)]) == 2
