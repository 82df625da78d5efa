"""The predicates and subjects of a run's entries, built from what a step computed (docs/formats/entries.md).

Everything under `computed` must come out the same on replay; everything under `observed` may differ.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from bitwitness.kernels.buffers import F32
from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import byte_view
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.jcs import f64_hex

from .config import RunConfig
from .data import Dataset, entry_leaf
from .models.arithmetic import arithmetic
from .models.own_model import OwnModel
from .state import StateCommitment
from .step import StepRecord

RECORD = "1"

Json = dict[str, Any]


def new_host_id() -> str:
    """A random name for this machine within one invocation; no entry names a real host."""
    return secrets.token_hex(8)


def state_fields(commitment: StateCommitment) -> Json:
    """control, weights, optimizer (absent where thinned) and their digest `state`."""
    fields: Json = {
        "control": commitment.control.to_json(),
        "state": commitment.digest,
        "weights": commitment.weights.to_json(),
    }
    if commitment.optimizer is not None:
        fields["optimizer"] = commitment.optimizer.to_json()
    return fields


def computed_step(record: StepRecord, commitment: StateCommitment) -> Json:
    """What step `record.step` computed: the part of a `step` entry that a replay must meet bit for bit."""
    return {**record.to_json(), **state_fields(commitment), "step": record.step}


def rope_digest(tables: Mapping[str, F32]) -> str:
    """SHA-256 of the rotary tables' bytes, each cos then sin, float32 row-major [window, head width / 2]."""
    digest = hashlib.sha256()
    for table in tables.values():
        digest.update(byte_view(table))
    return digest.hexdigest()


def genesis(
    config: RunConfig,
    datasets: list[Json],
    origin: str,
    state: StateCommitment,
    rope: str,
    init: Json,
    own: OwnModel | None = None,
) -> Json:
    """The predicate of `run`, without signer and chain: all that the steps of the run depend on."""
    return {
        "arithmetic": arithmetic(config, None if own is None else own.programs),
        "code": code_commitment().to_json(),
        "config": config.resolved(),
        "constants": {"rope": rope},
        "datasets": datasets,
        "init": init,
        "name": config.run.name,
        "origin": origin,
        "record": RECORD,
        "seed": f"{config.run.seed:016x}",
        "steps": config.run.steps,
        **({} if own is None else {"model": own.to_json()}),
        **state_fields(state),
    }


def dataset_use(dataset: Dataset, role: str) -> Json:
    """How a genesis or an eval names a dataset: label, role, its ledger entry and commitment."""
    return {
        "dataset": dataset.commitment.to_json(),
        "entry": entry_leaf(dataset),
        "name": dataset.name,
        "role": role,
    }


def observed(host: str, threads: int, ranks: int = 1) -> Json:
    """Where and with what an entry was made; never part of what a replay compares."""
    return {
        "host": host,
        **({} if ranks == 1 else {"ranks": ranks}),
        "threads": threads,
        "time": rfc3339.now(),
        "versions": {
            "bitwitness": metadata.version("bitwitness"),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
        },
    }


def evaluation(total: float, tokens: int, windows: int) -> Json:
    """The computed part of an `eval`: sum of negative log-likelihoods in nats, and the mean per token."""
    return {
        "mean": f64_hex(total / float(tokens)),
        "nll": f64_hex(total),
        "tokens": tokens,
        "windows": windows,
    }
