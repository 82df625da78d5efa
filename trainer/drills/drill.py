"""A drill: a fault is planted in a copy of a run, and audits must find it, where it is, as often as predicted."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.kernels.tracing import culprit, judge, trace_file, trace_record
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project

from ..auditing.ancestry_audit import audit_ancestry
from ..auditing.audit import AuditReport, audit
from ..auditing.culprit_text import lines
from ..auditing.venue import LocalVenue
from ..data import BuildOptions, build
from ..history import RunHistory, open_verified_run
from ..sample import Unit, select
from ..state import Control
from ..traces.step_trace import record_traced, trace_step
from .drill_copy import DrillCopy, Link, read_line
from .drill_faults import KINDS, Fault, FaultyRecordingWorkspace, FaultyStream, faulty_executors

DRAWS = 2000
"""Samples that are drawn, without replaying them, to measure how often one holds the fault."""
MOST_AUDITS = 40


@dataclass(frozen=True)
class DrillResult:
    """What became of one planted fault."""

    kind: str
    run: str  # the name of the run that it is in
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
    history: bool = False,
    threads: int,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[DrillResult]:
    """Plant a fault of each kind in a copy of run `name` of its own, under `scratch`, and audit it.

    A run that goes on from others is copied with them. With `history` the faults are in those others, before the step
    that the next run goes on from, and audits go back to them. `last` is the last step that the copies have (the
    run's); `seed` hides the faults in the same places again. Raises BitwitnessError where the run cannot be copied.
    """
    line = read_line(project, name, last)
    if history and len(line) == 1:
        raise BitwitnessError(f"run {line[0].history.name} goes on from no other run, so a drill has no history")
    numbers = range(len(line) - 1) if history else range(len(line) - 1, len(line))
    places = [(number, step) for number in numbers for step in line[number].hiding_places]
    if not places or (not history and line[-1].last - line[-1].history.first < 4):
        raise BitwitnessError(
            f"run {line[-1].history.name}: a drill needs 4 steps at least of a run, in which to hide a fault"
        )
    chance = random.Random(seed) if seed is not None else random.SystemRandom()
    for kind in kinds:
        report(kind)
        number, step = chance.choice(places)
        yield _Drill(project, line, scratch / kind, number, _fault(kind, line[number], step, chance), threads).perform(
            samples, history
        )


def _fault(kind: str, link: Link, step: int, chance: random.Random) -> Fault:
    begun = Control(**link.history.genesis["control"])
    return Fault(kind, step, link.history.config.data.windows_per_step, chance, begun)


class _Drill:
    def __init__(
        self, project: Project, line: list[Link], scratch: Path, number: int, fault: Fault, threads: int
    ) -> None:
        self.made = DrillCopy(project, line, scratch, number, fault, threads)
        self.copy, self.fault, self.threads = self.made.project, fault, threads
        self.name = line[-1].history.name
        """The run that is audited; the one with the fault is that, or one before it."""

    def perform(self, samples: int, history: bool) -> DrillResult:
        self.made.make()
        with self.copy.open_ledger() as ledger:
            copied = open_verified_run(self.copy, ledger, self.made.faulty.history.name)
        always, predicted, measured = self._odds(copied, samples)
        found, audits = None, 0
        while found is None and audits <= MOST_AUDITS:
            # The last try looks at everything: then only a fault that no replay shows is missed.
            drawn = samples if audits < MOST_AUDITS else len(copied.states) + 1
            found = _found(self._audit(drawn, history))
            audits += 1
        named, said, right = (
            (False, (), ()) if found is None or found not in copied.steps else self._trace(copied, found)
        )
        kind, step = self.fault.kind, self.fault.step
        return DrillResult(
            kind, copied.name, step, found, audits, samples, always, predicted, measured, named, tuple(said), right
        )

    def _audit(self, samples: int, history: bool) -> tuple[AuditReport, ...]:
        if history:
            return audit_ancestry(LocalVenue(self.copy), self.name, samples=samples, threads=self.threads).reports
        return (audit(self.copy, self.name, samples=samples, threads=self.threads),)

    # -- what audits must find -----------------------------------------------------------------------------------

    def _odds(self, copied: RunHistory, samples: int) -> tuple[bool, float, float]:
        """Whether the fault is always audited; the chance of one audit; how often draws meet it."""
        end, step, marks = copied.last_step, self.fault.step, copied.marks()

        def holds(chosen: list[Unit]) -> bool:
            return any(unit.first <= step <= unit.last for unit in chosen)

        def drawn(seed: bytes, count: int) -> list[Unit]:
            return select(copied.genesis, marks, end, seed, count)

        always = drawn(bytes(32), 0)
        certain = holds(always)
        others = len(copied.units(end)) - len(always) + 1  # the initial state is no unit of those
        predicted = 1.0 if certain else min(1.0, samples / others)
        met = sum(holds(drawn(os.urandom(32), samples)) for _ in range(DRAWS))
        return certain, predicted, met / DRAWS

    def _trace(self, copied: RunHistory, found: int) -> tuple[bool, list[str], tuple[str, ...]]:
        """Both parties trace the step; their traces are bisected, and an operator goes to the referee."""
        folder, names = self.copy.root / "traces", ("auditor", "trainer")
        trace_step(self.copy, copied.name, found, threads=self.threads).write(folder / names[0])
        before = self.made.honest_state(found)
        self.fault.state = before
        stream = FaultyStream(self.made.stream(copied), self.fault)
        stream.check_samples(before.control.cursor, copied.config.data.windows_per_step)

        def workspace(*arguments: Any, **named: Any) -> FaultyRecordingWorkspace:
            return FaultyRecordingWorkspace(*arguments, **named, fault=self.fault)

        make, model = faulty_executors(self.fault), self.made.model
        theirs = record_traced(copied, before, stream, self.threads, model=model, make=make, workspace_of=workspace)
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


def _found(reports: Iterable[AuditReport]) -> int | None:
    """The first step that an audit calls wrong."""
    found = (unit.found for report in reports for unit in report.units)
    return min((int(said["step"]) for said in found if said is not None), default=None)


def small_run(folder: Path, threads: int) -> tuple[Project, str]:
    """A project with a run that takes a second, for a drill that needs no run."""
    from ..config import parse_config
    from ..run import train

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
