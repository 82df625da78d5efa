"""The consumer's rules (`[rules]` of trust.toml) and what the evidence is worth, as checks.

Each rule passes, fails, or cannot be checked; a rule that is set and cannot be checked is never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.jcs import f64_from_hex
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.note import Note
from bitwitness.ledger.trust import witness_line

from ..bundles.audits import audit_checks
from ..bundles.completeness import Told
from ..bundles.eval_audits import eval_audit_check, eval_of, of_measured
from ..bundles.evidence import Entry, log_verifier
from ..bundles.lineage import Lineage, RunLine
from ..checks import CLOCK_SKEW, Check, together
from ..policy import Policy

_LAST_SECOND = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


def policy_line(policy: Policy, path: Path, folder: Path, *, found: bool) -> Check:
    """Which policy file decided, by which keys. One that was ``found`` around the model may have come with it: null."""
    where, model = path.resolve(), folder.resolve()
    try:
        log, root = log_verifier(policy).key.keyid, PublicKey.from_hex(policy.root.key).keyid
    except BitwitnessError as error:
        return Check("policy", None, f"{where}: {error}", "ASSURANCE", required=False)
    said = f"{where}: log {policy.log.origin} with key {log[:16]}…, root key with keyid {root[:16]}…"
    if not found or not model.is_relative_to(where.parent):
        return Check("policy", True, said, "ASSURANCE", required=False)
    said += (
        "; it lies above the model: if you received both together, its keys are the sender's; name yours by --policy"
    )
    return Check("policy", None, said, "ASSURANCE", required=False)


def policy_checks(
    lineage: Lineage, entries: Sequence[Entry], policy: Policy, signed: Note, told: Told | None, now: datetime
) -> list[Check]:
    """One POLICY check per rule that is set, and always one about audits.

    ``signed`` is the opened checkpoint, ``told`` the `status` that lists what the bundle holds.
    """
    rules, quorum = policy.rules, policy.quorum
    checks = audit_checks(lineage, policy, told)
    status = None if told is None else told.entry
    if quorum is not None:
        checks.append(Check("quorum", *witness_line(quorum, signed), category="POLICY"))
    release, releases = lineage.release, lineage.releases
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
        checks.append(_of_runs(lineage, "trainers", "trainer key", _trainers, rules.trainers))
    if rules.publishers is not None:
        signers = {entry.envelope.keyid for entry in releases}
        checks.append(_allowed("publishers", "publisher key", signers, rules.publishers))
    if rules.datasets is not None:
        checks.append(_of_runs(lineage, "datasets", "training dataset root", _training_sets, rules.datasets))
    if rules.code is not None:
        checks.append(_of_runs(lineage, "code", "code root", _code, rules.code))
    if rules.models is not None:
        checks.append(_allowed("models", "model name", {release.predicate["model"]}, rules.models))
    if rules.min_version is not None:
        version = release.predicate["version"]
        detail = f"the release is version {version}, the policy asks for {rules.min_version} or later"
        checks.append(Check("min-version", version >= rules.min_version, detail, "POLICY"))
    if rules.precisions is not None:
        checks.append(_of_runs(lineage, "precisions", "precision", _precision, rules.precisions))
    if rules.max_loss is not None:
        limits = rules.max_loss
        checks.append(of_measured(lineage, "max-loss", lambda line: _losses(line, limits)))
    if rules.require_eval_audit:
        checks.append(of_measured(lineage, "eval-audit", lambda line: eval_audit_check(line, policy)))
    if rules.forbidden_keys:
        checks.append(_forbidden_keys(entries, rules.forbidden_keys))
    if rules.forbidden_versions:
        checks.append(_forbidden_versions(lineage, rules.forbidden_versions, complete=complete))
    if rules.refuse_deprecated:
        checks.append(_deprecation(lineage, entries) or _not_deprecated(complete))
    if rules.licenses is not None:
        checks.append(_licenses(lineage, rules.licenses, complete=complete))
    return checks


def check_names(policy: Policy) -> list[str]:
    """The names of the POLICY checks that this policy asks for, in their order, made or not."""
    given = policy.rules
    asked = {
        "audit": True,
        "audited-steps": given.min_audited_steps,
        "audited-fraction": given.min_audited_fraction,
        "auditors": given.min_auditors,
        "quorum": policy.quorum,
        "timestamp": policy.timestamps,
        "checkpoint-age": given.max_checkpoint_age,
        "require-status": given.require_status or None,
        "status-age": given.max_status_age,
        "trainers": given.trainers,
        "publishers": given.publishers,
        "datasets": given.datasets,
        "code": given.code,
        "models": given.models,
        "min-version": given.min_version,
        "precisions": given.precisions,
        "max-loss": given.max_loss,
        "eval-audit": given.require_eval_audit or None,
        "forbidden-keys": given.forbidden_keys or None,
        "forbidden-versions": given.forbidden_versions or None,
        "deprecation": given.refuse_deprecated or None,
        "licenses": given.licenses,
    }
    return [name for name, value in asked.items() if value is not None]


def age_of_status(status: Entry, days: int, now: datetime) -> Check:
    """Whether a status that the gate was given is as new as the policy asks."""
    return _age("newest-status-age", _time(status), days, now)


def assurance_checks(
    lineage: Lineage,
    entries: Sequence[Entry],
    policy: Policy,
    signed: Note,
    told: Told | None,
    revoked: Sequence[Revoked] = (),
) -> list[Check]:
    """What the proofs do not say: who else saw this log, whether something was left out, or revoked since.

    ``revoked`` is what the gate knows from elsewhere.
    """
    witnessed, said = witness_line(policy.quorum, signed)
    if not witnessed and policy.quorum is not None:
        said = "self-asserted: no quorum cosigned the checkpoint, so only the log itself says that others see the same"
    checks = [Check("witnesses", witnessed or None, said, "ASSURANCE", required=False)]
    complete, said = _completeness(lineage, None if told is None else told.entry)
    checks.append(Check("completeness", complete or None, said, "ASSURANCE", required=False))
    checks.append(_revocations(lineage, entries, revoked))
    deprecated = _deprecation(lineage, entries)
    if deprecated is not None and not policy.rules.refuse_deprecated:
        checks.append(Check("deprecation", None, deprecated.detail, "ASSURANCE", required=False))
    several = len(lineage.every) > 1
    begun = [
        (f"{line}: " if several else "") + "the run began from an import, whose own origin is not in the bundle"
        for line in lineage.every
        if line.genesis.predicate["init"]["kind"] == "import"
    ]
    return [*checks, Check("origin", None, "; ".join(begun), "ASSURANCE", required=False)] if begun else checks


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


def eval_line(line: RunLine) -> str:
    """What a run last measured on each dataset at or before the released step, in one line."""
    measured = sorted(
        (entry for entry in line.evals if entry.predicate["step"] <= line.step),
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
    if newest > now + CLOCK_SKEW:
        detail = f"the newest time is {newest:%Y-%m-%d}, in the future: check the clock"
        return Check(name, None, detail, "POLICY")
    what = "checkpoint" if name == "checkpoint-age" else "status"
    if now - newest <= timedelta(days=days):
        detail = f"the {what} is as new as {newest:%Y-%m-%d}, {days} days are allowed"
        return Check(name, True, detail, "POLICY")
    detail = f"the {what} is no newer than {newest:%Y-%m-%d}, as far as the bundle tells; {days} days are allowed"
    return Check(name, False, detail, "POLICY")


def _losses(line: RunLine, limits: Mapping[str, float]) -> Check:
    """What a run measured of the released step itself, on each dataset that the policy names by its root."""
    said = []
    for root, limit in sorted(limits.items()):
        measured = eval_of(line, root)
        if measured is None:
            return Check("max-loss", False, f"the released step was not measured on dataset {root[:16]}…", "POLICY")
        mean = f64_from_hex(measured.predicate["computed"]["mean"])
        if not mean <= limit:  # a NaN is no result
            detail = f"{mean:.4f} nats per token on dataset {root[:16]}…, {limit:g} are allowed ({measured})"
            return Check("max-loss", False, detail, "POLICY")
        said.append(f"{mean:.4f} of at most {limit:g} on {root[:16]}…")
    return Check("max-loss", True, "; ".join(said) or "the policy names no dataset", "POLICY")


def _forbidden_keys(entries: Sequence[Entry], forbidden: Sequence[str]) -> Check:
    for entry in entries:
        if entry.envelope.keyid in forbidden:
            detail = f"{entry} is signed by {entry.envelope.keyid[:16]}…, which the policy forbids"
            return Check("forbidden-keys", False, detail, "POLICY")
    return Check("forbidden-keys", True, "nothing here is signed by a key that the policy forbids", "POLICY")


def _words(release: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """What publishers said of a release, in the order of the log."""
    return [entry for entry in entries if entry.kind == "endorse" and entry.predicate["release"] == release.leaf]


def _deprecation(lineage: Lineage, entries: Sequence[Entry]) -> Check | None:
    """A failed check if the last word on the release, or on one that it comes of, says that it is deprecated."""
    for release in _all_that_it_comes_of(lineage):
        spoken = [e for e in _words(release, entries) if e.predicate["statement"] in ("deprecated", "restored")]
        if not spoken or spoken[-1].predicate["statement"] == "restored":
            continue
        said = spoken[-1].predicate
        what = f"its publisher deprecated {_called(release, lineage)} at {said['time']}"
        return Check("deprecation", False, f"{what}{_because(said)}", "POLICY")
    return None


def _called(release: Entry, lineage: Lineage) -> str:
    if release is lineage.release:
        return "the release"
    if release in lineage.before:
        return f"{_name(release)}, of step {release.predicate['step']} of a run that it goes on from,"
    return f"{_name(release)}, which it derives from,"


def _all_that_it_comes_of(lineage: Lineage) -> list[Entry]:
    """The release, all that it derives from, and all that their runs go on from.

    A cast or merge of a run that is gone on from is none of these: nothing here comes of its weights.
    """
    return [*lineage.releases, *_before(lineage)]


def _before(lineage: Lineage) -> list[Entry]:
    return [entry for entry in lineage.before if "derivation" not in entry.predicate]


def _name(release: Entry) -> str:
    return f"{release.predicate['model']}/{release.predicate['version']}"


def _because(said: Mapping[str, Any]) -> str:
    return f": {said['reason']}" if "reason" in said else ""


def _not_deprecated(complete: bool) -> Check:
    """Only a log that lists all words on the run's releases can say that none deprecates this one."""
    if complete:
        return Check("deprecation", True, "no publisher deprecated the release as of the log's status", "POLICY")
    return Check("deprecation", None, "without a status of the log, a deprecation may have been left out", "POLICY")


