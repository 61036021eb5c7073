"""What client and broker say to each other, read by pika's decoder, which shares no code with us."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pika import frame

from tests.ojs.proxy import Proxy


@dataclass
class Said:
    """One method, with its content if it has one."""

    connection: int
    channel: int
    by_broker: bool
    name: str
    method: Any
    properties: Any = None
    body: bytes = b""
    expected: int = field(default=0, repr=False)

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class WireTap(Proxy):
    """A proxy that writes down all methods, in the order in which they passed."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.said: list[Said] = []
        self.attempts: list[float] = []
        """When somebody tried to connect, by the monotonic clock."""
        self._streams: dict[asyncio.StreamReader, bytes] = {}
        self._connections: dict[asyncio.StreamReader, int] = {}
        self._open: dict[tuple[int, int, bool], Said] = {}

    def saw_attempt(self) -> None:
        self.attempts.append(time.monotonic())

    def saw_connection(self, client: asyncio.StreamReader, broker: asyncio.StreamReader) -> None:
        number = len(self._connections) // 2 + 1
        self._connections |= {client: number, broker: number}

    def saw(self, source: asyncio.StreamReader, data: bytes, *, answers: bool) -> None:
        rest = self._streams.get(source, b"") + data
        while rest:
            consumed, found = frame.decode_frame(rest)
            if not consumed:
                break
            rest = rest[consumed:]
            self._take(self._connections[source], found, by_broker=answers)
        self._streams[source] = rest

    def _take(self, connection: int, found: Any, *, by_broker: bool) -> None:
        key = (connection, getattr(found, "channel_number", 0), by_broker)
        if isinstance(found, frame.Method):
            said = Said(connection, found.channel_number, by_broker, found.method.NAME, found.method)
            self.said.append(said)
            self._open[key] = said
        elif isinstance(found, frame.Header):
            self._open[key].properties = found.properties
            self._open[key].expected = found.body_size
        elif isinstance(found, frame.Body):
            self._open[key].body += found.fragment

    def by_client(self, name: str, matches: Callable[[Said], bool] = lambda _: True) -> list[Said]:
        return [one for one in self.said if not one.by_broker and one.name == name and matches(one)]

    def by_broker(self, name: str, matches: Callable[[Said], bool] = lambda _: True) -> list[Said]:
        return [one for one in self.said if one.by_broker and one.name == name and matches(one)]

    def published(self, message_id: str) -> list[Said]:
        """The publishes of one job, first attempt first."""
        return self.by_client("Basic.Publish", lambda one: one.properties.message_id == message_id)
