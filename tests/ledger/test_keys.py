"""Keys and their files: Ed25519 after the public vectors, and one clear line for every unsafe file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from bitwitness.ledger import keys
from bitwitness.ledger._edwards import check_point
from bitwitness.ledger.errors import BadKey, KeyFileError, SignatureError, WrongPassphrase

P = 2**255 - 19


def test_wycheproof(vectors: Path) -> None:
    groups = json.loads((vectors / "wycheproof" / "ed25519_test.json").read_text())["testGroups"]
    count = 0
    for group in groups:
        key = keys.PublicKey.from_hex(group["publicKey"]["pk"])
        for case in group["tests"]:
            signature, message = bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"])
            if case["result"] == "valid":
                key.verify(signature, message)
            else:
                with pytest.raises(SignatureError):
                    key.verify(signature, message)
            count += 1
    assert count == 151


def test_rfc_8032_test_1() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    signer = keys.Signer.from_seed("trainer", seed)
    assert signer.public.raw.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert signer.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b"
    )


def test_golden_keyids(golden: Any) -> None:
    for number, role in enumerate(keys.ROLES, 1):
        signer = keys.Signer.from_seed(role, bytes([number]) * 32)
        golden("ledger-1.json").check(f"key {role}", {"public": signer.public.raw.hex(), "keyid": signer.keyid})


def encode(y: int, sign: int = 0) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


def low_order_points() -> list[bytes]:
    """The canonical encodings of the eight points whose order divides 8."""
    d = -121665 * pow(121666, -1, P) % P
    # x^2 = y^2 and the doubling of such a point gives order 4: d*y^4 + 2*y^2 - 1 = 0 (order 8).
    root = pow(d + 1, (P + 3) // 8, P)
    if root * root % P != (d + 1) % P:
        root = root * pow(2, (P - 1) // 4, P) % P
    found = [encode(1), encode(P - 1), encode(0), encode(0, 1)]
    for numerator in (root - 1, -root - 1):
        square = numerator * pow(d, -1, P) % P
        if pow(square, (P - 1) // 2, P) != 1:
            continue
        y = pow(square, (P + 3) // 8, P)
        if y * y % P != square:
            y = y * pow(2, (P - 1) // 4, P) % P
        found += [encode(value, sign) for value in (y, P - y) for sign in (0, 1)]
    return found


def test_low_order_keys_are_refused() -> None:
    points = low_order_points()
    assert len(set(points)) == 8
    for raw in points:
        with pytest.raises(BadKey, match="low order"):
            keys.PublicKey(raw)


def test_non_canonical_keys_are_refused() -> None:
    for y in range(P, 2**255):
        for sign in (0, 1):
            with pytest.raises(BadKey, match="not canonical"):
                keys.PublicKey(encode(y, sign))
    for y in (1, P - 1):  # x = 0 has no negative
        with pytest.raises(BadKey, match="not canonical"):
            keys.PublicKey(encode(y, 1))


def test_points_off_the_curve_or_of_mixed_order_are_refused() -> None:
    refused = {"not a point": 0, "outside": 0, "ok": 0}
    for y in range(2, 200):
        try:
            check_point(encode(y))
            refused["ok"] += 1
        except BadKey as error:
            refused["not a point" if "not a point" in str(error) else "outside"] += 1
    assert refused["not a point"] > 60 and refused["outside"] > 60 and refused["ok"] > 3


def test_generated_keys_are_accepted() -> None:
    for _ in range(50):
        signer = keys.generate("trainer")
        signer.public.verify(signer.sign(b"x"), b"x")


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "zz" * 32, "AB" * 32, " " + "ab" * 31 + "a", None])
def test_public_key_hex_is_strict(text: Any) -> None:
    with pytest.raises(BadKey):
        keys.PublicKey.from_hex(text)


def test_one_spelling_of_a_public_key() -> None:
    text = keys.Signer.from_seed("log", bytes(32)).public.raw.hex()
    assert keys.PublicKey.from_hex(text).raw.hex() == text
    for other in (text.upper(), f" {text}", f"{text[:32]} {text[32:]}", f"{text}\n"):
        with pytest.raises(BadKey, match="64 lower-case hex digits"):
            keys.PublicKey.from_hex(other)


def test_public_files_are_read_for_themselves(tmp_path: Path) -> None:
    one, other = (keys.Signer.from_seed("log", bytes([number]) * 32) for number in (1, 2))
    keys.save(one, tmp_path / "log.pem")
    path = tmp_path / "log.pub"
    good = path.read_bytes()
    assert keys.load_public(path) == ("log", one.public)
    for data, says in (
        (good.replace(one.keyid.encode(), other.keyid.encode()), "the keyid is not the SHA-256"),
        (good.replace(one.public.raw.hex().encode(), other.public.raw.hex().encode()), "the keyid is not the SHA-256"),
        (b"[]\n", "not a public key file"),
        (b"1\n", "not a public key file"),
        (good.replace(b"}", b',"z":1}'), "not a public key file"),
    ):
        path.write_bytes(data)
        with pytest.raises(KeyFileError, match=says):
            keys.load_public(path)
    path.unlink()
    secret = tmp_path / "log.pem"
    secret.write_bytes(b" " * (keys.MAX_KEY_FILE + 1))
    with pytest.raises(KeyFileError, match="too large"):
        keys.load_private(secret)


def test_roles() -> None:
    with pytest.raises(BadKey, match="role"):
        keys.generate("admin")


def test_save_and_load(tmp_path: Path) -> None:
    signer = keys.generate("trainer")
    path = tmp_path / "trainer.pem"
    keys.save(signer, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.load_private(path) == signer
    assert keys.load_private(path).sign(b"x") == signer.sign(b"x")
    assert keys.load_public(tmp_path / "trainer.pub") == ("trainer", signer.public)
    with pytest.raises(KeyFileError, match="never overwritten"):
        keys.save(keys.generate("trainer"), path)
    assert keys.load_private(path) == signer


def test_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys.save(keys.generate("log"), tmp_path / "log.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log.pem").stat().st_mode) == 0o600


def test_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = keys.generate("root")
    path = tmp_path / "root.pem"
    keys.save(signer, path, "früh".encode())
    assert b"ENCRYPTED" in path.read_bytes()
    assert keys.load_private(path, lambda: "früh".encode()) == signer
    for source in (lambda: b"wrong", lambda: b""):
        with pytest.raises(WrongPassphrase) as caught:
            keys.load_private(path, source)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    with pytest.raises(KeyFileError, match="BITWITNESS_PASSPHRASE"):
        keys.load_private(path)
    monkeypatch.delenv(keys.PASSPHRASE_VARIABLE, raising=False)
    assert keys.passphrase_from_env() is None
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "früh")
    assert keys.load_private(path, keys.passphrase_from_env()) == signer
    secret = tmp_path / "secret"
    secret.write_text("früh\nsecond line\n", encoding="utf-8")
    secret.chmod(0o600)
    assert keys.load_private(path, keys.passphrase_from_file(secret)) == signer
    secret.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        keys.load_private(path, keys.passphrase_from_file(secret))
    assert keys.load_private(path, keys.passphrase_from_prompt(lambda text: "früh", "passphrase: ")) == signer
    with pytest.raises(KeyFileError, match="empty"):
        keys.save(signer, tmp_path / "other.pem", b"")


def test_passphrase_is_not_asked_for_without_need(tmp_path: Path) -> None:
    keys.save(keys.generate("root"), tmp_path / "root.pem")
    asked: list[int] = []
    keys.load_private(tmp_path / "root.pem", lambda: asked.append(1) or b"")  # type: ignore[func-returns-value]
    assert not asked


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o666])
def test_files_open_to_others_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "trainer.pem"
    keys.save(keys.generate("trainer"), path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        keys.load_private(path)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "trainer.pem"
    with pytest.raises(KeyFileError, match="no such file"):
        keys.load_private(path)
    signer = keys.generate("trainer")
    keys.save(signer, path)
    public = tmp_path / "trainer.pub"
    good, good_public = path.read_bytes(), public.read_bytes()
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for data in (b"", b"\x00" * 100, good[:60], good.replace(b"PRIVATE", b"PUBLIC"), other, b"x" * 70_000):
        path.write_bytes(data)
        with pytest.raises(KeyFileError):
            keys.load_private(path)
    path.write_bytes(good)
    stranger = keys.generate("trainer").public
    swapped = good_public.replace(signer.public.raw.hex().encode(), stranger.raw.hex().encode())
    for data in (
        b"",
        b"{}",
        good_public.replace(b"trainer", b"admin"),
        good_public.replace(b"ed25519", b"ed448"),
        swapped,
        swapped.replace(signer.keyid.encode(), stranger.keyid.encode()),
        good_public + b"\n",
        good_public.replace(b'{"', b'{ "'),
    ):
        public.write_bytes(data)
        with pytest.raises(KeyFileError) as caught:
            keys.load_private(path)
        assert "\n" not in str(caught.value)
    public.unlink()
    with pytest.raises(KeyFileError, match="no such file"):
        keys.load_private(path)
    public.write_bytes(good_public)
    assert keys.load_private(path) == signer


def test_fifo_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        keys.load_private(tmp_path)


def test_a_key_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    keys.save(keys.generate("log"), tmp_path / "log.pem")
    os.mkfifo(tmp_path / "fifo.pem", 0o600)
    (tmp_path / "zero.pem").symlink_to("/dev/zero")
    for name in ("fifo.pem", "zero.pem"):
        for read in (keys.load_private, keys.load_public, lambda path: keys.passphrase_from_file(path)()):
            with pytest.raises(KeyFileError, match="not a regular file"):
                read(tmp_path / name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "/"])
def test_a_key_needs_the_name_of_a_file(name: str) -> None:
    with pytest.raises(KeyFileError, match="names no file"):
        keys.save(keys.generate("log"), name)


def test_a_private_key_is_not_put_where_the_public_one_goes(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="give the private key another"):
        keys.save(keys.generate("log"), tmp_path / "log.pub")
    assert list(tmp_path.iterdir()) == []


def test_a_passphrase_variable_may_hold_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, keys.PASSPHRASE_VARIABLE, os.fsdecode(b"\xff\xfe secret"))
    source = keys.passphrase_from_env()
    assert source is not None and source() == b"\xff\xfe secret"
    keys.save(keys.generate("log"), tmp_path / "log.pem", source())
    keys.load_private(tmp_path / "log.pem", source)


def test_failed_public_half_leaves_no_private_half(tmp_path: Path) -> None:
    (tmp_path / "log.pub").write_text("here first")
    with pytest.raises(KeyFileError, match="exists"):
        keys.save(keys.generate("log"), tmp_path / "log.pem")
    assert not (tmp_path / "log.pem").exists()


def test_a_secret_never_shows(tmp_path: Path) -> None:
    seed = bytes(range(32))
    signer = keys.Signer.from_seed("log", seed)
    assert seed.hex() not in repr(signer)
    assert isinstance(signer._key, ed25519.Ed25519PrivateKey)
    assert "PrivateKey" not in repr(signer)
