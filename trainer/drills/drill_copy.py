"""A copy of a run, and of those that it goes on from, in which a fault is planted.

The copy is a project of its own in a folder of its own: new keys, a new log, every entry signed anew. Nothing of the
real one is opened for writing, and none of its keys is read. Up to the fault the copy repeats the entries; from there
the faulty trainer computes, and signs what it got; runs that go on from what it got are trained anew, without a fault.
A run is interrupted and resumed where the real one was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_files import parts_file
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.files.captured_file import MODEL_FILE
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger

from .. import records, start
from ..ancestry import line_of
from ..config import RunConfig
from ..data import Dataset
from ..data import record as record_datasets
from ..data.dataset import dataset_folder
from ..data.entry import dataset_entry
from ..data.manifest import ENTRY
from ..data.reads import training_dataset, training_windows
from ..data.split import held_out_name
from ..data.windows import WindowStream
from ..history import RunHistory, open_run
from ..material import LocalMaterial
from ..models.imports import NoSuchImport, imports_dir, matching_import
from ..models.own_model import captured
from ..models.programs import StepPrograms
from ..replay import nearest_state, provide_first, replay
from ..run import Session, begin_chain, go_on
from ..state import State, StateUnavailable, state_folder
from ..step import Workspace
from ..stop import Stop
from .drill_faults import Fault, FaultyStream, FaultyWorkspace

_CHAIN = frozenset({"run", "seq", "prev", "history", "signer"})

Json = dict[str, Any]


@dataclass(frozen=True)
class Link:
    """One run of a line: its history, and the last step that a copy has of it, where the next one goes on."""

    history: RunHistory
    last: int

    @property
    def hiding_places(self) -> range:
        """The steps that a fault may be in: one to exchange it with comes after it, two states before it."""
        return range(self.history.first + 2, self.last)


def read_line(project: Project, name: str, last: int | None) -> list[Link]:
    """Run `name` and those that it goes on from, the oldest first; of it at most the steps up to `last`."""
    with project.open_ledger() as ledger:
        spans = line_of(project, ledger, name)
    end = spans[-1].last if last is None else min(last, spans[-1].last)
    return [Link(span.history, end if span.until is None else span.until) for span in spans]


class DrillCopy:
    """The copy of a line, with a fault in the run number `faulty` of it. `project` is made in `folder`."""

    def __init__(
        self, project: Project, line: list[Link], folder: Path, faulty: int, fault: Fault, threads: int
    ) -> None:
        self._real, self._line, self._number = project, line, faulty
        self._threads = threads
        self.fault, self.faulty = fault, line[faulty]
        self.project = Project.create(folder)
        self.model = self._model(self.faulty.history)
        self._entries: dict[str, str] = {}
        """Leaf hashes of the real ledger's `dataset` entries -> those of the copy's."""

    def make(self) -> None:
        """Copy what comes before the fault, let the faulty trainer go on from there, and the others from him."""
        changed: State | None = None
        with self.project.open_ledger(writable=True) as ledger:
            for number, link in enumerate(self._line):
                self._copy_datasets(ledger, link.history)
                self._copy_files(link.history)
                if changed is not None:
                    changed = self._again(ledger, link, changed)
                else:
                    writer = self._copy_chain(ledger, link, self.fault.step if number == self._number else None)
                    if number == self._number:
                        changed = self._go_wrong(ledger, link, writer)

    def honest_state(self, step: int) -> State:
        """The honest state from which `step` of the faulty run starts (its first state for that step and the next)."""
        history, first = self.faulty.history, self.faulty.history.first
        honest, material = Workspace(history.config, self._threads, captured=self.model), LocalMaterial(self.project)
        provide_first(material, history)
        before = max(first, step - 1)
        # Of those that the copy stored after the fault none is the real run's, which `history` tells.
        known = {number for number in history.states if number < self.fault.step}
        state, _ = nearest_state(history, material.states(history), honest, before, known)
        for replayed in replay(history, state, honest, self.stream(history), before):
            if replayed.differences:
                raise BitwitnessError(
                    f"step {replayed.step} of run {history.name} does not replay here; `ledger audit` says why"
                )
        return state

    def stream(self, history: RunHistory) -> WindowStream:
        """The windows of a run, from the copy's data."""
        return training_windows(history, LocalMaterial(self.project).dataset(history, *training_dataset(history)))

    # -- training ------------------------------------------------------------------------------------------------

    def _go_wrong(self, ledger: Ledger, link: Link, writer: RunWriter) -> State:
        """The faulty trainer goes on to the end of the link; the state that he comes to."""
        fault, config = self.fault, link.history.config
        state = self.honest_state(fault.step)
        fault.state, fault.earlier = state, self.honest_state(fault.step - 2)
        workspace = FaultyWorkspace(config, self._threads, captured=self.model, fault=fault)
        stream = FaultyStream(self.stream(link.history), fault)
        session = self._session(ledger, config, workspace, stream)  # type: ignore[arg-type]  # all that it reads of one
        self._go_on(session, link, state, writer)
        return state

    def _again(self, ledger: Ledger, link: Link, state: State) -> State:
        """Train a run from where its parent came to in the copy, as its trainer would have."""
        history, config = link.history, link.history.config
        workspace = Workspace(config, self._threads, captured=self._model(history))
        session = self._session(ledger, config, workspace, self.stream(history))
        commitment = state.commit()
        fields = records.state_fields(commitment)
        genesis = {name: value for name, value in self._genesis(ledger, history).items() if name not in fields} | fields
        start.keep(self.project, config, state, genesis["init"])
        writer = begin_chain(session, genesis, state, commitment)
        self._go_on(session, link, state, writer)
        return state

    def _go_on(self, session: Session, link: Link, state: State, writer: RunWriter) -> None:
        """Train to the end of the link, stopping and resuming where the real run was resumed."""
        now = state.control.step
        resumed = {entry.predicate["step"] for entry in link.history.resumes}
        for stop in sorted(step for step in resumed if now < step < link.last):
            go_on(session, state, writer, _StopAt(state, stop))
            digest = state.commit().digest
            writer.append("resume", {"from": stop, "observed": session.observed(), "state": digest, "step": stop})
        go_on(session, state, writer, _StopAt(state, link.last))

    def _session(self, ledger: Ledger, config: RunConfig, workspace: Workspace, stream: WindowStream) -> Session:
        held_out = None
        if config.run.eval_every:
            held_out = Dataset.open(self.project.data_dir, config.data.held_out or held_out_name(config.data.train))
        trainer, log = self.project.signer("trainer"), self.project.signer("log")
        return Session(self.project, ledger, config, workspace, stream, held_out, trainer, log, lambda progress: None)

    # -- what is repeated ----------------------------------------------------------------------------------------

    def _copy_chain(self, ledger: Ledger, link: Link, fault: int | None) -> RunWriter:
        """Sign again what a run recorded, of the steps before the faulty one or up to where the next run goes on."""
        history = link.history
        writer = RunWriter.begin(ledger, self.project.signer("trainer"), self._genesis(ledger, history))
        batch: list[tuple[str, Json]] = []
        for entry in history.entries[1:]:
            predicate = _own(entry.predicate)
            step = predicate["computed"]["step"] if entry.kind == "step" else predicate["step"]
            if step > link.last or (fault is not None and step >= fault):
                break
            if entry.kind == "eval":
                dataset = predicate["dataset"]
                predicate["dataset"] = dataset | {"entry": self._entries[dataset["entry"]]}
            if entry.kind == "state":
                self._copy_state(history, step)
            if entry.kind == "step":
                self._copy_parts(history, step)
            batch.append((entry.kind, predicate))
        if batch:
            writer.append_all(batch)
        return writer

    def _genesis(self, ledger: Ledger, history: RunHistory) -> Json:
        """What a run begins with, by the names that the copy's ledger has for it."""
        genesis = _own(history.genesis)
        uses = [use | {"entry": self._entries[use["entry"]]} for use in genesis["datasets"]]
        init = genesis["init"]
        if history.parent is not None:
            parent = open_run(ledger, history.parent.name)
            stored = parent.states[history.first]
            init = init | {
                "entry": stored.leaf_hash.hex(),
                "run": parent.run,
                "state": stored.predicate["state"],
            }
        return genesis | {"datasets": uses, "init": init, "origin": ledger.origin}

    def _copy_datasets(self, ledger: Ledger, history: RunHistory) -> None:
        """Put the data of a run in the copy, with entries that the copy's trainer signs."""
        signer = self.project.signer("trainer")
        for use in history.genesis["datasets"]:
            folder = dataset_folder(self.project.data_dir, use["name"])
            if not folder.is_dir():
                source = Dataset.open(self._real.data_dir, use["name"])
                folder.mkdir(parents=True)
                for path in source.folder.iterdir():
                    if path.is_file() and path.name != ENTRY:
                        _link(path, folder / path.name)
                (folder / ENTRY).write_bytes(dataset_entry(source.manifest, signer, rfc3339.now()))
            dataset = Dataset.open(self.project.data_dir, use["name"])
            if dataset.commitment.to_json() != use["dataset"]:
                raise BitwitnessError(
                    f"dataset {use['name']} is not the one that run {history.name} read; a drill needs that one"
                )
            (self._entries[use["entry"]],) = record_datasets(ledger, [dataset])

    def _copy_files(self, history: RunHistory) -> None:
        """What a run begins with besides data: a captured model, imported weights, the state that it goes on from."""
        real, own = (project.runs_dir / history.name for project in (self._real, self.project))
        if (real / MODEL_FILE).is_file():
            own.mkdir(parents=True, exist_ok=True)
            _link(real / MODEL_FILE, own / MODEL_FILE)
        init = history.genesis["init"]
        if init["kind"] == "import":
            self._copy_import(init)
        if init["kind"] != "seeded":
            self._copy_state(history, history.first)

    def _copy_import(self, init: Mapping[str, Any]) -> None:
        """So that an audit can compare the files, as it could in the real project."""
        try:
            found = matching_import(self._real, init)
        except NoSuchImport:
            return
        place = imports_dir(self.project) / found.name
        if not place.is_dir():
            _link_folder(imports_dir(self._real) / found.name, place)

    def _copy_state(self, history: RunHistory, step: int) -> None:
        """Link a stored state, if it is at hand. A child's first one is its own, else its parent's."""
        place = state_folder(self.project.runs_dir / history.name, step)
        try:
            stored = LocalMaterial(self._real).states(history).folder(step)
        except StateUnavailable:
            return
        _link_folder(stored, place)

    def _copy_parts(self, history: RunHistory, step: int) -> None:
        """Link the leaves of the parts that a step commits to, if it does and they are at hand."""
        real, own = (parts_file(project.runs_dir / history.name, step) for project in (self._real, self.project))
        if history.config.run.commit == "parts" and real.is_file():
            own.parent.mkdir(parents=True, exist_ok=True)
            _link(real, own)

    def _model(self, history: RunHistory) -> StepPrograms | None:
        return captured(LocalMaterial(self._real).model(history), history)


class _StopAt(Stop):
    """Stops a run before its planned end, where the copy ends or is resumed."""

    def __init__(self, state: State, last: int) -> None:
        self._state, self._last = state, last

    @property
    def asked(self) -> bool:
        return self._state.control.step >= self._last


def _own(predicate: Mapping[str, Any]) -> Json:
    """A predicate without what its signer and its place in the chain put in."""
    return {key: value for key, value in predicate.items() if key not in _CHAIN}


def _link_folder(folder: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_file():
            _link(path, place / path.name)


def _link(path: Path, place: Path) -> None:
    """A second name for a file that is only read; a copy where links are not possible."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)
