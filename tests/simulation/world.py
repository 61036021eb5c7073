"""One simulated run: a broker, a disk, a network and clients, all decided by one seed.

    begin -> trouble (random faults) -> calm (everything in flight is answered) -> drain -> check -> restart -> check

The broker is the real node with the real journal; only time, disk, network and clients are simulated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.simulation.client import FANOUT, Actor, ClientConnection, Habits
from tests.simulation.front import Plants
from tests.simulation.ledger import Ledger, QueueSpec, Violation
from tests.simulation.server import SimulatedServer
from waybill.testing.simulated_disk import Crash
from waybill.testing.simulated_network import Conditions, SimulatedConnection, SimulatedPump, random_conditions
from waybill.testing.virtual_clock import VirtualClock

CALM_S: Final = 60.0
DRAIN_LIMIT_S: Final = 300.0
STEP_LIMIT: Final = 400_000

DEAD: Final = "dead"
QUEUES: Final = (
    QueueSpec("plain"),
    QueueSpec("other"),
    QueueSpec("levels", arguments=(("x-max-priority", 3),), is_ordered=False),
    QueueSpec("counted", arguments=(("x-queue-type", "quorum"), ("x-delivery-limit", 1_000_000))),
    QueueSpec(
        "mortal",
        arguments=(("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", DEAD)),
        dead_letter_to=DEAD,
    ),
    QueueSpec("fleeting", durable=False),
)

# What actors like to do: publish, take and settle, or both on one channel.
PUBLISHER: Final = {"publish": 10, "pause": 2}
CONSUMER: Final = {"ack": 12, "nack": 2, "reject": 1, "recover": 1, "cancel": 1, "pause": 2}
BOTH: Final = {"publish": 6, "ack": 8, "nack": 1, "reject": 1, "get": 2, "reopen": 1, "close": 1}
DRAINER: Final = {"ack_all": 1}


@dataclass(frozen=True)
class Troubles:
    """How many faults of each kind happen in a run, at random times."""

    kills: int = 0
    power_losses: int = 0
    stops: int = 0
    resets: int = 0
    half_closes: int = 0
    stalls: int = 0
    disk_errors: int = 0
    bit_flips: int = 0


@dataclass
class Outcome:
    """What a run was about, for the log."""

    seed: int
    troubles: Troubles
    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    redelivered: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)


def random_troubles(random: Random) -> Troubles:
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
        disk_errors=int(random.random() < 0.1),
        bit_flips=int(random.random() < 0.1),
    )


class World:
    """`run` does it all and raises `Violation` if the broker broke a promise, or whatever else the broker raised."""

    def __init__(self, seed: int, plants: Plants | None = None, troubles: Troubles | None = None) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.troubles = troubles or random_troubles(self.random)
        self.outcome = Outcome(seed, self.troubles)
        self.ledger = Ledger([*self._choose_queues(), QueueSpec(DEAD, is_ordered=False)])
        self.connections: list[SimulatedConnection] = []
        self.server = SimulatedServer(self.clock, self.random, plants or Plants(), self._node_died)
        self.actors: list[Actor] = []
        self._is_calm = False

    def _choose_queues(self) -> list[QueueSpec]:
        return self.random.sample(QUEUES, self.random.randint(1, 4))

    # --- the run ---

    def run(self) -> Outcome:
        self.server.start()
        self._make_actors()
        self._schedule_troubles()
        self._run_for(self.random.uniform(1.0, 4.0))
        self._is_calm = True
        self.server.calm()
        for connection in self.connections:
            connection.conditions = Conditions()
        for actor in self.actors:
            actor.is_calm = True
        self._run_until(lambda: all(actor.is_at_rest for actor in self.actors))
        self._check_calm()
        self._stop_actors()
        self._drain()
        self.ledger.check_drained()
        self._restart_and_check()
        ledger = self.ledger
        self.outcome.published = len(ledger.messages)
        self.outcome.confirmed = ledger.confirmed_count
        self.outcome.delivered = ledger.delivered_count
        self.outcome.redelivered = ledger.redelivered_count
        return self.outcome

    def _run_for(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self._step(until):
            self.outcome.steps += 1
            if self.outcome.steps > STEP_LIMIT:
                raise Violation("everything comes to rest", f"more than {STEP_LIMIT} steps")

    def _run_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds, or until it should have."""
        deadline = self.clock.now() + CALM_S
        while not condition() and self.clock.now() < deadline:
            self._run_for(0.5)

    def _step(self, until: float) -> bool:
        try:
            return self.clock.step(until)
        except Crash:
            self.server.die()
            return True

    def _make_actors(self) -> None:
        names = [name for name in self.ledger.queues if name != DEAD]
        for index in range(self.random.randint(1, 2)):
            self._add_actor(f"p{index}", self._habits(PUBLISHER, names, []))
        for index in range(self.random.randint(0, 2)):
            self._add_actor(f"c{index}", self._habits(CONSUMER, [], [*names, DEAD]))
        for index in range(self.random.randint(0, 2)):
            self._add_actor(f"b{index}", self._habits(BOTH, names, [*names, DEAD]))

    def _habits(self, weights: dict[str, int], targets: list[str], consumable: list[str]) -> Habits:
        random = self.random
        consumes = random.sample(consumable, random.randint(1, len(consumable))) if consumable else []
        return Habits(
            weights,
            consumes=tuple(consumes),
            targets=(*targets, FANOUT) if targets else (),
            prefetch=random.choice((0, 1, 3, 20)),
            no_ack=weights is CONSUMER and random.random() < 0.1,
            confirms=weights is BOTH or random.random() < 0.7,
            window=random.choice((1, 10, 100)),
            pause_s=random.choice((0.01, 0.05, 0.2)),
            burst=random.choice((1, 5, 20)),
            body_bytes=random.choice((30, 300, 9000)),
        )

    def _add_actor(self, name: str, habits: Habits) -> Actor:
        actor = Actor(name, self.random, self.clock, self.ledger, habits, self._connect)
        actor.publish_limit = self.random.choice((10, 40, 100))
        self.actors.append(actor)
        self.clock.call_later(self.random.random() * 0.1, actor.start)
        return actor

    def _connect(self, client: ClientConnection) -> bool:
        pump = self.server.accept()
        if pump is None:
            return False
        end = SimulatedPump(self.clock, lambda _: client)
        client.flush = end.flush
        conditions = Conditions() if self._is_calm else random_conditions(self.random)
        connection = SimulatedConnection(self.clock, self.random, conditions, end, pump)
        self.connections = [other for other in self.connections if not other.is_over]
        self.connections.append(connection)
        return True

    # --- troubles ---

    def _schedule_troubles(self) -> None:
        troubles = self.troubles
        kinds = (
            (troubles.kills, self._kill),
            (troubles.power_losses, self._lose_power),
            (troubles.stops, self._stop_node),
            (troubles.resets, self._reset),
            (troubles.half_closes, self._half_close),
            (troubles.stalls, self._stall),
            (troubles.disk_errors, self.server.fail_disk_soon),
            (troubles.bit_flips, self._flip_bit),
        )
        for count, trouble in kinds:
            for _ in range(count):
                self.clock.call_later(self.random.uniform(0.05, 3.0), trouble)

    def _kill(self) -> None:
        if not self._is_calm:
            self.server.crash_soon(power=False)

    def _lose_power(self) -> None:
        if not self._is_calm:
            self.server.crash_soon(power=True)

    def _stop_node(self) -> None:
        if not self._is_calm:
            self.server.stop()

    def _random_connection(self) -> SimulatedConnection | None:
        alive = [connection for connection in self.connections if not connection.is_over]
        return self.random.choice(alive) if alive and not self._is_calm else None

    def _reset(self) -> None:
        connection = self._random_connection()
        if connection is not None:
            connection.reset()

    def _half_close(self) -> None:
        connection = self._random_connection()
        if connection is not None:
            connection.half_close()

    def _stall(self) -> None:
        connection = self._random_connection()
        if connection is not None:
            connection.stall(self.random.uniform(0.1, 5.0))

    def _flip_bit(self) -> None:
        self.ledger.is_damaged = True
        self.server.flip_bit_at_next_start()

    def _node_died(self, *, orderly: bool) -> None:
        """The node is gone. It is started again a little later."""
        if orderly:
            self.ledger.life += 1
        else:
            self.ledger.crash()
        for connection in self.connections:
            connection.server_died()
        self.connections = []
        self.clock.call_later(self.random.uniform(0.01, 0.5), self.server.start)

    # --- the end ---

    def _check_calm(self) -> None:
        """A minute without faults: every actor is connected, every publish is confirmed, every question answered."""
        for actor in self.actors:
            connection = actor.connection
            if connection is None or not connection.is_running:
                raise Violation("when faults stop, clients get through", actor.name)
            if connection.unconfirmed_count and actor.published >= actor.publish_limit:
                raise Violation("every publish is confirmed", f"{actor.name}: {connection.unconfirmed_count} are not")

    def _stop_actors(self) -> None:
        for actor in self.actors:
            actor.stop()
        self._run_until(lambda: all(actor.connection is None for actor in self.actors))
        for actor in self.actors:
            if actor.connection is not None:
                raise Violation("an orderly close is answered", actor.name)
        self.actors.clear()

    def _drain(self) -> None:
        names = tuple(self.ledger.queues)
        drainer = self._add_actor("drainer", Habits(DRAINER, consumes=names, prefetch=self.random.choice((0, 1, 50))))
        counts: dict[str, int] = {}
        quiet = 0
        deadline = self.clock.now() + DRAIN_LIMIT_S
        while quiet < 3:
            self._run_for(1.0)
            if self.clock.now() > deadline:
                raise Violation("when faults stop, everything drains", f"left: {counts}")
            connection = drainer.connection
            if connection is None or connection.outstanding or any(counts.values()):
                quiet = 0
            elif len(counts) == len(names):
                quiet += 1
            if connection is not None:
                connection.ask_counts(counts)
        self._stop_actors()

    def _restart_and_check(self) -> None:
        """Everything is settled. What was written stays so, whether the node stops in order or dies.

        A loss of power may take back settles for which nobody waited; those messages come again, flagged.
        """
        end = self.random.choice(("stop", "kill", "power"))
        if end == "stop":
            self.server.stop()
        else:
            self.server.crash_soon(power=end == "power")
        if end != "power":
            for message in self.ledger.messages.values():
                for copy in message.copies.values():
                    copy.durable_at = self.clock.now()
        self._run_for(5.0)
        self._drain()
