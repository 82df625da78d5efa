"""A web server that lies: it serves an export, and a test says what it does to each answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Answer:
    """What is sent: `data` in pieces, under these headers; Content-Length is that of the data unless given."""

    status: int
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)
    endless: bool = False


Twist = Callable[[str, Answer], Answer]


class Hostile:
    """`requests` are the paths asked for, in order; `ranges` is whether ranges are known."""

    def __init__(self, folder: Path, twist: Twist, *, ranges: bool = True) -> None:
        self.requests: list[str] = []
        self.sent = 0
        hostile = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hostile.requests.append(self.path[1:])
                path = folder / self.path[1:]
                answer = Answer(404, b"") if not path.is_file() else Answer(200, path.read_bytes())
                answer = twist(self.path[1:], answer)
                stated = self.headers.get("range")
                if stated and ranges and answer.status == 200:
                    first, _dash, last = stated.removeprefix("bytes=").partition("-")
                    size = len(answer.data)
                    answer.data = answer.data[int(first) : int(last or size) + 1]
                    answer.status = 206 if answer.data else 416
                    answer.headers["Content-Range"] = f"bytes {first}-{int(first) + len(answer.data) - 1}/{size}"
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.data)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(answer.data)
                    hostile.sent += len(answer.data)
                    while answer.endless:
                        self.wfile.write(answer.data)
                except OSError:
                    return

            def do_POST(self) -> None:
                hostile.requests.append("POST " + self.path[1:])
                self.rfile.read(int(self.headers.get("content-length", 0)))
                answer = twist("POST " + self.path[1:], Answer(200, b""))
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.data)))
                self.end_headers()
                self.wfile.write(answer.data)

            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def hostile(folder: Path, twist: Twist = lambda path, answer: answer, *, ranges: bool = True) -> Iterator[Hostile]:
    server = Hostile(folder, twist, ranges=ranges)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
