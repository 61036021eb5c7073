"""Inspects a broker without changing it: which queues and exchanges exist, and whether they have expected settings.

Each question uses its own channel, which a refusal closes. AMQP cannot show whether a binding exists.
"""

from typing import cast

from waybill.client.connection import Connection
from waybill.client.errors import NotFound, PreconditionFailed
from waybill.client.topology_methods import Arguments, QueueDeclared
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk
from waybill.wire.amqp091.octets import MAX_SHORT_STRING


class Inspector:
    """Inspects over one connection. All methods raise AccessRefused, ConnectionLost ... like declarations."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queue(self, name: str) -> QueueDeclared | None:
        """The message and consumer counts of a queue, None if it does not exist."""
        if not _is_name(name):
            return None
        try:
            reply = await self._connection.ask_aside(QueueDeclare(name, passive=True))
        except NotFound:
            return None
        declared = cast("QueueDeclareOk", reply)
        return QueueDeclared(declared.queue, declared.message_count, declared.consumer_count)

    async def has_exchange(self, name: str) -> bool:
        """Whether an exchange exists."""
        if not _is_name(name):
            return False
        try:
            await self._connection.ask_aside(ExchangeDeclare(name, passive=True))
        except NotFound:
            return False
        return True

    async def queue_difference(self, name: str, arguments: Arguments) -> str | None:
        """How an existing queue differs from a durable one with these arguments, in the broker's words.

        None if it does not. A missing queue would be declared: check first that it exists.
        """
        return await self._difference(QueueDeclare(name, durable=True, arguments=arguments))

    async def exchange_difference(self, name: str, kind: str, arguments: dict[str, object] | None = None) -> str | None:
        """How an existing exchange differs from a durable one of this type, as for queues."""
        return await self._difference(ExchangeDeclare(name, kind, durable=True, arguments=arguments or {}))

    async def _difference(self, method: Method) -> str | None:
        try:
            await self._connection.ask_aside(method)
        except PreconditionFailed as error:
            return error.text
        return None


def _is_name(name: str) -> bool:
    """Whether a broker can have anything of this name: it may come from a message that anyone has published."""
    return len(name.encode(errors="replace")) <= MAX_SHORT_STRING
