"""An asyncio client for AMQP 0-9-1 brokers. It reconnects, and restores channels, consumers and declarations.

    from waybill.client import connect

    async with connect("amqp://guest:guest@localhost:5672/%2Fojs", name="example") as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("greetings", durable=True)
        await channel.publish(b"hello", routing_key="greetings")

Programs without an event loop use `waybill.client.blocking`.
"""

from waybill.client.channel import Channel
from waybill.client.connection import Connection, connect
from waybill.client.consumer import Consumer
from waybill.client.errors import (
    AccessRefused,
    AuthenticationFailed,
    ChannelClosed,
    ClientError,
    CommandInvalid,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    MessageNacked,
    MessageReturned,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    PublishTimeout,
    QueueFull,
    RequestTimeout,
    ResourceLocked,
    WrongEventLoop,
)
from waybill.client.inspection import Inspector
from waybill.client.pool import ChannelPool, ConnectionPool
from waybill.client.publishing import OutgoingMessage, Unpublished
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.topology_methods import QueueDeclared
from waybill.client.uri import InvalidURI
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage, copied_delivery
from waybill.wire.amqp091.errors import EncodeError
from waybill.wire.amqp091.properties import BasicProperties

__all__ = [
    "AccessRefused",
    "AuthenticationFailed",
    "BasicProperties",
    "Channel",
    "ChannelClosed",
    "ChannelPool",
    "ClientError",
    "CommandInvalid",
    "ConnectFailed",
    "Connection",
    "ConnectionClosed",
    "ConnectionLost",
    "ConnectionPool",
    "Consumer",
    "Delivery",
    "EncodeError",
    "Inspector",
    "InvalidURI",
    "MessageNacked",
    "MessageReturned",
    "NotAllowed",
    "NotFound",
    "OutgoingMessage",
    "PreconditionFailed",
    "ProtocolError",
    "PublishTimeout",
    "QueueDeclared",
    "QueueFull",
    "ReconnectPolicy",
    "RequestTimeout",
    "ResourceLocked",
    "ReturnedMessage",
    "Unpublished",
    "WrongEventLoop",
    "connect",
    "copied_delivery",
]
