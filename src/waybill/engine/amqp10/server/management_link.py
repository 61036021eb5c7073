"""Links to the management node: one for requests, and another of the same session for their responses.

The link for responses is an ordinary one, from its own queue. Clients give both links one name, and the link property
`paired`. If no link has the name of the link for requests, responses use any link from the management node.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.management import Management
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.termini import Terminus
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import Queue
from waybill.model.store import CommitWaiter
from waybill.wire.amqp10.error import PRECONDITION_FAILED
from waybill.wire.amqp10.message import DEFAULT_PRIORITY
from waybill.wire.amqp10.performatives import Attach
from waybill.wire.amqp10.types import Symbol

PAIRED: Final = Symbol("paired")
REQUEST_UNITS: Final = 8
REQUEST_SIZE_MAX: Final = 256 << 10
"""A response repeats the message-id, and stays in memory until it is settled."""


class ManagementLink(IncomingLink):
    """Each message is a request. Its response is sent once its effects are durable."""

    def __init__(self, session: LinkHost, attach: Attach, handle: i64, terminus: Terminus) -> None:
        connection = session.connection
        super().__init__(session, attach, handle, TargetNode(connection, None), terminus, publishes=False)
        self.max_message_size = min(self.max_message_size, REQUEST_SIZE_MAX)
        self._node = Management(connection.host, connection.user, connection.virtual_host, connection)

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Answer one request. Raises a link fault if no link takes the response."""
        queue = self.session.response_queue(self.name)
        if queue is None:
            raise link_fault(PRECONDITION_FAILED, "no link of this session takes responses from the management node")
        host = self.connection.host
        host.runtime.work_left -= REQUEST_UNITS
        address = self.connection.virtual_host.router.address("", queue.name)
        response = Message(
            AMQP10,
            self._node.handle(data[start:end]),
            address,
            False,  # noqa: FBT003 - as in its signature: durable
            DEFAULT_PRIORITY,
            NO_TTL,
            host.runtime.now,
        )
        if not self.delivery.is_settled:
            self.delivery.accept()
        host.runtime.store.wait(_Response(queue, response), 0)


class _Response(CommitWaiter):
    def __init__(self, queue: Queue, message: Message) -> None:
        self._queue = queue
        self._message = message

    def committed(self, mark: i64) -> None:
        if not self._queue.is_deleted:
            self._queue.publish(self._message, 0)
