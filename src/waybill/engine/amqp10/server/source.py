"""What an outgoing link takes its messages from: a queue, or a queue of its own that is bound to an exchange."""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.address import EXCHANGE as EXCHANGE_NODE
from waybill.engine.amqp10.address import PLAIN, QUEUE, InvalidAddress, NodeAddress, parse_address
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.outcomes import ALL, Outcome
from waybill.model.entry import Entry
from waybill.model.errors import InvalidArgument, NotFound
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.messaging import DISTRIBUTION_MOVE, Accepted, Modified, Rejected, Released, Source
from waybill.wire.amqp10.types import Symbol

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.outgoing import OutgoingLink
    from waybill.engine.amqp10.server.session import Session

PRIORITY_PROPERTY: Final = "rabbitmq:priority"
DEFAULT_OUTCOME: Final = Outcome(Released())


class SourceNode:
    """A source as it is in force. Raises a link fault or what the model refuses if it cannot be what was asked for."""

    def __init__(self, session: "Session", asked: Source, properties: dict[str, object]) -> None:
        self.session = session
        self.connection = session.connection
        self.asked = asked
        self.exclusive = False
        self.priority: i64 = _priority(properties)
        self.outcomes = _outcomes(asked)
        self.default_outcome = _default_outcome(asked.default_outcome)
        if asked.distribution_mode not in {None, DISTRIBUTION_MOVE}:
            raise link_fault(NOT_IMPLEMENTED, f"distribution-mode {asked.distribution_mode}")
        if asked.dynamic:
            raise link_fault(NOT_IMPLEMENTED, "dynamic nodes")
        self.address = asked.address or ""
        self.queue = self._resolve()

    def _resolve(self) -> Queue:
        try:
            node: NodeAddress = parse_address(self.address)
        except InvalidAddress as error:
            raise InvalidArgument(str(error)) from None
        virtual_host = self.connection.virtual_host
        if node.kind == QUEUE or (node.kind == PLAIN and node.name in virtual_host.queues):
            queue = virtual_host.queue(node.name, self.connection)
            self.connection.check_permission("read", "queue", node.name)
            return queue
        if node.kind == EXCHANGE_NODE or node.name in virtual_host.exchanges:
            raise link_fault(NOT_IMPLEMENTED, "an exchange as a source")
        raise NotFound(f"no queue or exchange '{node.name}' in vhost '{virtual_host.name}'")

    def answer(self) -> Source:
        """The source of the attach with which we answer: what is in force."""
        asked = self.asked
        return Source(
            address=self.address,
            durable=asked.durable,
            expiry_policy=asked.expiry_policy,
            timeout=asked.timeout,
            distribution_mode=DISTRIBUTION_MOVE,
            default_outcome=self.default_outcome.state,
            outcomes=tuple(Symbol(name) for name in self.outcomes),
            capabilities=(),
        )

    def shun(self, link: "OutgoingLink", entry: Entry) -> None:
        """Never deliver this message by that link again."""

    def detached(self, *, closed: bool) -> None:
        """Its link is gone."""


def _priority(properties: dict[str, object]) -> int:
    priority = properties.get(PRIORITY_PROPERTY, 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 1 << 31:
        raise link_fault(INVALID_FIELD, f"{PRIORITY_PROPERTY} is a 32-bit integer, not {priority!r}")
    return int(priority)


def _outcomes(asked: Source) -> tuple[str, ...]:
    """Those asked for, which must be known; all that are known if none were."""
    for name in asked.outcomes:
        if name not in ALL:
            raise link_fault(INVALID_FIELD, f"'{name}' is no outcome that a message can have here")
    return tuple(str(name) for name in asked.outcomes) or ALL


def _default_outcome(state: object) -> Outcome:
    if state is None:
        return DEFAULT_OUTCOME
    if isinstance(state, COMPOSITE) and isinstance(state, (Accepted, Rejected, Released, Modified)):
        return Outcome(state)
    name = state.NAME if isinstance(state, COMPOSITE) else repr(state)
    raise link_fault(INVALID_FIELD, f"{name} is no outcome that a message can have here")


__all__ = ["Composite", "SourceNode"]
