"""Looking at a broker without leaving a trace: what is there, and is it as we would declare it.

Each question goes over a channel of its own, which a refusal closes. What AMQP cannot answer, such as whether a binding
exists, is not answered here.
"""

from typing import cast

from waybill.client.connection import Connection
from waybill.client.errors import NotFound, PreconditionFailed
from waybill.client.topology_methods import Arguments, QueueDeclared
from waybill.wire.amqp091.methods import ExchangeDeclare, Method, QueueDeclare, QueueDeclareOk


class Inspector:
    """Asks over one connection. All methods raise AccessRefused, ConnectionLost ... as declarations do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queue(self, name: str) -> QueueDeclared | None:
        """What is in a queue, None if there is none of this name."""
        try:
            reply = await self._connection.ask_aside(QueueDeclare(name, passive=True))
        except NotFound:
            return None
        declared = cast("QueueDeclareOk", reply)
        return QueueDeclared(declared.queue, declared.message_count, declared.consumer_count)

    async def has_exchange(self, name: str) -> bool:
        """Whether there is an exchange of this name."""
        try:
            await self._connection.ask_aside(ExchangeDeclare(name, passive=True))
        except NotFound:
            return False
        return True

    async def queue_difference(self, name: str, arguments: Arguments) -> str | None:
        """In what an existing queue differs from a durable one with these arguments, in the broker's words.

        None if it does not. A queue that is not there would be made: ask for it first.
        """
        return await self._difference(QueueDeclare(name, durable=True, arguments=arguments))

    async def exchange_difference(self, name: str, kind: str, arguments: dict[str, object] | None = None) -> str | None:
        """The same for a durable exchange of a type."""
        return await self._difference(ExchangeDeclare(name, kind, durable=True, arguments=arguments or {}))

    async def _difference(self, method: Method) -> str | None:
        try:
            await self._connection.ask_aside(method)
        except PreconditionFailed as error:
            return error.text
        return None
