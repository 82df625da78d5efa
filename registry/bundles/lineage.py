"""Follows a release back to its origin: step, genesis, datasets, and what was measured and audited on the way.

The weights come from the steps of the release's run, and of every run that it goes back to, up to where the next one
begins. A merge may derive from releases of several runs, for each of which the same holds. So a release stands on a set
of runs, and each of these lines is as complete as that of a release of its own. Works on entries that `evidence.py` has
already authenticated; here they are sorted out, and `lineage_checks.py` holds them against one another. Entries that do
not belong to this release are refused, so that a bundle says nothing beside the point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.entry.derivation_rules import sources_of
from bitwitness.ledger.entry.entries import KINDS
from bitwitness.ledger.errors import FoundWrong

from .evidence import Entry

# Kinds that say something about a model but are neither part of a run nor of its origin.
_ABOUT_KEYS = frozenset({"key", "status", "endorse"})
# What is said of a run by others than its trainer, each naming it.
_SAID = ("audit-intent", "audit", "recheck")


class LineageBroken(FoundWrong):
    """Authentic entries that do not add up to the origin of this release; the message names them."""


@dataclass(frozen=True)
class Parent:
    """A run that another one goes on from: its genesis, and the entry of the state that the other begins with."""

    genesis: Entry
    state: Entry

    def __str__(self) -> str:
        name, step = self.genesis.predicate["name"], self.state.predicate["step"]
        return f"step {step} of run {name} ({self.genesis.leaf[:16]}…)"


@dataclass(frozen=True)
class RunLine:
    """One run that a release stands on, as far as the bundle shows it.

    ``releases`` are those of this run among the release and all that it derives from, in log order, none where other
    runs only go on from it; ``made`` is, by their leaf hash, the entry of the step that each names, or the genesis for
    the run's first state.
    ``chain`` holds the run's entries of the bundle but the genesis, in the order of their `seq`.
    """

    genesis: Entry
    releases: Sequence[Entry]
    made: Mapping[str, Entry]
    chain: Sequence[Entry]
    datasets: Sequence[Entry]
    intents: Sequence[Entry]
    audits: Sequence[Entry]
    rechecks: Sequence[Entry]
    """What other auditors said of the audits, having computed them again."""
    parents: Sequence[Parent]
    """The runs that it goes back to, the nearest first."""

    def __str__(self) -> str:
        return f"run {self.genesis.predicate['name']} ({self.genesis.leaf[:16]}…)"

    @property
    def released(self) -> Entry:
        """The entry of the highest step that is released: up to there the run must be audited."""
        return self.made[self._last.leaf]

    @property
    def step(self) -> int:
        step: int = self._last.predicate["step"]
        return step

    @property
    def _last(self) -> Entry:
        return max(self.releases, key=lambda entry: int(entry.predicate["step"]))

    @property
    def trained_on(self) -> list[Entry]:
        """The datasets that the run was trained on, as far as the bundle holds them."""
        used = {item["entry"] for item in self.genesis.predicate["datasets"] if item["role"] == "train"}
        return [entry for entry in self.datasets if entry.leaf in used]

    @property
    def evals(self) -> list[Entry]:
        return [entry for entry in self.chain if entry.kind == "eval"]

    @property
    def end(self) -> Entry | None:
        return next((entry for entry in self.chain if entry.kind == "end"), None)


@dataclass(frozen=True)
class Stretch:
    """The steps of a run that a release comes from: all up to ``until``, whose state ``reached`` committed to.

    That is the entry of the released step, or where the next run goes on, the `state` entry that it names.
    """

    line: RunLine
    until: int
    reached: Entry
    released: bool

    @property
    def start(self) -> int:
        """The step that the run begins after."""
        start: int = self.line.genesis.predicate["control"]["step"]
        return start

    @property
    def what(self) -> str:
        """Its last step, in words."""
        return f"the released step {self.until}" if self.released else f"step {self.until}, where the next run goes on,"


@dataclass(frozen=True)
class Lineage:
    """A release, the releases that it derives from, directly or not, and the runs of all of them, its own first.

    ``ancestors`` are the runs that these go back to, and that nothing here is a release of. ``before`` are other
    releases, of runs that are gone on from, at or before the step where they are: the weights come of these, too.
    """

    release: Entry
    sources: Sequence[Entry]
    runs: Sequence[RunLine]
    ancestors: Sequence[RunLine] = ()
    before: Sequence[Entry] = ()

    @property
    def own(self) -> RunLine:
        """The line of the run that the release names."""
        return self.runs[0]

    @property
    def genesis(self) -> Entry:
        return self.own.genesis

    @property
    def step(self) -> int:
        step: int = self.release.predicate["step"]
        return step

    @property
    def releases(self) -> list[Entry]:
        """The release and all that it derives from."""
        return [self.release, *self.sources]

    def of(self, entry: Entry) -> RunLine:
        """The line that a release of this lineage is of."""
        return next(line for line in self.runs if line.genesis.leaf == entry.predicate["run"])

    @property
    def every(self) -> list[RunLine]:
        """All runs that the weights come from."""
        return [*self.runs, *self.ancestors]

    def history(self, line: RunLine) -> list[Stretch]:
        """What the last release of a run comes from: the steps of that run, and of those that it goes back to."""
        by_run = {each.genesis.leaf: each for each in self.every}
        stretches = [Stretch(line, line.step, line.released, released=True)]
        for parent in line.parents:
            step: int = parent.state.predicate["step"]
            stretches.append(Stretch(by_run[parent.genesis.leaf], step, parent.state, released=False))
        return stretches

    def gone_on_from(self, line: RunLine) -> list[Entry]:
        """The `state` entries of a run that other runs here begin with."""
        found = {
            parent.state.index: parent.state
            for each in self.runs
            for parent in each.parents
            if parent.genesis.leaf == line.genesis.leaf
        }
        return [found[index] for index in sorted(found)]

    @property
    def goes_back(self) -> bool:
        """Whether a run here goes on from another one, of which there may be releases."""
        return any(line.parents for line in self.runs)

    def goes_on_from(self, said: Mapping[str, Any]) -> bool:
        """Whether what is ``said`` to be released is of a run that another one here goes on from, there or before."""
        lines = [line for line in self.every if line.genesis.leaf == said["run"]]
        states = [state for line in lines for state in self.gone_on_from(line)]
        return any(said["step"] <= state.predicate["step"] for state in states)

    def each(self, say: Callable[[RunLine], str], lines: Sequence[RunLine] | None = None) -> str:
        """What ``say`` tells of every run (or of ``lines``), in one line; of several, what it raises names the run."""
        lines = self.every if lines is None else lines
        if len(lines) == 1:
            return say(lines[0])
        said = []
        for line in lines:
            try:
                said.append(f"{line}: {say(line)}")
            except LineageBroken as error:
                raise LineageBroken(f"{line}: {error}") from error
        return "; ".join(said)


def find(entries: Sequence[Entry], before: Collection[int] = ()) -> Lineage:
    """Pick out the one release and all that it names; raises LineageBroken if something is absent or foreign.

    ``before`` are the log positions of the releases that the bundle shows beside it, of the runs that are gone on from.
    """
    before = frozenset(before)
    earlier = [entry for entry in entries if entry.kind == "release" and entry.index in before]
    if len(earlier) != len(before):
        raise LineageBroken("the bundle names releases before it that it does not hold")
    releases = {entry.leaf: entry for entry in entries if entry.kind == "release" and entry.index not in before}
    used_by = {leaf for entry in releases.values() for leaf in sources_of(entry.predicate)}
    release = _only(entry for leaf, entry in releases.items() if leaf not in used_by)
    sources = _sources(release, releases)
    of_run: dict[str, list[Entry]] = {release.predicate["run"]: []}
    for entry in sorted((release, *sources), key=lambda entry: entry.index):
        of_run.setdefault(entry.predicate["run"], []).append(entry)
    geneses = {
        run: _named(entries, "run", run, f"the run {run[:16]}… of {released[0]}") for run, released in of_run.items()
    }
    parents = {run: _parents(genesis, entries) for run, genesis in geneses.items()}
    origins = {parent.genesis.leaf: parent.genesis for line in parents.values() for parent in line}
    origins = {run: genesis for run, genesis in origins.items() if run not in geneses}
    _check_foreign(entries, geneses | origins)
    lines = [_line(entries, geneses[run], released, parents[run]) for run, released in of_run.items()]
    ancestors = [_line(entries, genesis, [], _parents(genesis, entries)) for genesis in origins.values()]
    known = {entry.index for line in (*lines, *ancestors) for entry in (line.genesis, *line.chain, *line.datasets)}
    known |= {e.index for line in (*lines, *ancestors) for e in (*line.intents, *line.audits, *line.rechecks)}
    known |= {release.index, *(entry.index for entry in (*sources, *earlier))}
    for entry in entries:
        if entry.kind == "dataset" and entry.index not in known:
            raise LineageBroken(f"{entry} is a dataset that the run does not use")
        if entry.index not in known and entry.kind not in _ABOUT_KEYS:
            raise LineageBroken(f"{entry} does not belong to the release")
    runs = [lines[0], *sorted(lines[1:], key=lambda line: line.genesis.index)]
    found = Lineage(release, sources, runs, sorted(ancestors, key=lambda line: -line.genesis.index), earlier)
    for entry in earlier:
        if not found.goes_on_from(entry.predicate):
            raise LineageBroken(f"{entry} is not a release that the run goes on from")
    return found


def _check_foreign(entries: Sequence[Entry], geneses: Mapping[str, Entry]) -> None:
    """No entry is of a run that the release does not stand on."""
    own = {genesis.index for genesis in geneses.values()}
    for entry in entries:
        if entry.index in own or not (KINDS[entry.kind].chained or entry.kind in _SAID):
            continue
        if entry.kind == "run" or entry.predicate["run"] not in geneses:
            raise LineageBroken(f"{entry} belongs to another run")


def _line(entries: Sequence[Entry], genesis: Entry, releases: Sequence[Entry], parents: Sequence[Parent]) -> RunLine:
    """What the bundle shows of one run."""
    own = [entry for entry in entries if entry.kind != "release" and entry.predicate.get("run") == genesis.leaf]
    chain = sorted((entry for entry in own if KINDS[entry.kind].chained), key=lambda entry: int(entry.predicate["seq"]))
    used = {item["entry"] for item in genesis.predicate["datasets"]}
    used |= {entry.predicate["dataset"]["entry"] for entry in chain if entry.kind == "eval"}
    intents, audits, rechecks = ([entry for entry in own if entry.kind == kind] for kind in _SAID)
    return RunLine(
        genesis,
        releases,
        {entry.leaf: _made(entry, genesis, chain) for entry in releases},
        chain,
        [entry for entry in entries if entry.kind == "dataset" and entry.leaf in used],
        intents,
        audits,
        rechecks,
        parents,
    )


def _parents(genesis: Entry, entries: Sequence[Entry]) -> list[Parent]:
    """The runs that one goes back to, the nearest first, each held to what the genesis after it says."""
    found: list[Parent] = []
    while (init := genesis.predicate["init"])["kind"] == "parent":
        state = _named(entries, "state", init["entry"], f"the state that {genesis} begins with")
        before = _named(entries, "run", init["run"], f"the run {init['run'][:16]}… that {genesis} goes on from")
        if any(state.predicate[name] != init[name] for name in ("run", "step", "state")):
            raise LineageBroken(f"{genesis} begins with another state than {state} stored")
        if not before.index < state.index < genesis.index:
            raise LineageBroken(f"{genesis} stands before {state}, which it begins with")
        found.append(Parent(before, state))
        genesis = before
    return found


def _made(release: Entry, genesis: Entry, chain: Sequence[Entry]) -> Entry:
    """The entry of the step that a release names, or the genesis for its first."""
    step = release.predicate["step"]
    if step == genesis.predicate["control"]["step"]:
        return genesis
    steps = [entry for entry in chain if entry.kind == "step" and entry.computed["step"] == step]
    if len(steps) != 1:
        raise LineageBroken(f"{len(steps)} entries for the released step {step}, not one")
    return steps[0]


def _sources(release: Entry, releases: Mapping[str, Entry]) -> list[Entry]:
    """The releases that one derives from, theirs too, in log order."""
    found: dict[str, Entry] = {}
    due = sources_of(release.predicate)
    while due:
        leaf = due.pop()
        if leaf not in releases:
            raise LineageBroken(f"the release {leaf[:16]}… that {release} derives from is not in the bundle")
        if leaf not in found:
            found[leaf] = releases[leaf]
            due += sources_of(releases[leaf].predicate)
    return sorted(found.values(), key=lambda entry: entry.index)


def _only(entries: Iterable[Entry]) -> Entry:
    found = list(entries)
    if len(found) != 1:
        raise LineageBroken(f"the bundle holds {len(found)} releases, not one")
    return found[0]


def _named(entries: Sequence[Entry], kind: str, leaf: str, what: str) -> Entry:
    for entry in entries:
        if entry.kind == kind and entry.leaf == leaf:
            return entry
    raise LineageBroken(f"{what} is not in the bundle")
