"""Links to the management node: requests come by one, their responses go by another of the same name and session.

The link of the responses is an ordinary one, of a queue that only it has. Clients attach both by one name, with the
link property `paired`; a link of requests whose name no other has gets its responses by whatever link there is.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.management import Management
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.incoming import CREDIT, IncomingLink
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.termini import Terminus
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import Queue
from waybill.model.store import CommitWaiter
from waybill.wire.amqp10.error import PRECONDITION_FAILED
from waybill.wire.amqp10.message import DEFAULT_PRIORITY
from waybill.wire.amqp10.performatives import Attach
from waybill.wire.amqp10.transfer import TransferFacts
from waybill.wire.amqp10.types import Symbol

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.connection import Connection
    from waybill.engine.amqp10.server.session import Session

PAIRED: Final = Symbol("paired")
_QUEUE_PREFIX: Final = "amq.management-"


class ManagementLink(IncomingLink):
    """Each message is a request, whose response is sent once what it tells of is durable."""

    def __init__(self, session: "Session", attach: Attach, handle: i64, terminus: Terminus) -> None:
        connection = session.connection
        super().__init__(session, attach, handle, TargetNode(connection, None), terminus)
        self._node = Management(connection.host, connection.user, connection.virtual_host, connection)

    def grant(self) -> None:
        """Publishers may have to wait, administrators not."""
        if self.is_attached:
            self.credit = CREDIT
            self.send_flow()

    def alarm_changed(self) -> None:
        """See `grant`."""

    def learn(self, data: bytes, start: i64, facts: TransferFacts) -> None:
        """Requests are read here in any shape: there is nothing to remember of one for the next."""

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Answer one request. Raises a link fault if no link would take the response."""
        queue = self._responses()
        host = self.connection.host
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
        if not self._is_settled:
            if self._waits:
                self.terminus.settling[self._tag] = self._delivery_id
            self.session.accepted(self._delivery_id, settles=not self._waits)
        host.runtime.store.wait(_Response(queue, response), 0)

    def _responses(self) -> Queue:
        found: Queue | None = None
        for link in self.session.outgoing.values():
            if link.source.is_management and (found is None or link.name == self.name):
                found = link.queue
        if found is None:
            raise link_fault(PRECONDITION_FAILED, "no link of this session takes responses from the management node")
        return found


class _Response(CommitWaiter):
    def __init__(self, queue: Queue, message: Message) -> None:
        self._queue = queue
        self._message = message

    def committed(self, mark: i64) -> None:
        if not self._queue.is_deleted:
            self._queue.publish(self._message, 0)


def response_queue(connection: "Connection") -> Queue:
    """A queue for the responses of one link; it goes with the link."""
    return connection.virtual_host.declare_queue(
        connection.host.random_name(_QUEUE_PREFIX),
        durable=False,
        auto_delete=True,
        exclusive_to=connection,
        connection=connection,
        arguments={},
    )
