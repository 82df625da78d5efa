"""The keys of a policy that the ledger's verifier knows are those that the registry knows."""

from __future__ import annotations

from bitwitness.ledger.trust import POLICY_KEYS
from bitwitness.registry.policy import (
    LogTrust,
    NewestStatus,
    OmsTrust,
    Policy,
    RootTrust,
    Rules,
    TimestampTrust,
    WitnessTrust,
)


def test_both_readers_know_the_same_keys() -> None:
    models = {
        "log": LogTrust,
        "oms": OmsTrust,
        "root": RootTrust,
        "rules": Rules,
        "status": NewestStatus,
        "timestamps": TimestampTrust,
        "witnesses": WitnessTrust,
    }
    assert set(POLICY_KEYS) == set(Policy.model_fields) == set(models)
    for section, model in models.items():
        assert set(POLICY_KEYS[section]) == set(model.model_fields), section
