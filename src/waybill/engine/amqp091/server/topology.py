"""The methods of classes exchange and queue, on the server side."""

from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.direct_reply import REPLY_TO
from waybill.engine.amqp091.server.faults import connection_fault
from waybill.engine.amqp091.server.task import Delete, Purge
from waybill.model.binding import EXCHANGE, QUEUE
from waybill.model.declaration_limits import is_text
from waybill.model.errors import AccessRefused, NotFound
from waybill.model.queue import Queue
from waybill.wire.amqp091.methods_exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeUnbind,
    ExchangeUnbindOk,
)
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    QueueUnbindOk,
)
from waybill.wire.amqp091.reply_codes import FRAME_ERROR, RESOURCE_ERROR


def _one_line(name: str) -> str:
    """A name without line ends: RabbitMQ removes them."""
    return name.replace("\r", "").replace("\n", "")


def exchange_declare(channel: Channel, method: ExchangeDeclare) -> None:
    connection = channel.connection
    name = _one_line(method.exchange)
    if name == "":
        raise AccessRefused("operation not permitted on the default exchange")
    if method.passive:
        connection.virtual_host.exchange(name)
    else:
        connection.check_permission("configure", EXCHANGE, name)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            connection.check_permission("read", EXCHANGE, name)
            connection.check_permission("write", EXCHANGE, alternate)
        exchanges = connection.virtual_host.exchanges
        limit = connection.host.limits.exchanges_per_virtual_host_max
        if name not in exchanges and len(exchanges) >= limit:
            raise connection_fault(
                RESOURCE_ERROR, f"too many exchanges: {limit} in this vhost", method.CLASS_ID, method.METHOD_ID
            )
        connection.virtual_host.declare_exchange(
            name,
            method.type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )
        if method.durable:
            connection.hold()
    if not method.no_wait:
        channel.send(ExchangeDeclareOk())


def exchange_delete(channel: Channel, method: ExchangeDelete) -> None:
    connection = channel.connection
    name = _one_line(method.exchange)
    connection.check_permission("configure", EXCHANGE, name)
    deletion = connection.virtual_host.delete_exchange(name, if_unused=method.if_unused)
    connection.begin(Delete(channel, deletion, of_queue=False, no_wait=method.no_wait))


def exchange_bind(channel: Channel, method: ExchangeBind) -> None:
    connection = channel.connection
    destination = _one_line(method.destination)
    source = _one_line(method.source)
    connection.check_permission("write", EXCHANGE, destination)
    connection.check_permission("read", EXCHANGE, source)
    connection.check_topic("read", source, method.routing_key)
    connection.virtual_host.bind_exchange(destination, source, method.routing_key, method.arguments)
    connection.hold()
    if not method.no_wait:
        channel.send(ExchangeBindOk())


def exchange_unbind(channel: Channel, method: ExchangeUnbind) -> None:
    connection = channel.connection
    destination = _one_line(method.destination)
    source = _one_line(method.source)
    connection.check_permission("write", EXCHANGE, destination)
    connection.check_permission("read", EXCHANGE, source)
    connection.virtual_host.unbind(EXCHANGE, destination, source, method.routing_key, method.arguments)
    connection.hold()
    if not method.no_wait:
        channel.send(ExchangeUnbindOk())


def queue_declare(channel: Channel, method: QueueDeclare) -> None:
    connection = channel.connection
    virtual_host = connection.virtual_host
    name = _one_line(method.queue)
    if not is_text(name):
        raise connection_fault(FRAME_ERROR, "Malformed UTF-8 in shortstr", method.CLASS_ID, method.METHOD_ID)
    if method.passive:
        if name == REPLY_TO:
            channel.send(QueueDeclareOk(REPLY_TO, 0, 0))
            return
        queue = virtual_host.queue(name or channel.last_queue_name, connection)
        queue.touch()
    else:
        if name == "":
            name = connection.host.random_name("amq.gen-")
        elif name.startswith("amq.") and name not in virtual_host.queues:
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        _check_declaration(channel, method, name)
        queue = virtual_host.declare_queue(
            name,
            durable=method.durable,
            auto_delete=method.auto_delete,
            exclusive_to=connection if method.exclusive else None,
            connection=connection,
            arguments=method.arguments,
        )
        if queue.is_persistent:
            connection.hold()
    channel.last_queue_name = queue.name
    if not method.no_wait:
        channel.send(QueueDeclareOk(queue.name, queue.message_count, len(queue.consumers)))


def _check_declaration(channel: Channel, method: QueueDeclare, name: str) -> None:
    """Raises an error of the model if the user, or nobody, may declare this queue."""
    connection = channel.connection
    connection.check_permission("configure", QUEUE, name)
    dead_letter_exchange = method.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letter_exchange, str):
        connection.check_permission("read", QUEUE, name)
        connection.check_permission("write", EXCHANGE, dead_letter_exchange)
    alternate = method.arguments.get("x-alternate-exchange")
    if isinstance(alternate, str):
        connection.check_permission("read", QUEUE, name)
        connection.check_permission("write", EXCHANGE, alternate)
    queues = connection.virtual_host.queues
    limit = connection.host.limits.queues_per_virtual_host_max
    if name not in queues and len(queues) >= limit:
        raise connection_fault(
            RESOURCE_ERROR, f"too many queues: {limit} in this vhost", method.CLASS_ID, method.METHOD_ID
        )


def named_queue(channel: Channel, name: str) -> Queue:
    """The queue called `name`, or the one last declared on the channel if the name is empty."""
    if name == "" and channel.last_queue_name == "":
        raise NotFound(f"no previously declared queue in vhost '{channel.connection.virtual_host.name}'")
    return channel.connection.virtual_host.queue(name or channel.last_queue_name, channel.connection)


def queue_bind(channel: Channel, method: QueueBind) -> None:
    connection = channel.connection
    queue = named_queue(channel, method.queue)
    exchange = _one_line(method.exchange)
    connection.check_permission("write", QUEUE, queue.name)
    connection.check_permission("read", EXCHANGE, exchange)
    routing_key = method.routing_key
    if method.queue == "" and routing_key == "":
        routing_key = queue.name
    connection.check_topic("read", exchange, routing_key)
    connection.virtual_host.bind_queue(queue, exchange, routing_key, method.arguments)
    if queue.is_persistent:
        connection.hold()
    if not method.no_wait:
        channel.send(QueueBindOk())


def queue_unbind(channel: Channel, method: QueueUnbind) -> None:
    connection = channel.connection
    name = method.queue or channel.last_queue_name
    exchange = _one_line(method.exchange)
    connection.check_permission("write", QUEUE, name)
    connection.check_permission("read", EXCHANGE, exchange)
    if name in connection.virtual_host.queues:
        named_queue(channel, name)
    connection.virtual_host.unbind(QUEUE, name, exchange, method.routing_key, method.arguments)
    connection.hold()
    channel.send(QueueUnbindOk())


def queue_purge(channel: Channel, method: QueuePurge) -> None:
    queue = named_queue(channel, method.queue)
    channel.connection.check_permission("read", QUEUE, queue.name)
    channel.connection.begin(Purge(channel, queue.begin_purge(), no_wait=method.no_wait))


def queue_delete(channel: Channel, method: QueueDelete) -> None:
    connection = channel.connection
    name = _one_line(method.queue) or channel.last_queue_name
    connection.check_permission("configure", QUEUE, name)
    deletion = connection.virtual_host.delete_queue(
        name, connection, if_unused=method.if_unused, if_empty=method.if_empty
    )
    connection.begin(Delete(channel, deletion, of_queue=True, no_wait=method.no_wait))
