"""Leader election among coordinators, and the time that they agree on.

Every coordinator publishes a beat a second to one queue with a single active consumer, `ojs.leader`. The broker gives
all of them to one coordinator:

    A  beat --+                       +--> A, as long as it consumes: its own beats make it the leader
    B  beat --+--> ojs.leader --------+
    C  beat --+    (beats live 5 s)   +--> B, from the moment on that A's connection is gone

A coordinator leads while it has got back a beat of its own that it has sent within the last LEASE_SECONDS, by its
monotonic clock. The time of *sending* counts, so a process that was paused, or cut off, finds old beats when it goes on
and knows that it leads no more, whatever is in its buffers. A kill ends the connection, and the next one in line leads
with its next beat, within about a second; one that hangs is replaced when the broker misses its heartbeats. No
message is held, so no consumer timeout of the broker can end a leadership.

Leading is no lock. For a moment two may believe that they lead, and the broker may lose its word in a crash. So a
leader only *proposes*: it writes an event with an id derived from what it is about, and the first one in the order of
the stream counts (see `feature_fold` and `claims`). That there is one leader saves work; it is not what makes anything
happen once.

A beat has its sender's wall clock. The leader sees all of them, and goes by the middle one: `now` is wrong only if the
clocks of half of the coordinators are. With two that differ, the one that is behind counts: acting late is mended by
catching up, acting early is not. Only beats of trusted users count.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from waybill.client import BasicProperties, Channel, ClientError, ConnectionLost, Delivery, MessageReturned
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import TopologyConflict

BEAT_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 5.0
CLOCK_SECONDS: Final = 10.0
"""For how long the clock of another coordinator counts after its last beat."""
SKEW_SECONDS: Final = 2.0
"""Differences up to this are the way of a beat, or of no matter."""
MAX_CLOCKS: Final = 1000
STAND_AGAIN_SECONDS: Final = 30.0

_log = logging.getLogger("waybill.ojs.coordinator")


class Beat(msgspec.Struct):
    """What a coordinator sends: who it is, when by its monotonic clock, and what time it takes it to be."""

    coordinator: str
    sent: float
    time: float


class Lease:
    """The rules, without a broker: who leads by the beats that came, and what time it is."""

    def __init__(
        self, coordinator: str, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        """`coordinator` is the id of this one; the clocks are a test's if it gives some."""
        self.coordinator = coordinator
        self._monotonic = monotonic
        self._wall = wall
        self._sent = float("-inf")
        self._clocks: dict[str, tuple[float, float]] = {}
        """Of each other coordinator, how far it is ahead of this one, and until when that counts."""
        self._warned = False

    @property
    def is_held(self) -> bool:
        """Whether this coordinator leads."""
        return self._monotonic() - self._sent < LEASE_SECONDS

    def beat(self) -> Beat:
        """Return what is to be sent now."""
        return Beat(self.coordinator, self._monotonic(), self._wall())

    def take(self, beat: Beat) -> None:
        """Take a beat that the broker has given to this coordinator."""
        now = self._monotonic()
        if beat.coordinator == self.coordinator:
            # One from the future was sent by somebody else.
            if beat.sent <= now:
                self._sent = max(self._sent, beat.sent)
        elif math.isfinite(beat.time) and (len(self._clocks) < MAX_CLOCKS or beat.coordinator in self._clocks):
            self._clocks[beat.coordinator] = (beat.time - self._wall(), now + CLOCK_SECONDS)

    def resign(self) -> None:
        """Stop leading until the next own heartbeat arrives."""
        self._sent = float("-inf")

    def now(self) -> float:
        """Return the Unix time that the coordinators agree on."""
        monotonic = self._monotonic()
        self._clocks = {name: one for name, one in self._clocks.items() if one[1] > monotonic}
        ahead = sorted([0.0, *(difference for difference, _ in self._clocks.values())])
        # Of an even number, the one of the middle two that is behind.
        skew = ahead[(len(ahead) - 1) // 2]
        if abs(skew) <= SKEW_SECONDS:
            self._warned = False
            return self._wall()
        if not self._warned:
            self._warned = True
            _log.error(
                "the clock of this coordinator is %.1f s %s the others, whose time is used: synchronise this clock",
                abs(skew),
                "behind" if skew > 0 else "ahead of",
            )
        return self._wall() + skew


class Leader:
    """Stands for leadership over one connection."""

    def __init__(self, broker: BrokerConnection, coordinator: str, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` says of a user whether its beats count."""
        self.lease = Lease(coordinator)
        self._broker = broker
        self._is_trusted = is_trusted
        self._beating: asyncio.Task[None] | None = None
        self._leads = False
        self._channel: Channel | None = None
        self._stands_again_at: float | None = None
        """When to try again to stand in line, by the monotonic clock; None if it stands there."""
        self.on_change: list[Callable[[], None]] = []
        """Called when this coordinator begins to lead."""

    @property
    def leads(self) -> bool:
        """Whether this coordinator is to act."""
        return self.lease.is_held and self._broker.connection.is_open

    def now(self) -> float:
        """Return the Unix time that the coordinators agree on."""
        return self.lease.now()

    async def start(self) -> None:
        """Become a candidate, or retry periodically: work that needs no leader continues."""
        await self._stand_guarded()
        self._broker.connection.on_loss(lambda _: self.lease.resign())
        self._beating = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def close(self) -> None:
        """Stop heartbeats; the caller closes the connection."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self.lease.resign()

    async def _stand_guarded(self) -> None:
        try:
            await self._stand()
        except (ClientError, TopologyConflict) as error:
            queue = self._broker.declarer.topology.leader_queue
            _log.warning(
                "this coordinator cannot become the leader; cron jobs and workflows wait for another one. %s: %s",
                queue,
                error,
            )
            self._stands_again_at = time.monotonic() + STAND_AGAIN_SECONDS
        else:
            self._stands_again_at = None

    async def _stand(self) -> None:
        await self._broker.declarer.ensure_leader()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
        # Of its own: an error on it leaves the others alone.
        channel = await self._broker.connection.channel(confirms=True)
        await channel.consume(self._broker.declarer.topology.leader_queue, self._take, no_ack=True)
        self._channel = channel

    async def _beat_for_ever(self) -> None:
        while True:
            if self._broker.connection.is_open:
                if self._stands_again_at is not None and self._stands_again_at <= time.monotonic():
                    await self._stand_guarded()
                if self._channel is not None and self._stands_again_at is None:
                    self._beat(self._channel)
            await asyncio.sleep(BEAT_SECONDS)
            if self._leads and not self.leads:
                self._leads = False
                _log.warning("coordinator %s is no longer the leader", self.lease.coordinator)

    def _beat(self, channel: Channel) -> None:
        topology = self._broker.declarer.topology
        try:
            future = channel.publish_nowait(
                msgspec.json.encode(self.lease.beat()),
                routing_key=topology.leader_queue,
                properties=BasicProperties(user_id=self._broker.identity.user),
                mandatory=True,
            )
        except ClientError as error:
            self._not_sent(error)
            return
        future.add_done_callback(self._sent)

    def _sent(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._not_sent(error)

    def _not_sent(self, error: BaseException) -> None:
        """A lost beat is made good by the next, unless the queue is gone, or this user may not write to it."""
        if self._broker.identity.is_refused(error) or isinstance(error, ConnectionLost):
            return
        if isinstance(error, MessageReturned):
            self._broker.declarer.forget_leader()
            self._stands_again_at = time.monotonic()
            return
        _log.warning("this coordinator cannot be the leader, as the broker refuses its heartbeats: %s", error)
        self._stands_again_at = time.monotonic() + STAND_AGAIN_SECONDS

    def _take(self, delivery: Delivery) -> None:
        try:
            beat = msgspec.json.decode(delivery.body, type=Beat)
            user = delivery.properties.user_id
        except Exception as error:  # noqa: BLE001 - no message may end this, whatever it is
            self._broker.events.counters.skipped["leader"] += 1
            _log.warning("invalid message in the leader queue, skipped: %s", type(error).__name__)
            return
        if not self._is_trusted(user):
            self._broker.events.counters.skipped["leader"] += 1
            return
        self.lease.take(beat)
        if self.leads and not self._leads:
            self._leads = True
            _log.info("coordinator %s is the leader", self.lease.coordinator)
            for tell in self.on_change:
                tell()
