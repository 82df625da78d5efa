"""A witness: the public flow of requests, every answer, its memory across restarts, races and a full disk."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from bitwitness.ledger import cli, keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.errors import BitwitnessError, NoteError
from bitwitness.ledger.exchange import listen
from bitwitness.ledger.exchange.prompt_heads import PromptHeads
from bitwitness.ledger.follow import fork
from bitwitness.ledger.note import COSIGNATURE, Verifier
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.witnessing import witness_server
from bitwitness.ledger.witnessing.witness import SIZE, Witness, WitnessStateError
from bitwitness.ledger.witnessing.witness_request import AddCheckpoint, parse_request, request_text

SIGNER = keys.Signer.from_seed("witness", bytes([7]) * 32)
LOG = keys.Signer.from_seed("log", bytes([8]) * 32)
ORIGIN = "log.example/1"
VERIFIER = Verifier(ORIGIN, LOG.public)
LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(40)]


def signed(size: int, leaves: list[bytes] = LEAVES, signer: keys.Signer = LOG, origin: str = ORIGIN) -> str:
    return note.sign_note(Checkpoint(origin, size, merkle.root(leaves[:size])).format(), origin, signer)


def request(old: int, size: int, leaves: list[bytes] = LEAVES) -> str:
    proof = merkle.consistency_proof(old, leaves[:size]) if 0 < old <= size else []
    return request_text(old, proof, signed(size, leaves))


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness("w.example", SIGNER, [VERIFIER], tmp_path / "w.db", clock=lambda: 1_700_000_000.9)


def test_public_flow(vectors: Path, tmp_path: Path) -> None:
    """One answer is that of today's specification, 404 for an unknown log, where the file says 403."""
    data = json.loads((vectors / "tlog" / "witness_add_checkpoint_flow.json").read_text())
    state = tmp_path / "w.db"
    for item in data["requests"]:
        # A new process for each request: all memory is in the file.
        witness = Witness("example.com/witness", SIGNER, [Verifier.parse(data["log_vkey"])], state)
        answer = witness.add_checkpoint(item["request"])
        witness.close()
        unknown = item["body"] == "unknown log"
        assert answer.status == (404 if unknown else item["status"])
        assert answer.body == item["body"] if item["body_op"] == "==" else item["body"] in answer.body
        assert (answer.content_type == SIZE) == (answer.status == 409)
        assert parse_request(item["request"]).format() == item["request"]
        if answer.status == 200:
            text = item["request"].split("\n\n", 1)[1]
            cosigned = text + answer.body
            opened = note.open_note(cosigned, [Verifier("example.com/witness", SIGNER.public, COSIGNATURE)])
            assert opened.verified[0].timestamp is not None


def test_cosigns_what_extends(witness: Witness) -> None:
    last = 0
    for size in (1, 1, 2, 7, 8, 8, 33, 40):
        answer = witness.add_checkpoint(request(last, size))
        assert answer.status == 200, answer
        opened = note.open_note(signed(size) + answer.body, [VERIFIER, witness.verifier])
        assert [item.timestamp for item in opened.verified] == [None, 1_700_000_000]
        last = size
        assert witness.newest(ORIGIN) == (size, merkle.root(LEAVES[:size]))


def test_every_other_answer_changes_nothing(witness: Witness) -> None:
    assert witness.add_checkpoint(request(0, 5)).status == 200
    before = witness.newest(ORIGIN)
    other = [merkle.leaf_hash(b"x"), *LEAVES[1:]]
    wrong_key = keys.Signer.from_seed("log", bytes(32))
    good = request(5, 9)
    cases = {
        400: [b"", "", "old 5\n", good.replace("old 5", "old 05"), good.replace("old 5\n", "old 5\n\n", 1), good[:-1],
              good.replace("old 5", "new 5"), b"\xff" + good.encode(), request(9, 7), good.replace("\n9\n", "\n09\n"),
              "old 5\n" + "A" * 43 + "=\n" * 64 + "\n" + signed(9), "x" * 2_000_000],
        403: [request_text(5, [], signed(9, signer=wrong_key)), good.replace("\n9\n", "\n8\n")],
        404: [request_text(0, [], signed(9, origin="other.example"))],
        409: [request(0, 9), request(4, 9), request(0, 5), request(3, 4), request(0, 0), request(5, 5, other)],
        422: [request(5, 9, other), request_text(5, [], signed(9)), request_text(5, [bytes(32)], signed(9)),
              request_text(5, [bytes(32)], signed(5))],
    }  # fmt: skip
    for status, bodies in cases.items():
        for body in bodies:
            answer = witness.add_checkpoint(body)
            assert answer.status == status, (body[:200], answer)
            if status == 409:
                assert answer.body == "5\n" and answer.content_type == SIZE
    assert witness.newest(ORIGIN) == before
    assert witness.add_checkpoint(good).status == 200


