"""A drill: a fault is planted in a copy of a run, and audits must find it, where it is, as often as predicted.

The copy is a project of its own in a folder of its own: new keys, a new log, every entry signed anew. Nothing of the
real one is opened for writing, and none of its keys is read. Up to the fault the copy repeats the run's entries; from
there the faulty trainer computes, and signs what it got.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.kernels import culprit, judge, trace_file, trace_record
from bitwitness.ledger import rfc3339
from bitwitness.ledger.captured_file import MODEL_FILE
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter

from .audit import AuditReport, audit
from .culprit_text import lines
from .data import BuildOptions, Dataset, build
from .data import record as record_datasets
from .data.dataset import dataset_folder
from .data.entry import dataset_entry
from .data.manifest import ENTRY
from .data.reads import training_dataset, training_windows
from .data.split import held_out_name
from .data.windows import WindowStream
from .drill_faults import KINDS, Fault, FaultyRecordingWorkspace, FaultyStream, FaultyWorkspace, faulty_executors
from .history import RunHistory, open_verified_run
from .material import LocalMaterial
from .own_model import captured
from .replay import nearest_state, replay
from .run import Session, Stop, go_on
from .sample import Unit, select, units
from .state import State, state_folder
from .step import Workspace
from .step_trace import record_traced, trace_step

DRAWS = 2000
"""Samples that are drawn, without replaying them, to measure how often one holds the fault."""
MOST_AUDITS = 40
_CHAIN = frozenset({"run", "seq", "prev", "history", "signer"})


@dataclass(frozen=True)
class DrillResult:
    """What became of one planted fault."""

    kind: str
    step: int
    found: int | None  # the step that an audit named
    audits: int  # sampled audits until it was found; after MOST_AUDITS every unit is audited
    samples: int  # units drawn by each, on top of those that always count
    always: bool  # the fault lies in one of those
    predicted: float  # that one audit finds it
    measured: float  # of DRAWS samples
    operator: bool  # whether the traces of both parties part at the fault
    said: tuple[str, ...]  # what bisecting them says
    right: tuple[str, ...]  # who is, by the referee, where an operator is in dispute

    @property
    def good(self) -> bool:
        """Found at its step and operator, and the referee accuses nobody else."""
        return self.found == self.step and self.operator and self.right in ((), ("auditor",))


def drill(
    project: Project,
    name: str,
    scratch: Path,
    *,
    kinds: tuple[str, ...] = KINDS,
    samples: int = 1,
    last: int | None = None,
    seed: int | None = None,
    threads: int,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[DrillResult]:
    """Plant a fault of each kind in a copy of run `name` of its own, under `scratch`, and audit it.

    `last` is the last step that the copies have (the run's); `seed` hides the faults in the same places again.
    Raises BitwitnessError where the run cannot be copied.
    """
    with project.open_ledger() as ledger:
        history = open_verified_run(project, ledger, name)
    end = min(last or history.last_step, history.last_step)
    if end < 4:
        raise BitwitnessError(f"run {history.name}: a drill needs 4 steps at least, in which to hide a fault")
    if history.genesis["init"]["kind"] != "seeded":
        raise BitwitnessError(f"run {history.name} does not begin with a seed; a drill copies runs that do")
    places = random.Random(seed) if seed is not None else random.SystemRandom()
    for kind in kinds:
        report(kind)
        yield _Drill(project, history, scratch / kind, end, kind, places, threads).perform(samples)


class _Drill:
    def __init__(
        self,
        project: Project,
        history: RunHistory,
        scratch: Path,
        end: int,
        kind: str,
        places: random.Random,
        threads: int,
    ) -> None:
        self.project, self.history, self.end, self.threads = project, history, end, threads
        self.places = places
        per_step = history.config.data.windows_per_step
        self.fault = Fault(kind, places.randint(2, end - 1), per_step, places)
        self.copy = Project.create(scratch)
        self.model = captured(LocalMaterial(project).model(history), history)

    def perform(self, samples: int) -> DrillResult:
        self._train()
        with self.copy.open_ledger() as ledger:
            copied = open_verified_run(self.copy, ledger, self.history.name)
        always, predicted, measured = self._odds(copied, samples)
        found, audits = None, 0
        while found is None and audits <= MOST_AUDITS:
            # The last try looks at everything: then only a fault that no replay shows is missed.
            drawn = samples if audits < MOST_AUDITS else len(copied.states) + 1
            found = _found(audit(self.copy, copied.name, samples=drawn, threads=self.threads))
            audits += 1
        named, said, right = (False, (), ()) if found is None else self._trace(copied, found)
        kind, step = self.fault.kind, self.fault.step
        return DrillResult(kind, step, found, audits, samples, always, predicted, measured, named, tuple(said), right)

    # -- the copy ----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Copy what comes before the fault, and let the faulty trainer go on from there."""
        config, fault = self.history.config, self.fault
        entries = self._copy_datasets()
        with self.copy.open_ledger(writable=True) as ledger:
            trainer, log = self.copy.signer("trainer"), self.copy.signer("log")
            writer = self._copy_chain(RunWriter.begin(ledger, trainer, self._genesis(entries, ledger.origin)), entries)
            workspace = FaultyWorkspace(config, self.threads, captured=self.model, fault=fault)
            state = self._before(fault.step)
            fault.state, fault.earlier = state, self._before(max(0, fault.step - 2))
            stream = self._stream()
            held_out = Dataset.open(self.copy.data_dir, _held_out(config)) if config.run.eval_every else None
            session = Session(
                self.copy,
                ledger,
                config,
                workspace,
                FaultyStream(stream, fault),  # type: ignore[arg-type]  # all that a session reads of a stream
                held_out,
                trainer,
                log,
                lambda progress: None,
            )
            go_on(session, state, writer, _StopAt(state, self.end))

    def _copy_datasets(self) -> dict[str, str]:
        """Put the data in the copy, with entries that the copy's trainer signs; old leaf hash -> new one."""
        signer, made, datasets = self.copy.signer("trainer"), {}, []
        for use in self.history.genesis["datasets"]:
            source = Dataset.open(self.project.data_dir, use["name"])
            folder = dataset_folder(self.copy.data_dir, use["name"])
            folder.mkdir(parents=True, exist_ok=True)
            for path in source.folder.iterdir():
                if path.is_file() and path.name != ENTRY:
                    _link(path, folder / path.name)
            (folder / ENTRY).write_bytes(dataset_entry(source.manifest, signer, rfc3339.now()))
            datasets.append(Dataset.open(self.copy.data_dir, use["name"]))
        with self.copy.open_ledger(writable=True) as ledger:
            leaves = record_datasets(ledger, datasets)
        for use, leaf in zip(self.history.genesis["datasets"], leaves, strict=True):
            made[use["entry"]] = leaf
        return made

    def _genesis(self, entries: Mapping[str, str], origin: str) -> dict[str, Any]:
        genesis = _own(self.history.genesis)
        uses = [use | {"entry": entries[use["entry"]]} for use in genesis["datasets"]]
        return genesis | {"datasets": uses, "origin": origin}

    def _copy_chain(self, writer: RunWriter, entries: Mapping[str, str]) -> RunWriter:
        """Sign again what the run recorded before the faulty step, and link the states that it stored."""
        folder, own = (p.runs_dir / self.history.name for p in (self.project, self.copy))
        if self.model is not None:
            own.mkdir(parents=True, exist_ok=True)
            _link(folder / MODEL_FILE, own / MODEL_FILE)
        batch: list[tuple[str, dict[str, Any]]] = []
        for entry in self.history.entries[1:]:
            predicate = _own(entry.predicate)
            step = predicate["computed"]["step"] if entry.kind == "step" else predicate["step"]
            if step >= self.fault.step:
                break
            if entry.kind in ("resume", "halt", "end"):
                continue
            if entry.kind == "eval":
                dataset = predicate["dataset"]
                predicate["dataset"] = dataset | {"entry": entries[dataset["entry"]]}
            if entry.kind == "state":
                stored, place = state_folder(folder, step), state_folder(own, step)
                if stored.is_dir():
                    place.mkdir(parents=True)
                    for path in stored.iterdir():
                        _link(path, place / path.name)
            batch.append((entry.kind, predicate))
        if batch:
            writer.append_all(batch)
        return writer

    def _stream(self) -> WindowStream:
        return training_windows(
            self.history, LocalMaterial(self.copy).dataset(self.history, *training_dataset(self.history))
        )

    def _before(self, step: int) -> State:
        """The honest state from which `step` starts (state 0 for steps 0 and 1)."""
        honest = Workspace(self.history.config, self.threads, captured=self.model)
        states = LocalMaterial(self.project).states(self.history)
        state, _ = nearest_state(self.history, states, honest, max(0, step - 1), self.history.states.keys())
        for replayed in replay(self.history, state, honest, self._stream(), step - 1):
            if replayed.differences:
                raise BitwitnessError(
                    f"step {replayed.step} of run {self.history.name} does not replay here; `ledger audit` says why"
                )
        return state

    # -- what audits must find -----------------------------------------------------------------------------------

    def _odds(self, copied: RunHistory, samples: int) -> tuple[bool, float, float]:
        """Whether the fault is always audited; the chance of one audit; how often draws meet it."""
        every, end, step = units(copied.states, copied.last_step), copied.last_step, self.fault.step
        marks = copied.marks()

        def holds(chosen: list[Unit]) -> bool:
            return any(unit.first <= step <= unit.last for unit in chosen)

        certain = holds(select(copied.genesis, marks, end, bytes(32), 0))
        others = (
            len(every) - len(select(copied.genesis, marks, end, bytes(32), 0)) + 1
        )  # the initial state is no unit of `every`
        predicted = 1.0 if certain else min(1.0, samples / others)
        met = sum(holds(select(copied.genesis, marks, end, os.urandom(32), samples)) for _ in range(DRAWS))
        return certain, predicted, met / DRAWS

    def _trace(self, copied: RunHistory, found: int) -> tuple[bool, list[str], tuple[str, ...]]:
        """Both parties trace the step; their traces are bisected, and an operator goes to the referee."""
        folder, names = self.copy.root / "traces", ("auditor", "trainer")
        trace_step(self.copy, copied.name, found, threads=self.threads).write(folder / names[0])
        before = self._before(found)
        self.fault.state = before
        stream = FaultyStream(self._stream(), self.fault)
        stream.check_samples(before.control.cursor, copied.config.data.windows_per_step)

        def workspace(*arguments: Any, **named: Any) -> FaultyRecordingWorkspace:
            return FaultyRecordingWorkspace(*arguments, **named, fault=self.fault)

        make = faulty_executors(self.fault)
        theirs = record_traced(
            copied, before, stream, self.threads, model=self.model, make=make, workspace_of=workspace
        )
        theirs.write(folder / names[1])
        ours, other = (trace_record.read(folder / party) for party in names)
        difference = culprit.find(ours, other, names=names, threads=self.threads)
        said = [] if difference is None else list(lines(difference, ours, names))
        right: tuple[str, ...] = ()
        if difference is not None and difference.dispute is not None:
            path = folder / "dispute.safetensors"
            trace_file.write(path, difference.dispute)
            try:
                right = judge.judge(path, threads=self.threads).right
            except judge.NoReferee as error:
                said.append(f"  not judged: {error}")
        return self.fault.is_named_by(difference), said, right


class _StopAt(Stop):
    """Stops a run before its planned end, where the copy ends."""

    def __init__(self, state: State, last: int) -> None:
        self._state, self._last = state, last

    @property
    def asked(self) -> bool:
        return self._state.control.step >= self._last


def _found(report: AuditReport) -> int | None:
    """The first step that an audit calls wrong."""
    return min((int(unit.found["step"]) for unit in report.units if unit.found is not None), default=None)


def _own(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """A predicate without what its signer and its place in the chain put in."""
    return {key: value for key, value in predicate.items() if key not in _CHAIN}


def _held_out(config: Any) -> str:
    return str(config.data.held_out or held_out_name(config.data.train))


def _link(path: Path, place: Path) -> None:
    """A second name for a file that is only read; a copy where links are not possible."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)


def small_run(folder: Path, threads: int) -> tuple[Project, str]:
    """A project with a run that takes a second, for a drill that needs no run."""
    from .config import parse_config
    from .run import train

    project = Project.create(folder)
    source = folder / "source"
    source.mkdir()
    for number in range(8):
        text = "".join(f"{n} times {number} makes {n * number}.\n" for n in range(60))
        (source / f"table-{number}.txt").write_text(text, encoding="ascii")
    build(project.data_dir, [str(source)], BuildOptions(name="tables"), signer=project.signer("trainer"))
    table = {
        "run": {"name": "small", "steps": 10, "seed": 1, "state_every": 2},
        "data": {"train": "tables", "window": 16, "shards": 2, "windows_per_shard": 2},
        "model": {"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 24, "vocabulary": 257},
    }
    train(project, parse_config(table, where="drill"), threads=threads)
    return project, "small"