@dataclass(frozen=True)
class Revoked:
    """What a `status` that the gate got from elsewhere takes back; ``source`` names it."""

    source: str
    keys: Sequence[Mapping[str, Any]]
    releases: Collection[str]


def _revocations(lineage: Lineage, entries: Sequence[Entry], news: Sequence[Revoked]) -> Check:
    """What the newest status entries and the publisher take back. The root's revocations were applied before."""
    name = "revocations"
    releases = _all_that_it_comes_of(lineage)
    for release in releases:
        for entry in _words(release, entries):
            if entry.predicate["statement"] == "revoked":
                detail = f"{_called(release, lineage)} is revoked ({entry}){_because(entry.predicate)}"
                return Check(name, False, detail, "ASSURANCE")
    status = max(
        (entry for entry in entries if entry.kind == "status"),
        key=lambda entry: entry.predicate["sequence"],
        default=None,
    )
    own = [] if status is None else [revoked_by(status)]
    for told in [*own, *news]:
        for release in releases:
            if release.leaf in told.releases:
                detail = f"{_called(release, lineage)} is revoked ({told.source})"
                return Check(name, False, detail, "ASSURANCE")
        for entry in entries:
            for key in told.keys:
                if entry.envelope.keyid == key["keyid"] and entry.index >= key["from"]:
                    detail = f"the key of {entry} is revoked from entry {key['from']} on ({told.source})"
                    return Check(name, False, detail, "ASSURANCE")
    if not own and not news:
        detail = "revocations are known only as far as the bundle tells them: it holds no status entry"
        return Check(name, None, detail, "ASSURANCE", required=False)
    source = [*own, *news][-1].source
    return Check(name, True, f"nothing used here was revoked as of {source}", "ASSURANCE")


