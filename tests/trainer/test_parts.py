"""Steps that commit to their parts: leaves are those of the fold, training and replay make the same, lies are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.commitments import tree
from bitwitness.ledger.entry.audit_rules import AuditedRun, contradiction
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_files import parts_file
from bitwitness.ledger.jcs import f64_from_hex
from bitwitness.ledger.project import Project
from bitwitness.trainer import parts
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.coverage import Segment, _by_parts, _segments, open_coverage
from bitwitness.trainer.auditing.part_audit import part_names
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.history import Entry, RunHistory, open_run, open_verified_run
from bitwitness.trainer.material import LocalMaterial
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.parts import PartsUnavailable, check_leaves, read_leaves
from bitwitness.trainer.run import train
from bitwitness.trainer.step import Workspace

from .conftest import make_project, small_config, small_table
from .own_models import TINY
from .test_audit import lying_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("parts") / "p")
    train(project, small_config(steps=4, commit="parts"), threads=2)
    return project


def history_of(project: Project) -> RunHistory:
    with project.open_ledger() as ledger:
        return open_run(ledger, "r")


def test_a_step_commits_to_its_parts(trained: Project) -> None:
    history = history_of(trained)
    for step in range(1, 5):
        computed = history.computed(step)
        leaves = check_leaves(read_leaves(trained.runs_dir / "r", step), step, computed["parts"]).leaves
        assert tree("parts/1", leaves).to_json() == computed["parts"]
        said = [json.loads(leaf) for leaf in leaves]
        assert [leaf["part"] for leaf in said] == ["shard"] * 3 + ["fold"] * 2 + ["norm"]
        assert [(leaf["first"], leaf["shards"]) for leaf in said[3:5]] == [(0, 2), (0, 3)]
        assert sum(leaf["tokens"] for leaf in said[:3]) == computed["tokens"] == said[5]["tokens"]
        total = 0.0
        for leaf in said[:3]:
            total += f64_from_hex(leaf["loss"])
        assert total / computed["tokens"] == f64_from_hex(computed["loss"])
        assert all(said[5][name] == computed[name] for name in ("loss", "norm", "scalars"))
        assert len({leaf["gradient"]["root"] for leaf in said[:5]}) == 5


def test_the_bits_of_the_run_are_those_without_parts(trained: Project, project: Project) -> None:
    train(project, small_config(steps=4), threads=1)
    assert history_of(project).state(4) == history_of(trained).state(4)
    assert "parts" not in history_of(project).computed(1)


def test_a_replay_makes_the_same_parts(trained: Project) -> None:
    assert audit(trained, "r", samples=9, threads=1, windows_at_once=1).result == "match"


def test_leaves_that_are_not_the_ledgers_are_not_used(trained: Project) -> None:
    folder, expected = trained.runs_dir / "r", history_of(trained).computed(1)["parts"]
    text = parts_file(folder, 2).read_bytes()
    for wrong in (b"", b"{}", b"[1]", text, text[:-1]):
        with pytest.raises(PartsUnavailable, match="step 1"):
            check_leaves(wrong, 1, expected)
    check_leaves(read_leaves(folder, 1), 1, expected)
    with pytest.raises(PartsUnavailable, match="step-00000009"):
        read_leaves(folder, 9)


def test_another_gradient_is_found_in_its_part(project: Project) -> None:
    lying_run(
        project,
        "from bitwitness.trainer.parts import Parts\n"
        "honest = Parts.fold\n"
        "def fold(self, first, shards, gradient):\n"
        "    honest(self, first, shards, gradient + 1 if shards == 3 else gradient)\n"
        "Parts.fold = fold",
        "steps=2, commit='parts'",
    )
    report = audit(project, "r", threads=2)
    assert report.result == "mismatch"
    assert [item.found["field"] for item in report.units if item.found] == ["parts"]


def test_parts_stand_in_the_record_exactly_where_config_says(trained: Project) -> None:
    from bitwitness.trainer.record_check import check_record

    history = history_of(trained)
    with trained.open_ledger() as ledger:
        origin = ledger.origin
    for change, reason in (
        (lambda computed: computed.pop("parts"), "exactly where config says"),
        (lambda computed: computed["parts"].update(size=5), "two leaves for each shard"),
    ):
        changed = history_of(trained)
        change(changed.computed(3))
        assert [fault.reason for fault in check_record(changed, origin) if reason in fault.reason]
    assert not [fault for fault in check_record(history, origin) if fault.field == "parts"]


def test_one_shard_has_no_fold() -> None:
    assert parts.count(1) == 2
    assert list(parts.names(1, ["a", "b"])) == ["shard:0", "fold", "norm", "update:a", "update:b"]


def part(project: Project, name: str, first: int, last: int | None = None) -> tuple[str, list[tuple[int, str]]]:
    report = audit(project, "r", steps=(first, last or first), part=name, threads=2)
    assert report.compared == () and all(item.part == name for item in report.units)
    return report.result, [(item.unit.first, item.outcome) for item in report.units]


TENSOR = "model.layers.1.mlp.up_proj.weight"


def test_one_part_is_audited_alone(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    honest = Workspace.shard_gradient

    def shard_gradient(self: Workspace, *given: Any) -> Any:
        computed.append(given[2])
        return honest(self, *given)

    monkeypatch.setattr(Workspace, "shard_gradient", shard_gradient)
    assert part(trained, "shard:1", 3) == ("match", [(3, "match")])
    assert computed == [14]  # step 3 begins at window 12, and of its shards only the second is computed
    for name in ("fold", "norm", f"update:{TENSOR}"):
        assert part(trained, name, 4) == ("match", [(4, "match")])
    assert part(trained, "norm", 1, 2) == ("match", [(1, "match"), (2, "match")])
    assert part(trained, f"update:{TENSOR}", 3)[0] == "unavailable"  # state 3 is not stored


def test_what_is_said_of_an_audit_of_parts(
    trained: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compares no step, and calls for no release."""
    monkeypatch.chdir(trained.root)
    assert main(["audit", "r", "--steps", "1:2", "--part", "norm", "--threads", "2"]) == 0
    said = capsys.readouterr()
    assert "match: norm of 2 steps of r computed again (self-chosen); entry " in said.out
    assert "compared bit for bit" not in said.out and "next:" not in said.err
    assert main(["log", "--kind", "audit"]) == 0
    assert "match: norm of 2 steps, self-chosen" in capsys.readouterr().out


