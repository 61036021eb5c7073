"""Names and properties of all entities that the binding declares on a broker (binding sections 4, 7, 8; ojs web page).

A `Topology` is a value: it says what should exist. `TopologyDeclarer` makes it exist, on one channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from waybill.client.ranges import check_whole
from waybill.client.super_streams import partition_name
from waybill.ojs.spec.event_partitions import HEADER
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology import delay_ladder
from waybill.ojs.topology.declarations import BindingDeclaration, Entity, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.names import SPEC, WEB, Names

RELAY_BYTES: Final = 200_000_000
RELAY_SEGMENT_BYTES: Final = 10_000_000
"""Room for about a million cancellations; beyond it, the oldest ones are dropped."""

MAX_REPLICAS: Final = 127
MAX_PARTITIONS: Final = 256
MAX_EVENT_PARTITIONS: Final = 64
PARTITION_WEIGHT: Final = "16"
"""The weight of each partition. RabbitMQ divides hashes evenly; on Waybill's broker, larger weights divide more evenly.
"""

BEAT_LIFE_MS: Final = 5000
"""How long a coordinator's heartbeat waits for a consumer."""

QueueType = Literal["classic", "quorum"]
LeaderLocator = Literal["client-local", "balanced"]
DELAY: Final = "x-delay"
"""The header of a delayed message exchange: how many milliseconds a message waits."""


class Declaration(Enum):
    """When entities are declared (binding section 7.3)."""

    EAGER = "eager"
    """All of a queue's entities when its worker starts or its first job is pushed."""
    LAZY = "lazy"
    """Each entity when it is first needed."""
    NEVER = "never"
    """Never: for brokers on which the application may not declare."""


_DEAD_LETTER_ROLES: Final = ("direct", "dead_letter_exchange", "retry")
"""The exchanges of a profile to which queues with the same name dead-letter."""


