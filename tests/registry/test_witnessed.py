"""The gate and witnesses: a quorum that is asked for is met or the model is refused, and the assurance says which."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bitwitness.ledger import keys, note
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.witnessing.witness import Witness
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.policy import PolicyError, load_policy, parse_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from .conftest import Registered

SIGNERS = [keys.Signer.from_seed("witness", bytes([60 + number]) * 32) for number in range(3)]
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LINES = "".join(
    f"witness w{n} {note.Verifier(f'w{n}.example', signer.public, note.COSIGNATURE).vkey}\n"
    for n, signer in enumerate(SIGNERS)
)


def cosigned(registered: Registered, tmp_path: Path, number: int, *, times: tuple[int, ...] = (0, 0, 0)) -> Path:
    """Register version 2 under a checkpoint that so many witnesses cosign; the folder."""
    log = note.Verifier.parse(load_policy(registered.policy).log.key)

    def cosign(ledger: Ledger, signed: str) -> str:
        lines = []
        for index in range(number):
            witness = Witness(
                f"w{index}.example",
                SIGNERS[index],
                [log],
                tmp_path / f"w{index}.db",
                clock=lambda index=index: NOW.timestamp() + times[index],  # type: ignore[misc]
            )
            lines.append(witness.add_checkpoint(f"old 0\n\n{signed}").body)
        return signed + "".join(lines)

    return register(registered.project, "demo-lm", registered.run, license="Apache-2.0", cosign=cosign).path


def verdict(registered: Registered, folder: Path, policy: str | None, rules: str = "") -> dict[str, Check]:
    text = registered.policy.read_text()
    if policy is not None:
        text += f'\n[witnesses]\npolicy = """\n{policy}"""\n'
    if rules:
        text = text.replace("[rules]", f"[rules]\n{rules}")
    checks = examine(folder, parse_policy(text.encode(), registered.policy), now=NOW + timedelta(days=10)).checks
    return {check.name: check for check in checks}


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_quorum(registered: Registered, tmp_path: Path, number: int) -> None:
    folder = cosigned(registered, tmp_path, number)
    checks = verdict(registered, folder, LINES + "group g 2 w0 w1 w2\nquorum g\n")
    met = number >= 2
    assert checks["quorum"].ok is met and checks["quorum"].category == "POLICY"
    assert exit_code(checks.values()) == (0 if met else 1)
    line = checks["witnesses"]
    assert line.category == "ASSURANCE" and line.ok is (True if met else None)
    assert line.detail.startswith("witnessed by w0.example, w1.example" if met else "self-asserted")
    # Who asks for no witness is told what that is worth, whoever cosigned.
    for policy in (None, "quorum none\n"):
        checks = verdict(registered, folder, policy)
        assert "quorum" not in checks and checks["witnesses"].detail.startswith("self-asserted")
        assert exit_code(checks.values()) == 0


def test_a_wrong_cosignature_of_a_known_witness_refuses(registered: Registered, tmp_path: Path) -> None:
    folder = cosigned(registered, tmp_path, 2)
    other = note.Verifier("w9.example", SIGNERS[2].public, note.COSIGNATURE).vkey
    assert exit_code(verdict(registered, folder, f"witness x {other}\nquorum x\n").values()) == 1
    path = folder / "provenance.json"
    data = path.read_text()
    at = data.index("w0.example ") + 40
    path.write_text(data[:at] + ("A" if data[at] != "A" else "B") + data[at + 1 :])
    checks = verdict(registered, folder, LINES + "quorum w0\n")
    assert checks["checkpoint"].ok is False and "w0.example" in checks["checkpoint"].detail


def test_the_age_is_what_the_quorum_says(registered: Registered, tmp_path: Path) -> None:
    """Of two that are needed the older time counts, and it stands above what the log's own entries say."""
    folder = cosigned(registered, tmp_path, 3, times=(0, -86400 * 30, -86400 * 60))
    two, any_ = LINES + "group g 2 w0 w1 w2\nquorum g\n", LINES + "group g any w0 w1 w2\nquorum g\n"
    assert verdict(registered, folder, two, "max_checkpoint_age = 30")["checkpoint-age"].ok is False
    assert verdict(registered, folder, two, "max_checkpoint_age = 40")["checkpoint-age"].ok is True
    assert verdict(registered, folder, any_, "max_checkpoint_age = 10")["checkpoint-age"].ok is True


def test_a_policy_that_is_none(registered: Registered) -> None:
    text = registered.policy.read_text()
    for wrong in ('policy = "quorum x"', "policy = 1", 'quorum = "w0"', ""):
        with pytest.raises(PolicyError, match="witnesses"):
            parse_policy(f"{text}\n[witnesses]\n{wrong}\n".encode(), registered.policy)
