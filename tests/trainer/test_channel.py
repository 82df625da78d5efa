"""Messages between ranks: whole, from who has the secret, in time; anything else is one line."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bitwitness.trainer.cluster.channel import JSON_LIMIT, Channel, RankError, RankFailed, fail

SECRET = b"known to both ends"
Pair = tuple[Channel, Channel]


def connected(ours: bytes = SECRET, theirs: bytes = SECRET, timeout: float = 5.0) -> Pair:
    server = socket.create_server(("127.0.0.1", 0))
    with server, ThreadPoolExecutor() as pool:
        other = pool.submit(lambda: Channel(server.accept()[0], theirs, timeout=timeout, rank=0))
        return Channel(socket.create_connection(server.getsockname()), ours, timeout=timeout, rank=3), other.result()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = connected(timeout=0.5)
    yield ends
    for end in ends:
        end.close()


def raw(channel: Channel) -> socket.socket:
    return channel._socket


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    a, b = pair
    large = os.urandom((5 << 20) + 3)
    into = bytearray(len(large))
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(lambda: (a.tell({"first": 1}), a.send(memoryview(large)), a.tell({"last": [2]})))
        assert b.hear() == {"first": 1}
        b.receive(memoryview(into))
        assert into == large and b.hear() == {"last": [2]}
        sent.result()
    b.tell({"back": "and forth"})
    assert a.hear() == {"back": "and forth"}


def test_another_secret_is_known_by_the_first_message() -> None:
    a, b = connected(theirs=b"another")
    a.tell({"rank": 1})
    with pytest.raises(RankError, match="rank 0 has another secret"):
        b.hear()


def test_who_sends_back_what_it_hears_is_no_rank() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, ThreadPoolExecutor() as pool:

        def echo() -> None:
            sock = server.accept()[0]
            sock.sendall(sock.recv(1 << 10))
            sock.recv(1)

        pool.submit(echo)
        sock = socket.create_connection(server.getsockname())
        with sock, pytest.raises(RankError, match="a peer is no rank"):
            Channel(sock, SECRET, timeout=5)


def test_a_bit_that_changes_on_the_way_and_a_message_played_again_are_found() -> None:
    for change in (lambda frame: frame[:12] + bytes([frame[12] ^ 1]) + frame[13:], lambda frame: frame + frame):
        a, b = connected()
        sent: list[bytes] = []
        a._write = sent.append  # type: ignore[assignment]
        a.tell({"n": 1})
        raw(a).sendall(change(b"".join(map(bytes, sent))))
        with pytest.raises(RankError, match="another secret, or its message was changed"):
            b.hear()
            b.hear()


@pytest.mark.parametrize(("sent", "due"), [(3, 4), (5, 4), (0, 4)])
def test_another_number_of_bytes_is_refused(pair: Pair, sent: int, due: int) -> None:
    a, b = pair
    a.send(memoryview(bytes(sent)))
    with pytest.raises(RankError, match=f"rank 0 sends {sent} bytes where {due} bytes must come"):
        b.receive(memoryview(bytearray(due)))


def test_what_is_neither_is_refused_before_it_takes_memory(pair: Pair) -> None:
    a, b = pair
    raw(a).sendall(struct.pack(">cQ", b"J", JSON_LIMIT + 1))
    with pytest.raises(RankError, match=f"sends a message of {JSON_LIMIT + 1} bytes where a message must come"):
        b.hear()
    raw(b).sendall(struct.pack(">cQ", b"?", 1))
    with pytest.raises(RankError, match="rank 3 sends noise"):
        a.hear()


def test_bytes_where_a_message_must_come(pair: Pair) -> None:
    a, b = pair
    a.send(memoryview(b"abc"))
    with pytest.raises(RankError, match="sends 3 bytes where a message must come"):
        b.hear()
    b.tell({"n": 1})
    with pytest.raises(RankError, match="rank 3 sends a message of 7 bytes where 4 bytes must come"):
        a.receive(memoryview(bytearray(4)))


def test_silence_and_an_end_are_told_apart(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(RankError, match=r"rank 0 has sent nothing for 0\.5 seconds"):
        b.hear()
    a.close()
    with pytest.raises(RankError, match="rank 0 is gone"):
        b.hear()


def test_why_an_end_goes_is_heard_wherever_something_else_must_come(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitwitness.trainer.cluster.channel._PARTING", 0.1)
    a, b = pair
    fail([a], "out of memory")
    with pytest.raises(RankFailed, match=r"^rank 0 failed: out of memory$"):
        b.receive(memoryview(bytearray(4)))
    a, b = connected()
    fail([a], "rank 5 is gone")
    with pytest.raises(RankFailed, match=r"^rank 5 is gone$"):
        b.hear()
