"""The end of a session (1.0, 2.5.3): its links are detached, in as many turns as that takes."""

from typing import Final

from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.task import SessionTask

LINK_UNITS: Final = 4


class SessionEnd(SessionTask):
    """`event`: what has ended the session, see `waybill.engine.amqp10.termini`."""

    def __init__(
        self, session: LinkHost, event: int, outgoing: list[OutgoingLink], incoming: list[IncomingLink]
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
