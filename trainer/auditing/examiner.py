"""Replaying an audit's units: one outcome each, whatever happens on the way.

An intent is in the ledger by now, so nothing may escape as an error: what the chain's own data makes impossible is a
mismatch, what this machine cannot do is inconclusive, what is not at hand is unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError

from .. import records
from ..data import DataError, DatasetDamaged, DocumentErased, WindowStream
from ..data.reads import training_dataset, training_windows
from ..history import RunHistory
from ..material import Material
from ..memory import NotEnoughMemory
from ..models import own_model
from ..models.captured import NotConfigured
from ..models.imports import contradiction
from ..parts import PartsUnavailable
from ..record_check import Fault
from ..replay import OtherArithmetic, nearest_state, provide_first, replay, replay_workspace, stored_state
from ..sample import Unit
from ..state import State, StateCommitment, StateMismatch, StateUnavailable
from ..step import NotFinite, NoTokens, PartialFold, Tap, Workspace
from . import eval_audit
from .mismatch import first_value
from .outcome import UnitResult
from .part_audit import PartExaminer
from .replay_work import ReplayWork, Wanted
from .screen import Screened, screen
from .transcript import Transcript

Json = dict[str, Any]


@dataclass(frozen=True)
class _Problem:
    """Why something could not be replayed, as the ledger may say it (`reason`) and in full (`detail`)."""

    outcome: str
    reason: str
    detail: str | None = None

    def of(self, unit: Unit, compared: tuple[int, ...] = ()) -> UnitResult:
        return UnitResult(unit, self.outcome, compared, self.reason, self.detail)


class Examiner:
    """Replays units of one run, with one workspace for all of them."""

    def __init__(
        self,
        material: Material,
        history: RunHistory,
        threads: int,
        windows_at_once: int,
        transcript: Transcript,
        faults: list[Fault],
        work: ReplayWork | None = None,
        starts: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        """`work` keeps what is done, and may hold what was done before a stop.

        `starts` says of units where the transcript of their replay is to begin, as another auditor's did.
        """
        self.work = work
        self.starts = starts or {}
        self.passed_over: list[str] = []
        self.material, self.history, self.transcript = material, history, transcript
        self.stored = material.states(history)
        self.faults = list(faults)
        """Those of the record, and what the workspace shows of the genesis."""
        self.workspace: Workspace | None = None
        self.stream: WindowStream | None = None
        self.held_out: WindowStream | None = None
        self.problem: _Problem | None = None
        self.data_problem: _Problem | None = None
        try:
            self.problem = self._prepare(threads, windows_at_once)
            if self.problem is None:
                self.stream = training_windows(history, material.dataset(history, *training_dataset(history)))
                self.held_out = _held_out(material, history)
        except Exception as error:
            if self.workspace is None:
                self.problem = _problem(error)
            else:
                self.data_problem = _problem(error)

    def _prepare(self, threads: int, windows_at_once: int) -> _Problem | None:
        """Plan the programs and compare what fixes the arithmetic; or say why no replay can begin."""
        try:
            workspace = replay_workspace(self.material, self.history, threads, windows_at_once, taps=True)
        except OtherArithmetic as error:
            return _Problem("inconclusive", str(error))
        except NotConfigured as error:  # the trainer's own build would have refused it
            first = self.history.first
            digest = self.history.state(first).digest
            self.faults.append(Fault(first, "model", str(error)[:200], digest, digest))
            return _Problem("inconclusive", "the captured model is not what configuration and seed give", str(error))
        self.workspace = workspace
        if records.rope_digest(workspace.programs.tables) != self.history.genesis["constants"].get("rope"):
            first = self.history.first
            digest = self.history.state(first).digest
            self.faults.append(Fault(first, "rope", "the rotary tables differ", digest, digest))
        if self.history.genesis["init"]["kind"] == "import":
            self._check_import(workspace)
        return None

    def _check_import(self, workspace: Workspace) -> None:
        """An import brings no moments, and the same files give the same weights wherever they are at hand."""
        committed = self.history.stored(0)
        blank = State(workspace.layout).commit()
        if committed.optimizer != blank.optimizer:
            reason = "the moments of imported weights are not 0"
            self.faults.append(Fault(0, "optimizer", reason, committed.digest, blank.digest))
        if (other := contradiction(self.material.project, self.history.genesis["init"])) is not None:
            found = StateCommitment(committed.control, other, committed.optimizer).digest
            reason = "the imported files hold other weights"
            self.faults.append(Fault(0, "weights", reason, committed.digest, found))
        provide_first(self.material, self.history)

    def screen(self) -> Screened:
        """Compare the stored states that are at hand with what AdamW allows; what cannot be joins the faults."""
        screened = Screened(0, len(self.history.states), ())
        if self.workspace is not None:
            with suppress(Exception):  # it adds to an audit, and must not keep it from its replay
                screened = screen(self.history, self.stored, self.workspace, self.trusted_states())
        self.faults += screened.faults
        return screened

    def examine(
        self, chosen: Sequence[Unit], report: Callable[[int, int], None], part: str | None = None
    ) -> list[UnitResult]:
        """The outcome of every unit, or of that part of the one step of each."""
        return self.examine_each([(unit, part) for unit in chosen], report)

    def examine_each(self, wanted: Sequence[Wanted], report: Callable[[int, int], None]) -> list[UnitResult]:
        """The outcomes in this order, which is the transcript's. What was done before a stop is not done again."""
        if self.work is not None:
            self.work.expect(wanted)
            self.transcript.restore(self.work.hashes)
        total = sum(self._length(*item) for item in wanted)
        done, results = 0, []
        for number, (unit, part) in enumerate(wanted):
            before = done

            def told(count: int, before: int = before) -> None:
                report(before + count, total)

            results.append(self._once(number, unit, part, told))
            done += self._length(unit, part)
        return results

    def _length(self, unit: Unit, part: str | None) -> int:
        """The steps of a unit, as a progress bar counts them."""
        return unit.last - unit.first + 1 if part is None and unit.last > self.history.first else 0

    def _once(self, number: int, unit: Unit, part: str | None, report: Callable[[int], None]) -> UnitResult:
        if self.work is not None and number < len(self.work.results):
            return self.work.results[number]
        result = self._unit(unit, report) if part is None else self._part(unit, part)
        if self.work is not None:
            self.work.finished_unit(result, self.transcript.hashes)
        return result

    def _part(self, unit: Unit, part: str) -> UnitResult:
        """The outcome for one part of the one step of `unit`."""
        if self.workspace is None or self.stream is None:
            problem = self.problem or self.data_problem or _Problem("inconclusive", "no replay can begin")
            return replace(problem.of(unit), part=part)
        try:
            examiner = PartExaminer(
                self.history, self.stored, self.material, self.workspace, self.stream, self.trusted_states()
            )
            if part == eval_audit.EVAL and self.held_out is None:
                return replace(_Problem("unavailable", "the held-out data is not at hand").of(unit), part=part)
            return examiner.examine(unit.first, part, lambda taps: self.transcript.add(unit.first, taps), self.held_out)
        except Exception as error:
            return replace(_problem(error).of(unit), part=part)

    def _unit(self, unit: Unit, report: Callable[[int], None]) -> UnitResult:
        if self.workspace is None:
            return (self.problem or _Problem("inconclusive", "no replay can begin")).of(unit)
        examination = _Examination(self, self.workspace, unit)
        try:
            return examination.initial() if unit.last == self.history.first else examination.steps(report)
        except (NotFinite, NoTokens, KernelError) as error:
            return examination.impossible(error)
        except Exception as error:
            return _problem(error).of(unit, tuple(examination.compared))

    def trusted_states(self) -> set[int]:
        """The stored states that a replay may start from: those whose steps the record says nothing wrong of."""
        return self.history.states.keys() - {fault.step for fault in self.faults}


