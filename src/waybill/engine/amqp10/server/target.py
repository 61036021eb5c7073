"""The target of a link by which the peer sends: an exchange and key, an exchange, or the address of each message."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.address import EXCHANGE as EXCHANGE_NODE
from waybill.engine.amqp10.address import PLAIN, QUEUE, InvalidAddress, parse_address
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.auto_create import create_if_missing
from waybill.engine.amqp10.server.properties import PropertyFacts, text_at
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.model.errors import InvalidArgument, NotFound, PreconditionFailed
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.routing import Route

ROUTE_LIMIT: Final = 4096
ROUTING_KEY_MAX: Final = 4096


class TargetNode:
    """`route`: the route of all messages while its epoch is that of the virtual host; None if each has its own.

    Without an address this is the anonymous terminus, and each message has its address in `to`. Otherwise `node_kind`
    is "queue" or "exchange".
    """

    def __init__(self, connection: SessionHost, address: str | None) -> None:
        self.connection = connection
        self.is_anonymous = address is None
        self.route: Route | None = None
        self.queue: Queue | None = None
        self.node_kind = ""
        self.node_name = ""
        self._routes: dict[bytes, Route] = {}
        self._exchange = ""
        self._routing_key: str | None = None
        if address is not None:
            self._exchange, self._routing_key = self._resolve(address)
            self._name_node()
            if self._routing_key is not None:
                self.route = self._find(self._exchange, self._routing_key)

    def _name_node(self) -> None:
        queue = self.queue
        self.node_kind = "exchange" if queue is None else "queue"
        self.node_name = self._exchange if queue is None else queue.name

    def _resolve(self, address: str) -> tuple[str, str | None]:
        """The exchange and routing key of an address. Raises `InvalidArgument`, `NotFound`."""
        try:
            node = parse_address(address)
        except InvalidAddress as error:
            raise InvalidArgument(str(error)) from None
        create_if_missing(self.connection, node, "write")
        virtual_host = self.connection.virtual_host
        if node.kind == QUEUE or (node.kind == PLAIN and node.name in virtual_host.queues):
            self.queue = virtual_host.queue(node.name, self.connection)
            return "", node.name
        if node.kind in {EXCHANGE_NODE, PLAIN}:
            if node.name not in virtual_host.exchanges:
                raise NotFound(f"no {'exchange' if node.kind == EXCHANGE_NODE else 'queue or exchange'} '{node.name}' "
                               f"in vhost '{virtual_host.name}'")  # fmt: skip
            return node.name, node.key
        raise InvalidArgument(f"'{address}' takes no messages")

    def _find(self, exchange: str, routing_key: str) -> Route:
        connection = self.connection
        connection.check_permission("write", "exchange", exchange)
        connection.check_topic("write", exchange, routing_key)
        if len(routing_key) > ROUTING_KEY_MAX:
            raise InvalidArgument(f"a routing key of more than {ROUTING_KEY_MAX} characters")
        return connection.virtual_host.resolve(exchange, routing_key)

    def check(self) -> None:
        """Raises `AccessRefused` or `NotFound` if nothing can be published here."""
        if not self.is_anonymous and self._routing_key is None:
            self.connection.check_permission("write", "exchange", self._exchange)
            self.connection.virtual_host.resolve(self._exchange, "")

    def route_of(self, data: bytes, found: PropertyFacts) -> Route:
        """The route of one message. Raises an error of the model, also if the message lacks its address."""
        if self._routing_key is not None:
            self.route = self._find(self._exchange, self._routing_key)
            return self.route
        key = b""
        if self.is_anonymous:
            if found.to < 0:
                raise PreconditionFailed("a message to the anonymous terminus needs an address in `to`")
            key = data[found.to : found.to_end] + b"\0"
        if found.subject >= 0:
            key += data[found.subject : found.subject_end]
        route = self._routes.get(key)
        if route is not None and route.epoch == self.connection.virtual_host.epoch:
            return route
        subject = text_at(data, found.subject, found.subject_end) if found.subject >= 0 else ""
        if self.is_anonymous:
            exchange, fixed = self._resolve(text_at(data, found.to, found.to_end))
            route = self._find(exchange, subject if fixed is None else fixed)
        else:
            route = self._find(self._exchange, subject)
        if len(self._routes) >= ROUTE_LIMIT:
            self._routes.clear()
        self._routes[key] = route
        return route

    def match(self, route: Route, message: Message) -> list[Queue]:
        """The queues of a message that has annotations, or is routed by its headers. Raises DecodeError."""
        self.connection.host.runtime.work_left -= message.header_units()
        headers = AMQP10.checked_headers(message.content)
        routing_keys = [route.address.routing_key]
        copies = headers.get("CC")
        if isinstance(copies, list):
            routing_keys += [key for key in copies if isinstance(key, str)]
        if not route.by_headers and len(routing_keys) == 1:
            return route.queues
        for routing_key in routing_keys[1:]:
            self.connection.check_topic("write", route.exchange.name, routing_key)
        return self.connection.virtual_host.router.match(route.exchange, routing_keys, headers, message)

    def is_outrunning(self, limit: i64) -> bool:
        """Whether a queue of the route has consumers, and more than `limit` ready messages."""
        return self.route is not None and self.route.is_outrunning(limit)
