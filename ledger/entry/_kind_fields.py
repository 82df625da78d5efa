"""Fields and records that several kinds of entries have (kinds.py)."""

from __future__ import annotations

from ._fields import (
    ARITHMETIC,
    BLS_SIGNATURE,
    COUNT,
    F32,
    HASH,
    HOST,
    LABEL,
    NAME,
    POSITIVE,
    SIGNATURE,
    TIME,
    Field,
    commitment,
    enum,
    items,
    mapping,
    record,
)

SIGNER = Field("signer", HASH, note="the keyid that signs the envelope")
WEIGHTS = commitment("weights/1")
OPTIMIZER = commitment("optimizer/1")
CODE_TREE = commitment("code/1")
TREE, SHA256 = "bitwitnessTree1", "sha256"

CHAIN = (
    Field("run", HASH, note="leaf hash of the run's genesis entry"),
    Field("seq", POSITIVE, note="position in the run; the genesis is 0"),
    Field("prev", HASH, note="leaf hash of the run's entry seq-1"),
    Field("history", commitment("history/1"), note="over the run's entries 0 … seq-1"),
)
GENESIS_CHAIN = (
    Field("seq", COUNT, note="0"),
    Field("history", commitment("history/1"), note="size 0"),
)
CONTROL = record(
    Field("step", COUNT, note="updates made"),
    Field("tokens", COUNT, note="valid tokens trained on so far"),
    Field("cursor", COUNT, note="the next window of the data sequence"),
)
OBSERVATION = record(
    Field("time", TIME),
    Field("host", HOST, optional=True, note="a random id, never a host's name"),
    Field("threads", POSITIVE, optional=True),
    Field("ranks", POSITIVE, optional=True, note="processes that shared each step, if several"),
    Field("seconds_us", COUNT, optional=True, note="duration in microseconds"),
    Field("versions", mapping(LABEL), optional=True, note="name → version of libraries, compiler, target"),
)
OBSERVED = Field("observed", OBSERVATION, note="never compared on replay")
ARITHMETIC_USE = record(
    Field("version", ARITHMETIC),
    Field("operators", mapping(POSITIVE, low=1, high=256), note="name → version of those that the run uses"),
    Field("functions", mapping(POSITIVE, low=1, high=256), note="name → version of those that they and the data use"),
    Field("digest", HASH, note="of the rows of the operator table that these are (docs/arithmetic.md)"),
)
DATASET_USE = record(
    Field("name", NAME),
    Field("role", enum("train", "held-out")),
    Field("entry", HASH, note="leaf hash of the dataset entry"),
    Field("dataset", commitment("dataset/1")),
)
STEP = Field("step", COUNT, note="state after this many updates")
STATE = Field("state", HASH, note="state digest")
STEP_OF_RUN = (Field("run", HASH, note="leaf hash of the run's genesis entry"), STEP, STATE)
COSIGNATURE = record(
    Field("public", HASH, note="the witness's raw public key"),
    Field("size", POSITIVE, note="of the checkpoint that it cosigned"),
    Field("root", HASH, note="of that checkpoint"),
    Field("time", COUNT, note="seconds since 1970, by the witness"),
    Field("signature", SIGNATURE),
    Field("proof", items(HASH, high=63), note="that the audit-intent is in that checkpoint's tree"),
)
ROUND = record(
    Field("randomness", HASH, note="SHA-256 of the signature's bytes"),
    Field("signature", BLS_SIGNATURE),
)
DERIVATION = record(
    Field("rule", enum("cast/1", "merge/1"), note="docs/formats/derivations.md"),
    Field(
        "sources",
        items(
            record(
                Field("release", HASH, note="leaf hash of the release entry"),
                Field("weights", WEIGHTS),
                Field("factor", F32, optional=True, note="of a merge"),
            ),
            low=1,
            high=64,
        ),
        note="step and state of the release are those of the first",
    ),
)
OUTCOMES = ("match", "mismatch", "unavailable", "redacted", "inconclusive")
