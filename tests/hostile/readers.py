"""Every reader of what somebody else may have written: a specimen that it takes, and how it is called.

A reader here is whatever turns bytes into something that the rest of the program believes the form of. `FORMATS` maps a
name to what makes the reader, in a folder of its own; tests/fuzz feeds the same ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitwitness.kernels.capturing.graph import Graph
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import ProgramBuilder
from bitwitness.kernels.tracing import culprit, dispute, judge, trace, trace_file, trace_record
from bitwitness.ledger import code, commitments, handover, jcs, keys, merkle, note, project, proof_file
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry import drand, entries, envelope
from bitwitness.ledger.entry.beacon import round_randomness
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange import submissions
from bitwitness.ledger.files import safetensors_header
from bitwitness.ledger.follow import fork
from bitwitness.ledger.p256 import P256Key
from bitwitness.ledger.sqlite import log_memory
from bitwitness.ledger.trust import Trust, load_trust
from bitwitness.registry import status
from bitwitness.registry.bundles import bundle, status_file
from bitwitness.registry.description import check_description
from bitwitness.registry.gating import memory
from bitwitness.registry.interop import oms, slsa, tokenizer_files
from bitwitness.registry.model_config import check_config, expected_config
from bitwitness.registry.policy import load_policy, parse_policy
from bitwitness.registry.shards import check_index, index_bytes
from bitwitness.trainer import config, parts, sample
from bitwitness.trainer.auditing import audit_work, outcome
from bitwitness.trainer.data import documents, manifest, remote_dataset
from bitwitness.trainer.data.tokenizer import HuggingFaceTokenizer
from bitwitness.trainer.models import imports
from bitwitness.trainer.models.captured import CapturedModel
from bitwitness.trainer.models.llama_config import read_config
from bitwitness.trainer.sample import Mark
from tests.hostile import mutants
from tests.ledger import conftest as ledger_examples
from tests.registry import project_fixture

Mutants = Callable[[bytes, mutants.Seen], Iterator[bytes]]
GOLDEN = Path(__file__).parents[1] / "golden" / "model-1"
CAPTURED = Path(__file__).with_name("captured.json")
SIGNERS = ledger_examples.signers()
LOG = SIGNERS["log"]
ORIGIN = "log.example"
TRUST = Trust(ORIGIN, note.Verifier(ORIGIN, LOG.public), SIGNERS["root"].public)


@dataclass(frozen=True)
class Reader:
    """`read` takes each of `specimens`, and of anything else it says in one line why not."""

    specimens: Sequence[bytes]
    read: Callable[[bytes], Any]
    mutants: Mutants = field(default=mutants.of_json)


def refuses_in_one_line(read: Callable[[bytes], Any], data: bytes) -> bool:
    """Whether a reader refuses: with an error of ours, whose message is one printable line. Else it takes them."""
    try:
        read(data)
    except (BitwitnessError, KernelError) as error:
        assert str(error).isprintable() and 0 < len(str(error)) < 600, data[:500]
        return True
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} for {data[:500]!r}") from error
    return False


def _filed(folder: Path, name: str, read: Callable[[Path], Any], mode: int = 0o600) -> Callable[[bytes], Any]:
    """A reader of a path, as one of bytes."""
    path = folder / name

    def call(data: bytes) -> Any:
        path.write_bytes(data)
        path.chmod(mode)
        return read(path)

    return call


# -- the ledger --------------------------------------------------------------------------------------------------------


def _head(leaves: Sequence[bytes]) -> str:
    root = merkle.root([merkle.leaf_hash(leaf) for leaf in leaves])
    return note.sign_note(Checkpoint(ORIGIN, len(leaves), root).format(), ORIGIN, LOG)


def _statements(folder: Path) -> Reader:
    """Every kind of entry, under a signature that fits whatever stands in it."""
    found: dict[str, bytes] = {}
    for label, _kind, statement, _data in ledger_examples.build().entries:
        found[label] = jcs.encode(statement)

    def read(data: bytes) -> Any:
        keyid = LOG.keyid
        try:
            said = jcs.parse(data)["predicate"]["signer"]
            keyid = said if isinstance(said, str) and jcs.is_hex(said, 64) else keyid
        except (BitwitnessError, KeyError, TypeError):
            pass
        opened = envelope.open_envelope(envelope.assemble(data, keyid, bytes(64)))
        kind = entries.check(opened.statement)
        entries.kind_of(opened.statement)
        return kind.signers(opened.statement["predicate"])

    return Reader(list(found.values()), read)


def _envelopes(folder: Path) -> Reader:
    entry = ledger_examples.build().entries[-1][3]
    return Reader([entry], lambda data: submissions.split_file(data) and envelope.open_envelope(data))


def _submission(folder: Path) -> Reader:
    intent = next(data for _, kind, _, data in ledger_examples.build().entries if kind == "audit-intent")
    return Reader([intent], submissions.read_submission)


def _forks(folder: Path) -> Reader:
    first, second = [b"a", b"b", b"c"], [b"a", b"x", b"c", b"d", b"e"]
    made = [data for _, kind, _, data in ledger_examples.build().entries if kind == "step"][:1] * 2
    hashes = [merkle.leaf_hash(data) for data in made]
    placed = [fork.PlacedEntry(i, data, merkle.inclusion_proof(i, hashes)) for i, data in enumerate(made)]
    others = [merkle.leaf_hash(data) for data in second]
    specimens = [
        fork.two_roots(_head(first), _head(second[:3])),
        fork.two_histories(
            _head(first), _head(second), fork.prefix_hashes(3, 5, lambda level, at: _node(others, level, at))
        ),
        fork.two_entries(_head(made), placed),
    ]

    def read(data: bytes) -> None:
        if fork.looks_like_fork(data):
            (check,) = fork.verify_fork(data, TRUST)
            if check.ok is None:
                raise BitwitnessError(check.detail)

    return Reader(specimens, read)


def _node(leaves: Sequence[bytes], level: int, index: int) -> bytes:
    return merkle.root(leaves[index << level : (index + 1) << level])


def _proof_extra(folder: Path) -> Reader:
    made = ledger_examples.build().entries
    return Reader(
        [proof_file.extra_bytes(made[-1][3], handover.ProvenEntry(made[0][3], 0, (bytes(32),)))], proof_file.read_extra
    )


def _public_key(folder: Path) -> Reader:
    keys.save(LOG, folder / "log.pem")
    return Reader(
        [(folder / "log.pub").read_bytes().removesuffix(b"\n")], _filed(folder, "other.pub", keys.load_public)
    )


def _log_memory(folder: Path) -> Reader:
    head = log_memory.Head(ORIGIN, 3, bytes(32))
    log_memory.remember(folder / "log.head", head, lambda size: [])
    return Reader(
        [(folder / "log.head").read_bytes().removesuffix(b"\n")],
        _filed(folder, "other.head", lambda path: log_memory.check(path, head, lambda size: [])),
    )


def _round(folder: Path) -> Reader:
    signature = bytes(48)
    answer = {"randomness": round_randomness(signature).hex(), "round": 1000, "signature": signature.hex()}
    return Reader([json.dumps(answer).encode()], lambda data: drand.read_round(data, 1000))


def _commitment(folder: Path) -> Reader:
    made = commitments.tree("weights/1", [b"a"]).to_json()
    return Reader([jcs.encode(made)], lambda data: commitments.Commitment.from_json(json.loads(data)), _parsed)


def _parsed(specimen: bytes, seen: mutants.Seen) -> Iterator[bytes]:
    """Mutants for a reader of JSON values: those that are JSON, within what Python's own parser takes."""
    for mutant in mutants.of_json(specimen, seen):
        try:
            json.loads(mutant)
        except (ValueError, RecursionError):
            continue
        yield mutant