def test_a_part_that_no_run_has(trained: Project) -> None:
    for name in ("shard:3", "shard:01", "fold:1", "update:nothing", ""):
        with pytest.raises(BitwitnessError, match="--part"):
            audit(trained, "r", steps=(1, 1), part=name, threads=1)
    with pytest.raises(BitwitnessError, match="give --steps"):
        audit(trained, "r", part="norm", threads=1)


def test_a_lie_is_in_one_part(project: Project) -> None:
    lying_run(
        project,
        "from bitwitness.trainer.parts import Parts\n"
        "honest = Parts.shard\n"
        "def shard(self, shard, gradient, loss, tokens):\n"
        "    honest(self, shard, gradient, loss + 1 if shard == 1 else loss, tokens)\n"
        "Parts.shard = shard",
        "steps=2, commit='parts'",
    )
    report = audit(project, "r", steps=(1, 1), part="shard:1", threads=2)
    assert report.result == "mismatch" and report.units[0].found is not None
    assert report.units[0].found["field"] == "parts.shard.1"
    for name in ("shard:0", "shard:2", "fold", "norm"):
        assert part(project, name, 1)[0] == "match"
    parts_file(project.runs_dir / "r", 1).unlink()
    assert part(project, "shard:0", 1)[0] == "unavailable"


def test_a_step_is_covered_when_all_its_parts_are(trained: Project) -> None:
    part(trained, "norm", 1)
    with trained.open_ledger() as ledger:
        found = open_coverage(trained, ledger, "r")
        history = open_verified_run(trained, ledger, "r")
    model = next(entry for entry in history.about if entry.kind == "audit" and "part" in entry.predicate["units"][0])
    run, who = AuditedRun.of(history.genesis, history.last_step), model.predicate["signer"]
    every = part_names(history, LocalMaterial(trained))
    assert len(every) == 3 + 2 + len(Layout(history.config.model).names)

    def said(part: str, step: int) -> Entry:
        unit = {"first": step, "last": step, "outcome": "match", "cause": "chosen", "part": part}
        return Entry(99, "audit", {**model.predicate, "units": [unit], "steps": 0})

    audits = [said(part, 3) for part in every]
    assert all(contradiction(audit.predicate, run) is None for audit in audits)

    def segments(audits: list[Entry]) -> list[Segment]:
        return _segments(audits, history, _by_parts(audits, history, LocalMaterial(trained))[0])

    assert [(s.first, s.last) for s in segments(audits) if s.auditors == (who,)] == [(3, 3)]
    assert all(not s.auditors for s in segments(audits[1:]))
    assert all(not s.auditors for s in segments([*audits[1:], said(every[0], 4)]))
    assert found.counted


def test_parts_of_a_model_of_the_users_own(tmp_path: Path) -> None:
    """Its tensors are named by the captured program; every part of a step is audited, and they cover it together."""
    project = make_project(tmp_path / "p")
    (project.root / "own.py").write_text(TINY)
    table = small_table(steps=2, commit="parts")
    table["model"] = {"module": "own.py:Tiny", "arguments": {"layers": 0}}
    train(project, parse_config(table, where="test"), threads=2)
    (project.root / "own.py").unlink()
    history, material = history_of(project), LocalMaterial(project)
    every = part_names(history, material)
    assert every[2:] == [
        "shard:2",
        "fold",
        "norm",
        *(f"update:{n}" for n in ("embed.weight", "head.bias", "head.weight")),
    ]
    with pytest.raises(BitwitnessError, match="--part update:nothing"):
        audit(project, "r", steps=(1, 1), part="update:nothing", threads=1)
    for name in every:
        assert part(project, name, 2)[0] == "match"
    with project.open_ledger() as ledger:
        found = open_coverage(project, ledger, "r")
        assert [(s.first, s.last, len(s.auditors)) for s in found.segments] == [(1, 1, 0), (2, 2, 1)]
        assert found.unknown is None
        (project.runs_dir / "r" / "model.json").unlink()
        found = open_coverage(project, ledger, "r")
        assert found.covered == 0 and "model.json is missing" in str(found.unknown)
    with pytest.raises(BitwitnessError, match=r"model\.json is missing"):
        audit(project, "r", steps=(1, 1), part="norm", threads=1)
