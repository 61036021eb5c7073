"""A server that does what a test says, to see what becomes of a client that meets it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

from waybill.wire.amqp091.frames import FRAME_METHOD, PROTOCOL_HEADER, Frame, method_frame, parse_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk


class ClientGone(Exception):
    """The client has closed its side."""


class Dialogue:
    """The server's side of one connection. Unless told otherwise it answers as an honest server would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._data = b""
        self.seen: list[Method] = []
        self.silent_about: set[type[Method]] = set()
        """Methods that get no answer."""
        self.changed = asyncio.Event()

    def send(self, channel: int, *methods: Method) -> None:
        self.writer.write(b"".join(method_frame(channel, method) for method in methods))

    async def frame(self) -> Frame:
        """The next frame of the client. Raises ClientGone."""
        while True:
            parsed = parse_frame(self._data, 0, 0) if self._data else None
            if parsed is not None:
                found, end = parsed
                self._data = self._data[end:]
                return found
            more = await self._reader.read(65_536)
            if not more:
                raise ClientGone
            self._data = (self._data + more).removeprefix(PROTOCOL_HEADER)

    async def handshake(self, tune: ConnectionTune | None = None) -> Self:
        await self._reader.readexactly(len(PROTOCOL_HEADER))
        self.send(0, ConnectionStart(mechanisms="PLAIN AMQPLAIN"))
        await self.next(ConnectionStartOk)
        self.send(0, tune or ConnectionTune(100, 131_072, 0))
        await self.next(ConnectionOpen)
        self.send(0, ConnectionOpenOk())
        return self

    async def next(self, kind: type[Method]) -> int:
        """Answer up to a method of this kind, which is left to the caller; its channel."""
        while True:
            frame = await self.frame()
            if frame.type != FRAME_METHOD:
                continue
            method = decode_method(frame.payload)
            self.seen.append(method)
            self.changed.set()
            if isinstance(method, kind):
                return frame.channel
            self._answer(frame.channel, method)

    async def serve(self) -> None:
        """Answer until the client goes."""
        with contextlib.suppress(ClientGone, ConnectionError):
            await self.next(ConnectionCloseOk)

    def _answer(self, channel: int, method: Method) -> None:
        if type(method) in self.silent_about:
            return
        answer = ANSWERS.get(type(method))
        if answer is not None:
            self.send(channel, answer(method))


ANSWERS: dict[type[Method], Callable[[Method], Method]] = {
    ChannelOpen: lambda _: ChannelOpenOk(),
    ChannelClose: lambda _: ChannelCloseOk(),
    ConfirmSelect: lambda _: ConfirmSelectOk(),
    BasicQos: lambda _: BasicQosOk(),
    BasicConsume: lambda method: BasicConsumeOk(getattr(method, "consumer_tag", "")),
    BasicCancel: lambda method: BasicCancelOk(getattr(method, "consumer_tag", "")),
    QueueDeclare: lambda method: QueueDeclareOk(getattr(method, "queue", "")),
    ConnectionClose: lambda _: ConnectionCloseOk(),
}

Script = Callable[[Dialogue], Awaitable[None]]


@asynccontextmanager
async def scripted_server(*scripts: Script) -> AsyncIterator[str]:
    """A server on loopback: the first connection gets the first script, and so on, the last one all others; its URI."""
    waiting = list(scripts)
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        script = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        try:
            # A handler that is cancelled at the end of the test must not look failed to the streams of Python 3.11.
            with contextlib.suppress(ClientGone, ConnectionError, EOFError, asyncio.CancelledError):
                await script(Dialogue(reader, writer))
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
