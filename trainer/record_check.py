"""What a run's entries must say of each other and of its configuration, checked without computing a step.

Every audit and every resume makes this pass over all entries of the run, not only over those that it replays: a
configuration fixes the numbers of every step, and a state has one digest wherever it is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.errors import FoundWrong
from bitwitness.ledger.jcs import f32_hex, f64_from_hex, f64_hex

from . import parts
from .config import UserModel
from .data.split import held_out_name
from .history import Entry, RunHistory
from .step import step_scalars

RECORD = "1"
CONSTANTS = {"rope"}
_FRESH = {"cursor": 0, "step": 0, "tokens": 0}

Json = dict[str, Any]


class RecordWrong(FoundWrong):
    """The entries of a run contradict each other or its configuration."""


@dataclass(frozen=True)
class Fault:
    """Something that the record of `step` says and cannot say.

    `expected` is the state digest that stands in the faulty entry, `computed` the one that the run's chain gives.
    """

    step: int
    field: str
    reason: str
    expected: str
    computed: str

    def found(self) -> Json:
        """The `found` of an audit's unit."""
        return {"computed": self.computed, "expected": self.expected, "field": self.field, "step": self.step}


def require_steps(history: RunHistory) -> None:
    """Raise RecordWrong unless the chain holds the steps 1, 2, 3, …, each once, from where the run goes on."""
    due = history.first + 1
    for entry in history.entries:
        if entry.kind == "step":
            step = entry.predicate["computed"]["step"]
            if step != due:
                raise RecordWrong(f"run {history.name}: entry {entry.index} is step {step} where step {due} is due")
            due += 1


def require_record(history: RunHistory, origin: str) -> None:
    """Raise RecordWrong with the first fault."""
    require_steps(history)
    for fault in check_record(history, origin):
        raise RecordWrong(f"run {history.name}: the record of step {fault.step} is wrong: {fault.reason}")


def check_record(history: RunHistory, origin: str) -> list[Fault]:
    """Return everything that is wrong, in chain order. The steps are 1, 2, 3, … (require_steps).

    `origin` is that of the ledger.
    """
    return [*_genesis(history, origin), *_steps(history), *_events(history)]


def _genesis(history: RunHistory, origin: str) -> Iterator[Fault]:
    genesis, config = history.genesis, history.config
    wanted: Json = {
        "control": _FRESH if history.parent is None else history.parent.state["control"],
        "name": config.run.name,
        "origin": origin,
        "record": RECORD,
        "seed": f"{config.run.seed:016x}",
        "steps": config.run.steps,
    }
    wrong = {name: f"{name} is not what config and ledger say" for name in wanted if genesis[name] != wanted[name]}
    if genesis["config"] != config.resolved():
        wrong["config"] = "config is not written out as this program does"
    if genesis["constants"].keys() != CONSTANTS:
        wrong["constants"] = "constants are not rope alone"
    if ("model" in genesis) != isinstance(config.model, UserModel):
        wrong["model"] = "a captured model is not committed to exactly where config names a module"
    if genesis["code"]["size"] < 1:
        wrong["code"] = "no code is committed to"
    init, begun = genesis["init"], "import" if config.run.start is not None else "seeded"
    if init["kind"] != ("parent" if config.parent is not None else begun):
        wrong["init"] = "init is not of the kind that config says"
    elif history.parent is not None:
        if (history.parent.name, init["step"]) != config.parent:
            wrong["init"] = "init names another run or step than config"
        if any(genesis[name] != history.parent.state[name] for name in ("optimizer", "state", "weights")):
            wrong["init"] = "it begins with another state than its parent stored"
    uses = [(use["role"], use["name"]) for use in genesis["datasets"]]
    due = [("train", config.data.train)]
    if config.run.eval_every:
        due.append(("held-out", config.data.held_out or held_out_name(config.data.train)))
    if sorted(uses) != sorted(due):
        wrong["datasets"] = "datasets are not those of config"
    for use in genesis["datasets"]:
        named = history.datasets.get(use["entry"], {})
        if named.get("dataset") != use["dataset"] or named.get("name") != use["name"]:
            wrong["datasets"] = f"dataset {use['name']} is not that of the entry it names"
    for name, reason in wrong.items():
        yield Fault(history.first, name, f"genesis: {reason}", genesis["state"], genesis["state"])


