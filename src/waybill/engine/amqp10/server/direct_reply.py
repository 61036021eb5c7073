"""Direct reply-to in AMQP 1.0, as in RabbitMQ 4.2: a source for replies without a declared queue.

The peer attaches a receiver with settled deliveries, whose source is dynamic, expires with the link and has the
capability `rabbitmq:volatile-queue`. Our attach has its address, `/queues/amq.rabbitmq.reply-to.` and a part that
cannot be guessed. Requests carry it in `reply-to`; the replying peer, in any protocol, needs no permission.
"""

from typing import Final

from waybill.engine.amqp10.address import queue_address
from waybill.engine.amqp10.server.dynamic import DynamicNode
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.wire.amqp10.error import INVALID_FIELD
from waybill.wire.amqp10.messaging import DURABLE_NONE, EXPIRE_ON_LINK_DETACH, DeleteOnClose, Source
from waybill.wire.amqp10.performatives import SENDER_SETTLED

VOLATILE: Final = "rabbitmq:volatile-queue"
REPLY_PREFIX: Final = "amq.rabbitmq.reply-to."


class ReplyNode(DynamicNode):
    """The queue of a link for answers. Raises a link fault for a source that asks for more than it can be."""

    def __init__(self, connection: SessionHost, asked: Source, snd_settle_mode: int) -> None:
        if asked.durable != DURABLE_NONE or asked.expiry_policy != EXPIRE_ON_LINK_DETACH or asked.timeout:
            raise link_fault(INVALID_FIELD, f"a source with {VOLATILE} is not durable, and expires with link-detach")
        if snd_settle_mode != SENDER_SETTLED:
            raise link_fault(INVALID_FIELD, f"a source with {VOLATILE} needs snd-settle-mode settled")
        self._connection = connection
        self._policy = DeleteOnClose()
        self.name = connection.host.random_name(REPLY_PREFIX)
        self.address = queue_address(self.name)
