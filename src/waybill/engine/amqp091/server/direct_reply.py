"""Direct reply-to: an answer goes directly to the requesting connection, through a queue that nobody declares.

A client consumes from `amq.rabbitmq.reply-to` without acknowledgements and gives that name as `reply-to` in its
requests. The broker replaces it by the name of a queue of the channel's own, which lives as long as that consumer; the
server of the request answers to it through the default exchange as to any queue.
"""

from typing import Final

from waybill.engine.amqp091.server.channel_host import ConsumerHost
from waybill.engine.amqp091.server.faults import channel_fault
from waybill.model.queue import Queue
from waybill.wire.amqp091.content import properties_of, with_properties
from waybill.wire.amqp091.reply_codes import PRECONDITION_FAILED

REPLY_TO: Final = "amq.rabbitmq.reply-to"
_BASIC: Final = 60
_CONSUME: Final = 20
_PUBLISH: Final = 40


def make_reply_queue(channel: ConsumerHost, *, no_ack: bool) -> Queue:
    """The queue for a consumer of the pseudo-queue. Raises a channel fault."""
    if not no_ack:
        raise channel_fault(PRECONDITION_FAILED, "reply consumer cannot acknowledge", _BASIC, _CONSUME)
    if channel.reply_queue_name:
        raise channel_fault(PRECONDITION_FAILED, "reply consumer already set", _BASIC, _CONSUME)
    connection = channel.connection
    queue = connection.virtual_host.declare_queue(
        connection.host.random_name(REPLY_TO + "."),
        durable=False,
        auto_delete=True,
        exclusive_to=None,
        connection=connection,
        arguments={},
    )
    channel.reply_queue_name = queue.name
    return queue


def with_real_reply_to(channel: ConsumerHost, content: bytes) -> bytes:
    """Return the content of a request. If its reply-to is the pseudo-queue, it names the channel's reply queue now."""
    properties = properties_of(content)
    if properties.reply_to != REPLY_TO:
        return content
    if not channel.reply_queue_name:
        raise channel_fault(PRECONDITION_FAILED, "fast reply consumer does not exist", _BASIC, _PUBLISH)
    properties.reply_to = channel.reply_queue_name
    return with_properties(content, properties)