class _Examination:
    """One unit being replayed, and how far it came."""

    def __init__(self, examiner: Examiner, workspace: Workspace, unit: Unit) -> None:
        self.examiner, self.workspace, self.unit = examiner, workspace, unit
        self.history = examiner.history
        self.compared: list[int] = []
        self.state: State | None = None
        self.start: int | None = None

    def initial(self) -> UnitResult:
        first = self.history.first
        try:
            state = stored_state(self.history, self.examiner.stored, self.workspace, first)
        except StateMismatch as error:
            if self.history.genesis["init"]["kind"] != "seeded":  # a file beside the ledger, not the chain, is wrong
                return _problem(error).of(self.unit)
            reason = "the seed gives another initial state"
            found = self._found(0, "weights", error.found)
            return UnitResult(self.unit, "mismatch", reason=reason, detail=str(error), found=found)
        tensors = self.workspace.layout.tensors(state.params)
        self.examiner.transcript.add(first, ((f"init/{name}", tensor) for name, tensor in tensors.items()))
        self.state, self.start = state, first
        self.compared.append(first)
        differences = self._evaluations(state)
        if differences:
            return self._mismatch(first, differences)
        return UnitResult(self.unit, "match", (first,), start=first)

    def steps(self, report: Callable[[int], None]) -> UnitResult:
        first, last = self.unit.first, self.unit.last
        examiner = self.examiner
        if examiner.stream is None:
            return (examiner.data_problem or _Problem("unavailable", "the data is not at hand")).of(self.unit)
        state, fold = self._begin()
        self.state = state
        keep = partial(self._keep, state)
        steps = replay(self.history, state, self.workspace, examiner.stream, last, self._tap, fold, keep)
        for replayed in steps:
            self.compared.append(replayed.step)
            report(replayed.step - first + 1)
            differences = replayed.differences or self._evaluations(state)
            if differences:
                return self._mismatch(replayed.step, differences)
            if replayed.step < last:
                keep(None)
        return UnitResult(self.unit, "match", tuple(self.compared), start=self.start)

    def _begin(self) -> tuple[State, PartialFold | None]:
        """Where the unit stopped before, if that is whole and of the ledger's state; else the nearest stored state."""
        examiner = self.examiner
        wanted = examiner.starts.get((self.unit.first, self.unit.last), self.unit.first - 1)
        if examiner.work is not None:
            point = examiner.work.point(self.unit, State(self.workspace.layout))
            if point is not None and self._is_ledgers(point.state):
                self.compared, self.start = point.compared, point.start
                if point.start is not None:
                    return point.state, point.fold
                self._go_to(point.state, wanted, point.fold)
                return point.state, None
            examiner.transcript.restore(examiner.transcript.hashes[: examiner.work.begun])
        states = examiner.trusted_states()
        useless: list[tuple[int, str]] = []
        state, self.start = nearest_state(
            self.history, examiner.stored, self.workspace, wanted, states, lambda *told: useless.append(told)
        )
        for step, reason in useless:
            text = f"stored state {step} is {reason}; replayed from step {self.start}"
            if text not in examiner.passed_over:
                examiner.passed_over.append(text)
        if (self.unit.first, self.unit.last) in examiner.starts:
            self._go_to(state, wanted)
        return state, None

    def _go_to(self, state: State, wanted: int, fold: PartialFold | None = None) -> None:
        """Make the steps up to where another auditor's replay started, which has none of them in its transcript."""
        stream = self.examiner.stream
        if stream is None:
            return
        self.start, keep = None, partial(self._keep, state)
        for replayed in replay(self.history, state, self.workspace, stream, wanted, fold=fold, after_shard=keep):
            if replayed.differences:
                raise StateMismatch(f"step {replayed.step}, on the way to it, does not replay")
            keep(None)
        self.start = wanted

    def _is_ledgers(self, state: State) -> bool:
        expected = self.history.state(state.control.step)
        return state.commit(optimizer=expected.optimizer is not None) == expected

    def _keep(self, state: State, fold: PartialFold | None) -> None:
        work = self.examiner.work
        if work is not None and work.due():
            work.keep(self.unit, self.compared, state, fold, self.examiner.transcript.hashes, self.start)

    def _evaluations(self, state: State) -> dict[str, tuple[Any, Any]]:
        """Compute the held-out losses that the ledger has of this state again, where the data is at hand."""
        held_out = self.examiner.held_out
        if held_out is None or not eval_audit.recorded(self.history, state.control.step):
            return {}
        return eval_audit.evaluate(self.history, self.workspace, state, held_out)[1]

    def impossible(self, error: Exception) -> UnitResult:
        """The step after `state` cannot be computed from what the chain commits to, yet the chain has it."""
        state = self.state
        if state is None:
            return _problem(error).of(self.unit)
        step = min(state.control.step + 1, self.unit.last)
        name = "tokens" if isinstance(error, NoTokens) else "loss"
        digest = state.commit().digest  # of the state before the step, where the replay stopped
        reason = f"step {step} cannot be computed: {_kind(error)}"
        found = self._found(step, name, digest)
        return UnitResult(self.unit, "mismatch", tuple(self.compared), reason, str(error), found, start=self.start)

    def _mismatch(self, step: int, differences: dict[str, tuple[Any, Any]]) -> UnitResult:
        assert self.state is not None
        fields = list(differences)
        first = self.history.first
        thinned = step > first and "optimizer" not in self.history.computed(step)
        found = self._found(step, fields[0], self.state.commit(optimizer=not thinned).digest)
        reason = f"first differs at step {step}: {', '.join(fields)}"
        value = None if self.unit.last == first else first_value(self.history, self.examiner.stored, self.state)
        compared = tuple(self.compared)
        return UnitResult(self.unit, "mismatch", compared, reason, None, found, differences, value, start=self.start)

    def _found(self, step: int, name: str, digest: str) -> Json:
        return {"computed": digest, "expected": self.history.state(step).digest, "field": name, "step": step}

    def _tap(self, step: int) -> Tap:
        return lambda taps: self.examiner.transcript.add(step, taps)


