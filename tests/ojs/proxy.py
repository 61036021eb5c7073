"""A TCP proxy that can cut its connections, to lose a connection without touching the broker."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Between a client and the broker at `uri`. While it refuses, new connections are closed at once."""

    def __init__(self, uri: str) -> None:
        self._target = urlsplit(uri)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = 0
        self.refusing = False
        self.swallowing_answers = False
        self.requests: bytearray | None = None
        """What clients have sent, if it is made one."""

    @property
    def uri(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"guest:guest@127.0.0.1:{port}"))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.refusing = True
        while self._accepting:
            await asyncio.sleep(0.005)
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def cut(self) -> None:
        """End all connections at once, with a reset for the client."""
        for writer in list(self._writers):
            writer.transport.abort()

    def saw(self, source: asyncio.StreamReader, data: bytes, *, answers: bool) -> None:
        """Look at what passes by; `answers` is what the broker says."""

    def saw_attempt(self) -> None:
        """Somebody has connected, whether it will be refused or not."""

    def saw_connection(self, client: asyncio.StreamReader, broker: asyncio.StreamReader) -> None:
        """What these two say is one conversation."""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.saw_attempt()
        if self.refusing:
            writer.transport.abort()
            return
        self._accepting += 1
        try:
            other_reader, other_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        finally:
            self._accepting -= 1
        self._writers.add(other_writer)
        self.saw_connection(reader, other_reader)
        for source, sink, answers in ((reader, other_writer, False), (other_reader, writer, True)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink, answers=answers))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                self.saw(source, data, answers=answers)
                if answers and self.swallowing_answers:
                    continue
                if not answers and self.requests is not None:
                    self.requests += data
                sink.write(data)
                await sink.drain()
        sink.close()
