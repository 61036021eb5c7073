"""Names of super streams: streams in partitions, as RabbitMQ's stream clients know them.

A super stream NAME is a durable direct exchange NAME with the argument `x-super-stream`. Its partitions are the streams
NAME-0, NAME-1 and so on; each is bound with its number as routing key. Nothing of that needs a feature of the broker,
so it works on every broker that has streams.
"""

from typing import Final

PARTITIONS_MAX: Final = 1000


def partition_name(name: str, key: object) -> str:
    """The stream of one partition: that of `invoices` with the key 0 is `invoices-0`."""
    return f"{name}-{key}"
