"""The commands of a session, independent of their content: ids, completion, and the replay of sent commands.

    received   executed in order; `next_in` is the count of the next one executed   unless it waits (`pending`), a
    command is executed once its handler returns completed  sent to the peer at the end of a batch, after the commit if
    a message of the batch had to be stored

So the peer gets one range, and a completion means that everything before it is durable. Completions that the peer
confirms (session.known-completed) are not sent again.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.faults import Fault, session_fault
from waybill.engine.amqp010.server.ids import WRAP, IdRanges, Spans, unwrapped
from waybill.engine.amqp010.server.replay import UNCONFIRMED_BYTES_MAX, Replay, Sent
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.sessions import DetachableSession, SessionKey
from waybill.model.runtime import Runtime
from waybill.wire.amqp010.class_execution import ExecutionResult
from waybill.wire.amqp010.class_message import MessageAccept, MessageReject
from waybill.wire.amqp010.class_session import (
    SessionCommandPoint,
    SessionCompleted,
    SessionConfirmed,
    SessionExpected,
    SessionFlush,
    SessionKnownCompleted,
)
from waybill.wire.amqp010.codec import command_payload, write_command
from waybill.wire.amqp010.constants import ERROR_ILLEGAL_ARGUMENT, ERROR_RESOURCE_LIMIT_EXCEEDED, REJECT_UNROUTABLE
from waybill.wire.amqp010.sequence import MASK
from waybill.wire.amqp010.struct import Command, Struct
from waybill.wire.amqp010.transfer import write_completed
from waybill.wire.amqp010.types import Ranges

KNOWN_EVERY: Final = 4096
"""After this many completions, the peer is asked to confirm that it knows them."""
KNOWN_RANGES: Final = 16
RANGE_UNIT_BITS: Final = 4
UNKNOWN_RANGES_MAX: Final = 512


class CommandSession(DetachableSession):
    """`name` is the peer's. `connection` is None while the session is detached; `channel` counts while it is not.

    `is_synced`: commands may be sent. After a session is attached again, the peer says first which it expects.
    """

    def __init__(self, key: SessionKey, runtime: Runtime) -> None:
        super().__init__(key)
        self.name = key[2]
        self.runtime = runtime
        self.connection: SessionHost | None = None
        self.channel: i64 = 0
        self.is_open = True
        self.is_synced = True
        self.next_in: i64 = WRAP
        self.next_out: i64 = WRAP
        self.replay = Replay(runtime)
        # Deliveries wait until the peer confirms earlier ones.
        self.is_choked = False
        self.pending: dict[i64, None] = {}
        # Commands below this count are repeated in a replay.
        self._highest_in: i64 = WRAP
        self._has_received = False
        self._completed_to: i64 = WRAP
        self._unknown = IdRanges()
        self._told_since_known: i64 = 0
        self._accepted = IdRanges()
        self._rejected = IdRanges()
        self._needs_commit = False
        self._waiting_count: i64 = 0
        self._is_collecting = False

    # --- what is received ---

    def take_point(self, point: SessionCommandPoint) -> None:
        """session.command-point: the id of the next command."""
        number = unwrapped(point.command_id, self.next_in)
        if point.command_offset != 0:
            raise session_fault(ERROR_ILLEGAL_ARGUMENT, "a command cannot be resumed in its middle")
        if not self._has_received:
            self._highest_in = self._completed_to = number
        elif number > self._highest_in:
            raise session_fault(ERROR_ILLEGAL_ARGUMENT, "commands are missing: session.gap leaves some out")
        self.next_in = number

    def take_gap(self, ranges: Ranges) -> None:
        """session.gap: these commands will never come, and count as completed."""
        for low, high in ranges:
            first = unwrapped(low, self.next_in)
            last = unwrapped(high, self.next_in)
            if first <= self.next_in <= last:
                self._has_received = True
                self.next_in = last + 1
                self._highest_in = max(self._highest_in, self.next_in)
        self.collect()

    @property
    def is_repeated(self) -> bool:
        """Whether the next command was executed before, and comes again in a replay."""
        return self.next_in < self._highest_in

    def skip_repeated(self) -> None:
        self.next_in += 1

    def received(self) -> i64:
        """A command was received. Returns its count."""
        number = self.next_in
        if self.replay.size > UNCONFIRMED_BYTES_MAX:
            raise _too_much("commands that were sent, and that the peer has never confirmed")
        self.next_in = number + 1
        self._highest_in = self.next_in
        self._has_received = True
        self.collect()
        return number

    def received_run(self, count: i64) -> None:
        if self.replay.size > UNCONFIRMED_BYTES_MAX:
            raise _too_much("commands that were sent, and that the peer has never confirmed")
        self.next_in += count
        self._highest_in = self.next_in
        self._has_received = True
        self.collect()

    def begin_pending(self, number: i64) -> None:
        """The command takes longer than its handler."""
        self.pending[number] = None

    def end_pending(self, number: i64) -> None:
        self.pending.pop(number, None)
        self.collect()

    # --- completion ---

    def collect(self) -> None:
        """A command was executed: the peer is notified at the end of the batch."""
        if not self._is_collecting and self.connection is not None:
            self._is_collecting = True
            self.connection.confirming(self)

    def needs_commit(self) -> None:
        """Commands of this batch are complete once they are durable."""
        self._needs_commit = True

    def accepted(self, first: i64, last: i64) -> None:
        """Transfers with explicit accept-mode are ours: say so before they are completed."""
        self._accepted.add(first, last)

    def rejected(self, number: i64) -> None:
        self._rejected.add(number, number)

    def settle_confirms(self) -> None:
        self._is_collecting = False
        if not self.is_open:
            return
        mark = next(iter(self.pending)) if self.pending else self.next_in
        if self._needs_commit or self._waiting_count > 0:
            self._needs_commit = False
            self._waiting_count += 1
            self.runtime.store.wait(self, mark)
        else:
            self._complete(mark)

    def committed(self, mark: i64) -> None:
        self._waiting_count -= 1
        if self.is_open:
            self._complete(mark)

    def _complete(self, mark: i64) -> None:
        """All commands below `mark` are completed."""
        first = self._completed_to
        if mark <= first:
            return
        self._completed_to = mark
        self._unknown.add(first, mark - 1)
        self._told_since_known += mark - first
        self._send_dispositions(mark)
        self.tell_completed()

    def _send_dispositions(self, mark: i64) -> None:
        """Send the outcomes of transfers, before their completion."""
        if not self._rejected.is_empty:
            for ranges in self._rejected.all_wire():
                self.send_command(MessageReject(ranges, REJECT_UNROUTABLE, "no queue takes it"))
            self._rejected.clear()
        accepted = self._accepted
        if accepted.is_empty:
            return
        if accepted.lasts[-1] < mark:
            self._send_accepts(accepted)
            accepted.clear()
            return
        done = IdRanges()
        for index in range(len(accepted.firsts)):
            if accepted.firsts[index] < mark:
                done.add(accepted.firsts[index], min(accepted.lasts[index], int(mark) - 1))
        if not done.is_empty:
            accepted.remove_below(mark)
            self._send_accepts(done)

    def _send_accepts(self, accepted: IdRanges) -> None:
        for ranges in accepted.all_wire():
            self.send_command(MessageAccept(ranges))

    def tell_completed(self) -> None:
        connection = self.connection
        if connection is None or not self.is_synced:
            return
        unknown = self._unknown
        self.runtime.work_left -= len(unknown.firsts) >> RANGE_UNIT_BITS
        timely = self._told_since_known >= KNOWN_EVERY or len(unknown.firsts) >= KNOWN_RANGES
        if timely:
            self._told_since_known = 0
        write_completed(connection.out, self.channel, unknown.wire(), timely_reply=timely)
        self.host_has_output(connection)

    def take_known(self, ranges: Ranges) -> None:
        """session.known-completed."""
        unknown = self._unknown
        self.runtime.work_left -= (len(ranges) + len(unknown.firsts)) >> RANGE_UNIT_BITS
        if unknown.is_empty:
            return
        unknown.remove(Spans(ranges, self._completed_to, unknown.firsts[0], 0))
        if len(self._unknown.firsts) > UNKNOWN_RANGES_MAX:
            raise _too_much("gaps in what the peer knows to be completed")

    def take_flush(self, flush: SessionFlush) -> None:
        """session.flush: the peer asks for our state."""
        connection = self.connection
        if connection is None:
            return
        if flush.expected:
            self.tell_expected()
        self.runtime.work_left -= len(self._unknown.firsts) >> RANGE_UNIT_BITS
        if flush.confirmed:
            connection.send_control(self.channel, SessionConfirmed(self._unknown.wire()))
        if flush.completed and self.is_synced:
            # Otherwise the peer is notified after the outcomes of its earlier transfers.
            connection.send_control(self.channel, SessionCompleted(self._unknown.wire()))

    def tell_expected(self) -> None:
        connection = self.connection
        if connection is not None:
            number = int(self._highest_in & MASK)
            ranges: Ranges = ((number, number),) if self._has_received else ()
            connection.send_control(self.channel, SessionExpected(ranges))

    # --- what is sent ---

    def host_has_output(self, connection: SessionHost) -> None:
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)

    def send_command(self, command: Command) -> None:
        """Send a command, or keep it until the session is attached again."""
        self.send_payload(command_payload(command), None, None)

    def send_payload(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.next_out
        self.next_out = number + 1
        if self.timeout_s > 0:
            self.replay.add(Sent(number, payload, header, body))
        connection = self.connection
        if connection is not None and self.is_synced:
            write_command(connection.out, self.channel, payload, header, body, connection.max_frame_size)
            self.host_has_output(connection)

    def send_result(self, number: i64, value: Struct) -> None:
        self.send_command(ExecutionResult(int(number & MASK), value))

    def take_confirmed(self, ranges: Ranges) -> None:
        """session.confirmed: these commands need not be sent again. Raises a fault for ids that were never sent."""
        for low, high in ranges:
            self.sent_range(low, high)
        self._confirm(ranges)
        self.unchoke()

    def _confirm(self, ranges: Ranges) -> None:
        """Drop sent commands that the peer has received."""
        sent = self.replay.sent
        if sent:
            self.replay.confirm(Spans(ranges, self.next_out, sent[0].id, len(sent)))

    def choke(self) -> None:
        """Stop deliveries until the peer confirms received commands, and request that."""
        if not self.is_choked:
            self.is_choked = True
            connection = self.connection
            if connection is not None:
                connection.send_control(self.channel, SessionFlush(confirmed=True))

    def unchoke(self) -> None:
        """The peer has confirmed commands."""
        if self.is_choked and not self.replay.is_full:
            self.is_choked = False
            self.wake_consumers()

    def wake_consumers(self) -> None:
        """Consumers that had no credit may have some again."""
        raise NotImplementedError

    def sent_range(self, low: i64, high: i64) -> tuple[i64, i64]:
        """The counts of commands that we sent. Raises a fault if some were not sent."""
        first = unwrapped(low, self.next_out)
        last = unwrapped(high, self.next_out)
        if last >= self.next_out:
            raise UnknownIds
        return first, last

    def take_completed(self, completed: SessionCompleted) -> None:
        """session.completed: the peer has executed these."""
        connection = self.connection
        self.runtime.work_left -= len(completed.commands) >> RANGE_UNIT_BITS
        for low, high in completed.commands:
            self.sent_range(low, high)
        if self.timeout_s > 0:
            self._confirm(completed.commands)
        self.sent_completed(completed.commands)
        self.unchoke()
        if completed.timely_reply and connection is not None:
            connection.send_control(self.channel, SessionKnownCompleted(completed.commands))

    def completed_range(self, low: i64, high: i64) -> None:
        """`take_completed` of one range, which asks for no reply. Raises UnknownIds."""
        self.sent_range(low, high)
        ranges = ((int(low), int(high)),)
        if self.timeout_s > 0:
            self._confirm(ranges)
        self.sent_completed(ranges)
        self.unchoke()

    def sent_completed(self, ranges: Ranges) -> None:
        """The peer has executed these commands."""
        raise NotImplementedError

    def tell_point(self, number: i64) -> None:
        connection = self.connection
        if connection is not None:
            connection.send_control(self.channel, SessionCommandPoint(int(number & MASK), 0))


def _too_much(what: str) -> Fault:
    return session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, f"too many {what}")


class UnknownIds(Exception):
    """The peer speaks of commands that it was never sent: the session is detached (unknown-ids)."""
