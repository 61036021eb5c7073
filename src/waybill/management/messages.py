"""Publish a message to an exchange, and get messages from a queue."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable
from typing import Any, Final

from waybill.engine.access import check_topic
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.conversion.convert import Inconvertible, amqp091_content
from waybill.management.api_context import ApiContext, exchange_name, queue_of
from waybill.management.call import Answer, Call, flag_of, integer_of, require, table_of, text_of
from waybill.management.errors import Refused, bad_request, missing, refused_by_channel
from waybill.management.listing import Item, encode, plain
from waybill.management.router import Route
from waybill.model.binding import EXCHANGE, QUEUE
from waybill.model.entry import Entry
from waybill.model.errors import InvalidArgument, ModelError
from waybill.model.fan_out import FAN_OUT_MAX, FanOut, publish_to
from waybill.model.message import NO_TTL, Message
from waybill.model.permission import READ, WRITE
from waybill.model.queue import Queue
from waybill.model.runtime import Chore
from waybill.model.virtual_host import VirtualHost
from waybill.node.node import Node
from waybill.wire.amqp091.content import body_of, properties_of
from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.properties import PERSISTENT, BasicProperties

COUNT_MAX: Final = 10_000
ANSWER_MAX_BYTES: Final = 8 << 20
"""Of the messages in one answer, and one more message: a client asks again for the others."""
FRAME_MAX: Final = 131_072
ACK_MODES: Final = {
    "ack_requeue_true": True,
    "reject_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_false": False,
}
ENCODINGS: Final = frozenset({"auto", "base64"})
STRING_PROPERTIES: Final = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id"),
)
INTEGER_PROPERTIES: Final = ("delivery_mode", "priority", "timestamp")


class MessageRoutes:
    """The routes for messages."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", "/exchanges/{vhost}/{exchange}/publish", self._publish),
            Route("POST", "/queues/{vhost}/{queue}/get", self._get, is_large=True),
        ]

    # --- publishing ---

    async def _publish(self, call: Call) -> Item:
        host = self._context.writable_virtual_host(call)
        body = call.take_body()
        require(body, "properties", "routing_key", "payload", "payload_encoding")
        key = text_of(body, "routing_key")
        if len(key.encode("utf-8", "surrogateescape")) > 255:
            raise bad_request("routing_key must have at most 255 bytes")
        properties = _properties(body)
        if properties.user_id is not None and properties.user_id != call.principal.name:
            raise bad_request(
                f"406 PRECONDITION_FAILED - user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{call.principal.name}'"
            )
        content = _content(properties, _payload(body))
        routed: list[bool] = []

        def publish(node: Node) -> Chore | None:
            exchange = host.exchange(exchange_name(call["exchange"]))
            call.principal.check(host, WRITE, EXCHANGE, exchange.name)
            check_topic(call.principal.user, host, WRITE, exchange.name, key)
            route = host.resolve(exchange.name, key)
            ttl = int(properties.expiration) if properties.expiration is not None else NO_TTL
            message = Message(
                AMQP091,
                content,
                route.address,
                properties.delivery_mode == PERSISTENT,
                properties.priority or 0,
                ttl,
                node.runtime.now,
            )
            queues = self._targets(host, message, key, route.queues, is_by_headers=route.by_headers)
            exchange.routed(1, len(queues))
            if len(queues) > FAN_OUT_MAX:
                routed.append(True)
                return FanOut(node.runtime, queues, message)
            routed.append(bool(queues) and publish_to(queues, message))
            return None

        await self._performed(publish)
        return {"routed": routed[0]}

    async def _performed(self, change: Callable[[Node], object]) -> None:
        try:
            await self._context.perform(change)
        except ModelError as error:
            raise refused_by_channel(error) from None

    @staticmethod
    def _targets(
        host: VirtualHost, message: Message, key: str, known: list[Queue], *, is_by_headers: bool
    ) -> list[Queue]:
        headers = message.format.headers(message.content)
        if not is_by_headers and not headers.keys() & {"CC", "BCC"}:
            return known
        keys = [key]
        for name in ("CC", "BCC"):
            copies = headers.get(name, [])
            if not isinstance(copies, list) or not all(isinstance(one, str) for one in copies):
                raise InvalidArgument(f"the header {name} must be a list of strings")
            keys += copies
        if "BCC" in headers:
            message.content = message.format.with_headers(message.content, {}, ["BCC"], keep_expiration=True)
        return host.router.match(host.exchange(message.address.exchange), keys, headers)

    # --- getting ---

    async def _get(self, call: Call) -> Answer:
        call.principal.require_messages()
        host = self._context.writable_virtual_host(call)
        queue = queue_of(host, call["queue"])
        body = call.take_body()
        require(body, "count", "encoding")
        count = integer_of(body, "count")
        if not 0 <= count <= COUNT_MAX:
            raise bad_request(f"count must be between 0 and {COUNT_MAX}")
        requeues = _requeues(body)
        encoding = text_of(body, "encoding")
        if encoding not in ENCODINGS:
            raise bad_request(f"Unsupported encoding: {encoding}. Please use one of: auto, base64")
        truncate = integer_of(body, "truncate", -1) if body.get("truncate") is not None else -1
        pieces: list[bytes] = []

        def get(_node: Node) -> None:
            call.principal.check(host, READ, QUEUE, queue.name)
            host.queue(queue.name, None)
            queue.touch()
            entries = _taken(queue, count, requeues=requeues)
            left = queue.message_count + len(entries)
            for index, (entry, content) in enumerate(entries):
                left -= 1
                pieces.extend([b",", encode(_item(entry, content, left, encoding, truncate))])
                entries[index] = entry, b""
            if requeues:
                for entry, _ in reversed(entries):
                    queue.release(entry, failed=False)

        await self._performed(get)
        pieces[:1] = [b"["]
        return Answer(200, octets=b"".join([*pieces, b"]"]))


