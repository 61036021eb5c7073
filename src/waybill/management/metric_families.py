"""Per-object metrics, in the families of RabbitMQ's plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from waybill.engine.server_connection import ServerConnection
from waybill.management.api_context import ApiContext, channel_name, channels_of, connection_name, size_of
from waybill.management.connections import channel_count
from waybill.model.queue import Queue

GAUGE: Final = "gauge"
COUNTER: Final = "counter"

Labelled = Iterator[tuple[str, tuple[float, ...]]]
Objects = Callable[[ApiContext, "list[str] | None"], Labelled]


class Family(NamedTuple):
    """Metrics that are requested together: name, type and help of each, and their values by object."""

    metrics: tuple[tuple[str, str, str], ...]
    objects: Objects
    is_cluster_wide: bool = False


def labelled(**labels: str) -> str:
    """Return labels in Prometheus's text format."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _queues(context: ApiContext, hosts: list[str] | None) -> Iterator[tuple[str, Queue]]:
    for host in list(context.node.virtual_hosts.values()):
        if hosts is None or host.name in hosts:
            for queue in list(host.queues.values()):
                yield labelled(vhost=host.name, queue=queue.name), queue


def _engines(context: ApiContext, hosts: list[str] | None) -> list[ServerConnection]:
    return [
        engine
        for engine in context.node.connections
        if isinstance(engine, ServerConnection) and (hosts is None or engine.virtual_host.name in hosts)
    ]