def _code_manifest(folder: Path) -> Reader:
    rows = [{"path": "a.py", "sha256": "00" * 32}]
    return Reader([json.dumps(rows).encode()], _filed(folder, "code.json", code.read_manifest))


def _project_file(folder: Path) -> Reader:
    text = b'format = 1\n[paths]\nledger = "l.db"\nkeys = "keys"\n[aliases]\nchampion = "strict.toml"\n'
    read = _filed(folder, project.CONFIG, lambda path: project.Project.find(folder))
    return Reader([text], read, mutants.of_toml)


def _safetensors(data: bytes, seen: mutants.Seen) -> Iterator[bytes]:
    """Mutants of a safetensors file's table, of its length, and of what follows."""
    (length,) = struct.unpack("<Q", data[:8])
    for text in mutants.of_json(data[8 : 8 + length], seen):
        yield struct.pack("<Q", len(text)) + text + data[8 + length :]
    for other in (0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1):
        yield struct.pack("<Q", other) + data[8:]
    yield from (data[:7], data[:-1], data + b"\0")


def _header(folder: Path) -> Reader:
    tensors = {"a": ("F32", (2, 2), memoryview(bytes(16))), "b": ("BF16", (3,), memoryview(bytes(6)))}
    safetensors_header.write_file(folder / "a.safetensors", tensors, {"format": "pt"})
    return Reader([(folder / "a.safetensors").read_bytes()], safetensors_header.read_header, _safetensors)


