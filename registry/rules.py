"""The consumer's rules (`[rules]` of trust.toml) and what the evidence is worth, as checks.

Each rule passes, fails, or cannot be checked; a rule that is set and cannot be checked is never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.jcs import f64_from_hex
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.note import Note
from bitwitness.ledger.trust import witness_line

from .audits import audit_checks
from .checks import Check
from .evidence import Entry, log_verifier
from .lineage import Lineage
from .policy import Policy

_CLOCK_SKEW = timedelta(minutes=10)
_LAST_SECOND = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


def policy_line(policy: Policy, path: Path, folder: Path) -> Check:
    """Which policy file decided, by which keys. One that lies around the model may have come with it: null."""
    where, model = path.resolve(), folder.resolve()
    try:
        log, root = log_verifier(policy).key.keyid, PublicKey.from_hex(policy.root.key).keyid
    except BitwitnessError as error:
        return Check("policy", None, f"{where}: {error}", "ASSURANCE", required=False)
    said = f"{where}: log {policy.log.origin} with key {log[:16]}…, root key {root[:16]}…"
    if not model.is_relative_to(where.parent):
        return Check("policy", True, said, "ASSURANCE", required=False)
    said += (
        "; it lies above the model: if you received both together, its keys are the sender's; name yours by --policy"
    )
    return Check("policy", None, said, "ASSURANCE", required=False)


def policy_checks(
    lineage: Lineage, entries: Sequence[Entry], policy: Policy, signed: Note, status: Entry | None, now: datetime
) -> list[Check]:
    """One POLICY check per rule that is set, and always one about audits.

    ``signed`` is the opened checkpoint, ``status`` the `status` entry that lists what the bundle holds.
    """
    rules, quorum = policy.rules, policy.quorum
    checks = audit_checks(lineage, policy)
    if quorum is not None:
        checks.append(Check("quorum", *witness_line(quorum, signed), category="POLICY"))
    release, genesis = lineage.release, lineage.genesis
    if rules.max_checkpoint_age is not None:
        seen = None if quorum is None else quorum.witnessed_at(signed)
        newest = _newest(entries) if seen is None else _instant(seen)
        checks.append(_age("checkpoint-age", newest, rules.max_checkpoint_age, now))
    complete, said = _completeness(lineage, status)
    if rules.require_status:
        checks.append(Check("require-status", complete, said, "POLICY"))
    if rules.max_status_age is not None:
        if status is None:
            checks.append(Check("status-age", False, "no status entry of the log is in the bundle", "POLICY"))
        else:
            checks.append(_age("status-age", _time(status), rules.max_status_age, now))
    if rules.trainers is not None:
        signers = {entry.envelope.keyid for entry in (genesis, *lineage.chain)}
        checks.append(_allowed("trainers", "trainer key", signers, rules.trainers))
    if rules.publishers is not None:
        checks.append(_allowed("publishers", "publisher key", {release.envelope.keyid}, rules.publishers))
    if rules.datasets is not None:
        roots = {item["dataset"]["root"] for item in genesis.predicate["datasets"] if item["role"] == "train"}
        checks.append(_allowed("datasets", "training dataset root", roots, rules.datasets))
    if rules.code is not None:
        checks.append(_allowed("code", "code root", {genesis.predicate["code"]["root"]}, rules.code))
    if rules.models is not None:
        checks.append(_allowed("models", "model name", {release.predicate["model"]}, rules.models))
    if rules.min_version is not None:
        version = release.predicate["version"]
        detail = f"the release is version {version}, the policy asks for {rules.min_version} or later"
        checks.append(Check("min-version", version >= rules.min_version, detail, "POLICY"))
    if rules.licenses is not None:
        licence = release.predicate.get("license")
        if licence is None:
            checks.append(Check("licenses", False, "the release names no licence", "POLICY"))
        else:
            checks.append(_allowed("licenses", "licence", {licence}, rules.licenses))
    return checks


def assurance_checks(
    lineage: Lineage, entries: Sequence[Entry], policy: Policy, signed: Note, status: Entry | None
) -> list[Check]:
    """What the proofs do not say: who else saw this log, whether something was left out, or revoked since."""
    witnessed, said = witness_line(policy.quorum, signed)
    if not witnessed and policy.quorum is not None:
        said = "self-asserted: no quorum cosigned the checkpoint, so only the log itself says that others see the same"
    checks = [Check("witnesses", witnessed or None, said, "ASSURANCE", required=False)]
    complete, said = _completeness(lineage, status)
    checks.append(Check("completeness", complete or None, said, "ASSURANCE", required=False))
    checks.append(_revocations(lineage, entries))
    if lineage.genesis.predicate["init"]["kind"] != "seeded":
        kind = lineage.genesis.predicate["init"]["kind"]
        checks.append(
            Check(
                "origin",
                None,
                f"the run began from a {kind}, whose own origin is not in the bundle",
                "ASSURANCE",
                False,
            )
        )
    return checks


def _completeness(lineage: Lineage, status: Entry | None) -> tuple[bool, str]:
    """Whether the log itself says that the bundle holds every audit of the run up to after the release."""
    if status is None:
        return False, (
            "audits are known only as far as the bundle tells them: it holds no status entry of the log to check "
            "that none was left out"
        )
    if status.index < lineage.release.index:
        return False, f"audits are known only up to {status}, which the log signed before the release"
    return True, f"as of {status.predicate['time']} ({status}), the bundle holds every audit and announced audit"


def eval_line(lineage: Lineage) -> str:
    """What the run last measured on each dataset at or before the released step, in one line."""
    measured = sorted(
        (entry for entry in lineage.evals if entry.predicate["step"] <= lineage.step),
        key=lambda entry: (entry.predicate["step"], entry.index),
    )
    last = {entry.predicate["dataset"]["entry"]: entry for entry in measured}
    parts = [
        f"step {entry.predicate['step']} on {entry.predicate['dataset']['name']}: "
        f"{f64_from_hex(entry.predicate['computed']['mean']):.4f} nats per token"
        for entry in last.values()
    ]
    return "; ".join(parts) or "none recorded for the released step"


def _newest(entries: Sequence[Entry]) -> datetime:
    """A checkpoint has no time of its own; it is at least as new as the newest signed time in an entry below it."""
    return max(_time(entry) for entry in entries if entry.kind in ("status", "release"))


def _instant(seconds: int) -> datetime:
    """The time of a cosignature; one beyond the calendar is as far in the future as can be."""
    return datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC)


def _age(name: str, newest: datetime, days: int, now: datetime) -> Check:
    if newest > now + _CLOCK_SKEW:
        detail = f"the newest time is {newest:%Y-%m-%d}, in the future: check the clock"
        return Check(name, None, detail, "POLICY")
    what = "status" if name == "status-age" else "checkpoint"
    if now - newest <= timedelta(days=days):
        detail = f"the {what} is as new as {newest:%Y-%m-%d}, {days} days are allowed"
        return Check(name, True, detail, "POLICY")
    detail = f"the {what} is no newer than {newest:%Y-%m-%d}, as far as the bundle tells; {days} days are allowed"
    return Check(name, False, detail, "POLICY")


def _revocations(lineage: Lineage, entries: Sequence[Entry]) -> Check:
    """What the newest status entry takes back. The root's own revocations were applied to the signatures."""
    name = "revocations"
    statuses = [entry for entry in entries if entry.kind == "status"]
    if not statuses:
        detail = "revocations are known only as far as the bundle tells them: it holds no status entry"
        return Check(name, None, detail, "ASSURANCE", required=False)
    status = max(statuses, key=lambda entry: entry.predicate["sequence"])
    if lineage.release.leaf in status.predicate["revoked_releases"]:
        return Check(name, False, f"the release is revoked ({status})", "ASSURANCE")
    for entry in entries:
        for revoked in status.predicate["revoked_keys"]:
            if entry.envelope.keyid == revoked["keyid"] and entry.index >= revoked["from"]:
                return Check(name, False, f"the key of {entry} is revoked from entry {revoked['from']} on", "ASSURANCE")
    return Check(name, True, f"nothing used here was revoked as of {status.predicate['time']} ({status})", "ASSURANCE")


def _time(entry: Entry) -> datetime:
    return datetime.strptime(entry.predicate["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _allowed(name: str, what: str, found: Iterable[str], allowed: Iterable[str]) -> Check:
    strange = sorted(set(found) - set(allowed))
    if strange:
        return Check(name, False, f"the policy does not allow {what} {strange[0]}", "POLICY")
    return Check(name, True, f"every {what} is allowed", "POLICY")
