"""Collecting cosignatures: a log hands its checkpoint to witnesses, each with a proof from what it cosigned last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .. import note
from ..checkpoint import parse_checkpoint
from ..errors import BitwitnessError, FoundWrong, NoKnownSigner
from ..follow.remote import Remote, RemoteError
from ..follow.transport import shown
from ..note import SignatureLine, Verifier
from ..store import Ledger
from ..witness_policy import WitnessPolicy
from .witness_request import request_text

_MAX_ANSWER = 64 * 1024
_TRIES = 3
_SIZE = re.compile(r"(?:0|[1-9][0-9]{0,18})\n")
_AT_ONCE = 8


class WitnessRefused(BitwitnessError):
    """A witness gave no cosignature. `status` is its HTTP status."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        self.url = shown(url)
        super().__init__(f"witness {self.url} answered {status}: {reason[:200]}")
        self.status = status


class WitnessDisagrees(FoundWrong):
    """A witness has cosigned what this ledger does not hold: the log was rolled back, or forked."""

    def __init__(self, url: str, size: int, own: int) -> None:
        what = f"{size} entries, this ledger has {own}" if size != own else f"another root for {size} entries"
        self.url = shown(url)
        super().__init__(f"witness {self.url} has cosigned {what}; do not publish this checkpoint")
        self.size = size


@dataclass(frozen=True)
class Target:
    """A witness to ask. Without `verifier` it is asked for its key, too, which nobody need believe."""

    url: str
    verifier: Verifier | None = None


@dataclass(frozen=True)
class Collected:
    """The checkpoint with its cosignatures, and the witnesses that gave none, with the reason."""

    note: str
    cosigners: tuple[Verifier, ...]
    failures: tuple[BitwitnessError, ...]


def find_target(text: str, policy: WitnessPolicy | None) -> Target:
    """Read `URL` or `VKEY URL`; the key of a bare URL is the policy's, if it names the URL. Raises BitwitnessError."""
    vkey, _, url = text.strip().rpartition(" ")
    if vkey:
        key = Verifier.parse(vkey)
        return Target(url, Verifier(key.name, key.key, note.COSIGNATURE))
    for witness in policy.witnesses if policy is not None else ():
        if witness.url is not None and witness.url.rstrip("/") == url.rstrip("/"):
            return Target(url, witness.verifier)
    return Target(url)


def policy_targets(policy: WitnessPolicy) -> list[Target]:
    """All witnesses of a policy that have an address."""
    return [Target(item.url, item.verifier) for item in policy.witnesses if item.url is not None]


def collect(ledger: Ledger, signed: str, targets: Sequence[Target], *, keep: bool = True) -> Collected:
    """Ask all witnesses at once for cosignatures on the ledger's checkpoint note `signed`, and store the result.

    A witness that fails is in `failures` and keeps the others from nothing; WitnessDisagrees is among them. The
    ledger is open for writing, unless `keep` is false.
    """
    head = parse_checkpoint(note.parse_note(signed).text)
    remembered = [_last_size(ledger, target) for target in targets]
    asked = [_Asking(target, signed, head.size, old) for target, old in zip(targets, remembered, strict=True)]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        for _ in range(_TRIES):
            waiting = [item for item in asked if not item.done]
            for item in waiting:  # here, since the ledger's connection belongs to this thread
                item.proof = ledger.consistency_proof(item.old, head.size) if item.old else []
            list(pool.map(_Asking.ask, waiting))
    cosigned = renewed(signed, [item.line for item in asked if item.line is not None])
    if cosigned != signed and keep:
        ledger.keep_checkpoint(cosigned)
    return Collected(
        cosigned,
        tuple(item.verifier for item in asked if item.line is not None and item.verifier is not None),
        tuple(item.failure for item in asked if item.failure is not None),
    )


class _Asking:
    """One witness being asked: `old` is what it is believed to have cosigned last."""

    def __init__(self, target: Target, signed: str, size: int, old: int) -> None:
        self._url = target.url
        self._signed = signed
        self._size = size
        self._origin = parse_checkpoint(note.parse_note(signed).text).origin
        self.verifier = target.verifier
        self.old = old
        self.proof: Sequence[bytes] = ()
        self.line: SignatureLine | None = None
        self.failure: BitwitnessError | None = None
        self.done = False

    def ask(self) -> None:
        """One request. Afterwards it is done, or `old` is what the witness says."""
        self.done, self.failure = True, None
        try:
            with Remote(self._url) as remote:
                if self.verifier is None:
                    self.verifier = _ask_key(remote)
                if self.verifier.name == self._origin:  # whoever watches the log would take it for a key of the log
                    raise RemoteError(self._url, "its key has the log's own name; it must have another one to cosign")
                status, kind, body = remote.post(
                    "add-checkpoint", request_text(self.old, self.proof, self._signed), _MAX_ANSWER
                )
            if status == 409 and kind == "text/x.tlog.size" and _SIZE.fullmatch(body):
                self._other_size(int(body))
            elif status == 200:
                self.line = cosignature_in(body, self._signed, self.verifier)
            else:
                self.failure = WitnessRefused(self._url, status, body.strip().split("\n")[0])
        except BitwitnessError as error:
            self.failure = error

    def _other_size(self, size: int) -> None:
        if size > self._size or size == self.old:
            self.failure = WitnessDisagrees(self._url, size, self._size)
            return
        self.old, self.done = size, False
        self.failure = WitnessRefused(self._url, 409, f"it has cosigned {size} entries")


def renewed(signed: str, lines: Sequence[SignatureLine]) -> str:
    """The note with these signature lines in place of older ones by the same keys, which have another time."""
    parsed = note.parse_note(signed)
    keys = {(line.name, line.key_id) for line in lines}
    kept = [line for line in parsed.lines if (line.name, line.key_id) not in keys]
    return note.Note(parsed.text, (*kept, *lines)).format()


def cosignature_in(answer: str, signed: str, verifier: Verifier) -> SignatureLine:
    """The verified cosignature of `verifier` among signature lines; lines of other keys are ignored.

    Raises NoKnownSigner if it is not there, SignatureError if it is wrong, NoteError if malformed.
    """
    text = note.parse_note(signed).text
    opened = note.open_note(f"{text}\n{answer}", [verifier])
    found = opened.by(verifier)
    if found is None:
        raise NoKnownSigner("cosignature", f"{verifier.name} did not sign")
    return found.line


def _ask_key(remote: Remote) -> Verifier:
    verifier = Verifier.parse(remote.get("vkey", 1000).decode("utf-8", "replace").strip())
    if verifier.type != note.COSIGNATURE:
        raise RemoteError(remote.url, "its key is not a cosigner's")
    return verifier


def _last_size(ledger: Ledger, target: Target) -> int:
    """The size of the newest stored checkpoint that the witness has cosigned, 0 for none."""
    if target.verifier is None:
        return 0
    wanted = (target.verifier.name, target.verifier.key_id)
    for size, text in ledger.newest_checkpoints(100):
        if any((line.name, line.key_id) == wanted for line in note.parse_note(text).lines):
            return size
    return 0
