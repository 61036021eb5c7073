"""A client program: it lives as long as the run, connects again whenever it lost its connection, and has its habits.

It knows no protocol. What it does with a connection is the business of a `Peer`, one class for each protocol.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

from tests.simulation.ledger import Ledger
from tests.simulation.queues import FOREVER, QueueSpec
from tests.simulation.violation import Violation
from waybill.testing.virtual_clock import VirtualClock

FANOUT: Final = "sim.fanout"
AMQP091: Final = "amqp091"
AMQP10: Final = "amqp10"
AMQP010: Final = "amqp010"


@dataclass(frozen=True)
class Habits:
    """What an actor tends to do. Weights of actions by name; `pause_s` between two of them.

    Without `confirms` it does not learn what became of its messages, so nothing is promised to it; but what it makes
    the broker write is not synced for it either, which is what a crash likes. With `transacts` it does both in
    transactions. `shared_prefetch`: credit of the whole channel. `private`: the kind of queue that it makes for itself,
    "exclusive", "auto-delete" or "". `is_steady`: its network holds any amount, so that it is never out of credit.
    `resumes`: over 1.0, its links outlive their connections; over 0-10 its session does, for `outlives_s`. With
    `distributes` it works in branches of distributed transactions.
    """

    weights: dict[str, int]
    consumes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    prefetch: int = 0
    shared_prefetch: int = 0
    no_ack: bool = False
    confirms: bool = True
    transacts: bool = False
    window: int = 50
    pause_s: float = 0.05
    burst: int = 10
    body_bytes: int = 300
    ttl_s: float = FOREVER
    priority: int = 0
    private: str = ""
    heartbeat_s: int = 0
    heeds_blocked: bool = True
    is_steady: bool = False
    reads_from: str = "first"
    protocol: str = AMQP091
    resumes: bool = False
    outlives_s: int = 0
    distributes: bool = False
    tends: tuple[QueueSpec, ...] = ()

    @property
    def prefetch_octets(self) -> int:
        """Over 0-9-1: what a consumer may hold of content. Some who hold few messages have such a window."""
        return 2000 if self.prefetch == 3 else 0

    @property
    def shared_octets(self) -> int:
        return 5000 if self.shared_prefetch else 0


class Choice:
    """What to choose an action from, by its weight."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._names = list(weights)
        self._cumulative_weights = list(accumulate(weights.values()))

    def __bool__(self) -> bool:
        return bool(self._names)

    def choose(self, random: Random) -> str:
        return random.choices(self._names, cum_weights=self._cumulative_weights)[0]


class Peer:
    """The client's end of one connection, as the actor and the world see it; to the network it is an engine.

    `is_running`: its handshake is over. `is_at_rest`: every question, publish and delivery has its answer. `stalled_s`:
    for how long its network let nothing through.
    """

    stalled_s: float = 0.0
    name: str
    is_running: bool
    closed: bool
    began_in_calm: bool
    flush: Callable[[], None]

    @property
    def unconfirmed_count(self) -> int:
        raise NotImplementedError

    @property
    def outstanding_count(self) -> int:
        raise NotImplementedError

    @property
    def is_at_rest(self) -> bool:
        raise NotImplementedError

    def begin_close(self) -> None:
        """Close in an orderly way as soon as that is possible."""
        raise NotImplementedError

    def ask_counts(self, counts: dict[str, int]) -> None:
        """Ask for the number of messages in every queue, if nothing else is being asked."""
        raise NotImplementedError

    def check_calm(self) -> None:
        """Everything has had its time: raise `Violation` for what has not come."""
        raise NotImplementedError


class Actor:
    """One client program. `connect` is given by the world: it opens a connection and makes the peer for it.

    It returns None while the broker cannot be reached.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        clock: VirtualClock,
        ledger: Ledger,
        habits: Habits,
        connect: Callable[["Actor", str], Peer | None],
    ) -> None:
        self.name = name
        self.random = random
        self.clock = clock
        self.ledger = ledger
        self.habits = habits
        self.connection: Peer | None = None
        self.connections_made = 0
        self.published = 0
        self.publish_limit = 0
        self.is_calm = False
        self.is_stopping = False
        # How far this program has read the streams that it reads.
        self.stream_offsets: dict[str, int] = {}
        # Where the first of them began.
        self.stream_firsts: dict[str, int] = {}
        # What it remembers of links that can be resumed, by their names.
        self.kept: dict[str, object] = {}
        self._connect = connect

    def start(self) -> None:
        """Connect, now or as soon as the broker can be reached."""
        if self.is_gone:
            return
        self.connections_made += 1
        self.connection = self._connect(self, f"{self.name}.{self.connections_made}")
        if self.connection is None:
            self.clock.call_later(0.05 + self.random.random() * 0.2, self.start)
        elif self.is_stopping:
            self.connection.begin_close()

    def lost(self, connection: Peer, *, orderly: bool) -> None:
        """The connection is gone."""
        self.ledger.departed()
        if not orderly:
            self.ledger.connections_lost += 1
            if connection.began_in_calm:
                raise Violation("a healthy connection stays", connection.name)
        if self.connection is connection:
            self.connection = None
        if not self.is_gone:
            self.clock.call_later(self.random.random() * 0.2, self.start)

    @property
    def takes_messages(self) -> bool:
        return bool(self.habits.consumes or self.habits.private or "get" in self.habits.weights)

    @property
    def is_at_rest(self) -> bool:
        """Connected, everything published and settled."""
        return (
            self.connection is not None
            and self.connection.is_at_rest
            and (self.published >= self.publish_limit or not self.habits.targets)
        )

    def stop(self) -> None:
        """Close the connection in an orderly way, and connect no more.

        Who loses it before its lasting links are closed comes back to close them: the broker keeps what they hold.
        """
        self.is_stopping = True
        if self.connection is not None:
            self.connection.begin_close()

    @property
    def is_gone(self) -> bool:
        """It was stopped, and has left nothing behind."""
        leaves_links = self.habits.resumes and bool(self.kept)
        return self.is_stopping and self.connection is None and not leaves_links
