"""Deliveries that the peer accepts, releases, rejects or acquires: message.accept and related commands."""

from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.ids import Spans, unwrapped
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.engine.amqp010.server.tasks import SCAN_UNIT_BITS, UNMARKED, Acquiring, Settling, accept_held, accept_run
from waybill.model.entry import Entry, Holder
from waybill.model.transaction import ACCEPT, ACCEPT_UNITS, REJECT, RELEASE, Transaction, too_large
from waybill.wire.amqp010.class_message import MessageAcquire, MessageReject, MessageRelease
from waybill.wire.amqp010.constants import ERROR_RESOURCE_LIMIT_EXCEEDED
from waybill.wire.amqp010.frames import COMMAND, FRAME_HEAD_SIZE, WHOLE, write_frame_head
from waybill.wire.amqp010.sequence import HALF, MASK
from waybill.wire.amqp010.types import Ranges

ONE_RANGE_SIZE: Final = 16
"""Octets of the payload of a message.accept of one range."""
ONE_RANGE_HEAD: Final = b"\x04\x02\x01\x00\x01\x00\x00\x08"
ACCEPT_HEAD_SIZE: Final = FRAME_HEAD_SIZE + 8
ACCEPT_FRAME_SIZE: Final = ACCEPT_HEAD_SIZE + 8
ONE_RANGE_HEADS: Final = frozenset({ONE_RANGE_HEAD, b"\x04\x02\x01\x01\x01\x00\x00\x08"})
SMALL: Final = 256


def counts_in(session: SessionView, ranges: Ranges, known: dict[i64, Entry]) -> list[i64]:
    """The counts of deliveries in `known` within the ranges, which may be much larger."""
    if not known:
        return []
    count: i64 = len(known)
    spans = Spans(ranges, session.next_out, min(next(iter(known)), next(reversed(known))), count)
    if spans.is_small:
        return [number for number in spans.numbers() if number in known]
    session.runtime.work_left -= count >> SCAN_UNIT_BITS
    return [number for number in known if spans.has(number)]


def accept_frames(session: SessionView, head: bytes, data: bytes, o: i64, n: i64) -> i64:
    """Take the frames from `o` on that begin with `head`: each is a message.accept of one range, of one delivery.

    Returns the end of the taken frames: `o` if none was.
    """
    if session.transaction is not None or session.branch is not None or session.browsed or session.is_repeated:
        return o
    unsettled = session.unsettled
    was_full = len(unsettled) >= session.unsettled_max
    lowest = session.next_out - HALF
    entries: list[Entry] = []
    holder: Holder | None = None
    begin = o
    last = min(n, o + SMALL * ACCEPT_FRAME_SIZE) - ACCEPT_FRAME_SIZE
    while o <= last and data[o : o + ACCEPT_HEAD_SIZE] == head:
        both = read_i64_be(data, o + ACCEPT_HEAD_SIZE)
        if (both ^ both >> 32) & MASK:
            break
        # `unwrapped`, without the call.
        entry = unsettled.pop(lowest + ((both - lowest) & MASK), None)
        if entry is not None:
            # A subscription has one queue.
            if entry.holder is not holder:
                accept_held(session, entries, holder)
                entries = []
                holder = entry.holder
            entries.append(entry)
        o += ACCEPT_FRAME_SIZE
    accept_held(session, entries, holder)
    if o > begin:
        count = (o - begin) // ACCEPT_FRAME_SIZE
        session.has_settled = True
        session.received_run(count)
        session.runtime.work_left -= count >> 1
        if was_full:
            session.wake_consumers()
    return o


def accept_head(channel: i64) -> bytes:
    """The beginning of a frame with a message.accept of one range, without `sync`."""
    out = BytesWriter()
    write_frame_head(out, WHOLE, COMMAND, channel, ACCEPT_FRAME_SIZE)
    return out.getvalue() + ONE_RANGE_HEAD