def _taken(queue: Queue, count: int, *, requeues: bool) -> list[tuple[Entry, bytes]]:
    """Get messages from a queue, to acknowledge or to requeue them."""
    found: list[tuple[Entry, bytes]] = []
    size = 0
    while len(found) < count and size < ANSWER_MAX_BYTES:
        entry = queue.take(not requeues)
        if entry is None:
            break
        try:
            content = amqp091_content(entry.message)
        except Inconvertible:
            # It cannot be converted to AMQP 0-9-1: leave it in the queue.
            if requeues:
                found.append((entry, b""))
            continue
        size += len(content)
        found.append((entry, content))
    return found


def _item(entry: Entry, content: bytes, left: int, encoding: str, truncate: int) -> Item:
    address = entry.message.address
    try:
        properties, payload = properties_of(content), body_of(content)
    except DecodeError:
        properties, payload = BasicProperties(), entry.message.content
    shown = payload if truncate < 0 else payload[:truncate]
    text = base64.b64encode(shown).decode()
    used = "base64"
    if encoding == "auto":
        with contextlib.suppress(UnicodeDecodeError):
            text, used = shown.decode(), "string"
    return {
        "exchange": address.exchange,
        "message_count": left,
        "payload": text,
        "payload_bytes": len(payload),
        "payload_encoding": used,
        "properties": {
            name: plain(value) for name, value in properties_by_name(properties).items() if value is not None
        },
        "redelivered": entry.redelivered,
        "routing_key": address.routing_key,
    }


def properties_by_name(properties: BasicProperties) -> Item:
    """Return the properties of a message by name."""
    return {name: getattr(properties, name) for name in (*STRING_PROPERTIES, *INTEGER_PROPERTIES, "headers")}


def _requeues(body: dict[str, Any]) -> bool:
    mode = body.get("ackmode")
    if mode is None:
        # Clients written for RabbitMQ before 3.7 send this field.
        if body.get("requeue") is None:
            raise missing("ackmode")
        return flag_of(body, "requeue")
    if not isinstance(mode, str) or mode not in ACK_MODES:
        raise bad_request(f"ackmode must be one of {', '.join(ACK_MODES)}")
    return ACK_MODES[mode]


def _payload(body: dict[str, Any]) -> bytes:
    """Take the payload out of a body: both together may have megabytes. Raises Refused."""
    text = text_of(body, "payload")
    del body["payload"]
    encoding = text_of(body, "payload_encoding")
    if encoding == "string":
        return text.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise bad_request(f"Unsupported encoding: {encoding}. Please use one of: string, base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("payload is not base64") from None


def _properties(body: dict[str, Any]) -> BasicProperties:
    given = table_of(body, "properties")
    found = BasicProperties()
    for name in STRING_PROPERTIES:
        value = given.get(name)
        if value is not None:
            if name == "expiration" and isinstance(value, int):
                value = str(value)
            if not isinstance(value, str):
                raise bad_request(f"{name} must be a string")
            setattr(found, name, value)
    for name in INTEGER_PROPERTIES:
        if given.get(name) is not None:
            value = integer_of(given, name)
            if not 0 <= value <= (255 if name != "timestamp" else 2**63 - 1):
                raise bad_request(f"{name} is out of range")
            setattr(found, name, value)
    if given.get("headers"):
        found.headers = table_of(given, "headers")
    if found.expiration is not None and not (found.expiration.isdecimal() and len(found.expiration) < 19):
        raise bad_request(f"invalid expiration '{found.expiration}': not a number of milliseconds")
    return found


def _content(properties: BasicProperties, payload: bytes) -> bytes:
    """Return the encoded message. Raises Refused."""
    try:
        return content_frames(1, properties, payload, FRAME_MAX)
    except EncodeError as error:
        raise Refused(400, f"invalid_properties: {error}", "bad_request") from None
