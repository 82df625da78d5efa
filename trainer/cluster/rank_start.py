"""How the ranks of a run find each other, and make sure that they compute the same before anything is recorded.

Rank 0 listens where everyone knows; the others come, say who they are and with what code, and are sent the run: its
configuration, the commitment of its data, its arithmetic, and a captured model. What differs ends it, with the name of
the rank that differs. Ranks that exchange nodes of the fold connect to each other, the higher to the lower one.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import Commitment, byte_view
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.captured_file import MODEL_LIMIT

from ..config import RunConfig, config_from_ledger
from ..fold import crossings, ranges
from ..stop import Stop
from .arrivals import LOOK, Arrivals
from .channel import Channel, RankError, RankFailed, fail, understood
from .ranks import Follower, Leader

MAX_RANKS = 1024
SECRET = "BITWITNESS_RANKS_KEY"
"""The environment variable that holds what only the ranks of a run know."""
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECRET_LENGTH = 16

Json = dict[str, Any]


class BadPlace(BitwitnessError):
    """No rank can be what it is told to be."""


@dataclass(frozen=True)
class Place:
    """Which of the ranks this process is, and where rank 0 listens."""

    rank: int
    ranks: int
    host: str
    port: int
    secret: bytes = field(repr=False)
    timeout: float
    here: int = 1
    """How many of the ranks this machine has."""

    @contextlib.contextmanager
    def lead(self, terms: Terms, stop: Stop) -> Iterator[Leader]:
        """Rank 0 of a run whose other ranks were started elsewhere."""
        with listening(self.host, self.port, everywhere=True) as listener, led(listener, self, terms, stop) as leader:
            yield leader


def place_of(environment: Mapping[str, str], timeout: float) -> Place | None:
    """This process's place by the variables that torchrun sets; None where none is set, or they say that it is alone.

    Raises BadPlace for what cannot be one, and where some are set: a rank that trains alone would sign another run.
    """
    given = [name for name in _VARIABLES if environment.get(name)]
    if not given or (environment.get("WORLD_SIZE") == "1" and environment.get("RANK", "0") == "0"):
        return None
    if missing := [name for name in _VARIABLES if name not in given]:
        raise BadPlace(
            f"{_are(given)} set and {_are(missing)} not: set all four for a run of several ranks, or give --ranks 1, "
            "which ignores them"
        )
    try:
        rank, ranks, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise BadPlace("RANK, WORLD_SIZE and MASTER_PORT must be numbers; torchrun sets them") from None
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens at the port that it names
    if not (0 <= rank < ranks <= MAX_RANKS and 0 < port < 65536):
        raise BadPlace(f"RANK = {rank}, WORLD_SIZE = {ranks}, MASTER_PORT = {port}: no rank can be that")
    secret = environment.get(SECRET, "")
    if len(secret) < _SECRET_LENGTH:
        raise BadPlace(f"{SECRET} must hold the same secret on every rank, {_SECRET_LENGTH} characters or more")
    here = environment.get("LOCAL_WORLD_SIZE", "1")
    return Place(
        rank, ranks, environment["MASTER_ADDR"], port, secret.encode(), timeout, int(here) if here.isdecimal() else 1
    )


def _are(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


@dataclass(frozen=True)
class Terms:
    """What all ranks of a run compute."""

    config: RunConfig
    dataset: Commitment
    arithmetic: Json
    model: bytes | None
    """The captured model of the user's."""

    def to_json(self) -> Json:
        return {
            "arithmetic": self.arithmetic,
            "config": self.config.resolved(),
            "dataset": self.dataset.to_json(),
            "model": 0 if self.model is None else len(self.model),
        }


def require_ranks(ranks: int, shards: int) -> None:
    """Raise BadPlace unless so many ranks can share a step."""
    if not 1 <= ranks <= min(shards, MAX_RANKS):
        most = f"; a step has {shards} shards (data.shards), and each rank computes one at least"
        raise BadPlace(f"{ranks} ranks are not 1 to {min(shards, MAX_RANKS)}{most}")


