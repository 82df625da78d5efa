"""A mirror serves what a trainer signed, whatever numbers and words that is: every page of it comes up."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.datasette_plugin.pages import runs
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from tests.ledger.serve_sample import Sample

CONFIG: dict[str, Any] = {
    "model": 5, "data": [], "run": {"a": {"b": [[], {}, ["x"]]}, "loss": "7ff8000000000001"}, "x": "fff0000000000001",
    "": "", "<b>": "\x00\x1b[2J\u2028", "é".encode("ascii", "replace").decode(): True, "long": "x" * 9000,
}  # fmt: skip
LOSSES = ("7fefffffffffffff", "ffefffffffffffff", "7ff0000000000000", "fff0000000000000", "7ff8000000000000",
          "0000000000000001", "8000000000000000", "3ff0000000000000", "3ff0000000000001")  # fmt: skip
PAGES = ("/", "/runs", "/runs/demo", "/runs/demo/steps", "/runs/demo/steps/1", "/audits", "/models", "/datasets",
         "/entries", "/entries/7", "/entries/8", "/entries/9", "/keys", "/checkpoints")  # fmt: skip


@pytest.mark.parametrize("losses", [LOSSES, LOSSES[2:4], LOSSES[5:6], LOSSES[7:]], ids=["all", "inf", "tiny", "close"])
def test_every_page_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[str, ...]) -> None:
    begin = RunWriter.begin

    def with_config(ledger: Any, signer: Any, predicate: Any) -> RunWriter:
        return begin(ledger, signer, {**predicate, "config": CONFIG})

    monkeypatch.setattr(RunWriter, "begin", with_config)
    monkeypatch.setattr(runs, "MAX_BUCKETS", 1)  # so that infinities of both signs meet in one
    project = Project.create(tmp_path / "project")
    with project.open_ledger(writable=True) as ledger:
        sample = Sample(project, ledger)
        run = sample.run("demo", 2**53 - 1, sample.dataset("a", "public"), sample.dataset("b", "public"))
        for step, loss in enumerate(losses, 1):
            computed = {
                **run.everything(step), "loss": loss, "norm": loss, "tokens": 1024,
                "scalars": {"learning_rate": "7fc00000", "clip": "ff800000", "a" * 64: "00000001"},
            }  # fmt: skip
            run.writer.append("step", {"computed": computed, "observed": sample.observed(seconds_us=2**53 - 1)})
            value = jcs.f64_from_hex(loss)
            if math.isfinite(value):
                sample.evaluate(run, step, value / 1e4)
        ledger.sign_checkpoint(sample.signers["log"])
    datasette = make_datasette(project.ledger_path, public=False)

    async def codes() -> dict[str, int]:
        return {page: (await datasette.client.get(page)).status_code for page in PAGES}

    assert set(asyncio.run(codes()).values()) == {200}
