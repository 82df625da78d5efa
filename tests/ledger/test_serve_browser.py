"""The pages in a real browser: they render in light and dark, without script, console errors or outside requests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .serve_sample import build
from .test_serve import STEPS, Server

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Debian's chromium is not installed (apt-get install chromium)"
)

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--hide-scrollbars", "--window-size=1200,900",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(build(tmp_path_factory.mktemp("browser") / "project", STEPS))
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("", []),
        ("runs/demo", ["--blink-settings=preferredColorScheme=0"]),
        ("runs/demo/steps/7", []),
    ],
)
def test_page_renders_quietly_and_alone(server: Server, tmp_path: Path, path: str, options: list[str]) -> None:
    picture, network = tmp_path / "page.png", tmp_path / "network.json"
    done = subprocess.run(
        [
            str(CHROMIUM), *OPTIONS, *options, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            f"--log-net-log={network}", f"--screenshot={picture}", server.address + path,
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert ":CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert picture.stat().st_size > 20_000  # a blank page is a tenth of that
    here = server.address.removesuffix("/")
    asked = requests(network)
    assert f"{server.address}{path}" in {address for address, _initiator in asked}
    from_page = [address for address, initiator in asked if initiator == here]
    assert any("bitwitness.css" in address for address in from_page)
    assert {urlsplit(address).netloc for address in from_page} == {urlsplit(here).netloc}


def requests(network: Path) -> list[tuple[str, str]]:
    """(address, origin that asked for it) of all requests in Chromium's network log; the browser makes its own too."""
    log = json.loads(network.read_text(encoding="utf-8"))
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event.get("params", {}) for event in log["events"] if event["type"] == start]
    return [(job["url"], job.get("initiator", "")) for job in jobs if "url" in job]
