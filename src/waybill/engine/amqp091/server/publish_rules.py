"""The checks of a publish, and its destination: once per route, or per message with unusual properties."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp091.server.channel_host import ChannelHost
from waybill.engine.amqp091.server.faults import BASIC, PUBLISH, channel_fault
from waybill.engine.amqp091.server.publish_route import PublishRoute
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.routing import Route
from waybill.wire.amqp091.content import ContentFacts, properties_of
from waybill.wire.amqp091.reply_codes import PRECONDITION_FAILED

COPIES: Final = ["CC", "BCC"]
MAX_EXPIRATION_DIGITS: Final = 18


def resolve(connection: ChannelHost, published: PublishRoute) -> None:
    """The route of messages published this way, valid until the topology changes."""
    connection.check_permission("write", "exchange", published.exchange)
    connection.check_topic("write", published.exchange, published.routing_key)
    virtual_host = connection.virtual_host
    route = virtual_host.resolve(published.exchange, published.routing_key)
    published.route = route
    published.takes_runs = not route.by_headers and len(route.queues) == 1
    published.epoch = virtual_host.epoch
    published.is_durable = any(queue.stores_transient for queue in route.queues)


def has_copies(data: bytes, facts: ContentFacts) -> bool:
    """Whether there may be a header CC or BCC: searches the octets of the whole table."""
    return data.find(b"CC", int(facts.headers_offset), int(facts.headers_offset + facts.headers_size)) >= 0


def route_by_headers(connection: ChannelHost, route: Route, message: Message) -> list[Queue]:
    runtime = connection.host.runtime
    runtime.work_left -= message.header_units()
    headers = AMQP091.headers(message.content) if route.by_headers else AMQP091.some_headers(message.content, COPIES)
    routing_keys = [route.address.routing_key]
    for name in COPIES:
        copies = headers.get(name)
        if copies is None:
            continue
        if not isinstance(copies, list) or not all(isinstance(key, str) for key in copies):
            raise channel_fault(PRECONDITION_FAILED, f"the header {name} must be a list of strings", BASIC, PUBLISH)
        routing_keys += copies
    for routing_key in routing_keys[1:]:
        connection.check_topic("write", route.exchange.name, routing_key)
    if "BCC" in headers:
        runtime.work_left -= message.header_units()
        message.content = AMQP091.with_headers(message.content, {}, ["BCC"], keep_expiration=True)
    return connection.virtual_host.router.match(route.exchange, routing_keys, headers, message)


def expiration_ms(text: bytes) -> i64:
    if not text.isdigit() or len(text) > MAX_EXPIRATION_DIGITS:
        shown = text.decode("utf-8", "replace")
        raise channel_fault(
            PRECONDITION_FAILED, f"invalid expiration '{shown}': not a number of milliseconds", BASIC, PUBLISH
        )
    return i64(int(text))


def check_user_id(connection: ChannelHost, content: bytes) -> None:
    """Raises a channel fault if a message claims to come from another user."""
    claimed = properties_of(content).user_id
    name = connection.user_name
    if claimed != name and "impersonator" not in connection.user.tags:
        raise channel_fault(
            PRECONDITION_FAILED,
            f"user_id property set to '{claimed}' but authenticated user was '{name}'",
            BASIC,
            PUBLISH,
        )
