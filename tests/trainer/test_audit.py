"""Audits: what they cover, what they find, and what they refuse to call a match."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.beacon import sample_seed
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.verify_rows import entry_bytes
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.cli.audit_text import audit_lines
from bitwitness.trainer.history import LedgerNotVerified, RunHistory, open_verified_run
from bitwitness.trainer.record_check import RecordWrong
from bitwitness.trainer.run import train
from bitwitness.trainer.sample import Mark, Unit, draw, select, units
from bitwitness.trainer.state import state_folder
from bitwitness.trainer.step import NotFinite, NoTokens

from .conftest import make_project, small_config


@pytest.fixture
def trained(project: Project) -> Project:
    train(project, small_config(), threads=2)
    return project


def test_an_honest_run_matches(trained: Project) -> None:
    report = audit(trained, "r", samples=1, threads=1, windows_at_once=1)
    assert report.result == "match"
    assert next((u.unit.first, u.unit.last, u.unit.cause) for u in report.units) == (0, 0, "init")
    assert (5, 6, "last") in [(u.unit.first, u.unit.last, u.unit.cause) for u in report.units]
    assert len(report.compared) == 4
    assert [*audit_lines(report, "r")][-1] == (
        "a tampered step outside what every audit replays is met with probability 0.50, 1% of the steps (1) with 0.50"
    )
    assert report.drawn == (1, 2)  # (1, 2) and (3, 4): the last unit is in every audit
    assert report.caught() == report.caught(0.01) == 0.5 and report.caught(0.3) == 1.0
    with trained.open_ledger() as ledger:
        predicate = open_envelope(ledger.entry(report.entry)).statement["predicate"]
        intent = bytes.fromhex(predicate["intent"])
        assert ledger.find(intent) == report.entry - 1
    assert predicate["result"] == "match"
    assert predicate["seed"] == sample_seed(intent).hex()
    assert predicate["transcript"]["size"] > 100


def test_the_transcript_depends_on_seed_and_not_on_threads(trained: Project, tmp_path: Path) -> None:
    first = audit(trained, "r", samples=3, threads=1)
    second = audit(trained, "r", samples=3, threads=2)
    assert first.transcript.size == second.transcript.size
    assert first.transcript.root != second.transcript.root


# Held-out losses that are half of what was computed.
HALVED_LOSSES = """
honest = step.Workspace.losses
def losses(self, *args):
    total, tokens = honest(self, *args)
    return total / 2.0, tokens
step.Workspace.losses = losses
"""


def lying_run(project: Project, patch: str, fields: str = "", then: str = "") -> None:
    """Train with an operator or a scalar that is not the one the record claims, in a process of its own."""
    code = (
        "from bitwitness.ledger.project import Project\n"
        "from bitwitness.trainer import run, start, step, state\n"
        "from tests.trainer.conftest import small_config\n"
        f"{patch}\n"
        f"PROJECT = Project.find({str(project.root)!r})\n"
        f"run.train(PROJECT, small_config({fields}), threads=1)\n"
        f"{then}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_training_and_audits_of_the_built_in_model_do_without_torch(project: Project) -> None:
    """It takes longer to import than all else that an audit does besides its replay."""
    lying_run(
        project,
        "import sys\n"
        "from bitwitness.trainer.cli import audit as _, coverage, drill, trace, train\n"
        "from bitwitness.trainer.auditing.audit import audit\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None  # from here on its import fails",
        then="assert audit(PROJECT, 'r', samples=1, screen=True, threads=1).result == 'match'",
    )


@pytest.mark.parametrize(
    ("patch", "step", "field"),
    [
        (
            "honest = step.learning_rate\n"
            "step.learning_rate = lambda config, update: honest(config, update) * (2.0 if update == 4 else 1.0)",
            4,
            "scalars",
        ),
        (
            "honest = step.Workspace.update\n"
            "def update(self, state, gradient, scalars):\n"
            "    honest(self, state, gradient, scalars)\n"
            "    if state.control.step == 2:\n"
            "        state.m.view('i4')[100] ^= 1\n"
            "step.Workspace.update = update",
            3,
            "optimizer",
        ),
        (
            "honest = start.initial_state\n"
            "def initial_state(config, layout):\n"
            "    made = honest(config, layout)\n"
            "    made.params[0] += 1.0\n"
            "    return made\n"
            "start.initial_state = initial_state",
            0,
            "weights",
        ),
    ],
)
def test_a_lie_is_found_at_its_step(project: Project, patch: str, step: int, field: str) -> None:
    lying_run(project, patch)
    report = audit(project, "r", samples=9, threads=2)
    assert report.result == "mismatch"
    found = [unit.found for unit in report.units if unit.outcome == "mismatch"]
    assert found and found[0] is not None
    assert (found[0]["step"], found[0]["field"]) == (step, field)
    assert found[0]["expected"] != found[0]["computed"]


def test_a_mismatch_is_explained(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault is in a step whose state is stored, so both values are known."""
    lying_run(
        project,
        "honest = step.Workspace.update\n"
        "def update(self, state, gradient, scalars):\n"
        "    honest(self, state, gradient, scalars)\n"
        "    if state.control.step == 3:\n"
        "        moment = self.layout.tensors(state.v)['model.layers.1.mlp.up_proj.weight']\n"
        "        moment.view('i4')[5, 7] ^= 4\n"
        "step.Workspace.update = update",
    )
    assert main(["--project", str(project.root), "audit", "r", "--sample", "9"]) == 1
    out = capsys.readouterr().out
    assert "  tensor    v/model.layers.1.mlp.up_proj.weight, layer 1, shape [48, 32]\n  element   [5, 7]\n" in out
    assert "  distance  4 ULP\n  next      ledger trace r --step 4" in out
    assert main(["--project", str(project.root), "audit", "r", "--sample", "9", "--json"]) == 1
    (value,) = [unit["value"] for unit in json.loads(capsys.readouterr().out)["units"] if "value" in unit]
    assert int(value["ledger"], 16) ^ int(value["replay"], 16) == 4