# -- the trainer -------------------------------------------------------------------------------------------------------

RUN = b"""
[run]
name = "r"
steps = 6
seed = 7
from = "other@3"
[data]
train = "text"
window = 24
shards = 3
[model]
layers = 2
width = 32
heads = 4
kv_heads = 2
hidden = 48
vocabulary = 257
[optimizer]
frozen = ["a"]
weight_decay_overrides = {b = 0.5}
[schedule]
kind = "cosine"
warmup = 2
"""
OWN_RUN = RUN.replace(b'from = "other@3"\n', b"").partition(b"[model]")[0] + (
    b'[model]\nmodule = "mine.py:Llama"\narguments = {width = 8, rate = 0.5, tied = true, kind = "a"}\n'
)
PRESET_RUN = RUN.partition(b"[model]")[0] + b'[model]\npreset = "nano"\n'


def _run_config(folder: Path) -> Reader:
    def read(path: Path) -> Any:
        resolved = config.load_config(path, name="other").resolved()
        config.load_config(path, model_of=lambda _name: project_fixture.CONFIG.model)
        return config.config_from_ledger(jcs.parse(jcs.encode(resolved)))

    return Reader([RUN, OWN_RUN, PRESET_RUN], _filed(folder, "run.toml", read), mutants.of_toml)


def _recorded_config(folder: Path) -> Reader:
    made = []
    for text in (RUN, OWN_RUN):
        (folder / "made.toml").write_bytes(text)
        made.append(jcs.encode(config.load_config(folder / "made.toml").resolved()))

    def read(data: bytes) -> Any:
        found = jcs.parse(data)
        return config.config_from_ledger(found) if isinstance(found, dict) else None  # a genesis holds an object

    return Reader(made, read)


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
    "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 16, "head_dim": 4, "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True, "torch_dtype": "float32", "use_cache": True,
}  # fmt: skip


def _llama_config(folder: Path) -> Reader:
    specimens = [json.dumps(LLAMA).encode(), json.dumps({**LLAMA, "rope_theta": 10000.0}).encode()]
    return Reader(specimens, lambda data: read_config(data, "config.json"))


def _shard_names(folder: Path) -> Reader:
    index = {"metadata": {"total_size": 4}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}

    def read(path: Path) -> Any:
        return imports._shards(imports._Files(path.parent))

    return Reader([json.dumps(index).encode()], _filed(folder, imports.INDEX, read))


def _import_record(folder: Path) -> Reader:
    made = imports.Import(
        "base", project_fixture.CONFIG.decoder, commitments.tree("weights/1", [b"a"]), [{"name": "a", "sha256": "00"}]
    )
    home = folder / "imports" / "base"
    home.mkdir(parents=True)
    at = project.Project(folder, {})

    def read(_path: Path) -> Any:
        list(imports._imports(at))
        return imports.find_import(at, "base").init()

    return Reader([jcs.encode(imports._record(made))], _filed(home, imports.RECORD_FILE, read))


def _manifest(folder: Path) -> Reader:
    fields = {
        "format": manifest.FORMAT, "name": "text", "dataset": commitments.tree("dataset/1", [b"a"]).to_json(),
        "documents": 1, "tokens": 9, "bytes": 9, "tokenizer": {"name": "bytes-1", "vocabulary": 257}, "end": 256,
        "shard_bytes": 64, "files": [{"bytes": 18, "name": "tokens-00000.bin", "sha256": "00" * 32}],
        "visibility": "public", "license": "CC0-1.0", "split": {"of": "text"},
    }  # fmt: skip
    hugging_face = {**fields, "tokenizer": {"name": "huggingface-1", "vocabulary": 300, "digest": "00" * 32}, "end": 7}

    class Remote:
        url = "http://log.example"

        def __init__(self, data: bytes) -> None:
            self.data = data

        def get(self, path: str, limit: int) -> bytes:
            return self.data

    def read(data: bytes) -> Any:
        found = manifest.parse_manifest(data, "text")
        found.encode()
        entry = {"name": found.name, "dataset": found.dataset.to_json()}
        with contextlib.suppress(manifest.DatasetDamaged):
            remote_dataset.RemoteDataset(Remote(data), folder / "kept", fields)  # type: ignore[arg-type]
        return entry

    return Reader([jcs.encode(fields), jcs.encode(hugging_face)], read)


