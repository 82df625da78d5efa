"""The run loop: one signed entry per step, from the genesis to the end, and from a kill to the same bits.

`train` begins a run or, with `resume`, continues one. On resume the last stored state is loaded, checked against
the ledger, and every step that the ledger already holds is computed again and must meet it; only then does the
chain go on. Nothing is ever recorded twice, so nothing forks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.submissions import take_waiting
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.jcs import f64_hex
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger

from . import records, start
from .cluster.channel import RankError
from .cluster.rank_start import Terms, require_ranks
from .cluster.ranks import Leader
from .config import RunConfig, UserModel, differences
from .data import DataError, Dataset, DatasetDamaged, NoSuchDataset, TooShort, WindowStream
from .data import record as record_datasets
from .data.split import held_out_name
from .history import RunHistory, open_run, open_verified_run, verified_leaves
from .machine import machine_fault
from .material import LocalStates
from .memory import require_memory
from .models import own_model
from .models.arithmetic import arithmetic, difference
from .models.own_model import OwnModel
from .parts import save_leaves
from .record_check import require_record
from .replay import resume_state
from .state import State, StateCommitment, remove_leftovers, save_state, state_folder
from .step import NotFinite, StepRecord, Workspace, step
from .stop import Stop, stop_signals

MAX_THREADS = 256


class RunNameTaken(BitwitnessError):
    """The ledger has a run of this name."""


class RunFinished(BitwitnessError):
    """The run has its last step."""


@dataclass(frozen=True)
class Progress:
    """What a caller may show after each step. `seconds` and `tokens` are those of the step alone."""

    step: int
    steps: int
    loss: float
    norm: float
    learning_rate: float
    tokens: int
    seconds: float
    held_out: float | None = None
    replayed: bool = False


@dataclass(frozen=True)
class RunResult:
    """How a call of `train` ended: `outcome` is "completed" or "interrupted"."""

    name: str
    run: str
    step: int
    state: str
    weights: str
    loss: float | None
    held_out: float | None
    outcome: str
    stopped_by: int | None = None
    """The number of the signal that interrupted it."""


@dataclass
class Session:
    """One process working on one run."""

    project: Project
    ledger: Ledger
    config: RunConfig
    workspace: Workspace
    stream: WindowStream
    held_out: Dataset | None
    trainer: Signer
    log: Signer
    report: Callable[[Progress], None]
    own: OwnModel | None = None
    ranks: Leader | None = None
    host: str = field(default_factory=records.new_host_id)
    last_held_out: float | None = None
    last_loss: float | None = None

    @property
    def folder(self) -> Path:
        return self.project.runs_dir / self.config.run.name

    def observed(self) -> dict[str, Any]:
        return records.observed(self.host, self.workspace.threads, 1 if self.ranks is None else self.ranks.ranks)


class Company(Protocol):
    """The other ranks of a run, here (local_ranks.py) or elsewhere (rank_start.py)."""

    @property
    def ranks(self) -> int:
        """How many there are, this one included."""

    @property
    def here(self) -> int:
        """How many of them are on this machine."""

    def lead(self, terms: Terms, stop: Stop) -> AbstractContextManager[Leader]:
        """Bring them together. They end when the block does."""


def train(
    project: Project,
    config: RunConfig,
    *,
    threads: int,
    resume: bool = False,
    windows_at_once: int = 0,
    company: Company | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> RunResult:
    """Run `config` to its last step, or until SIGINT or SIGTERM, and leave a signed chain in the project's ledger.

    With `company` this process is rank 0 of several, which alone needs keys and ledger; the bits are the same.

    Raises RunNameTaken, RunFinished, RankError, NotFinite (after a signed `halt`), ReplayMismatch when a resumed run
    does not meet its own ledger, and the errors of data, ledger and keys.
    """
    check_threads(threads)
    if company is not None:
        require_ranks(company.ranks, config.data.shards)
    trainer, log = project.signer("trainer"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        existing = open_run(ledger, config.run.name, missing_ok=True)
        if existing is not None and not resume:
            raise RunNameTaken(
                f"run {config.run.name} is in the ledger already; `ledger train --resume` continues it, "
                "`--name` or run.name in the file gives the new one its own name"
            )
        if existing is None and resume:
            raise BitwitnessError(f"run {config.run.name} is not in the ledger; leave out --resume to begin it")
        if existing is not None and (asked := own_model.as_recorded(config, existing.config)) != existing.config:
            raise BitwitnessError(
                f"the configuration differs from the one that run {config.run.name} began with: "
                f"{differences(existing.config, asked)}"
            )
        if existing is None:
            verified_leaves(project, ledger)  # nobody trains for days onto a log that is broken
        own = own_model.load(project.root, config) if isinstance(config.model, UserModel) else None
        programs = None if own is None else own.programs
        config = config if programs is None else programs.config
        if existing is not None:
            existing = open_verified_run(project, ledger, config.run.name)
            require_record(existing, ledger.origin)
            if (changed := difference(existing.genesis["arithmetic"], config, programs)) is not None:
                raise BitwitnessError(f"run {config.run.name} was {changed}; resume it with the build that began it")
            own_model.require_same(own, existing.genesis.get("model"), config)
        require_memory(config, windows_at_once, programs, ranks=1 if company is None else company.here)
        vocabulary = config.decoder.vocabulary if programs is None else programs.vocabulary
        data = Dataset.open(project.data_dir, config.data.train)
        _check_vocabulary(data, vocabulary)
        stream = WindowStream(data, config.data.window, config.run.seed, reset_documents=config.data.reset_documents)
        held_out = _held_out(project, config)
        if held_out is not None:
            _check_vocabulary(held_out, vocabulary)
            if held_out.tokenizer != data.tokenizer:
                raise BitwitnessError(
                    f"datasets {data.name} and {held_out.name} have other tokenizers; give data.held_out one like it"
                )
        workspace = Workspace(config, threads, windows_at_once, captured=programs)
        session = Session(project, ledger, config, workspace, stream, held_out, trainer, log, report, own)
        remove_leftovers(session.folder)
        with ExitStack() as stack:
            stop = stack.enter_context(stop_signals())
            if company is not None:
                if (fault := machine_fault(threads)) is not None:
                    raise RankError(0, f"cannot take part: {fault}")
                terms = Terms(config, data.commitment, arithmetic(config, programs), None if own is None else own.data)
                workspace.ranks = session.ranks = stack.enter_context(company.lead(terms, stop))
            if existing is None:
                state, init = start.begin(project, ledger, config, workspace.layout)
                stream.check_samples(state.control.cursor, config.data.windows_per_step)  # before anything is recorded
                writer = _begin(session, state, init)
            else:
                start.provide(project, existing)
                if own is not None:
                    own.save(session.folder)
                state, writer = _resume(session, existing)
            try:
                result = go_on(session, state, writer, stop)
                if session.ranks is not None:
                    session.ranks.end(result.outcome, result.stopped_by)
                return result
            except (BitwitnessError, KernelError) as error:
                ledger.sign_checkpoint(log)  # what is recorded is covered, however the run stands
                if (hint := _way_on(error, config.run.name, state.control.step)) is not None:
                    error.args = (f"{error}; {hint}",)
                raise


def _way_on(error: Exception, name: str, step: int) -> str | None:
    """What to do about a run that came to step `step` and no further."""
    if isinstance(error, NotFinite):
        return (
            f"run {name} is halted in the log. Lower optimizer.learning_rate, and give the new run a name of its own "
            "with --name"
        )
    if isinstance(error, RankError):
        return f"run {name} is kept up to its last entry: `ledger train --resume` goes on, with any number of ranks"
    if isinstance(error, (DataError, DatasetDamaged)):
        return f"run {name} is in the log up to step {step}: once the data is whole, `ledger train --resume` goes on"
    return None


def check_threads(threads: int) -> None:
    """Raise BitwitnessError unless `threads` is a number that the executor takes."""
    if not 1 <= threads <= MAX_THREADS:
        raise BitwitnessError(f"threads = {threads} is not 1 to {MAX_THREADS}; set --threads")


def _begin(session: Session, state: State, init: dict[str, Any]) -> RunWriter:
    config = session.config
    commitment = state.commit()
    datasets = [session.stream.dataset] + ([session.held_out] if session.held_out is not None else [])
    record_datasets(session.ledger, datasets)
    uses = [records.dataset_use(data, role) for data, role in zip(datasets, ("train", "held-out"), strict=False)]
    rope = records.rope_digest(session.workspace.programs.tables)
    predicate = records.genesis(config, uses, session.ledger.origin, commitment, rope, init, session.own)
    predicate["observed"] = session.observed()
    start.keep(session.project, config, state, init)  # durable before the entry that commits to it
    if session.own is not None:
        session.own.save(session.folder)
    return begin_chain(session, predicate, state, commitment)


def begin_chain(session: Session, predicate: dict[str, Any], state: State, commitment: StateCommitment) -> RunWriter:
    """Append a genesis whose files are stored, and what its first state is worth."""
    writer = RunWriter.begin(session.ledger, session.trainer, predicate)
    if session.config.run.eval_every:
        _evaluate(session, state, commitment, writer)
    return writer


def _resume(session: Session, existing: RunHistory) -> tuple[State, RunWriter]:
    if existing.ended:
        raise RunFinished(f"run {session.config.run.name} has its last step {existing.last_step}; nothing to resume")

    def report(record: StepRecord) -> None:
        _report(session, record, 0.0, replayed=True)

    state, stored = resume_state(
        existing, LocalStates(session.project.runs_dir, existing), session.workspace, session.stream, report
    )
    writer = RunWriter.open(session.ledger, session.trainer, existing.run)
    writer.append(
        "resume",
        {
            "from": stored,
            "observed": session.observed(),
            "state": existing.stored(stored).digest,
            "step": state.control.step,
        },
    )
    _catch_up(session, existing, state, writer)
    return state, writer


def _catch_up(session: Session, existing: RunHistory, state: State, writer: RunWriter) -> None:
    """Store and evaluate the last step where the process died between its entry and those that follow it."""
    step = state.control.step
    if step > existing.first and _stores(session.config, step):
        if step not in existing.states:
            _store(session, state, state.commit(), writer)
        elif not state_folder(session.folder, step).is_dir():
            save_state(state, state_folder(session.folder, step))
    if _evaluates(session.config, step) and all(entry.predicate["step"] != step for entry in existing.evals):
        commitment = existing.state(step)  # which the replay has met; thinned where the step is
        _evaluate(session, state, commitment, writer)


def _stores(config: RunConfig, step: int) -> bool:
    return step % config.run.state_every == 0 or step == config.run.steps


def _evaluates(config: RunConfig, step: int) -> bool:
    every = config.run.eval_every
    return bool(every) and (step % every == 0 or step == config.run.steps)


def go_on(session: Session, state: State, writer: RunWriter, stop: Stop) -> RunResult:
    """Train from `state`, whose run `writer` continues, to the last step or until `stop`; append what is recorded."""
    config = session.config.run
    commitment: StateCommitment | None = None
    while state.control.step < config.steps and not stop.asked:
        # Damaged tokens would be signed under the undamaged dataset's root, and accuse an honest run later.
        session.stream.check_samples(state.control.cursor, session.config.data.windows_per_step)
        began = time.perf_counter()
        try:
            record = step(state, session.stream, session.workspace)
        except NotFinite as error:
            reason = "nan" if math.isnan(error.loss) or math.isnan(error.norm) else "inf"
            _halt(session, state, writer, reason, loss=error.loss, norm=error.norm)
            raise
        number = state.control.step
        last = number == config.steps
        stores = _stores(session.config, number)
        commitment = state.commit(optimizer=stores or number % config.commit_optimizer_every == 0)
        if session.ranks is not None:
            session.ranks.agree(number, commitment.weights)
        seconds = time.perf_counter() - began
        if record.parts is not None:
            save_leaves(session.folder, number, record.parts)
        writer.append(
            "step",
            {
                "computed": records.computed_step(record, commitment),
                "observed": {"seconds_us": round(seconds * 1e6), "time": rfc3339.now()},
            },
        )
        if stores:
            _store(session, state, commitment, writer)
        if _evaluates(session.config, number):
            _evaluate(session, state, commitment, writer)
        if number % config.checkpoint_every == 0 and not last:
            session.ledger.sign_checkpoint(session.log)
        take_waiting(session.project, session.ledger, session.log)
        _report(session, record, time.perf_counter() - began)
    if state.control.step == config.steps:
        commitment = commitment or state.commit()
        if not writer.ended:
            writer.append(
                "end",
                {
                    "step": state.control.step,
                    **records.state_fields(commitment),
                    "observed": session.observed(),
                },
            )
        outcome = "completed"
    else:
        commitment = state.commit()
        if state.control.step % config.state_every:
            _store(session, state, commitment, writer)
        _halt(session, state, writer, "interrupted")
        outcome = "interrupted"
    session.ledger.sign_checkpoint(session.log)
    return RunResult(
        name=config.name,
        run=writer.run,
        step=state.control.step,
        state=commitment.digest,
        weights=commitment.weights.root,
        loss=session.last_loss,
        held_out=session.last_held_out,
        outcome=outcome,
        stopped_by=stop.number if outcome == "interrupted" else None,
    )


def _store(session: Session, state: State, commitment: StateCommitment, writer: RunWriter) -> None:
    """The files are durable before the entry that names them."""
    size = save_state(state, state_folder(session.folder, state.control.step))
    writer.append("state", {"bytes": size, "step": state.control.step, **records.state_fields(commitment)})


def _evaluate(session: Session, state: State, commitment: StateCommitment, writer: RunWriter) -> None:
    if session.held_out is None:
        return
    config = session.config
    stream = WindowStream(session.held_out, config.data.window, config.run.seed)
    windows = min(config.run.eval_windows, stream.count)
    total, tokens = session.workspace.losses(state.params, stream, range(windows))
    session.last_held_out = total / float(tokens)
    writer.append(
        "eval",
        {
            "computed": records.evaluation(total, tokens, windows),
            "dataset": records.dataset_use(session.held_out, "held-out"),
            "observed": session.observed(),
            "state": commitment.digest,
            "step": state.control.step,
            "weights": commitment.weights.to_json(),
        },
    )


def _halt(
    session: Session,
    state: State,
    writer: RunWriter,
    reason: str,
    *,
    loss: float | None = None,
    norm: float | None = None,
) -> None:
    commitment = state.commit()
    predicate: dict[str, Any] = {
        "observed": session.observed(),
        "reason": reason,
        "state": commitment.digest,
        "step": state.control.step,
    }
    if loss is not None and norm is not None:
        predicate |= {"loss": f64_hex(loss), "norm": f64_hex(norm)}
    writer.append("halt", predicate)


def _report(session: Session, record: StepRecord, seconds: float, *, replayed: bool = False) -> None:
    session.last_loss = record.loss
    session.report(
        Progress(
            step=record.step,
            steps=session.config.run.steps,
            loss=record.loss,
            norm=record.norm,
            learning_rate=record.scalars["learning_rate"],
            tokens=record.tokens,
            seconds=seconds,
            held_out=session.last_held_out,
            replayed=replayed,
        )
    )


def _held_out(project: Project, config: RunConfig) -> Dataset | None:
    """The dataset of the evals: the one named, else what the build of the training set held out, if anything."""
    if not config.run.eval_every:
        return None
    name = config.data.held_out or held_out_name(config.data.train)
    try:
        dataset = Dataset.open(project.data_dir, name)
        stream = WindowStream(dataset, config.data.window, config.run.seed)
        stream.check(range(min(config.run.eval_windows, stream.count)))
    except (NoSuchDataset, TooShort) as error:
        raise BitwitnessError(
            f"run.eval_every = {config.run.eval_every} needs held-out text: {error}; or set eval_every = 0"
        ) from None
    return dataset


def _check_vocabulary(dataset: Dataset, vocabulary: int) -> None:
    needed = dataset.tokenizer.vocabulary
    if needed > vocabulary:
        raise BitwitnessError(
            f"dataset {dataset.name} has token ids up to {needed - 1}; model.vocabulary = {vocabulary} "
            f"is too small: set it to {needed} or more"
        )
