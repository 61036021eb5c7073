"""A stream queue for a test: made, filled and taken away over our own client."""

import json
from types import TracebackType
from typing import Self

from tests.pipeline.histories import Event
from waybill.client import BasicProperties, blocking
from waybill.pipeline.options import SourceOptions, parse_options
from waybill.pipeline.stream_log import StreamLog


class Stream:
    """A durable stream queue `name` at the broker of `uri`."""

    def __init__(self, uri: str, name: str, **arguments: object) -> None:
        self.uri = uri
        self.name = name
        self._connection = blocking.connect(uri)
        self._channel = self._connection.channel()
        self._arguments = {"x-queue-type": "stream", **arguments}

    def __enter__(self) -> Self:
        self.declare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()
        self._connection.close()

    def declare(self) -> None:
        self._channel.declare_queue(self.name, durable=True, arguments=self._arguments)

    def delete(self) -> None:
        self._channel.delete_queue(self.name)

    def publish(self, *bodies: bytes, **properties: object) -> None:
        """Publish and wait for all confirms."""
        sent = BasicProperties(delivery_mode=2, **properties)  # type: ignore[arg-type]
        self._channel.publish_many(list(bodies), routing_key=self.name, properties=sent)

    def publish_events(self, events: list[Event], batch: int = 1) -> None:
        """Publish events, `batch` of them in a message."""
        parts = [events[start : start + batch] for start in range(0, len(events), batch)]
        self.publish(*(json.dumps(part if len(part) > 1 else part[0]).encode() for part in parts))

    def options(self, **options: str) -> SourceOptions:
        """Options of a reader that gives up soon."""
        given = {"uri": self.uri, "stream": self.name, "fetchOffset.numRetries": "1", **options}
        return parse_options(given, default_stream=None, streaming=True)

    def log(self, **options: str) -> StreamLog:
        return StreamLog(self.options(**options))
