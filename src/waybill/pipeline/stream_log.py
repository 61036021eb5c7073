"""A stream queue of an AMQP 0-9-1 broker read as a log: its first offset, its end, and the messages of a range.

AMQP 0-9-1 has no question for the end of a stream, and the message count of a passive declare lags behind by seconds on
RabbitMQ. But a consumer attached at `last` gets the last chunk at once; drained until it falls silent, its last message
is the last of the stream, or was a moment ago, which serves as well: an end may be low, never high.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Final

from waybill.client import AuthenticationFailed, ClientError, InvalidURI, ProtocolError, ReconnectPolicy, blocking
from waybill.pipeline.message import OFFSET_HEADER, Properties, StreamMessage, utc_seconds
from waybill.pipeline.offsets import DataLossError, OffsetRange
from waybill.pipeline.options import SourceOptions

# A broker has the rest of a chunk ready when it has sent its first message.
_SILENCE_S: Final = 0.2
# Under constant load there is no silence: by then the end found is late enough.
_DRAIN_LIMIT_S: Final = 2.0
# A stream that has delivered nothing for this long, and has no messages by the broker's own count, is empty.
_EMPTY_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
# Reading goes on behind the last message that came, which the client cannot know: so it does not reconnect for us.
_NO_RECONNECT: Final = ReconnectPolicy(first_delay_s=0.0, jitter=0.0, max_attempts=1)
# connection-forced and internal-error say that the broker stops or failed, not that we asked for something wrong.
_PASSING_CODES: Final = frozenset({320, 541})


class StreamError(RuntimeError):
    """A stream cannot be read, and trying again would not help: no such stream, a wrong password."""


class StreamUnavailable(StreamError):
    """A stream cannot be read now: the broker is away, or it has sent nothing for too long."""


class StreamLog:
    """Reads streams of one broker. Every call opens a connection and closes it; every error names the broker.

    Nothing is open between calls, so that a log can be pickled, sent to a task and used there.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def first(self, stream: str) -> int:
        """The offset of the first message that is still there; 0 for a stream that is empty."""
        return self._retrying(stream, self._first)

    def end(self, stream: str) -> int:
        """The offset after the last message; 0 for a stream that is empty."""
        return self._retrying(stream, self._end)

    def read(self, span: OffsetRange) -> Iterator[StreamMessage]:
        """The messages of `span` in order, each once.

        A lost connection is made anew, and reading goes on behind the last message. Raises DataLossError if messages of
        the span were removed (unless failOnDataLoss is false), StreamUnavailable if the broker stays silent for
        pollTimeoutMs or cannot be reached in all tries, StreamError for what will not change.
        """
        position = span.start
        failures = 0
        while position < span.end:
            try:
                for message in self._attached(span, position):
                    position = message.offset + 1
                    failures = 0
                    yield message
                return
            except StreamUnavailable:
                failures += 1
                if failures > self._options.fetch_retries:
                    raise
                self._pause(failures)

    def _attached(self, span: OffsetRange, position: int) -> Iterator[StreamMessage]:
        """The messages from `position` to the end of `span`, over one connection."""
        with self._consuming(span.stream, position, self._options.poll_timeout_ms / 1000) as deliveries:
            for offset, delivery in deliveries:
                # The first chunk may begin earlier, and a consumer that was attached again begins where the first did.
                if offset < position:
                    continue
                if offset > position:
                    self._check_gap(span, position, offset)
                if offset >= span.end:
                    return
                yield _message(span.stream, offset, delivery)
                position = offset + 1
                if position == span.end:
                    return
            raise StreamUnavailable(
                f"stream {span.stream!r} on {self._options.address} sent nothing for "
                f"{self._options.poll_timeout_ms} ms while messages from {position} "
                f"to {span.end - 1} were awaited (option pollTimeoutMs)"
            )

    def _check_gap(self, span: OffsetRange, position: int, offset: int) -> None:
        """A stream may leave offsets out, which is no loss; messages before its first one, though, were removed."""
        if not self._options.fail_on_data_loss:
            return
        first = self._first(span.stream)
        if first > position:
            raise DataLossError(
                f"stream {span.stream!r} on {self._options.address} begins at offset {first}, but {position} was to be "
                f"read next (got {offset}): retention removed messages that were not read. "
                "Set failOnDataLoss to false to go on."
            )

    def _first(self, stream: str) -> int:
        with closing(self._drained(stream, "first")) as drained:
            return next((offset for offset, _ in drained), 0)

    def _end(self, stream: str) -> int:
        give_up = time.monotonic() + _DRAIN_LIMIT_S
        end = 0
        with closing(self._drained(stream, "last")) as drained:
            for offset, _ in drained:
                end = offset + 1
                if time.monotonic() > give_up:
                    break
        return end

    def _drained(self, stream: str, place: str) -> Generator[tuple[int, blocking.Delivery]]:
        """What a consumer attached at `place` gets until the stream is silent. Nothing only if the stream is empty."""
        for silence in (_SILENCE_S, _EMPTY_S, self._options.poll_timeout_ms / 1000):
            found = False
            with self._consuming(stream, place, silence) as deliveries:
                for item in deliveries:
                    found = True
                    yield item
            if found or (silence > _SILENCE_S and self._message_count(stream) == 0):
                return
        raise StreamUnavailable(
            f"stream {stream!r} on {self._options.address} has messages, but delivered none in "
            f"{self._options.poll_timeout_ms} ms (option pollTimeoutMs)"
        )

    def _message_count(self, stream: str) -> int:
        with self._connected(stream) as connection:
            return connection.channel().declare_queue(stream, durable=True, passive=True).message_count

    @contextmanager
    def _consuming(
        self, stream: str, place: int | str, silence: float
    ) -> Iterator[Iterator[tuple[int, blocking.Delivery]]]:
        """Deliveries with their offsets from `place` on, until there was none for `silence` seconds."""
        with self._connected(stream) as connection:
            yield self._acknowledged(connection, stream, place, silence)

    def _acknowledged(
        self, connection: blocking.Connection, stream: str, place: int | str, silence: float
    ) -> Iterator[tuple[int, blocking.Delivery]]:
        """Acknowledge by halves of the prefetch window: a stream forgets nothing by that, it only sends on.

        Whoever stops early closes the connection, and only then the iteration over `consume`: left open, it would hand
        the rest back, and a stream takes nothing back.
        """
        window = self._options.prefetch
        threshold = max(1, window // 2)
        unacknowledged = 0
        deliveries = connection.channel().consume(
            stream, prefetch_count=window, arguments={OFFSET_HEADER: place}, inactivity_timeout=silence
        )
        for delivery in deliveries:
            unacknowledged += 1
            if unacknowledged >= threshold:
                delivery.ack(multiple=True)
                unacknowledged = 0
            yield _offset(delivery, stream, self._options.address), delivery

    @contextmanager
    def _connected(self, stream: str) -> Iterator[blocking.Connection]:
        """A connection, whose errors become errors of this module."""
        try:
            with blocking.connect(self._options.uri, name="waybill-pipeline", reconnect=_NO_RECONNECT) as connection:
                yield connection
        except (AuthenticationFailed, InvalidURI) as problem:
            raise StreamError(self._explained(stream, problem)) from None
        except (ClientError, OSError) as problem:
            lasting = isinstance(problem, ProtocolError) and problem.code not in _PASSING_CODES
            kind = StreamError if lasting else StreamUnavailable
            raise kind(self._explained(stream, problem)) from None

    def _explained(self, stream: str, problem: Exception) -> str:
        """What happened, where, and never with which password."""
        text = str(problem) or type(problem).__name__
        return f"cannot read stream {stream!r} on {self._options.address}: {text.replace(self._options.uri, '')}"

    def _retrying(self, stream: str, question: Callable[[str], int]) -> int:
        """Ask until there is an answer: an exception would end a streaming query."""
        for failures in range(1, self._options.fetch_retries + 1):
            try:
                return question(stream)
            except StreamUnavailable:
                self._pause(failures)
        return question(stream)

    def _pause(self, failures: int) -> None:
        """Wait longer after each failure: a broker that restarts needs its time."""
        time.sleep(min(self._options.fetch_retry_interval_ms / 1000 * failures, _PAUSE_MAX_S))


def _offset(delivery: blocking.Delivery, stream: str, address: str) -> int:
    offset = (delivery.properties.headers or {}).get(OFFSET_HEADER)
    if not isinstance(offset, int):
        raise StreamError(f"queue {stream!r} on {address} is no stream: its messages have no offset")
    return offset


def _message(stream: str, offset: int, delivery: blocking.Delivery) -> StreamMessage:
    sent = delivery.properties
    properties = Properties(
        content_type=sent.content_type,
        content_encoding=sent.content_encoding,
        delivery_mode=sent.delivery_mode,
        priority=sent.priority,
        correlation_id=sent.correlation_id,
        reply_to=sent.reply_to,
        expiration=sent.expiration,
        message_id=sent.message_id,
        type=sent.type,
        user_id=sent.user_id,
        app_id=sent.app_id,
    )
    return StreamMessage(stream, offset, delivery.body, utc_seconds(sent.timestamp), properties, sent.headers or {})
