"""What a log's owner, an auditor or a damaged disk does to who follows: bounded, remembered, and said in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bitwitness.ledger import cli, keys, merkle, note, tiles
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.follow.mirror import ForkFound, Mirror, NotServed
from bitwitness.ledger.follow.monitor import told, watch
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.tiles import WIDTH, Tile

from . import small_ledger as small
from .followed import LOG, Log, follow, policy_text, status

HUGE = 4_000_000_000_123
NOW = 1767323045.0 + 3600  # an hour after small.TIME


@pytest.fixture
def few_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made for each tile of a tree that nobody can hold."""
    real, made = Tile.__post_init__, [0]

    def counted(self: Tile) -> None:
        made[0] += 1
        assert made[0] < 2000
        real(self)

    monkeypatch.setattr(Tile, "__post_init__", counted)


def sign(log: Log, size: int, root: bytes) -> None:
    body = Checkpoint(small.ORIGIN, size, root).format()
    (log.tiles / "checkpoint").write_text(note.sign_note(body, small.ORIGIN, LOG))


def pretend(log: Log, size: int) -> bytes:
    """Serve the hash tiles that lead from the root of a huge tree to the log's own entries, the rest invented."""
    junk = [merkle.leaf_hash(b"%d" % number) for number in range(WIDTH)]
    with Ledger.open(log.path) as ledger:
        first = [ledger.leaf_hash(number) for number in range(ledger.size)]
    root = b""
    peaks: list[bytes] = []
    level = 0
    while count := tiles.hashes_at(level, size):
        width = min(WIDTH, count)
        left = (first + junk)[:width]
        last, rest = divmod(count, WIDTH)
        for tile, hashes in ((Tile(level, 0, width), left), (Tile(level, last, rest or WIDTH), junk)):
            if tile.index == 0 and tile.width == width and tile != Tile(level, 0, width):
                continue
            if tile.index == 0:
                hashes = left
            if tile.width < WIDTH or tile.index == 0:
                path = log.tiles / tile.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(hashes[: tile.width]))
        edge = (left if last == 0 else junk)[:rest]
        found = [
            merkle.root(edge[place << height : (place + 1) << height])
            for height, place in merkle.perfect_nodes(0, rest)
        ]
        peaks = found + peaks
        first, level = [merkle.root(left)], level + 1
    root = peaks.pop()
    while peaks:
        root = merkle.node_hash(peaks.pop(), root)
    return root