def _coarse(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for labels, queue in _queues(context, hosts):
        ready, unacked = queue.message_count, int(queue.unsettled_count)
        yield labels, (ready, unacked, ready + unacked)


def _consumer_count(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for labels, queue in _queues(context, hosts):
        yield labels, (len(queue.consumers),)


def _queue_metrics(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for labels, queue in _queues(context, hosts):
        size = size_of(queue)
        persistent = queue.message_count if queue.is_persistent else 0
        capacity = 1.0 if queue.consumers and not queue.message_count else 0.0
        yield labels, (len(queue.consumers), capacity, persistent, size, size, int(queue.footprint))


def _deliveries(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for labels, queue in _queues(context, hosts):
        counts = queue.counts()
        yield labels, (counts[4], counts[3], counts[2], counts[1], counts[5], counts[6])


def _queue_published(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for labels, queue in _queues(context, hosts):
        yield labels, (int(queue.published_count()),)


def _exchanges(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for host in list(context.node.virtual_hosts.values()):
        if hosts is None or host.name in hosts:
            for exchange in list(host.exchanges.values()):
                labels = labelled(vhost=host.name, exchange=exchange.name or "amq.default")
                yield labels, (int(exchange.published_in), int(exchange.published_out))


def _exchange_bindings(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for host in list(context.node.virtual_hosts.values()):
        if hosts is None or host.name in hosts:
            for exchange in list(host.exchanges.values()):
                labels = labelled(vhost=host.name, exchange=exchange.name or "amq.default", type=exchange.type)
                yield labels, (len(exchange.bindings),)


def _virtual_hosts(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for host in list(context.node.virtual_hosts.values()):
        if hosts is None or host.name in hosts:
            yield labelled(vhost=host.name), (0 if host.is_ending else 1,)


def _connection_octets(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for engine in _engines(context, hosts):
        octets = (int(engine.received_octets), int(engine.sent_octets))
        yield labelled(connection=connection_name(engine), vhost=engine.virtual_host.name), octets


def _connections(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for engine in _engines(context, hosts):
        yield (
            labelled(connection=connection_name(engine), vhost=engine.virtual_host.name),
            (int(engine.received_count), int(engine.sent_count), len(engine.out), channel_count(engine)),
        )


def _channels(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for channel in channels_of(_engines(context, hosts)):
        confirms, transaction = channel.confirms, channel.transaction
        unconfirmed = 0 if confirms is None else int(confirms.publish_count - confirms.confirmed_tag)
        yield (
            labelled(channel=channel_name(channel), vhost=channel.connection.virtual_host.name),
            (
                len(channel.consumers),
                int(channel.unsettled_count),
                unconfirmed,
                0 if transaction is None else len(transaction.publishes),
                0 if transaction is None else len(transaction.outcomes),
                int(channel.default_prefetch),
            ),
        )


def _channel_published(context: ApiContext, hosts: list[str] | None) -> Labelled:
    for channel in channels_of(_engines(context, hosts)):
        confirms = channel.confirms
        yield (
            labelled(channel=channel_name(channel), vhost=channel.connection.virtual_host.name),
            (
                int(channel.publish_count),
                0 if confirms is None else int(confirms.confirmed_tag),
                int(channel.delivery_tag),
                int(channel.acknowledged_count),
            ),
        )


FAMILIES: Final[dict[str, Family]] = {
    "queue_coarse_metrics": Family(
        (
            ("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers"),
            ("queue_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged"),
            ("queue_messages", GAUGE, "Sum of ready and unacknowledged messages - total queue depth"),
        ),
        _coarse,
    ),
    "queue_consumer_count": Family((("queue_consumers", GAUGE, "Consumers on a queue"),), _consumer_count),
    "queue_metrics": Family(
        (
            ("queue_consumers", GAUGE, "Consumers on a queue"),
            ("queue_consumer_capacity", GAUGE, "Consumer capacity"),
            ("queue_messages_persistent", GAUGE, "Persistent messages"),
            ("queue_messages_bytes", GAUGE, "Size in bytes of ready messages"),
            ("queue_messages_ready_bytes", GAUGE, "Size in bytes of ready messages"),
            ("queue_process_memory_bytes", GAUGE, "Memory in bytes used by the queue beside its messages"),
        ),
        _queue_metrics,
    ),
    "queue_delivery_metrics": Family(
        (
            ("queue_get_total", COUNTER, "Messages fetched with basic.get in automatic acknowledgement mode"),
            ("queue_get_ack_total", COUNTER, "Messages fetched with basic.get in manual acknowledgement mode"),
            ("queue_messages_delivered_total", COUNTER, "Messages delivered in automatic acknowledgement mode"),
            ("queue_messages_delivered_ack_total", COUNTER, "Messages delivered in manual acknowledgement mode"),
            ("queue_messages_redelivered_total", COUNTER, "Messages redelivered to consumers"),
            ("queue_messages_acked_total", COUNTER, "Messages acknowledged by consumers"),
        ),
        _deliveries,
    ),
    "queue_exchange_metrics": Family(
        (("queue_messages_published_total", COUNTER, "Messages published to queues"),), _queue_published
    ),
    "exchange_metrics": Family(
        (
            ("exchange_messages_published_in_total", COUNTER, "Messages published to an exchange"),
            ("exchange_messages_published_out_total", COUNTER, "Messages routed from an exchange to queues"),
        ),
        _exchanges,
    ),
    "connection_coarse_metrics": Family(
        (
            ("connection_incoming_bytes_total", COUNTER, "Total number of bytes received on a connection"),
            ("connection_outgoing_bytes_total", COUNTER, "Total number of bytes sent on a connection"),
        ),
        _connection_octets,
    ),
    "connection_metrics": Family(
        (
            ("connection_incoming_packets_total", COUNTER, "Total number of packets received on a connection"),
            ("connection_outgoing_packets_total", COUNTER, "Total number of packets sent on a connection"),
            ("connection_pending_packets", GAUGE, "Octets waiting to be sent on a connection"),
            ("connection_channels", GAUGE, "Channels on a connection"),
        ),
        _connections,
    ),
    "channel_metrics": Family(
        (
            ("channel_consumers", GAUGE, "Consumers on a channel"),
            ("channel_messages_unacked", GAUGE, "Delivered but not yet acknowledged messages"),
            ("channel_messages_unconfirmed", GAUGE, "Published but not yet confirmed messages"),
            ("channel_messages_uncommitted", GAUGE, "Messages received in a transaction but not yet committed"),
            ("channel_acks_uncommitted", GAUGE, "Message acknowledgements in a transaction not yet committed"),
            ("channel_prefetch", GAUGE, "Limit of unacknowledged messages per consumer"),
        ),
        _channels,
    ),
    "channel_exchange_metrics": Family(
        (
            ("channel_messages_published_total", COUNTER, "Messages published into exchanges on a channel"),
            ("channel_messages_confirmed_total", COUNTER, "Messages confirmed on a channel"),
            ("channel_messages_delivered_ack_total", COUNTER, "Messages delivered or fetched on a channel"),
            ("channel_messages_acked_total", COUNTER, "Messages acknowledged on a channel"),
        ),
        _channel_published,
    ),
    "vhost_status": Family(
        (("vhost_status", GAUGE, "Whether a given vhost is running"),), _virtual_hosts, is_cluster_wide=True
    ),
    "exchange_bindings": Family(
        (("exchange_bindings", GAUGE, "Number of bindings for an exchange"),), _exchange_bindings, is_cluster_wide=True
    ),
}
