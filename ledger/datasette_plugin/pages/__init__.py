"""The pages, one module for each thing that people look at. ROUTES is what the plugin registers."""

from __future__ import annotations

from ..answers import View
from . import audits, datasets, home, keys, log, models, runs, steps

NAME = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99})"
NUMBER = r"(?P<number>[0-9]{1,15})"
HASH = r"(?P<hash>[0-9a-f]{64})"

ROUTES: tuple[tuple[str, View], ...] = (
    (r"^/$", home.home),
    (r"^/runs$", runs.index),
    (rf"^/runs/{NAME}$", runs.run),
    (rf"^/runs/{NAME}/steps$", steps.index),
    (rf"^/runs/{NAME}/steps/{NUMBER}$", steps.step),
    (r"^/audits$", audits.index),
    (rf"^/audits/{NUMBER}$", audits.audit),
    (r"^/models$", models.index),
    (rf"^/models/{NAME}$", models.model),
    (rf"^/models/{NAME}/{NUMBER}$", models.version),
    (r"^/datasets$", datasets.index),
    (rf"^/datasets/{NUMBER}$", datasets.dataset),
    (r"^/keys$", keys.index),
    (rf"^/keys/{HASH}$", keys.key),
    (r"^/entries$", log.index),
    (rf"^/entries/{NUMBER}$", log.entry),
    (rf"^/entries/{HASH}$", log.by_hash),
    (rf"^/entries/{NUMBER}\.json$", log.raw),
    (rf"^/entries/{NUMBER}\.tlog-proof$", log.proof),
    (r"^/checkpoints$", log.checkpoints),
    (rf"^/checkpoints/{NUMBER}\.txt$", log.checkpoint),
)
