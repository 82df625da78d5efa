"""One connection to another rank: whole messages over TCP, each with the sender's MAC, in time or not at all.

    frame    kind (1 byte: J for JSON, B for bytes) ‖ length (8 bytes, big-endian) ‖ payload ‖ MAC (32 bytes)
    MAC      HMAC-SHA-256(key, number of the frame (8 bytes) ‖ kind ‖ length ‖ SHA-256 of each MiB of the payload)
    key      HMAC-SHA-256(secret, "bitwitness/ranks/v1" ‖ 00 ‖ sender's nonce ‖ receiver's nonce), 32 random bytes each

So nobody without the secret takes part, and no bit changes on the way; nothing is encrypted. Nothing received is
executed: payloads are canonical JSON, or bytes whose number the receiver knows before.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import jcs
from bitwitness.ledger.errors import BitwitnessError, FormatError
from bitwitness.ledger.files.hash_pool import submit

_HELLO = b"bitwitness/ranks/v1\x00"
_NONCE = _MAC = 32
_HEADER = struct.Struct(">cQ")
_NUMBER = struct.Struct(">Q")
_PIECE = 1 << 20
_PARTING = 2.0
_JSON, _BYTES = b"J", b"B"
JSON_LIMIT = 32 << 20

Json = dict[str, Any]
Buffer = TypeVar("Buffer", bytearray, memoryview)


class RankError(BitwitnessError):
    """A rank cannot be worked with; the message says which and why. None is one that has not said who it is."""

    def __init__(self, rank: int | None, what: str) -> None:
        self.rank = rank
        super().__init__(f"{'a peer' if rank is None else f'rank {rank}'} {what}")


class RankFailed(RankError):
    """A rank says why it goes. Where that names a rank, the cause is told, not who passed it on."""

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(rank, f"failed: {reason}")
        if reason.startswith("rank "):
            self.args = (reason,)


def greeted(sock: socket.socket) -> bool:
    """Whether the whole greeting of the other end is here, so that Channel() waits for nothing. Raises RankError."""
    here = _peek(sock, None, len(_HELLO) + _NONCE)
    if not _HELLO.startswith(here[: len(_HELLO)]):
        raise RankError(None, "is no rank of this program")
    return len(here) == len(_HELLO) + _NONCE


class Channel:
    """A connection whose other end is `rank`, once both know that they have the same secret.

    Every method raises RankError: where the other end is gone, silent for `timeout` seconds, or says what it may not.
    """

    def __init__(self, sock: socket.socket, secret: bytes, *, timeout: float, rank: int | None = None) -> None:
        """Greet the other end. Its first frame shows whether it has the secret."""
        self._socket, self.rank = sock, rank
        self._sent = self._received = 0
        self.wait(timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
        ours = secrets.token_bytes(_NONCE)
        self._write(_HELLO + ours)
        greeting = bytes(self._read(bytearray(len(_HELLO) + _NONCE)))
        theirs = greeting[len(_HELLO) :]
        if not greeting.startswith(_HELLO) or theirs == ours:  # an echo would have our own key
            raise RankError(rank, "is no rank of this program")
        self._out, self._in = _key(secret, ours, theirs), _key(secret, theirs, ours)

    def wait(self, timeout: float) -> None:
        """From now on, so many seconds for the other end."""
        self.timeout = timeout
        self._socket.settimeout(timeout)

    @property
    def own_host(self) -> str:
        """This end's address."""
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        self._socket.close()

    def end(self) -> None:
        """Nothing more is sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def drain(self, deadline: float) -> None:
        """Read until the other end closes: to close with bytes unread would take back what was just sent."""
        with suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(_PIECE):
                    return

    # -- messages -----------------------------------------------------------------------------------------------

    def tell(self, message: Json) -> None:
        """Send JSON as the ledger has it: no floats, no null."""
        self._send(_JSON, memoryview(jcs.encode(message)))

    def send(self, data: memoryview) -> None:
        """Send bytes whose number the other end knows."""
        self._send(_BYTES, data)

    def hear(self, *, patient: bool = False) -> Json:
        """Receive JSON; with `patient`, however long it takes."""
        self._socket.settimeout(None if patient else self.timeout)
        try:
            header = self._read(bytearray(_HEADER.size))
        finally:
            self._socket.settimeout(self.timeout)
        kind, length = _HEADER.unpack(header)
        if kind != _JSON or length > JSON_LIMIT:
            raise self._unexpected(kind, length, "a message")
        return self._message(header, length)

    def has_message(self, limit: int) -> bool:
        """Whether a whole message is here, so that hear() waits for nothing. RankError if it is longer than `limit`."""
        header = _peek(self._socket, self.rank, _HEADER.size)
        if len(header) < _HEADER.size:
            return False
        kind, length = _HEADER.unpack(header)
        if kind != _JSON or length > limit:
            raise self._unexpected(kind, length, f"a message of at most {limit} bytes")
        whole = _HEADER.size + int(length) + _MAC
        return len(_peek(self._socket, self.rank, whole)) == whole

    def receive(self, into: memoryview) -> None:
        """Receive exactly as many bytes as `into` has. An end that failed says so instead."""
        header = self._read(bytearray(_HEADER.size))
        kind, length = _HEADER.unpack(header)
        if kind == _JSON and length <= JSON_LIMIT:
            self._message(header, length)
        if kind != _BYTES or length != len(into):
            raise self._unexpected(kind, length, f"{len(into)} bytes")
        self._payload(header, into)

    # -- frames -------------------------------------------------------------------------------------------------

    def _send(self, kind: bytes, data: memoryview) -> None:
        header = _HEADER.pack(kind, len(data))
        digests = [submit(_sha256, piece) for piece in _pieces(data)]  # while the bytes are on their way
        self._write(header)
        for piece in _pieces(data):
            self._write(piece)
        self._write(_mac(self._out, self._sent, header, digests))
        self._sent += 1

    def _message(self, header: bytearray, length: int) -> Json:
        data = bytearray(length)
        self._payload(header, memoryview(data))
        try:
            message = jcs.parse(bytes(data), max_bytes=JSON_LIMIT)
        except BitwitnessError as error:
            raise RankError(self.rank, f"sends what cannot be read: {error}") from None
        if not isinstance(message, dict):
            raise RankError(self.rank, "sends what is no message")
        if "failed" in message:
            raise RankFailed(self.rank, str(message["failed"])[:400])
        return message

    def _payload(self, header: bytearray, into: memoryview) -> None:
        digests = [submit(_sha256, self._read(piece)) for piece in _pieces(into)]
        due = _mac(self._in, self._received, bytes(header), digests)
        if not hmac.compare_digest(due, self._read(bytearray(len(due)))):
            raise RankError(self.rank, "has another secret, or its message was changed on the way")
        self._received += 1

    def _unexpected(self, kind: bytes, length: int, due: str) -> RankError:
        what = f"{length} bytes" if kind == _BYTES else f"a message of {length} bytes" if kind == _JSON else "noise"
        return RankError(self.rank, f"sends {what} where {due} must come")

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise RankError(self.rank, f"has taken nothing for {self.timeout:g} seconds") from None
        except OSError as error:
            raise self._gone(error) from None

    def _read(self, into: Buffer) -> Buffer:
        view, at = memoryview(into), 0
        try:
            while at < len(view):
                count = self._socket.recv_into(view[at:])
                if not count:
                    raise RankError(self.rank, "is gone: it closed the connection")
                at += count
        except TimeoutError:
            raise RankError(self.rank, f"has sent nothing for {self.timeout:g} seconds") from None
        except OSError as error:
            raise self._gone(error) from None
        return into

    def _gone(self, error: OSError) -> RankError:
        return RankError(self.rank, f"is gone: {(error.strerror or str(error)).lower()}")


def fail(channels: Iterable[Channel], why: BaseException | str) -> None:
    """Tell the other ends why this one goes, leave them the time to read it, and close."""
    left, reason = list(channels), why if isinstance(why, str) else _reason(why)
    for channel in left:
        with suppress(RankError, OSError):
            channel.tell({"failed": reason})
            channel.end()
    deadline = time.monotonic() + _PARTING
    for channel in left:
        channel.drain(deadline)
        channel.close()


@contextmanager
def understood(rank: int) -> Iterator[None]:
    """Read what a rank says; RankError where it is not what this version says."""
    try:
        yield
    except (FormatError, KeyError, TypeError, ValueError):
        raise RankError(rank, "sends what this version does not know") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, (BitwitnessError, KernelError)):
        return str(error)
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"


def _peek(sock: socket.socket, rank: int | None, most: int) -> bytes:
    """What has arrived and was not read, of `most` bytes, without waiting."""
    timeout = sock.gettimeout()
    sock.setblocking(False)
    try:
        here = sock.recv(most, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
    except OSError as error:
        raise RankError(rank, f"is gone: {(error.strerror or str(error)).lower()}") from None
    finally:
        sock.settimeout(timeout)
    if not here:
        raise RankError(rank, "is gone: it closed the connection")
    return here


def _keep_alive(sock: socket.socket) -> None:
    """Notice within two minutes that a machine is gone, which says nothing of it itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _key(secret: bytes, sender: bytes, receiver: bytes) -> bytes:
    return hmac.digest(secret, _HELLO + sender + receiver, "sha256")


def _mac(key: bytes, number: int, header: bytes, digests: list[Future[bytes]]) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + header + b"".join(d.result() for d in digests), "sha256")


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _pieces(data: memoryview) -> list[memoryview]:
    return [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
