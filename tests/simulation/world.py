"""One simulated run: a broker, a disk, a network and clients, all decided by one seed.

    begin -> trouble (random faults) -> calm (everything in flight is answered) -> drain -> check -> restart -> check

The broker is the real node with the real journal; only time, disk, network and clients are simulated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from tests.simulation import (
    amqp010_actions,
    amqp010_client,
    amqp091_actions,
    amqp091_client,
    amqp10_actions,
    amqp10_client,
)
from tests.simulation.actor import AMQP010, AMQP10, Actor, Habits, Peer
from tests.simulation.front import Plants
from tests.simulation.ledger import Ledger
from tests.simulation.profile import DRAINER, NO_ALARM_BYTES, Troubles, in_amqp010, random_profile, with_read_errors
from tests.simulation.server import SimulatedServer
from tests.simulation.violation import Violation
from waybill.model.branches import DEFAULT_TIMEOUT_S
from waybill.testing.simulated_disk import Crash
from waybill.testing.simulated_network import Conditions, SimulatedConnection, SimulatedPump, random_conditions
from waybill.testing.virtual_clock import VirtualClock

CALM_S: Final = 300.0
# Twice the longest heartbeat, and some more.
SILENCE_S: Final = 7.0
DRAIN_LIMIT_S: Final = 300.0
STEP_LIMIT: Final = 400_000
# How long a few reads that fail may be felt, at most.
READS_FAIL_S: Final = 10.0
RESCUER: Final = "rescuer"
ANY_AMOUNT: Final = 1 << 30


@dataclass
class Outcome:
    """What a run was about, for the log."""

    seed: int
    troubles: Troubles
    queues: tuple[str, ...] = ()
    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    redelivered: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)


class World:
    """`run` does it all and raises `Violation` if the broker broke a promise, or whatever else the broker raised."""

    def __init__(
        self,
        seed: int,
        plants: Plants | None = None,
        troubles: Troubles | None = None,
        theme: str | None = None,
        *,
        speaks_amqp10: bool | None = None,
        speaks_amqp010: bool | None = None,
    ) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock()
        if speaks_amqp10 is None:
            # By a chance of its own, so that a seed of the other half goes on to mean what it did.
            speaks_amqp10 = Random(f"1.0: {seed}").random() < 0.5
        self.profile = random_profile(self.random, troubles, theme, speaks_amqp10=speaks_amqp10)
        if speaks_amqp010 is None:
            speaks_amqp010 = Random(f"0-10: {seed}").random() < 0.4
        self.speaks_amqp010 = speaks_amqp010
        if speaks_amqp010:
            self.profile = in_amqp010(Random(f"in 0-10: {seed}"), self.profile)
        if troubles is None:
            self.profile = replace(self.profile, troubles=with_read_errors(self.profile.troubles, seed))
        self._read_random = Random(f"read errors: {seed}")
        self.outcome = Outcome(seed, self.profile.troubles, tuple(queue.name for queue in self.profile.queues))
        self.ledger = Ledger(self.profile.queues)
        self.connections: list[SimulatedConnection] = []
        self.server = SimulatedServer(
            self.clock,
            self.random,
            plants or Plants(),
            self._node_died,
            self.profile.memory_alarm_bytes,
            Random(f"turns: {seed}"),
        )
        self.server.when_damaged = self._damaged
        self.ledger.most_unsettled = self.server.most_unsettled
        self.actors: list[Actor] = []
        self._is_calm = False

    # --- the run ---

    def run(self) -> Outcome:
        self.server.start()
        for name, habits in self.profile.clients:
            self._add_actor(name, habits).publish_limit = self.random.choice((10, 40, 100))
        self._schedule_troubles()
        self._run_for(self.random.uniform(1.0, 4.0))
        self._calm()
        if self.profile.troubles.silent_deaths:
            # What the dead hold comes back when their heartbeats have failed to come, not before.
            self._run_for(SILENCE_S)
        self._run_until(lambda: all(actor.is_at_rest for actor in self.actors))
        self._check_calm()
        self._stop_actors()
        if self.ledger.branches.has_left_some:
            self._run_for(DEFAULT_TIMEOUT_S)
        self._drain()
        self._restart_and_check()
        ledger = self.ledger
        self.outcome.published = len(ledger.messages)
        self.outcome.confirmed = ledger.confirmed_count
        self.outcome.delivered = ledger.delivered_count
        self.outcome.redelivered = ledger.redelivered_count
        return self.outcome

    def _calm(self) -> None:
        self._is_calm = True
        self.server.calm()
        for connection in self.connections:
            connection.conditions = replace(Conditions(), high_water_bytes=connection.conditions.high_water_bytes)
        for actor in self.actors:
            actor.is_calm = True
        if self.profile.memory_alarm_bytes < NO_ALARM_BYTES:
            # Publishers that wait for memory go on only if somebody consumes.
            names = tuple(queue.name for queue in self.ledger.public_queues() if not queue.is_stream)
            self._add_actor(RESCUER, Habits(DRAINER, consumes=names))

    def _run_for(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self._run_to(until):
            self.server.die()

    def _run_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds, or until it should have."""
        deadline = self.clock.now() + CALM_S
        while not condition() and self.clock.now() < deadline:
            self._run_for(0.5)

    def _run_to(self, until: float) -> bool:
        """Run all events that are due by then. True if the server has crashed in one: then there may be more."""
        step, outcome = self.clock.step, self.outcome
        try:
            while step(until):
                outcome.steps += 1
                if outcome.steps > STEP_LIMIT:
                    raise Violation("everything comes to rest", f"more than {STEP_LIMIT} steps")
        except Crash:
            return True
        return False

    # --- clients ---

    def _add_actor(self, name: str, habits: Habits) -> Actor:
        random = self.random
        if habits.protocol == AMQP010:
            # What it decides moves nobody else's chances.
            random = Random(f"{name}: {self.outcome.seed}")
        actor = Actor(name, random, self.clock, self.ledger, habits, self._connect)
        actor.is_calm = self._is_calm
        self.actors.append(actor)
        self.clock.call_later(self.random.random() * 0.1, actor.start)
        return actor

    def _connect(self, actor: Actor, name: str) -> Peer | None:
        """A connection for an actor; the protocol is a matter of which peer is made here."""
        pump = self.server.accept()
        if pump is None:
            return None
        peer: amqp10_client.Client | amqp091_client.Client | amqp010_client.Client
        if actor.habits.protocol == AMQP010:
            peer = amqp010_actions.make_client(actor, name)
        elif actor.habits.protocol == AMQP10:
            peer = amqp10_actions.make_client(actor, name)
        else:
            peer = amqp091_actions.make_client(actor, name)
        peer.began_in_calm = self._is_calm and not self.server.is_ending
        end = SimulatedPump(self.clock, lambda _: peer)
        peer.flush = end.flush
        conditions = Conditions() if self._is_calm else random_conditions(actor.random)
        if actor.habits.is_steady:
            conditions = replace(conditions, high_water_bytes=ANY_AMOUNT)
        connection = SimulatedConnection(self.clock, actor.random, conditions, end, pump)
        self.connections = [other for other in self.connections if not other.is_over]
        self.connections.append(connection)
        return peer

    # --- troubles ---

    def _schedule_troubles(self) -> None:
        troubles = self.profile.troubles
        server = self.server
        kinds = (
            (troubles.kills, lambda: server.crash_soon(power=False)),
            (troubles.power_losses, lambda: server.crash_soon(power=True)),
            (troubles.stops, server.stop),
            (troubles.resets, self._reset),
            (troubles.half_closes, self._half_close),
            (troubles.stalls, self._stall),
            (troubles.silent_deaths, self._die_silently),
            (troubles.disk_errors, server.fail_disk_soon),
            (troubles.disk_low, lambda: self._fill_disk(is_full=False)),
            (troubles.disk_full, lambda: self._fill_disk(is_full=True)),
            (troubles.bit_flips, self._flip_bit),
        )
        for count, trouble in kinds:
            for _ in range(count):
                self.clock.call_later(self.random.uniform(0.05, 3.0), self._unless_calm(trouble))
        for _ in range(troubles.read_errors):
            self.clock.call_later(
                self._read_random.uniform(0.05, 3.0),
                self._unless_calm(self._fail_reads),
            )

    def _unless_calm(self, trouble: Callable[[], None]) -> Callable[[], None]:
        def happen() -> None:
            if not self._is_calm:
                trouble()

        return happen

    def _fail_reads(self) -> None:
        self.server.fail_reads(self._read_random)
        self.ledger.reads_fail = True
        self.clock.call_later(READS_FAIL_S, self._reads_go_on)

    def _reads_go_on(self) -> None:
        self.ledger.reads_fail = False

    def _fill_disk(self, *, is_full: bool) -> None:
        self.ledger.is_disk_scarce = True
        self.server.fill_disk(is_full=is_full)

    def _random_connection(self) -> SimulatedConnection | None:
        alive = [connection for connection in self.connections if not connection.is_over]
        return self.random.choice(alive) if alive else None

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
            seconds = self.random.uniform(0.1, 5.0)
            peer = connection.client.engine
            if isinstance(peer, Peer):
                peer.stalled_s += seconds
            connection.stall(seconds)

    def _die_silently(self) -> None:
        connection = self._random_connection()
        if connection is not None and not connection.client.lost:
            connection.vanish()
            connection.client.engine.connection_lost(self.clock.now())

    def _damaged(self) -> None:
        """Recovery has reported damage, as it may after a fault of the disk: what was lost with it is known."""
        self.ledger.is_damaged = True

    def _flip_bit(self) -> None:
        self.ledger.is_damaged = True
        self.server.flip_bit_at_next_start()

    def _node_died(self, *, orderly: bool) -> None:
        """The node is gone. It is started again a little later."""
        for actor in self.actors:
            if actor.connection is not None:
                actor.connection.began_in_calm = False
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
        """Some time without faults: every actor is connected, every publish is confirmed, every question answered."""
        for actor in self.actors:
            connection = actor.connection
            if connection is None or not connection.is_running:
                raise Violation("when faults stop, clients get through", actor.name)
            if connection.unconfirmed_count and actor.published >= actor.publish_limit:
                raise Violation("every publish is confirmed", f"{actor.name}: {connection.unconfirmed_count} are not")
            if actor.published < actor.publish_limit and actor.habits.targets:
                raise Violation("no publisher waits for ever", f"{actor.name}: {actor.published}")
            connection.check_calm()

    def _stop_actors(self) -> None:
        # A publisher that waits for memory is heard only as long as somebody consumes.
        rescuers = [actor for actor in self.actors if actor.name == RESCUER]
        others = [actor for actor in self.actors if actor.name != RESCUER]
        for actors in (others, rescuers):
            for actor in actors:
                actor.stop()
            self._run_until(lambda actors=actors: all(actor.is_gone for actor in actors))  # type: ignore[misc]
            for actor in actors:
                if not actor.is_gone:
                    raise Violation("an orderly close is answered", actor.name)
        self.actors.clear()

    def _drain(self) -> None:
        """Consume everything, then check that nothing is missing and that no queue is left which should be gone."""
        specs = self.ledger.public_queues()
        names = tuple(queue.name for queue in specs)
        drainer = self._add_actor("drainer", Habits(DRAINER, consumes=names, prefetch=self.random.choice((0, 1, 50))))
        counts: dict[str, int] = {}
        quiet = 0
        deadline = self.clock.now() + DRAIN_LIMIT_S
        while quiet < 3:
            self._run_for(1.0)
            if self.clock.now() > deadline:
                raise Violation("when faults stop, everything drains", f"left: {counts}")
            connection = drainer.connection
            waiting = any(counts.get(queue.name) for queue in specs if not queue.is_stream)
            if connection is None or connection.outstanding_count or waiting:
                quiet = 0
            elif len(counts) == len(names):
                quiet += 1
            if connection is not None:
                connection.ask_counts(counts)
        self._stop_actors()
        self.ledger.check_drained(self.clock.now())
        self.ledger.check_streams(counts, drainer.stream_firsts)
        left = [name for name in self.server.queue_names() if name not in names and name not in self.ledger.unconsumed]
        if left:
            raise Violation("a queue of one connection goes with it", ", ".join(left))

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
                    if copy.settle_sent:
                        copy.durable_at = self.clock.now()
        self._run_for(5.0)
        self._drain()