def _held_out(material: Material, history: RunHistory) -> WindowStream | None:
    """The checked windows of the held-out losses, or None where the run has none or the data is not at hand."""
    use = next((use for use in history.genesis["datasets"] if use["role"] == "held-out"), None)
    if use is None or not history.evals:
        return None
    expected, config = Commitment.from_json(use["dataset"], type="dataset/1"), history.config
    try:
        data = material.dataset(history, use["name"], expected)
        stream = WindowStream(data, config.data.window, config.run.seed)
        stream.check(range(min(config.run.eval_windows, stream.count)))
    except BitwitnessError:
        return None
    return stream


def _kind(error: Exception) -> str:
    if isinstance(error, NotFinite):
        return "loss or norm is not finite"
    return "it has no tokens" if isinstance(error, NoTokens) else "its data does not fit the operators"


def _problem(error: Exception) -> _Problem:
    """Tell what was withheld, damaged or erased apart from what this machine cannot do."""
    if isinstance(error, DocumentErased):
        return _Problem("redacted", "a document that these steps read was erased", str(error))
    if isinstance(error, DatasetDamaged):
        return _Problem("unavailable", "the data at hand is not what the ledger commits to", str(error))
    if isinstance(error, DataError):
        return _Problem("unavailable", "the data is not at hand", str(error))
    if isinstance(error, own_model.ModelUnavailable):
        return _Problem("unavailable", "the captured model of the run is not at hand", str(error))
    if isinstance(error, StateMismatch):
        return _Problem("unavailable", "the stored state at hand is not what the ledger commits to", str(error))
    if isinstance(error, PartsUnavailable):
        return _Problem("unavailable", "the parts of the step are not at hand", str(error))
    if isinstance(error, StateUnavailable):
        return _Problem("unavailable", "no stored state is at hand", str(error))
    if isinstance(error, (MemoryError, NotEnoughMemory)):
        return _Problem("inconclusive", "the replay does not fit this machine's memory", str(error) or None)
    reason = f"this machine could not make the replay: {type(error).__name__}"
    return _Problem("inconclusive", reason, str(error) or None)
