"""The decoded header segment of a transfer and the route of its message, shared by messages with the same header."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.message_format import AMQP010, DEFAULT_PRIORITY, SIZE_OCTETS
from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import Queue
from waybill.model.routing import Route
from waybill.wire.amqp010.constants import ERROR_UNAUTHORIZED_ACCESS, MODE_NON_PERSISTENT, MODE_PERSISTENT
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.message_header import (
    ABSENT,
    EXPIRATION,
    RESUME_ID,
    RESUME_TTL,
    TIMESTAMP,
    HeaderFacts,
    scan_header,
)

KEPT_FLAGS: Final = TIMESTAMP | EXPIRATION | RESUME_ID | RESUME_TTL
TTL_MAX_MS: Final = 1 << 53
IMPERSONATOR: Final = "impersonator"
OUTRUN: Final = 8192
HEADER_UNIT_BITS: Final = 5


class TransferEnvelope:
    """`prefix` is the content of a message before its body. `is_lasting`: it does not depend on the time."""

    def __init__(self, exchange: str, facts: HeaderFacts, header: bytes, ttl_ms: i64) -> None:
        self.exchange = exchange
        self.routing_key = facts.routing_key
        kept = _kept_delivery(header, facts)
        start = facts.delivery
        end = facts.delivery_end
        self.prefix = _sized(header if start == ABSENT else kept + header[:start] + header[end:])
        self.durable = facts.delivery_mode == MODE_PERSISTENT
        self.priority: i64 = DEFAULT_PRIORITY if facts.priority == ABSENT else facts.priority
        self.ttl_ms: i64 = ttl_ms
        self.discards = facts.discard_unroutable
        self.immediate = facts.immediate
        self.is_lasting = facts.expiration == ABSENT
        # See `adapt`. No octets: it cannot be adapted.
        self._delivery = header[:end] if start == 0 and self.is_lasting else b""
        self._kept = kept
        self._user_id = facts.user_id
        self.route: Route | None = None
        self.epoch: i64 = 0
        self.stores = False

    def adapt(self, header: bytes, facts: HeaderFacts) -> bool:
        """Use it for a header segment that has the same delivery-properties and user, but may differ otherwise.

        False if they differ, or the segment is malformed.
        """
        size: i64 = len(self._delivery)
        if size == 0 or header[:size] != self._delivery:
            return False
        try:
            scan_header(header, facts, size)
        except DecodeError:
            return False
        if facts.delivery != ABSENT or facts.user_id != self._user_id:
            return False
        self.prefix = _sized(self._kept + header[size:])
        return True

    def resolve(self, connection: SessionHost) -> Route:
        """The route, valid until the topology changes. Raises the error that forbids the user to publish this way."""
        route = self.route
        virtual_host = connection.virtual_host
        if route is not None and self.epoch == virtual_host.epoch:
            return route
        connection.check_permission("write", "exchange", self.exchange)
        connection.check_topic("write", self.exchange, self.routing_key)
        route = virtual_host.resolve(self.exchange, self.routing_key)
        self.route = route
        self.epoch = virtual_host.epoch
        self.stores = any(queue.stores_transient for queue in route.queues)
        return route

    def message(self, route: Route, body: bytes, now: float) -> Message:
        return Message(AMQP010, self.prefix + body, route.address, self.durable, self.priority, self.ttl_ms, now)

    def queues_of(self, connection: SessionHost, route: Route, message: Message) -> list[Queue]:
        """The queues of one message."""
        if not route.by_headers:
            return route.queues
        connection.host.runtime.work_left -= len(self.prefix) >> HEADER_UNIT_BITS
        headers = AMQP010.headers(message.content)
        return connection.virtual_host.router.match(route.exchange, [self.routing_key], headers, message)

    def is_outrunning(self) -> bool:
        """Whether one of its queues has consumers, and a backlog that they do not keep up with."""
        return self.route is not None and self.route.is_outrunning(OUTRUN)


def read_envelope(connection: SessionHost, exchange: str, header: bytes) -> TransferEnvelope:
    """Raises DecodeError, and a session fault if the message claims to come from another user."""
    facts = connection.facts
    scan_header(header, facts)
    user_id = facts.user_id
    if user_id is not None and IMPERSONATOR not in connection.user.tags:
        claimed = user_id.decode("utf-8", "replace")
        name = connection.user_name
        if claimed not in {name, ""}:
            raise session_fault(ERROR_UNAUTHORIZED_ACCESS, f"user-id is '{claimed}' but the user is '{name}'")
    return TransferEnvelope(exchange, facts, header, _ttl_ms(facts, connection.host.runtime.now))


def _kept_delivery(header: bytes, facts: HeaderFacts) -> bytes:
    """Return the struct of delivery-properties if it has values that no field of a message has; else nothing."""
    start = facts.delivery
    if start == ABSENT:
        return b""
    flags = header[start + 6] << 8 | header[start + 7]
    # An explicit non-persistent mode and an absent one are the same in the model, but not to clients.
    is_kept = flags & KEPT_FLAGS or facts.delivery_mode == MODE_NON_PERSISTENT
    return header[start : facts.delivery_end] if is_kept else b""


def _sized(header: bytes) -> bytes:
    """Return the content of a message before its body."""
    return len(header).to_bytes(SIZE_OCTETS, "big") + header


def _ttl_ms(facts: HeaderFacts, now: float) -> i64:
    """The time to live. As in Qpid, 0 is none."""
    ttl_ms: i64 = NO_TTL
    if facts.ttl_ms > 0:
        ttl_ms = min(facts.ttl_ms, TTL_MAX_MS)
    if facts.expiration > 0:
        left = i64(int((float(min(facts.expiration, TTL_MAX_MS)) - now) * 1000.0))
        left = max(left, 0)
        ttl_ms = left if ttl_ms == NO_TTL else min(ttl_ms, left)
    return ttl_ms
