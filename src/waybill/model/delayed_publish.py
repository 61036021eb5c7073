"""Routes a delayed message that is due."""

from waybill.model.death_headers import routing_keys_of
from waybill.model.delay import DELAY, delay_ms_of
from waybill.model.exchange import Exchange
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.routing import Router


def publish_due(router: Router, exchange: Exchange, message: Message, now: float) -> None:
    """Publish with `x-delay` negated, so that no exchange on the way delays the message again.

    Raises ValueError for content that cannot be read or written, ModelError if it cannot be routed.
    """
    headers = message.format.headers(message.content)
    headers[DELAY] = -delay_ms_of(headers)
    routing_keys = routing_keys_of(message, headers)
    content = message.format.with_headers(message.content, {DELAY: headers[DELAY]}, [], keep_expiration=True)
    due = Message(message.format, content, message.address, message.durable, message.priority, message.ttl_ms, now)
    publish_to(router.match(exchange, routing_keys, headers, message), due)
