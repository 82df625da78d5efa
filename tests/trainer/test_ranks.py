"""Several ranks: the bits of one, a record that one machine audits, and every way in which a rank can be odd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError, Stopped
from bitwitness.ledger.project import Project
from bitwitness.trainer import memory
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.cluster import arrivals, rank_start, rank_work
from bitwitness.trainer.cluster.channel import RankError
from bitwitness.trainer.cluster.local_ranks import LocalRanks
from bitwitness.trainer.cluster.rank_start import (
    SECRET,
    BadPlace,
    Joining,
    Place,
    Terms,
    _Peers,
    joined,
    led,
    listening,
    place_of,
)
from bitwitness.trainer.cluster.rank_work import work
from bitwitness.trainer.cluster.ranks import Follower, Leader
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.data import Dataset, DatasetDamaged
from bitwitness.trainer.history import RunHistory, open_run
from bitwitness.trainer.run import Progress, train
from bitwitness.trainer.step import NotFinite, Workspace
from bitwitness.trainer.stop import Stop, stop_signals

from .conftest import make_project, small_table
from .own_models import GPT
from .test_channel import connected

SHARDS = 8


def configured(name: str, *, shards: int = SHARDS, **run: Any) -> RunConfig:
    table = small_table(**{"steps": 3, "name": name, **run})
    table["data"] = {"train": "text", "window": 24, "shards": shards, "windows_per_shard": 1}
    return parse_config(table, where="test")


def history_of(project: Project, name: str) -> RunHistory:
    with project.open_ledger() as ledger:
        return open_run(ledger, name)


def computed(project: Project, name: str) -> list[dict[str, Any]]:
    history = history_of(project, name)
    return [history.computed(step) for step in sorted(history.steps)]


@dataclass
class Threads:
    """A company whose other ranks are threads of this process, each with the project that it is given."""

    project: Project
    ranks: int
    timeout: float = 20.0
    here: int = 1
    load: rank_work.Load | None = None
    who: Any = work

    @contextmanager
    def lead(self, terms: Terms, stop: Stop) -> Iterator[Leader]:
        with listening("127.0.0.1", 0) as listener:
            place = Place(0, self.ranks, "127.0.0.1", listener.getsockname()[1], b"k" * 32, self.timeout)
            ends = [threading.Thread(target=self._rank, args=(replace(place, rank=r),)) for r in range(1, self.ranks)]
            for rank, end in enumerate(ends, 1):
                end.name = f"rank-{rank}"
                end.start()
            try:
                with led(listener, place, terms, stop) as leader:
                    yield leader
            finally:
                for end in ends:
                    end.join(20)
                    assert not end.is_alive()

    def _rank(self, place: Place) -> None:
        with suppress(BitwitnessError):  # rank 0 says it
            self.who(self.project, place, threads=1, load=self.load if place.rank == 1 else None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With two runs that one rank computed: `bfp`, with its parts, and `fp32`."""
    made = make_project(tmp_path_factory.mktemp("ranks") / "p")
    train(made, configured("bfp", precision="bfp", commit="parts"), threads=1)
    train(made, configured("fp32", precision="fp32"), threads=1)
    return made


def test_processes_give_the_bits_of_one(project: Project) -> None:
    for ranks in (2, 3, 8):
        name = f"bfp-{ranks}"
        company = LocalRanks(project, ranks, ranks, 0, 60.0)
        result = train(project, configured(name, precision="bfp", commit="parts"), threads=1, company=company)
        assert result.outcome == "completed"
        assert computed(project, name) == computed(project, "bfp")
        assert history_of(project, name).genesis["observed"]["ranks"] == ranks
    assert "ranks" not in history_of(project, "bfp").genesis["observed"]
    assert audit(project, "bfp-3", samples=3, threads=1).result == "match"
    assert audit(project, "bfp-8", steps=(3, 3), part="fold", threads=1).result == "match"


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_float32_too(project: Project, ranks: int) -> None:
    name = f"fp32-{ranks}"
    train(project, configured(name, precision="fp32"), threads=1, company=Threads(project, ranks))
    assert computed(project, name) == computed(project, "fp32")


