"""A consumer of 0-9-1: credit is its prefetch window and its channel's, delivery is a basic.deliver with the content.

`deliver` runs once per message, so the parts that a run of messages shares are cached: the method frame up to the
delivery tag, and its end from the redelivered flag on, as long as messages have the same address.
"""

from typing import Final

from librt.strings import read_i64_be, write_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.message_format import AMQP091, fitted, with_integer_header
from waybill.engine.amqp091.server.channel_host import ConsumerHost
from waybill.engine.amqp091.server.octet_window import OctetWindow, content_size
from waybill.engine.conversion.convert import (
    Inconvertible,
    amqp091_content,
    conversion_units,
    report_undeliverable,
)
from waybill.model.consumer import Consumer
from waybill.model.entry import Entry, Holder
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.queue import Queue
from waybill.wire.amqp091.content import rewrite_channel
from waybill.wire.amqp091.frames import FRAME_END

DELIVER_ID: Final = b"\x00\x3c\x00\x3c"
STREAM_OFFSET: Final = b"x-stream-offset"
DELIVERY_COUNT: Final = b"x-delivery-count"
UNSETTLED_WHEN_SHORT: Final = 1000
UNSETTLED_WHEN_VERY_SHORT: Final = 100
VERY_SHORT_BYTES: Final = 32 << 20
STREAMED: Final = Message(AMQP091, b"", Address("", ""), True, 0, NO_TTL, 0.0)  # noqa: FBT003 - as in its signature
SHORT_MAX: Final = 255


def short_text(text: str) -> str:
    """A text cut to fit a shortstr: routing keys that came over 1.0 may be longer."""
    octets = text.encode("utf-8", "surrogateescape")
    return text if len(octets) <= SHORT_MAX else octets[:SHORT_MAX].decode("utf-8", "surrogateescape")


def short_string(text: str) -> bytes:
    """A shortstr, cut where it does not fit."""
    octets = text.encode("utf-8", "surrogateescape")[:SHORT_MAX]
    return bytes([len(octets)]) + octets


