"""An independent eye on the wire: pika, which shares no code with us."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pika

T = TypeVar("T")

WAIT_SECONDS = 20.0
POLL_SECONDS = 0.02


class Message:
    """What pika has seen of a message."""

    def __init__(self, method: Any, properties: Any, body: bytes) -> None:
        self.exchange: str = method.exchange
        self.routing_key: str = method.routing_key
        self.redelivered: bool = method.redelivered
        self.properties = properties
        self.headers: dict[str, Any] = properties.headers or {}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class Eye:
    """A blocking pika channel used from an asyncio test: each call runs in a thread, one at a time."""

    def __init__(self, uri: str) -> None:
        parameters = pika.URLParameters(uri)
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self.channel: Any = None
        self.reopen()

    def reopen(self) -> None:
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

    async def get(self, queue: str) -> Message | None:
        """Take one message out of a queue."""
        method, properties, body = await self.call(lambda: self.channel.basic_get(queue, auto_ack=True))
        return None if method is None else Message(method, properties, body)

    async def wait_for(self, queue: str, seconds: float = WAIT_SECONDS) -> Message:
        """Take the next message out of a queue, waiting for it."""
        deadline = time.monotonic() + seconds
        while (message := await self.get(queue)) is None:
            assert time.monotonic() < deadline, f"nothing came to {queue}"
            await asyncio.sleep(POLL_SECONDS)
        return message

    async def exists(self, queue: str) -> bool:
        def declare() -> bool:
            try:
                self.channel.queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                self.reopen()
                return False
            return True

        return await self.call(declare)

    async def exchange_exists(self, exchange: str) -> bool:
        def declare() -> bool:
            try:
                self.channel.exchange_declare(exchange, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                self.reopen()
                return False
            return True

        return await self.call(declare)

    async def count(self, queue: str) -> int:
        declared = await self.call(lambda: self.channel.queue_declare(queue, passive=True))
        count: int = declared.method.message_count
        return count

    async def tap(self, exchange: str, key: str) -> str:
        """Bind a queue of our own; what is published with the key is copied there."""

        def declare() -> str:
            name: str = self.channel.queue_declare("", exclusive=True).method.queue
            self.channel.queue_bind(name, exchange, key)
            return name

        return await self.call(declare)

    async def refuses(self, queue: str, **changes: Any) -> bool:
        """Whether the broker answers 406 to a declaration of an existing queue with these properties."""
        declaration: dict[str, Any] = {"durable": True, "exclusive": False, "auto_delete": False} | changes

        def declare() -> bool:
            try:
                self.channel.queue_declare(queue, **declaration)
            except pika.exceptions.ChannelClosedByBroker as error:
                self.reopen()
                code: int = error.reply_code
                return code in {405, 406}
            return False

        return await self.call(declare)

    async def publish(self, exchange: str, key: str, body: bytes, **properties: Any) -> None:
        await self.call(
            lambda: self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=True)
        )

    @property
    def product(self) -> str:
        """What the broker calls itself."""
        implementation: Any = self._connection
        name: str = implementation._impl.server_properties["product"]
        return name

    def close(self) -> None:
        self._connection.close()


async def until(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait for a condition on our own side."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(POLL_SECONDS)