def _tokenizer(folder: Path) -> Reader:
    def read(data: bytes) -> Any:
        made = HuggingFaceTokenizer(data, where="tokenizer.json")
        made.encode("a b é\u0000 — 😀 <|endoftext|>".encode())
        return made.spans(b"b a")

    words = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 3, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
    }  # fmt: skip
    return Reader([tokenizer_files.byte_tokenizer(), json.dumps(words).encode()], read, _some)


def _some(specimen: bytes, seen: mutants.Seen) -> Iterator[bytes]:
    """Mutants of a document of many items that look alike to us, though not to its reader: every ninth."""
    value = json.loads(specimen)
    if "vocab" in value.get("model", {}):
        value["model"]["vocab"] = dict(list(value["model"]["vocab"].items())[:4])
    yield from mutants.of_json(json.dumps(value).encode(), seen)


def _document(folder: Path) -> Reader:
    return Reader([json.dumps({"text": "a", "meta": {"n": [1]}}).encode()], _text_field, mutants.of_json)


def _text_field(data: bytes) -> Any:
    """A line as documents.read_documents goes on with it: an error that it knows, or a document."""
    try:
        return documents._text_field(data.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise documents.MalformedLine("a.jsonl", 1, str(error) if type(error) is ValueError else "not JSON") from None


def _parts(folder: Path) -> Reader:
    gradient = commitments.tree("gradient/1", [b"a"])
    leaves = parts.PartLeaves(
        (parts.shard_leaf(0, gradient, 1.5, 3), parts.norm_leaf(1.5, 2.0, 3, {"clip": 0.5, "learning_rate": 0.25}))
    )
    expected = leaves.commit().to_json()
    data = jcs.encode([jcs.parse(leaf) for leaf in leaves.leaves])
    return Reader([data], lambda data: parts.check_leaves(data, 1, expected))


def _captured(folder: Path) -> Reader:
    data = CAPTURED.read_bytes().strip()
    path = folder / "own.toml"
    path.write_bytes(OWN_RUN.replace(b"window = 24", b"window = 4"))
    found = config.load_config(path)

    def read(data: bytes) -> Any:
        model = CapturedModel(found, Graph.from_json(jcs.parse(data)))
        return (
            model.shard(1),
            model.shard(2, taps=True),
            model.boundaries,
            model.loss(2),
            model.finish(),
            model.weights(),
            model.tables,
        )

    return Reader([data], read)


def _progress(folder: Path) -> Reader:
    """What an auditor's own program kept of an audit; a stranger cannot sign one, an older program could."""
    auditor = SIGNERS["auditor"]
    intent = next(data for _, kind, _, data in ledger_examples.build().entries if kind == "audit-intent")
    work = audit_work.AuditWork.begin(folder / "audits", intent, auditor)
    work.replay.finished_unit(
        outcome.UnitResult(
            sample.Unit(0, 0, "init"),
            "mismatch",
            (0,),
            found={"step": 0},
            value=outcome.FirstValue("a", (0,), (1,), culprit.Element(0, "00", "01", 1)),
        ),
        [bytes(32)],
    )
    data, _, _ = (work.replay.folder / "progress.json").read_bytes().rpartition(b"\n")

    def read(data: bytes) -> Any:
        signature = auditor.sign(work.replay._signed(data)).hex().encode()
        (work.replay.folder / "progress.json").write_bytes(data + b"\n" + signature)
        (again,) = audit_work.AuditWork.unfinished(folder / "audits", auditor)
        if not again.replay.results:
            raise BitwitnessError("passed over")
        return again.replay.point(sample.Unit(0, 0, "init"), None)  # type: ignore[arg-type]

    return Reader([data], read)


# -- the kernels -------------------------------------------------------------------------------------------------------


def _trace() -> trace_file.TraceFile:
    """The worked example of docs/formats/trace.md, with one of every kind of action."""
    builder = ProgramBuilder()
    kinds: dict[str, Any] = {"x": "input", "w": "input", "y": "output"}
    x, w, y = (builder.buffer(name, (2, 2), kind=kind) for name, kind in kinds.items())
    between = builder.buffer("between", (2, 2))
    builder.call("matmul_nt", x, w, between, accumulate=0)
    builder.call("fill", builder.view(y, 0, (4,)), value=0.5)
    builder.call("add", *(builder.view(b, 0, (4,)) for b in (between, y, y)))
    one = np.array([[1, 2], [3, 4]], np.float32)
    tensors = [{"name": "y", "offset": 0, "shape": [2, 2], "slot": "y"}]
    return trace_file.TraceFile(
        tensors={"one": one, "two": -one},
        slots=[trace_file.Slot(name, "F32", (2, 2)) for name in kinds],
        programs=[builder.build()],
        commitments=[{"tensors": tensors, "type": "weights/1"}],
        actions=[
            {"load": "x", "tensor": "one"}, {"load": "w", "tensor": "two"}, {"zero": "y"},
            {"run": 0, "with": ["x", "w", "y"]}, {"commit": 0, "label": "sum"},
            {"begin": 0, "chunk": "y", "claims": {"ours": "00" * 32, "theirs": "11" * 32}, "end": 4},
        ],
    )  # fmt: skip


def _trace_file(folder: Path) -> Reader:
    trace_file.write(folder / "made.safetensors", _trace())
    whole = (folder / "made.safetensors").read_bytes()

    def read(path: Path) -> Any:
        found = trace_file.read(path)
        trace.outline(found)
        trace.run(found, 1)
        return dispute.extract(found, 0, 2, "y", 0, {}) if found.programs else None

    return Reader([whole], _filed(folder, "step.safetensors", read), _scripts)


def _scripts(whole: bytes, seen: mutants.Seen) -> Iterator[bytes]:
    """Mutants of a trace file: of its table, and of the script in it."""
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    yield from _safetensors(whole, seen)
    for script in mutants.of_json(header["__metadata__"][trace_file.SCRIPT_KEY].encode(), set()):
        changed = {**header, "__metadata__": {trace_file.SCRIPT_KEY: script.decode("latin-1")}}
        text = trace_file.canonical(changed).encode()
        text += b" " * (-len(text) % 8)
        yield struct.pack("<Q", len(text)) + text + whole[8 + length :]


def _trace_record(folder: Path) -> Reader:
    made = folder / "made"
    file = _trace()
    trace_record.write(made, file, trace.run(file, 1), {}, {"run": "r", "layout": {}})
    ours = trace_record.read(made)

    def read(path: Path) -> Any:
        theirs = trace_record.read(path)
        return theirs.places, culprit.find(ours, theirs)

    return Reader([(made / "trace.json").read_bytes().strip()], _filed(folder, "trace.json", read))


def _facts(folder: Path) -> Reader:
    """What a program that is called the referee says."""
    facts = [{"fact": "chunk", "hash": "00" * 32, "slot": "y"}, {"fact": "done"}]
    text = "\n".join(map(trace_file.canonical, facts)).encode()

    def read(data: bytes) -> Any:
        told = judge.Judgement(0, judge.facts_of(data.decode("utf-8", "replace"), "referee"), {"ours": "00" * 32})
        return told.chunk, told.right, told.wrong

    def lines(text: bytes, seen: mutants.Seen) -> Iterator[bytes]:
        first, _, rest = text.partition(b"\n")
        for mutant in mutants.of_json(first, seen):
            yield mutant + b"\n" + rest

    return Reader([text], read, lines)


# -- the registry ------------------------------------------------------------------------------------------------------


def _provenance(folder: Path) -> Reader:
    policy = load_policy(GOLDEN / "trust.toml")
    data = (GOLDEN / "golden" / bundle.FILE_NAME).read_bytes()

    def read(data: bytes) -> Any:
        from bitwitness.registry.verify import Verdict, _authenticate

        verdict = Verdict()
        found = _authenticate(bundle.parse(data), policy, verdict)
        for check in verdict.checks:
            BitwitnessError(check.detail)
        return found

    return Reader([data], read)


def _status(folder: Path) -> Reader:
    policy = load_policy(GOLDEN / "trust.toml")
    data = bundle.parse((GOLDEN / "golden" / bundle.FILE_NAME).read_bytes())
    kinds = {item.index: _statement(item)["predicateType"].rsplit("/", 2)[1] for item in data.entries}
    wanted = [item for item in data.entries if kinds[item.index] in ("key", "status")]
    records = [
        item.raw() for item in data.entries if status.is_record(kinds[item.index], _statement(item)["predicate"])
    ]
    assert data.status is not None
    (opened,) = data.status.runs
    marks = status.marks_commitment(Mark(mark.entry, mark.kind, mark.step) for mark in opened.marks)
    said = {"marks": marks.to_json(), "records": commitments.tree("records/1", records).to_json(), "run": opened.run}
    made = {
        "checkpoint": data.checkpoint,
        "entries": [item.model_dump() for item in wanted],
        "format": status_file.FORMAT,
        "runs": [said],
    }

    def read(data: bytes) -> Any:
        return status_file.open_status(data, policy)

    return Reader([jcs.encode(made)], read)


def _statement(item: bundle.LoggedEntry) -> Any:
    return envelope.open_envelope(item.raw()).statement


def _gate_memory(folder: Path) -> Reader:
    seen = {
        "format": memory.FORMAT,
        "logs": {
            ORIGIN: {
                "models": {"demo": {"size": 3, "version": 1}}, "root": "00" * 32, "size": 3,
                "status": {
                    "keys": [{"first": 1, "keyid": "00" * 32}], "releases": ["11" * 32], "sequence": 0,
                    "time": "2026-01-02T03:04:05Z",
                },
            }
        },
    }  # fmt: skip

    def read(path: Path) -> Any:
        held = memory.load(path)
        return held.revoked(ORIGIN), held.check(Checkpoint(ORIGIN, 9, bytes(32)), {"model": "demo", "version": 1})

    return Reader([jcs.encode(seen)], _filed(folder, "gate.json", read))


def _policy(folder: Path) -> Reader:
    text = (GOLDEN / "trust.toml").read_bytes()
    cosigner = note.Verifier("w.example", SIGNERS["witness"].public, note.COSIGNATURE).vkey
    rules = {
        "self_chosen_auditors": ["00" * 32], "max_open_intents": 1, "min_audited_steps": 1, "min_version": 1,
        "min_audited_fraction": 0.5, "max_status_age": 3, "licenses": ["MIT"], "forbidden_versions": ["a/1"],
    }  # fmt: skip
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in rules.items())
    key = json.dumps(_p256().pem.decode())
    whole = (
        b"\n".join(line for line in text.split(b"[rules]")[0].split(b"\n"))
        + f'\n[rules]\n{more}max_loss = {{"{"00" * 32}" = 3}}\n[oms]\nkey = {key}\n[status]\nfile = "s.json"\n'.encode()
        + f'max_age = 3\n[witnesses]\npolicy = "witness w {cosigner}\\nquorum w\\n"\n'.encode()
    )

    def read(path: Path) -> Any:
        trusted, raised = None, None
        try:
            trusted = load_trust(path)
        except BitwitnessError as error:
            raised = error
        found = parse_policy(path.read_bytes(), path)
        _ = found.quorum, found.witness_keys
        if raised is not None:
            raise raised
        return trusted

    return Reader([whole], _filed(folder, "trust.toml", read), mutants.of_toml)


