"""The command line: answers, exit codes, one line for each mistake, nothing heavy loaded without need."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import cli, keys, tlog_proof
from bitwitness.ledger.cli import care, output, plugins
from bitwitness.ledger.files.schema_error import reason
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.store import Ledger

from . import serve_sample

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve_sample.build(tmp_path_factory.mktemp("cli") / "sample", 12).root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sample: Path) -> Run:
    """run("log", …) -> (exit code, stdout, stderr), in the sample project."""
    monkeypatch.chdir(sample)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return call


def answer(result: tuple[int, str, str], code: int = 0) -> Any:
    assert result[0] == code, result
    return json.loads(result[1])


def complaint(result: tuple[int, str, str], code: int) -> str:
    """The one line of a refusal."""
    assert result[0] == code, result
    assert result[1] == ""
    (line,) = result[2].splitlines()
    assert line.startswith("error: ")
    return line


# init -----------------------------------------------------------------------------------------------------


def test_init_answers_and_refuses(run: Run, tmp_path: Path) -> None:
    made = answer(run("init", tmp_path / "one", "--json"))
    assert made["project"] == str(tmp_path / "one")
    assert made["origin"].startswith("bitwitness.invalid/")
    assert "exists" in complaint(run("init", tmp_path / "one"), 2)
    code, out, err = run("init", tmp_path / "two", "--origin", "example.org/two")
    assert (code, out) == (0, f"made project {tmp_path / 'two'}, log example.org/two\n")
    assert "offline" in err
    assert run("fsck", "--project", tmp_path / "two")[0] == 0


def test_init_with_encrypted_keys(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    secret.chmod(0o644)
    assert "chmod 600" in complaint(run("init", tmp_path / "p", "--passphrase-file", secret), 2)
    secret.chmod(0o600)
    assert run("init", tmp_path / "p", "--passphrase-file", secret)[0] == 0
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    assert "passphrase" in complaint(run("--project", tmp_path / "p", "checkpoint"), 2)
    monkeypatch.setenv("BITWITNESS_PASSPHRASE_FILE", str(secret))
    assert run("--project", tmp_path / "p", "checkpoint")[0] == 0
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "wrong")
    assert "does not open" in complaint(run("--project", tmp_path / "p", "checkpoint"), 2)


# log and show ---------------------------------------------------------------------------------------------


def test_log_lists_entries_in_order(run: Run, sample: Path) -> None:
    listed = answer(run("log", "--json"))
    with Ledger.open(sample / "ledger.db") as ledger:
        assert [item["index"] for item in listed] == list(range(ledger.size))
        assert [item["hash"] for item in listed] == [ledger.leaf_hash(index).hex() for index in range(ledger.size)]
    assert all({"index", "kind", "hash", "predicateType", "subject", "predicate"} <= item.keys() for item in listed)
    steps = answer(run("log", "--run", "demo", "--kind", "step", "--json"))
    assert [item["predicate"]["computed"]["step"] for item in steps] == list(range(1, 13))
    assert steps == [item for item in listed if item["kind"] == "step" and item["run_name"] == "demo"]
    assert answer(run("log", "--run", "demo", "--kind", "step", "--limit", "3", "--json")) == steps[-3:]
    assert answer(run("log", "--kind", "status", "--json")) == []
    code, out, _err = run("log", "--run", steps[0]["predicate"]["run"][:12], "--limit", 2)
    assert code == 0 and len(out.splitlines()) == 3


def test_show_entries_and_runs(run: Run) -> None:
    first = answer(run("show", "0", "--json"))
    assert first == answer(run("show", first["hash"][:8], "--json")) == answer(run("log", "--json"))[0]
    shown = answer(run("show", "demo", "--json"))
    assert shown["run"]["status"] == "ended" and shown["run"]["last_step"] == 12
    assert shown["genesis"]["hash"] == shown["run"]["hash"]
    assert answer(run("show", shown["run"]["hash"], "--json")) == shown
    for arguments in (("show", "demo"), ("show", "0")):
        code, out, err = run(*arguments)
        assert code == 0 and first["hash"][:4] and out and not err


def test_show_raw_is_the_signed_entry(sample: Path) -> None:
    raw = subprocess.run(
        [sys.executable, "-m", "bitwitness.ledger.cli", "show", "3", "--raw"],
        cwd=sample,
        capture_output=True,
        check=True,
    )
    with Ledger.open(sample / "ledger.db") as ledger:
        assert raw.stdout == ledger.entry(3)


# checkpoint, prove, verify --------------------------------------------------------------------------------


def test_a_proof_file_verifies_by_itself(run: Run, tmp_path: Path, sample: Path) -> None:
    out = tmp_path / "step7.tlog-proof"
    code, printed, err = run("prove", "--run", "demo", "--step", "7", "--out", out)
    assert (code, printed) == (0, "") and str(out) in err
    verdict = answer(run("verify", out, "--json"))
    assert (verdict["verified"], verdict["kind"]) == (True, "proof")
    assert all(set(item) == {"name", "ok", "detail"} for item in verdict["checks"])
    reports = [tmp_path / name for name in ("junit.xml", "sarif.json")]
    code, printed, _err = run(
        "verify", out, "--policy", sample / "trust.toml", "--junit", reports[0], "--sarif", reports[1]
    )
    assert code == 0 and printed.splitlines()[-1] == "proof: verified"
    assert '<property name="kind" value="proof"/>' in reports[0].read_text()
    assert json.loads(reports[1].read_text())["runs"][0]["properties"] == {"kind": "proof"}
    assert run("prove", "--run", "demo", "--step", "7")[1] == out.read_text()
    data = out.read_bytes()
    out.write_bytes(data.replace(b"index ", b"index 1", 1))
    verdict = answer(run("verify", out, "--json"), 1)
    assert verdict["verified"] is False
    out.write_bytes(data[:-30])
    assert run("verify", out)[0] == 1


def test_a_proof_of_an_entry_behind_the_checkpoint_signs_a_new_one(run: Run, tmp_path: Path) -> None:
    project = serve_sample.build(tmp_path / "p", 12)
    last = json.loads(run("log", "--limit", "1", "--json", "--project", project.root)[1])[0]["index"]
    code, out, err = run("prove", "--index", last, "--project", project.root)
    assert code == 0 and "new checkpoint" in err
    (tmp_path / "proof").write_text(out)
    assert run("verify", tmp_path / "proof", "--policy", project.trust_path)[0] == 0
    with project.open_ledger(writable=True):
        assert run("prove", "--index", last, "--project", project.root)[0] == 0  # needs no writer any more
        said = complaint(run("checkpoint", "--project", project.root), 2)
        assert f"process {os.getpid()} is writing" in said and "checkpoint_every" in said
        assert re.search(r"covers \d+ of \d+ entries", said), said


def test_the_genesis_is_step_0(run: Run) -> None:
    genesis = answer(run("show", "demo", "--json"))["genesis"]["index"]
    proof = tlog_proof.parse(run("prove", "--run", "demo", "--step", "0")[1])
    assert proof.index == genesis


def test_merkletools_agrees(run: Run) -> None:
    merkletools = pytest.importorskip("merkletools", reason="merkletools is installed by the Makefile")
    hashlib = __import__("hashlib")
    plain = answer(run("prove", "--index", "9", "--format", "json"))
    path = answer(run("prove", "--index", "9", "--format", "merkletools"))
    tree = merkletools.MerkleTools(hash_type="sha256")
    tree.hash_function = lambda data: hashlib.sha256(b"\x01" + data)
    assert tree.validate_proof(path, plain["leaf_hash"], plain["root"])
    assert not tree.validate_proof(path[1:], plain["leaf_hash"], plain["root"])
    assert answer(run("prove", "--index", "9", "--json")) == plain


def test_checkpoint_prints_the_note(run: Run) -> None:
    code, note, _err = run("checkpoint")
    assert code == 0
    again = answer(run("checkpoint", "--json"))
    assert again["note"] == note
    assert parse_note(note).text.splitlines()[1] == str(again["size"])


def test_a_whole_ledger_verifies(run: Run, sample: Path, tmp_path: Path) -> None:
    verdict = answer(run("verify", "ledger.db", "--json"))
    assert (verdict["verified"], verdict["kind"]) == (True, "ledger")
    assert run("verify", "ledger.db")[1].splitlines()[-1] == "ledger: verified"
    copy = tmp_path / "copy.db"
    with sqlite3.connect(sample / "ledger.db") as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    assert run("verify", copy, "--policy", sample / "trust.toml")[0] == 0
    other = serve_sample.build(tmp_path / "other", 12)
    assert answer(run("verify", copy, "--policy", other.trust_path, "--json"), 1)["verified"] is False
    copy.write_bytes(copy.read_bytes()[:30000])
    assert run("verify", copy)[0] == 1


def test_verify_says_what_it_lacks(run: Run, tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.tlog-proof"
    assert run("prove", "--index", "3", "--out", out)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert "--policy" in complaint(run("verify", out), 2)
    assert "no such file" in complaint(run("verify", tmp_path / "none"), 2)
    assert "no such file" in complaint(run("verify", out, "--policy", "none.toml"), 2)
    (tmp_path / "bad.toml").write_text("[log]\n")
    assert "log.origin" in complaint(run("verify", out, "--policy", "bad.toml"), 2)
    bare = tlog_proof.parse(out.read_text())
    out.write_text(tlog_proof.Proof(bare.index, bare.hashes, bare.checkpoint_note).format())
    assert answer(run("verify", out, "--policy", sample / "trust.toml", "--json"), 2)["verified"] is False
    entry = tmp_path / "entry.json"
    with Ledger.open(sample / "ledger.db") as ledger:
        entry.write_bytes(ledger.entry(3))
    checks = answer(run("verify", out, "--policy", sample / "trust.toml", "--entry", entry, "--json"), 2)["checks"]
    assert [item["ok"] for item in checks] == [True, True, True, None]


def test_folders_go_to_the_verifier_of_models(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verifier(path: Path, policy: Path, **_options: object) -> list[dict[str, Any]]:
        assert path == tmp_path
        return [
            {"name": "weights", "ok": True, "detail": "fine", "category": "CRYPTO", "required": True},
            {"name": "witnesses", "ok": None, "detail": "none", "category": "ASSURANCE", "required": False},
        ]

    monkeypatch.setattr("bitwitness.ledger.cli.verify.load_verifier", lambda name: verifier)
    code, out, _err = run("verify", tmp_path)
    assert code == 0 and "CRYPTO weights: fine" in out
    monkeypatch.setattr("bitwitness.ledger.cli.verify.load_verifier", lambda name: None)
    assert "no installed package" in complaint(run("verify", tmp_path), 2)


# fsck, rebuild, key ---------------------------------------------------------------------------------------


def test_fsck_and_rebuild(run: Run, tmp_path: Path) -> None:
    project = serve_sample.build(tmp_path / "p", 12)
    assert answer(run("fsck", "--json", "--project", project.root))["verified"] is True
    with sqlite3.connect(project.ledger_path) as connection:
        connection.execute("DROP TRIGGER steps_no_update")
        connection.execute("UPDATE steps SET loss = 0.5 WHERE step = 3")
    connection.close()
    report = answer(run("fsck", "--json", "--project", project.root), 1)
    assert {fault["table"] for fault in report["faults"]} == {"steps", "sqlite_schema"}
    code, out, err = run("fsck", "--project", project.root)
    assert code == 1 and "WRONG  derived: steps" in out and "`ledger rebuild`" in err
    assert answer(run("rebuild", "--json", "--project", project.root))["entries"] == report["entries"]
    assert run("fsck", "--project", project.root)[0] == 0
    with sqlite3.connect(project.ledger_path) as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        connection.execute("UPDATE entries SET payload = replace(payload, 'root', 'rooz') WHERE idx = 0")
    connection.close()
    for command in (["log"], ["show", "0"], ["prove", "--index", "0"], ["rebuild"]):
        assert "entry 0 was edited" in complaint(run(*command, "--project", project.root), 1)
    code, _out, err = run("fsck", "--project", project.root)
    assert code == 1 and "from a copy, or from a mirror" in err


def test_keys_are_listed_and_generated(run: Run, tmp_path: Path) -> None:
    listed = answer(run("key", "list", "--json"))
    assert [row["role"] for row in listed][:6] == ["root", "log", "trainer", "auditor", "publisher", "auditor"]
    assert [row["revoked_from"] is not None for row in listed][:6] == [False, False, False, True, False, False]
    made = answer(run("key", "generate", "--role", "witness", "--out", tmp_path / "w.pem", "--json"))
    assert keys.load_private(tmp_path / "w.pem").keyid == made["keyid"]
    assert "exists" in complaint(run("key", "generate", "--role", "witness", "--out", tmp_path / "w.pem"), 2)
    assert "is one of" in run("key", "generate", "--role", "king", "--out", tmp_path / "k.pem")[2]


# Mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("log", "--run", "nobody"), 2, "none that is a run nobody"),
        (("log", "--kind", "stpe"), 2, "there is no kind"),
        (("show", "9999"), 2, "none that is a run or an entry 9999"),
        (("show", "00000000"), 2, "none that is a run or an entry 00000000"),
        (("show", ""), 2, "none that is a run or an entry"),
        (("show", "kc"), 2, "none that is a run or an entry kc"),
        (("prove", "--run", "demo", "--step", "999"), 2, "step 999 of run demo"),
        (("prove", "--run", "nobody", "--step", "1"), 2, "a run nobody"),
        (("prove", "--index", "-1"), 2, "number -1"),
        (("prove", "--index", "9", "--out", "/nonexistent/x"), 2, "no such file or directory"),
        (("log", "--project", "/nonexistent"), 2, "/nonexistent: the folder does not exist"),
        (("--project", "/nonexistent", "log"), 2, "/nonexistent: the folder does not exist"),
        (("log", "--project", "/"), 2, "not in a project"),
    ],
)
def test_mistakes_get_one_line(run: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in complaint(run(*arguments), code)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("log", "--nonsense"),
        ("log", "--limit", "x"),
        ("prove",),
        ("prove", "--index", "1", "--format", "pdf"),
        ("prove", "--index", "1", "--run", "demo", "--step", "1"),
        ("key",),
        (),
    ],
)
def test_wrong_usage_is_told_without_a_traceback(run: Run, arguments: tuple[str, ...]) -> None:
    code, _out, err = run(*arguments)
    assert code == 2
    assert arguments in ((), ("key",)) or "Error: " in err


@pytest.mark.parametrize("data", [b"", b"not a database" * 100])
def test_a_ledger_that_is_none_gets_one_line(run: Run, tmp_path: Path, data: bytes) -> None:
    project = serve_sample.build(tmp_path / "p", 12)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (project.root / name).unlink(missing_ok=True)
    project.ledger_path.write_bytes(data)
    for command in ("log", "fsck", "rebuild", "checkpoint"):
        assert "not a ledger" in complaint(run(command, "--project", project.root), 2)
    project.ledger_path.unlink()
    assert "there is no ledger" in complaint(run("log", "--project", project.root), 2)


def test_project_from_the_environment(run: Run, tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "not in a project" in complaint(run("log"), 2)
    monkeypatch.setenv("BITWITNESS_PROJECT", str(sample))
    assert run("log")[0] == 0


def test_a_reader_that_goes_away_is_no_error(sample: Path) -> None:
    command = f"{sys.executable} -m bitwitness.ledger.cli log --json | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=sample, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[", "0"]
    assert result.stderr == ""


def test_ctrl_c_is_one_line_whenever_it_comes(
    run: Run, sample: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_given: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.ledger.browse.list_entries", interrupt)
        assert run("log") == (130, "", "interrupted\n")
    # while modules are imported, and when the command is done
    for before, after in (("os.kill(os.getpid(), 2)", ""), ("", "os.kill(os.getpid(), 2)")):
        (tmp_path / "typer.py").write_text(f"import os\n{before}\n")
        script = (
            "import os, sys\n"
            f"{f'sys.path.insert(0, {str(tmp_path)!r})' if before else ''}\n"
            "from bitwitness.ledger.command import main\n"
            f"sys.argv = ['ledger', '--version']\nmain()\n{after}\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", script],
            cwd=sample,
            capture_output=True,
            text=True,
            # A shell starts what it runs in the background with the signal ignored, and a child inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_a_mistyped_command_is_told_what_it_may_be(run: Run) -> None:
    code, out, err = run("trian")
    assert code == 2 and out == "" and "No such command 'trian'. Did you mean 'train'?" in err


# Plug-in commands -----------------------------------------------------------------------------------------


def test_light_commands_load_nothing_heavy(sample: Path) -> None:
    script = (
        "import sys\nfrom bitwitness.ledger.cli import main\n"
        "for command in ('log', '--help', 'show 0', 'key list', 'prove --index 3'): main(command.split())\n"
        "print(sorted({'torch', 'datasette', 'safetensors'} & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=sample, capture_output=True, text=True, check=True)
    assert result.stderr.strip().endswith("[]")


def test_a_gate_loads_only_what_it_needs() -> None:
    """Nothing of other commands, nothing that trains, browses or asks the network: pipelines start it each time."""
    golden = Path(__file__).parents[1] / "golden" / "model-1"
    script = (
        "import sys\nfrom bitwitness.ledger.cli import main\n"
        f"assert main(['verify', {str(golden / 'golden')!r}, '--policy', {str(golden / 'trust.toml')!r}]) == 0\n"
        "commands = {name for name in sys.modules if name.startswith('bitwitness.ledger.cli.')}\n"
        "print(sorted(commands), file=sys.stderr)\n"
        "heavy = {'torch', 'numpy', 'httpx', 'ssl', 'urllib.request', 'rich', 'datasette', 'sqlite_utils', 'fsspec',\n"
        "         'bitwitness.ledger.store', 'bitwitness.trainer.step', 'bitwitness.kernels'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    commands, heavy = result.stderr.splitlines()
    names = ("options", "output", "plugins", "verify")
    assert commands == str([f"bitwitness.ledger.cli.{name}" for name in names])
    assert heavy == "[]"


def test_the_commands_are_listed_in_their_order(run: Run) -> None:
    listed = [line.split()[0] for line in run("--help")[1].splitlines() if re.match(r"  [a-z]+ {2,}", line)]
    assert listed[: len(cli._COMMANDS)] == list(cli._COMMANDS)
    assert listed[len(cli._COMMANDS) :] == sorted(listed[len(cli._COMMANDS) :])


def test_no_package_takes_the_place_of_our_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    place = plugins.Place("model", "elsewhere", "verify")
    monkeypatch.setattr(plugins, "entry_points", lambda group: {"model": place})
    verifier = plugins.load_verifier("model")
    assert verifier is not None and verifier.__module__ == "bitwitness.registry.gating.gate"


def test_the_overview_names_commands_of_other_packages(run: Run) -> None:
    code, out, _err = run("--help")
    assert code == 0
    for name in ("train", "audit", "data", "model"):
        assert f"\n  {name} " in out


def test_a_command_that_cannot_be_loaded_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "broken": plugins.Place("broken", "bitwitness.no_such_module", "command"),
        "missing": plugins.Place("missing", "bitwitness.ledger.errors", "no_such_name"),
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: places)
    for name in ("broken", "missing"):
        assert f"`ledger {name}` cannot be loaded" in complaint(run(name), 2)
    assert run("--help")[0] == 0


def test_errors_of_other_packages_keep_their_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class KernelError(Exception):
        exit_code = 2

    def broken() -> None:
        raise KernelError("no such operator")

    monkeypatch.setattr("bitwitness.ledger.cli.read.current_project", broken)
    assert complaint(run("log"), 2) == "error: no such operator"
    monkeypatch.setattr(KernelError, "exit_code", "none")
    assert "should not happen" in complaint(run("log"), 2)


# What is no verdict, and what must not reach a terminal -------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x\x1b[2J\ny"), RecursionError("deep"), KeyError("k"), MemoryError()])
def test_a_bug_is_not_a_verdict(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Exit code 1 says that something was found wrong; whatever goes wrong in the program itself ends with 2."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(care, "current_project", fail)
    line = complaint(run("rebuild"), 2)
    assert line.isascii() and line.isprintable()


def test_usage_errors_end_with_2(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ("key", "generate", "--role", "foo", "--out", tmp_path / "k.pem"),
        ("no-such-command",),
        ("verify", "--nonsense"),
        ("log", "--limit", "-1"),
        ("log", "--limit", "x"),
        ("verify",),
    ):
        assert run(*arguments)[0] == 2, arguments


def test_numbers_and_paths_without_measure(run: Run) -> None:
    assert answer(run("log", "--limit", 10**30, "--json")) == answer(run("log", "--json"))
    assert run("verify", "x\0y")[0] == 2
    assert run("verify", "ledger.db", "--policy", "x\0y")[0] == 2


def test_only_regular_files_are_read(run: Run, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero"):
        assert "not a regular file" in complaint(run("verify", path), 2)
        assert "not a regular file" in complaint(run("verify", "ledger.db", "--policy", path), 2)


def test_what_is_printed_cannot_drive_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "x\x1b[2J\r\nok     everything: \u202e\x9b\U0001f600\x7f…"
    output.emit_table(("a",), [(hostile,)])
    output.emit_fields({hostile: hostile})
    output.emit_checks([{"name": hostile, "ok": None, "detail": hostile}])
    output.emit_json({hostile: hostile})
    output.emit_json_list([{hostile: hostile}])
    output.note(hostile)
    captured = capsys.readouterr()
    printed = set(captured.out + captured.err) - {"\n", "…"}
    assert all(char.isascii() and char.isprintable() for char in printed)
    assert captured.err.count("\n") == 1 and "\\x1b[2J\\x0d\\x0aok" in captured.err


def test_the_version(run: Run) -> None:
    code, out, _err = run("--version")
    assert code == 0 and re.fullmatch(r"bitwitness \d+\.\d+\.\d+\n", out)


def test_a_check_says_its_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_checks([{"name": "proof", "ok": False, "detail": "proof: not a proof"}])
    assert capsys.readouterr().out == "WRONG  proof: not a proof\n"


def test_what_a_schema_found_names_its_section_once() -> None:
    item = {"type": "value_error", "loc": ("model",), "msg": "Value error, model.heads = 3 does not divide model.width"}
    assert reason(item) == "model.heads = 3 does not divide model.width"
    assert reason({**item, "msg": "Value error, models are large"}) == "model: models are large"


@pytest.fixture
def forged(sample: Path, tmp_path: Path) -> Path:
    """A copy of the sample's ledger with a signature that is not one."""
    path = tmp_path / "forged.db"
    with closing(sqlite3.connect(sample / "ledger.db")) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
        triggers = copy.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _sql in triggers:
            copy.execute(f"DROP TRIGGER {name}")
        copy.execute("UPDATE entries SET signature = zeroblob(64) WHERE idx = 3")
        for _name, sql in triggers:
            copy.execute(sql)
        copy.commit()
    return path


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_verdict_is_the_same_whoever_listens(sample: Path, forged: Path, unbuffered: str) -> None:
    python = {**os.environ, "PYTHONUNBUFFERED": unbuffered}

    def verify(target: Path, to: str) -> tuple[int, str, str]:
        command = f"{sys.executable} -m bitwitness.ledger.cli verify {target} {to}"
        result = subprocess.run(["bash", "-c", command], cwd=sample, env=python, capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    gone = "| true; exit ${PIPESTATUS[0]}"
    assert verify(forged, "")[0] == 1
    for to in (gone, f"--json {gone}", ">&-", "<&- >&- 2>&-"):
        assert verify(forged, to) == (1, "", "")
    code = verify(sample / "ledger.db", "")[0]
    assert verify(sample / "ledger.db", gone) == verify(sample / "ledger.db", ">&-") == (code, "", "") and code != 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_told_is_no_verdict(sample: Path, tmp_path: Path, unbuffered: str) -> None:
    """Status 1 says that something was found wrong."""
    python = {**os.environ, "PYTHONUNBUFFERED": unbuffered}

    def status(command: str) -> int:
        command = f"{sys.executable} -m bitwitness.ledger.cli {command}"
        return subprocess.run(["bash", "-c", command], cwd=sample, env=python, capture_output=True).returncode

    assert status("verify ledger.db >/dev/full 2>&1") == status("verify missing.db 2>/dev/full") == 2
    made = tmp_path / "made"
    assert status(f"init {made} 2>/dev/full") == 0 and (made / "bitwitness.toml").exists()
