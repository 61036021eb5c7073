"""Queues that are created when a peer addresses them, as with RabbitMQ's addresses of version 1 and Artemis.

Off by default: a mistake in an address is then an error, not a queue that nobody reads.
"""

from waybill.engine.amqp10.address import PLAIN, QUEUE, NodeAddress
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.model.errors import ResourceRefused


def create_if_missing(connection: SessionHost, node: NodeAddress, action: str) -> None:
    """Make a durable queue if an address names none, and the node does so. `action`: read or write.

    The peer needs the permission for that, and the one to configure the queue. Raises an error of the model.
    """
    limits = connection.host.limits
    if not limits.auto_creates_queues or node.kind not in {QUEUE, PLAIN}:
        return
    virtual_host = connection.virtual_host
    name = node.name
    is_there = name in virtual_host.queues or (node.kind == PLAIN and name in virtual_host.exchanges)
    if is_there or name.startswith("amq."):
        return
    if action == "read":
        connection.check_permission("read", "queue", name)
    else:
        connection.check_permission("write", "exchange", "")
    connection.check_permission("configure", "queue", name)
    if len(virtual_host.queues) >= limits.queues_per_virtual_host_max:
        raise ResourceRefused(f"vhost '{virtual_host.name}' has {limits.queues_per_virtual_host_max} queues, its limit")
    virtual_host.declare_queue(
        name, durable=True, auto_delete=False, exclusive_to=None, connection=connection, arguments={}
    )
    # The peer is told only once the queue is durable.
    connection.hold()
