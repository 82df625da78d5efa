"""The errors of the ledger and of everything built on it.

One base class; `exit_code` says what a command returns for it: 2 "could not check", 1 "found wrong". Every
message is one line that a user can act on; subclasses carry the values, so that callers need not parse text.
"""

from __future__ import annotations

from typing import ClassVar


class BitwitnessError(Exception):
    """Something could not be done or checked. The command line prints the message and exits with
    `exit_code`.

    The message may quote what a stranger wrote, so whatever that is, it stays one printable line of at most `longest`
    characters: too long a one loses its middle.
    """

    exit_code: int = 2
    longest: ClassVar[int] = 590

    def __init__(self, message: str = "") -> None:
        super().__init__(_line(message, self.longest))


class Stopped(BitwitnessError):
    """A signal ended the work, and what was done is kept. The exit status is a shell's for the signal: 128 + number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class FoundWrong(BitwitnessError):
    """Something was checked and is wrong: a hash, a proof, a signature, a replayed bit."""

    exit_code: int = 1


class FormatError(FoundWrong):
    """Bytes that do not follow a format of docs/formats. `where` names the part, `reason` what is wrong."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = _line(where, 280), _line(reason, 280)
        super().__init__(f"{self.where}: {self.reason}")


def _line(text: str, most: int) -> str:
    text = str(text)
    text = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3 - 3) :]}"


class JsonError(FormatError):
    """JSON that is not canonical, or holds what signed JSON may not hold (floats, null, large integers)."""

    def __init__(self, reason: str, where: str = "JSON") -> None:
        super().__init__(where, reason)


class EntryError(FormatError):
    """A ledger entry, envelope or statement that does not follow docs/formats/entries.md."""

    def __init__(self, reason: str, where: str = "entry") -> None:
        super().__init__(where, reason)


class NoteError(FormatError):
    """A signed note, verifier key, checkpoint or proof file that does not follow its C2SP specification."""


class MalformedSignature(NoteError):
    """A note with a signature line whose signature is not standard padded base64."""


class NoKnownSigner(NoteError):
    """A well-formed note that no trusted key has signed: nothing about it can be checked."""

    exit_code: int = 2


class CommitmentError(FormatError):
    """A commitment, tensor table or tree that is malformed."""

    def __init__(self, reason: str, where: str = "commitment") -> None:
        super().__init__(where, reason)


class ProofError(FoundWrong):
    """A Merkle proof that does not prove what it claims (RFC 9162, section 2.1)."""


class SignatureError(FoundWrong):
    """A signature that its public key does not verify. `keyid` names the key."""

    def __init__(self, message: str, keyid: str) -> None:
        super().__init__(message)
        self.keyid = keyid


class KeyFileError(BitwitnessError):
    """A key file that is missing, unsafe or unreadable. `path` names it."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class WrongPassphrase(KeyFileError):
    """The passphrase does not open the key file."""


class BadKey(FoundWrong):
    """A public key that no honest Ed25519 key generation yields (RFC 8032; low order, non-canonical)."""
