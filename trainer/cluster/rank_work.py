"""What every rank but 0 does: take the run and its state from rank 0, and compute its shards of each step.

`python -m bitwitness.trainer.cluster.rank_work` is a rank on the machine of rank 0, which started it and holds its
stdin: what to do comes in as one line, and when rank 0 is gone, so is this process.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bitwitness.kernels.capturing.graph import Graph
from bitwitness.ledger import jcs
from bitwitness.ledger.files.captured_file import MODEL_LIMIT
from bitwitness.ledger.project import Project

from ..config import Model, RunConfig, UserModel, differences
from ..data import Dataset, WindowStream
from ..machine import machine_fault
from ..memory import require_memory
from ..models.arithmetic import difference
from ..models.captured import CapturedModel
from ..models.own_model import as_recorded
from ..state import State
from ..step import NotFinite, NoTokens, Workspace, step
from ..stop import Stop, stop_signals
from .channel import RankError
from .rank_start import Joining, Place, joined

ModelOf = Callable[[str], Model | UserModel]
Load = Callable[[ModelOf], RunConfig]
"""Reads this rank's own run.toml, given the model of what `run.from` names."""


@dataclass(frozen=True)
class Worked:
    """How it ended, as rank 0 says: `outcome` as in run.RunResult, and the last step computed here."""

    name: str
    step: int
    outcome: str
    stopped_by: int | None


def work(project: Project, place: Place, *, threads: int, windows_at_once: int = 0, load: Load | None = None) -> Worked:
    """Be one of the ranks of a run until rank 0 ends it. Without `load` there is no run.toml here to compare.

    Raises RankError, Stopped where a signal came before all ranks were there, and the errors of configuration and data.
    """
    with stop_signals() as stop, joined(place, stop) as joining:
        return _work(project, joining, threads, windows_at_once, load, stop)


def _work(
    project: Project, joining: Joining, threads: int, windows_at_once: int, load: Load | None, stop: Stop
) -> Worked:
    terms, rank = joining.terms, joining.place.rank
    config = terms.config
    mine = config if load is None else as_recorded(load(lambda start: config.model), config)
    if mine != config:
        raise RankError(rank, f"has another configuration than rank 0: {differences(config, mine)}")
    programs = None
    if terms.model is not None:
        programs = CapturedModel(config, Graph.from_json(jcs.parse(terms.model, max_bytes=MODEL_LIMIT)))
    if (changed := difference(terms.arithmetic, config, programs)) is not None:
        raise RankError(rank, f"has another build than rank 0, which {changed}")
    if (fault := machine_fault(threads)) is not None:
        raise RankError(rank, f"cannot take part: {fault}")
    require_memory(config, windows_at_once, programs, ranks=joining.place.here)
    dataset = Dataset.open(project.data_dir, config.data.train, expected=terms.dataset)
    stream = WindowStream(dataset, config.data.window, config.run.seed, reset_documents=config.data.reset_documents)
    workspace = Workspace(config, threads, windows_at_once, captured=programs)
    state = State(workspace.layout)
    workspace.ranks = follower = joining.ready(stop)
    own, per_shard = follower.own, config.data.windows_per_shard
    while "end" not in (order := follower.order()):
        if "state" in order:
            follower.take(state, order)
            continue
        stream.check_samples(state.control.cursor + own.start * per_shard, len(own) * per_shard)
        with suppress(NotFinite, NoTokens):  # rank 0 has found the same, and says what happens
            step(state, stream, workspace)
            follower.agree(state.control.step, state.commit(optimizer=False).weights)
    return Worked(config.run.name, state.control.step, order["end"], order.get("signal"))


def main() -> int:
    """Be the rank that the line on stdin tells. What goes wrong is told to rank 0, which says it."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1 << 16)):
            return 2
        line += more
    threading.Thread(target=_leave_with_rank_0, daemon=True).start()
    try:
        said: dict[str, Any] = json.loads(line)
        secret = base64.b64decode(said["secret"])
        place = Place(said["rank"], said["ranks"], said["host"], said["port"], secret, said["timeout"])
        work(Project.find(said["project"]), place, threads=said["threads"], windows_at_once=said["windows_at_once"])
    except (Exception, KeyboardInterrupt):
        return 2
    return 0


def _leave_with_rank_0() -> None:
    os.read(0, 1)
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
