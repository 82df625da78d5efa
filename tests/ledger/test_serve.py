"""`ledger serve` over HTTP: every page, every link, hostile text, proofs, a writer at work, what the public sees."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.entry.envelope import assemble
from bitwitness.ledger.exchange.listen import is_loopback
from bitwitness.ledger.note import Verifier
from bitwitness.ledger.project import Project
from bitwitness.ledger.proof_file import verify_proof
from bitwitness.ledger.trust import load_trust

from .serve_sample import HOSTILE, LONG_NAME, Sample, build

STEPS = 44
LEDGER = [sys.executable, "-c", "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"]


class Server:
    """A running `ledger serve`."""

    def __init__(self, project: Project) -> None:
        self.project = project
        command = [*LEDGER, "--project", str(project.root), "serve", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError(self.process.communicate()[1])
        self.client = httpx.Client(base_url=self.address, timeout=60)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def stop(self) -> tuple[int, str]:
        self.client.close()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return build(tmp_path_factory.mktemp("serve") / "project", STEPS)


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Server]:
    running = Server(project)
    yield running
    _, errors = running.stop()
    assert "Traceback" not in errors


class Links(HTMLParser):
    """Addresses that a page leads to, and everything in it that a strict page must not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.forbidden: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "base", "style"):
            self.forbidden.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.forbidden.append(f"{tag} {name}")
            if name == "id" and value:
                self.ids.add(value)
            if name in ("href", "action") and value is not None:
                (self.loads if tag == "link" else self.links).append(value)
            if name in ("src", "srcset") and value is not None:
                self.loads.append(value)


def test_every_link_of_every_page_leads_somewhere(server: Server) -> None:
    waiting, seen = ["/"], {"/"}
    pages: dict[str, Links] = {}
    anchors: list[tuple[str, str]] = []
    tables = 0
    while waiting:
        path = waiting.pop()
        answer = server.get(path)
        for _ in range(3):
            if answer.is_redirect:
                answer = server.get(answer.headers["location"])
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
        if urlsplit(path).path.startswith("/ledger"):  # Datasette's own pages: their links are its own affair
            tables += 1
            continue
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        assert "<script>alert" not in answer.text
        assert "//evil.example/x>" not in answer.text.replace("//evil.example/x&gt;", "")
        page = Links(answer.text)
        assert not page.forbidden, f"{path}: {page.forbidden}"
        pages[path] = page
        for link in page.links + page.loads:
            target, anchor = urldefrag(urljoin(path, link))
            assert urlsplit(link).netloc == "" and not link.startswith("//"), f"{path} leads outside: {link}"
            if anchor:
                anchors.append((target, anchor))
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    for target, anchor in anchors:
        if target in pages:
            assert anchor in pages[target].ids, f"{target} has no {anchor}"
    shown = {
        re.sub(r"\d+", "N", path.replace("demo-lm", "M").replace("demo", "R").replace(LONG_NAME, "R")) for path in pages
    }
    assert {"/", "/runs/R", "/runs/R/steps", "/runs/R/steps/N", "/audits/N", "/models/M/N", "/entries/N"} <= shown
    assert {"/datasets/N", "/checkpoints", "/keys", "/entries"} <= shown
    assert tables >= 1


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/", ["demo", LONG_NAME, "demo-lm", "bitwitness.invalid/", "keys pinned in"]),
        ("/runs", ["demo", "ended", "halted: nan"]),
        ("/runs/demo", ["Loss by step", "letters", "Stored states", "resume", "&lt;script&gt;alert", "0.003"]),
        (f"/runs/{LONG_NAME}", ["mismatch", "demo", "step 22"]),
        ("/runs/demo/steps", [f"/runs/demo/steps/{STEPS}", "match"]),
        (
            "/runs/demo/steps/7",
            ["record verified", "3b449ba6", "0.003", "Proof of inclusion", "tlog-proof", "--run demo --step 7"],
        ),
        ("/audits", ["match", "mismatch", "Announced, without a result"]),
        ("/models", ['<span class="tag live">champion</span>', '<span class="tag">deprecated</span>']),
        ("/models/demo-lm", ['<span class="tag live">champion</span>', '<span class="tag">deprecated</span>']),
        ("/models/demo-lm/1", ["pystdlib", "approved", "model.safetensors", "record verified", "alias champion"]),
        ("/models/demo-lm/1", ["Deprecated by its publisher: "]),
        ("/datasets", ["pystdlib", "letters", "private", "&lt;script&gt;"]),
        ("/keys", ["root", "active", "replaced from entry", "revoked from entry"]),
        ("/entries", ["audit-intent", "release", "endorse"]),
        ("/checkpoints", ["signed by", "+"]),
    ],
)
def test_pages_say_what_they_are_for(server: Server, path: str, texts: list[str]) -> None:
    answer = server.get(path)
    assert answer.status_code == 200
    for text in texts:
        assert text in answer.text, text


