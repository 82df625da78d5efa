"""Ed25519 keys, one role each, and their files (docs/formats/keys.md).

A key is two files: `NAME.pem`, the private key (PKCS#8, mode 0600, encrypted if a passphrase is given), and
`NAME.pub`, the public key and its role as one line of canonical JSON, which is what is handed over for
enrolment.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from . import jcs
from ._edwards import check_point
from .errors import BadKey, BitwitnessError, JsonError, KeyFileError, SignatureError, WrongPassphrase
from .files import durable
from .files.regular_file import open_regular, read_regular

ROLES = ("root", "log", "trainer", "auditor", "publisher", "witness")
ALGORITHM = "ed25519"
PASSPHRASE_VARIABLE = "BITWITNESS_PASSPHRASE"
MAX_KEY_FILE = 64 * 1024
MEMORY_SUFFIX = ".head"

PassphraseSource = Callable[[], bytes]


def keyid(public: bytes) -> str:
    """Hex SHA-256 of the raw 32-byte public key."""
    return hashlib.sha256(public).hexdigest()


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key. Construction refuses whatever no honest key generation yields (BadKey)."""

    raw: bytes
    keyid: str = field(init=False, compare=False)
    _key: Ed25519PublicKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_point(self.raw)
        object.__setattr__(self, "keyid", keyid(self.raw))
        object.__setattr__(self, "_key", Ed25519PublicKey.from_public_bytes(self.raw))

    @classmethod
    def from_hex(cls, text: str) -> PublicKey:
        """Read 64 lower-case hex digits."""
        try:
            raw = bytes.fromhex(text)
        except (ValueError, TypeError):
            raw = b""
        if len(raw) != 32 or raw.hex() != text:
            raise BadKey(f"the public key {str(text)[:80]!r} is not 64 lower-case hex digits")
        return cls(raw)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check an Ed25519 signature (RFC 8032, cofactorless, S below the group order). Raises
        SignatureError.
        """
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            raise SignatureError(f"the signature is not by key {self.keyid}", self.keyid) from None


@dataclass(frozen=True)
class Signer:
    """A private key with its role."""

    role: str
    public: PublicKey
    _key: Ed25519PrivateKey = field(repr=False, compare=False)
    memory: Path | None = field(default=None, repr=False, compare=False)
    """Where a log key remembers what it has signed (log_memory.py); None for a key that comes from no file."""

    def __post_init__(self) -> None:
        _check_role(self.role)

    @classmethod
    def from_seed(cls, role: str, seed: bytes) -> Signer:
        """The key of a 32-byte seed (RFC 8032, the private key)."""
        return cls._wrap(role, Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def _wrap(cls, role: str, key: Ed25519PrivateKey, memory: Path | None = None) -> Signer:
        return cls(role, PublicKey(key.public_key().public_bytes_raw()), key, memory)

    @property
    def keyid(self) -> str:
        return self.public.keyid

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `data`; deterministic."""
        return self._key.sign(data)


def generate(role: str) -> Signer:
    """A new key from the operating system's randomness."""
    _check_role(role)
    return Signer._wrap(role, Ed25519PrivateKey.generate())


