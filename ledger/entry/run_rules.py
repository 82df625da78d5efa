"""What the entries of one run must say of each other, beyond the chain that binds their bytes.

Pure: no file, no key, no signature. Whoever reads all entries of a run, in order, feeds them to RunRules: the
verifier of whole ledgers, fsck, the audit. Each entry alone follows its kind's table already (entries.check).

- Steps are first + 1, first + 2, … once each, where `first` is the genesis's `control.step`.
- `control.tokens` grows by each step's `tokens`, `control.cursor` by the same number of windows at every step.
- `state`, `eval`, `halt`, `resume` and `end` speak of the step that was made last. Weights and control are that
  step's own, and so are the moments and the state digest wherever the step commits to its moments. Where a step is
  thinned (it has no `optimizer`), the first `state` entry fixes the digest for those that follow.
- `resume.from` names a state that was stored before, or the genesis, with its digest.
- Nothing follows `end`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import FoundWrong

Predicate = Mapping[str, Any]

_DIGEST = hashlib.sha256().digest_size
# The fields of each kind that the rules read; an entry may be cut down to these before it is followed.
_READ = {
    "run": ("control", "init", "optimizer", "state", "weights"),
    "step": ("computed",),
    "state": ("control", "optimizer", "state", "step", "weights"),
    "end": ("control", "optimizer", "state", "step", "weights"),
    "eval": ("state", "step", "weights"),
    "halt": ("state", "step"),
    "resume": ("from", "state", "step"),
}
_READ_OF_STEP = ("control", "optimizer", "state", "step", "tokens", "weights")


class RunRuleBroken(FoundWrong):
    """An entry of a run that contradicts the entries before it. `index` is its place in the ledger."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"entry {index}: {reason}")
        self.index = index
        self.reason = reason


def essence(kind: str, predicate: Predicate) -> dict[str, Any]:
    """What the rules read of an entry: enough for RunRules, and small enough to send between processes."""
    read = {name: predicate[name] for name in _READ[kind] if name in predicate}
    if kind == "step":
        computed = predicate["computed"]
        read["computed"] = {name: computed[name] for name in _READ_OF_STEP if name in computed}
    return read


class RunRules:
    """Follows one run from its genesis on. After an error it goes on from what the faulty entry says."""

    def __init__(self, genesis: Predicate) -> None:
        """`genesis` is the predicate of the `run` entry, or its essence."""
        self._made: Predicate = genesis
        self._first: int = genesis["control"]["step"]
        self._digests = bytearray(_identity(genesis["state"], genesis["weights"]))
        self._stored: dict[int, str] = {self._first: genesis["state"]}
        self._stored_weights: dict[int, Predicate] = {}
        self._stride: int | None = None
        self._ended = False

    @property
    def last_step(self) -> int:
        """The last step that was followed; the genesis's own before any."""
        step: int = self._made["control"]["step"]
        return step

    def made(self, step: int, state: str, weights: Predicate) -> bool:
        """Whether the run has made this state and these weights at `step`, so far."""
        place = (step - self._first) * _DIGEST
        if place < 0:
            return False
        own = bytes(self._digests[place : place + _DIGEST])
        if own == _identity(state, weights):
            return True
        return self._stored.get(step) == state and self._stored_weights.get(step) == weights

    def follow(self, index: int, kind: str, predicate: Predicate) -> None:
        """Take in the run's next entry after the genesis, itself or its essence. Raises RunRuleBroken."""
        wrong = ["comes after the run's end"] if self._ended else []
        wrong += self._step(predicate["computed"]) if kind == "step" else self._said(kind, predicate)
        self._ended = self._ended or kind == "end"
        if wrong:
            raise RunRuleBroken(index, "; ".join(wrong))

    def _step(self, made: Predicate) -> Iterator[str]:
        before, now = self._made["control"], made["control"]
        follows = made["step"] == before["step"] + 1
        moved = now["cursor"] - before["cursor"]
        self._made = made
        if not follows:
            yield f"is step {made['step']}, where step {before['step'] + 1} must follow"
            return
        if len(self._digests) == (made["step"] - self._first) * _DIGEST:
            self._digests += _identity(made["state"], made["weights"])
        if now["tokens"] != before["tokens"] + made["tokens"]:
            yield f"its control says {now['tokens']} tokens, not {before['tokens']} + {made['tokens']}"
        if moved <= 0 or moved != (self._stride or moved):
            yield f"its cursor goes from {before['cursor']} to {now['cursor']}, not by the windows of a step"
        self._stride = self._stride or moved

    def _said(self, kind: str, predicate: Predicate) -> Iterator[str]:
        """What is wrong with an entry that speaks of the step made last."""
        step, made = predicate["step"], self._made
        if step != self.last_step:
            yield f"speaks of step {step} after step {self.last_step}"
            return
        if kind == "resume":
            yield from self._resumed(predicate)
            return
        if "weights" in predicate and predicate["weights"] != made["weights"]:
            yield f"names other weights than step {step} computed"
        if "control" in predicate and predicate["control"] != made["control"]:
            yield f"names another control than step {step} has"
        if "optimizer" in made:
            if predicate.get("optimizer", made["optimizer"]) != made["optimizer"]:
                yield f"names other moments than step {step} computed"
            if predicate["state"] != made["state"]:
                yield f"names another state than step {step} computed"
        elif self._is_fixed(kind, step) and predicate["state"] not in (made["state"], self._stored.get(step)):
            yield f"names another state than step {step} has"
        if kind == "state":
            self._stored.setdefault(step, predicate["state"])
            self._stored_weights.setdefault(step, predicate["weights"])

    def _is_fixed(self, kind: str, step: int) -> bool:
        """Whether a thinned step leaves no choice of a digest: `eval` repeats its own, a stored state has fixed it."""
        return kind == "eval" or step in self._stored

    def _resumed(self, predicate: Predicate) -> Iterator[str]:
        origin = predicate["from"]
        if origin not in self._stored:
            yield f"goes on from the state of step {origin}, which no entry before it stores"
        elif self._stored[origin] != predicate["state"]:
            yield f"goes on from another state than the one stored at step {origin}"


def check_parent(genesis: Predicate, stored: tuple[str, int, str] | None) -> None:
    """Check that a run with a parent begins with what the parent stored. Raises FoundWrong.

    `stored` is (run, step, state digest) of the `state` entry before it that `init.entry` names; None if there is none.
    That digest covers control, weights and moments, and the genesis has it as its own (parents_state).
    """
    init = genesis["init"]
    if stored != (init["run"], init["step"], init["state"]):
        raise FoundWrong(f"its parent run stored no such state at step {init['step']}")


def _identity(state: str, weights: Predicate) -> bytes:
    """32 bytes for a step's state and weights: all that is kept of each step, since runs can be long."""
    text = f"{state} {weights['type']} {weights['size']} {weights['root']}"
    return hashlib.sha256(text.encode("utf-8")).digest()
