"""What is in form, signed and logged, and still not what anybody honest would write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import ProgramBuilder
from bitwitness.kernels.tracing import dispute, trace
from bitwitness.kernels.tracing.trace_file import Slot, TraceFile
from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import document_digest, document_leaf, tree
from bitwitness.registry.checks import exit_code
from bitwitness.registry.interop import tokenizer_files
from bitwitness.registry.policy import parse_policy
from bitwitness.registry.signed_names import Release, Signed, Word
from bitwitness.registry.verify import examine
from bitwitness.trainer.auditing.audit_work import AuditWork
from bitwitness.trainer.data.dataset import Dataset
from bitwitness.trainer.data.errors import DatasetDamaged
from bitwitness.trainer.data.index import DocumentIndex, DocumentRecord
from bitwitness.trainer.data.manifest import Manifest
from bitwitness.trainer.data.tokenizer import TokenizerInfo
from tests.hostile.readers import FORMATS, SIGNERS
from tests.ledger import conftest as ledger_examples
from tests.registry import project_fixture
from tests.registry.forge import Forge

CONFIGS: list[dict[str, Any]] = [
    {}, {"data": 5, "run": "x", "model": []}, {"data": {"window": {}}, "run": {"precision": {"a": "x" * 5000}}},
    {"model": {"width": 1, "heads": 0}}, {"data": {"window": "8"}, "run": []},
]  # fmt: skip


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forge, bytes]]:
    """A release with companions beside it, and a policy that asks for all."""
    from bitwitness.registry.register import register

    made = project_fixture.make_lean(tmp_path_factory.mktemp("forged") / "project")
    folder = register(made.project, "demo", "small", license="MIT").path
    (folder / tokenizer_files.TOKENIZER_CONFIG).write_bytes(tokenizer_files.tokenizer_config(9, tokenizer_files.END))
    policy = (
        made.policy.read_bytes().partition(b"[rules]")[0] + b'[rules]\nprecisions = ["bfp"]\nrequire_audit = true\n'
    )
    yield Forge(made.project, folder), policy


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_a_gate_with_a_genesis_of_any_configuration(
    released: tuple[Forge, bytes], config: dict[str, Any], tmp_path: Path
) -> None:
    forge, policy = released
    before = list(forge.log)
    forge.change(forge.find("run"), config=config)
    run = forge.leaf(forge.find("run"))
    for index in range(len(before)):
        if "run" in forge.predicate(index):
            forge.change(index, run=run)
    forge.write()
    forge.log[:] = before
    checks = examine(forge.folder, parse_policy(policy, tmp_path / "trust.toml")).checks
    assert exit_code(checks) == 1
    assert {"config", "export", "precisions"} <= {check.name for check in checks if check.ok is False}
    assert all(len(check.detail) < 600 for check in checks)


class Memory:
    """Bytes that may be read anywhere."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def read(self, first: int, size: int) -> bytes:
        return self.data[first : first + size]


class Tokens(Memory):
    def read(self, first: int, last: int) -> Any:  # type: ignore[override]
        if not 0 <= first <= last <= len(self.data):
            raise IndexError
        return np.frombuffer(self.data[first:last], np.uint8)


def dataset(records: list[tuple[int, int]], tokens: int) -> Dataset:
    """A dataset that commits to documents of these (start, count)."""
    data = bytes(2 * tokens)
    made = [
        DocumentRecord(s, n, 1, 0, 0, 0, 0, bytes(32), bytes.fromhex(document_digest(data[2 * s : 2 * (s + n)])))
        for s, n in records
    ]
    leaves = [document_leaf(count=r.count, source="00" * 32, start=r.start, tokens=r.tokens.hex()) for r in made]
    hashes = [merkle.leaf_hash(leaf) for leaf in leaves]
    nodes = b""
    for index, leaf in enumerate(hashes):
        nodes += leaf
        level, at = 1, index
        while at % 2:
            at //= 2
            nodes += merkle.root(hashes[at << level : (at + 1) << level])
            level += 1
    manifest = Manifest(
        "text", tree("dataset/1", leaves), len(made), tokens, 9, TokenizerInfo("bytes-1", 257, 256), 64, (), False
    )
    index_of = DocumentIndex(Memory(b"".join(r.pack() for r in made)), None, Memory(nodes))
    return Dataset(Path("/"), manifest, tokens=Tokens(data), index=index_of)


