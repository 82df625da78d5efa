"""What may stand in a folder beside the files of its release: each checked to be what follows from the bundle.

A loader gives meaning to these files, and people and tools believe them, so none is taken on trust. Tokenizer, card,
SLSA statement and ML-BOM are made again from the verified bundle and compared by their bytes. `model.sig` is a
signature by somebody else's format; it counts if the policy names its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from bitwitness.ledger.errors import FoundWrong
from bitwitness.ledger.files.safetensors_header import HEADER_LIMIT
from bitwitness.ledger.verify import KeyRing

from ..bundles.evidence import Entry
from ..bundles.lineage import Lineage
from ..checks import Check
from ..folder import INDEX, is_weights_file
from ..policy import Policy
from . import card, cyclonedx, oms, slsa
from . import tokenizer_files as tokenizers

# Name → most bytes that are read of it.
LIMITS: Mapping[str, int] = {
    card.CARD: card.LIMIT,
    tokenizers.TOKENIZER: tokenizers.LIMIT,
    tokenizers.TOKENIZER_CONFIG: card.LIMIT,
    tokenizers.GENERATION: card.LIMIT,
    slsa.FILE_NAME: slsa.LIMIT,
    cyclonedx.FILE_NAME: cyclonedx.LIMIT,
    oms.FILE_NAME: oms.LIMIT,
}
# Those that describe the files beside them, and so none of each other.
DESCRIBING = frozenset({slsa.FILE_NAME, cyclonedx.FILE_NAME, oms.FILE_NAME})


class CompanionRefused(FoundWrong):
    """A file beside the release's own that does not follow from the bundle; the message names it."""


def described(digests: Mapping[str, str]) -> dict[str, str]:
    """The files that SLSA statement and ML-BOM are about, with their SHA-256."""
    return {name: digest for name, digest in digests.items() if name not in DESCRIBING}


def check(
    files: Mapping[str, bytes], digests: Mapping[str, str], traced: Lineage, checkpoint: str, ring: KeyRing
) -> str:
    """One line if every companion but model.sig is right; raises CompanionRefused, TokenizerRefused or SlsaRefused.

    ``files`` are the companions' bytes, ``digests`` the SHA-256 of every file of the folder.
    """
    if (data := files.get(tokenizers.TOKENIZER)) is not None:
        tokenizers.check_tokenizer(data, trained_on(traced).predicate["tokenizer"])
    tokenizers.check_settings(
        files.get(tokenizers.TOKENIZER_CONFIG),
        files.get(tokenizers.GENERATION),
        _window(traced),
        files.get(tokenizers.TOKENIZER, b""),
    )
    if (data := files.get(card.CARD)) is not None and data != card.card(traced):
        raise CompanionRefused(f"{card.CARD} is not the card that follows from the bundle")
    described_files = described(digests)
    if (data := files.get(cyclonedx.FILE_NAME)) is not None and data != cyclonedx.bom(traced, described_files):
        raise CompanionRefused(f"{cyclonedx.FILE_NAME} is not the ML-BOM that follows from the bundle")
    if (data := files.get(slsa.FILE_NAME)) is not None:
        publisher = ring.get(traced.release.envelope.keyid)
        if publisher is None:
            raise CompanionRefused("the publisher of the release is not enrolled")
        slsa.check(data, traced, checkpoint, described_files, publisher.public)
    names = sorted(files.keys() - {oms.FILE_NAME})
    return f"{', '.join(names)}: what follows from the bundle" if names else "no file beside those of the release"


def _window(traced: Lineage) -> int:
    """The tokens of a window, by the run's configuration, which is whatever its trainer wrote there."""
    data = traced.genesis.predicate["config"].get("data")
    window = data.get("window") if isinstance(data, dict) else None
    if type(window) is not int:
        raise CompanionRefused("the run's configuration names no window, which the tokenizer's settings follow from")
    return window


def check_oms(data: bytes | None, digests: Mapping[str, str], policy: Policy) -> list[Check]:
    """The check `oms`: model.sig, if it is there, by the policy's key, over exactly the files beside it.

    A policy that names a key asks for the signature; without one it is told, and decides nothing.
    """
    if policy.oms is None:
        detail = f"{oms.FILE_NAME} is there, but the policy names no key for it ([oms] key)"
        return [] if data is None else [Check("oms", None, detail, "CRYPTO", required=False)]
    if data is None:
        return [Check("oms", False, f"the policy asks for {oms.FILE_NAME}, which is not in the folder", "POLICY")]
    from bitwitness.ledger.p256 import parse_public

    try:
        model, signed = oms.verify(data, parse_public(policy.oms.key.encode()))
        said = oms.compare(signed, {name: digest for name, digest in digests.items() if name != oms.FILE_NAME})
    except FoundWrong as error:
        return [Check("oms", False, str(error), "CRYPTO")]
    return [Check("oms", True, f"OpenSSF signature of {model!a} by the policy's key: {said}", "CRYPTO")]


def is_cut(name: str) -> bool:
    """Whether a file carries tensors or says where they are."""
    return is_weights_file(name) or name == INDEX


def cut_again(names: Iterable[str], listed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The weights files of a folder that holds none of those that its release lists: name → {"bytes": most}.

    An export may cut the same tensors into other files; which tensors they are, the weights root says.
    """
    here = {name for name in names if is_cut(name)}
    if here & listed.keys() or not any(map(is_weights_file, listed)):
        return {}
    total = sum(item["bytes"] for name, item in listed.items() if is_weights_file(name))
    return {name: {"bytes": total + HEADER_LIMIT} for name in here}


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def trained_on(traced: Lineage) -> Entry:
    """The entry of the dataset that the run was trained on."""
    for entry in traced.own.trained_on:
        return entry
    raise CompanionRefused("the dataset that the run was trained on is not in the bundle")
