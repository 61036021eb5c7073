"""The request of one frame, or the end of a link, if it may take more than one turn.

The connection takes no further frame before the task is done (`SessionHost.begin`). A task continues when its
connection is lost. Deliveries are taken oldest first: between two turns, queues redeliver requeued messages in order.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import Fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.session_host import FrameTask
from waybill.wire.amqp10.errors import DecodeError

FEW: Final = 64
"""So many deliveries are settled at once."""


class SessionTask(FrameTask):
    """A task of a session. A fault ends the session."""

    def __init__(self, session: LinkHost) -> None:
        self.session = session

    def attempt(self) -> bool:
        try:
            return self.work()
        except (Fault, DecodeError) as error:
            self.session.connection.fail_session(self.session, error)
            return True


class OneByOne(SessionTask):
    """Takes `count` things one after the other, for a unit each."""

    def __init__(self, session: LinkHost, count: i64) -> None:
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