def test_two_roots_of_one_size_are_kept_as_evidence(witness: Witness) -> None:
    other = [*LEAVES[:4], merkle.leaf_hash(b"x")]
    assert witness.add_checkpoint(request(0, 5)).status == 200
    for _ in range(2):
        assert witness.add_checkpoint(request(5, 5, other)).status == 409
    ((origin, first, second),) = witness.forks()
    assert origin == ORIGIN and first != second
    for text in (first, second):
        assert note.open_note(text, [VERIFIER]).verified


def test_a_fork_is_an_alarm_with_evidence(
    witness: Witness, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = Trust(ORIGIN, VERIFIER, keys.Signer.from_seed("root", bytes(32)).public)
    assert witness.add_checkpoint(request(0, 5)).alarm is None
    assert witness.add_checkpoint(request(0, 9)).alarm is None  # a size that is not the last one is no fork
    assert over_http(witness, part(request(0, 5, [*LEAVES[:4], merkle.leaf_hash(b"x")])))[0] == 409
    (path,) = (tmp_path / "w.db.forks").iterdir()
    said = f"FORK: {ORIGIN} signed two roots for 5 entries; evidence in {path}"
    assert capsys.readouterr().err == f"ALARM  {said}\n"
    (check,) = fork.verify_fork(path.read_bytes(), pinned)
    assert check.ok is False
    # By file it is said, too, and not that another request would do.
    keys.save(SIGNER, tmp_path / "w.pem")
    (tmp_path / "request").write_text(request(0, 5, [*LEAVES[:4], merkle.leaf_hash(b"x")]))
    command = ["witness", "sign", str(tmp_path / "request"), "--key", str(tmp_path / "w.pem")]
    assert cli.main([*command, "--name", "w.example", "--log", VERIFIER.vkey]) == 1
    assert f"error: {said}" in capsys.readouterr().err
    # Whoever has the log's key fills no disk with them.
    monkeypatch.setattr("bitwitness.ledger.witnessing.witness.MAX_FORKS", 3)
    for number in range(6):
        more = witness.add_checkpoint(request(0, 5, [*LEAVES[:4], merkle.leaf_hash(b"y%d" % number)]))
        assert more.status == 409 and more.alarm is not None and "FORK" in more.alarm
    assert len(witness.forks()) == 3 and len(list((tmp_path / "w.db.forks").iterdir())) == 3


def test_unknown_signatures_are_ignored_and_not_kept(witness: Witness) -> None:
    noisy = note.add_signatures(signed(3), [note.SignatureLine("noise", b"1234", b"5" * 64)])
    assert witness.add_checkpoint(request_text(0, [], noisy)).status == 200
    assert witness.add_checkpoint(request_text(3, [], signed(3, [*LEAVES[:2], LEAVES[9]]))).status == 409
    assert "noise" not in witness.forks()[0][1]


def test_one_of_many_racing_requests_wins(tmp_path: Path) -> None:
    """Two processes' worth of witnesses on one file, eight requests at once, each from size 0."""
    witnesses = [Witness("w.example", SIGNER, [VERIFIER], tmp_path / "w.db") for _ in range(2)]
    answers: list[tuple[int, int]] = []
    barrier = threading.Barrier(8)

    def run(number: int) -> None:
        body = request(0, number + 1)
        barrier.wait()
        answers.append((number + 1, witnesses[number % 2].add_checkpoint(body).status))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [size for size, status in answers if status == 200]
    assert len(winners) == 1 and sorted(status for _size, status in answers) == [200, *[409] * 7]
    newest = witnesses[0].newest(ORIGIN)
    assert newest is not None and newest[0] == winners[0]


def test_nothing_is_given_out_that_is_not_kept(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    real = witness._connection

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def execute(self, sql: str, *arguments: object) -> object:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return real.execute(sql, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(witness, "_connection", Full())
    with pytest.raises(WitnessStateError, match="full"):
        witness.add_checkpoint(request(0, 5))
    monkeypatch.setattr(witness, "_connection", real)
    assert witness.newest(ORIGIN) is None
    assert witness.add_checkpoint(request(0, 4)).status == 200


def test_the_memory_refuses_to_go_back(witness: Witness, tmp_path: Path) -> None:
    witness.add_checkpoint(request(0, 5))
    with sqlite3.connect(tmp_path / "w.db") as raw:
        for sql in ("UPDATE cosigned SET size = 4", "DELETE FROM cosigned"):
            with pytest.raises(sqlite3.IntegrityError, match="a witness never"):
                raw.execute(sql)


def test_foreign_state_files_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(WitnessStateError, match="not the memory"):
        Witness("w", SIGNER, [VERIFIER], path)
    assert path.read_bytes() == before
    path.write_text("no database at all" * 100)
    with pytest.raises(WitnessStateError):
        Witness("w", SIGNER, [VERIFIER], path)
    with pytest.raises(WitnessStateError):
        Witness("w", SIGNER, [VERIFIER], tmp_path / "missing" / "w.db")
    with pytest.raises(BitwitnessError, match="witness key"):
        Witness("w", LOG, [VERIFIER], tmp_path / "w.db")
    with pytest.raises(BitwitnessError, match="cosigner"):
        Witness("w", SIGNER, [Verifier("w", SIGNER.public, COSIGNATURE)], tmp_path / "w.db")


def over_http(witness: Witness, *messages: dict[str, Any], path: str = "/add-checkpoint", method: str = "POST") -> Any:
    """(status, headers, body) of the server's answer to a request whose body comes in these messages."""
    waiting, sent = list(messages), list[Any]()

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(witness_server.application(witness)({"type": "http", "path": path, "method": method}, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"].decode()


def part(body: str, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body.encode(), "more_body": more}


def test_every_answer_over_http(witness: Witness) -> None:
    status, headers, body = over_http(witness, part(request(0, 5)[:30], True), part(request(0, 5)[30:]))
    assert status == 200 and headers["content-type"] == "text/plain; charset=utf-8"
    assert body.startswith("\N{EM DASH} w.example ") and body.endswith("\n") and body.count("\n") == 1
    for wanted, asked in (
        (400, "nonsense"),
        (400, request(9, 7)),
        (403, request_text(5, [], signed(9, signer=keys.Signer.from_seed("log", bytes(32))))),
        (404, request_text(5, [], signed(9, origin="other.example"))),
        (409, request(0, 9)),
        (409, request(5, 5, [merkle.leaf_hash(b"x"), *LEAVES[1:]])),
        (422, request_text(5, [bytes(32)], signed(9))),
    ):
        status, headers, body = over_http(witness, part(asked))
        assert status == wanted and headers["cache-control"] == "no-store", asked
        assert (headers["content-type"] == "text/x.tlog.size") == (wanted == 409) and (body == "5\n") == (wanted == 409)
    assert over_http(witness, method="GET")[0] == 405
    assert over_http(witness, path="/")[0] == 404
    assert over_http(witness, method="HEAD", path="/vkey")[0] == 200


def test_a_request_that_was_cut_is_not_answered_with_a_cosignature(witness: Witness) -> None:
    """Two signatures, of which one arrived: what is there would be a request, too."""
    whole = request(0, 5) + "\N{EM DASH} more.example AAAAAAAA\n"
    cut = whole[: whole.index("\N{EM DASH} more")]
    status, _headers, said = over_http(witness, part(cut, True), {"type": "http.disconnect"})
    assert status == 400 and "or ended early" in said
    assert witness.newest(ORIGIN) is None
    assert over_http(witness, part(whole))[0] == 200


def test_no_more_of_a_request_is_read_than_one_may_have(witness: Witness) -> None:
    pieces = [part("x" * 100_000, True) for _ in range(20)]
    taken = iter(pieces)
    status, _headers, said = over_http(witness, *pieces)
    assert status == 400 and "larger than" in said
    body = asyncio.run(witness_server._body(lambda: asyncio.sleep(0, next(taken))))
    assert body is None and len(list(taken)) == 20 - 1 - witness_server.MAX_REQUEST // 100_000


def test_a_request_that_trickles_in_is_not_waited_for(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its head nor its body, and the connection ends."""
    monkeypatch.setattr(listen, "SLOWEST", 0.2)
    listener = listen.listen("127.0.0.1", 0)
    config = uvicorn.Config(
        witness_server.application(witness), http=PromptHeads, log_level="error", lifespan="off", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    whole = request(0, 5).encode()
    head = b"POST /add-checkpoint HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n" % len(whole)
    key = b"GET /vkey HTTP/1.1\r\nHost: w\r\n\r\n"
    try:
        for sent, answer in (
            (b"", b""),
            (head[:20], b""),
            (head + whole[:-1], b"HTTP/1.1 408 "),
            (key + head[:20], b"HTTP/1.1 200 "),
            (head + whole, b"HTTP/1.1 200 "),
        ):
            with socket.create_connection(listener.getsockname()[:2], timeout=8) as client:
                client.sendall(sent)
                got = b""
                if sent == head + whole:
                    got = client.recv(100)
                else:
                    while part := client.recv(10_000):  # until the server ends the connection
                        got += part
            assert got.startswith(answer) and bool(got) == bool(answer), (sent, got)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
    assert witness.newest(ORIGIN) == (5, merkle.root(LEAVES[:5]))


def test_requests_that_cannot_be_made() -> None:
    for old, proof in ((-1, ()), (2**63, ()), (1, (b"x",)), (1, (bytes(32),) * 64)):
        with pytest.raises(NoteError):
            AddCheckpoint(old, proof, signed(1))
    full = request_text(1, [bytes(32)] * 63, signed(2))
    assert parse_request(full).format() == full
