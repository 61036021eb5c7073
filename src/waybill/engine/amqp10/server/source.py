"""The source of a link by which the peer receives: a queue, or the link's own queue bound to an exchange."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.address import EXCHANGE as EXCHANGE_NODE
from waybill.engine.amqp10.address import MANAGEMENT, PLAIN, QUEUE, InvalidAddress, NodeAddress, parse_address
from waybill.engine.amqp10.filters import EXCHANGE as EXCHANGE_FILTERS
from waybill.engine.amqp10.filters import QUEUE as QUEUE_FILTERS
from waybill.engine.amqp10.filters import STREAM as STREAM_FILTERS
from waybill.engine.amqp10.filters import FilterError, FilterSet, read_filters, supported_filters
from waybill.engine.amqp10.server.auto_create import create_if_missing
from waybill.engine.amqp10.server.direct_reply import VOLATILE, ReplyNode
from waybill.engine.amqp10.server.dynamic import (
    DynamicNode,
    check_consumer,
    join_lifetime,
    node_capabilities,
    response_queue,
    subscription_queue,
)
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.outcomes import ALL, Outcome
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.amqp10.termini import Terminus
from waybill.model.binding import QUEUE as BOUND_QUEUE
from waybill.model.binding import Binding
from waybill.model.errors import InvalidArgument, ModelError, NotFound
from waybill.model.exchange import TopicExchange
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.error import INVALID_FIELD, NOT_IMPLEMENTED
from waybill.wire.amqp10.messaging import (
    DISTRIBUTION_COPY,
    DISTRIBUTION_MOVE,
    DURABLE_NONE,
    Accepted,
    Modified,
    Rejected,
    Released,
    Source,
)
from waybill.wire.amqp10.performatives import Attach
from waybill.wire.amqp10.types import Symbol

PRIORITY_PROPERTY: Final = "rabbitmq:priority"
DEFAULT_OUTCOME: Final = Outcome(Released())


class SourceNode:
    """A source in force. Raises a link fault, or an error of the model, if the request cannot be fulfilled.

    Nothing is created or changed before `open`, which sets `queue` and `terminus`, except the queue that `auto_create`
    makes. `copies`: the link receives copies, and the messages stay in the queue. `is_for_replies`: see `direct_reply`.
    """

    queue: Queue
    terminus: Terminus

    def __init__(self, connection: SessionHost, attach: Attach, asked: Source) -> None:
        self.connection = connection
        self.asked = asked
        self.exclusive = False
        self.priority: i64 = _priority(attach.properties or {})
        self.outcomes = _outcomes(asked)
        self.default_outcome = _default_outcome(asked.default_outcome)
        self.copies = False
        self.is_management = False
        self.filters = FilterSet()
        self.capabilities: tuple[Symbol, ...] = ()
        self.distribution_mode = DISTRIBUTION_MOVE
        self.properties: dict[str, object] | None = None
        self._dynamic: DynamicNode | None = None
        self._known: Queue | None = None
        self._exchange = ""
        self._bindings: list[tuple[str, dict[str, object]]] = []
        self.is_for_replies = asked.dynamic and VOLATILE in asked.capabilities
        self.address = self._address(attach)
        self._check()

    def _address(self, attach: Attach) -> str:
        asked = self.asked
        if not asked.dynamic:
            if asked.dynamic_node_properties:
                raise link_fault(INVALID_FIELD, "dynamic-node-properties are for dynamic nodes")
            return asked.address or ""
        if asked.address is not None:
            raise link_fault(INVALID_FIELD, "the peer must not choose the address of a dynamic node")
        if self.is_for_replies:
            self._dynamic = ReplyNode(self.connection, asked, attach.snd_settle_mode)
        else:
            self._dynamic = DynamicNode(self.connection, attach.name, asked.dynamic_node_properties)
        self.properties = self._dynamic.properties
        return self._dynamic.address

    def _check(self) -> None:
        """Check the permissions first, then what was requested."""
        connection = self.connection
        if self._dynamic is not None:
            if not self.is_for_replies:
                connection.check_permission("read", "queue", self._dynamic.name)
            self._distribute(None)
            self._filter(QUEUE_FILTERS)
            return
        try:
            node: NodeAddress = parse_address(self.address)
        except InvalidAddress as error:
            raise InvalidArgument(str(error)) from None
        create_if_missing(connection, node, "read")
        virtual_host = connection.virtual_host
        if node.kind == MANAGEMENT:
            self.is_management = True
        elif node.kind == QUEUE or (node.kind == PLAIN and node.name in virtual_host.queues):
            queue = virtual_host.queue(node.name, connection)
            connection.check_permission("read", "queue", node.name)
            check_consumer(self.connection, queue)
            self._distribute(queue)
            self._filter(STREAM_FILTERS if queue.is_append_only else QUEUE_FILTERS)
            self._known = queue
        elif node.kind == EXCHANGE_NODE or (node.kind == PLAIN and node.name in virtual_host.exchanges):
            self._check_subscription(node)
        else:
            raise NotFound(f"no queue or exchange '{node.name}' in vhost '{virtual_host.name}'")

    def open(self, terminus: Terminus) -> None:
        """Create what it needs, and find its queue. Raises an error of the model; then nothing has changed."""
        self.terminus = terminus
        if self._dynamic is not None:
            self.queue = self._dynamic.make(terminus, self.asked.capabilities)
        elif self._known is not None:
            self.queue = self._known
            join_lifetime(self.connection, terminus, self.queue)
        elif self.is_management:
            self.queue = response_queue(self.connection)
        else:
            self.queue = self._subscribe()

    def _filter(self, kind: str) -> None:
        try:
            self.filters = read_filters(self.asked.filter, kind)
            self.capabilities = supported_filters(kind)
        except FilterError as error:
            raise link_fault(error.condition, str(error)) from None

    def _distribute(self, queue: Queue | None) -> None:
        """A stream always copies. A queue moves its messages, or copies them."""
        mode = self.asked.distribution_mode
        if queue is not None and queue.is_append_only:
            if mode == DISTRIBUTION_MOVE:
                raise link_fault(NOT_IMPLEMENTED, f"stream '{queue.name}' keeps its messages: it cannot move them")
            mode = DISTRIBUTION_COPY
        elif mode == DISTRIBUTION_COPY:
            self.copies = True
        if mode not in {None, DISTRIBUTION_MOVE, DISTRIBUTION_COPY}:
            raise link_fault(INVALID_FIELD, f"'{mode}' is not a distribution-mode")
        self.distribution_mode = mode or DISTRIBUTION_MOVE

    def _check_subscription(self, node: NodeAddress) -> None:
        """All subscribers of an exchange get a copy of each message."""
        mode = self.asked.distribution_mode
        if mode not in {None, DISTRIBUTION_COPY}:
            raise link_fault(
                NOT_IMPLEMENTED, "an exchange gives each of its subscribers a copy: it cannot move messages"
            )
        self.distribution_mode = DISTRIBUTION_COPY
        connection = self.connection
        exchange = connection.virtual_host.exchange(node.name)
        connection.check_permission("read", "exchange", node.name)
        self._filter(EXCHANGE_FILTERS)
        bindings = self.filters.bindings
        if node.key is not None:
            bindings = [(node.key, {})]
        elif not bindings:
            bindings = [("#" if isinstance(exchange, TopicExchange) else "", {})]
        for key, _ in bindings:
            connection.check_topic("read", node.name, key)
        self._exchange = node.name
        self._bindings = bindings

    def _subscribe(self) -> Queue:
        """The link's own queue, bound to the exchange."""
        virtual_host = self.connection.virtual_host
        queue = subscription_queue(self.connection, self.terminus, durable=self.asked.durable != DURABLE_NONE)
        before = {binding.key: binding for binding in queue.bindings.values()}
        wanted = {
            binding.key: binding
            for binding in (
                Binding(self._exchange, queue.name, BOUND_QUEUE, key, arguments) for key, arguments in self._bindings
            )
        }
        try:
            for binding in wanted.values():
                virtual_host.bind_queue(queue, self._exchange, binding.routing_key, binding.arguments)
        except ModelError:
            self._unbind(queue, [binding for key, binding in wanted.items() if key not in before])
            raise
        # When it was attached before, the link may have had other filters.
        self._unbind(queue, [binding for key, binding in before.items() if key not in wanted])
        return queue

    def _unbind(self, queue: Queue, bindings: list[Binding]) -> None:
        for binding in bindings:
            self.connection.virtual_host.unbind(
                BOUND_QUEUE, queue.name, binding.source, binding.routing_key, binding.arguments
            )

    def _kinds(self) -> tuple[Symbol, ...]:
        if self.is_management:
            return ()
        if self.is_for_replies:
            return (Symbol(VOLATILE),)
        kind = "exchange" if self._exchange else "queue"
        return node_capabilities(self.connection, self.asked.capabilities, kind, None if self._exchange else self.queue)

    def answer(self) -> Source:
        """The source of our attach: what is in force."""
        terminus = self.terminus
        return Source(
            address=self.address,
            durable=terminus.durable,
            expiry_policy=terminus.expiry_policy,
            timeout=terminus.timeout_s,
            dynamic=self.asked.dynamic,
            dynamic_node_properties=self.properties,
            distribution_mode=self.distribution_mode,
            filter=self.filters.in_force or None,
            default_outcome=self.default_outcome.state,
            outcomes=tuple(Symbol(name) for name in self.outcomes),
            capabilities=(*self._kinds(), *self.capabilities),
        )


def _priority(properties: dict[str, object]) -> int:
    priority = properties.get(PRIORITY_PROPERTY, 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 1 << 31:
        raise link_fault(INVALID_FIELD, f"{PRIORITY_PROPERTY} is a 32-bit integer, not {priority!r}")
    return int(priority)


def _outcomes(asked: Source) -> tuple[str, ...]:
    """The requested outcomes, all that there are if none was requested. Raises a link fault for an unknown one."""
    for name in asked.outcomes:
        if name not in ALL:
            raise link_fault(INVALID_FIELD, f"'{name}' is not an outcome that messages can have here")
    return tuple(str(name) for name in asked.outcomes) or ALL


def _default_outcome(state: object) -> Outcome:
    if state is None:
        return DEFAULT_OUTCOME
    if isinstance(state, COMPOSITE) and isinstance(state, (Accepted, Rejected, Released, Modified)):
        return Outcome(state)
    name = state.NAME if isinstance(state, COMPOSITE) else repr(state)
    raise link_fault(INVALID_FIELD, f"{name} is not an outcome that messages can have here")
