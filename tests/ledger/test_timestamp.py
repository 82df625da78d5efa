"""Timestamps by a local authority: `openssl ts` answers over HTTP, our client asks, both check."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bitwitness.ledger import timestamp
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.ledger.timestamp import TimestampRefused, TimestampUnavailable

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


def _openssl(folder: Path, *arguments: str, **options: bytes) -> bytes:
    found = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=False, timeout=60, **options)  # type: ignore[call-overload]
    assert found.returncode == 0, found.stderr
    output: bytes = found.stdout
    return output


def _make_authority(folder: Path) -> None:
    folder.mkdir()
    (folder / "tsa.cnf").write_text(CONFIG.format(dir=folder))
    (folder / "serial").write_text("01\n")
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    own = ["-config", "tsa.cnf", "-extensions", "ca", "-subj", "/CN=Test Root"]
    (folder / "tsa.cnf").write_text(CONFIG.format(dir=folder) + "[req]\ndistinguished_name = dn\n[dn]\n")
    _openssl(folder, "req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-days", "30", *own)
    subject = ["-config", "tsa.cnf", "-subj", "/CN=Test TSA"]
    _openssl(folder, "req", "-new", *ec, "-keyout", "tsa.key", "-out", "tsa.csr", *subject)
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30"]
    extensions = ["-extfile", "tsa.cnf", "-extensions", "extensions"]
    _openssl(folder, "x509", "-req", "-in", "tsa.csr", "-out", "tsa.crt", *signed, *extensions)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    pytest.importorskip("rfc3161_client", reason="rfc3161-client is not installed (extra timestamps)")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    folder = tmp_path_factory.mktemp("tsa") / "tsa"
    _make_authority(folder)
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
                _openssl(folder, "ts", "-reply", "-config", "tsa.cnf", "-queryfile", "in.tsq", "-out", "out.tsr")
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
    yield made
    server.shutdown()
    server.server_close()


def test_a_checkpoint_is_stamped_and_both_verifiers_agree(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.change = ""
    project = Project.create(tmp_path / "project")
    base = ["--project", str(project.root)]
    assert main([*base, "checkpoint"]) == 0
    capsys.readouterr()
    assert main([*base, "timestamp", "get", authority.url, "--ca", str(authority.roots), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    note, answer = (project.root / "timestamps" / f"{said['size']}.{kind}" for kind in ("note", "tsr"))
    files = [str(note), str(answer), "--ca", str(authority.roots)]
    assert main(["timestamp", "verify", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    _openssl(tmp_path, "ts", "-verify", "-data", str(note), "-in", str(answer), "-CAfile", str(authority.roots))
    note.write_text(note.read_text() + "\n")
    assert main(["timestamp", "verify", *files]) == 1
    assert "other bytes" in capsys.readouterr().err


def test_what_is_no_timestamp_of_the_note_is_refused(authority: Authority, tmp_path: Path) -> None:
    authority.change = ""
    note = b"a note\n"
    roots = timestamp.load_roots(authority.roots.read_bytes())
    answer = timestamp.ask(authority.url, note)
    assert timestamp.check(answer, note, roots)
    other = tmp_path / "other"
    _make_authority(other)
    with pytest.raises(TimestampRefused, match="not by an authority"):
        timestamp.check(answer, note, timestamp.load_roots((other / "ca.crt").read_bytes()))
    with pytest.raises(TimestampRefused, match="other bytes"):
        timestamp.check(answer, b"another\n", roots)
    for place in range(len(answer) // 2, len(answer), 97):
        damaged = bytearray(answer)
        damaged[place] ^= 1
        if damaged != answer:
            with pytest.raises((TimestampRefused, TimestampUnavailable)):
                timestamp.check(bytes(damaged), note, roots)
    for bad in (b"", b"\x30\x03", b"x" * (timestamp.LIMIT + 1)):
        with pytest.raises(TimestampRefused):
            timestamp.check(bad, note, roots)
    authority.change = "replay"
    with pytest.raises(TimestampRefused, match="another question"):
        timestamp.ask(authority.url, note)
    authority.change = "refused"
    with pytest.raises(TimestampUnavailable, match="answered 503"):
        timestamp.ask(authority.url, note)
    with pytest.raises(TimestampUnavailable, match="no PEM"):
        timestamp.load_roots(b"nothing")