@dataclass(frozen=True)
class Topology:
    """What exists on the broker: a naming profile, a prefix for tenants, and the properties of job queues.

    `prefix` precedes every name unchanged (`tenant1.`). `queue_type` "quorum" falls back to classic on a broker without
    quorum queues. `max_priority` applies to classic queues only; 200 and more order all priorities exactly.
    `max_length`, `max_length_bytes` and `message_ttl_ms` limit a job queue; with `reject_when_full` a push to a full
    queue fails instead of dropping the oldest job. With `deduplicate`, a queue drops a job whose idempotency key
    (`unique_key`) equals that of a job in it, on Waybill's broker, and on RabbitMQ with the deduplication plugin.

    `settle_by` "nack" follows the binding's web page: workers publish a copy of a failed job to a retry queue or the
    dead letter queue, then nack it. Job queues dead-letter to the retry exchange, where nothing is bound under their
    key. So if another program nacks such a job without a copy, the job is lost.

    `schedule_by` "exchange" lets jobs wait in a delayed message exchange (binding section 9.1.2), exact to the
    millisecond, on Waybill's broker, and on RabbitMQ with its plugin. The delay ladder needs no plugin.

    `replicas` is for RabbitMQ clusters: how many nodes keep each quorum queue and stream. With it, the queues of the
    coordinators and the marks of paused queues are quorum queues as well, so that nothing depends on one node.
    `leader_locator` places the leaders: `balanced` over the nodes, or on the node that the client is connected to. Both
    need quorum queues; Waybill's broker has one node, and ignores them.

    `partitions` divides individual OJS queues, by name, into that many AMQP queues, for higher rates than one queue can
    handle. An exchange of type `x-consistent-hash` selects the partition by job id; RabbitMQ needs its plugin
    `rabbitmq_consistent_hash_exchange`. Limits apply to each partition, and jobs are ordered only within a partition.
    All programs need the same numbers; a program with others is refused (TopologyConflict).

    `event_partitions` divides the event stream, for coordinators that share one PostgreSQL. Events of a job are in one
    partition, in order. The number can be raised later, not lowered.
    """

    names: Names = SPEC
    prefix: str = ""
    queue_type: QueueType = "classic"
    declaration: Declaration = Declaration.LAZY
    max_priority: int = 10
    max_length: int | None = None
    max_length_bytes: int | None = None
    message_ttl_ms: int | None = None
    reject_when_full: bool = True
    deduplicate: bool = False
    settle_by: Literal["ack", "nack"] = "ack"
    schedule_by: Literal["ladder", "exchange"] = "ladder"
    replicas: int | None = None
    leader_locator: LeaderLocator | None = None
    partitions: Mapping[str, int] = field(default_factory=dict, hash=False)
    event_partitions: int = 1

    def __post_init__(self) -> None:
        """Reject settings that would lose jobs, or that a broker would refuse. Raises ValueError."""
        if self.settle_by == "nack" and (self.message_ttl_ms is not None or not self.reject_when_full):
            raise ValueError("with settle_by nack, what expires or overflows would be lost")
        if self.queue_type != "quorum" and (self.replicas is not None or self.leader_locator is not None):
            raise ValueError("replicas and leader_locator need queue_type quorum: classic queues are on one node")
        check_whole("replicas", self.replicas, 1, MAX_REPLICAS)
        check_whole("max_priority", self.max_priority, 0, 255)
        check_whole("max_length", self.max_length, 0, 2**63 - 1)
        check_whole("max_length_bytes", self.max_length_bytes, 0, 2**63 - 1)
        check_whole("message_ttl_ms", self.message_ttl_ms, 0, 2**32 - 1)
        check_whole("event_partitions", self.event_partitions, 1, MAX_EVENT_PARTITIONS)
        for queue, count in self.partitions.items():
            check_whole(f"the number of partitions of queue {queue}", count, 1, MAX_PARTITIONS)
        if self.deduplicate and any(count > 1 for count in self.partitions.values()):
            raise ValueError("deduplicate works within one AMQP queue: it cannot be used with partitions")

    # --- names ---

    @property
    def direct(self) -> str:
        """The exchange that jobs are pushed to, with the queue as routing key."""
        return self.prefix + self.names.direct

    @property
    def dead_letter_exchange(self) -> str:
        """The exchange that receives rejected and expired jobs."""
        return self.prefix + self.names.dead_letter_exchange

    @property
    def retry(self) -> str:
        """The exchange that receives failed jobs, with `{queue}.{delay_ms}` as routing key."""
        return self.prefix + self.names.retry

    @property
    def events(self) -> str:
        """The topic exchange that events are published to."""
        return self.prefix + self.names.events

    @property
    def event_stream(self) -> str:
        """The stream that keeps all events; with event partitions, the first of them."""
        return self.prefix + self.names.event_stream

    @property
    def event_streams(self) -> list[str]:
        """The streams that keep all events, by partition."""
        others = range(1, self.event_partitions)
        return [self.event_stream, *(partition_name(self.event_stream, number) for number in others)]

    @property
    def relay(self) -> str:
        """The fanout exchange over which a coordinator reaches all workers."""
        return self.prefix + self.names.relay

    @property
    def relay_stream(self) -> str:
        """The stream that keeps cancellations, for workers that start later."""
        return self.prefix + self.names.relay_stream

    @property
    def delay_release(self) -> str:
        """The exchange below the lowest level of the delay ladder."""
        return self.prefix + self.names.delay_release

    def job_queue(self, queue: str) -> str:
        """The AMQP queue of an OJS queue; with partitions, the empty placeholder."""
        return self.prefix + self.names.job_queue.format(queue=queue)

    def is_partitioned(self, queue: str) -> bool:
        """Whether an OJS queue has more than one AMQP queue."""
        return self.partitions.get(queue, 1) > 1

    def job_queues(self, queue: str) -> list[str]:
        """The AMQP queues in which the jobs of an OJS queue wait: one, or its partitions."""
        if not self.is_partitioned(queue):
            return [self.job_queue(queue)]
        pattern = self.prefix + self.names.partition
        return [pattern.format(queue=queue, number=number) for number in range(self.partitions[queue])]

    @property
    def partition_prefix(self) -> str:
        """The common beginning of the names of all partitions."""
        return self.prefix + self.names.partition.partition("{")[0]

    def partitions_exchange(self, queue: str) -> str:
        """The exchange that selects the partition of a job."""
        return self.prefix + self.names.partitions.format(queue=queue)

    def dead_letter_queue(self, queue: str) -> str:
        """The queue for discarded jobs of an OJS queue."""
        return self.prefix + self.names.dead_letter_queue.format(queue=queue)

    def retry_queue(self, queue: str, delay_ms: int) -> str:
        """The queue in which failed jobs of an OJS queue wait for `delay_ms`."""
        return self.prefix + self.names.retry_queue.format(queue=queue, delay_ms=delay_ms)

    def control_queue(self, queue: str) -> str:
        """The queue for control requests of an OJS queue, for example cancellations and heartbeats."""
        return self.prefix + self.names.control_queue.format(queue=queue)

    @property
    def request_queue(self) -> str:
        """The queue for requests that name no queue, for example only a job id."""
        return self.prefix + self.names.request_queue

    @property
    def leader_queue(self) -> str:
        """The queue that elects the leader: coordinators send a heartbeat per second, and its consumer leads."""
        return self.prefix + self.names.leader_queue

    def release_queue(self, queue: str) -> str:
        """The last stop of a scheduled job before its queue."""
        return self.prefix + self.names.release_queue.format(queue=queue)

    def pause(self, queue: str) -> str:
        """The queue that exists, empty, while an OJS queue is paused."""
        return self.prefix + self.names.pause.format(queue=queue)

    def unique_place(self, key: str) -> str:
        """The queue that holds the id of the unique job with this fingerprint; it works without a coordinator."""
        return self.prefix + self.names.unique_place.format(key=key)

    def delay_level(self, level: int) -> str:
        """The exchange and the queue of one level of the delay ladder."""
        return self.prefix + self.names.delay_level.format(level=level)

    @property
    def delayed(self) -> str:
        """The exchange in which scheduled jobs wait, with `schedule_by` "exchange"."""
        return self.prefix + self.names.delayed

    def schedule_address(self, queue: str, delay_seconds: float) -> tuple[str, str, dict[str, object]]:
        """Return the exchange, the routing key and the headers that deliver a job to `queue` after a delay.

        That is after 8.5 years at most: the receiver forwards an early job to wait further.
        """
        seconds = delay_ladder.whole_seconds(delay_seconds)
        if self.schedule_by == "exchange":
            return self.delayed, queue, {DELAY: math.ceil(min(delay_seconds, seconds) * 1000)}
        return self.delay_level(delay_ladder.entry_level(seconds)), delay_ladder.routing_key(seconds, queue), {}

    @staticmethod
    def retry_key(queue: str, delay_ms: int) -> str:
        """The routing key of a failed job at the retry exchange."""
        return f"{queue}.{delay_ms}"

    def under_other_names(self, queue: QueueDeclaration) -> QueueDeclaration | None:
        """Return a queue as a program with the other naming profile declares it, None if that is the same."""
        other = {SPEC: WEB, WEB: SPEC}.get(self.names)
        if other is None:
            return None
        same = {getattr(self.names, role): getattr(other, role) for role in _DEAD_LETTER_ROLES}
        target = queue.arguments.get("x-dead-letter-exchange")
        if not isinstance(target, str) or (name := same.get(target.removeprefix(self.prefix))) is None:
            return None
        return QueueDeclaration(queue.name, {**queue.arguments, "x-dead-letter-exchange": self.prefix + name})

    # --- entities ---

    def shared_entities(self) -> list[Entity]:
        """Return the entities that exist once: the exchanges, and the event stream."""
        return [
            ExchangeDeclaration(self.direct),
            ExchangeDeclaration(self.dead_letter_exchange),
            ExchangeDeclaration(self.retry),
            ExchangeDeclaration(self.events, "topic"),
            *self.event_entities(),
        ]

    def event_entities(self) -> list[Entity]:
        """Return the streams of events, bound. The first also gets what names no partition."""
        streams = [QueueDeclaration(name, self._stream_arguments()) for name in self.event_streams]
        if self.event_partitions == 1:
            return [*streams, self.whole_events()]
        chooser, rest = self.prefix + self.names.event_partitions, self.prefix + self.names.event_rest
        return [
            *streams,
            ExchangeDeclaration(rest, "fanout"),
            BindingDeclaration(self.event_stream, rest, ""),
            ExchangeDeclaration(chooser, "headers", {"alternate-exchange": rest}),
            *(
                BindingDeclaration(name, chooser, "", arguments={"x-match": "all", HEADER: number})
                for number, name in enumerate(self.event_streams)
            ),
            BindingDeclaration(chooser, self.events, "#", to_exchange=True),
        ]

    def whole_events(self) -> BindingDeclaration:
        """Return the binding by which the first stream gets all events: not wanted where there are partitions."""
        return BindingDeclaration(self.event_stream, self.events, "#")

    def relay_entities(self) -> list[Entity]:
        """Return the entities through which coordinators reach all workers, including those that start later."""
        limits = {"x-max-length-bytes": RELAY_BYTES, "x-stream-max-segment-size-bytes": RELAY_SEGMENT_BYTES}
        return [
            ExchangeDeclaration(self.relay, "fanout"),
            QueueDeclaration(self.relay_stream, self._stream_arguments() | limits),
            BindingDeclaration(self.relay_stream, self.relay, ""),
        ]

    def queue_entities(self, queue: str) -> list[Entity]:
        """Return a job queue and its dead letter queue, bound. The dead letter queue comes first, to miss nothing."""
        return [*self.dead_letter_entities(queue), *self.job_queue_entities(queue)]

    def dead_letter_entities(self, queue: str) -> list[Entity]:
        """Return the dead letter queue, bound."""
        return [
            QueueDeclaration(self.dead_letter_queue(queue), self._type_argument()),
            BindingDeclaration(self.dead_letter_queue(queue), self.dead_letter_exchange, queue),
        ]

    def job_queue_entities(self, queue: str) -> list[Entity]:
        """Return a job queue, or its partitions. Their route comes last, so no job arrives before all are bound."""
        if not self.is_partitioned(queue):
            return [
                QueueDeclaration(self.job_queue(queue), self.job_queue_arguments(queue)),
                BindingDeclaration(self.job_queue(queue), self.direct, queue),
            ]
        exchange, names = self.partitions_exchange(queue), self.job_queues(queue)
        arguments = self.job_queue_arguments(queue)
        return [
            QueueDeclaration(self.job_queue(queue), self._placeholder_arguments(len(names)), is_exact=True),
            ExchangeDeclaration(exchange, "x-consistent-hash", {"hash-property": "message_id"}),
            *(QueueDeclaration(name, arguments) for name in names),
            *(BindingDeclaration(name, exchange, PARTITION_WEIGHT) for name in names),
            BindingDeclaration(exchange, self.direct, queue, to_exchange=True),
        ]

    def _placeholder_arguments(self, count: int) -> dict[str, object]:
        """Return the arguments of the queue that has the name of a job queue with partitions.

        A program that is configured with another number of partitions, or none, declares that queue with other
        arguments, and the broker refuses it before it can bind anything. So the number of partitions is in an argument
        that brokers compare. If a program binds the queue without declaring it, the queue drops its copies: it keeps
        nothing.
        """
        return {"x-max-length": 0, "x-max-length-bytes": count, **self.control_arguments()}

    def control_entities(self, queue: str) -> list[Entity]:
        """Return the control queue, read by one coordinator at a time, bound under its full and its short name."""
        name = self.control_queue(queue)
        return [
            QueueDeclaration(name, {"x-single-active-consumer": True, **self.control_arguments()}),
            BindingDeclaration(name, self.direct, name),
            BindingDeclaration(name, self.direct, f"control.{queue}"),
        ]

    def request_entities(self) -> list[Entity]:
        """Return the queue of requests that name no queue, read by one coordinator at a time."""
        name = self.request_queue
        return [
            QueueDeclaration(name, {"x-single-active-consumer": True, **self.control_arguments()}),
            BindingDeclaration(name, self.direct, name),
        ]

    def leader_entities(self) -> list[Entity]:
        """Return the queue of the heartbeats: the coordinator that receives them leads."""
        arguments = {"x-single-active-consumer": True, "x-message-ttl": BEAT_LIFE_MS, **self.control_arguments()}
        return [QueueDeclaration(self.leader_queue, arguments)]

    def retry_entities(self, queue: str, delay_ms: int) -> list[Entity]:
        """Return the queue in which failed jobs wait, bound (binding section 8.2)."""
        name = self.retry_queue(queue, delay_ms)
        arguments: dict[str, object] = {
            "x-dead-letter-exchange": self.direct,
            "x-dead-letter-routing-key": queue,
            "x-message-ttl": delay_ms,
            **self._waiting_arguments(),
        }
        return [
            QueueDeclaration(name, arguments),
            BindingDeclaration(name, self.retry, self.retry_key(queue, delay_ms)),
        ]

    def schedule_entities(self) -> list[Entity]:
        """Return where scheduled jobs wait: the delayed exchange, or the delay ladder."""
        if self.schedule_by == "exchange":
            return [ExchangeDeclaration(self.delayed, "x-delayed-message", {"x-delayed-type": "direct"})]
        return self.ladder_entities()

    def ladder_entities(self) -> list[Entity]:
        """Return the delay ladder, lowest level first, so that each level has its exit before it can be entered."""
        entities: list[Entity] = [ExchangeDeclaration(self.delay_release, "topic")]
        below = self.delay_release
        for level in range(delay_ladder.LEVELS):
            name = self.delay_level(level)
            arguments: dict[str, object] = {
                "x-dead-letter-exchange": below,
                "x-message-ttl": 1000 << level,
                **self._waiting_arguments(),
            }
            entities += [
                ExchangeDeclaration(name, "topic"),
                QueueDeclaration(name, arguments),
                BindingDeclaration(name, name, delay_ladder.bit_pattern(level, 1)),
                BindingDeclaration(below, name, delay_ladder.bit_pattern(level, 0), to_exchange=True),
            ]
            below = name
        return entities

    def release_entities(self, queue: str) -> list[Entity]:
        """Return the route of scheduled jobs to their queue; after the ladder, a queue that restores the key."""
        if self.schedule_by == "exchange":
            if self.is_partitioned(queue):
                return [BindingDeclaration(self.partitions_exchange(queue), self.delayed, queue, to_exchange=True)]
            return [BindingDeclaration(self.job_queue(queue), self.delayed, queue)]
        name = self.release_queue(queue)
        arguments: dict[str, object] = {
            "x-dead-letter-exchange": self.direct,
            "x-dead-letter-routing-key": queue,
            "x-message-ttl": 0,
            **self._waiting_arguments(),
        }
        return [
            QueueDeclaration(name, arguments),
            BindingDeclaration(name, self.delay_release, delay_ladder.queue_pattern(queue)),
        ]

    def all_entities(self, queue: str) -> list[Entity]:
        """Return everything that one OJS queue can ever need."""
        retry = [entity for delay_ms in RETRY_BUCKETS_MS for entity in self.retry_entities(queue, delay_ms)]
        return [
            *self.shared_entities(),
            *self.relay_entities(),
            *self.request_entities(),
            *self.leader_entities(),
            *self.queue_entities(queue),
            *self.control_entities(queue),
            *retry,
            *self.schedule_entities(),
            *self.release_entities(queue),
        ]

    def job_queue_arguments(self, queue: str) -> dict[str, object]:
        """Return the arguments of a job queue (binding section 7.2).

        A classic queue with default settings has exactly the arguments of the binding's examples, so that programs that
        declare it themselves agree with us.
        """
        arguments: dict[str, object] = {
            "x-dead-letter-exchange": self.retry if self.settle_by == "nack" else self.dead_letter_exchange,
            "x-dead-letter-routing-key": queue,
            **self._type_argument(),
        }
        if self.queue_type == "classic" and self.max_priority > 0:
            arguments["x-max-priority"] = self.max_priority
        if self.max_length is not None:
            arguments["x-max-length"] = self.max_length
        if self.max_length_bytes is not None:
            arguments["x-max-length-bytes"] = self.max_length_bytes
        if self.reject_when_full and (self.max_length is not None or self.max_length_bytes is not None):
            arguments["x-overflow"] = "reject-publish"
        if self.reject_when_full or (self.max_length is None and self.max_length_bytes is None):
            arguments |= self._safe_dead_lettering()
        if self.message_ttl_ms is not None:
            arguments["x-message-ttl"] = self.message_ttl_ms
        if self.deduplicate:
            arguments["x-message-deduplication"] = True
        return arguments

    def _waiting_arguments(self) -> dict[str, object]:
        """Return the common arguments of queues that jobs leave when their time is up."""
        return self._type_argument() | self._safe_dead_lettering()

    def _safe_dead_lettering(self) -> dict[str, object]:
        """Return the arguments with which RabbitMQ keeps a message until its dead letter is safe elsewhere.

        Its classic queues have no such feature: a message that was just dead-lettered is lost if the node is killed. It
        requires this overflow setting.
        """
        if self.queue_type != "quorum":
            return {}
        return {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}

    def control_arguments(self) -> dict[str, object]:
        """Return the common arguments of the coordinators' queues and the marks of paused queues."""
        return {} if self.replicas is None else self._type_argument()

    def _type_argument(self) -> dict[str, object]:
        if self.queue_type != "quorum":
            return {}
        return {"x-queue-type": "quorum", **self._placement("x-quorum-initial-group-size")}

    def _stream_arguments(self) -> dict[str, object]:
        return {"x-queue-type": "stream", **self._placement("x-initial-cluster-size")}

    def _placement(self, size: str) -> dict[str, object]:
        """Return on how many nodes of a cluster a queue is kept, and where its leader is."""
        arguments: dict[str, object] = {}
        if self.replicas is not None:
            arguments[size] = self.replicas
        if self.leader_locator is not None:
            arguments["x-queue-leader-locator"] = self.leader_locator
        return arguments
