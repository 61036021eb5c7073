"""Examines any broker over AMQP alone, and leaves nothing behind.

Probes use temporary queues. One check needs more: whether dead letters arrive. It publishes a message that expires on
arrival to the dead letter exchange, mandatory, so the broker itself tells whether any queue is bound there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from waybill.client import (
    AccessRefused,
    BasicProperties,
    ChannelClosed,
    ClientError,
    Connection,
    Delivery,
    Inspector,
    MessageReturned,
    NotFound,
)
from waybill.ojs.spec.envelope import DEFAULT_TIMEOUT_SECONDS
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.check import Finding, Standing, check_topology
from waybill.ojs.topology.doctor.diagnosis import Diagnosis, Severity
from waybill.ojs.topology.job_queues import job_queue_counts
from waybill.ojs.topology.topology import Topology

PROBE_SECONDS: Final = 3.0
CLOCK_SKEW_SECONDS: Final = 5.0
RABBITMQ_CONSUMER_TIMEOUT_SECONDS: Final = 1800.0
"""The default since RabbitMQ 3.8.17 (before: 15 minutes, or none). AMQP cannot read it."""
NEEDED_CAPABILITIES: Final = {
    "publisher_confirms": "a push cannot tell whether its job is stored",
    "consumer_cancel_notify": "a worker is not told that its queue was deleted",
    "connection.blocked": "publishers are not told why they wait when memory or disk space is low",
}


class Examination:
    """`await Examination(connection, topology, ["email"]).diagnoses()`.

    `longest_timeout` is that of the job types, in seconds; `consumer_timeout` is the broker's, if known.
    """

    def __init__(
        self,
        connection: Connection,
        topology: Topology,
        queues: Sequence[str],
        *,
        longest_timeout: float = DEFAULT_TIMEOUT_SECONDS,
        consumer_timeout: float | None = None,
    ) -> None:
        self._connection = connection
        self._topology = topology
        self._queues = queues
        self._longest_timeout = longest_timeout
        self._consumer_timeout = consumer_timeout
        self._inspector = Inspector(connection)
        self._probe = f"{topology.prefix}ojs.probe.{new_id()}"

    async def diagnoses(self) -> list[Diagnosis]:
        """Return all findings, in order of the checks. Raises ConnectionLost if the broker goes away."""
        found = [*self._of_connection(), *self._of_timeouts()]
        hindrances = await self._of_permissions()
        found += hindrances
        if any(one.check == "blocked" for one in hindrances):
            # A broker that blocks this connection reads nothing more from it.
            return found
        if not hindrances:
            found += await self._of_replies()
            found += await self._of_clock()
            found += await self._of_queue_types()
        found += self._of_classic_queues()
        found += await self._of_topology()
        for queue in self._queues:
            found += await self._of_queue(queue)
        return found

    # --- the broker ---

    def _of_connection(self) -> Iterator[Diagnosis]:
        address, properties = self._connection.address, self._connection.server_properties
        capabilities = properties.get("capabilities")
        for name, cause in NEEDED_CAPABILITIES.items():
            if not isinstance(capabilities, dict) or not capabilities.get(name):
                finding = f"the broker does not have {name}"
                yield Diagnosis("capability", Severity.PROBLEM, str(address), finding, cause, "use a newer broker")
        if any(not node.tls and not _is_local(node.host) for node in address.nodes):
            yield Diagnosis(
                "plain-text",
                Severity.WARNING,
                str(address),
                "the password and all jobs go over the network in plain text",
                "the URI begins with amqp://",
                "use amqps:// and the broker's TLS port",
            )
        if self._connection.heartbeat_s == 0:
            yield Diagnosis(
                "heartbeat",
                Severity.WARNING,
                str(address),
                "there are no heartbeats",
                "the client or the broker has turned them off: a dead peer goes unnoticed for many minutes",
                "leave `heartbeat` out of the URI, and set it to 60 on the broker",
            )

    def _of_timeouts(self) -> Iterator[Diagnosis]:
        limit = self._consumer_timeout
        if limit is None and self._connection.product == "RabbitMQ":
            limit = RABBITMQ_CONSUMER_TIMEOUT_SECONDS
        if limit is not None and self._longest_timeout > limit:
            yield Diagnosis(
                "consumer-timeout",
                Severity.PROBLEM,
                f"jobs of up to {self._longest_timeout:g} s",
                f"the broker takes a job away that runs for more than {limit:g} s",
                "consumer_timeout is below the longest time limit of a job: the channel is closed, and all jobs of the"
                " worker run again",
                f"set consumer_timeout = {int(self._longest_timeout * 1000) + 60_000} in rabbitmq.conf, or make the"
                " jobs shorter; if it is set already, say so: --consumer-timeout",
            )

    async def _of_permissions(self) -> list[Diagnosis]:
        """Check whether this user may configure, write and read names of ours, and whether publishes are blocked."""
        found: list[Diagnosis] = []
        async with await self._connection.channel() as channel:
            try:
                await channel.declare_queue(self._probe, exclusive=True, auto_delete=True)
            except AccessRefused as error:
                return [self._refused("declare queues", error)]
            try:
                await channel.get(self._probe, no_ack=True)
            except AccessRefused as error:
                found.append(self._refused("consume", error))
            await channel.delete_queue(self._probe)
        try:
            # A broker takes the first publish of a connection before it blocks it.
            for _ in range(2):
                # That it is returned means that publishes are not blocked.
                with contextlib.suppress(MessageReturned):
                    await self._publish_anywhere()
        except AccessRefused as error:
            found.append(self._refused("publish", error))
        except TimeoutError:
            found.append(self._blocked())
        return found

    async def _of_replies(self) -> list[Diagnosis]:
        """Check the permissions for names that do not begin with `ojs.`: they are easily forgotten."""
        found: list[Diagnosis] = []
        async with await self._connection.channel() as channel:
            try:
                declared = await channel.declare_queue(exclusive=True, auto_delete=True)
                await channel.get(declared.name, no_ack=True)
                await channel.delete_queue(declared.name)
            except AccessRefused as error:
                what = "use queues amq.gen-...: it can ask coordinators for nothing, nor register cron jobs"
                found.append(self._refused(what, error, Severity.WARNING))
        try:
            with contextlib.suppress(MessageReturned):
                await self._publish(self._probe)
        except AccessRefused as error:
            what = "publish to amq.default: its workers return no results, and its coordinators do not lead"
            found.append(self._refused(what, error, Severity.WARNING))
        return found

    def _refused(self, what: str, error: AccessRefused, severity: Severity = Severity.PROBLEM) -> Diagnosis:
        user = self._connection.address.settings.user
        remedy = f"rabbitmqctl set_permissions -p VHOST {user} CONFIGURE WRITE READ, with patterns that match"
        return Diagnosis("permission", severity, f"user {user}", f"may not {what}", str(error), remedy)

    def _blocked(self) -> Diagnosis:
        reason = self._connection.blocked
        return Diagnosis(
            "blocked",
            Severity.PROBLEM,
            str(self._connection.address),
            "the broker takes no publishes",
            f"it says: {reason}" if reason else f"no confirm within {PROBE_SECONDS:g} s",
            "free memory or disk on the broker, drain its queues, or raise its limits",
        )

    async def _publish(self, routing_key: str, exchange: str = "", properties: BasicProperties | None = None) -> None:
        """Publish an empty message and wait for its confirm. Raises TimeoutError, or what publishing raises."""
        async with asyncio.timeout(PROBE_SECONDS):
            channel = await self._connection.channel(confirms=True)
            await channel.publish_nowait(
                b"", exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True
            )
        await channel.close()

    async def _publish_anywhere(self) -> None:
        """Publish to the exchange of jobs. A broker blocks nobody for a message to an exchange that does not exist."""
        try:
            await self._publish(self._probe, self._topology.direct)
        except NotFound:
            with contextlib.suppress(AccessRefused):
                await self._publish(self._probe)

    async def _of_clock(self) -> list[Diagnosis]:
        """Let a message expire: its x-death header has the broker's time, to the second."""
        async with await self._connection.channel() as channel:
            await channel.declare_queue(self._probe, exclusive=True, auto_delete=True)
            arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._probe}
            try:
                await channel.declare_queue(f"{self._probe}.in", exclusive=True, auto_delete=True, arguments=arguments)
            except AccessRefused:
                await channel.delete_queue(self._probe)
                return []
            dead: list[Delivery] = []
            arrived = asyncio.Event()

            def take(delivery: Delivery) -> None:
                dead.append(delivery)
                arrived.set()

            await channel.consume(self._probe, take, no_ack=True)
            try:
                await self._publish(f"{self._probe}.in")
                async with asyncio.timeout(PROBE_SECONDS):
                    await arrived.wait()
            except (TimeoutError, AccessRefused):
                return []
            finally:
                await channel.delete_queue(f"{self._probe}.in")
                await channel.delete_queue(self._probe)
        deaths = (dead[0].properties.headers or {}).get("x-death")
        time = deaths[0].get("time") if isinstance(deaths, list) and isinstance(deaths[0], dict) else None
        if not isinstance(time, datetime):
            return []
        skew = (time - datetime.now(UTC)).total_seconds()
        if abs(skew) <= CLOCK_SKEW_SECONDS:
            return []
        return [
            Diagnosis(
                "clock",
                Severity.WARNING,
                str(self._connection.address),
                f"the broker's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's",
                "one of the clocks is wrong: expiry, schedules and event times do not agree",
                "run NTP on both",
            )
        ]

    async def _of_queue_types(self) -> list[Diagnosis]:
        """Check whether the broker has the queue types that the topology needs."""
        lost = {
            "stream": "no events are stored: cancellation, job state and the pipeline do not work",
            "quorum": "job queues will be classic queues, which live on one node",
        }
        found: list[Diagnosis] = []
        for kind in ("stream", "quorum") if self._topology.queue_type == "quorum" else ("stream",):
            async with await self._connection.channel() as channel:
                try:
                    await channel.declare_queue(self._probe, durable=True, arguments={"x-queue-type": kind})
                    await channel.delete_queue(self._probe)
                except ChannelClosed as error:
                    finding = f"the broker has no {kind} queues: {lost[kind]}"
                    remedy = "use RabbitMQ 3.10 or later, or `waybill broker`"
                    found.append(Diagnosis("queue-type", Severity.WARNING, kind, finding, str(error), remedy))
        return found

    def _of_classic_queues(self) -> list[Diagnosis]:
        """Find classic queues: RabbitMQ keeps one on a single node, and does not sync it to disk for each message."""
        if self._connection.product != "RabbitMQ" or self._topology.queue_type != "classic":
            return []
        return [
            Diagnosis(
                "classic-queues",
                Severity.NOTE,
                queue,
                "its jobs are on one node, and publishers without confirms are not told of a loss",
                "it is a classic queue (it has priorities); AMQP does not show who uses confirms, --management does",
                "publish with Jobs.push, which waits for the confirm; on a cluster `waybill topology migrate"
                " --to-queue-type quorum`",
            )
            for queue in self._queues
        ]

    # --- entities of jobs ---

    async def _of_topology(self) -> list[Diagnosis]:
        found: list[Diagnosis] = []
        different: dict[str, list[Finding]] = {}
        refused: list[Finding] = []
        for entity in await check_topology(self._connection, self._topology, self._queues):
            subject = f"{entity.kind} {entity.name}"
            if entity.standing is Standing.DIFFERENT:
                different.setdefault(entity.detail.replace(entity.name, ""), []).append(entity)
            elif entity.standing is Standing.MISSING:
                remedy = "`waybill topology declare`, or start its worker"
                found.append(
                    Diagnosis("missing", Severity.PROBLEM, subject, "it is not there", "nobody has declared it", remedy)
                )
            elif entity.standing is Standing.REFUSED:
                refused.append(entity)
        if refused:
            finding, remedy = "no access", "give this user the permission, or end the program that holds it exclusively"
            found.append(Diagnosis("refused", Severity.WARNING, _shown(refused), finding, refused[0].detail, remedy))
        return [*map(_mismatch, different.values()), *found]

    async def _of_queue(self, queue: str) -> list[Diagnosis]:
        topology, inspector = self._topology, self._inspector
        jobs = await job_queue_counts(inspector, topology, queue)
        dead = await inspector.queue(topology.dead_letter_queue(queue))
        control = await inspector.queue(topology.control_queue(queue))
        found: list[Diagnosis] = []
        if jobs is not None and jobs.consumer_count == 0:
            if await inspector.queue(topology.pause(queue)) is not None:
                finding, cause, remedy = "it is paused", "`waybill queue pause`", f"`waybill queue resume {queue}`"
                found.append(Diagnosis("paused", Severity.NOTE, queue, finding, cause, remedy))
            else:
                finding = f"{jobs.message_count} jobs wait without a consumer"
                severity = Severity.WARNING if jobs.message_count else Severity.NOTE
                remedy = "start a worker; if one runs, check that it consumes this queue in this virtual host"
                found.append(Diagnosis("no-consumers", severity, queue, finding, "no worker runs", remedy))
        if dead is not None and not await self._is_fed(queue, dead.consumer_count):
            found.append(
                Diagnosis(
                    "dead-letters-lost",
                    Severity.PROBLEM,
                    queue,
                    "its dead letter queue is not bound: discarded jobs are lost",
                    f"{topology.dead_letter_queue(queue)} is not bound to {topology.dead_letter_exchange}"
                    f" with the key {queue}",
                    f"`waybill topology declare {queue}`",
                )
            )
        if dead is not None and dead.message_count:
            finding, cause = f"{dead.message_count} dead letters", "there are dead letters"
            remedy = f"`waybill dlq list --queue {queue} --groups`"
            found.append(Diagnosis("dead-letters", Severity.NOTE, queue, finding, cause, remedy))
        if control is None or control.consumer_count == 0:
            finding = "its jobs cannot be cancelled or looked up"
            remedy = f"`waybill coordinator {queue}`, or `waybill worker ... --coordinator`"
            found.append(Diagnosis("no-coordinator", Severity.NOTE, queue, finding, "no coordinator runs", remedy))
        return found

    async def _is_fed(self, queue: str, consumer_count: int) -> bool:
        """Return whether dead letters of a queue arrive somewhere. A consumer would see the probe."""
        if consumer_count:
            return True
        probe = BasicProperties(expiration="0", type="ojs.probe")
        try:
            await self._publish(queue, self._topology.dead_letter_exchange, probe)
        except (MessageReturned, NotFound):
            return False
        except (ClientError, TimeoutError):
            return True
        return True


def _mismatch(alike: list[Finding]) -> Diagnosis:
    """Return one finding for all entities that differ from the topology in the same way."""
    first = alike[0]
    lost = "x-dead-letter-exchange" in first.detail and "current is none" in first.detail
    return Diagnosis(
        "no-dead-letter-exchange" if lost else "mismatch",
        Severity.PROBLEM,
        _shown(alike),
        "rejected and expired jobs are dropped" if lost else "its properties do not fit jobs",
        first.detail,
        "`waybill topology migrate`, or delete it when it is empty and declare it again",
    )


def _shown(alike: list[Finding]) -> str:
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return f"{alike[0].kind} {alike[0].name}{more}"


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
