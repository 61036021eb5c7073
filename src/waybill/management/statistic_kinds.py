"""The figures of each kind of object, under RabbitMQ's names. Counters continue after a restart; gauges do not."""

from __future__ import annotations

from typing import Final, NamedTuple

from waybill.management.history import DAY, HOURS, MINUTE, MINUTES, Level


class Kind(NamedTuple):
    """The figures of a kind of object: their names in the order of a row."""

    name: str
    counters: tuple[str, ...]
    gauges: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return self.counters + self.gauges


QUEUE_COUNTERS: Final = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack")
"""The order of `model.queue.Queue.counts`."""
LENGTHS: Final = ("messages_ready", "messages_unacknowledged")
CHURN: Final = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
GLOBAL_COUNTERS: Final = ("publish_in", "publish_out", "confirm", "return_unroutable", "drop_unroutable", "get_empty")
IO_COUNTERS: Final = ("io_write_count", "io_write_bytes", "io_sync_count", "io_sync_time", "recv_oct", "send_oct")
NODE_GAUGES: Final = ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free", "cpu_ms")

QUEUES: Final = Kind("queues", QUEUE_COUNTERS, LENGTHS, HOURS)
VIRTUAL_HOSTS: Final = Kind("vhosts", QUEUE_COUNTERS, LENGTHS, HOURS)
EXCHANGES: Final = Kind("exchanges", ("publish_in", "publish_out"), (), MINUTES)
CONNECTIONS: Final = Kind("connections", ("recv_oct", "send_oct", "recv_cnt", "send_cnt"), (), MINUTE)
CHANNELS: Final = Kind("channels", ("publish", "confirm", "deliver_get", "ack"), (), MINUTE)
TOTALS: Final = Kind("totals", QUEUE_COUNTERS + GLOBAL_COUNTERS + CHURN, LENGTHS, DAY)
NODE: Final = Kind("node", IO_COUNTERS, NODE_GAUGES, DAY)

SAVED_KINDS: Final = (TOTALS, NODE, VIRTUAL_HOSTS, QUEUES, EXCHANGES)
"""The kinds whose history is saved."""