@contextlib.contextmanager
def listening(host: str, port: int, *, everywhere: bool = False) -> Iterator[socket.socket]:
    """A socket that others connect to: at `host`, or at every address of this machine. Raises BadPlace."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server(("" if everywhere else host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadPlace(f"rank 0 cannot listen at {host}:{port}: {reason}; it is MASTER_ADDR and MASTER_PORT") from None
    with server:
        yield server


# -- rank 0 ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def led(
    listener: socket.socket, place: Place, terms: Terms, stop: Stop, look: Callable[[], None] = lambda: None
) -> Iterator[Leader]:
    """Wait for all ranks and bring them together. `look` raises where one cannot come any more.

    However it is left, they are told so. Raises RankError.
    """
    shards = terms.config.data.shards
    leader = Leader(place.ranks, shards, {}, stop)
    try:
        with stop.at_once("stopped while rank 0 waited for the others; nothing was done"):
            addresses = _gather(listener, place, leader.channels, look)
            for rank, channel in leader.channels.items():
                connect, accept = _neighbours(rank, shards, place.ranks)
                channel.tell(
                    terms.to_json()
                    | {"accept": accept, "connect": [[peer, *addresses[peer]] for peer in connect]}
                    | {"timeout_ms": round(place.timeout * 1000)}
                )
                if terms.model is not None:
                    channel.send(byte_view(terms.model))
            for rank, channel in sorted(leader.channels.items()):
                if channel.hear() != {"ready": rank}:
                    raise RankError(rank, "does not say that it is ready")
        yield leader
    except BaseException as error:
        leader.fail(error)
        raise
    finally:
        leader.close()


def _gather(
    listener: socket.socket, place: Place, channels: dict[int, Channel], look: Callable[[], None]
) -> dict[int, tuple[str, int]]:
    """Fill `channels`; return where each rank listens."""
    addresses, codes = {}, {}
    deadline = time.monotonic() + place.timeout
    with Arrivals(listener, place.secret) as arrivals:
        while len(channels) < place.ranks - 1:
            look()
            if time.monotonic() > deadline:
                absent = sorted(set(range(1, place.ranks)) - channels.keys())
                others = f", nor have {len(absent) - 1} more" if absent[1:] else ""
                odd = f"; {arrivals.turned_away}" if arrivals.turned_away else ""
                raise RankError(absent[0], f"has not come within {place.timeout:g} seconds{others}{odd}")
            for channel, said, host in arrivals.look():
                rank, port = said.get("rank"), said.get("port")
                if not (isinstance(rank, int) and 0 < rank < place.ranks and said.get("ranks") == place.ranks):
                    reason = f"is one of {place.ranks}; {host} came as rank {rank} of {said.get('ranks')}"
                    fail([channel], reason)
                    raise RankError(0, reason)
                if rank in channels or not isinstance(port, int):
                    fail([channel], "two processes came as this rank")
                    raise RankError(rank, f"came twice, the second time from {host}")
                channel.rank = rank
                channel.wait(place.timeout)
                channels[rank], addresses[rank], codes[rank] = channel, (host, port), said.get("code")
    code = code_commitment().root
    for rank in sorted(channels):
        if codes[rank] != code:
            raise RankError(rank, "runs other code than rank 0: install the same version of bitwitness on both")
    return addresses


def _neighbours(rank: int, shards: int, ranks: int) -> tuple[list[int], list[int]]:
    """The lower ranks that a rank sends nodes to, and the higher ones that it receives them from; without rank 0."""
    pairs = {(a, b) for _, a, b in crossings(shards, ranges(shards, ranks)) if a != b and a != 0}
    return sorted(a for a, b in pairs if b == rank), sorted(b for a, b in pairs if a == rank)


# -- the others --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Peers:
    """The neighbours of a rank: those that it connects to, (rank, host, port), and those that connect to it."""

    connect: list[tuple[int, str, int]]
    accept: set[int]


@dataclass(frozen=True)
class Joining:
    """A rank that rank 0 has told what the run is, and that has not agreed yet."""

    place: Place
    terms: Terms
    channels: dict[int, Channel]
    _listener: socket.socket
    _peers: _Peers

    def ready(self, stop: Stop) -> Follower:
        """Connect to the neighbours, and say that this rank computes the same. Raises Stopped, RankError."""
        with stop.at_once(f"stopped while rank {self.place.rank} waited for the others; nothing was done"):
            self._meet()
        return Follower(self.place.rank, self.place.ranks, self.terms.config.data.shards, self.channels, stop)

    def _meet(self) -> None:
        place, timeout = self.place, self.channels[0].timeout
        for rank, host, port in self._peers.connect:
            channel = Channel(_connect(rank, host, port, place), place.secret, timeout=timeout, rank=rank)
            self.channels[rank] = channel
            channel.tell({"rank": place.rank})
        deadline = time.monotonic() + timeout
        with Arrivals(self._listener, place.secret) as arrivals:
            while awaited := self._peers.accept - self.channels.keys():
                if time.monotonic() > deadline:
                    raise RankError(min(awaited), f"does not connect to rank {place.rank}")
                for channel, said, _ in arrivals.look():
                    came = said.get("rank")
                    if not isinstance(came, int) or came not in awaited - self.channels.keys():
                        channel.close()
                        continue
                    channel.rank = came
                    channel.wait(timeout)
                    self.channels[came] = channel
        self.channels[0].tell({"ready": place.rank})


@contextlib.contextmanager
def joined(place: Place, stop: Stop) -> Iterator[Joining]:
    """Come to rank 0 and hear what the run is. Whatever goes wrong is told to the others. Raises Stopped, RankError."""
    channels: dict[int, Channel] = {}
    with contextlib.ExitStack() as stack:
        try:
            with stop.at_once(f"stopped while rank {place.rank} waited for rank 0; nothing was done"):
                sock = stack.enter_context(_connect(0, place.host, place.port, place))
                channels[0] = channel = Channel(sock, place.secret, timeout=place.timeout, rank=0)
                listener = stack.enter_context(listening(channel.own_host, 0))
                terms, peers = _introduce(place, channel, listener.getsockname()[1])
            yield Joining(place, terms, channels, listener, peers)
        except BaseException as error:
            fail(channels.values(), error)
            raise
        finally:
            for channel in channels.values():
                channel.close()


def _introduce(place: Place, channel: Channel, port: int) -> tuple[Terms, _Peers]:
    """Say who this is and where it listens; what rank 0 answers."""
    channel.tell({"code": code_commitment().root, "port": port, "rank": place.rank, "ranks": place.ranks})
    try:
        said = channel.hear(patient=True)
    except RankFailed:
        raise
    except RankError as error:
        raise RankError(0, f"did not take this rank ({error}); is {SECRET} the same on both?") from None
    with understood(0):
        model = bytearray(min(int(said["model"]), MODEL_LIMIT))
        channel.wait(int(said["timeout_ms"]) / 1000)
        peers = _Peers([(int(r), str(h), int(p)) for r, h, p in said["connect"]], set(said["accept"]))
        config = config_from_ledger(said["config"])
        dataset, used = Commitment.from_json(said["dataset"], type="dataset/1"), said["arithmetic"]
    if model:
        channel.receive(memoryview(model))
    return Terms(config, dataset, used, bytes(model) or None), peers


def _connect(rank: int, host: str, port: int, place: Place) -> socket.socket:
    """A connection to a rank, which may come later than this one."""
    deadline = time.monotonic() + place.timeout
    while True:
        try:
            return socket.create_connection((host, port), timeout=min(place.timeout, 10.0))
        except OSError as error:
            if time.monotonic() > deadline:
                reason = (error.strerror or str(error)).lower()
                raise RankError(rank, f"is not at {host}:{port}: {reason}") from None
            time.sleep(LOOK)
