"""The verdict as an in-toto statement: a SLSA Verification Summary Attestation (VSA) v1.

https://slsa.dev/spec/v1.0/verification_summary. It says that this gate, by this policy, verified these very files.
It is signed if the gate is given a key that its consumers trust, and passes for no entry of a log: those name a signer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from bitwitness.ledger.entry.envelope import PAYLOAD_TYPE, assemble, pae
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.keys import Signer

from ..checks import Check, exit_code

PREDICATE_TYPE = "https://slsa.dev/verification_summary/v1"
VERIFIER = "https://bitwitness.dev/gate/v1"


def summary(
    checks: Sequence[Check],
    digests: Mapping[str, str],
    *,
    resource: str,
    policy: tuple[str, bytes],
    bundle: bytes | None,
    now: datetime,
) -> dict[str, Any]:
    """The statement: subjects are the files that were read, by SHA-256; ``policy`` is its path and bytes.

    Anything but exit code 0 is FAILED, a check that could not be made as well.
    """
    passed = exit_code(checks) == 0
    witnessed = any(check.name == "witnesses" and check.ok for check in checks)
    levels = ["SLSA_BUILD_LEVEL_UNEVALUATED", "BITWITNESS_VERIFIED"]
    levels.append("BITWITNESS_WITNESSED" if witnessed else "BITWITNESS_SELF_ASSERTED")
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())]
    if not subject and bundle is not None:
        subject = [{"name": "provenance.json", "digest": {"sha256": hashlib.sha256(bundle).hexdigest()}}]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "verifier": {"id": VERIFIER, "version": {"bitwitness": version("bitwitness")}},
            "timeVerified": rfc3339.text(now),
            "resourceUri": resource,
            "policy": {"uri": "file:" + quote(policy[0]), "digest": {"sha256": hashlib.sha256(policy[1]).hexdigest()}},
            "inputAttestations": []
            if bundle is None
            else [{"uri": "provenance.json", "digest": {"sha256": hashlib.sha256(bundle).hexdigest()}}],
            "verificationResult": "PASSED" if passed else "FAILED",
            "verifiedLevels": levels if passed else ["FAILED"],
            "slsaVersion": "1.0",
        },
    }


def sign(statement: bytes, signer: Signer) -> bytes:
    """A DSSE envelope of the statement's bytes with one signature, by its keyid."""
    return assemble(statement, signer.keyid, signer.sign(pae(PAYLOAD_TYPE, statement)))