def save(signer: Signer, path: Path | str, passphrase: bytes | None = None) -> None:
    """Write `path` (private, created with mode 0600, never over an existing file) and its `.pub` beside it.

    An empty passphrase is refused; None writes the key unencrypted.
    """
    path = Path(path)
    if passphrase is not None and not passphrase:
        raise KeyFileError(path, "the passphrase is empty; give one, or none at all")
    from cryptography.hazmat.primitives import serialization  # whoever only verifies reads no PEM

    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    pem = signer._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    record = {
        "algorithm": ALGORITHM,
        "keyid": signer.keyid,
        "public": signer.public.raw.hex(),
        "role": signer.role,
    }
    public = public_path(path)
    if path == public:
        raise KeyFileError(path, "the public key takes this name; give the private key another, as FILE.pem")
    if public.exists():
        raise KeyFileError(public, "this file exists; a key is never overwritten")
    _write_new(path, pem, 0o600)
    try:
        _write_new(public, jcs.encode(record) + b"\n", 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def public_path(path: Path | str) -> Path:
    """Where the public half of the private key file `path` stands. Raises KeyFileError if `path` names no file."""
    path = Path(path)
    if path.name in ("", ".."):
        raise KeyFileError(path, "this names no file")
    return path.with_suffix(".pub")


def load_private(path: Path | str, passphrase: PassphraseSource | None = None) -> Signer:
    """Read a private key and the role that its `.pub` states.

    `passphrase` is called only if the file is encrypted. Refuses files that group or others can read, keys
    that are not Ed25519, and a `.pub` of another key. Raises KeyFileError, WrongPassphrase.
    """
    from cryptography.hazmat.primitives import serialization

    path = Path(path)
    pem = _read_private_bytes(path)
    encrypted = b"BEGIN ENCRYPTED PRIVATE KEY" in pem
    secret = None
    if encrypted:
        if passphrase is None:
            raise KeyFileError(
                path, f"the key is encrypted; give its passphrase by prompt, file or ${PASSPHRASE_VARIABLE}"
            )
        secret = passphrase()
        if not secret:
            raise WrongPassphrase(path, "the passphrase is empty")
    try:
        key = serialization.load_pem_private_key(pem, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if encrypted:
            raise WrongPassphrase(path, "the passphrase does not open this key") from None
        raise KeyFileError(path, "not a PKCS#8 PEM private key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(path, "not an Ed25519 key")
    role, public = load_public(public_path(path))
    signer = Signer._wrap(role, key, path.with_suffix(MEMORY_SUFFIX) if role == "log" else None)
    if signer.public != public:
        raise KeyFileError(public_path(path), f"this is not the public half of {path.name}")
    return signer


def load_public(path: Path | str) -> tuple[str, PublicKey]:
    """Read a `.pub` file: (role, key). Raises KeyFileError."""
    path = Path(path)
    try:
        data = read_regular(path, MAX_KEY_FILE)
    except OSError as error:
        raise KeyFileError(path, _os_reason(error)) from None
    try:
        record = jcs.parse(data.removesuffix(b"\n"), max_bytes=MAX_KEY_FILE)
        if not isinstance(record, dict) or record.keys() != {"algorithm", "keyid", "public", "role"}:
            raise JsonError('not {"algorithm","keyid","public","role"}')
        if record["algorithm"] != ALGORITHM:
            raise JsonError(f"the algorithm is {record['algorithm']!r}, not {ALGORITHM}")
        _check_role(record["role"])
        public = PublicKey.from_hex(record["public"])
    except BitwitnessError as error:
        raise KeyFileError(path, f"not a public key file ({error})") from None
    if public.keyid != record["keyid"]:
        raise KeyFileError(path, "the keyid is not the SHA-256 of the public key")
    return record["role"], public


def passphrase_from_env(variable: str = PASSPHRASE_VARIABLE) -> PassphraseSource | None:
    """A source that reads the environment, or None where the variable is not set."""
    value = os.environ.get(variable)
    # The very bytes of the variable, which need not be UTF-8.
    return None if value is None else lambda: os.fsencode(value)


def passphrase_from_file(path: Path | str) -> PassphraseSource:
    """A source that reads the first line of a file that only its owner can read."""

    def read() -> bytes:
        return _read_private_bytes(Path(path)).split(b"\n", 1)[0].removesuffix(b"\r")

    return read


def passphrase_from_prompt(ask: Callable[[str], str], text: str) -> PassphraseSource:
    """A source that asks a person, `ask` being getpass.getpass or the like."""
    return lambda: ask(text).encode("utf-8", "surrogateescape")


def _check_role(role: object) -> None:
    if role not in ROLES:
        raise BadKey(f"the role {role!r} is not one of {', '.join(ROLES)}")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        durable.write_new(path, data, mode=mode)
        durable.sync_folder(path.parent)
    except FileExistsError:
        raise KeyFileError(path, "this file exists; a key is never overwritten") from None
    except OSError as error:
        raise KeyFileError(path, _os_reason(error)) from None


def _read_private_bytes(path: Path) -> bytes:
    """Read a secret; the mode is taken from the opened file, so it cannot be swapped in between."""
    try:
        with open_regular(path) as file:
            info = os.fstat(file.fileno())
            if os.name == "posix" and info.st_mode & 0o077:
                raise KeyFileError(path, "others can read this file; run: chmod 600 " + str(path))
            data = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise KeyFileError(path, _os_reason(error)) from None
    if len(data) > MAX_KEY_FILE:
        raise KeyFileError(path, "too large for a key file")
    return data


def _os_reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
