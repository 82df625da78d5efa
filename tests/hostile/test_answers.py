"""Servers that answer with anything at all: whoever asks them ends in one line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bitwitness.ledger import note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.witnessing.cosign import Target, _Asking
from tests.hostile.readers import LOG, ORIGIN, SIGNERS

BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
ANSWERS = {
    "nothing": b"",
    "noise": b"\x00\xff" * 500,
    "no header": b"abc\r\n\r\n",
    "old": b"HTTP/0.9 200 OK\r\n\r\nabc",
    "version": b"HTTP/9.9 200 OK\r\ncontent-length: 3\r\n\r\nabc",
    "status": b"HTTP/1.1 99999 OK\r\ncontent-length: 3\r\n\r\nabc",
    "status word": b"HTTP/1.1 two OK\r\n\r\n",
    "negative length": BODY.replace(b": 3", b": -3"),
    "long length": BODY.replace(b": 3", b": " + b"9" * 5000),
    "length word": BODY.replace(b": 3", b": three"),
    "two lengths": BODY.replace(b"content", b"content-length: 4\r\ncontent"),
    "cut": BODY[:-1],
    "more": BODY + b"def",
    "chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "large chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    "coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: nonsense\r\n\r\nabc",
    "gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
    "br": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 3\r\n\r\nabc",
    "strange packing": b"HTTP/1.1 200 OK\r\ncontent-encoding: \xff\xfe\x80\r\ncontent-length: 3\r\n\r\nabc",
    "range": b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 5-\xff\r\ncontent-length: 3\r\n\r\nabc",
    "redirect": b"HTTP/1.1 302 Found\r\nlocation: \xff://\r\ncontent-length: 0\r\n\r\n",
    "informational": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "long header": b"HTTP/1.1 200 OK\r\na: " + b"x" * 300_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 30_000 + b"\r\n",
    "bad header": b"HTTP/1.1 200 OK\r\n\x00: \x00\r\n: x\r\n\r\n",
    "surrogates": b"HTTP/1.1 403 \xed\xa0\x80\r\ncontent-length: 3\r\n\r\n\xed\xa0\x80",
}


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """An address where every request is answered with these bytes, whatever it is."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                connection.recv(1 << 16)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.close()


def in_one_line(call: Callable[[], Any]) -> None:
    try:
        call()
    except BitwitnessError as error:
        assert str(error).isprintable() and 0 < len(str(error)) < 600


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none(name: str) -> None:
    with server(ANSWERS[name]) as url, Remote(url) as remote:
        in_one_line(lambda: remote.get("checkpoint", 1000))
        in_one_line(lambda: remote.get_range("tile/0/000", 3, 3))
        in_one_line(lambda: remote.post("add-checkpoint", "text", 1000))


LINE = note.cosignature_line(
    Checkpoint(ORIGIN, 3, bytes(32)).format(), "w.example", SIGNERS["witness"], 1_700_000_000
).format()


NAME = "\N{EM DASH} w.example ".encode()


@pytest.mark.parametrize(
    "body",
    [
        LINE.encode(), b"", b"\n", b"\xff\xfe", LINE.encode() * 200, LINE.encode()[:-9] + b"\n", b"x" * 70_000,
        NAME + b"\n", NAME + b"A" * 4000 + b"\n", LINE.replace("w.example", "w" * 9000).encode(), b"\x00" * 9,
        LINE.encode().replace(b"\n", b"\r\n"), b"\n\n" + LINE.encode(), LINE.encode() + b"\n\n" + LINE.encode(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [b"200 OK", b"409 Conflict", b"500 No"])
def test_a_witness_that_answers_anything(status: bytes, body: bytes) -> None:
    signed = note.sign_note(Checkpoint(ORIGIN, 3, bytes(32)).format(), ORIGIN, LOG)
    verifier = note.Verifier("w.example", SIGNERS["witness"].public, note.COSIGNATURE)
    kinds = b"text/x.tlog.size" if status.startswith(b"409") else b"text/plain"
    answer = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kinds, len(body), body)
    with server(answer) as url:
        for target in (Target(url, verifier), Target(url)):
            asking = _Asking(target, signed, 3, 0)
            asking.ask()
            assert asking.line is not None or asking.failure is not None
            assert asking.failure is None or (len(str(asking.failure)) < 600 and str(asking.failure).isprintable())