def test_shards_that_no_power_of_two_divides(project: Project) -> None:
    train(project, configured("seven", shards=7, commit="parts"), threads=1)
    train(project, configured("seven-3", shards=7, commit="parts"), threads=1, company=Threads(project, 3))
    assert computed(project, "seven-3") == computed(project, "seven")


def test_a_model_of_the_users_own_is_sent_as_data(project: Project, tmp_path: Path) -> None:
    table = small_table(steps=2, name="own")
    table["model"] = {"module": "gpt.py:GPT", "arguments": {}}
    elsewhere = Project(tmp_path, {**project.paths, "runs": tmp_path, "ledger": tmp_path / "none.db"})
    (project.root / "gpt.py").write_text(GPT)
    train(project, parse_config(table, where="test"), threads=1)
    table["run"]["name"] = "own-3"
    config = parse_config(table, where="test")
    train(project, config, threads=1, company=Threads(elsewhere, 3, load=lambda _: config))
    assert computed(project, "own-3") == computed(project, "own")


def test_a_run_goes_on_with_any_other_number_of_ranks(project: Project) -> None:
    def once(ranks: int, *, resume: bool = True, until: int = 0) -> str:
        def report(progress: Progress) -> None:
            if progress.step == until and not progress.replayed:
                os.kill(os.getpid(), signal.SIGTERM)

        config = configured("resumed", precision="bfp", commit="parts", state_every=2)
        company = Threads(project, ranks) if ranks > 1 else None
        return train(project, config, threads=1, resume=resume, company=company, report=report).outcome

    assert once(2, resume=False, until=1) == "interrupted"
    (project.runs_dir / "resumed" / "states" / "step-00000001").rename(project.root / "away")  # so step 1 is replayed
    assert once(3, until=2) == "interrupted"
    assert once(1) == "completed"
    history = history_of(project, "resumed")
    assert [entry.predicate["observed"].get("ranks") for entry in history.entries if entry.kind == "resume"] == [
        3,
        None,
    ]
    assert computed(project, "resumed") == computed(project, "bfp")


def test_a_signal_of_any_rank_ends_the_step_for_all(project: Project) -> None:
    stops: list[Stop] = []

    @contextmanager
    def signals() -> Iterator[Stop]:
        stops.append(Stop())
        yield stops[-1]

    def report(progress: Progress) -> None:
        stops[0].number = signal.SIGTERM

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_work, "stop_signals", signals)
        result = train(project, configured("told"), threads=1, company=Threads(project, 2), report=report)
    assert (result.outcome, result.step, result.stopped_by) == ("interrupted", 2, signal.SIGTERM)


def test_a_killed_process_is_named_and_the_run_goes_on_without_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    config = configured("killed", precision="bfp", commit="parts")
    with pytest.raises(RankError, match=r"rank 2 was ended by SIGKILL; .*; run killed is kept .*--resume"):
        train(
            project, config, threads=1, company=LocalRanks(project, 3, 1, 0, 60.0), report=lambda _: started[1].kill()
        )
    assert all(process.poll() is not None for process in started)
    train(project, config, threads=1, resume=True)
    assert computed(project, "killed") == computed(project, "bfp")


def test_a_rank_that_is_gone_when_all_is_done_is_not_missed() -> None:
    ours, theirs = connected()
    theirs.close()
    ours.close()
    Leader(2, SHARDS, {1: ours}, Stop()).end("completed", None)


def test_a_process_that_cannot_begin_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RankError, match=r"rank 1 ended before it began: its exit status is [12]"):
        train(project, configured("never"), threads=1, company=LocalRanks(project, 2, 1, 0, 60.0))
    assert "never" not in names(project)  # nothing is recorded before all ranks are there


def names(project: Project) -> list[str]:
    with project.open_ledger() as ledger:
        return [name for name in NAMES if open_run(ledger, name, missing_ok=True) is not None]


NAMES = ("refused", "never")


def refused(project: Project, company: Threads, match: str, name: str = "refused") -> None:
    with pytest.raises(RankError, match=match):
        train(project, configured(name), threads=1, company=company)
    assert name not in names(project)


def test_a_rank_with_another_configuration(project: Project) -> None:
    other = configured("refused", seed=8)
    refused(project, Threads(project, 2, load=lambda _: other), r"^rank 1 has another configuration.* run\.seed was 7")