def revoked_by(status: Entry) -> Revoked:
    """What a `status` entry takes back."""
    said = status.predicate
    return Revoked(f"{said['time']} ({status})", said["revoked_keys"], said["revoked_releases"])


def _time(entry: Entry) -> datetime:
    return rfc3339.parse(entry.predicate["time"])


def _of_runs(
    lineage: Lineage, name: str, what: str, find: Callable[[RunLine], Iterable[str]], allowed: Iterable[str]
) -> Check:
    """A rule on what is found of every run, those included that the runs of releases go back to."""
    return together([(str(line), _allowed(name, what, find(line), allowed)) for line in lineage.every])


def _trainers(line: RunLine) -> set[str]:
    return {entry.envelope.keyid for entry in (line.genesis, *line.chain)}


def _training_sets(line: RunLine) -> set[str]:
    return {item["dataset"]["root"] for item in line.genesis.predicate["datasets"] if item["role"] == "train"}


def _code(line: RunLine) -> set[str]:
    return {line.genesis.predicate["code"]["root"]}


def _precision(line: RunLine) -> set[str]:
    run = line.genesis.predicate["config"].get("run")  # whatever its trainer wrote there
    return {str(run.get("precision") if isinstance(run, dict) else None)[:40]}


def _forbidden_versions(lineage: Lineage, forbidden: Sequence[str], *, complete: bool) -> Check:
    """Neither the release nor one that it comes of."""
    name = "forbidden-versions"
    for release in _all_that_it_comes_of(lineage):
        if _name(release) in forbidden:
            which = _name(release) if release is lineage.release else _called(release, lineage).rstrip(",")
            return Check(name, False, f"the policy forbids {which}", "POLICY")
    if lineage.goes_back and not complete:
        return Check(name, None, _LEFT_OUT, "POLICY")
    return Check(name, True, f"{_name(lineage.release)} is not one that the policy forbids", "POLICY")


