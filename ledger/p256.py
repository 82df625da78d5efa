"""NIST P-256 key files, for the one neighbour that takes no Ed25519: OpenSSF model signing (registry/interop/oms.py).

A private key is PKCS#8 PEM with mode 0600, its public half a SubjectPublicKeyInfo PEM, `.pub`, beside it. No entry of a
ledger is ever signed with one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .errors import KeyFileError, SignatureError, WrongPassphrase
from .keys import PASSPHRASE_VARIABLE, PassphraseSource, _read_private_bytes, _write_new, public_path

_ECDSA = ec.ECDSA(hashes.SHA256())


class P256Key:
    """A public key, and the private one where it was loaded from its file."""

    def __init__(self, public: ec.EllipticCurvePublicKey, private: ec.EllipticCurvePrivateKey | None = None) -> None:
        self._public, self._private = public, private

    @property
    def pem(self) -> bytes:
        """The public key as SubjectPublicKeyInfo PEM."""
        return self._public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def sign(self, data: bytes) -> bytes:
        """A DER-encoded ECDSA signature over SHA-256 of `data`."""
        if self._private is None:
            raise SignatureError("a public key signs nothing", "")
        return self._private.sign(data, _ECDSA)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raises SignatureError."""
        try:
            self._public.verify(signature, data, _ECDSA)
        except InvalidSignature:
            raise SignatureError("the signature is not by this P-256 key", "") from None


def create(path: Path, passphrase: bytes | None = None) -> P256Key:
    """Make a key and write `path` (mode 0600, never over an existing file) and its `.pub`. Raises KeyFileError."""
    key = ec.generate_private_key(ec.SECP256R1())
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    made = P256Key(key.public_key(), key)
    _write_new(
        path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption), 0o600
    )
    try:
        _write_new(public_path(path), made.pem, 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return made


def load_private(path: Path, passphrase: PassphraseSource | None = None) -> P256Key:
    """Read a private key that only its owner can read. Raises KeyFileError, WrongPassphrase."""
    pem = _read_private_bytes(path)
    secret = None
    if b"BEGIN ENCRYPTED PRIVATE KEY" in pem:
        if passphrase is None:
            raise KeyFileError(path, f"the key is encrypted; give its passphrase in ${PASSPHRASE_VARIABLE}")
        secret = passphrase()
    try:
        key = serialization.load_pem_private_key(pem, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if secret is not None:
            raise WrongPassphrase(path, "the passphrase does not open this key") from None
        raise KeyFileError(path, "not a PEM private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyFileError(path, "not a P-256 key")
    return P256Key(key.public_key(), key)


def parse_public(pem: bytes) -> P256Key:
    """A public key from its PEM. Raises ValueError for anything but a P-256 key."""
    try:
        key = serialization.load_pem_public_key(pem)
    except UnsupportedAlgorithm as error:
        raise ValueError("not a public key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return P256Key(key)
