"""A stream queue of an AMQP 0-9-1 broker read as a log: its first offset, its end, and the messages of a range.

AMQP 0-9-1 has no method that returns the end of a stream, and on RabbitMQ the message count of a passive declare is
seconds old. But a consumer attached at `last` gets the last chunk at once. When nothing more comes, its last message
is the end of the stream, or was a moment ago. So an end that is found may be too low, but never too high.

To find the first message of a time, a consumer attaches at that time and gets that message first. If all messages are
older, it gets nothing, and the answer is the end that was found before.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final, TypeVar, cast

from waybill.client import AuthenticationFailed, Delivery, InvalidURI, ProtocolError
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.content_header import ContentHeaders
from waybill.pipeline.message import MessageBlock, StreamMessage
from waybill.pipeline.offsets import DataLossError, OffsetRange
from waybill.pipeline.options import SourceOptions
from waybill.pipeline.stream_consumer import StreamConsumer

T = TypeVar("T")

# When a broker has sent the first message of a chunk, the rest is ready.
_SILENCE_S: Final = 0.2
# Under constant load there is no silence: by then the end found is late enough.
_DRAIN_LIMIT_S: Final = 2.0
# A stream that has delivered nothing for this time, and has no messages by the broker's count, is empty.
_EMPTY_S: Final = 0.5
# If a broker has sent nothing for this time, there are no messages since the requested time.
_NOTHING_SINCE_S: Final = 2.0
# To read a single message: the prefetch count, and the timeout in milliseconds.
_GLANCE: Final = 100
_GLANCE_TIMEOUT_MS: Final = 2000
_PAUSE_MAX_S: Final = 10.0
# With connection-forced and internal-error, the broker stops or has failed; the request was not wrong.
_PASSING_CODES: Final = frozenset({320, 541})


class StreamError(RuntimeError):
    """A stream cannot be read, and a retry would not help: it does not exist, or the password is wrong."""


class StreamUnavailable(StreamError):
    """A stream cannot be read now: the broker is unreachable, or has sent nothing for too long."""


def unreadable(what: str, uri: str, problem: Exception) -> StreamError:
    """The error with its place, without the password: StreamUnavailable if a retry may help."""
    lasting = isinstance(problem, AuthenticationFailed | InvalidURI) or (
        isinstance(problem, ProtocolError) and problem.code not in _PASSING_CODES
    )
    kind = StreamError if lasting else StreamUnavailable
    return kind(explained(f"cannot read {what} on", uri, problem))


class StreamLog:
    """Reads streams of one broker. Every call opens a connection and closes it; every error names the broker.

    Nothing is open between calls, so a log can be pickled and sent to a task.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._address = options.address

    def first(self, stream: str) -> int:
        """The offset of the first remaining message; 0 for an empty stream."""
        return self.retrying(partial(self._first, stream))

    def end(self, stream: str) -> int:
        """The offset after the last message; 0 for an empty stream."""
        return self.retrying(partial(self._end, stream))

    def since(self, stream: str, moment: datetime) -> int:
        """The offset of the first message stored at `moment` (in whole seconds) or later; the end if there is none."""
        return self.retrying(partial(self._since, stream, moment))

    def message(self, stream: str, offset: int) -> StreamMessage | None:
        """The message at `offset`; None if it does not exist."""
        alone = StreamLog(
            replace(self._options, fail_on_data_loss=False, prefetch=_GLANCE, poll_timeout_ms=_GLANCE_TIMEOUT_MS)
        )
        try:
            with closing(alone._attached(OffsetRange(stream, offset, offset + 1), offset)) as blocks:
                block = next(blocks, None)
        except StreamUnavailable:
            return None
        return None if block is None else next(block.messages())

    def read(self, span: OffsetRange) -> Iterator[StreamMessage]:
        """The messages of `span` in order, each once; see `read_blocks`."""
        return chain.from_iterable(block.messages() for block in self.read_blocks(span))

    def read_blocks(self, span: OffsetRange) -> Iterator[MessageBlock]:
        """The messages of `span` in order, each once, in the blocks in which they arrived.

        A lost connection is reopened; reading continues behind the last message. Raises DataLossError if messages of
        the span were removed (unless failOnDataLoss is false), StreamUnavailable if the broker stays silent for
        pollTimeoutMs or cannot be reached in all tries, StreamError if trying again would not help.
        """
        position = span.start
        failures = 0
        while position < span.end:
            try:
                for block in self._attached(span, position):
                    position = block.offsets[-1] + 1
                    failures = 0
                    yield block
                return
            except StreamUnavailable:
                failures += 1
                if failures > self._options.fetch_retries:
                    raise
                self._pause(failures)

    def _attached(self, span: OffsetRange, position: int) -> Generator[MessageBlock]:
        """The messages from `position` to the end of `span`, over one connection; no block is empty."""
        stream = span.stream
        read_all = ContentHeaders().read_all
        with self._consuming(stream, position, self._options.poll_timeout_ms / 1000) as arrivals:
            for arrived in arrivals:
                found, sent = read_all([delivery.encoded_properties for delivery in arrived])
                offsets = self._all_known(stream, found)
                block = MessageBlock(stream, offsets, [delivery.body for delivery in arrived], sent)
                following = range(position, position + len(offsets))
                if following.stop > span.end or list(offsets) != list(following):
                    block = block.chosen(self._within(span, position, offsets))
                    if offsets[-1] >= span.end:
                        position = span.end
                if block.bodies:
                    position = max(position, block.offsets[-1] + 1)
                    yield block
                if position == span.end:
                    return
            end = self._end(stream)
            if end < span.end:
                self._check_end(span, end)
                return
            raise StreamUnavailable(
                f"stream {stream!r} on {self._address} sent nothing for "
                f"{self._options.poll_timeout_ms} ms while messages from {position} "
                f"to {span.end - 1} were awaited (option pollTimeoutMs)"
            )

    def _within(self, span: OffsetRange, position: int, offsets: Sequence[int]) -> list[int]:
        """The indices in `offsets` of those from `position` to the end of `span`, each offset once."""
        indices = []
        for index, offset in enumerate(offsets):
            # The first chunk may begin before the requested offset, and so may the first one after a reconnect.
            if offset < position:
                continue
            if offset != position:
                self._check_gap(span, position, offset)
            if offset >= span.end:
                break
            indices.append(index)
            position = offset + 1
        return indices

    def _check_gap(self, span: OffsetRange, position: int, offset: int) -> None:
        """Raise DataLossError if messages were removed from the head of the stream. Other gaps are normal."""
        if not self._options.fail_on_data_loss:
            return
        first = self._first(span.stream)
        if first > position:
            raise DataLossError(
                f"stream {span.stream!r} on {self._address} begins at offset {first}, but {position} was to be "
                f"read next (got {offset}): retention removed messages that were not read. "
                "Set failOnDataLoss to false to continue."
            )

    def _check_end(self, span: OffsetRange, end: int) -> None:
        """Raise DataLossError for a stream that ends within a span, whose messages existed when it was planned."""
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"stream {span.stream!r} on {self._address} ends at offset {end}, but messages up to {span.end - 1} "
                "were to be read: it was deleted and created again, or its messages were removed. "
                "Set failOnDataLoss to false to continue."
            )

    def _first(self, stream: str) -> int:
        with closing(self._drained(stream, "first")) as drained:
            return next((offset for offset, _ in drained), 0)

    def _end(self, stream: str) -> int:
        give_up = time.monotonic() + _DRAIN_LIMIT_S
        end = 0
        with closing(self._drained(stream, "last")) as drained:
            for _, last in drained:
                end = last + 1
                if time.monotonic() > give_up:
                    break
        return end

    def _since(self, stream: str, moment: datetime) -> int:
        end = self._end(stream)
        # The time in a consumer's argument has no fractions of a second.
        with self._consuming(stream, moment.replace(microsecond=0), _NOTHING_SINCE_S) as arrivals:
            return next((self._offset(stream, arrived[0]) for arrived in arrivals), end)

    def _drained(self, stream: str, place: str) -> Generator[tuple[int, int]]:
        """The first and last offsets of the lists that a consumer attached at `place` gets until the stream is silent.

        Yields nothing only if the stream is empty.
        """
        for silence in (_SILENCE_S, _EMPTY_S, self._options.poll_timeout_ms / 1000):
            found = False
            with self._consuming(stream, place, silence) as arrivals:
                for arrived in arrivals:
                    found = True
                    yield self._offset(stream, arrived[0]), self._offset(stream, arrived[-1])
            if found:
                return
            if silence > _SILENCE_S and self._message_count(stream) == 0:
                self._check_is_stream(stream)
                return
        raise StreamUnavailable(
            f"stream {stream!r} on {self._address} has messages, but delivered none in "
            f"{self._options.poll_timeout_ms} ms (option pollTimeoutMs)"
        )

    def _message_count(self, stream: str) -> int:
        with self._connected(stream) as consumer:
            return consumer.message_count(stream)

    def _check_is_stream(self, stream: str) -> None:
        """Raise StreamError for an empty queue that is not a stream: it has no messages whose offsets would show it."""
        with self._connected(stream) as consumer:
            if consumer.can_get(stream):
                raise StreamError(f"queue {stream!r} on {self._address} is not a stream: it is read with basic.get")

    @contextmanager
    def _consuming(self, stream: str, place: object, silence: float) -> Iterator[Iterator[list[Delivery]]]:
        """Deliveries from `place` on, until none came for `silence` seconds."""
        with self._connected(stream) as consumer:
            yield consumer.deliveries(stream, place, silence)

    def _offset(self, stream: str, delivery: Delivery) -> int:
        """The offset of a delivery. Raises StreamError for a queue that is not a stream."""
        offset, _ = ContentHeaders().read(delivery.encoded_properties)
        return self._all_known(stream, [offset])[0]

    def _all_known(self, stream: str, offsets: Sequence[int | None]) -> Sequence[int]:
        """`offsets`. Raises StreamError if one is missing: the queue is not a stream."""
        if None in offsets:
            raise StreamError(f"queue {stream!r} on {self._address} is not a stream: its messages have no offset")
        return cast("Sequence[int]", offsets)

    @contextmanager
    def _connected(self, stream: str) -> Iterator[StreamConsumer]:
        """Open a connection; its errors become errors of this module."""
        try:
            with StreamConsumer(self._options.uri, prefetch=self._options.prefetch) as consumer:
                yield consumer
        except BROKER_ERRORS as problem:
            raise unreadable(f"stream {stream!r}", self._options.uri, problem) from None

    def retrying(self, question: Callable[[], T]) -> T:
        """Retry while the broker is unavailable, as an exception would end a streaming query. Raises StreamError."""
        for failures in range(1, self._options.fetch_retries + 1):
            try:
                return question()
            except StreamUnavailable:
                self._pause(failures)
        return question()

    def _pause(self, failures: int) -> None:
        """Wait longer after each failure: a restarting broker needs time."""
        time.sleep(min(self._options.fetch_retry_interval_ms / 1000 * failures, _PAUSE_MAX_S))