def _p256() -> P256Key:
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.derive_private_key(12345, ec.SECP256R1())
    return P256Key(private.public_key(), private)


def _model_config(folder: Path) -> Reader:
    resolved = project_fixture.CONFIG.resolved()
    data = json.dumps(expected_config(resolved, "F32")).encode()
    return Reader([data], lambda data: check_config(data, resolved, "F32"))


def _described_run(folder: Path) -> Reader:
    """The free `config` of a genesis, as whoever reads a release goes by it."""
    resolved = project_fixture.CONFIG.resolved()
    data = json.dumps(expected_config(resolved, "F32")).encode()

    def read(text: bytes) -> Any:
        found = jcs.parse(text)
        return check_config(data, found, "F32") if isinstance(found, dict) else None

    return Reader([jcs.encode(resolved)], read)


def _own_program(folder: Path) -> Reader:
    made = {"format": "captured/1", "window": 4, "parameters": [{"name": "a", "shape": [2, 3], "initial": {}}]}

    def read(data: bytes) -> Any:
        program = hashlib.sha256(data).hexdigest()
        genesis = {"model": {"program": program}, "config": {"data": {"window": 4}}}
        leaves = [commitments.TensorLeaf("a", "F32", (2, 3), 24, "00" * 32)]
        return check_description({"model.json": data}, genesis, "F32", leaves)

    return Reader([jcs.encode(made)], read)


