"""Connections and channels: /api/connections, /api/channels, also of a virtual host or a user."""

from __future__ import annotations

from typing import Final

from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.amqp10.server.connection import Connection as Amqp10Connection
from waybill.engine.connection_state import OPEN
from waybill.engine.server_connection import ServerConnection
from waybill.management.api_context import (
    ApiContext,
    channel_name,
    channels_of,
    connection_details,
    connection_name,
    local_address,
    split_address,
)
from waybill.management.call import NO_CONTENT, Answer, Call
from waybill.management.consumers import consumer_details
from waybill.management.errors import not_authorised, not_found
from waybill.management.listing import Item, Listing, cut_to_columns, plain
from waybill.management.rates import Spans, details, message_stats, spans_of
from waybill.management.router import Route
from waybill.management.sampler import connection_key
from waybill.management.statistic_kinds import CHANNELS, CONNECTIONS
from waybill.node.node import Node

GARBAGE_COLLECTION: Final = {
    "fullsweep_after": 65535,
    "max_heap_size": 0,
    "min_bin_vheap_size": 46422,
    "min_heap_size": 233,
    "minor_gcs": 0,
}
"""Fields that only Erlang has; clients require them."""
REASON: Final = "Closed via management plugin"
REASON_MAX: Final = 200


class ConnectionRoutes:
    """The routes for connections and channels."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/connections", self._connections, is_large=True),
            Route("GET", "/connections/{connection}", self._connection),
            Route("DELETE", "/connections/{connection}", self._close),
            Route("GET", "/connections/{connection}/channels", self._channels_of_connection),
            Route("GET", "/connections/{connection}/sessions", self._sessions),
            Route("GET", "/connections/username/{user}", self._connections_of_user, is_large=True),
            Route("DELETE", "/connections/username/{user}", self._close_all),
            Route("GET", "/vhosts/{vhost}/connections", self._connections, is_large=True),
            Route("GET", "/channels", self._channels, is_large=True),
            Route("GET", "/channels/{channel}", self._channel),
            Route("GET", "/vhosts/{vhost}/channels", self._channels, is_large=True),
        ]

    # --- connections ---

    def _seen(self, call: Call) -> list[ServerConnection]:
        engines = self._context.connections(call.principal)
        if "vhost" in call.parameters:
            host = self._context.virtual_host(call)
            engines = [engine for engine in engines if engine.virtual_host is host]
        return engines

    async def _connections(self, call: Call) -> Answer:
        return await self._listed(call, self._seen(call))

    async def _connections_of_user(self, call: Call) -> Answer:
        engines = self._context.connections(call.principal)
        return await self._listed(call, [engine for engine in engines if engine.user_name == call["user"]])

    async def _listed(self, call: Call, engines: list[ServerConnection]) -> Answer:
        spans = spans_of(call.query)
        listing = Listing[ServerConnection](
            lambda engine: self._item(engine, spans),
            {
                "name": connection_name,
                "user": lambda engine: engine.user_name,
                "vhost": lambda engine: engine.virtual_host.name,
                "protocol": lambda engine: engine.protocol,
                "connected_at": lambda engine: engine.connected_at,
                "channels": channel_count,
                "state": self._state,
            },
            tie=connection_name,
        )
        return await listing.answer(call, engines)

    def _find(self, call: Call) -> ServerConnection:
        for engine in self._context.node.connections:
            if isinstance(engine, ServerConnection) and connection_name(engine) == call["connection"]:
                if not (call.principal.is_monitor or engine.user_name == call.principal.name):
                    raise not_authorised("User not authorised to access object")
                return engine
        raise not_found()

    async def _connection(self, call: Call) -> Item:
        return cut_to_columns(call.query, self._item(self._find(call), spans_of(call.query)))

    def _item(self, engine: ServerConnection, spans: Spans) -> Item:
        peer_host, peer_port = split_address(engine.peer_address)
        host, port = split_address(local_address(engine))
        sampler = self._context.sampler
        series = sampler.series(CONNECTIONS, connection_key(engine))
        span = spans.data_rates
        properties = client_properties(engine)
        item: Item = {
            "auth_mechanism": engine.mechanism,
            "channel_max": int(engine.channel_max) if isinstance(engine, Amqp091Connection | Amqp10Connection) else 0,
            "channels": channel_count(engine),
            "client_properties": properties,
            "connected_at": int(engine.connected_at * 1000),
            "frame_max": _frame_max(engine),
            "garbage_collection": GARBAGE_COLLECTION,
            "host": host,
            "name": connection_name(engine),
            "node": self._context.node_name,
            "peer_cert_issuer": None,
            "peer_cert_subject": None,
            "peer_cert_validity": None,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "port": port,
            "protocol": engine.protocol,
            "recv_cnt": int(engine.received_count),
            "recv_oct": int(engine.received_octets),
            "recv_oct_details": details(series, (0,), sampler.now, span),
            "reductions": 0,
            "reductions_details": {"rate": 0.0},
            "send_cnt": int(engine.sent_count),
            "send_oct": int(engine.sent_octets),
            "send_oct_details": details(series, (1,), sampler.now, span),
            "send_pend": len(engine.out),
            "state": self._state(engine),
            "timeout": int(engine.receive_timeout_s / 2),
            "type": "network",
            "user": engine.user_name,
            "user_who_performed_action": engine.user_name,
            "vhost": engine.virtual_host.name,
            **_tls(engine),
        }
        name = properties.get("connection_name") if isinstance(properties, dict) else None
        if isinstance(name, str):
            item["user_provided_name"] = name
        if isinstance(engine, Amqp10Connection):
            item["container_id"] = engine.container_id
        return item

    def _state(self, engine: ServerConnection) -> str:
        if engine.state != OPEN:
            return "closing"
        if not engine.is_reading_paused:
            return "running"
        return "blocked" if self._context.node.alarm else "flow"

    async def _close(self, call: Call) -> Answer:
        engine = self._find(call)
        if not (call.principal.is_administrator or engine.user_name == call.principal.name):
            raise not_authorised("Not administrator user")
        await self._shut([engine], call)
        return Answer(NO_CONTENT)

    async def _close_all(self, call: Call) -> Answer:
        if call["user"] != call.principal.name:
            call.principal.require_administrator()
        engines = [
            engine
            for engine in self._context.node.connections
            if isinstance(engine, ServerConnection) and engine.user_name == call["user"]
        ]
        await self._shut(engines, call)
        return Answer(NO_CONTENT)

    async def _shut(self, engines: list[ServerConnection], call: Call) -> None:
        reason = call.request.headers.get("x-reason", "")[:REASON_MAX] or REASON

        def shut(_node: Node) -> None:
            for engine in engines:
                engine.shut_down(reason)

        await self._context.perform(shut)

    # --- channels ---

    async def _channels(self, call: Call) -> Answer:
        return await self._listed_channels(call, list(channels_of(self._seen(call))))

    async def _channels_of_connection(self, call: Call) -> Answer:
        return await self._listed_channels(call, list(channels_of([self._find(call)])))

    async def _listed_channels(self, call: Call, channels: list[Channel]) -> Answer:
        spans = spans_of(call.query)
        listing = Listing[Channel](
            lambda channel: self._channel_item(channel, spans),
            {
                "name": channel_name,
                "number": lambda channel: int(channel.number),
                "user": lambda channel: channel.connection.user_name,
                "vhost": lambda channel: channel.connection.virtual_host.name,
                "messages_unacknowledged": lambda channel: int(channel.unsettled_count),
                "consumer_count": lambda channel: len(channel.consumers),
                "prefetch_count": lambda channel: int(channel.default_prefetch),
            },
            tie=channel_name,
        )
        return await listing.answer(call, channels)

    async def _channel(self, call: Call) -> Item:
        name, _, number = call["channel"].rpartition(" (")
        for engine in self._context.connections(call.principal):
            if isinstance(engine, Amqp091Connection) and connection_name(engine) == name:
                for channel in engine.channels.values():
                    if f"{int(channel.number)})" == number:
                        item = self._channel_item(channel, spans_of(call.query))
                        consumers = ((consumer, consumer.queue) for consumer in channel.consumers.values())
                        item["consumer_details"] = consumer_details(
                            consumers, engine.virtual_host.name, self._context.node_name
                        )
                        item["deliveries"] = []
                        item["publishes"] = []
                        return cut_to_columns(call.query, item)
        raise not_found()

    def _channel_item(self, channel: Channel, spans: Spans) -> Item:
        engine = channel.connection
        confirms, transaction = channel.confirms, channel.transaction
        confirmed = 0 if confirms is None else int(confirms.confirmed_tag)
        row = (
            int(channel.publish_count),
            confirmed,
            int(channel.delivery_tag),
            int(channel.acknowledged_count),
        )
        sampler = self._context.sampler
        series = sampler.series(CHANNELS, (*connection_key(engine), str(int(channel.number))))
        item: Item = {
            "acks_uncommitted": 0 if transaction is None else len(transaction.outcomes),
            "confirm": confirms is not None,
            "connection_details": connection_details(engine),
            "consumer_count": len(channel.consumers),
            "garbage_collection": GARBAGE_COLLECTION,
            "global_prefetch_count": int(channel.prefetch),
            "messages_unacknowledged": int(channel.unsettled_count),
            "messages_uncommitted": 0 if transaction is None else len(transaction.publishes),
            "messages_unconfirmed": 0 if confirms is None else int(confirms.publish_count) - confirmed,
            "name": channel_name(channel),
            "node": self._context.node_name,
            "number": int(channel.number),
            "pending_raft_commands": 0,
            "prefetch_count": int(channel.default_prefetch),
            "reductions": 0,
            "reductions_details": {"rate": 0.0},
            "state": "running" if channel.is_flowing else "flow",
            "transactional": transaction is not None,
            "user": engine.user_name,
            "user_who_performed_action": engine.user_name,
            "vhost": engine.virtual_host.name,
        }
        stats = message_stats(CHANNELS, row, series, sampler.now, spans.msg_rates)
        if stats:
            item["message_stats"] = stats
        return item

    async def _sessions(self, call: Call) -> list[Item]:
        """Return the sessions of an AMQP 1.0 connection, as RabbitMQ 4 does."""
        engine = self._find(call)
        if not isinstance(engine, Amqp10Connection):
            return []
        return [{"channel_number": int(number)} for number in engine.sessions]


def channel_count(engine: ServerConnection) -> int:
    """Return the number of channels or sessions of a connection."""
    if isinstance(engine, Amqp091Connection):
        return len(engine.channels)
    return len(engine.sessions) if isinstance(engine, Amqp10Connection) else 0


def client_properties(engine: ServerConnection) -> object:
    """Return the client properties."""
    if isinstance(engine, Amqp091Connection):
        return plain(engine.client_properties)
    return {"product": engine.container_id} if isinstance(engine, Amqp10Connection) else {}


def _frame_max(engine: ServerConnection) -> int:
    if isinstance(engine, Amqp091Connection):
        return int(engine.frame_max)
    return int(engine.peer_max_frame_size) if isinstance(engine, Amqp10Connection) else 0


def _tls(engine: ServerConnection) -> Item:
    transport = engine.transport
    cipher = getattr(getattr(transport, "pump", None), "cipher", None)
    is_secure = isinstance(cipher, tuple)
    return {
        "ssl": is_secure,
        "ssl_cipher": cipher[0] if isinstance(cipher, tuple) else None,
        "ssl_hash": None,
        "ssl_key_exchange": None,
        "ssl_protocol": cipher[1] if isinstance(cipher, tuple) else None,
    }