def test_headers_forbid_everything_from_elsewhere(server: Server) -> None:
    ours = server.get("/runs/demo").headers
    assert "default-src 'none'" in ours["content-security-policy"]
    assert "script-src" not in ours["content-security-policy"]
    for path in ("/runs/demo", "/ledger", "/ledger/steps", "/nothing/here", "/entries/3.json"):
        headers = server.get(path).headers
        policies = headers.get_list("content-security-policy")
        assert len(policies) == 1 and "default-src 'none'" in policies[0] and "http" not in policies[0]
        assert headers["x-content-type-options"] == "nosniff"


def test_style_sheet_and_icon_are_served(server: Server) -> None:
    page = Links(server.get("/").text)
    assert len(page.loads) == 2
    for link in page.loads:
        assert server.get(link).status_code == 200
    assert server.get(page.loads[0]).headers["content-type"].startswith("text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/runs/none", "/runs/demo/steps/99999", "/runs/demo/steps/x", "/runs/none/steps", "/runs/none/steps/1",
        "/audits/0", "/audits/999999", "/models/none", "/models/demo-lm/9", "/datasets/0", "/keys/" + "0" * 64,
        "/entries/999999999", "/entries/999999999999999", "/entries/" + "0" * 64, "/entries/999999.json",
        "/entries/999999.tlog-proof", "/checkpoints/77.txt", "/entries?entry=xyz", "/entries?entry=00000000",
        "/nothing", "/nothing/here/at/all", "/a/b/c/d/e/f/g", "/runs/demo/steps/1/more", "/runs/%3Cscript%3E",
        "/models/demo-lm/999999999999999",
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_clean_404(server: Server, path: str) -> None:
    answer = server.client.get(path, follow_redirects=True)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text and "<script" not in answer.text
    assert "first page" in answer.text


def test_no_address_is_answered_with_500(server: Server) -> None:
    odd = ["/runs/demo/steps?from=-1", "/runs/demo/steps?from=x", "/runs?page=0", "/runs?page=99999999999999999",
           "/entries?before=0", "/entries?before=99999999", "/audits?page=7", "/checkpoints?before=0",
           "/runs/demo/steps?from=999999", "/entries/007", "/%00", "/runs/%ff", "/a/b/c/d.json", "/ledger/none",
           "/ledger/steps/1,2,3", "/-/nothing", "/entries?entry=%00", "/runs/demo/steps?step=999999999"]  # fmt: skip
    for path in odd:
        assert server.client.get(path, follow_redirects=True).status_code < 500, path


def test_hostile_text_is_shown_as_text(server: Server) -> None:
    escaped = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"
    for path in ("/models/demo-lm/1", "/datasets", "/runs/demo", f"/audits/{audit_entries(server)[-1]}"):
        text = server.get(path).text
        assert escaped in text, path
        assert HOSTILE not in text


def audit_entries(server: Server) -> list[int]:
    with server.project.open_ledger() as ledger:
        return [row[0] for row in ledger.connection.execute("SELECT entry FROM audits ORDER BY entry")]


def test_downloads_are_the_signed_bytes_and_the_proof_of_the_command_line(server: Server, tmp_path: Path) -> None:
    trust = load_trust(server.project.trust_path)
    with server.project.open_ledger() as ledger:
        for index in (0, 7, 20, 60):
            raw = server.get(f"/entries/{index}.json")
            assert raw.content == ledger.entry(index)
            assert "immutable" in raw.headers["cache-control"]
            proof = server.get(f"/entries/{index}.tlog-proof")
            assert f'filename="entry-{index}.tlog-proof"' in proof.headers["content-disposition"]
            assert all(check.ok for check in verify_proof(proof.content, trust))
    file = tmp_path / "proof"
    command = [
        *LEDGER,
        "--project",
        str(server.project.root),
        "prove",
        "--run",
        "demo",
        "--step",
        "7",
        "--out",
        str(file),
    ]
    subprocess.run(command, check=True, capture_output=True)
    page = server.get("/runs/demo/steps/7").text
    (address,) = set(re.findall(r'"(/entries/\d+\.tlog-proof)"', page))
    assert server.get(address).content == file.read_bytes()


def test_checkpoints_are_the_signed_notes(server: Server) -> None:
    with server.project.open_ledger() as ledger:
        assert server.get("/checkpoints/2.txt").text == ledger.latest_checkpoint()
    verifier = re.search(r">(bitwitness\.invalid[^<]+)</code>", server.get("/checkpoints").text)
    assert verifier is not None
    Verifier.parse(verifier[1].replace("&#43;", "+"))


def test_entry_can_be_found_by_number_hash_and_prefix(server: Server) -> None:
    with server.project.open_ledger() as ledger:
        leaf = ledger.leaf_hash(9).hex()
    for text in ("9", leaf, leaf[:10], leaf.upper()):
        answer = server.client.get("/entries", params={"entry": text}, follow_redirects=True)
        assert answer.url.path == "/entries/9", text


def test_tables_of_datasette_stay_usable(server: Server) -> None:
    steps = server.get("/ledger/steps").text
    assert ">demo</a>" in steps and 'href="/entries/' in steps
    assert "Mean over the step&#39;s valid tokens" in steps
    assert "Suggested facets" not in steps
    assert server.get("/ledger/steps.json?_shape=array").json()[0]["loss_bits"]
    assert server.get("/ledger/runs/7").status_code == 200
    assert "nodes" not in Links(server.get("/ledger").text).links


def test_a_writer_at_work_shows_on_reload(tmp_path: Path) -> None:
    project = build(tmp_path / "project", STEPS)
    running = Server(project)
    try:
        before = running.get("/").text
        with project.open_ledger(writable=True) as ledger:
            size = ledger.size
            assert f"<strong>{size}</strong>" in before
            sample = Sample(project, ledger)
            train = sample.dataset("more", "public")
            run = sample.run("later", 9, train, None)
            assert "Nobody has replayed" in running.get("/runs/later").text
            sample.train(run, 1, 3)
            page = running.get("/runs/later")
            assert "/runs/later/steps/3" in page.text
            assert f"<strong>{ledger.size}</strong>" in running.get("/").text
            step = running.get("/runs/later/steps/3").text
            assert "no checkpoint yet" in step and "No signed checkpoint covers" in step
            entry = ledger.size - 1
            assert running.get(f"/entries/{entry}.tlog-proof").status_code == 404
            ledger.sign_checkpoint(sample.signers["log"])
            assert "record verified" in running.get("/runs/later/steps/3").text
            assert running.get(f"/entries/{entry}.tlog-proof").status_code == 200
    finally:
        _code, errors = running.stop()
    assert "Traceback" not in errors


def test_writers_come_and_go_beside_it(tmp_path: Path) -> None:
    """Each that ends would take the write-ahead log away, if the server had lost its locks on the file."""
    project = build(tmp_path / "project", STEPS)
    running = Server(project)
    descriptors = Path(f"/proc/{running.process.pid}/fd")
    write = (
        "import sys; from pathlib import Path; from bitwitness.ledger.project import Project\n"
        "from tests.ledger.serve_sample import Sample\n"
        "with (project := Project.find(Path(sys.argv[1]))).open_ledger(writable=True) as ledger:\n"
        "    sample = Sample(project, ledger); sample.dataset(sys.argv[2], 'public')\n"
        "    ledger.sign_checkpoint(sample.signers['log'])\n"
    )
    try:
        for name in ("one", "two", "three"):
            for page in ("/", "/ledger", "/checkpoint"):
                assert running.get(page).status_code == 200
            root = Path(__file__).resolve().parents[2]
            subprocess.run([sys.executable, "-c", write, str(project.root), name], cwd=root, check=True)
            with project.open_ledger() as ledger:
                size = ledger.size
            assert running.get("/checkpoint").text.splitlines()[1] == str(size)
            assert f"<strong>{size}</strong>" in running.get("/").text
            assert not [link for link in descriptors.iterdir() if os.readlink(link).endswith("(deleted)")]
    finally:
        _code, errors = running.stop()
    assert "Traceback" not in errors


def test_an_edited_entry_is_called_wrong(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(project.ledger_path, path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        for index in (20, 21):
            (payload,) = connection.execute("SELECT payload FROM entries WHERE idx = ?", (index,)).fetchone()
            edited = payload.replace('"loss":"4', '"loss":"5')
            connection.execute("UPDATE entries SET payload = ? WHERE idx = ?", (edited, index))
        signer = json.loads(edited)["predicate"]["signer"]
        (signature,) = connection.execute("SELECT signature FROM entries WHERE idx = 21").fetchone()
        forged = merkle.leaf_hash(assemble(edited.encode(), signer, signature))
        connection.execute("UPDATE entries SET leaf_hash = ? WHERE idx = 21", (forged,))
    connection.close()
    edited_only = ask(path, "/entries/20")
    assert edited_only.status_code == 500
    assert "ledger.db is damaged: entry 20 was edited" in edited_only.text and str(tmp_path) not in edited_only.text
    leaf_too = ask(path, "/entries/21")
    assert leaf_too.status_code == 200
    assert "record WRONG" in leaf_too.text and "the proof leads to root" in leaf_too.text
    assert "the signature is not by key" in leaf_too.text


ALARM = "The derived tables of this ledger were edited"
LIE, NUMBER = "what-mallory-wrote", 987_654_321
EDITS = {
    "runs": ("seed", "code", "weights", "state", "arithmetic", "planned_steps", "time"),
    "run_events": ("reason", "kind", "time"),
    "steps": ("weights", "tokens", "time"),
    "states": ("state", "bytes"),
    "evals": ("name", "tokens"),
    "audits": ("result", "basis", "steps", "transcript", "seed", "time"),
    "audit_units": ("outcome", "cause", "reason", "last"),
    "audit_intents": ("samples", "time"),
    "rechecks": ("result", "reason", "steps"),
    "datasets": ("root", "tokens", "bytes", "license", "tokenizer", "visibility", "time"),
    "run_datasets": ("name", "role"),
    "keys": ("name", "role", "public", "time"),
    "key_revocations": ("from_index", "time"),
    "releases": ("license", "dtype", "weights", "time"),
    "release_files": ("name", "bytes"),
    "endorsements": ("reason", "time"),
    "log": ("kind",),
}


def editable(project: Project, tmp_path: Path) -> Path:
    """A copy of the ledger, with the pinned keys beside it, whose triggers are gone."""
    path = tmp_path / "ledger.db"
    shutil.copy(project.ledger_path, path)
    shutil.copy(project.trust_path, tmp_path)
    with sqlite3.connect(path) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
    connection.close()
    return path


def edit(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_what_pages_show_is_the_entries_whatever_the_tables_say(project: Project, tmp_path: Path) -> None:
    path = editable(project, tmp_path)
    with sqlite3.connect(path) as connection:
        (audit,) = connection.execute("SELECT max(audit) FROM rechecks").fetchone()
        (dataset,) = connection.execute("SELECT min(entry) FROM datasets").fetchone()
        (key,) = connection.execute("SELECT keyid FROM keys JOIN key_revocations ON key = keys.entry").fetchone()
        types = {table: dict(c[1:3] for c in connection.execute(f"PRAGMA table_info({table})")) for table in EDITS}
    pages = ["", "runs", "runs/demo", f"runs/{LONG_NAME}", "runs/demo/steps", "runs/demo/steps/20", "audits"]
    pages += [f"audits/{audit}", "models", "models/demo-lm", "models/demo-lm/1", "datasets", f"datasets/{dataset}"]
    pages += ["keys", f"keys/{key}", "entries", f"entries/{audit}"]
    sound = {page: ask(path, f"/{page}").text for page in pages}
    assert not any(ALARM in text for text in sound.values())
    for table, columns in EDITS.items():
        for column in columns:
            edit(path, f"UPDATE {table} SET {column} = {NUMBER if types[table][column] == 'INTEGER' else repr(LIE)}")
    for page in pages:
        answer = ask(path, f"/{page}")
        assert answer.status_code == 200 and ALARM in answer.text, page
        shown = re.sub(r"<svg.*?</svg>", "", answer.text, flags=re.DOTALL)  # the chart, which says where it is from
        assert LIE not in shown and f"{NUMBER:,}" not in shown and str(NUMBER) not in shown, page
    assert "match" in ask(path, "/runs/demo").text and "deprecated" in ask(path, "/models/demo-lm").text


def test_lists_show_the_signed_words_of_rows_that_say_others(project: Project, tmp_path: Path) -> None:
    """A mismatch stays one, a run that halted has not ended, and an alias is not what another word becomes."""
    path = editable(project, tmp_path)
    edit(
        path,
        "UPDATE audits SET result = 'match'",
        "UPDATE audit_units SET outcome = 'match'",
        "UPDATE run_events SET kind = 'end', reason = NULL",
        "UPDATE endorsements SET statement = 'alias', alias = 'best', reason = NULL WHERE statement = 'deprecated'",
    )
    for page in ("", "runs"):
        text = ask(path, f"/{page}").text
        assert "1 of 1 without match" in text and "halted: nan" in text
    run = ask(path, f"/runs/{LONG_NAME}").text
    assert "halted: nan" in run and re.search(r"Replayed, match</dt><dd[^>]*>3 of", run)
    for page in ("models", "models/demo-lm", "models/demo-lm/1"):
        assert ">best<" not in ask(path, f"/{page}").text


@pytest.mark.parametrize("gone", ["steps WHERE step = 7", "states WHERE step = 40", "evals WHERE step = 20"])
def test_a_record_of_a_run_that_is_missing_is_told(project: Project, tmp_path: Path, gone: str) -> None:
    """The newest entry of a run signs how many come before it."""
    path = editable(project, tmp_path)
    assert ALARM not in ask(path, "/runs/demo").text
    edit(path, f"DELETE FROM {gone} AND run = (SELECT entry FROM runs WHERE name = 'demo')")
    assert ALARM in ask(path, "/runs/demo").text


def test_rows_that_lead_elsewhere_are_no_records(project: Project, tmp_path: Path) -> None:
    path = editable(project, tmp_path)
    with sqlite3.connect(path) as connection:
        query = "SELECT entry, step FROM steps WHERE run = (SELECT entry FROM runs WHERE name = 'demo') ORDER BY step"
        (other, _), *_, (_, last) = connection.execute(query).fetchall()
        (accused,) = connection.execute("SELECT max(entry) FROM audits").fetchone()
    assert "record verified" in ask(path, f"/runs/demo/steps/{last}").text
    edit(
        path,
        f"UPDATE steps SET entry = -1 WHERE entry = {other}",
        f"UPDATE steps SET entry = {other} WHERE step = {last}",
        f"UPDATE audits SET run = (SELECT entry FROM runs WHERE name = 'demo') WHERE entry = {accused}",
    )
    answer = ask(path, f"/runs/demo/steps/{last}")
    assert answer.status_code == 404 and "which is not it" in answer.text
    text = ask(path, "/runs/demo").text
    assert ALARM in text and f"/audits/{accused}" not in text
    # Names of entries that lead nowhere, or to each other, leave nothing to show.
    edit(path, "UPDATE keys SET keyid = 'x' || keyid", "UPDATE runs SET hash = 'x' || hash, parent = entry")
    for page in ("", "runs/demo", f"runs/{LONG_NAME}", f"audits/{accused}", "models/demo-lm/1", "keys", "entries/20"):
        answer = ask(path, f"/{page}")
        refused = answer.status_code == 500 and "This record cannot be shown" in answer.text
        assert refused or (answer.status_code in (200, 404) and ALARM in answer.text), page


@pytest.mark.parametrize(
    ("page", "edits"),
    [
        ("models", "UPDATE releases SET dtype = 'BF16'"),
        ("models", "UPDATE release_files SET bytes = 1"),
        ("models", "UPDATE endorsements SET statement = 'approved by all', alias = NULL"),
        ("audits", "UPDATE audits SET result = 'match', steps = 77"),
        ("audits", "UPDATE audit_units SET outcome = 'match', last = last + 1"),
        ("datasets", "UPDATE datasets SET tokens = 77"),
    ],
)
def test_a_badge_stands_beside_no_edited_row(project: Project, tmp_path: Path, page: str, edits: str) -> None:
    path = editable(project, tmp_path)
    pattern = rf'href="(/{page}/[^"/]+/[0-9]+)"' if page == "models" else rf'href="(/{page}/[0-9]+)"'
    index = ask(path, f"/{page}").text
    if page == "models":
        index = ask(path, re.findall(r'href="(/models/[^"/]+)"', index)[0]).text
    address = re.findall(pattern, index)[-1]
    assert "say what the entry does" in ask(path, address).text
    edit(path, edits)
    text = ask(path, address).text
    assert "record WRONG" in text and "were edited" in text and "record verified" not in text


def test_paths_do_not_end_in_a_slash_and_commands_wrap(project: Project) -> None:
    text = ask(project.ledger_path, "/runs/demo/steps/1").text
    crumbs = text.partition('<nav class="crumbs"')[2].partition("</nav>")[0]
    assert crumbs.count("/</span>") == crumbs.count("<a ") - 1 > 0
    assert '<pre class="cmd wrap">curl' in text


def test_the_public_sees_records_and_nothing_of_the_machine(project: Project) -> None:
    for path in (
        "/-/databases.json",
        "/-/versions.json",
        "/-/threads",
        "/-/settings.json",
        "/-/plugins",
        "/-",
        "/-/actor.json",
    ):
        assert ask(project.ledger_path, path, public=True).status_code == 404, path
    assert ask(project.ledger_path, "/ledger?sql=select+1", public=True).status_code == 403
    assert ask(project.ledger_path, "/ledger?sql=select+1").status_code == 200
    assert ask(project.ledger_path, "/ledger.db", public=True).status_code == 403
    assert str(project.root) not in ask(project.ledger_path, "/ledger.json", public=True).text
    page = ask(project.ledger_path, "/", public=True)
    assert page.status_code == 200
    for link in Links(page.text).loads:
        assert ask(project.ledger_path, link, public=True).status_code == 200
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")


def test_other_databases_are_left_alone(tmp_path: Path) -> None:
    from datasette.app import Datasette

    path = tmp_path / "other.db"
    sqlite3.connect(path).execute("CREATE TABLE t (entry INTEGER)").connection.close()
    datasette = Datasette([str(path)])

    async def pages() -> tuple[str, int, Any]:
        home = await datasette.client.get("/")
        runs = await datasette.client.get("/runs")
        return home.text, runs.status_code, home.headers

    home, status, headers = asyncio.run(pages())
    assert "bitwitness" not in home and status == 404
    assert "content-security-policy" not in headers


def test_a_base_url_is_honoured(project: Project) -> None:
    datasette = make_datasette(project.ledger_path, public=False)
    datasette._settings["base_url"] = "/proofs/"

    async def page() -> Any:
        return await datasette.client.get("/runs/demo")  # the client puts the base before it

    text = asyncio.run(page()).text
    assert "/proofs/runs/demo/steps/" in text
    assert all(link.startswith(("/proofs/", "#")) for link in Links(text).links + Links(text).loads)


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_no_ledger_no_server_one_line(project: Project, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "project"
    shutil.copytree(project.root, folder)
    ledger = folder / "ledger.db"
    if damage == "missing":
        ledger.unlink()
    elif damage == "cut":
        ledger.write_bytes(ledger.read_bytes()[:20000])
    else:
        ledger.write_text("no database at all, only text that is longer than a header" * 4)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (folder / name).unlink(missing_ok=True)
    done = subprocess.run(
        [*LEDGER, "--project", str(folder), "serve", "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2) and done.stdout == ""
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_ends_it_quietly(project: Project) -> None:
    running = Server(project)
    assert running.get("/").status_code == 200
    running.client.close()
    running.process.send_signal(signal.SIGINT)
    output, errors = running.process.communicate(timeout=20)
    assert running.process.returncode == 0 and output == ""
    assert errors.splitlines() == ["Ctrl-C stops it"]


def test_a_taken_port_is_one_line(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*LEDGER, "--project", str(project.root), "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "choose another" in done.stderr and done.stderr.count("\n") == 1


def ask(path: Path, address: str, *, public: bool = False) -> httpx.Response:
    """One request to a Datasette of its own, without a server process."""
    datasette = make_datasette(path, public=public)

    async def answer() -> httpx.Response:
        return await datasette.client.get(address)

    return asyncio.run(answer())
