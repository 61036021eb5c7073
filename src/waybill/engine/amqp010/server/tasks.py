"""Work of a command, or of the end of a session, that may take several turns."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.ids import IdRanges
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.model.entry import Entry, Holder, release_unmarked
from waybill.model.fan_out import FanOut
from waybill.model.runtime import Chore, CountedChore
from waybill.model.transaction import ACCEPT, REJECT, RELEASE
from waybill.wire.amqp010.class_message import Acquired

RUN_MAX: Final = 256
SCAN_UNIT_BITS: Final = 4
UNMARKED: Final = "unmarked"
"""The outcome of a release without `set-redelivered`."""


class CommandTask(Chore):
    """The rest of the command with the count `number`: it is executed when this is done, even on no connection."""

    def __init__(self, session: SessionView, number: i64) -> None:
        self.session = session
        self.number: i64 = number
        session.begin_pending(number)

    def work(self) -> bool:
        if not self.step():
            return False
        self.finish()
        self.session.end_pending(self.number)
        return True

    def step(self) -> bool:
        """Continue as far as the turn allows. Returns True when done."""
        raise NotImplementedError

    def finish(self) -> None:
        """It is done."""


class Removing(CommandTask):
    """A deletion, or a purge."""

    def __init__(self, session: SessionView, number: i64, chore: CountedChore | None) -> None:
        super().__init__(session, number)
        self._chore = chore

    def step(self) -> bool:
        return self._chore is None or self._chore.work()

    def finish(self) -> None:
        self.session.needs_commit()


class Publishing(CommandTask):
    """Publishes a message to very many queues."""

    def __init__(self, session: SessionView, number: i64, fan_out: FanOut) -> None:
        super().__init__(session, number)
        self._fan_out = fan_out

    def step(self) -> bool:
        return self._fan_out.work()

    def finish(self) -> None:
        self.session.needs_commit()


class Settling(CommandTask):
    """Applies one outcome to many deliveries, in their order."""

    def __init__(self, session: SessionView, number: i64, entries: list[Entry], outcome: str) -> None:
        super().__init__(session, number)
        self._entries = entries
        self._outcome = outcome
        self._next: i64 = 0

    def step(self) -> bool:
        entries = self._entries
        runtime = self.session.runtime
        count: i64 = len(entries)
        while self._next < count and runtime.work_left > 0:
            if self._outcome == ACCEPT:
                self._next = accept_run(self.session, entries, self._next)
                continue
            entry = entries[self._next]
            self._next += 1
            runtime.work_left -= 1
            settle_one(entry, self._outcome)
            free(entry)
        return self._next >= count

    def finish(self) -> None:
        self.session.wake_consumers()


class Acquiring(CommandTask):
    """Acquires messages that were browsed, as far as they are still there, in the order of their transfers."""

    def __init__(self, session: SessionView, number: i64, counts: list[i64]) -> None:
        super().__init__(session, number)
        self._counts = counts
        self._next: i64 = 0
        self._newest: i64 = next(reversed(session.unsettled)) if session.unsettled else i64(0)
        self._is_late = False
        self._acquired = IdRanges()

    def step(self) -> bool:
        session = self.session
        counts = self._counts
        while session.is_open and self._next < len(counts):
            if session.runtime.work_left <= 0:
                return False
            session.runtime.work_left -= 1
            self._acquire(session, counts[self._next])
            self._next += 1
        return True

    def _acquire(self, session: SessionView, count: i64) -> None:
        copy = session.browsed.get(count)
        consumer = None if copy is None else copy.holder
        if copy is None or not isinstance(consumer, CreditedConsumer):
            return
        entry = consumer.queue.claim(copy.sequence)
        if entry is None:
            return
        del session.browsed[count]
        self._acquired.add(count, count)
        if consumer.no_ack:
            entry.queue.accept(entry)
            return
        entry.holder = consumer
        consumer.unsettled_count += 1
        session.unsettled[count] = entry
        self._is_late = self._is_late or count < self._newest

    def finish(self) -> None:
        session = self.session
        if self._is_late:
            # Deliveries are ordered by their counts, and these were sent before others.
            session.runtime.work_left -= len(session.unsettled) >> SCAN_UNIT_BITS
            session.unsettled = {number: session.unsettled[number] for number in sorted(session.unsettled)}
        if session.is_open:
            session.send_result(self.number, Acquired(self._acquired.wire()))


def accept_run(session: SessionView, entries: list[Entry], first: i64) -> i64:
    """Accept the deliveries from `first` on that one subscription had. Returns where they end."""
    holder = entries[first].holder
    end = min(i64(len(entries)), first + RUN_MAX)
    last = first + 1
    while last < end and entries[last].holder is holder:
        last += 1
    accept_held(session, entries if first == 0 and last == len(entries) else entries[first:last], holder)
    return last


def accept_held(session: SessionView, run: list[Entry], holder: Holder | None) -> None:
    """Accept deliveries that one subscription had."""
    count: i64 = len(run)
    if count == 0:
        return
    session.runtime.work_left -= 1 + (count >> 1)
    entry = run[0]
    if count == 1:
        entry.queue.accept(entry)
    else:
        entry.queue.accept_all(run)
    if holder is not None:
        holder.unsettled_count -= count


def settle_one(entry: Entry, outcome: str) -> None:
    queue = entry.queue
    if outcome == REJECT:
        queue.reject(entry)
    elif outcome == RELEASE:
        queue.release(entry, failed=False)
    elif outcome == UNMARKED:
        release_unmarked(entry)
    else:
        queue.accept(entry)


def free(entry: Entry) -> None:
    """A subscription has one delivery fewer."""
    holder = entry.holder
    if holder is not None:
        entry.holder = None
        holder.unsettled_count -= 1


class Ending(Chore):
    """Ends a session: removes its subscriptions, requeues deliveries, and deletes or unlocks its exclusive queues."""

    def __init__(self, session: SessionView, consumers: list[CreditedConsumer], entries: list[Entry]) -> None:
        self._session = session
        self._consumers = consumers
        consumers.reverse()
        self._entries = entries
        entries.reverse()

    def work(self) -> bool:
        runtime = self._session.runtime
        # Deliveries first: a queue that is deleted with its last consumer dead-letters all its messages in order.
        while self._entries:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            entry = self._entries.pop()
            entry.queue.release(entry, failed=False)
            free(entry)
        while self._consumers:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            consumer = self._consumers.pop()
            consumer.queue.remove_consumer(consumer)
        virtual_host = self._session.virtual_host
        owners = virtual_host.owners
        for queue in owners.queues_of(self._session):
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 2
            owners.release(queue)
            if queue.auto_delete and not queue.consumers and not queue.is_deleted:
                virtual_host.remove_queue(queue)
        return True