def _shard_index(folder: Path) -> Reader:
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return Reader([index_bytes(places, 8)], lambda data: check_index(data, places, 8))


def _oms(folder: Path) -> Reader:
    key = _p256()

    def read(data: bytes) -> Any:
        name, files = oms.verify(data, key)
        return name, oms.compare(files, {"a": "00" * 32})

    return Reader([oms.sign({"a": "00" * 32}, "demo", key)], read)


def _oms_statement(folder: Path) -> Reader:
    """A statement that the policy's key signed, whatever stands in it."""
    key = _p256()
    whole = json.loads(oms.sign({"a": "00" * 32}, "demo", key))
    payload = oms._base64(whole["dsseEnvelope"]["payload"])

    def read(data: bytes) -> Any:
        import base64

        signed = base64.b64encode(key.sign(envelope.pae(oms._PAYLOAD, data))).decode()
        whole["dsseEnvelope"] |= {"payload": base64.b64encode(data).decode(), "signatures": [{"sig": signed}]}
        name, files = oms.verify(json.dumps(whole).encode(), key)
        return name, oms.compare(files, {"a": "00" * 32})

    return Reader([payload], read)


def _slsa(folder: Path) -> Reader:
    line = slsa._line(b"{}", LOG.keyid, LOG.sign(b""))
    return Reader([line.strip()], slsa._signature)


