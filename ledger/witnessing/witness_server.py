"""`ledger witness serve`: the witness over HTTP, C2SP tlog-witness, and its own key at /vkey for people to pin."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..errors import BitwitnessError
from ..exchange import listen
from .witness import Answer, Witness
from .witness_request import MAX_REQUEST

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def application(witness: Witness) -> Application:
    """The ASGI application of one witness."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _send(send, await _answer(witness, scope, receive))

    return respond


async def _answer(witness: Witness, scope: Scope, receive: Receive) -> Answer:
    path, method = scope["path"], scope["method"]
    if path == "/vkey" and method in ("GET", "HEAD"):
        return Answer(200, f"{witness.verifier.vkey}\n")
    if path != "/add-checkpoint":
        return Answer(404, "POST /add-checkpoint, or GET /vkey\n")
    if method != "POST":
        return Answer(405, "POST a checkpoint here\n")
    try:
        async with asyncio.timeout(listen.SLOWEST):
            body = await _body(receive)
    except TimeoutError:
        return Answer(408, f"the request took more than {listen.SLOWEST:g} seconds\n")
    if body is None:
        return Answer(400, f"the request is larger than {MAX_REQUEST} bytes, or ended early\n")
    try:
        # SQLite waits for the disk; other requests need not wait with it.
        answer = await asyncio.to_thread(witness.add_checkpoint, body)
    except BitwitnessError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return Answer(500, "the witness cannot keep its state; nothing was cosigned\n")
    if answer.alarm is not None:
        print(f"ALARM  {answer.alarm}", file=sys.stderr, flush=True)
    return answer


async def _body(receive: Receive) -> bytes | None:
    """The whole body, None if it is too large or was cut. What was not read is dropped with the connection."""
    parts = bytearray()
    while True:
        message = await receive()
        parts += message.get("body", b"")
        if message["type"] != "http.request" or len(parts) > MAX_REQUEST:
            return None
        if not message.get("more_body"):
            return bytes(parts)


async def _send(send: Send, answer: Answer) -> None:
    body = answer.body.encode("utf-8")
    headers = [
        (b"content-type", answer.content_type.encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if answer.status == 408:
        headers.append((b"connection", b"close"))  # what is still to come is not waited for
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def run_server(witness: Witness, host: str, port: int) -> None:
    """Serve until interrupted; prints the address. Raises CannotListen."""
    # It takes a tenth of a second to import, and only this command needs it.
    import uvicorn

    from ..exchange.prompt_heads import PromptHeads

    listener = listen.listen(host, port)
    config = uvicorn.Config(
        application(witness),
        http=PromptHeads,
        log_level="warning",
        lifespan="off",
        server_header=False,
        access_log=False,
    )
    config.timeout_graceful_shutdown = 2
    print(listen.address_of(listener), flush=True)
    print(f"witness {witness.verifier.vkey}\nCtrl-C stops it", file=sys.stderr, flush=True)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