def _steps(history: RunHistory) -> Iterator[Fault]:
    config, previous = history.config, history.genesis["control"]
    per_step = config.data.windows_per_step
    for step in sorted(history.steps):
        computed = history.computed(step)
        tokens, control = computed["tokens"], computed["control"]
        loss, norm = f64_from_hex(computed["loss"]), f64_from_hex(computed["norm"])
        wrong = {}
        if step > config.run.steps:
            wrong["step"] = f"the run has {config.run.steps} steps"
        due = {"cursor": previous["cursor"] + per_step, "step": step, "tokens": previous["tokens"] + tokens}
        if control != due:
            wrong["control"] = "control does not continue that of the step before"
        if not 1 <= tokens <= per_step * config.data.window:
            wrong["tokens"] = "more tokens than the step's windows hold"
        if not math.isfinite(loss):
            wrong["loss"] = "the loss is not finite"
        if not (math.isfinite(norm) and norm >= 0.0):
            wrong["norm"] = "the norm is not a finite number from 0 on"
        elif (names := _wrong_scalars(history, step, norm, tokens)) and "tokens" not in wrong:
            wrong["scalars"] = f"{', '.join(names)} do not follow from config, norm and tokens"
        if ("optimizer" in computed) != _moments_due(history, step):
            wrong["optimizer"] = "the moments are not committed exactly where config says"
        if ("parts" in computed) != (config.run.commit == "parts"):
            wrong["parts"] = "parts are not committed exactly where config says"
        elif "parts" in computed and computed["parts"]["size"] != parts.count(config.data.shards):
            wrong["parts"] = "the commitment to parts has not two leaves for each shard"
        for name, reason in wrong.items():
            yield Fault(step, name, f"step {step}: {reason}", computed["state"], computed["state"])
        previous = control


def _wrong_scalars(history: RunHistory, step: int, norm: float, tokens: int) -> list[str]:
    recorded = history.computed(step)["scalars"]
    try:
        due = {name: f32_hex(value) for name, value in step_scalars(history.config, step, norm, tokens).items()}
    except (ArithmeticError, ValueError):
        return sorted(recorded)
    return sorted(name for name in recorded.keys() | due.keys() if recorded.get(name) != due.get(name))[:6]


def _moments_due(history: RunHistory, step: int) -> bool:
    run = history.config.run
    return step % run.commit_optimizer_every == 0 or step % run.state_every == 0 or step == run.steps


def _events(history: RunHistory) -> Iterator[Fault]:
    """`state`, `eval`, `halt`, `resume` and `end`: each names the last step before it, and that step's state."""
    latest = history.first
    for entry in history.entries:
        if entry.kind == "step":
            latest = entry.predicate["computed"]["step"]
            continue
        if entry.kind == "run":
            continue
        wrong = _event(history, entry, latest)
        if wrong is not None:
            field, reason = wrong
            reason = f"{entry.kind} entry {entry.index}: {reason}"
            yield Fault(latest, field, reason, entry.predicate["state"], history.state(latest).digest)


def _event(history: RunHistory, entry: Entry, latest: int) -> tuple[str, str] | None:
    said = entry.predicate
    if said["step"] != latest:
        return "step", f"names step {said['step']}, after step {latest}"
    if entry.kind == "resume":
        return _resume(history, said, latest)
    fields = history.genesis if latest == history.first else history.computed(latest)
    for name in ("control", "weights", "optimizer"):
        if name in said and name in fields and said[name] != fields[name]:
            return name, f"{name} is not that of step {latest}"
    if entry.kind == "halt":
        return _halt(history, said, fields, latest)
    if entry.kind == "state" and "optimizer" not in fields:  # a thinned step: states stored of it agree at least
        return None if said["state"] == history.stored(latest).digest else ("state", "the step is stored twice")
    if said["state"] != fields["state"]:
        return "state", f"the state is not that of step {latest}"
    if entry.kind == "end" and latest != history.config.run.steps:
        return "step", f"ends after step {latest} of {history.config.run.steps}"
    return _evaluation(history, said) if entry.kind == "eval" else None


def _resume(history: RunHistory, said: Json, latest: int) -> tuple[str, str] | None:
    origin = said["from"]
    if origin > latest or (origin != history.first and origin not in history.states):
        return "from", f"resumes from step {origin}, where no state is stored"
    if said["state"] != history.stored(origin).digest:
        return "state", f"resumes from another state than the stored one of step {origin}"
    return None


def _halt(history: RunHistory, said: Json, fields: Json, latest: int) -> tuple[str, str] | None:
    known = {fields["state"]} | ({history.stored(latest).digest} if latest in history.states else set())
    # Of a thinned step nothing says what its whole state was, unless it was stored.
    if said["state"] not in known and ("optimizer" in fields or len(known) > 1):
        return "state", f"the state is not that of step {latest}"
    return None


def _evaluation(history: RunHistory, said: Json) -> tuple[str, str] | None:
    config, computed = history.config, said["computed"]
    if said["dataset"] not in [use for use in history.genesis["datasets"] if use["role"] == "held-out"]:
        return "dataset", "the dataset is not the run's held-out one"
    if not 1 <= computed["windows"] <= config.run.eval_windows:
        return "windows", "more windows than config says"
    if not 1 <= computed["tokens"] <= computed["windows"] * config.data.window:
        return "tokens", "more tokens than its windows hold"
    if computed["mean"] != f64_hex(f64_from_hex(computed["nll"]) / float(computed["tokens"])):
        return "mean", "the mean is not nll over tokens"
    return None
