"""A local RFC 3161 authority: `openssl ts` answers over HTTP."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

CONFIG = """
[tsa]
default_tsa = tsa1
[tsa1]
dir = {dir}
serial = $dir/serial
crypto_device = builtin
signer_cert = $dir/tsa.crt
signer_key = $dir/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
ordering = yes
tsa_name = no
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[extensions]
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""


@dataclass
class Authority:
    url: str
    folder: Path
    change: str = ""

    @property
    def roots(self) -> Path:
        return self.folder / "ca.crt"


def openssl(folder: Path, *arguments: str, **options: bytes) -> bytes:
    found = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=False, timeout=60, **options)  # type: ignore[call-overload]
    assert found.returncode == 0, found.stderr
    output: bytes = found.stdout
    return output


def make_authority(folder: Path) -> None:
    folder.mkdir()
    (folder / "tsa.cnf").write_text(CONFIG.format(dir=folder))
    (folder / "serial").write_text("01\n")
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    own = ["-config", "tsa.cnf", "-extensions", "ca", "-subj", "/CN=Test Root"]
    (folder / "tsa.cnf").write_text(CONFIG.format(dir=folder) + "[req]\ndistinguished_name = dn\n[dn]\n")
    openssl(folder, "req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-days", "30", *own)
    subject = ["-config", "tsa.cnf", "-subj", "/CN=Test TSA"]
    openssl(folder, "req", "-new", *ec, "-keyout", "tsa.key", "-out", "tsa.csr", *subject)
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30"]
    extensions = ["-extfile", "tsa.cnf", "-extensions", "extensions"]
    openssl(folder, "x509", "-req", "-in", "tsa.csr", "-out", "tsa.crt", *signed, *extensions)


@contextmanager
def serving(folder: Path) -> Iterator[Authority]:
    """An authority whose files are in the new ``folder``; skips the test where it cannot be made."""
    pytest.importorskip("rfc3161_client", reason="rfc3161-client is not installed (extra timestamps)")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    make_authority(folder)
    made = Authority("", folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["Content-Length"]))
            if made.change == "refused":
                self.send_error(503)
                return
            (folder / "in.tsq").write_bytes(query)
            if made.change == "replay":
                answer = (folder / "out.tsr").read_bytes()
            else:
                openssl(folder, "ts", "-reply", "-config", "tsa.cnf", "-queryfile", "in.tsq", "-out", "out.tsr")
                answer = (folder / "out.tsr").read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
