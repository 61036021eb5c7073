"""Metrics of the node as a whole. Counters continue after a restart, as the history does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.server_connection import ServerConnection
from waybill.management import node_state
from waybill.management.api_context import ApiContext, channels_of
from waybill.management.metric_families import labelled
from waybill.management.overview import VERSION, totals_row
from waybill.management.statistic_kinds import NODE, TOTALS

COUNTERS: Final = (
    ("global_messages_received_total", "publish_in", "Total number of messages received from clients"),
    ("global_messages_confirmed_total", "confirm", "Total number of messages confirmed to publishers"),
    ("global_messages_routed_total", "publish_out", "Total number of messages routed to queues or streams"),
    (
        "global_messages_unroutable_dropped_total",
        "drop_unroutable",
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
    ),
    (
        "global_messages_unroutable_returned_total",
        "return_unroutable",
        "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable",
    ),
    (
        "global_messages_delivered_consume_manual_ack_total",
        "deliver",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
    ),
    (
        "global_messages_delivered_consume_auto_ack_total",
        "deliver_no_ack",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
    ),
    (
        "global_messages_delivered_get_manual_ack_total",
        "get",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
    ),
    (
        "global_messages_delivered_get_auto_ack_total",
        "get_no_ack",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
    ),
    (
        "global_messages_get_empty_total",
        "get_empty",
        "Total number of times basic.get operations fetched no message",
    ),
    ("global_messages_redelivered_total", "redeliver", "Total number of messages redelivered to consumers"),
    ("global_messages_acknowledged_total", "ack", "Total number of message acknowledgements received from consumers"),
    ("connections_opened_total", "connection_created", "Total number of connections opened"),
    ("connections_closed_total", "connection_closed", "Total number of connections closed or terminated"),
    ("channels_opened_total", "channel_created", "Total number of channels opened"),
    ("channels_closed_total", "channel_closed", "Total number of channels closed"),
    ("queues_declared_total", "queue_declared", "Total number of queues declared"),
    ("queues_created_total", "queue_created", "Total number of queues created"),
    ("queues_deleted_total", "queue_deleted", "Total number of queues deleted"),
)
"""Name, figure in the totals, help text."""
NODE_FIGURES: Final = (
    ("io_write_ops_total", "counter", "io_write_count", 1.0, "Total number of I/O write operations"),
    ("io_write_bytes_total", "counter", "io_write_bytes", 1.0, "Total number of I/O bytes written"),
    ("io_sync_ops_total", "counter", "io_sync_count", 1.0, "Total number of I/O sync operations"),
    ("io_sync_time_seconds_total", "counter", "io_sync_time", 1e-6, "Total I/O sync time"),
    ("process_resident_memory_bytes", "gauge", "mem_used", 1.0, "Memory used in bytes"),
    ("process_open_fds", "gauge", "fd_used", 1.0, "Open file descriptors"),
    ("process_open_tcp_sockets", "gauge", "sockets_used", 1.0, "Open TCP sockets"),
    ("erlang_processes_used", "gauge", "proc_used", 1.0, "Threads of the process"),
    ("disk_space_available_bytes", "gauge", "disk_free", 1.0, "Disk space available in bytes"),
    ("process_cpu_seconds_total", "counter", "cpu_ms", 1e-3, "CPU time of the process, user and system"),
)
LENGTHS: Final = (
    ("queue_messages_ready", "messages_ready", "Messages ready to be delivered to consumers"),
    ("queue_messages_unacked", "messages_unacknowledged", "Messages delivered to consumers but not yet acknowledged"),
)
OCTETS: Final = (
    ("connection_incoming_bytes_total", "recv_oct", "Total number of bytes received on a connection"),
    ("connection_outgoing_bytes_total", "send_oct", "Total number of bytes sent on a connection"),
)
OF_CHANNELS: Final = (
    ("queue_messages_published_total", "publish", "published to queues"),
    ("channel_messages_published_total", "publish_in", "published into an exchange on a channel"),
    ("channel_messages_confirmed_total", "confirm", "confirmed"),
    ("channel_messages_delivered_total", "deliver_no_ack", "delivered in automatic acknowledgement mode"),
    ("channel_messages_delivered_ack_total", "deliver", "delivered in manual acknowledgement mode"),
    ("channel_messages_redelivered_total", "redeliver", "redelivered to consumers"),
    ("channel_messages_acked_total", "ack", "acknowledged by consumers"),
    ("channel_get_total", "get_no_ack", "fetched with basic.get in automatic acknowledgement mode"),
    ("channel_get_ack_total", "get", "fetched with basic.get in manual acknowledgement mode"),
    ("channel_get_empty_total", "get_empty", "not found by basic.get, as there was none"),
    ("channel_messages_unroutable_dropped_total", "drop_unroutable", "dropped as unroutable"),
    ("channel_messages_unroutable_returned_total", "return_unroutable", "returned as unroutable"),
)
PREFIX: Final = "rabbitmq_"


def node_metrics(context: ApiContext, version: str, *, is_per_object: bool = False) -> Iterator[str]:
    """Yield the lines. `is_per_object` leaves out the sums of per-object metrics."""
    yield from _identity(context, version)
    yield from _objects(context)
    row = totals_row(context)
    for name, figure, text in COUNTERS:
        yield from _metric(name, "counter", text, row[TOTALS.names.index(figure)])
    delivered = sum(row[TOTALS.names.index(one)] for one in ("deliver", "deliver_no_ack", "get", "get_no_ack"))
    yield from _metric(
        "global_messages_delivered_total", "counter", "Total number of messages delivered to consumers", delivered
    )
    yield from _logins(context)
    yield from _alarms(context)
    yield from _process(context)
    engines = [one for one in context.node.connections if isinstance(one, ServerConnection)]
    yield from _publishing(context, engines)
    if not is_per_object:
        yield from _sums(context, engines)


def _metric(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield f"# TYPE {PREFIX}{name} {kind}"
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"{PREFIX}{name} {value}"


def _identity(context: ApiContext, version: str) -> Iterator[str]:
    build = labelled(
        rabbitmq_version=VERSION,
        prometheus_plugin_version=VERSION,
        prometheus_client_version="0.0.4",
        erlang_version="25",
        product_name="Waybill",
        product_version=version,
    )
    yield f"# TYPE {PREFIX}build_info untyped"
    yield f"# HELP {PREFIX}build_info RabbitMQ & Erlang/OTP version info"
    yield f"{PREFIX}build_info{{{build}}} 1"
    identity = labelled(
        rabbitmq_node=context.node_name,
        rabbitmq_cluster=context.cluster_name,
        rabbitmq_cluster_permanent_id=f"rabbitmq-cluster-id-{context.broker.node.name}",
    )
    yield f"# TYPE {PREFIX}identity_info untyped"
    yield f"# HELP {PREFIX}identity_info RabbitMQ node & cluster identity info"
    yield f"{PREFIX}identity_info{{{identity}}} 1"


def _logins(context: ApiContext) -> Iterator[str]:
    logins = context.node.runtime.counters.logins
    for name, text, figure in (
        ("auth_attempts_total", "Total number of authentication attempts", sum),
        ("auth_attempts_succeeded_total", "Total number of successful authentication attempts", itemgetter(0)),
        ("auth_attempts_failed_total", "Total number of failed authentication attempts", itemgetter(1)),
    ):
        yield f"# TYPE {PREFIX}{name} counter"
        yield f"# HELP {PREFIX}{name} {text}"
        for protocol, counts in sorted(logins.items()):
            yield f"{PREFIX}{name}{{{labelled(protocol=protocol)}}} {figure(counts)}"


def _objects(context: ApiContext) -> Iterator[str]:
    node = context.node
    hosts = list(node.virtual_hosts.values())
    queues = sum(len(host.queues) for host in hosts)
    consumers = sum(context.sampler.consumers.values())
    engines = [one for one in node.connections if isinstance(one, ServerConnection)]
    yield from _metric("connections", "gauge", "Connections currently open", len(engines))
    channels = sum(len(one.channels) for one in engines if isinstance(one, Amqp091Connection))
    yield from _metric("channels", "gauge", "Channels currently open", channels)
    yield from _metric("consumers", "gauge", "Consumers currently connected", consumers)
    yield from _metric("queues", "gauge", "Queues available", queues)
    yield from _metric("global_consumers", "gauge", "The current number of consumers", consumers)
    yield from _metric("vhosts", "gauge", "Virtual hosts", len(hosts))
    yield from _metric("exchanges", "gauge", "Exchanges", sum(len(host.exchanges) for host in hosts))


def _publishing(context: ApiContext, engines: list[ServerConnection]) -> Iterator[str]:
    publishers = waiting = 0
    for channel in channels_of(engines):
        publishers += channel.publish_count > 0
        if channel.confirms is not None:
            waiting += int(channel.confirms.publish_count - channel.confirms.confirmed_tag)
    yield from _metric("global_publishers", "gauge", "The current number of publishers", publishers)
    confirmed = totals_row(context)[TOTALS.names.index("confirm")]
    text = "Total number of messages received from publishers expecting confirmations"
    yield from _metric("global_messages_received_confirm_total", "counter", text, confirmed + waiting)


def _alarms(context: ApiContext) -> Iterator[str]:
    node = context.node
    is_disk = bool(node.runtime.disk_alarm)
    yield from _metric("alarms_file_descriptor_limit", "gauge", "is 1 if file descriptor limit alarm is in effect", 0)
    yield from _metric(
        "alarms_free_disk_space_watermark",
        "gauge",
        "is 1 if free disk space watermark alarm is in effect",
        int(is_disk),
    )
    yield from _metric(
        "alarms_memory_used_watermark",
        "gauge",
        "is 1 if VM memory watermark alarm is in effect",
        int(bool(node.alarm) and not is_disk),
    )


def _process(context: ApiContext) -> Iterator[str]:
    node = context.node
    row = context.sampler.row(NODE)
    for name, kind, figure, factor, text in NODE_FIGURES:
        value = row[NODE.names.index(figure)]
        yield from _metric(name, kind, text, value if factor == 1.0 else value * factor)
    yield from _metric("process_max_fds", "gauge", "Open file descriptors limit", node_state.descriptors_max())
    yield from _metric("process_max_tcp_sockets", "gauge", "Open TCP sockets limit", int(node.limits.connections_max))
    yield from _metric("erlang_processes_limit", "gauge", "Threads that may run", 1_048_576)
    yield from _metric(
        "disk_space_available_limit_bytes",
        "gauge",
        "Free disk space low watermark in bytes",
        node.disk_free_limit_bytes,
    )
    limit = int(node.runtime.configured_limit_bytes)
    yield from _metric("resident_memory_limit_bytes", "gauge", "Memory high watermark in bytes", limit)
    yield from _metric(
        "message_memory_bytes", "gauge", "Content of messages that is held in memory", int(node.runtime.memory_bytes)
    )
    uptime = round(time.monotonic() - context.started_at, 3)
    yield from _metric("erlang_uptime_seconds", "gauge", "Node uptime", uptime)
    yield from _metric("unreachable_cluster_peers_count", "gauge", "Number of peers that cannot be reached", 0)


def _sums(context: ApiContext, engines: list[ServerConnection]) -> Iterator[str]:
    row = totals_row(context)
    for name, figure, text in LENGTHS:
        yield from _metric(name, "gauge", text, row[TOTALS.names.index(figure)])
    messages = sum(row[TOTALS.names.index(figure)] for _, figure, _ in LENGTHS)
    text = "Sum of ready and unacknowledged messages - total queue depth"
    yield from _metric("queue_messages", "gauge", text, messages)
    consumers = sum(context.sampler.consumers.values())
    yield from _metric("queue_consumers", "gauge", "Consumers on a queue", consumers)
    channels = list(channels_of(engines))
    gauges = {
        "channel_consumers": ("Consumers on a channel", sum(len(one.consumers) for one in channels)),
        "channel_messages_unacked": (
            "Delivered but not yet acknowledged messages",
            sum(int(one.unsettled_count) for one in channels),
        ),
        "connection_channels": ("Channels on a connection", len(channels)),
        "connection_pending_packets": (
            "Octets waiting to be sent on a connection",
            sum(len(one.out) for one in engines),
        ),
    }
    for name, (text, value) in gauges.items():
        yield from _metric(name, "gauge", text, value)
    node = context.sampler.row(NODE)
    for name, figure, text in OCTETS:
        yield from _metric(name, "counter", text, node[NODE.names.index(figure)])
    for name, figure, text in OF_CHANNELS:
        yield from _metric(name, "counter", f"Total number of messages {text}", row[TOTALS.names.index(figure)])
