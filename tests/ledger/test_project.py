"""Projects: what init makes, what it refuses, how a project is found."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bitwitness.ledger import keys, project_init
from bitwitness.ledger.checkpoint import default_origin, open_checkpoint
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, KeyFileError, WrongPassphrase
from bitwitness.ledger.fsck import examine
from bitwitness.ledger.project import CONFIG, ROLES, Project, ProjectError, ProjectNotFound
from bitwitness.ledger.trust import load_trust


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.create(tmp_path_factory.mktemp("projects") / "demo")


def test_init_makes_everything(project: Project) -> None:
    names = {path.name for path in project.root.iterdir() if not path.name.startswith("ledger.db-")}
    assert names == {CONFIG, "ledger.db", "ledger.db.lock", "keys", "data", "runs", "models", "trust.toml", "run.toml"}
    assert stat.S_IMODE(project.keys_dir.stat().st_mode) == 0o700
    for role in ROLES:
        assert stat.S_IMODE(project.key_path(role).stat().st_mode) == 0o600
        assert project.signer(role).role == role


def test_init_enrols_the_root_key_first_then_the_others(project: Project) -> None:
    with project.open_ledger() as ledger:
        keys_in_order = [open_envelope(data).statement["predicate"]["key"] for _index, data in ledger.entries()]
        assert [key["role"] for key in keys_in_order] == list(ROLES)
        assert [key["keyid"] for key in keys_in_order] == [project.signer(role).keyid for role in ROLES]
        assert ledger.origin == default_origin(project.signer("log").public)
        note = ledger.latest_checkpoint()
    trust = load_trust(project.trust_path)
    assert trust.root == project.signer("root").public
    assert note is not None
    checkpoint, _note = open_checkpoint(note, [trust.log], trust.origin)
    assert checkpoint.size == len(ROLES)


def test_the_trust_policy_names_the_auditor(project: Project) -> None:
    policy = tomllib.loads(project.trust_path.read_text(encoding="utf-8"))
    assert policy["rules"] == {
        "require_audit": True,
        "require_status": True,
        "self_chosen_auditors": [project.signer("auditor").keyid],
    }


def test_init_replaces_nothing(tmp_path: Path) -> None:
    for name in (CONFIG, "trust.toml", "run.toml", "ledger.db", "keys/trainer.pem", "keys/log.pub"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(BitwitnessError, match="exists") as raised:
            Project.create(folder)
        assert "\n" not in str(raised.value)
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert [path.read_text() for path in files] == ["mine"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BitwitnessError, match="is a file"):
        Project.create(tmp_path / "file")


def test_an_init_that_fails_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(BitwitnessError):
        Project.create(tmp_path / "demo", origin="not an origin")
    with pytest.raises(KeyFileError):
        Project.create(tmp_path / "demo", passphrase=b"")
    assert [path for path in (tmp_path / "demo").rglob("*") if path.is_file()] == []
    Project.create(tmp_path / "demo")


def test_init_into_a_folder_with_other_things_leaves_them(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    Project.create(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_project_is_found_upwards(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(project.data_dir)
    assert Project.find().root == project.root
    assert Project.find(project.root) == Project.find(str(project.root))
    with pytest.raises(ProjectNotFound):
        Project.find(project.data_dir)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProjectNotFound, match="--project"):
        Project.find()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("format = 1\nextra = 2", "unknown key extra"),
        ("format = 2", "format = 2"),
        ("", "format = None"),
        ('format = 1\n[paths]\nladger = "x"', "unknown key paths.ladger"),
        ("format = 1\n[paths]\nledger = 3", "paths.ledger"),
        ("format = 1\npaths = 3", "paths"),
        ("format = ", "not readable as TOML"),
        ('format = 1\n[paths]\nledger = "a\\u0000b"', "paths.ledger is not a path"),
        ("\xff", "not readable as TOML"),
    ],
)
def test_a_config_that_is_wrong_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / CONFIG).write_bytes(text.encode("latin-1"))
    with pytest.raises(ProjectError, match=reason) as raised:
        Project.find(tmp_path)
    assert "\n" not in str(raised.value)


def test_paths_may_lead_elsewhere(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "one")
    moved = tmp_path / "safe"
    project.keys_dir.rename(moved)
    project.config.write_text(f'format = 1\n[paths]\nkeys = "{moved}"\n')
    assert Project.find(project.root).signer("log").role == "log"


def test_keys_that_others_can_read_or_that_are_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "one")
    os.chmod(project.key_path("log"), 0o644)
    with pytest.raises(KeyFileError, match="others can read"):
        project.signer("log")
    for suffix in (".pem", ".pub"):
        project.key_path("root").with_suffix(suffix).rename(project.key_path("trainer").with_suffix(suffix))
    with pytest.raises(KeyFileError, match="root key, not a trainer key"):
        project.signer("trainer")
    with pytest.raises(KeyFileError, match="no such file"):
        project.signer("root")


def test_encrypted_keys_need_their_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.create(tmp_path / "one", passphrase=b"open sesame")
    with pytest.raises(KeyFileError, match="passphrase"):
        project.signer("log")
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "wrong")
    with pytest.raises(WrongPassphrase):
        project.signer("log")
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "open sesame")
    assert project.signer("log").role == "log"


def test_an_origin_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    for origin in ("not an origin", "a+b", "", "x" * 201, "ä", "a\nb"):
        with pytest.raises(BitwitnessError, match="--origin: ") as raised:
            Project.create(tmp_path / "demo", origin=origin)
        assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def init(folder: Path, *before: str) -> subprocess.Popen[str]:
    """`ledger init` in a process of its own, after these lines of Python."""
    code = "\n".join(
        [
            "import os, sys",
            "from bitwitness.ledger import project, project_init",
            "from bitwitness.ledger.errors import BitwitnessError",
            *before,
            f"try: project.Project.create({str(folder)!r})",
            "except BitwitnessError as error: sys.exit(str(error))",
        ]
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def assert_sound(project: Project) -> None:
    for role in ROLES:
        assert project.signer(role).role == role
    report = examine(project.ledger_path, load_trust(project.trust_path), processes=1)
    assert report.exit_code == 0, report.to_json()
    assert list(project.root.glob(".bitwitness*")) == []


def test_of_several_inits_at_once_one_wins_and_the_others_take_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    running = [init(folder) for _ in range(4)]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 1, 1, 1], said
    for text in filter(None, said):
        assert "another `ledger init` is at work" in text or "exists; `ledger init` replaces nothing" in text
    assert_sound(Project.find(folder))


@pytest.mark.parametrize("place", ["keys/trainer.pem", "ledger.db", "run.toml", "bitwitness.toml"])
def test_a_killed_init_is_not_in_the_way_of_the_next(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    lines = (
        "link = project_init._link",
        "def killed(source, place):",
        f"    if str(place).endswith({place!r}): os.kill(os.getpid(), 9)",
        "    link(source, place)",
        "project_init._link = killed",
    )
    assert init(folder, *lines).wait(60) == -9
    assert list(folder.glob(".bitwitness-init-*")) != []
    project = Project.create(folder)
    assert_sound(project)
    assert (folder / "notes.txt").read_text() == "mine"


def test_what_others_put_there_meanwhile_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = project_init._link

    def disturbed(source: Path, place: Path) -> None:
        if place.name == "run.toml":
            place.write_text("theirs")
        link(source, place)

    monkeypatch.setattr(project_init, "_link", disturbed)
    with pytest.raises(BitwitnessError, match=r"run\.toml exists"):
        Project.create(tmp_path / "demo")
    files = [path for path in (tmp_path / "demo").rglob("*") if path.is_file()]
    assert [path.read_text() for path in files] == ["theirs"]


def test_init_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(project_init.os, "link", unable)
    assert_sound(Project.create(tmp_path / "demo"))