class ChannelConsumer(Consumer):
    """`prefetch`: how many messages it may hold unsettled, `prefetch_octets`: how much of content; 0 for any number.

    Without acknowledgements it holds nothing.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        channel: ConsumerHost,
        queue: Queue,
        tag: str,
        no_ack: bool,  # noqa: FBT001
        exclusive: bool,  # noqa: FBT001
        priority: i64,
        prefetch: i64,
        prefetch_octets: i64,
        is_stream: bool,  # noqa: FBT001
    ) -> None:
        super().__init__(tag, no_ack, exclusive, priority)
        self.channel = channel
        self.connection = channel.connection
        self.queue = queue
        self.prefetch: i64 = prefetch
        self.window: OctetWindow | None = None
        if prefetch_octets != 0 and not no_ack:
            self.window = OctetWindow(prefetch_octets)
            channel.counts_octets = True
        self.window_changed()
        self.is_stream = is_stream
        self.is_cancelled = False
        self._address: Address | None = None
        self._head = b""
        self._tail = b""
        self._tail_again = b""

    def has_credit(self) -> bool:
        channel = self.channel
        if self.connection.is_stalled or not channel.is_flowing:
            return False
        if channel.prefetch != 0 and channel.unsettled_count - channel.polled.unsettled_count >= channel.prefetch:
            return False
        if self.no_ack:
            return True
        if self.prefetch != 0:
            if self.unsettled_count >= self.prefetch:
                return False
        elif self._holds_enough():
            return False
        return channel.unsettled_count < channel.unsettled_max

    def window_changed(self) -> None:
        """The window in octets of the consumer or the channel was set or removed."""
        self.counts_size = not self.no_ack and (self.window is not None or self.channel.window is not None)

    def has_credit_for(self, entry: Entry) -> bool:
        size = content_size(entry.message)
        shared = self.channel.window
        return (self.window is None or self.window.has_room(size)) and (shared is None or shared.has_room(size))

    def _hold(self, entry: Entry) -> None:
        size = content_size(entry.message)
        if self.window is not None:
            self.window.add(entry, size)
        if self.channel.window is not None:
            self.channel.window.add(entry, size)

    def _holds_enough(self) -> bool:
        """Whether a consumer without a prefetch limit must settle deliveries first, because memory is short."""
        runtime = self.connection.host.runtime
        over = runtime.memory_bytes - runtime.memory_limit_bytes
        if over <= 0 or self.channel.prefetch != 0:
            return False
        if over > VERY_SHORT_BYTES:
            return self.unsettled_count >= UNSETTLED_WHEN_VERY_SHORT
        return self.unsettled_count >= UNSETTLED_WHEN_SHORT

    def deliver(self, entry: Entry) -> None:
        """`deliver_all` of one. Consumers that take turns get one at a time: a run of one costs them 7 % more."""
        channel = self.channel
        connection = self.connection
        message = entry.message
        content = message.content
        if message.format is not AMQP091:
            connection.host.runtime.work_left -= conversion_units(message, AMQP091)
            try:
                content = amqp091_content(message)
            except Inconvertible as error:
                self._pass_over(entry, error)
                return
        if message.address is not self._address:
            self._prepare(message.address)
        tag: i64 = channel.delivery_tag + 1
        channel.delivery_tag = tag
        out = connection.out
        out.write(self._head)
        write_i64_be(out, tag)
        out.write(self._tail_again if entry.redelivered else self._tail)
        if self.is_stream or entry.delivery_count > 0:
            content = self._annotated(entry, content)
        if read_i64_be(content, 0) >> 40 != channel.header_head:
            content = rewrite_channel(content, channel.number)
        if len(content) > connection.frame_max:
            content = fitted(content, connection.frame_max)
        out.write(content)
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(out) > connection.output_high_water:
            connection.is_stalled = True
        if not self.no_ack:
            entry.holder = self
            channel.unsettled[tag] = entry
            channel.unsettled_count += 1
            if self.counts_size:
                self._hold(entry)
        if self.is_stream:
            # The message is never requeued: only its offset matters from now on.
            entry.message = STREAMED

    def allowance(self) -> i64:
        if self.counts_size:
            return 1
        channel = self.channel
        credit: i64 = channel.unsettled_max - channel.unsettled_count
        if self.prefetch != 0 and self.prefetch - self.unsettled_count < credit:
            credit = self.prefetch - self.unsettled_count
        if channel.prefetch != 0:
            credit = min(credit, channel.prefetch - channel.unsettled_count + channel.polled.unsettled_count)
        return credit

    def deliver_all(self, entries: list[Entry]) -> i64:
        channel = self.channel
        connection = self.connection
        out = connection.out
        frame_max = connection.frame_max
        header_head = channel.header_head
        unsettled = channel.unsettled
        no_ack = self.no_ack
        is_annotated = self.is_stream or self.queue.counts_deliveries
        tag = channel.delivery_tag
        passed: i64 = 0
        for entry in entries:
            message = entry.message
            content = message.content
            if message.format is not AMQP091:
                done = tag - channel.delivery_tag + passed
                if done > 0 and connection.host.runtime.work_left <= 0:
                    entries = entries[: int(done)]  # The conversions so far have used up the turn.
                    break
                connection.host.runtime.work_left -= conversion_units(message, AMQP091)
                try:
                    content = amqp091_content(message)
                except Inconvertible as error:
                    passed += 1
                    self._pass_over(entry, error)
                    continue
            if message.address is not self._address:
                self._prepare(message.address)
            tag += 1
            out.write(self._head)
            write_i64_be(out, tag)
            out.write(self._tail_again if entry.redelivered else self._tail)
            if is_annotated:
                content = self._annotated(entry, content)
            if read_i64_be(content, 0) >> 40 != header_head:
                content = rewrite_channel(content, channel.number)
            if len(content) > frame_max:
                content = fitted(content, frame_max)
            out.write(content)
            if not no_ack:
                entry.holder = self
                unsettled[tag] = entry
        if not no_ack:
            channel.unsettled_count += tag - channel.delivery_tag
        channel.delivery_tag = tag
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(out) > connection.output_high_water:
            connection.is_stalled = True
        return len(entries)

    def _annotated(self, entry: Entry, content: bytes) -> bytes:
        """The content with the header that this kind of queue adds: its offset, or its delivery count."""
        if self.is_stream:
            return with_integer_header(content, self.connection.facts, STREAM_OFFSET, entry.sequence)
        if entry.delivery_count > 0 and self.queue.counts_deliveries:
            return with_integer_header(content, self.connection.facts, DELIVERY_COUNT, entry.delivery_count)
        return content

    def _pass_over(self, entry: Entry, error: ValueError) -> None:
        """A message of another protocol has no form in this one."""
        report_undeliverable(self.connection.host.runtime.operator_log, self.queue.name, error)
        if not self.no_ack:
            self.unsettled_count -= 1
        entry.queue.undeliverable(entry, is_settled=self.no_ack)

    def _prepare(self, address: Address) -> None:
        self._address = address
        end = short_string(address.exchange) + short_string(address.routing_key)
        start = DELIVER_ID + short_string(self.tag)
        size = len(start) + 9 + len(end)
        self._head = b"\x01" + int(self.channel.number).to_bytes(2, "big") + size.to_bytes(4, "big") + start
        end += bytes([FRAME_END])
        self._tail = b"\x00" + end
        self._tail_again = b"\x01" + end

    def credit_available(self) -> None:
        if not self.is_cancelled:
            self.queue.activate(self)

    def cancelled(self) -> None:
        self.is_cancelled = True
        self.channel.consumer_cancelled(self.tag)


def give_room(channel: ConsumerHost, holder: Holder, entries: list[Entry]) -> None:
    """Remove deliveries from the windows in octets of their consumer and the channel."""
    for entry in entries:
        if isinstance(holder, ChannelConsumer) and holder.window is not None:
            holder.window.remove(entry)
        if channel.window is not None:
            channel.window.remove(entry)