def test_a_rank_with_other_data(project: Project, tmp_path: Path) -> None:
    other = make_project(tmp_path / "other", data="another")
    (other.data_dir / "another").rename(other.data_dir / "text")
    refused(project, Threads(other, 2), "^rank 1 failed: dataset text: its manifest calls it another")
    refused(project, Threads(replace(other, paths={"data": tmp_path}), 2), "^rank 1 failed: no dataset text")


def test_a_rank_with_other_code(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rank_start.code_commitment

    def code_commitment() -> Commitment:
        return Commitment("code/1", 1, "0" * 64) if threading.current_thread().name == "rank-2" else honest()

    monkeypatch.setattr(rank_start, "code_commitment", code_commitment)
    refused(project, Threads(project, 3), "^rank 2 runs other code than rank 0")


def test_a_rank_whose_machine_computes_wrong(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_work, "machine_fault", lambda threads: "its self-test fails at exp")
    refused(project, Threads(project, 2), "^rank 1 cannot take part: its self-test fails at exp")


def test_ranks_that_do_not_come_or_come_as_others(project: Project) -> None:
    refused(
        project, Threads(project, 2, timeout=1.0, who=lambda *_, **__: None), "^rank 1 has not come within 1 seconds$"
    )

    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rank": 1}, "^rank 1 came twice"),
        ({"ranks": 4}, r"came as rank \d of 4"),
        ({"secret": b"guessed" * 5}, "turned away: a peer has another secret"),
    )
    for change, message in changes:

        def as_another(project: Project, place: Place, *, change: Any = change, **options: Any) -> None:
            work(project, replace(place, **change), **options)

        refused(project, Threads(project, 3, timeout=1.5, who=as_another), message)


def test_who_waits_for_ranks_can_be_stopped(project: Project) -> None:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stopped, match="waited for the others; nothing was done") as stopped:
        train(project, configured("refused"), threads=1, company=Threads(project, 2, who=lambda *_, **__: None))
    assert stopped.value.exit_code == 143 and "refused" not in names(project)


@contextmanager
def signalled(number: signal.Signals, after: float = 0.3) -> Iterator[None]:
    """This process gets the signal `after` so many seconds."""
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def silent_stranger(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname()[:2])


def test_who_waits_for_what_ranks_compare_can_be_stopped(project: Project) -> None:
    """Rank 1 has come, and does not say that it is ready."""
    done = threading.Event()

    def never_ready(project: Project, place: Place, **_: Any) -> None:
        with joined(place, Stop()):
            done.wait(15)

    began = time.monotonic()
    with listening("127.0.0.1", 0) as listener, stop_signals() as stop, signalled(signal.SIGTERM, after=1.0):
        place = Place(0, 2, "127.0.0.1", listener.getsockname()[1], b"k" * 32, 10.0)
        other = threading.Thread(target=never_ready, args=(project, replace(place, rank=1)))
        other.start()
        with (
            pytest.raises(Stopped, match="waited for the others; nothing was done"),
            led(listener, place, terms_of(project), stop),
        ):
            pass
        done.set()
        other.join(20)
    assert time.monotonic() - began < 5


def terms_of(project: Project) -> Terms:
    dataset = Dataset.open(project.data_dir, "text").commitment
    return Terms(configured("refused"), dataset, {"name": "none"}, None)


def test_a_rank_that_waits_for_its_neighbour_can_be_stopped(project: Project) -> None:
    """It accepts another rank, which never comes."""
    with listening("127.0.0.1", 0) as listener, stop_signals() as stop:
        ours, theirs = connected()
        place = Place(1, 4, "127.0.0.1", 1, b"k" * 32, 10.0)
        joining = Joining(place, terms_of(project), {0: ours}, listener, _Peers([], {3}))
        began = time.monotonic()
        with (
            signalled(signal.SIGINT),
            pytest.raises(Stopped, match="stopped while rank 1 waited for the oth") as stopped,
        ):
            joining.ready(stop)
        assert stopped.value.exit_code == 130 and time.monotonic() - began < 3
        with pytest.raises(Stopped):  # a signal that came before, too
            joining.ready(stop)
        ours.close()
        theirs.close()


