"""What one frame asks for, or the end of a link, that may take more than one turn.

The connection takes no further frame before it is done (`Connection.begin`); if the connection goes, it goes on.
Deliveries are taken oldest first: between two turns queues deliver again what went back to them, in its order.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import LINK, Fault
from waybill.engine.amqp10.server.outcomes import Outcome, settle
from waybill.engine.amqp10.termini import CONNECTION_CLOSED, Terminus
from waybill.model.entry import Entry
from waybill.model.queue import Queue
from waybill.model.runtime import BYTES_PER_UNIT, Chore
from waybill.wire.amqp10.errors import DecodeError

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.connection import Connection
    from waybill.engine.amqp10.server.incoming import IncomingLink
    from waybill.engine.amqp10.server.outgoing import OutgoingLink
    from waybill.engine.amqp10.server.session import Session

FEW: Final = 64
"""So many deliveries are done at once."""
LINK_UNITS: Final = 4


class SessionTask(Chore):
    """A chore of a session, which a fault ends."""

    def __init__(self, session: "Session") -> None:
        self.session = session

    def attempt(self) -> bool:
        """As `work`; a fault ends what it concerns, and the task."""
        try:
            return self.work()
        except (Fault, DecodeError) as error:
            self.session.connection.fail_session(self.session, error)
            return True


class Settlement(SessionTask):
    """A disposition of many deliveries: `numbers`, those of them that are settled already being stepped over."""

    def __init__(self, session: "Session", numbers: list[i64], outcome: Outcome | None, *, settled: bool) -> None:
        super().__init__(session)
        self._numbers = numbers
        self._outcome = outcome
        self._settled = settled
        self._next: i64 = 0

    def work(self) -> bool:
        session = self.session
        runtime = session.connection.host.runtime
        numbers = self._numbers
        count: i64 = len(numbers)
        # What goes back, or to dead letters, costs as much as a message that is published; so does an answer.
        cost: i64 = FEW >> 1 if self._outcome is not None and self._outcome.is_accepted else FEW
        if not self._settled:
            cost += FEW
        while self._next < count:
            if runtime.work_left <= 0:
                return False
            first = self._next
            self._next = min(first + FEW, count)
            runtime.work_left -= cost
            for number in numbers[first : self._next]:
                entry = session.unsettled.get(number)
                if entry is not None:
                    settle_one(session, number, entry, self._outcome, settled=self._settled)
        return True


def settle_one(session: "Session", number: i64, entry: Entry, outcome: Outcome | None, *, settled: bool) -> None:
    """Settle a delivery. An outcome that its link does not have detaches the link."""
    link = session.link_of(entry)
    if outcome is not None and outcome.changes:
        session.connection.host.runtime.work_left -= entry.message.size // BYTES_PER_UNIT + 1
    try:
        settle(session, link, number, entry, outcome, settled=settled)
    except Fault as fault:
        if fault.scope != LINK:
            raise
        session.detach_outgoing(link, fault.error)


class OneByOne(SessionTask):
    """Takes `count` things, one after the other, for a unit each."""

    def __init__(self, session: "Session", count: i64) -> None:
        super().__init__(session)
        self._count: i64 = count
        self._next: i64 = 0

    def take(self, index: i64) -> None:
        raise NotImplementedError

    def work(self) -> bool:
        runtime = self.session.connection.host.runtime
        while self._next < self._count:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            index = self._next
            self._next += 1
            self.take(index)
        return True


class LateSettlement(OneByOne):
    """The same for deliveries whose links are detached for the time being."""

    def __init__(self, session: "Session", numbers: list[i64], outcome: Outcome | None) -> None:
        super().__init__(session, i64(len(numbers)))
        self._numbers = numbers
        self._outcome = outcome

    def take(self, index: i64) -> None:
        self.session.left_behind.settle(self.session, self._numbers[index], self._outcome)


class Forgetting(SessionTask):
    """The peer settles what it sent, by many links or a great many deliveries: `last` is the last of them."""

    def __init__(self, session: "Session", first: i64, last: i64) -> None:
        super().__init__(session)
        self._first: i64 = first
        self._last: i64 = last
        self._links = list(session.incoming.values())
        self._link_index: i64 = 0
        self._tags: list[bytes] = []

    def work(self) -> bool:
        runtime = self.session.connection.host.runtime
        while True:
            if runtime.work_left <= 0:
                return False
            if self._tags:
                some = self._tags[-FEW:]
                del self._tags[-FEW:]
                runtime.work_left -= len(some)
                some.reverse()
                self._links[self._link_index - 1].forget(some)
            elif self._link_index < len(self._links):
                link = self._links[self._link_index]
                self._link_index += 1
                runtime.work_left -= len(link.terminus.settling) >> 5
                self._tags = link.settling_among(self._first, self._last)
                self._tags.reverse()
            else:
                return True


class GivingUp(OneByOne):
    """The default outcome for what a terminus that is gone has held."""

    def __init__(self, link: "OutgoingLink", entries: list[Entry], terminus: Terminus) -> None:
        super().__init__(link.session, i64(len(entries)))
        self._link = link
        self._entries = entries
        self._terminus = terminus

    def take(self, index: i64) -> None:
        self._link.default_outcome.apply(self._link, self._entries[index])

    def work(self) -> bool:
        if not super().work():
            return False
        self._terminus.let_go()
        return True


class Resumption(SessionTask):
    """A link that was attached again goes on with its deliveries."""

    def __init__(self, link: "OutgoingLink") -> None:
        super().__init__(link.session)
        self._link = link

    def work(self) -> bool:
        return not self._link.is_attached or self._link.resume()


class SessionEnd(SessionTask):
    """A session has ended by an event: its links are detached."""

    def __init__(
        self, session: "Session", event: int, outgoing: "list[OutgoingLink]", incoming: "list[IncomingLink]"
    ) -> None:
        super().__init__(session)
        self._event = event
        self._outgoing = outgoing
        self._incoming = incoming
        outgoing.reverse()
        incoming.reverse()

    def work(self) -> bool:
        session = self.session
        runtime = session.connection.host.runtime
        while self._outgoing or self._incoming or session.suspended:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= LINK_UNITS
            if self._outgoing:
                self._outgoing.pop().detached(self._event, closed=False)
            elif self._incoming:
                self._incoming.pop().detached(self._event, closed=False)
            else:
                terminus = session.suspended.pop()
                if terminus.link is None and not terminus.detached(self._event):
                    session.connection.suspended.append(terminus)
        session.unsettled = {}
        return True


class Ending(Chore):
    """A connection is gone. What its frames asked for is done; then its sessions end, and what it had for itself."""

    def __init__(
        self, connection: "Connection", tasks: deque[SessionTask], sessions: "list[Session]", queues: list[Queue]
    ) -> None:
        self._connection = connection
        self._queues = queues
        queues.reverse()
        self._tasks = tasks
        self._sessions = sessions
        sessions.reverse()

    def work(self) -> bool:
        connection = self._connection
        runtime = connection.host.runtime
        while self._tasks or self._sessions:
            if runtime.work_left <= 0:
                return False
            if self._tasks:
                task = self._tasks.popleft()
                if not task.attempt():
                    self._tasks.appendleft(task)
                continue
            runtime.work_left -= LINK_UNITS
            end = self._sessions.pop().close(CONNECTION_CLOSED)
            if end is not None:
                self._tasks.append(end)
        suspended = connection.suspended
        while suspended:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= LINK_UNITS
            terminus = suspended.pop()
            if terminus.link is None:
                terminus.detached(CONNECTION_CLOSED)
        while self._queues:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= LINK_UNITS
            queue = self._queues.pop()
            if not queue.is_deleted:
                connection.virtual_host.remove_queue(queue)
        return True