def test_the_whole_record_is_checked_in_every_audit(project: Project) -> None:
    lying_run(
        project,
        "honest = step.learning_rate\n"
        "step.learning_rate = lambda config, update: honest(config, update) * (2.0 if update == 1 else 1.0)",
    )
    report = audit(project, "r", threads=2)
    assert report.result == "mismatch"
    found = [(item.unit.first, item.unit.last, item.found) for item in report.units if item.found is not None]
    assert [(first, last, where["step"], where["field"]) for first, last, where in found] == [(1, 2, 1, "scalars")]
    assert report.compared == (5, 6)


def test_a_held_out_loss_is_computed_again(project: Project) -> None:
    lying_run(project, HALVED_LOSSES, "eval_every=5, eval_windows=2")
    report = audit(project, "r", threads=2)
    assert [item.outcome for item in report.units] == ["mismatch", "mismatch"]
    assert [item.found["field"] for item in report.units if item.found] == ["eval.mean", "eval.mean"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (lambda: NotFinite(6, float("nan"), 1.0), "mismatch"),
        (lambda: NoTokens("step 6: every target is ignored"), "mismatch"),
        (lambda: KernelError("token id 999 of 257"), "mismatch"),
        (lambda: MemoryError(), "inconclusive"),
        (lambda: RuntimeError("can't allocate memory"), "inconclusive"),
        (lambda: OverflowError("too large"), "inconclusive"),
    ],
)
def test_whatever_happens_in_a_replay_is_an_outcome(
    trained: Project, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], outcome: str
) -> None:
    def failing(*args: object) -> None:
        raise error()

    monkeypatch.setattr("bitwitness.trainer.replay.step", failing)
    report = audit(trained, "r", threads=1)
    assert report.result == outcome
    assert [item.outcome for item in report.units] == ["match", outcome]