@pytest.mark.parametrize(
    "records", [[], [(0, 10**12), (10**12, 5), (90, 10)], [(0, 2**53 - 1), (2**53 - 1, 0), (90, 10)]]
)
def test_a_dataset_whose_documents_lie_beyond_its_tokens(records: list[tuple[int, int]]) -> None:
    with pytest.raises(DatasetDamaged):
        dataset(records, 100).check_range(0, 8)
    dataset([(0, 90), (90, 10)], 100).check_range(0, 8)


def test_what_else_an_auditor_signed_is_no_intent_of_his(tmp_path: Path) -> None:
    auditor, made = SIGNERS["auditor"], ledger_examples.build().entries
    intent, audit = (next(data for _, kind, _, data in made if kind == wanted) for wanted in ("audit-intent", "audit"))
    AuditWork.begin(tmp_path, intent, auditor)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "intent.json").write_bytes(audit)
    assert [work.intent for work in AuditWork.unfinished(tmp_path, auditor)] == [intent]


class Once(list[Word]):
    """A list that is gone through once."""

    def __iter__(self) -> Iterator[Word]:
        assert not getattr(self, "gone", False)
        self.gone = True
        return super().__iter__()


def test_aliases_are_found_in_one_pass() -> None:
    releases = {name: Release(0, name, {"model": "m", "version": 1}) for name in ("a", "b")}
    words = Once(
        [
            *(Word(i, "", {"alias": f"n{i}", "release": "a", "statement": "alias"}) for i in range(9)),
            Word(9, "", {"alias": "n0", "release": "b", "statement": "alias"}),
            Word(10, "", {"alias": "n1", "release": "a", "statement": "unalias"}),
            Word(11, "", {"release": "a", "statement": "deprecated"}),
        ]
    )
    found = Signed(12, None, releases, words).aliases  # type: ignore[arg-type]
    assert [name for _, name in found] == ["n0", *(f"n{i}" for i in range(2, 9))]
    assert found["m", "n0"].index == 9


def test_a_script_of_more_than_any_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ProgramBuilder()
    builder.call("fill", builder.buffer("t", (2**40,)), value=0.5)
    builder.call("fill", builder.buffer("y", (4,), kind="output"), value=0.5)
    file = TraceFile(slots=[Slot("y", "F32", (4,))], programs=[builder.build()])
    for call in (lambda: trace.run(file, 1), lambda: dispute.extract(file, 0, 1, "y", 0, {})):
        with pytest.raises(KernelError, match="more memory than this machine has"):
            call()
    small = ProgramBuilder()
    y = small.buffer("y", (1,), kind="output")
    small.call("fill", y, value=0.5)
    many = TraceFile(programs=[small.build()], actions=[{"run": 0, "with": ["y"]}] * 2000)
    monkeypatch.setattr(trace, "_MOST_LEAVES", 1999)
    with pytest.raises(KernelError, match="leaves"):
        trace.outline(many)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((b'["head.weight"]', b'["head.weight","head.weight"]'), "adjacent"),
        ((b'"name":"head.weight","shape":[9,8]', b'"name":"head.weight","shape":[72]'), "dimensions"),
    ],
)
def test_a_captured_model_whose_parameters_are_no_matrices(
    tmp_path: Path, change: tuple[bytes, bytes], says: str
) -> None:
    reader = FORMATS["captured model"](tmp_path)
    (data,) = reader.specimens
    reader.read(data)
    changed = data.replace(*change)
    assert changed != data
    with pytest.raises(KernelError, match=says):
        reader.read(changed)