_LEFT_OUT = (
    "without a status of the log that was made after the release, releases of the runs that it goes on from may have "
    "been left out"
)


def _licenses(lineage: Lineage, allowed: Sequence[str], *, complete: bool) -> Check:
    """Of the release, of those that it derives from, and what the weights that it goes on from were given out under.

    An earlier release that names no licence gave nobody leave; the release's own licence is then the only one.
    """
    named = [entry for entry in _before(lineage) if "license" in entry.predicate]
    made = together([(_name(entry), _licence(entry, allowed)) for entry in (*lineage.releases, *named)])
    if made.ok and lineage.goes_back and not complete:
        return Check("licenses", None, _LEFT_OUT, "POLICY")
    return made


def _licence(release: Entry, allowed: Sequence[str]) -> Check:
    licence = release.predicate.get("license")
    if licence is None:
        return Check("licenses", False, "the release names no licence", "POLICY")
    return _allowed("licenses", "licence", {licence}, allowed)


def _allowed(name: str, what: str, found: Iterable[str], allowed: Iterable[str]) -> Check:
    strange = sorted(set(found) - set(allowed))
    if strange:
        return Check(name, False, f"the policy does not allow {what} {strange[0]}", "POLICY")
    return Check(name, True, f"every {what} is allowed", "POLICY")
