"""The gate's check `derivation`: a cast or merge must be recomputed, here from its sources or by an auditor.

The publisher's signature says that the weights derive from others; only the sources' bits show it. So it is for each
release that was derived on the way. Whoever has them gives their folders, and the gate computes the rule again.
Otherwise the word of an auditor whom the root enrolled counts, an `endorse` entry in the bundle. Without either it is
not checkable, which is not a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.verify import KeyRing

from .. import derivation, weights
from ..bundles.evidence import Entry
from ..bundles.lineage import Lineage
from ..checks import Check, together
from ..folder import Folder, is_weights_file
from .scan import Scanned, scan

NAME = "derivation"
# What auditors say of a derived release with an `endorse` entry.
RECOMPUTED, NOT_RECOMPUTED = "recomputed", "not-recomputed"


def check(traced: Lineage, entries: Sequence[Entry], ring: KeyRing, folders: Sequence[Path]) -> list[Check]:
    """No check for weights that a run made itself; else one, on all derivations that lead to the release's weights."""
    derived = [entry for entry in traced.releases if "derivation" in entry.predicate]
    if not derived:
        return []
    names = [f"{entry.predicate['model']}/{entry.predicate['version']}" for entry in derived]
    checks = [_check(entry, entries, ring, folders) for entry in derived]
    return [together(list(zip(names, checks, strict=True)))]


def _check(derived: Entry, entries: Sequence[Entry], ring: KeyRing, folders: Sequence[Path]) -> Check:
    """One derivation, of the release itself or of one that it derives from."""
    release = derived.predicate
    said = f"{release['derivation']['rule']} of {len(release['derivation']['sources'])} releases"
    words = {
        entry.predicate["statement"]: entry
        for entry in entries
        if entry.kind == "endorse" and entry.predicate["release"] == derived.leaf and _by_auditor(entry, ring)
    }
    if NOT_RECOMPUTED in words:
        detail = f"an auditor recomputed {said} and got other bits ({words[NOT_RECOMPUTED]})"
        return Check(NAME, False, detail, "CRYPTO")
    missing = f"{said}: give their folders with --source, or have an auditor recompute it (`ledger model audit`)"
    try:
        if folders:
            sources = [_find(item["weights"], folders) for item in release["derivation"]["sources"]]
            return Check(NAME, True, derivation.recompute(release, sources), "CRYPTO")
    except FoundWrong as error:
        return Check(NAME, False, str(error), "CRYPTO")
    except BitwitnessError as error:
        missing = str(error)
    if RECOMPUTED in words:
        entry = words[RECOMPUTED]
        return Check(NAME, True, f"{said}, recomputed by auditor {entry.envelope.keyid[:16]}… ({entry})", "CRYPTO")
    return Check(NAME, None, missing, "CRYPTO")


def _by_auditor(entry: Entry, ring: KeyRing) -> bool:
    key = ring.get(entry.envelope.keyid)
    return key is not None and key.role == "auditor"


def _find(wanted: object, folders: Sequence[Path]) -> dict[str, weights.LoadedTensor]:
    """The tensors of the folder whose weights have this commitment. Raises BitwitnessError."""
    commitment = Commitment.from_json(wanted, type="weights/1")
    for path in folders:
        with Folder(path) as folder:
            files: dict[str, Scanned] = {}
            for name in sorted(filter(is_weights_file, folder.names)):
                with folder.open(name, limit=folder.size(name)) as file:
                    files[name] = scan(file, keep=True)
        leaves, _places = weights.join(files)
        if weights.commitment_of(leaves) == commitment:
            return weights.views(files)
    raise BitwitnessError(f"none of the folders given with --source has the weights {commitment.root[:16]}…")