def _tokenizer_settings(folder: Path) -> Reader:
    tokens = tokenizer_files.byte_tokenizer()
    config, generation = (
        tokenizer_files.tokenizer_config(8, tokenizer_files.END),
        tokenizer_files.generation_config(tokenizer_files.END_NUMBER),
    )

    def read(data: bytes) -> Any:
        return tokenizer_files.check_settings(data, generation, 8, tokens)

    return Reader([config], read)


def _tokenizer_vocabulary(folder: Path) -> Reader:
    config = tokenizer_files.tokenizer_config(8, "b")
    small = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "c", "id": 2}]}
    listed = {"model": {"vocab": [["a", 0.5], ["b", 0.25]]}, "added_tokens": []}

    def read(data: bytes) -> Any:
        tokenizer_files.end_token(data, 1)
        return tokenizer_files.check_settings(config, tokenizer_files.generation_config(1), 8, data)

    return Reader([json.dumps(small).encode(), json.dumps(listed).encode()], read)


FORMATS: dict[str, Callable[[Path], Reader]] = {
    "statements": _statements,
    "envelope": _envelopes,
    "submission": _submission,
    "fork": _forks,
    "proof extra": _proof_extra,
    "public key": _public_key,
    "log memory": _log_memory,
    "drand round": _round,
    "commitment": _commitment,
    "code manifest": _code_manifest,
    "project.toml": _project_file,
    "safetensors": _header,
    "run.toml": _run_config,
    "recorded config": _recorded_config,
    "llama config": _llama_config,
    "llama index": _shard_names,
    "import record": _import_record,
    "dataset manifest": _manifest,
    "tokenizer.json": _tokenizer,
    "jsonl": _document,
    "parts": _parts,
    "captured model": _captured,
    "audit progress": _progress,
    "trace file": _trace_file,
    "trace record": _trace_record,
    "referee": _facts,
    "provenance": _provenance,
    "status": _status,
    "gate memory": _gate_memory,
    "trust.toml": _policy,
    "config.json": _model_config,
    "described run": _described_run,
    "model.json": _own_program,
    "shard index": _shard_index,
    "model.sig": _oms,
    "model.sig statement": _oms_statement,
    "slsa": _slsa,
    "tokenizer settings": _tokenizer_settings,
    "tokenizer vocabulary": _tokenizer_vocabulary,
}