def test_strangers_do_not_prolong_the_wait_for_a_neighbour(project: Project) -> None:
    with listening("127.0.0.1", 0) as listener:
        ours, theirs = connected(timeout=1.0)
        place = Place(1, 4, "127.0.0.1", 1, b"k" * 32, 1.0)
        joining = Joining(place, terms_of(project), {0: ours}, listener, _Peers([], {3}))
        over = threading.Event()

        def knock() -> None:
            while not over.wait(0.4):
                silent_stranger(listener).close()

        knocking = threading.Thread(target=knock)
        knocking.start()
        began = time.monotonic()
        threading.Timer(4, over.set).start()
        with pytest.raises(RankError, match="rank 3 does not connect to rank 1"):
            joining.ready(Stop())
        assert time.monotonic() - began < 2.5
        over.set()
        knocking.join()
        ours.close()
        theirs.close()


def test_silent_strangers_keep_no_rank_from_coming(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that say nothing, nor those that begin and do not go on."""
    monkeypatch.setattr(arrivals, "_PATIENCE", 30.0)
    monkeypatch.setattr(arrivals, "_HURRY", 30.0)  # who waits for one of them, waits so long
    strangers: list[socket.socket] = []

    def work_after_strangers(project: Project, place: Place, **options: Any) -> None:
        for said in (b"", b"b", b"bitwitness/ranks/v1\x00" + bytes(32), b"GET / HTTP/1.1\r\n\r\n"):
            strangers.append(socket.create_connection((place.host, place.port)))
            strangers[-1].sendall(said)
        work(project, place, **options)

    began = time.monotonic()
    train(project, configured("strangers"), threads=1, company=Threads(project, 2, who=work_after_strangers))
    assert time.monotonic() - began < 6
    for stranger in strangers:
        stranger.close()


def test_who_says_nothing_is_turned_away_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_PATIENCE", 60.0)
    monkeypatch.setattr(arrivals, "_HURRY", 0.2)
    monkeypatch.setattr(arrivals, "_MOST", 2)
    with listening("127.0.0.1", 0) as listener, arrivals.Arrivals(listener, b"k" * 32) as door:
        silent = [silent_stranger(listener) for _ in range(3)]
        began = time.monotonic()
        while not door.turned_away:
            assert not list(door.look()) and time.monotonic() - began < 5
        assert door.turned_away == "127.0.0.1 was turned away: a peer has not said who it is"
        for sock in silent:
            sock.close()


def test_more_ranks_than_shards(project: Project) -> None:
    with pytest.raises(BadPlace, match=r"9 ranks are not 1 to 8; a step has 8 shards \(data.shards\)"):
        train(project, configured("many"), threads=1, company=Threads(project, 9))


def test_every_rank_of_a_machine_needs_its_memory(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("refused")
    monkeypatch.setattr(memory, "available_bytes", lambda: 5 * memory.least_bytes(config) // 2)
    memory.require_memory(config, ranks=2)
    with pytest.raises(memory.NotEnoughMemory):
        train(project, config, threads=1, company=LocalRanks(project, 3, 3, 0, 60.0))


def test_damaged_data_of_one_rank(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rank_work.WindowStream.check_samples

    def check_samples(self: Any, first: int, count: int) -> None:
        if threading.current_thread().name == "rank-1" and first >= SHARDS:
            assert (first, count) == (SHARDS + 4, 4)  # its own windows of step 2, and no others
            raise DatasetDamaged("dataset text: the tokens of document 3 differ")
        honest(self, first, count)

    monkeypatch.setattr(rank_work.WindowStream, "check_samples", check_samples)
    codes: list[int] = []

    def work_and_tell(project: Project, place: Place, **options: Any) -> None:
        try:
            work(project, place, **options)
        except BitwitnessError as error:
            codes.append(error.exit_code)

    with pytest.raises(
        RankError, match=r"^rank 1 failed: dataset text: the tokens of document 3 differ; run damaged is"
    ) as missed:
        train(project, configured("damaged"), threads=1, company=Threads(project, 2, who=work_and_tell))
    assert (missed.value.exit_code, codes) == (2, [1])  # as docs/ranks.md says
    assert len(computed(project, "damaged")) == 1


def test_a_silent_rank(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "begin", lambda self, state: time.sleep(2.5))
    with pytest.raises(RankError, match="rank 1 has sent nothing for 1 seconds; run silent is kept"):
        train(project, configured("silent"), threads=1, company=Threads(project, 2, timeout=1.0))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"sums": []}, "rank 1 sends something else where losses and tokens of 4 shards must come"),
        ({"sums": [["0" * 16, -1]] * 4}, "losses and tokens of 4 shards"),
        ({"sums": [[1, 1]] * 4}, "losses and tokens of 4 shards"),
        ({}, "losses and tokens of 4 shards"),
    ],
)
def test_sums_that_are_none(
    project: Project, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], message: str
) -> None:
    def share_sums(self: Follower, own: Any) -> Any:
        self.channels[0].tell(answer)
        return self.channels[0].hear()

    monkeypatch.setattr(Follower, "_share_sums", share_sums)
    with pytest.raises(RankError, match=message):
        train(project, configured(f"odd-{time.monotonic_ns()}"), threads=1, company=Threads(project, 2))


def test_a_wrong_gradient_is_found_at_its_shard(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Workspace.shard_gradient

    def shard_gradient(self: Workspace, weights: Any, windows: Any, first: int) -> Any:
        gradient, loss, tokens = honest(self, weights, windows, first)
        if first == SHARDS + 5 and threading.current_thread().name == "rank-1":
            gradient[17] += 1
        return gradient, loss, tokens

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "shard_gradient", shard_gradient)
        train(project, configured("planted", commit="parts"), threads=1, company=Threads(project, 2))
    found = {n: audit(project, "planted", steps=(2, 2), part=f"shard:{n}", threads=1).result for n in (4, 5, 6)}
    assert found == {4: "match", 5: "mismatch", 6: "match"}
    assert audit(project, "planted", steps=(1, 1), part="shard:5", threads=1).result == "match"


@pytest.mark.parametrize(("ranks", "than"), [(2, "the other rank"), (3, "the others")])
def test_weights_that_differ_end_the_run_before_they_are_recorded(
    project: Project, monkeypatch: pytest.MonkeyPatch, ranks: int, than: str
) -> None:
    honest = Workspace.update

    def update(self: Workspace, state: Any, *given: Any) -> None:
        honest(self, state, *given)
        if state.control.step == 1 and threading.current_thread().name == "rank-1":
            state.params[0] += 1

    monkeypatch.setattr(Workspace, "update", update)
    name = f"apart-{ranks}"
    with pytest.raises(RankError, match=f"rank 1 has other weights than {than} after step 2: it computes wrong"):
        train(project, configured(name), threads=1, company=Threads(project, ranks))
    assert len(computed(project, name)) == 1


def test_rank_0_can_be_the_odd_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Workspace.update

    def update(self: Workspace, state: Any, *given: Any) -> None:
        honest(self, state, *given)
        if not threading.current_thread().name.startswith("rank-"):
            state.params[0] += 1

    monkeypatch.setattr(Workspace, "update", update)
    with pytest.raises(RankError, match="rank 0 has other weights than the others after step 1"):
        train(project, configured("zero"), threads=1, company=Threads(project, 3))


def test_all_ranks_find_a_loss_that_is_no_number(project: Project) -> None:
    config = configured("nan")
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"learning_rate": 1e30})})
    with pytest.raises(NotFinite, match="run nan is halted"):
        train(project, config, threads=1, company=Threads(project, 3))
    assert history_of(project, "nan").entries[-1].kind == "halt"


def test_a_place_by_the_variables_of_torchrun() -> None:
    usual = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", SECRET: "s" * 16}
    assert place_of(usual, 9.0) == Place(1, 4, "10.0.0.1", 29500, b"s" * 16, 9.0)
    shared = place_of({**usual, "LOCAL_WORLD_SIZE": "2"}, 9.0)
    assert shared is not None and shared.here == 2
    assert "ssss" not in repr(place_of(usual, 9.0))
    under = place_of({**usual, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 9.0)
    assert under is not None and under.port == 29501
    four = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert place_of({SECRET: "s" * 16, **dict.fromkeys(four, "")}, 9.0) is None
    for name in four:
        with pytest.raises(BadPlace, match=rf"{name} is not: set all four .* or give --ranks 1"):
            place_of({**usual, name: ""}, 9.0)
        with pytest.raises(BadPlace, match=f"^{name} is set and .* and .* are not: set all four"):
            place_of({name: "2"}, 9.0)
    assert place_of({"WORLD_SIZE": "1"}, 9.0) is None
    assert place_of({**usual, "RANK": "0", "WORLD_SIZE": "1"}, 9.0) is None
    for change in (
        {"WORLD_SIZE": "1"},
        {"RANK": "4"},
        {"RANK": "-1"},
        {"RANK": "one"},
        {"MASTER_PORT": "0"},
        {SECRET: ""},
        {SECRET: "short"},
    ):
        with pytest.raises(BadPlace):
            place_of({**usual, **change}, 9.0)


# -- the command -------------------------------------------------------------------------------------------------

RUN = """
[run]
name = "NAME"
steps = STEPS
seed = 7
state_every = 500
[data]
train = "text"
window = 24
shards = 4
windows_per_shard = 1
[model]
layers = 2
width = 32
heads = 4
kv_heads = 2
hidden = 48
vocabulary = 257
"""


def command(project: Project, *options: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bitwitness.ledger.cli", "--project", str(project.root), "train", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_the_command_leaves_no_process_behind(project: Project) -> None:
    config = project.root / "long.toml"
    config.write_text(RUN.replace("NAME", "long").replace("STEPS", "5000"))
    first = command(project, str(config), "--ranks", "2")
    while not (others := children(first)) or "step" not in [e.kind for e in entries(project, "long")]:
        assert first.poll() is None, first.stderr and first.stderr.read()
        time.sleep(0.05)
    first.terminate()
    _, notes = first.communicate(timeout=60)
    assert first.returncode == 143 and "--resume --ranks 2` continues" in notes, notes
    assert gone(others)

    second = command(project, str(config), "--resume", "--ranks", "3")
    before = len(entries(project, "long"))
    while len(children(second)) < 2 or len(entries(project, "long")) < before + 3:
        assert second.poll() is None, second.stderr and second.stderr.read()
        time.sleep(0.05)
    others = children(second)
    second.kill()
    second.communicate()
    assert len(others) == 2 and gone(others)


def test_a_rank_that_lacks_a_variable_trains_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "half.toml"
    config.write_text(RUN.replace("NAME", "never").replace("STEPS", "1"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert main(["--project", str(project.root), "train", str(config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: RANK, WORLD_SIZE and MASTER_ADDR are set and MASTER_PORT is not: set all four "), (
        said
    )
    assert "never" not in names(project)


def test_a_rank_that_waits_for_rank_0_can_be_stopped(project: Project) -> None:
    """Where rank 0 has taken the connection and says nothing; and before it listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), SECRET: "s" * 16}
        waiting = command(project, str(project.root / "none.toml"), environment=place)
        taken, _ = server.accept()
        waiting.terminate()
        _, notes = waiting.communicate(timeout=20)
        taken.close()
    message = "stopped while rank 1 waited for rank 0; nothing was done"
    assert (waiting.returncode, notes) == (143, f"{message}\n")
    with signalled(signal.SIGTERM, after=0.5), pytest.raises(Stopped, match=f"^{message}$"):
        work(project, Place(1, 2, "127.0.0.1", port, b"s" * 16, 10.0), threads=1)


def entries(project: Project, name: str) -> list[Any]:
    try:
        return list(history_of(project, name).entries)
    except BitwitnessError:
        return []


def test_the_command_on_two_machines(project: Project, tmp_path: Path) -> None:
    """The second has the data and the configuration, no ledger and no keys."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "bitwitness.toml").write_text((project.root / "bitwitness.toml").read_text())
    (elsewhere / "data").symlink_to(project.data_dir)
    for folder in (project.root, elsewhere):
        (folder / "two.toml").write_text(RUN.replace("NAME", "two").replace("STEPS", "2"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), SECRET: "0123456789abcdef"}
    other = command(Project.find(elsewhere), str(elsewhere / "two.toml"), environment=variables | {"RANK": "1"})
    first = command(project, str(project.root / "two.toml"), "--json", environment=variables | {"RANK": "0"})
    said, notes = first.communicate(timeout=60)
    assert first.returncode == 0, notes
    said, notes = other.communicate(timeout=60)
    assert (other.returncode, said) == (0, "rank 1 of 2: two completed at step 2\n"), notes
    assert history_of(project, "two").genesis["observed"]["ranks"] == 2
    assert not (elsewhere / "ledger.db").exists()
