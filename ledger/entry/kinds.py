"""The kinds of ledger entries: one table, used by the writer and by the verifier alike.

Each kind says who signs it, what its subject is, and every field of its predicate with its type; unknown
fields are refused, so the bytes of a kind are fixed by this table (docs/formats/entries.md is generated from
it). A change to a kind is a new version of the kind, never an edit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import keys
from ..commitments import DTYPES
from ._fields import (
    CODE,
    COUNT,
    F32,
    F64,
    FILE,
    FREE,
    HASH,
    LABEL,
    NAME,
    ORIGIN,
    POSITIVE,
    TIME,
    U64,
    VERSION,
    Field,
    Type,
    commitment,
    enum,
    items,
    mapping,
    record,
)
from ._kind_fields import (
    ARITHMETIC_USE,
    CHAIN,
    CODE_TREE,
    CONTROL,
    COSIGNATURE,
    DATASET_USE,
    DERIVATION,
    GENESIS_CHAIN,
    OBSERVATION,
    OBSERVED,
    OPTIMIZER,
    OUTCOMES,
    ROUND,
    SHA256,
    SIGNER,
    STATE,
    STEP,
    STEP_OF_RUN,
    TREE,
    WEIGHTS,
)
from ._rules import (
    Rule,
    alias_is_stated,
    computed,
    control_is_step,
    documents_are_leaves,
    fresh_control,
    genesis_is_first,
    history_is_before,
    imported_weights,
    key_is_its_id,
    one_training_set,
    parents_state,
    range_ascends,
    reason_unless_confirmed,
    result_of_units,
    resumes_backwards,
    state_is_its_digest,
)
from .derivation_rules import derivation_fits

PREDICATE_PREFIX = "https://bitwitness.dev/"
PREDICATE_SUFFIX = "/v1"

# A string that canonical JSON writes as it is.
_PLAIN = r'"[ !#-\[\]-~]*"'


@dataclass(frozen=True)
class Subject:
    """One subject of a statement: its name, the digest's algorithm, and where in the predicate the value
    stands.
    """

    name: str
    algorithm: str
    path: str


@dataclass(frozen=True)
class Kind:
    """A row of the table. `rules` hold between fields; `chained` kinds belong to a run's chain.

    `reserved` is (field, values, roles): with one of these values only the roles named there may sign.
    """

    name: str
    roles: tuple[str, ...]
    subjects: tuple[Subject, ...]
    fields: tuple[Field, ...]
    text: str
    chained: bool = False
    rules: tuple[tuple[str, Rule], ...] = ()
    reserved: tuple[str, tuple[str, ...], tuple[str, ...]] | None = None
    schema: Type = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", record(*self.fields))

    @property
    def predicate_type(self) -> str:
        return f"{PREDICATE_PREFIX}{self.name}{PREDICATE_SUFFIX}"

    @cached_property
    def form(self) -> re.Pattern[bytes] | None:
        """Canonical JSON that it matches is a statement whose predicate has this kind's fields.

        It need not match all such statements, and says nothing of `rules` and of what `_type` and subject are. Whatever
        bytes it matches hold nothing outside the domain of canonical JSON, but for the order of keys.
        """
        if self.schema.form is None:
            return None
        predicate = f'"predicate":{self.schema.form},"predicateType":"{re.escape(self.predicate_type)}"'
        subjects = ",".join(
            rf'\{{"digest":\{{"{re.escape(rule.algorithm)}":{_PLAIN}\}},"name":"{re.escape(rule.name)}"\}}'
            for rule in self.subjects
        )
        return re.compile(rf'\{{"_type":{_PLAIN},{predicate},"subject":\[{subjects}\]\}}'.encode("ascii"))

    def signers(self, predicate: Mapping[str, Any]) -> tuple[str, ...]:
        """The roles whose keys may sign this predicate."""
        if self.reserved is not None and predicate.get(self.reserved[0]) in self.reserved[1]:
            return self.reserved[2]
        return self.roles


_RUN_SUBJECT = (Subject("run", SHA256, "run"),)
_CHAINED = ("history.size is seq", history_is_before)
_STATE_RULE = ("state is the digest of control, optimizer and weights", state_is_its_digest)
_STEP_RULE = ("control.step is step", control_is_step)


# The table ----------------------------------------------------------------------------------------------------------

_TABLE = (
    Kind(
        "key",
        ("root",),
        (Subject("key", SHA256, "key.keyid"),),
        (
            SIGNER,
            Field("action", enum("enrol", "rotate", "revoke")),
            Field(
                "key",
                record(
                    Field("algorithm", enum(keys.ALGORITHM)),
                    Field("keyid", HASH, note="SHA-256 of the raw public key"),
                    Field("public", HASH, note="the raw public key"),
                    Field("role", enum(*keys.ROLES)),
                    Field("name", NAME, optional=True, note="a label"),
                ),
            ),
            Field("from", COUNT, when=("action", "revoke"), note="first ledger index that no longer counts"),
            Field("replaces", HASH, when=("action", "rotate"), note="keyid that ends here, same role"),
            Field("time", TIME),
        ),
        "Enrols, rotates or revokes a key. Entry 0 of a ledger enrols its root key, by that key itself.",
        rules=(("key.keyid is the SHA-256 of key.public, a canonical point of prime order", key_is_its_id),),
    ),
    Kind(
        "dataset",
        ("trainer",),
        (Subject("dataset", TREE, "dataset.root"),),
        (
            SIGNER,
            Field("name", NAME, note="a label"),
            Field("dataset", commitment("dataset/1")),
            Field("documents", COUNT),
            Field("tokens", COUNT),
            Field("bytes", COUNT, note="of all source documents"),
            Field(
                "tokenizer",
                record(
                    Field("name", NAME),
                    Field("digest", HASH, optional=True, note="SHA-256 of the tokenizer's file"),
                    Field("vocabulary", POSITIVE),
                ),
            ),
            Field("visibility", enum("public", "private"), note="public: salts are zero"),
            Field("license", LABEL, optional=True),
            Field("time", TIME),
        ),
        "A corpus: its documents and their tokens.",
        rules=(("documents is dataset.size", documents_are_leaves),),
    ),
    Kind(
        "run",
        ("trainer",),
        (Subject("weights", TREE, "weights.root"),),
        (
            SIGNER,
            *GENESIS_CHAIN,
            Field("name", NAME, note="a label; the run's identity is this entry's leaf hash"),
            Field("config", FREE, note="resolved, all defaults written out"),
            Field("seed", U64),
            Field(
                "datasets",
                items(DATASET_USE, low=1, high=32),
            ),
            Field("arithmetic", ARITHMETIC_USE),
            Field("record", VERSION, note="version of the step record, now 1"),
            Field("origin", ORIGIN, note="of the log that this run is written to"),
            Field("steps", COUNT, note="planned: the number of the last step"),
            Field("code", CODE_TREE),
            Field(
                "init",
                record(
                    Field("kind", enum("seeded", "parent", "import")),
                    Field("run", HASH, when=("kind", "parent"), note="leaf hash of the parent's genesis"),
                    Field("step", COUNT, when=("kind", "parent"), note="of the parent; the run goes on with the next"),
                    Field("entry", HASH, when=("kind", "parent"), note="leaf hash of the parent's `state` entry"),
                    Field("state", HASH, when=("kind", "parent"), note="state digest in that entry"),
                    Field("weights", WEIGHTS, when=("kind", "import")),
                    Field(
                        "files",
                        items(record(Field("name", FILE), Field("sha256", HASH)), low=1, high=128),
                        when=("kind", "import"),
                    ),
                ),
            ),
            Field(
                "model",
                record(
                    Field("program", HASH, note="SHA-256 of the captured model (captured-model.md)"),
                    Field("source", HASH, note="SHA-256 of the user's file"),
                ),
                optional=True,
                note="where config names a module of the user's",
            ),
            Field("control", CONTROL),
            Field("weights", WEIGHTS),
            Field("optimizer", OPTIMIZER),
            STATE,
            Field(
                "constants",
                mapping(HASH),
                note="name → SHA-256 of a table's bytes; `rope`: cosines then sines",
            ),
            OBSERVED,
        ),
        "The genesis of a run: everything that fixes its bits. Its leaf hash is the run's identity.",
        chained=True,
        rules=(
            ("seq is 0", genesis_is_first),
            _CHAINED,
            ("control is all 0 unless init.kind is parent", fresh_control),
            ("init.step is control.step and init.state is state, of a parent", parents_state),
            ("init.weights is weights", imported_weights),
            ("one dataset has the role train", one_training_set),
            _STATE_RULE,
        ),
    ),
    Kind(
        "resume",
        ("trainer",),
        _RUN_SUBJECT,
        (
            SIGNER,
            *CHAIN,
            Field("from", COUNT, note="step of the stored state that was loaded"),
            Field("state", HASH, note="its state digest"),
            Field("step", COUNT, note="last step of the run that stood in the ledger; up to it steps are redone"),
            OBSERVED,
        ),
        "The run went on from a stored state, in another process.",
        chained=True,
        rules=(_CHAINED, ("from is at most step", resumes_backwards)),
    ),
    Kind(
        "step",
        ("trainer",),
        (Subject("weights", TREE, "computed.weights.root"),),
        (
            SIGNER,
            *CHAIN,
            Field(
                "computed",
                record(
                    Field("step", POSITIVE),
                    Field("control", CONTROL),
                    STATE,
                    Field("weights", WEIGHTS),
                    Field(
                        "optimizer",
                        OPTIMIZER,
                        optional=True,
                        note="absent where commit_optimizer_every thins it",
                    ),
                    Field("loss", F64, note="mean over the step's valid tokens"),
                    Field("norm", F64, note="of the gradient, before clipping"),
                    Field("tokens", POSITIVE, note="valid tokens of this step"),
                    Field("scalars", mapping(F32, low=1), note="host scalars, e.g. learning_rate, clip"),
                    Field("parts", commitment("parts/1"), optional=True),
                ),
                note="compared on replay",
            ),
            OBSERVED,
        ),
        "One optimizer step.",
        chained=True,
        rules=(
            _CHAINED,
            ("computed.control.step is computed.step", computed(control_is_step)),
            (
                "computed.state is the digest of control, optimizer and weights",
                computed(state_is_its_digest),
            ),
        ),
    ),
    Kind(
        "state",
        ("trainer",),
        (Subject("weights", TREE, "weights.root"), Subject("optimizer", TREE, "optimizer.root")),
        (
            SIGNER,
            *CHAIN,
            STEP,
            STATE,
            Field("control", CONTROL),
            Field("weights", WEIGHTS),
            Field("optimizer", OPTIMIZER),
            Field("bytes", POSITIVE, note="of the tensors stored"),
            Field("observed", OBSERVATION, optional=True, note="never compared on replay"),
        ),
        "A state was stored, from which a replay can start.",
        chained=True,
        rules=(_CHAINED, _STEP_RULE, _STATE_RULE),
    ),
    Kind(
        "eval",
        ("trainer",),
        (Subject("weights", TREE, "weights.root"),),
        (
            SIGNER,
            *CHAIN,
            STEP,
            STATE,
            Field("weights", WEIGHTS),
            Field("dataset", DATASET_USE),
            Field(
                "computed",
                record(
                    Field("windows", POSITIVE),
                    Field("tokens", POSITIVE),
                    Field("nll", F64, note="sum over tokens, nats"),
                    Field("mean", F64, note="nll / tokens"),
                ),
                note="compared on replay",
            ),
            OBSERVED,
        ),
        "The loss of a state on a dataset.",
        chained=True,
        rules=(_CHAINED,),
    ),
    Kind(
        "halt",
        ("trainer",),
        _RUN_SUBJECT,
        (
            SIGNER,
            *CHAIN,
            Field("step", COUNT, note="last step whose update was made"),
            STATE,
            Field("reason", enum("interrupted", "nan", "inf", "error")),
            Field("loss", F64, optional=True, note="of the step that was not made"),
            Field("norm", F64, optional=True),
            OBSERVED,
        ),
        "The run stopped before its planned end.",
        chained=True,
        rules=(_CHAINED,),
    ),
    Kind(
        "end",
        ("trainer",),
        (Subject("weights", TREE, "weights.root"),),
        (
            SIGNER,
            *CHAIN,
            STEP,
            STATE,
            Field("control", CONTROL),
            Field("weights", WEIGHTS),
            Field("optimizer", OPTIMIZER),
            OBSERVED,
        ),
        "The run reached its end.",
        chained=True,
        rules=(_CHAINED, _STEP_RULE, _STATE_RULE),
    ),
    Kind(
        "audit-intent",
        ("auditor",),
        _RUN_SUBJECT,
        (
            SIGNER,
            Field("run", HASH),
            Field("size", POSITIVE, note="of the ledger that the auditor saw"),
            Field("root", HASH, note="of the ledger's tree over these entries, which are what is audited"),
            Field("first", COUNT, note="first step of the range"),
            Field("last", COUNT, note="last step of the range"),
            Field("samples", COUNT, note="units to draw"),
            Field(
                "beacon",
                record(
                    Field("kind", enum("none", "cosignature", "round")),
                    Field("witness", HASH, when=("kind", "cosignature"), note="keyid"),
                    Field("source", NAME, when=("kind", "round"), note="a public randomness service"),
                    Field("round", COUNT, when=("kind", "round")),
                ),
            ),
            Field("time", TIME),
        ),
        "An audit is announced before its sample can be known.",
        rules=(("first is at most last", range_ascends),),
    ),
    Kind(
        "audit",
        ("auditor",),
        _RUN_SUBJECT,
        (
            SIGNER,
            Field("run", HASH),
            Field("intent", HASH, note="leaf hash of the audit-intent entry"),
            Field("basis", enum("self-chosen", "beacon")),
            Field(
                "beacon",
                record(
                    Field("kind", enum("cosignature", "round"), note="as the audit-intent names it"),
                    Field("cosignature", COSIGNATURE, note="the beacon, or what was there before the round"),
                    Field("round", ROUND, when=("kind", "round")),
                ),
                when=("basis", "beacon"),
            ),
            Field("seed", HASH, note="of the sample"),
            Field("steps", COUNT, note="steps compared"),
            Field("result", enum(*OUTCOMES)),
            Field(
                "units",
                items(
                    record(
                        Field("first", COUNT, note="first step, 0 = init"),
                        Field("last", COUNT),
                        Field("outcome", enum(*OUTCOMES)),
                        Field(
                            "cause",
                            enum("init", "last", "release", "resume", "fork", "code", "sample", "chosen"),
                        ),
                        Field(
                            "start",
                            COUNT,
                            optional=True,
                            note="step of the state that its replay started from; with what was replayed",
                        ),
                        Field(
                            "part",
                            LABEL,
                            optional=True,
                            note="this part of the step alone: shard:N, fold, norm, update:TENSOR or eval",
                        ),
                        Field("reason", LABEL, optional=True),
                        Field(
                            "found",
                            record(
                                Field("step", COUNT, note="first step that differs"),
                                Field("field", NAME, optional=True, note="first computed field that differs"),
                                Field("expected", HASH, note="state digest in the ledger"),
                                Field("computed", HASH, note="state digest of the replay"),
                                Field("tap", LABEL, optional=True),
                                Field("operator", LABEL, optional=True),
                            ),
                            optional=True,
                            note="with the outcome mismatch",
                        ),
                    ),
                    low=1,
                ),
            ),
            Field("transcript", commitment("transcript/1")),
            Field("code", CODE_TREE),
            Field("arithmetic", ARITHMETIC_USE),
            OBSERVED,
        ),
        "Steps were replayed and compared.",
        rules=(("result follows from the units; found stands with mismatch only", result_of_units),),
    ),
    Kind(
        "recheck",
        ("auditor",),
        (Subject("audit", SHA256, "audit"),),
        (
            SIGNER,
            Field("run", HASH),
            Field("audit", HASH, note="leaf hash of the audit entry, which another auditor signed"),
            Field("result", enum("confirmed", "refuted", "inconclusive")),
            Field("reason", LABEL, optional=True, note="stands unless the result is confirmed"),
            Field("steps", COUNT, note="steps computed again"),
            Field("transcript", commitment("transcript/1"), note="as computed again, under the audit's own key"),
            Field("code", CODE_TREE),
            Field("arithmetic", ARITHMETIC_USE),
            OBSERVED,
        ),
        "Another auditor's audit was computed again.",
        rules=(("reason stands unless the result is confirmed", reason_unless_confirmed),),
    ),
    Kind(
        "release",
        ("publisher",),
        (Subject("model", TREE, "weights.root"),),
        (
            SIGNER,
            Field("model", NAME),
            Field("version", POSITIVE),
            *STEP_OF_RUN,
            Field("weights", WEIGHTS),
            Field("dtype", enum(*DTYPES)),
            Field(
                "files",
                items(record(Field("name", FILE), Field("sha256", HASH), Field("bytes", COUNT)), low=1, high=128),
            ),
            Field("license", LABEL, optional=True),
            Field("derivation", DERIVATION, optional=True, note="the weights follow from other releases of the log"),
            Field("time", TIME),
        ),
        "A version of a model: the weights of one step of a run, or what derives from them, and the files that carry"
        " them.",
        rules=(("a cast has one source, BF16 or F16; a merge has two or more with factors, F32", derivation_fits),),
    ),
    Kind(
        "endorse",
        ("auditor", "publisher"),
        (Subject("release", SHA256, "release"),),
        (
            SIGNER,
            Field("release", HASH, note="leaf hash of the release entry"),
            Field("statement", CODE, note="what is said of it, e.g. approved"),
            Field("alias", NAME, optional=True, note="stands with alias and unalias; a name for the release"),
            Field("policy", HASH, optional=True, note="SHA-256 of the policy file that the release passed before"),
            Field("reason", LABEL, optional=True),
            Field("time", TIME),
        ),
        "A word on a release. `alias`, `unalias`, `deprecated`, `restored` and `revoked` are publishers' words.",
        rules=(("alias stands with the statements alias and unalias, and only there", alias_is_stated),),
        reserved=("statement", ("alias", "unalias", "deprecated", "restored", "revoked"), ("publisher",)),
    ),
    Kind(
        "status",
        ("log",),
        (Subject("ledger", TREE, "ledger.root"),),
        (
            SIGNER,
            Field("sequence", COUNT, note="of the log's status entries, from 0"),
            Field("time", TIME),
            Field("ledger", commitment("ledger/1"), note="all entries before this one"),
            Field("revoked_keys", items(record(Field("keyid", HASH), Field("from", COUNT)), high=256)),
            Field(
                "revoked_releases",
                items(HASH, high=256),
            ),
            Field(
                "runs",
                commitment("runs/1"),
                note="per run, its exact lists of intents, audits, evals and words on its releases, and of what audits"
                " are drawn from",
            ),
        ),
        "What the log says now: everything revoked, and per run all that was said of it.",
    ),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _TABLE}
BY_PREDICATE_TYPE = {kind.predicate_type: kind for kind in _TABLE}