def test_a_run_that_does_not_fit_is_inconclusive(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitwitness.trainer.memory.available_bytes", lambda: 1000)
    report = audit(trained, "r", threads=1)
    assert report.result == "inconclusive"
    assert "memory" in str(report.units[0].reason)


def test_missing_steps_are_found_before_the_intent(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = open_verified_run

    def without_step_3(*args: Any) -> RunHistory:
        history = honest(*args)
        kept = [e for e in history.entries if e.kind != "step" or e.predicate["computed"]["step"] != 3]
        return RunHistory(history.run, kept, history.about)

    monkeypatch.setattr("bitwitness.trainer.auditing.audit.open_verified_run", without_step_3)
    with pytest.raises(RecordWrong, match="step 4 where step 3 is due"):
        audit(trained, "r", threads=1)
    assert entries_of(trained, "audit-intent") == 0


def test_what_is_withheld_is_unavailable_and_covers_nothing(trained: Project) -> None:
    (trained.data_dir / "text" / "manifest.json").unlink()
    report = audit(trained, "r", samples=2, threads=1)
    assert report.result == "unavailable"
    assert report.compared == ()


def test_a_missing_state_is_replaced_by_an_earlier_one(trained: Project) -> None:
    shutil.rmtree(state_folder(trained.runs_dir / "r", 4))
    assert audit(trained, "r", threads=1).result == "match"
    data = bytearray((path := state_folder(trained.runs_dir / "r", 2) / "optimizer.safetensors").read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    report = audit(trained, "r", threads=1)
    assert report.result == "match"
    assert report.compared == (1, 2, 3, 4, 5, 6)
    assert report.passed_over == (
        "stored state 4 is missing or cannot be read; replayed from step 0",
        "stored state 2 is damaged (not the ledger's); replayed from step 0",
    )
    text = list(audit_lines(report, "r"))
    assert "  and 4 steps on the way from the initial state" in text


def test_changed_data_is_not_called_a_mismatch(trained: Project) -> None:
    shard = next((trained.data_dir / "text").glob("tokens-*"))
    data = bytearray(shard.read_bytes())
    data[::2] = bytes(byte ^ 1 for byte in data[::2])
    shard.write_bytes(data)
    report = audit(trained, "r", samples=1, threads=1)
    assert report.result == "unavailable"


def test_ranges(trained: Project) -> None:
    report = audit(trained, "r", steps=(3, 3), threads=1)
    assert report.compared == (3, 4)
    assert (
        report.caught() is None and "chosen by hand: this says nothing of the others" in [*audit_lines(report, "r")][-1]
    )
    with pytest.raises(BitwitnessError, match="turn them round"):
        audit(trained, "r", steps=(4, 3), threads=1)
    with pytest.raises(BitwitnessError, match="steps 5:9"):
        audit(trained, "r", steps=(5, 9), threads=1)
    with pytest.raises(BitwitnessError, match="no run"):
        audit(trained, "nobody", threads=1)


def test_both_sides_of_a_resume_are_always_audited(tmp_path: Path) -> None:
    import signal

    from .test_run import stop_after

    project = make_project(tmp_path / "p")
    stop_after(project, 3, signal.SIGKILL)
    train(project, small_config(), threads=1, resume=True)
    report = audit(project, "r", threads=1)
    assert {(u.unit.first, u.unit.last) for u in report.units if u.unit.cause == "resume"} == {(3, 4)}


def edit_rows(project: Project, change: Callable[[str], str], where: str) -> None:
    """Edit payloads behind the ledger's back: rows get the leaf hash of their new bytes, no new signature."""
    connection = sqlite3.connect(project.ledger_path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _sql in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    query = "SELECT idx, payload, signature FROM entries WHERE instr(payload, ?) > 0"
    for index, payload, signature in connection.execute(query, (where,)).fetchall():
        text = change(payload)
        leaf = merkle.leaf_hash(entry_bytes(text.encode(), signature))
        connection.execute("UPDATE entries SET payload = ?, leaf_hash = ? WHERE idx = ?", (text, leaf, index))
    for _name, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()


def entries_of(project: Project, kind: str) -> int:
    with project.open_ledger() as ledger:
        return sum(f"/{kind}/v1" in str(open_envelope(data).statement["predicateType"]) for _, data in ledger.entries())


def test_rows_that_nobody_signed_are_not_believed(trained: Project) -> None:
    edit_rows(trained, lambda text: re.sub(r'"tokens":144\b', '"tokens":143', text), "bitwitness.dev/step/v1")
    with pytest.raises(LedgerNotVerified, match="does not verify"):
        audit(trained, "r", samples=9, threads=1)
    assert entries_of(trained, "audit-intent") == 0


def test_rows_changed_during_the_audit_get_no_result(trained: Project) -> None:
    def report(done: int, total: int) -> None:
        if done == 1:
            edit_rows(trained, lambda text: text.replace('"bytes":', '"bytes":1'), "bitwitness.dev/state/v1")

    with pytest.raises(LedgerNotVerified):
        audit(trained, "r", samples=9, threads=1, report=report)
    assert entries_of(trained, "audit") == 0


def test_hidden_entries_of_a_run_are_found(trained: Project) -> None:
    """The derived tables are not asked which entries a run has."""
    connection = sqlite3.connect(trained.ledger_path)
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("UPDATE log SET seq = NULL WHERE seq > 3")
    connection.commit()
    connection.close()
    with trained.open_ledger() as ledger:
        assert open_verified_run(trained, ledger, "r").last_step == 6


def test_an_audit_that_died_is_told_of(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.trainer.auditing.audit._choose", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            audit(trained, "r", threads=1)
    report = audit(trained, "r", samples=9, threads=1)
    assert report.open_intents == (report.entry - 2,)
    assert report.caught() == report.caught(0.01) == 1.0
    finished = audit(trained, "r", threads=1)  # the same audit as the one that died: it goes on with its intent
    assert finished.resumed and finished.open_intents == ()
    assert audit(trained, "r", threads=1).open_intents == ()


def test_units_and_draws() -> None:
    assert units([2, 4, 6], 6) == [(1, 2), (3, 4), (5, 6)]
    assert units([4, 8], 10) == [(1, 4), (5, 8), (9, 10)]
    assert units([], 3) == [(1, 3)]
    assert units([], 0) == []
    seed = sample_seed(bytes(32))
    assert draw(seed, 5, 9) == [0, 1, 2, 3, 4]
    # docs/formats/audit.md, worked example: these do not change
    assert sample_seed(bytes(32)).hex() == GOLDEN_SEED
    assert draw(seed, 1000, 5) == GOLDEN_DRAW
    genesis = {"control": {"step": 0}, "init": {"kind": "seeded"}}
    chosen = select(genesis, [Mark(7, "state", 2), Mark(9, "state", 4), Mark(11, "state", 6)], 6, seed, 1)
    assert chosen[0] == Unit(0, 0, "init")
    assert [unit.cause for unit in chosen].count("sample") == 1
    counts = [0] * 10
    for number in range(2000):
        for index in draw(sample_seed(number.to_bytes(32, "big")), 10, 3):
            counts[index] += 1
    assert min(counts) > 500 and max(counts) < 700


GOLDEN_SEED = "20f506f45d91ab722198e22876cbeac8fe57cc00b1a7d107b53d945033fbdb16"
GOLDEN_DRAW = [510, 585, 614, 689, 982]