@pytest.mark.parametrize("served", [False, True], ids=["nothing served", "its edges served"])
@pytest.mark.parametrize("fresh", [False, True], ids=["known", "fresh"])
@pytest.mark.usefixtures("few_tiles")
def test_a_signed_size_that_nobody_can_serve(
    log: Log, mirror: Mirror, served: bool, fresh: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = log.twin("honest")
    if not fresh:
        follow(mirror, log)
    root = pretend(log, HUGE) if served else bytes(32)
    sign(log, HUGE, root)
    if served and not fresh:  # it is a tree that begins with what was signed before
        with pytest.raises(NotServed, match=f"of {HUGE} entries and does not serve them .*; 12 are here"):
            follow(mirror, log)
    command = [str(log.tiles), str(mirror.folder)]
    assert cli.main(["mirror", *command]) == 2
    said = capsys.readouterr().err
    assert "does not serve them" in said and said.count("\n") == 1
    (kept,) = (mirror.folder / "unserved").iterdir()
    assert kept.read_bytes() == (log.tiles / "checkpoint").read_bytes() and str(kept) in said
    assert cli.main(["monitor", *command]) == 1
    assert capsys.readouterr().out.startswith("ALARM  unserved: ")
    # The log's honest checkpoints are followed all the same, and what was signed is not forgotten.
    assert follow(mirror, honest) == 12
    honest.append("more")
    honest.publish()
    command[0] = str(honest.tiles)
    assert cli.main(["mirror", *command, "--json"]) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["unserved"] == [{"size": HUGE, "path": str(kept)}] and str(kept) in answer.err
    assert cli.main(["monitor", *command]) == 1
    assert f"a checkpoint of {HUGE} entries, too" in capsys.readouterr().out
    kept.unlink()
    assert cli.main(["monitor", *command]) == 0


def test_what_was_signed_and_not_served_convicts_later(log: Log, mirror: Mirror) -> None:
    follow(mirror, log)
    other = log.twin("other")
    other.append("that", 3)
    other.publish()
    shown = (other.tiles / "checkpoint").read_bytes()
    hidden = other.tiles.rename(other.folder / "hidden")
    other.tiles.mkdir()
    (other.tiles / "checkpoint").write_bytes(shown)
    with pytest.raises(NotServed):
        follow(mirror, other)
    log.append("this", 1)
    log.publish()
    with Remote(str(log.tiles)) as remote:
        assert [item.head.size for item in mirror.update(remote).unserved] == [16]
    # Its tiles turn up beside the other history: that shows both.
    for path in hidden.rglob("*.p/*"):
        if not (log.tiles / path.relative_to(hidden)).exists():
            (log.tiles / path.relative_to(hidden)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, log.tiles / path.relative_to(hidden))
    with pytest.raises(ForkFound, match="16 entries that it signed do not begin with the 14 that it shows now"):
        follow(mirror, log)
    assert not list((mirror.folder / "unserved").iterdir()) and follow(mirror, log) == 14
    (path,) = (mirror.folder / "forks").iterdir()
    assert cli.main(["verify", str(path), "--policy", str(log.policy)]) == 1


def test_a_longer_log_that_skips_what_it_had_signed(log: Log, mirror: Mirror) -> None:
    for size in (13, 14):
        sign(log, size, bytes(32))
        with pytest.raises(NotServed):
            follow(mirror, log)
    assert len(list((mirror.folder / "unserved").iterdir())) == 2
    shutil.rmtree(log.tiles)
    log.append("more", 3)
    log.publish()
    for _ in range(2):  # each of them convicts it
        with pytest.raises(ForkFound, match=r"do not begin with the 1[34] that it signed before"):
            follow(mirror, log)
    assert follow(mirror, log) == 16


def test_no_more_are_kept_than_a_person_needs(log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitwitness.ledger.follow.mirror._MAX_UNSERVED", 2)
    for size in range(1000, 1005):
        sign(log, size, bytes(32))
        with pytest.raises(NotServed):
            follow(mirror, log)
    assert len(list((mirror.folder / "unserved").iterdir())) == 2


# Times ----------------------------------------------------------------------------------------------------


def alarms(log: Log, mirror: Mirror, now: float = NOW, **options: float) -> list[str]:
    with Remote(str(log.tiles)) as remote:
        done = watch(mirror, remote, clock=lambda: now, **options)  # type: ignore[arg-type]
    told(mirror, done)
    return [item.name for item in done.alarms]


def append(log: Log, entry: bytes) -> None:
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([entry])
    log.publish()


def test_an_auditor_speaks_for_no_silent_log(log: Log, mirror: Mirror) -> None:
    append(log, status(0))
    assert alarms(log, mirror, max_age=3500) == ["stale"]
    said = {"run": log.run, "size": 1, "first": 0, "last": 0, "samples": 0, "beacon": {"kind": "none"}}
    with Ledger.open(log.path) as ledger:
        roots = [ledger.root(size).hex() for size in (1, 2)]
    append(log, small.seal("audit-intent", {**said, "root": roots[0], "time": "2199-01-01T00:00:00Z"}))
    assert alarms(log, mirror, max_age=3500) == ["future-time", "stale"]
    assert alarms(log, mirror, max_age=3500) == ["stale"]  # it is told once
    append(log, small.seal("audit-intent", {**said, "size": 2, "root": roots[1], "time": "2026-01-02T04:04:05Z"}))
    assert alarms(log, mirror, max_age=3500) == ["stale"]
    append(log, status(1, "2026-01-02T04:04:05Z"))
    assert alarms(log, mirror, max_age=3500) == []


def test_the_future_is_said_however_the_entries_came(
    log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["monitor", str(log.tiles), str(mirror.folder)]
    monkeypatch.setattr("bitwitness.ledger.follow.monitor.time.time", lambda: NOW)
    assert cli.main(command) == 0
    data = json.loads(open_envelope(small.DATASET).payload)["predicate"]
    append(log, small.seal("dataset", data | {"name": "later", "time": "2199-01-01T00:00:00Z"}))
    log.append("many", 300)
    log.publish()
    second = next((log.tiles / "tile" / "entries").glob("001.p*"))
    second.rename(log.folder / "hidden")
    assert cli.main(command) == 1  # what it does not serve, and what came before it
    said = capsys.readouterr().out.split("\n")[1:-1]
    assert [line.split(":")[0] for line in said] == ["ALARM  unserved", "ALARM  future-time"]
    assert cli.main(command) == 1 and "future-time" not in capsys.readouterr().out
    (log.folder / "hidden").rename(second)
    assert cli.main(command) == 0
    # By a round that was cut, or by `ledger mirror`: nobody was told.
    append(log, small.seal("dataset", data | {"name": "later-2", "time": "2199-01-01T00:00:00Z"}))
    assert cli.main(["mirror", *command[1:]]) == 0
    capsys.readouterr()
    assert cli.main(command) == 1 and "later" not in capsys.readouterr().err
    assert cli.main(command) == 0
    for junk in (b"", b"\xff", b"bitwitness/looked/1 99999\n"):
        (mirror.folder / "looked").write_bytes(junk)
        assert cli.main(command) == 1 and capsys.readouterr().out.count("future-time") == 2


def test_a_log_that_states_the_future(log: Log, mirror: Mirror) -> None:
    append(log, status(0, "2199-01-01T00:00:00Z"))
    for _ in range(2):
        assert alarms(log, mirror, max_age=1e9) == ["future-time", "stale"]
    append(log, status(1))
    assert alarms(log, mirror, max_age=3700) == []


def test_witnesses_say_when(log: Log, tmp_path: Path) -> None:
    witness = keys.Signer.from_seed("witness", bytes([4]) * 32)
    vkey = note.Verifier("w.example", witness.public, note.COSIGNATURE).vkey
    log.policy.write_text(policy_text() + f'[witnesses]\npolicy = """\nwitness w {vkey}\nquorum w\n"""\n')
    mirror, path = Mirror(tmp_path / "copy", log.policy), log.tiles / "checkpoint"
    plain = path.read_text()
    body = note.parse_note(plain).text
    for time, wanted in (
        (NOW - 100, []),
        (NOW - 200, ["stale"]),
        (NOW + 1000, ["future-time", "stale"]),
        (2.0**62, ["future-time", "stale"]),
    ):
        path.write_text(plain + note.cosignature_line(body, "w.example", witness, int(time)).format())
        assert alarms(log, mirror, max_age=150) == wanted, time


def test_a_log_that_is_not_reached_is_stale_at_last(log: Log, mirror: Mirror) -> None:
    append(log, status(0))
    assert alarms(log, mirror, max_age=3700) == []
    with Remote("http://127.0.0.1:9/") as remote:
        watched = watch(mirror, remote, max_age=3500, clock=lambda: NOW)
        assert [item.name for item in watched.alarms] == ["stale"]
        with pytest.raises(BitwitnessError, match="cannot be reached"):
            watch(mirror, remote, max_age=3700, clock=lambda: NOW)


# Damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00", b""])
@pytest.mark.parametrize("name", ["seen.checkpoint", "known-keys", "unserved/1-2.checkpoint"])
def test_damaged_memories_are_called_so(
    log: Log, mirror: Mirror, name: str, junk: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["monitor", str(log.tiles), str(mirror.folder)]
    assert cli.main(command) == 0
    path = mirror.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(junk)
    capsys.readouterr()
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert f"{path} is damaged" in said.err and said.err.count("\n") == 1 and "ALARM" not in said.out
    if name == "known-keys":
        assert cli.main([*command, "--accept"]) == 0
    else:
        path.unlink()
    assert cli.main(command) == 0


def test_known_keys_that_lost_lines_are_damaged(log: Log, mirror: Mirror) -> None:
    assert alarms(log, mirror) == []
    path = mirror.folder / "known-keys"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(BitwitnessError, match="damaged"):
        alarms(log, mirror)
    path.write_text(whole)
    assert alarms(log, mirror) == []


def test_without_seen_checkpoint_the_ledger_file_remembers(log: Log, mirror: Mirror) -> None:
    older = log.twin("older")
    log.append("more")
    log.publish()
    follow(mirror, log)
    (mirror.folder / "seen.checkpoint").unlink()
    with pytest.raises(BitwitnessError, match="showed one of 14"):
        follow(mirror, older)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\x93\xff\x00 nothing",
        lambda text: b"",
        lambda text: b"<html>\n\n502\n",
        lambda text: text.replace("—".encode(), b"--"),
    ],
)
def test_bytes_that_nobody_signed_are_not_found_wrong(
    log: Log, mirror: Mirror, change: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    follow(mirror, log)
    path = log.tiles / "checkpoint"
    path.write_bytes(change(path.read_bytes()))
    for command in ("mirror", "monitor"):
        assert cli.main([command, str(log.tiles), str(mirror.folder)]) == 2
        said = capsys.readouterr().err
        assert "its checkpoint cannot be read, and nobody signed it" in said and said.count("\n") == 1


@pytest.mark.parametrize("kind", ["0", "entries"])
def test_what_is_no_tile_is_named(log: Log, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (log.tiles / "tile" / kind).rglob("000.p/*")
    path.write_bytes(b"<html>")
    assert cli.main(["mirror", str(log.tiles), str(tmp_path / "copy"), "--policy", str(log.policy)]) == 1
    assert f"error: {log.tiles}: tile/{kind}/000.p/12 is no such tile (" in capsys.readouterr().err


def test_a_monitor_goes_on_while_another_writes_its_copy(
    log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(mirror, log)
    rounds = []

    def wait(_seconds: float) -> None:
        rounds.append(capsys.readouterr().err)
        if len(rounds) == 1:
            held.close()
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("bitwitness.ledger.cli.follow.time.sleep", wait)
    held = mirror.open()
    assert cli.main(["monitor", str(log.tiles), str(mirror.folder), "--every", "1"]) == 130
    assert "is being written by process" in rounds[0] and rounds[1] == ""
    held = mirror.open()
    try:
        assert cli.main(["monitor", str(log.tiles), str(mirror.folder)]) == 2
    finally:
        held.close()


def test_a_first_round_that_was_killed_takes_no_later_key_as_known(
    log: Log, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_given: object) -> None:
        raise KeyboardInterrupt

    for step in ("bitwitness.ledger.follow.monitor._new_keys", "bitwitness.ledger.follow.mirror.Mirror._copy"):
        with monkeypatch.context() as patch:
            patch.setattr(step, killed)
            with pytest.raises(KeyboardInterrupt):
                alarms(log, mirror)
        assert not (mirror.folder / "known-keys").exists()
        fresh = keys.generate("auditor")
        append(log, enrolment(small.SIGNERS["root"], fresh.public, "auditor", time=small.TIME))
        for _ in range(2):
            assert alarms(log, mirror) == ["new-key"]
        assert alarms(log, mirror, accept=True) == []
        shutil.rmtree(mirror.folder)
        mirror = Mirror(mirror.folder, log.policy)
