"""The attached and detached sessions of a node, by virtual host, user and name.

A session belongs to its user: the same name of another user is another session. A detached session is kept for the
timeout that its peer requested. A restart of the node ends all sessions; a peer notices when it attaches, by a session
that expects no command.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.server_engine import Confirming
from waybill.model.footprint import SESSION_BYTES
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer

KEPT_PER_USER_MAX: Final = 1024
KEPT_MAX: Final = 16_384
TIMEOUT_MAX_S: Final = 86_400

SessionKey = tuple[str, str, bytes]


class DetachableSession(Confirming):
    """A session, for those that look it up by name. `timeout_s`: how long it is kept while detached."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.timeout_s = 0
        # The memory of a session with its subscriptions.
        self.attached_memory: i64 = SESSION_BYTES + len(key[2])
        self.wait = Wait(self)

    def expire(self) -> None:
        """Its timeout has passed: give everything back."""
        raise NotImplementedError


class Wait(Timer):
    """Ends a session that was detached for too long."""

    def __init__(self, session: DetachableSession) -> None:
        self._session = session
        self._deadline: float = 0.0

    @property
    def is_on(self) -> bool:
        return self._deadline > 0.0

    def begin(self, runtime: Runtime) -> None:
        self._deadline = runtime.now + self._session.timeout_s
        runtime.timers.schedule(self._deadline, self)

    def end(self) -> None:
        self._deadline = 0.0

    def fire(self, now: float) -> None:
        if 0.0 < self._deadline <= now:
            self._session.expire()

    def is_stale(self, at: float) -> bool:
        return at != self._deadline


class Sessions:
    """All sessions of a node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_key: dict[SessionKey, DetachableSession] = {}
        self._kept: dict[str, int] = {}
        self._kept_count = 0
        self.kept_per_user_max = KEPT_PER_USER_MAX

    def find(self, key: SessionKey) -> DetachableSession | None:
        return self._by_key.get(key)

    def add(self, session: DetachableSession) -> None:
        self._by_key[session.key] = session

    def remove(self, session: DetachableSession) -> None:
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]

    def release_all(self) -> None:
        """The node stops: end all sessions, so that their deliveries are ready again, marked as redelivered."""
        for session in list(self._by_key.values()):
            session.expire()

    def keep(self, session: DetachableSession) -> bool:
        """Keep a session that is detached now. False if its user, or the node, has too many of these."""
        user = session.key[1]
        count = self._kept.get(user, 0)
        if count >= self.kept_per_user_max or self._kept_count >= KEPT_MAX:
            return False
        self._kept[user] = count + 1
        self._kept_count += 1
        self._runtime.add_footprint(session.attached_memory)
        session.wait.begin(self._runtime)
        return True

    def unkeep(self, session: DetachableSession) -> None:
        """A session that was kept is attached again, or has ended."""
        user = session.key[1]
        count = self._kept.get(user, 0) - 1
        if count > 0:
            self._kept[user] = count
        else:
            self._kept.pop(user, None)
        self._kept_count -= 1
        self._runtime.add_footprint(-session.attached_memory)
        session.wait.end()
