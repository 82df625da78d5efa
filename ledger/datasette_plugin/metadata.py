"""What Datasette's own pages say of the tables: descriptions of tables and columns, labels, order, what is hidden."""

from __future__ import annotations

from typing import Any

_ENTRY = "Index of the ledger entry that this row comes from"
_HASH = "Leaf hash of that entry (RFC 6962), the record's identity"
_BITS = "exact bits of the value beside it, in hex, as signed"
_RUN = "Entry of the run's genesis"
_TIME = "UTC, as the signer stated it"

# table -> (description, label column, {column: description})
_TABLES: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "entries": (
        "The signed entries, append-only. The envelope is made from payload and signature, byte for byte.",
        None,
        {
            "idx": "Position in the log, from 0",
            "payload": "The in-toto statement, canonical JSON (RFC 8785)",
            "signature": "Ed25519, 64 bytes, over the DSSE encoding of the payload",
            "leaf_hash": "SHA-256(0x00 ‖ entry), the leaf of the Merkle tree",
            "nodes": "Inner nodes of the tree that the entry completes, from level 1 up",
        },
    ),
    "checkpoints": (
        "Signed checkpoints (C2SP tlog-checkpoint): size and root of the log, by the log key.",
        None,
        {"size": "Number of entries that it covers", "note": "The signed note"},
    ),
    "ledger": (
        "What this file is.",
        None,
        {"origin": "The log's name in checkpoints", "format": "Version of the file"},
    ),
    "log": (
        "Every entry with its kind, signer and place in its run.",
        "kind",
        {
            "entry": _ENTRY,
            "signer": "Entry that enrolled the signing key",
            "run": _RUN,
            "seq": "Position in the run's chain; the genesis is 0",
        },
    ),
    "keys": (
        "Enrolled keys, one role each.",
        "role",
        {
            "entry": _ENTRY,
            "keyid": "SHA-256 of the raw public key",
            "public": "Raw Ed25519 public key",
            "replaces": "Entry of the key that this one replaced",
            "time": _TIME,
        },
    ),
    "key_revocations": (
        "From this index on, entries that the key signs no longer count.",
        None,
        {"entry": _ENTRY, "key": "Entry that enrolled the key", "from_index": "First ledger index that does not count"},
    ),
    "datasets": (
        "Corpora: commitments to documents and tokens.",
        "name",
        {
            "entry": _ENTRY,
            "hash": _HASH,
            "root": "Root of the dataset/1 tree",
            "size": "Leaves of that tree, one for each document",
            "visibility": "public: salts are zero, anyone with the text can check; private: salted",
            "time": _TIME,
        },
    ),
    "runs": (
        "Training runs: everything that fixes their bits. A run's identity is its hash; the name is a label.",
        "name",
        {
            "entry": _ENTRY,
            "hash": _HASH,
            "trainer": "Entry of the key that signs the run",
            "seed": "64 bits, hex",
            "init": "seeded, parent (another run's state) or import (weights from files)",
            "parent": "The run that it continues",
            "parent_step": "The step of that run",
            "arithmetic": "Digest of the operators and functions that the run uses",
            "code": "Root of the code/1 tree over the source files",
            "weights": "Root of the initial weights",
            "state": "Digest of the initial state",
            "config": "Resolved configuration; floats are the hex of their bits",
            "time": _TIME,
        },
    ),
    "run_datasets": ("Which datasets a run reads.", None, {"role": "train or held-out"}),
    "run_events": (
        "Resumes, halts and ends.",
        "kind",
        {"entry": _ENTRY, "run": _RUN, "step": "After this many updates", "reason": "of a halt"},
    ),
    "steps": (
        "One row for each optimizer step.",
        None,
        {
            "run": _RUN,
            "entry": _ENTRY,
            "loss": "Mean over the step's valid tokens, nats",
            "loss_bits": f"binary64: {_BITS}",
            "norm": "Gradient norm before clipping",
            "norm_bits": f"binary64: {_BITS}",
            "learning_rate_bits": f"binary32: {_BITS}",
            "tokens": "Valid tokens of this step",
            "seconds": "Observed duration; never compared on replay",
            "weights": "Root of the weights after the step",
            "time": _TIME,
        },
    ),
    "states": (
        "Stored states, from which a replay can start.",
        "step",
        {"entry": _ENTRY, "run": _RUN, "state": "Digest of control, optimizer and weights", "bytes": "Of the tensors"},
    ),
    "evals": (
        "Losses on held-out data.",
        "mean",
        {
            "entry": _ENTRY,
            "run": _RUN,
            "step": "After this many updates",
            "mean": "Nats per token",
            "mean_bits": f"binary64: {_BITS}",
            "nll": "Sum over tokens, nats",
            "nll_bits": f"binary64: {_BITS}",
        },
    ),
    "audit_intents": (
        "Audits announced before their sample could be known. One without a result counts as failed.",
        None,
        {
            "entry": _ENTRY,
            "hash": _HASH,
            "auditor": "Entry of the auditor's key",
            "samples": "Units to draw",
            "beacon": "Where the randomness of the sample comes from",
            "size": "Size of the ledger that the auditor saw",
        },
    ),
    "audits": (
        "Results of audits: steps replayed and compared bit for bit.",
        "result",
        {
            "entry": _ENTRY,
            "hash": _HASH,
            "intent": "The announcement that it answers",
            "basis": "beacon, or self-chosen where the auditor could have picked the sample",
            "steps": "Steps compared",
            "transcript": "Root over keyed digests of intermediate tensors",
        },
    ),
    "audit_units": (
        "What an audit found, interval by interval. Only match covers.",
        None,
        {"first": "First step; 0 is the initial state", "last": "Last step", "cause": "Why this interval was replayed"},
    ),
    "rechecks": (
        "Audits that another auditor computed again: confirmed, refuted, or inconclusive.",
        "result",
        {
            "entry": _ENTRY,
            "audit": "The audit that was computed again",
            "auditor": "Entry of the key of who did",
            "steps": "Steps computed again",
            "transcript": "Root that came out, under the audit's own key",
        },
    ),
    "releases": (
        "Versions of models: the weights of one step of a run.",
        "model",
        {"entry": _ENTRY, "hash": _HASH, "publisher": "Entry of the publisher's key", "weights": "Root of the weights"},
    ),
    "release_files": ("Files of a release.", None, {}),
    "endorsements": ("Words of auditors and publishers on releases.", None, {"entry": _ENTRY}),
    "statuses": ("Statements of the log: all that is revoked, and what was said of each run.", None, {"entry": _ENTRY}),
    "payloads": ("Digests that keep one statement from being signed twice.", None, {}),
    "leaf_places": ("Entries by the first eight bytes of their leaf hash, for each full block of 4,096.", None, {}),
    "derivation": ("Version of the derived tables.", None, {}),
}

_HIDDEN = frozenset({"payloads", "leaf_places", "derivation"})
_NEWEST_FIRST = frozenset(
    {
        "log",
        "datasets",
        "runs",
        "run_events",
        "states",
        "evals",
        "audit_intents",
        "audits",
        "rechecks",
        "releases",
        "statuses",
    }
)


def metadata(database: str) -> dict[str, Any]:
    """Datasette's metadata for a ledger that it serves under the name `database`."""
    tables = {}
    for name, (description, label, columns) in _TABLES.items():
        table: dict[str, Any] = {"description": description, "columns": columns}
        if label is not None:
            table["label_column"] = label
        if name in _HIDDEN:
            table["hidden"] = True
        if name in _NEWEST_FIRST:
            table["sort_desc"] = "entry"
        tables[name] = table
    description = (
        "The tables of a bitwitness ledger. Entries are what is signed; everything else follows from them and can be"
        " made again with: ledger rebuild"
    )
    return {"title": "bitwitness ledger", "databases": {database: {"description": description, "tables": tables}}}
