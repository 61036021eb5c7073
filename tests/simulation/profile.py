"""What a run is about: which queues, which clients with which habits, which faults. One seed decides it all.

Each run takes a few features only, so that each feature is used deeply in some of the runs.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tests.simulation.actor import AMQP010, AMQP10, FANOUT, Habits
from tests.simulation.queues import FOREVER, QUEUES, QueueSpec, dead_queues

# What actors like to do: publish, take and settle, or both on one channel.
PUBLISHER: Final = {"publish": 10, "pause": 2}
CONSUMER: Final = {"ack": 12, "nack": 2, "reject": 1, "recover": 1, "cancel": 1, "ask": 2, "pause": 2}
READER: Final = {"ack": 12, "cancel": 1, "ask": 1, "pause": 2}
BOTH: Final = {"publish": 6, "ack": 8, "nack": 1, "reject": 1, "get": 2, "ask": 1, "reopen": 1, "close": 1}
TRANSACTOR: Final = {"publish": 6, "ack": 8, "nack": 1, "reject": 1, "commit": 4, "roll_back": 1, "get": 1, "close": 1}
TENDER: Final = {"purge": 2, "delete": 1, "rebind": 3, "redeclare": 1, "ask": 1, "pause": 6}
DRAINER: Final = {"ack_all": 1}

# The same over 1.0.
PUBLISHER10: Final = {"publish": 10, "go_on": 6, "settle_sent": 6, "detach": 1, "restart_session": 1, "pause": 2}
CONSUMER10: Final = {
    "grant": 8,
    "accept": 12,
    "release": 2,
    "modify": 2,
    "reject": 1,
    "ask": 2,
    "drain": 1,
    "detach": 1,
    "restart_session": 1,
    "close": 1,
}
BOTH10: Final = {**CONSUMER10, "publish": 6, "go_on": 4, "settle_sent": 4}
TRANSACTOR10: Final = {
    "publish": 6,
    "go_on": 4,
    "grant": 6,
    "accept": 8,
    "release": 1,
    "reject": 1,
    "commit": 4,
    "roll_back": 1,
    "close": 1,
}

# The same over 0-10, and work in branches of distributed transactions.
PUBLISHER010: Final = {"publish": 10, "ask": 1, "reattach": 1, "pause": 2}
CONSUMER010: Final = {
    "grant": 8,
    "accept": 12,
    "release": 2,
    "reject": 1,
    "look": 1,
    "ask": 2,
    "stop": 1,
    "cancel": 1,
    "reattach": 1,
    "close": 1,
}
BOTH010: Final = {**CONSUMER010, "publish": 6}
TRANSACTOR010: Final = {
    "publish": 6,
    "grant": 6,
    "accept": 8,
    "release": 1,
    "reject": 1,
    "commit": 4,
    "roll_back": 1,
    "reattach": 1,
    "close": 1,
}
DISTRIBUTOR010: Final = {
    "publish": 8,
    "grant": 6,
    "accept": 8,
    "release": 1,
    "begin_branch": 6,
    "finish_branch": 3,
    "decide_branch": 2,
    "reattach": 1,
    "close": 1,
}

NO_ALARM_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Troubles:
    """How many faults of each kind happen in a run, at random times.

    `silent_deaths`: a client's machine is gone, and nobody tells the broker. `disk_low` is an alarm, `disk_full` an
    error. `read_errors`: reads or opens fail for a while, as for want of descriptors.
    """

    kills: int = 0
    power_losses: int = 0
    stops: int = 0
    resets: int = 0
    half_closes: int = 0
    stalls: int = 0
    silent_deaths: int = 0
    disk_errors: int = 0
    disk_low: int = 0
    disk_full: int = 0
    bit_flips: int = 0
    read_errors: int = 0


@dataclass(frozen=True)
class Profile:
    """`memory_alarm_bytes`: what messages may take before publishers have to wait. `clients`: names with habits."""

    queues: list[QueueSpec]
    clients: list[tuple[str, Habits]]
    troubles: Troubles
    memory_alarm_bytes: int


def with_read_errors(troubles: Troubles, seed: int) -> Troubles:
    """Some of the runs, by a chance of their own: a seed of the others goes on to mean what it did."""
    return replace(troubles, read_errors=Random(f"reads: {seed}").choice((0, 0, 1, 4)))


def random_troubles(random: Random, *, has_heartbeats: bool) -> Troubles:
    """Every third run without a crash; network faults in most."""
    crashes = random.choice((0, 1, 1, 2, 3))
    kills = sum(random.random() < 0.4 for _ in range(crashes))
    return Troubles(
        kills=kills,
        power_losses=crashes - kills,
        stops=int(random.random() < 0.15),
        resets=random.choice((0, 0, 1, 3)),
        half_closes=random.choice((0, 0, 0, 1)),
        stalls=random.choice((0, 0, 2)),
        # Only heartbeats can tell the broker of them.
        silent_deaths=random.choice((0, 1, 2)) if has_heartbeats else 0,
        disk_errors=int(random.random() < 0.1),
        disk_low=int(random.random() < 0.1),
        disk_full=int(random.random() < 0.05),
        bit_flips=int(random.random() < 0.1),
    )


def random_profile(
    random: Random, troubles: Troubles | None, theme: str | None = None, *, speaks_amqp10: bool = False
) -> Profile:
    """`troubles` and `theme`, a queue that must be there, are chosen by chance unless they are given.

    With `speaks_amqp10` some of the clients do; the first one never does, for it is who declares the queues.
    """
    queues = random.sample(QUEUES, random.randint(1, 4))
    for queue in QUEUES:
        if queue.name == theme and queue not in queues:
            queues[0] = queue
    heartbeat_s = random.choice((0, 0, 1, 3))
    has_alarm = random.random() < 0.15
    workforce = Workforce(random, [*queues, *dead_queues(queues)], heartbeat_s, has_alarm=has_alarm)
    clients = workforce.hire()
    if speaks_amqp10:
        clients = clients[:1] + [(name, in_amqp10(random, habits)) for name, habits in clients[1:]]
    return Profile(
        [*queues, *dead_queues(queues)],
        clients,
        troubles or random_troubles(random, has_heartbeats=heartbeat_s > 0),
        random.choice((8_000, 40_000)) if has_alarm else NO_ALARM_BYTES,
    )


def in_amqp010(random: Random, profile: Profile) -> Profile:
    """Some of the clients over 0-10 instead, by a chance of their own. The first one stays what it is."""
    # A full queue that refuses would fail the branch; what it publishes to a stream is no part of it.
    barred = {queue.name for queue in profile.queues if queue.refuses or queue.is_stream}
    others = [(name, _one_in_amqp010(random, habits, barred)) for name, habits in profile.clients[1:]]
    return replace(profile, clients=profile.clients[:1] + others)


def _one_in_amqp010(random: Random, habits: Habits, barred: set[str]) -> Habits:
    likes = (
        (PUBLISHER, PUBLISHER010),
        (PUBLISHER10, PUBLISHER010),
        (CONSUMER, CONSUMER010),
        (CONSUMER10, CONSUMER010),
        (BOTH, BOTH010),
        (BOTH10, BOTH010),
        (TRANSACTOR, TRANSACTOR010),
        (TRANSACTOR10, TRANSACTOR010),
    )
    weights = next((like for other, like in likes if habits.weights is other), None)
    if weights is None or habits.private or random.random() < 0.25:
        return habits
    targets = habits.targets
    distributes = weights is TRANSACTOR010 or ((weights is BOTH010 and bool(targets)) and random.random() < 0.5)
    distributes = distributes and random.random() < 0.7
    if distributes:
        weights = DISTRIBUTOR010
        targets = tuple(name for name in targets if name not in barred and not (barred and name == FANOUT))
    return replace(
        habits,
        weights=weights,
        protocol=AMQP010,
        targets=targets,
        shared_prefetch=0,
        transacts=habits.transacts and not distributes,
        distributes=distributes,
        resumes=True,
        outlives_s=random.choice((0, 1, 5, 30, 30)),
    )


def in_amqp10(random: Random, habits: Habits) -> Habits:
    """The same over 1.0, for those that have their like there."""
    likes = ((PUBLISHER, PUBLISHER10), (CONSUMER, CONSUMER10), (BOTH, BOTH10), (TRANSACTOR, TRANSACTOR10))
    weights = next((like for other, like in likes if habits.weights is other), None)
    if weights is None or habits.private or random.random() < 0.25:
        return habits
    return replace(
        habits,
        weights=weights,
        protocol=AMQP10,
        targets=tuple(name for name in habits.targets if name != FANOUT),
        shared_prefetch=0,
        resumes=not habits.transacts and random.random() < 0.6,
    )


class Workforce:
    """Chooses the clients of a run. With an alarm nobody both publishes and consumes: blocked, they could not ack."""

    def __init__(self, random: Random, queues: list[QueueSpec], heartbeat_s: int, *, has_alarm: bool) -> None:
        self.random = random
        self.queues = queues
        self.heartbeat_s = heartbeat_s
        self.has_alarm = has_alarm
        self.targets = [queue.name for queue in queues if not queue.is_dead_end]
        # A full queue that refuses would fail the whole transaction, and its channel.
        self.transaction_targets = [queue.name for queue in queues if not (queue.is_dead_end or queue.refuses)]
        self.once_only = [queue.name for queue in queues if not queue.is_stream]
        self.streams = [queue.name for queue in queues if queue.is_stream]

    def hire(self) -> list[tuple[str, Habits]]:
        random = self.random
        clients = [(f"p{index}", self._publisher()) for index in range(random.randint(1, 2))]
        if self.once_only:
            clients += [(f"c{index}", self._consumer()) for index in range(random.randint(0, 2))]
        if self.streams:
            clients += [(f"r{index}", self._reader()) for index in range(random.randint(1, 2))]
        if not self.has_alarm:
            clients += [(f"b{index}", self._both()) for index in range(random.randint(0, 2))]
            if self.transaction_targets:
                clients += [(f"t{index}", self._transactor()) for index in range(random.choice((0, 0, 1, 2)))]
        tends = tuple(queue for queue in self.queues if queue.is_volatile or queue.is_roaming)
        if tends:
            clients.append(("tender", self._habits(TENDER, tends=tends, pause_s=0.2)))
        return clients

    def _publisher(self) -> Habits:
        return self._habits(PUBLISHER, targets=self._aims(self.targets), confirms=self.random.random() < 0.7)

    def _consumer(self) -> Habits:
        random = self.random
        consumes = self._some(self.once_only)
        if random.random() < 0.3:
            # It must get everything, before all others.
            return self._habits(CONSUMER, consumes=consumes, priority=5, prefetch=0, is_steady=True)
        return self._habits(
            CONSUMER,
            consumes=consumes,
            no_ack=random.random() < 0.08,
            shared_prefetch=random.choice((0, 0, 0, 4)),
            is_steady=random.random() < 0.5,
        )

    def _reader(self) -> Habits:
        starts = ("first", "last", "next", "resume", "resume", "time")
        return self._habits(READER, consumes=self._some(self.streams), reads_from=self.random.choice(starts))

    def _both(self) -> Habits:
        random = self.random
        return self._habits(
            BOTH,
            targets=self._aims(self.targets),
            consumes=self._some(self.once_only),
            private=random.choice(("", "", "", "exclusive", "auto-delete")),
        )

    def _transactor(self) -> Habits:
        return self._habits(
            TRANSACTOR,
            targets=self._aims(self.transaction_targets),
            consumes=self._some(self.once_only),
            transacts=True,
            # What a transaction holds is limited by memory, of which the node may have very little.
            window=self.random.choice((1, 5, 10)),
            body_bytes=self.random.choice((30, 250)),
        )

    def _some(self, names: list[str]) -> tuple[str, ...]:
        return tuple(self.random.sample(names, self.random.randint(1, len(names)))) if names else ()

    def _aims(self, names: list[str]) -> tuple[str, ...]:
        """Queues to publish to, by name and, unless one of them must be spared, all at once."""
        return (*names, FANOUT) if len(names) == len(self.targets) else tuple(names)

    def _habits(self, weights: dict[str, int], **habits: object) -> Habits:
        random = self.random
        settings: dict[str, object] = {
            "prefetch": random.choice((0, 1, 3, 20)),
            "window": random.choice((1, 10, 100)),
            "pause_s": random.choice((0.01, 0.05, 0.2)),
            "burst": random.choice((1, 5, 20)),
            "body_bytes": random.choice((30, 300, 9000)),
            "ttl_s": random.choice((FOREVER, FOREVER, FOREVER, FOREVER, 0.1, 1.0, 3600.0)),
            "heartbeat_s": self.heartbeat_s,
            "heeds_blocked": random.random() < 0.5,
        }
        return Habits(weights, **{**settings, **habits})  # type: ignore[arg-type]
