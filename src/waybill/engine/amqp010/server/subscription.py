"""A subscription: credit in messages and in octets, and transfers to its destination.

`deliver` runs once per message. The parts that a run of messages shares are cached: the frame of the command, the
beginning of the header frame, and delivery-properties, as long as address, durability, priority and header size are the
same.

Credit (message.flow) is spent by each transfer. The octets of a transfer are those of its header and body segments. In
window mode, credit comes back when the peer has completed the transfer.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from waybill.engine.amqp010.message_format import AMQP010, DEFAULT_PRIORITY, SIZE_OCTETS
from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.faults import cut
from waybill.engine.amqp010.server.replay import Sent
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.engine.conversion.convert import (
    Inconvertible,
    amqp010_content,
    conversion_units,
    report_undeliverable,
)
from waybill.model.entry import Entry
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.queue import Queue
from waybill.wire.amqp010.constants import (
    ACCEPT_EXPLICIT,
    ACCEPT_NONE,
    ACQUIRE_NOT_ACQUIRED,
    ACQUIRE_PRE_ACQUIRED,
    MODE_NON_PERSISTENT,
    MODE_PERSISTENT,
)
from waybill.wire.amqp010.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME_HEAD_SIZE,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    write_frame_head,
    write_segment,
)
from waybill.wire.amqp010.message_header import (
    ABSENT,
    DELIVERY_PROPERTIES,
    HeaderFacts,
    delivered_header,
    scan_header,
    write_delivery_properties,
)
from waybill.wire.amqp010.transfer import transfer_payload

CODE_START: Final = SIZE_OCTETS + 4
CODE_END: Final = SIZE_OCTETS + 6
DELIVERY_CODE: Final = b"\x04\x01"
"""Where the code of the first struct of a header segment is, and that of delivery-properties."""
INFINITE: Final = 1 << 62
COUNTED: Final = 1 << 61
"""Credit from this value on is unlimited, and not counted."""
ALL: Final = 0xFFFFFFFF
NAME_OCTETS_MAX: Final = 255
WHOLE_BODY: Final = LAST_SEGMENT | FIRST_FRAME | LAST_FRAME


class Subscription(CreditedConsumer):
    """`is_browser`: it gets copies, which the peer may acquire. `is_window`: the flow mode ("default-flow-mode")."""

    def __init__(
        self,
        session: SessionView,
        queue: Queue,
        destination: str,
        *,
        accepts: bool,
        is_browser: bool,
        exclusive: bool,
        priority: i64,
    ) -> None:
        super().__init__(destination, not accepts, exclusive, priority)
        self.session = session
        self.queue = queue
        self.is_browser = is_browser
        self.is_window = True
        self.is_cancelled = False
        self.message_credit: i64 = 0
        self.octet_credit: i64 = 0
        self.counts_size = True
        self.payload = transfer_payload(
            destination,
            ACCEPT_EXPLICIT if accepts else ACCEPT_NONE,
            ACQUIRE_NOT_ACQUIRED if is_browser else ACQUIRE_PRE_ACQUIRED,
        )
        self.facts = HeaderFacts()
        self._address: Address | None = None
        self._durable = False
        self._priority: i64 = 0
        self._header_size: i64 = 0
        self._channel: i64 = -1
        self._body_size: i64 = -1
        self._body_head = b""
        self._content_size: i64 = -1
        self._size: i64 = 0
        # The bytes before the body of a run's last message, and the part of the message they were made from.
        self._front = b""
        self._prefix = b""
        self._is_again = False
        self._body: i64 = 0
        self._like_max_frame_size: i64 = 0
        self._properties = b""
        self._properties_again = b""
        self._head = b""
        self._head_again = b""
        if is_browser:
            self.selects = self.copies = True

    # --- credit ---

    def has_credit(self) -> bool:
        session = self.session
        connection = session.connection
        if connection is None or self.is_cancelled or connection.is_stalled or not session.is_synced:
            return False
        if session.replay.is_full:
            session.choke()
            return False
        if self.message_credit <= 0 or self.octet_credit <= 0:
            return False
        if self.is_window and not self._fits_window(session):
            return False
        if self.is_browser:
            return self.no_ack or len(session.browsed) < session.window_room or session.grow_window()
        return self.no_ack or len(session.unsettled) < session.unsettled_max

    def _fits_window(self, session: SessionView) -> bool:
        """Whether the session may have one more transfer in flight."""
        windowed = session.windowed
        if windowed.count >= session.unsettled_max:
            return False
        return windowed.run_count < session.window_room or session.grow_window()

    def allowance(self) -> i64:
        session = self.session
        if self.counts_size or session.timeout_s > 0:
            return 1
        credit = self.message_credit
        if self.is_window:
            credit = min(credit, session.unsettled_max - session.windowed.count)
        if not self.no_ack:
            credit = min(credit, session.unsettled_max - len(session.unsettled))
        return credit

    def has_credit_for(self, entry: Entry) -> bool:
        return self._size_of(entry.message) <= self.octet_credit

    def _size_of(self, message: Message) -> i64:
        """The credit that a transfer takes, in bytes. A message that cannot be converted takes none."""
        try:
            content = self._content(message)
        except Inconvertible:
            return 0
        extra: i64 = 0
        if not _has_delivery(content) and message.ttl_ms == NO_TTL:
            self._prepare_for(message, i64(read_i32_be(content, 0)))
            extra = len(self._properties)
            return len(content) - SIZE_OCTETS + extra
        header = self._own_header(message, content, redelivered=False)
        return len(header) + len(content) - SIZE_OCTETS - i64(read_i32_be(content, 0))

    def add_credit(self, value: i64, *, is_octets: bool) -> None:
        credit: i64 = INFINITE if value == ALL else value
        if is_octets:
            self.octet_credit = min(self.octet_credit + credit, INFINITE)
            self.counts_size = self.octet_credit < COUNTED
        else:
            self.message_credit = min(self.message_credit + credit, INFINITE)
        self.credit_available()

    def stop(self) -> None:
        """Revoke all credit, including that of transfers that are not completed."""
        self.message_credit = self.octet_credit = 0
        self.counts_size = True
        session = self.session
        if self.is_window:
            session.runtime.work_left -= session.windowed.forget(self)

    def completed(self, count: i64, size: i64) -> None:
        if self.is_window and not self.is_cancelled:
            self.message_credit = min(self.message_credit + count, INFINITE)
            self.octet_credit = min(self.octet_credit + size, INFINITE)
            if not self.is_active:
                self.credit_available()

    def credit_available(self) -> None:
        if not self.is_cancelled and self.message_credit > 0 and self.octet_credit > 0:
            self.queue.activate(self)

    def cancelled(self) -> None:
        self.is_cancelled = True
        self.session.consumer_cancelled(self, 0)

    # --- delivery ---

    def deliver(self, entry: Entry) -> None:
        session = self.session
        connection = session.connection
        if connection is None:
            return
        message = entry.message
        try:
            content = self._content(message)
        except Inconvertible as error:
            self._pass_over(entry, error)
            return
        number: i64 = session.next_out
        header_size = i64(read_i32_be(content, 0))
        if (
            session.timeout_s > 0
            or message.ttl_ms != NO_TTL
            or _has_delivery(content)
            or header_size > connection.max_frame_size >> 1
        ):
            size = self._deliver_slowly(connection, entry, content, number)
        else:
            self._prepare_for(message, header_size)
            out = connection.out
            out.write(self._head_again if entry.redelivered else self._head)
            body_start = SIZE_OCTETS + header_size
            out.write(content[SIZE_OCTETS:body_start])
            body_size = len(content) - body_start
            if body_size + FRAME_HEAD_SIZE <= connection.max_frame_size:
                if body_size != self._body_size or session.channel != self._channel:
                    self._prepare_body(body_size)
                out.write(self._body_head)
                out.write(content[body_start:])
            else:
                write_segment(out, LAST_SEGMENT, BODY, session.channel, content[body_start:], connection.max_frame_size)
            size = len(self._properties) + header_size + body_size
        session.next_out = number + 1
        self.message_credit -= 1
        self.octet_credit -= size
        if self.is_window:
            session.windowed.add(self, size, number, 1)
        if self.is_browser:
            entry.holder = self
            self._keep_copy(session, number, entry)
        elif not self.no_ack:
            entry.holder = self
            session.unsettled[number] = entry
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(connection.out) > connection.output_high_water:
            connection.is_stalled = True

    def _keep_copy(self, session: SessionView, number: i64, entry: Entry) -> None:
        browsed = session.browsed
        if self.no_ack and len(browsed) >= session.window_room and not session.grow_window():
            # The peer does not report when it is done browsing, so the oldest copy can no longer be acquired.
            del browsed[next(iter(browsed))]
        browsed[number] = entry

    def deliver_all(self, entries: list[Entry]) -> i64:
        """`deliver` each of these messages, without the calls for those that look like the previous one."""
        session = self.session
        connection = session.connection
        if connection is None or session.timeout_s > 0 or self.is_browser:
            for entry in entries:
                self.deliver(entry)
            return len(entries)
        if session.channel != self._channel or connection.max_frame_size != self._like_max_frame_size:
            self._content_size = -1
        count: i64 = len(entries)
        done: i64 = 0
        while done < count:
            done = self._deliver_like(connection, entries, done)
            if done < count:
                message = entries[done].message
                if done > 0 and message.format is not AMQP010 and session.runtime.work_left <= 0:
                    # The conversions so far have used up the turn.
                    count = done
                    break
                self.deliver(entries[done])
                self._expect_like(message, connection)
                done += 1
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(connection.out) > connection.output_high_water:
            connection.is_stalled = True
        return count

    def _deliver_like(self, connection: SessionHost, entries: list[Entry], start: i64) -> i64:
        """Deliver the messages from `start` on that look like the previous one. Returns where they end."""
        session = self.session
        out = connection.out
        no_ack = self.no_ack
        unsettled = session.unsettled
        content_size = self._content_size
        address = self._address
        durable = self._durable
        priority = self._priority
        body = self._body
        at = start
        end: i64 = len(entries)
        number = session.next_out
        while at < end:
            entry = entries[at]
            message = entry.message
            content = message.content
            if (
                len(content) != content_size
                or message.format is not AMQP010
                or message.address is not address
                or message.durable != durable
                or message.priority != priority
                or message.ttl_ms != NO_TTL
            ):
                break
            prefix = content[:body]
            if (prefix != self._prefix or entry.redelivered != self._is_again) and not self._prepare_front(
                prefix, redelivered=entry.redelivered
            ):
                break
            out.write(self._front)
            out.write(content[body:])
            if not no_ack:
                entry.holder = self
                unsettled[number] = entry
            number += 1
            at += 1
        self._sent_run(session.next_out, at - start)
        return at

    def _sent_run(self, first: i64, count: i64) -> None:
        """Count messages that were sent like the previous one."""
        if count > 0:
            session = self.session
            session.next_out = first + count
            size = self._size * count
            self.message_credit -= count
            self.octet_credit -= size
            if self.is_window:
                session.windowed.add(self, self._size, first, count)

    def _prepare_front(self, prefix: bytes, *, redelivered: bool) -> bool:
        """Prepare all that comes before a body. False if the header segment has another form than expected."""
        if i64(read_i32_be(prefix, 0)) != self._header_size or prefix[CODE_START:CODE_END] == DELIVERY_CODE:
            return False
        self._prefix = prefix
        self._is_again = redelivered
        head = self._head_again if redelivered else self._head
        self._front = head + prefix[SIZE_OCTETS:] + self._body_head
        return True

    def _expect_like(self, message: Message, connection: SessionHost) -> None:
        """Remember the sizes of the message just sent, if it was sent without an individual header."""
        content = message.content
        body_size = len(content) - SIZE_OCTETS - self._header_size
        self._content_size = -1
        if (
            message.format is AMQP010
            and message.address is self._address
            and message.durable == self._durable
            and message.priority == self._priority
            and message.ttl_ms == NO_TTL
            and self.session.channel == self._channel
            and body_size == self._body_size
            and body_size + FRAME_HEAD_SIZE <= connection.max_frame_size
            and i64(read_i32_be(content, 0)) == self._header_size
            and not _has_delivery(content)
        ):
            self._content_size = len(content)
            self._like_max_frame_size = connection.max_frame_size
            self._size = len(self._properties) + self._header_size + body_size
            self._body = SIZE_OCTETS + self._header_size
            # The head may have changed.
            self._prefix = b""

    def _deliver_slowly(self, connection: SessionHost, entry: Entry, content: bytes, number: i64) -> i64:
        """Write a transfer with an individual header, or one that may have to be sent again. Returns its size."""
        session = self.session
        header = self._own_header(entry.message, content, redelivered=entry.redelivered)
        body = content[SIZE_OCTETS + int(read_i32_be(content, 0)) :]
        out = connection.out
        write_segment(out, FIRST_SEGMENT, COMMAND, session.channel, self.payload, connection.max_frame_size)
        write_segment(out, 0, HEADER, session.channel, header, connection.max_frame_size)
        write_segment(out, LAST_SEGMENT, BODY, session.channel, body, connection.max_frame_size)
        if session.timeout_s > 0:
            session.replay.add(Sent(number, self.payload, header, body))
        return len(header) + len(body)

    def _own_header(self, message: Message, content: bytes, *, redelivered: bool) -> bytes:
        """The header segment of one message."""
        facts = self.facts
        end = SIZE_OCTETS + i64(read_i32_be(content, 0))
        header = content[SIZE_OCTETS:end]
        if _has_delivery(content):
            scan_header(header, facts)
        else:
            facts.clear()
        facts.priority = ABSENT if message.priority == DEFAULT_PRIORITY else message.priority
        if message.durable:
            facts.delivery_mode = MODE_PERSISTENT
        elif facts.delivery_mode != ABSENT:
            facts.delivery_mode = MODE_NON_PERSISTENT
        ttl_ms: i64 = ABSENT
        if message.ttl_ms != NO_TTL:
            # "ttl-decrement": by the time that the message spent in this broker.
            waited = i64(int((self.session.runtime.now - message.published_at) * 1000.0))
            ttl_ms = max(message.ttl_ms - max(waited, 0), 0)
        address = message.address
        return delivered_header(
            header, facts, cut(address.exchange, NAME_OCTETS_MAX), cut(address.routing_key, NAME_OCTETS_MAX), ttl_ms,
            redelivered=redelivered, end=-1,
        )  # fmt: skip

    def _content(self, message: Message) -> bytes:
        if message.format is AMQP010:
            return message.content
        self.session.runtime.work_left -= conversion_units(message, AMQP010)
        return amqp010_content(message)

    def _prepare_for(self, message: Message, header_size: i64) -> None:
        """Prepare the bytes before the rest of the header, for messages like this one."""
        if (
            message.address is self._address
            and header_size == self._header_size
            and message.durable == self._durable
            and message.priority == self._priority
            and self.session.channel == self._channel
        ):
            return
        address = message.address
        self._address = address
        self._durable = message.durable
        self._priority = message.priority
        self._header_size = header_size
        self._channel = self.session.channel
        self._body_size = self._content_size = -1
        facts = self.facts
        facts.clear()
        facts.priority = ABSENT if message.priority == DEFAULT_PRIORITY else message.priority
        facts.delivery_mode = MODE_PERSISTENT if message.durable else ABSENT
        self._properties = _properties(facts, address, redelivered=False)
        self._properties_again = _properties(facts, address, redelivered=True)
        self._head = self._frames_before(self._properties, header_size)
        self._head_again = self._frames_before(self._properties_again, header_size)

    def _prepare_body(self, size: i64) -> None:
        """Prepare the head of a body frame of that size, outside a run of messages."""
        self._content_size = -1
        out = BytesWriter()
        write_frame_head(out, WHOLE_BODY, BODY, self.session.channel, size + FRAME_HEAD_SIZE)
        self._body_size = size
        self._body_head = out.getvalue()

    def _frames_before(self, properties: bytes, header_size: i64) -> bytes:
        out = BytesWriter()
        channel = self.session.channel
        flags = FIRST_FRAME | LAST_FRAME
        write_frame_head(out, FIRST_SEGMENT | flags, COMMAND, channel, FRAME_HEAD_SIZE + len(self.payload))
        out.write(self.payload)
        write_frame_head(out, flags, HEADER, channel, FRAME_HEAD_SIZE + len(properties) + header_size)
        out.write(properties)
        return out.getvalue()

    def _pass_over(self, entry: Entry, error: ValueError) -> None:
        """A message of another protocol has no form in this one."""
        report_undeliverable(self.session.runtime.operator_log, self.queue.name, error)
        if not self.no_ack:
            self.unsettled_count -= 1
        entry.queue.undeliverable(entry, is_settled=self.no_ack)


def _has_delivery(content: bytes) -> bool:
    """Whether the header segment has delivery-properties, which then come first."""
    return (
        len(content) > SIZE_OCTETS + 6
        and i64(read_i32_be(content, 0)) > 6
        and content[SIZE_OCTETS + 4] << 8 | content[SIZE_OCTETS + 5] == DELIVERY_PROPERTIES
    )


def _properties(facts: HeaderFacts, address: Address, *, redelivered: bool) -> bytes:
    out = BytesWriter()
    write_delivery_properties(
        out,
        facts,
        cut(address.exchange, NAME_OCTETS_MAX),
        cut(address.routing_key, NAME_OCTETS_MAX),
        ABSENT,
        redelivered=redelivered,
    )
    return out.getvalue()