def accept_range(session: SessionView, payload: bytes) -> bool:
    """Execute a message.accept of one range without decoding it. False if it has another form, or is much work.

    The command must have been counted as received.
    """
    if len(payload) != ONE_RANGE_SIZE or payload[:8] not in ONE_RANGE_HEADS:
        return False
    if session.transaction is not None or session.branch is not None:
        return False
    both = read_i64_be(payload, 8)
    number = unwrapped(both >> 32 & 0xFFFFFFFF, session.next_out)
    last = unwrapped(both & 0xFFFFFFFF, session.next_out)
    if not 0 <= last - number < SMALL:
        return False
    unsettled = session.unsettled
    was_full = len(unsettled) >= session.unsettled_max
    entries: list[Entry] = []
    while number <= last:
        entry = unsettled.pop(number, None)
        if entry is not None:
            entries.append(entry)
        number += 1
    _drop_browsed(session, ((both >> 32 & 0xFFFFFFFF, both & 0xFFFFFFFF),))
    _accept(session, entries)
    if was_full:
        session.wake_consumers()
    return True


def _accept(session: SessionView, entries: list[Entry]) -> None:
    done: i64 = 0
    while done < len(entries):
        done = accept_run(session, entries, done)


def _drop_browsed(session: SessionView, ranges: Ranges) -> None:
    """Drop deliveries that were not acquired."""
    if session.browsed:
        was_full = len(session.browsed) >= session.window_room
        for number in counts_in(session, ranges, session.browsed):
            del session.browsed[number]
        session.shrink_window()
        if was_full:
            session.wake_consumers()


def accept(session: SessionView, number: i64, ranges: Ranges) -> None:
    """message.accept: the messages are processed. In a transaction this counts once it is committed."""
    counts = counts_in(session, ranges, session.unsettled)
    session.runtime.work_left -= len(counts) >> 3
    _drop_browsed(session, ranges)
    unsettled = session.unsettled
    transaction = session.transaction
    branch = session.branch
    if branch is not None:
        entries = [unsettled[count] for count in counts]
        if not branch.accept(entries, len(entries) * ACCEPT_UNITS):
            raise _too_large(session)
        for count in counts:
            entry = unsettled.pop(count)
            holder = entry.holder
            if holder is not None:
                entry.holder = None
                holder.unsettled_count -= 1
        session.wake_consumers()
        return
    if transaction is not None:
        if not transaction.add_units(len(counts) * ACCEPT_UNITS):
            raise _too_large(session)
        for count in counts:
            transaction.outcomes.append((unsettled.pop(count), ACCEPT, int(count)))
        return
    _settle(session, number, [unsettled.pop(count) for count in counts], ACCEPT)


def _too_large(session: SessionView) -> Exception:
    return session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, too_large(session.host.limits.transaction_units_max))


def _settle(session: SessionView, number: i64, entries: list[Entry], outcome: str) -> None:
    if entries:
        session.attached.begin(Settling(session, number, entries, outcome))


def release(session: SessionView, number: i64, command: MessageRelease) -> None:
    """message.release: the messages return to their positions in the queue."""
    outcome = RELEASE if command.set_redelivered else UNMARKED
    _settle(session, number, _taken(session, command.transfers), outcome)


def reject(session: SessionView, number: i64, command: MessageReject) -> None:
    """message.reject: dead letters, or messages for the alternate exchange of their queue."""
    _settle(session, number, _taken(session, command.transfers), REJECT)


def _taken(session: SessionView, ranges: Ranges) -> list[Entry]:
    transaction = session.transaction
    if transaction is not None and transaction.outcomes:
        _take_back(session, transaction, ranges)
    counts = counts_in(session, ranges, session.unsettled)
    session.runtime.work_left -= len(counts) >> 3
    _drop_browsed(session, ranges)
    return [session.unsettled.pop(count) for count in counts]


def _take_back(session: SessionView, transaction: Transaction, ranges: Ranges) -> None:
    """Undo accepts of the open transaction for messages that are released now: Qpid's clients roll back like this."""
    accepted: dict[i64, Entry] = {i64(number): entry for entry, _, number in transaction.outcomes}
    session.runtime.work_left -= len(accepted) >> SCAN_UNIT_BITS
    counts = set(counts_in(session, ranges, dict(sorted(accepted.items()))))
    if not counts:
        return
    transaction.outcomes = [one for one in transaction.outcomes if i64(one[2]) not in counts]
    both = {**session.unsettled, **{number: accepted[number] for number in counts}}
    session.unsettled = {number: both[number] for number in sorted(both)}


def acquire(session: SessionView, number: i64, command: MessageAcquire) -> None:
    """message.acquire: give the peer messages that it did not acquire, unless others have acquired them meanwhile."""
    counts = sorted(counts_in(session, command.transfers, session.browsed))
    session.runtime.work_left -= len(counts) >> 3
    session.attached.begin(Acquiring(session, number, counts))
