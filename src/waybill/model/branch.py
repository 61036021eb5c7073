"""One branch of a distributed transaction (0-10, class dtx): its work, until it is committed or rolled back.

    ACTIVE --prepare--> PREPARED --commit, rollback--> (gone)
    ACTIVE --commit in one phase, rollback--> (gone)
    ACTIVE --fail, time-out--> ABORTED --told to whoever asks for its end--> (gone)

A member is a session that works in the branch, or has suspended its work. A branch that lost a member, or that a member
has marked as failed, can only be rolled back. A prepared branch is stored and waits for its end across restarts.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.entry import Entry
from waybill.model.errors import IllegalState
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer
from waybill.model.transaction import ACCEPT, HELD_MESSAGE_BYTES, Transaction

OK: Final = 0
ROLLED_BACK: Final = 1
TIMED_OUT: Final = 2
"""The results of an end, as XA has them (xa-status)."""

ACTIVE: Final = "active"
PREPARED: Final = "prepared"
ABORTED: Final = "aborted"

WORKING: Final = "working"
SUSPENDED: Final = "suspended"
"""States of a member."""

ABORTED_KEPT_S: Final = 300.0
"""How long an aborted branch is kept, so that its outcome can still be queried."""


class BranchHost:
    """What a branch needs of the branches of its node."""

    runtime: Runtime

    def write(self, branch: "Branch") -> None:
        """Store a branch that is prepared."""
        raise NotImplementedError

    def erase(self, branch: "Branch") -> None:
        """Remove a prepared branch from the store."""
        raise NotImplementedError

    def take(self, branch: "Branch", size: i64) -> bool:
        """Count memory that a branch holds. False, and nothing is counted, if there is no room."""
        raise NotImplementedError

    def give_back(self, branch: "Branch", size: i64) -> None:
        raise NotImplementedError

    def forget(self, branch: "Branch") -> None:
        """Remove a branch that has ended and was reported."""
        raise NotImplementedError


class Branch(Timer):
    """`xid` is its identity, as octets that only the engine reads. `timeout_s`: 0 for none.

    `records`: where the store has it once it is prepared: sequences and locations. `is_restored`: it was prepared in an
    earlier life of the node.
    """

    def __init__(self, host: BranchHost, virtual_host: str, user: str, xid: bytes, units_max: i64) -> None:
        self.virtual_host = virtual_host
        self.user = user
        self.xid = xid
        self.transaction = Transaction(units_max)
        self.state = ACTIVE
        self.is_failed = False
        self.is_expired = False
        self.is_restored = False
        self.members: dict[object, str] = {}
        self.timeout_s: i64 = 0
        self.records: list[tuple[i64, i64]] = []
        self.held: i64 = 0
        self._host = host
        self._deadline: float = 0.0

    # --- members ---

    def end(self, member: object, *, is_failed: bool) -> int:
        """A member ends its work. Returns the status to report to it."""
        if self.members.pop(member, None) is None:
            raise IllegalState("the branch is not associated with this session")
        if is_failed:
            self.is_failed = True
        if self.is_failed and not self.members:
            self._abort()
        if self.is_expired:
            return TIMED_OUT
        return ROLLED_BACK if is_failed else OK

    # --- work ---

    def publish(self, queues: list[Queue], message: Message, units: i64) -> bool:
        """Publish on commit. False, and nothing is added, if there is no room for it."""
        if self.state != ACTIVE:
            return True
        transaction = self.transaction
        size = message.size + HELD_MESSAGE_BYTES
        if not self._host.take(self, size):
            return False
        if not transaction.add_units(units):
            self._host.give_back(self, size)
            return False
        transaction.publish(queues, message)
        return True

    def accept(self, entries: list[Entry], units: i64) -> bool:
        """Remove messages on commit. False, and nothing is added, if there is no room for them."""
        if self.state != ACTIVE:
            for entry in reversed(entries):
                entry.queue.release(entry, failed=False)
            return True
        size = HELD_MESSAGE_BYTES * len(entries)
        if not self._host.take(self, size):
            return False
        if not self.transaction.add_units(units):
            self._host.give_back(self, size)
            return False
        for entry in entries:
            self.transaction.outcomes.append((entry, ACCEPT, 0))
        return True

    # --- completion ---

    def prepare(self) -> int:
        """Promise that `commit` will succeed. The promise holds once everything put in the store is durable."""
        if self.state == PREPARED:
            raise IllegalState("the branch is already prepared")
        self._check_ended()
        if self.state == ABORTED or self.is_failed:
            return self._aborted_status()
        if not self._has_room():
            self._abort()
            return ROLLED_BACK
        self.state = PREPARED
        self._deadline = 0.0
        self._host.write(self)
        return OK

    def commit(self, *, one_phase: bool) -> int:
        self._check_ended()
        if self.state == ABORTED or self.is_failed:
            self._abort()
            self._host.forget(self)
            return self._aborted_status()
        if self.state == PREPARED and one_phase:
            raise IllegalState("the branch is prepared: one-phase is not valid")
        if self.state != PREPARED and not one_phase:
            raise IllegalState("the branch is not prepared: only one-phase is valid")
        if self.state != PREPARED and not self._has_room():
            self._abort()
            self._host.forget(self)
            return ROLLED_BACK
        runtime = self._host.runtime
        with runtime.messages.atomic():
            # Peers may have seen a commit that a crash has undone.
            runtime.publishes_again = self.is_restored
            # A queue may have become full since the branch was prepared.
            runtime.has_promise = True
            try:
                self.transaction.commit(runtime)
            finally:
                runtime.has_promise = False
                runtime.publishes_again = False
            self.transaction.outcomes = []
            self._host.erase(self)
        self._host.forget(self)
        return OK

    def rollback(self) -> int:
        self._check_ended()
        status = TIMED_OUT if self.is_expired else OK
        self._abort()
        self._host.forget(self)
        return status

    def stop(self) -> None:
        """Stop with the node: only prepared branches survive."""
        if self.state == ACTIVE:
            self._abort()

    def _check_ended(self) -> None:
        if self.members and not self.is_expired:
            raise IllegalState("a session still works in the branch")

    def _aborted_status(self) -> int:
        return TIMED_OUT if self.is_expired else ROLLED_BACK

    def _abort(self) -> None:
        """Undo everything. The messages that were accepted are in their queues again."""
        if self.state == ABORTED:
            return
        host = self._host
        runtime = host.runtime
        transaction = self.transaction
        runtime.work_left -= transaction.units >> 1
        with runtime.messages.atomic():
            for entry, _, _ in reversed(transaction.outcomes):
                entry.queue.release(entry, failed=False)
            if self.state == PREPARED:
                host.erase(self)
        self.state = ABORTED
        transaction.outcomes = []
        transaction.publishes = []
        host.give_back(self, self.held)
        self._deadline = runtime.now + ABORTED_KEPT_S
        runtime.timers.schedule(self._deadline, self)

    def _has_room(self) -> bool:
        """Whether the queues have room for the publishes."""
        counts: dict[Queue, int] = {}
        sizes: dict[Queue, int] = {}
        for queues, message in self.transaction.publishes:
            for queue in queues:
                counts[queue] = counts.get(queue, 0) + 1
                sizes[queue] = sizes.get(queue, 0) + int(message.size)
        return all(queue.has_room(count, sizes[queue]) for queue, count in counts.items())

    # --- time ---

    def set_timeout(self, timeout_s: i64) -> None:
        """Roll back this many seconds from now, unless the branch is prepared by then."""
        self.timeout_s = timeout_s
        if self.state != ACTIVE:
            return
        if timeout_s == 0:
            self._deadline = 0.0
            return
        runtime = self._host.runtime
        self._deadline = runtime.now + float(timeout_s)
        runtime.timers.schedule(self._deadline, self)

    def fire(self, now: float) -> None:
        if not 0.0 < self._deadline <= now:
            return
        if self.state == ABORTED:
            self._host.forget(self)
        elif self.state == ACTIVE:
            self.is_expired = True
            self._abort()

    def is_stale(self, at: float) -> bool:
        return at != self._deadline
