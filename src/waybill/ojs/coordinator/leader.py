"""Leader election among coordinators, and the time that they agree on.

Every coordinator publishes a heartbeat per second to one queue with a single active consumer, `ojs.leader`. The broker
delivers all heartbeats to one coordinator:

    A  beat --+                       +--> A, as long as it consumes: its own heartbeats make it the leader
    B  beat --+--> ojs.leader --------+
    C  beat --+    (TTL of 5 s)       +--> B, as soon as A's connection is lost

A coordinator is the leader while it has received one of its own heartbeats that it sent within the last LEASE_SECONDS,
by its monotonic clock. The time of *sending* counts, so a process that was paused or cut off only finds old heartbeats
when it resumes, and is no longer the leader. A kill closes the connection, and the next coordinator leads with its next
heartbeat, within about a second; a coordinator that hangs is replaced when the broker misses its AMQP heartbeats. No
message is held, so the broker's consumer timeout does not matter.

Leadership is not a lock. Two coordinators may both believe that they lead for a moment, also after a crash of the
broker. So a leader only *proposes*: it writes an event with a derived id, and the first one in the order of the stream
counts (see `feature_fold` and `claims`). A single leader avoids duplicate work; it is not what guarantees exactly-once.

A heartbeat contains its sender's wall clock. The leader uses the median: `now` is wrong only if the clocks of half of
the coordinators are wrong. Of two clocks, the one that is behind counts, because late work can be caught up, but early
work cannot be undone. Only heartbeats of trusted users count.
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
"""How long the clock of another coordinator counts after its last heartbeat."""
SKEW_SECONDS: Final = 2.0
"""Smaller differences are due to latency, or do not matter."""
MAX_CLOCKS: Final = 1000
STAND_AGAIN_SECONDS: Final = 30.0

_log = logging.getLogger("waybill.ojs.coordinator")


class Beat(msgspec.Struct):
    """A heartbeat: the coordinator, its monotonic clock, and its wall clock."""

    coordinator: str
    sent: float
    time: float


class Lease:
    """The rules without a broker: who leads, and the agreed time, from the received heartbeats."""

    def __init__(
        self, coordinator: str, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        """`coordinator` is the id of this one; tests can replace the clocks."""
        self.coordinator = coordinator
        self._monotonic = monotonic
        self._wall = wall
        self._sent = float("-inf")
        self._clocks: dict[str, tuple[float, float]] = {}
        """For each other coordinator, how far its clock is ahead, and until when that counts."""
        self._warned = False

    @property
    def is_held(self) -> bool:
        """Whether this coordinator leads."""
        return self._monotonic() - self._sent < LEASE_SECONDS

    def beat(self) -> Beat:
        """Return a new heartbeat."""
        return Beat(self.coordinator, self._monotonic(), self._wall())

    def take(self, beat: Beat) -> None:
        """Process a received heartbeat."""
        now = self._monotonic()
        if beat.coordinator == self.coordinator:
            # A heartbeat from the future is forged.
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
        # Of an even number, the lower median.
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
    """The candidacy of a coordinator over one connection."""

    def __init__(self, broker: BrokerConnection, coordinator: str, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` returns whether the heartbeats of a user count."""
        self.lease = Lease(coordinator)
        self._broker = broker
        self._is_trusted = is_trusted
        self._beating: asyncio.Task[None] | None = None
        self._leads = False
        self._channel: Channel | None = None
        self._stands_again_at: float | None = None
        """When to retry to become a candidate, by the monotonic clock; None if it is one."""
        self.on_change: list[Callable[[], None]] = []
        """Called when this coordinator becomes the leader."""

    @property
    def leads(self) -> bool:
        """Whether this coordinator is the leader."""
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
        # A separate channel: errors on it do not affect others.
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
        """Handle a lost heartbeat: the next one replaces it, unless the queue or a permission is missing."""
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
        except Exception as error:  # noqa: BLE001 - no message may end this loop
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
