"""Resumes the deliveries of a link that is attached again (1.0, 3.4.6), as far as credit and window go."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.origin import Origin
from waybill.engine.amqp10.server.outcomes import outcome_of
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.partial_delivery import count_transfer
from waybill.engine.amqp10.server.task import SessionTask
from waybill.engine.amqp10.server.unsettled_map import Resumed
from waybill.engine.conversion.convert import amqp10_content
from waybill.model.entry import Entry
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.wire.amqp10.messaging import Received
from waybill.wire.amqp10.transfer import write_transfer

WRAP: Final = 0xFFFFFFFF
FROM_THE_BEGINNING: Final = Received(0, 0).encode()


class Resumption(SessionTask):
    """The deliveries that one link has still to resume."""

    def __init__(self, link: OutgoingLink) -> None:
        super().__init__(link.session)
        self._link = link

    def work(self) -> bool:
        link = self._link
        if not link.is_attached:
            return True
        session = self.session
        runtime = session.connection.host.runtime
        while link.resuming and link.credit > 0 and session.peer_window > 0 and not session.parked:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 2 + link.resuming[0].entry.message.size // BYTES_PER_UNIT
            delivery = link.resuming.popleft()
            link.awaiting.pop(delivery.tag, None)
            if not delivery.is_gone:
                self._resume(delivery)
        link.is_resuming = False
        if link.drains:
            session.wants_drain()
        link.credit_available()
        return True

    def _resume(self, delivery: Resumed) -> None:
        link = self._link
        entry = delivery.entry
        if delivery.is_known:
            self._resume_known(delivery)
        elif 0.0 < entry.expires_at <= link.connection.host.runtime.now or not entry.queue.page_in(entry):
            # The peer has no record of it, and an expired message is not delivered. One that cannot be read now waits
            # in the queue.
            entry.queue.release(entry, failed=False)
        else:
            # The peer may have received it, and have no record of it.
            entry.redelivered = True
            link.unsettled_count += 1
            link.deliver(entry)
            self._page_out(entry)

    def _page_out(self, entry: Entry) -> None:
        if self.session.connection.host.runtime.pages_out():
            entry.queue.page_out([entry], self._link)

    def _resume_known(self, delivery: Resumed) -> None:
        """Resume a delivery that the peer has in its unsettled map."""
        link = self._link
        session = self.session
        connection = link.connection
        entry = delivery.entry
        number = session.next_delivery_id
        session.next_delivery_id = (number + 1) & WRAP
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & WRAP
        outcome = outcome_of(delivery.state)
        facts = link.transfer_facts(number)
        facts.resume = True
        if outcome is not None:
            facts.settled = 1
            write_transfer(connection.out, session.channel, facts, delivery.tag, outcome.encoded, 0)
            count_transfer(session)
            connection.send(b"")
            outcome.apply(link, entry)
            return
        if not entry.queue.page_in(entry):
            # It waits in the queue until it can be read.
            facts.settled = 1
            facts.aborted = True
            write_transfer(connection.out, session.channel, facts, delivery.tag, b"", 0)
            count_transfer(session)
            connection.send(b"")
            entry.queue.release(entry, failed=False)
            return
        entry.holder = link
        link.unsettled_count += 1
        session.unsettled[number] = entry
        state = FROM_THE_BEGINNING if delivery.state is not None else b""
        link.send_pieces(facts, delivery.tag, state, _payload(link, delivery))
        connection.send(b"")
        self._page_out(entry)


def _payload(link: OutgoingLink, delivery: Resumed) -> bytes:
    """The whole message, from its header on."""
    entry = delivery.entry
    message = entry.message
    content = message.content if message.format is AMQP10 else amqp10_content(message)
    offset: i64 = entry.sequence if link.queue.is_append_only else -1
    content = Origin(message.address).annotate(content, offset)
    now = link.connection.host.runtime.now
    return link.form.header(entry, min(message.priority, 255), now) + content
