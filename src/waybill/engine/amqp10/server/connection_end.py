"""The end of a connection: tasks of its frames, its sessions, its suspended termini and its exclusive queues."""

from collections import deque

from waybill.engine.amqp10.server.session import Session
from waybill.engine.amqp10.server.session_end import LINK_UNITS
from waybill.engine.amqp10.server.session_host import FrameTask, SessionHost
from waybill.engine.amqp10.termini import CONNECTION_CLOSED
from waybill.model.queue import Queue
from waybill.model.runtime import Chore


class ConnectionEnd(Chore):
    """After pending frames are executed, the connection's sessions end."""

    def __init__(
        self, connection: SessionHost, tasks: deque[FrameTask], sessions: list[Session], queues: list[Queue]
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._sessions = sessions
        self._queues = queues
        sessions.reverse()
        queues.reverse()

    def work(self) -> bool:
        return self._end_sessions() and self._end_termini() and self._delete_queues()

    def _end_sessions(self) -> bool:
        runtime = self._connection.host.runtime
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
        return True

    def _end_termini(self) -> bool:
        runtime = self._connection.host.runtime
        suspended = self._connection.suspended
        while suspended:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= LINK_UNITS
            terminus = suspended.pop()
            if terminus.link is None:
                terminus.detached(CONNECTION_CLOSED)
        return True

    def _delete_queues(self) -> bool:
        runtime = self._connection.host.runtime
        while self._queues:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= LINK_UNITS
            queue = self._queues.pop()
            if not queue.is_deleted:
                self._connection.virtual_host.remove_queue(queue)
        return True
