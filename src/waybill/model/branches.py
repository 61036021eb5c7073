"""The branches of distributed transactions of a node, and how prepared ones survive a crash.

A prepared branch is stored as messages of a queue that only this class knows: a record, which names the queues of what
was published and the deliveries that were accepted, and then each durable message. They are put in one atomic section,
and settled in one atomic section with what the commit does. So after a crash a branch is prepared, or has ended, or was
never there.

    | 1 | size, virtual host | size, user | size, xid |
    | count | sequence, count, queue ids ... |            published
    | count | queue id, sequence | ...                    accepted

All numbers have 8 octets. The messages that were accepted are taken out of their queues again when the node starts.
A branch belongs to a user and a virtual host: other users cannot see it.
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from waybill.model.branch import PREPARED, SUSPENDED, WORKING, Branch, BranchHost
from waybill.model.entry import Entry
from waybill.model.errors import BranchExists, IllegalState, NotFound, ResourceRefused
from waybill.model.message import NO_TTL, Address, Message, MessageFormat
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.transaction import ACCEPT, HELD_MESSAGE_BYTES, UNITS_MAX
from waybill.model.virtual_host import VirtualHost

BRANCHES: Final = "dtx"
RECORDS: Final = "records"
PER_USER_MAX: Final = 1024
BRANCH_BYTES: Final = 2000
DEFAULT_TIMEOUT_S: Final = 60
RECORD_VERSION: Final = 1
NOWHERE: Final = Address("", "")


class Branches(BranchHost):
    """Every branch, by virtual host, user and xid. `held_max`: bytes that all branches of one user may hold."""

    def __init__(
        self, runtime: Runtime, record_format: MessageFormat, held_max: i64, units_max: i64 = UNITS_MAX
    ) -> None:
        self.runtime = runtime
        self._format = record_format
        self._held_max: i64 = held_max
        self._units_max: i64 = units_max
        self._branches: dict[tuple[str, str], dict[bytes, Branch]] = {}
        self._held: dict[str, int] = {}
        self._records_id: i64 = 0
        self._next_record: i64 = 1

    # --- for sessions ---

    def start(self, virtual_host: str, user: str, xid: bytes, member: object) -> Branch:
        """Start a branch in which `member` works."""
        branches = self._branches.setdefault((virtual_host, user), {})
        if xid in branches:
            raise BranchExists("the xid is already known")
        if len(branches) >= PER_USER_MAX:
            raise ResourceRefused(f"user '{user}' already has {PER_USER_MAX} transaction branches")
        branch = Branch(self, virtual_host, user, xid, self._units_max)
        branches[xid] = branch
        self.runtime.add_footprint(BRANCH_BYTES)
        branch.set_timeout(DEFAULT_TIMEOUT_S)
        branch.members[member] = WORKING
        return branch

    def join(self, virtual_host: str, user: str, xid: bytes, member: object) -> Branch:
        """Let `member` work in a branch that others have started."""
        branch = self.find(virtual_host, user, xid)
        if branch.state == PREPARED:
            raise IllegalState("the branch is prepared")
        if branch.members.get(member) == SUSPENDED:
            raise IllegalState("the session has suspended this branch: it may resume it")
        branch.members[member] = WORKING
        return branch

    def find(self, virtual_host: str, user: str, xid: bytes) -> Branch:
        branch = self._branches.get((virtual_host, user), {}).get(xid)
        if branch is None:
            raise NotFound("the xid is unknown")
        return branch

    def prepared(self, virtual_host: str, user: str) -> list[bytes]:
        """The xids of the branches in doubt."""
        branches = self._branches.get((virtual_host, user), {})
        return [xid for xid, branch in branches.items() if branch.state == PREPARED]

    def release_all(self) -> None:
        """Stop with the node: roll back what is not prepared; its messages return to their queues as redelivered."""
        for branches in self._branches.values():
            for branch in branches.values():
                branch.stop()

    # --- for branches ---

    def take(self, branch: Branch, size: i64) -> bool:
        runtime = self.runtime
        held = self._held.get(branch.user, 0)
        if held + size > self._held_max or runtime.held_bytes + size > runtime.held_limit_bytes:
            return False
        self._hold(branch, size)
        return True

    def _hold(self, branch: Branch, size: i64) -> None:
        branch.held += size
        self._held[branch.user] = self._held.get(branch.user, 0) + int(size)
        self.runtime.held_bytes += size

    def give_back(self, branch: Branch, size: i64) -> None:
        branch.held -= size
        self.runtime.held_bytes -= size
        left = self._held.get(branch.user, 0) - int(size)
        if left > 0:
            self._held[branch.user] = left
        else:
            self._held.pop(branch.user, None)

    def forget(self, branch: Branch) -> None:
        owner = (branch.virtual_host, branch.user)
        branches = self._branches.get(owner)
        if branches is None or branches.get(branch.xid) is not branch:
            return
        del branches[branch.xid]
        if not branches:
            del self._branches[owner]
        self.give_back(branch, branch.held)
        self.runtime.add_footprint(-BRANCH_BYTES)

    # --- the store ---

    def write(self, branch: Branch) -> None:
        runtime = self.runtime
        if self._records_id == 0:
            self._records_id = runtime.store.new_id()
            runtime.store.define(BRANCHES, RECORDS, {"records": int(self._records_id)})
        with runtime.messages.atomic():
            head = self._sequence()
            published: list[tuple[list[Queue], Message, i64]] = []
            for queues, message in branch.transaction.publishes:
                lasting = [queue for queue in queues if queue.is_persistent and not queue.is_deleted]
                if message.durable and lasting:
                    published.append((lasting, message, self._sequence()))
            record = Message(
                self._format,
                _encoded(branch, published),
                NOWHERE,
                durable=True,
                priority=0,
                ttl_ms=NO_TTL,
                published_at=runtime.now,
            )
            branch.records = [(head, runtime.messages.put(self._records_id, head, record))]
            for _, message, sequence in published:
                branch.records.append((sequence, runtime.messages.put(self._records_id, sequence, message)))

    def _sequence(self) -> i64:
        sequence = self._next_record
        self._next_record = sequence + 1
        return sequence

    def erase(self, branch: Branch) -> None:
        for sequence, location in branch.records:
            self.runtime.messages.settle(self._records_id, sequence, location)
        branch.records = []

    def recover(self, virtual_hosts: dict[str, VirtualHost]) -> None:
        """Restore the prepared branches. Their queues have recovered their messages."""
        store = self.runtime.store
        for _, value in store.definitions(BRANCHES):
            records_id = value["records"]
            assert isinstance(records_id, int)  # noqa: S101 - we wrote it
            self._records_id = records_id
        if self._records_id == 0:
            return
        self._next_record = max(self._next_record, store.next_sequence(self._records_id))
        stored: dict[int, tuple[i64, Message]] = {}
        for found in store.recovered(self._records_id):
            stored[int(found.sequence)] = (found.location, found.message)
            self._next_record = max(self._next_record, found.sequence + 1)
        queues = {int(queue.id): queue for host in virtual_hosts.values() for queue in host.queues.values()}
        while stored:
            # A record has a lower sequence than its messages.
            head = next(iter(stored))
            location, message = stored.pop(head)
            try:
                self._restore(_Reader(message.content), head, location, stored, queues, virtual_hosts)
            except (IndexError, ValueError) as error:
                self.runtime.operator_log.error(
                    "a prepared transaction is lost", f"its record cannot be read: {error!r}. It is rolled back"
                )
                self.runtime.messages.settle(self._records_id, head, location)

    def _restore(
        self,
        reader: "_Reader",
        head: i64,
        location: i64,
        stored: dict[int, tuple[i64, Message]],
        queues: dict[int, Queue],
        virtual_hosts: dict[str, VirtualHost],
    ) -> None:
        if reader.number() != RECORD_VERSION:
            raise ValueError("a record of another version")
        virtual_host = reader.text()
        branch = Branch(self, virtual_host, reader.text(), reader.octets(), self._units_max)
        branch.state = PREPARED
        branch.is_restored = True
        branch.records = [(head, location)]
        for _ in range(reader.number()):
            sequence = reader.number()
            targets = [queues[number] for number in reader.numbers() if number in queues]
            if sequence in stored:
                place, message = stored.pop(sequence)
                branch.records.append((sequence, place))
                branch.transaction.publish(targets, message)
                self._hold(branch, message.size + HELD_MESSAGE_BYTES)
        for _ in range(reader.number()):
            queue = queues.get(reader.number())
            sequence = reader.number()
            entry: Entry | None = queue.claim(sequence) if queue is not None else None
            if entry is not None:
                branch.transaction.outcomes.append((entry, ACCEPT, 0))
                self._hold(branch, HELD_MESSAGE_BYTES)
        if virtual_host not in virtual_hosts:
            self.give_back(branch, branch.held)
            self.erase(branch)
            return
        self._branches.setdefault((virtual_host, branch.user), {})[branch.xid] = branch
        self.runtime.add_footprint(BRANCH_BYTES)


def _encoded(branch: Branch, published: list[tuple[list[Queue], Message, i64]]) -> bytes:
    out = BytesWriter()
    write_i64_be(out, RECORD_VERSION)
    for octets in (_octets(branch.virtual_host), _octets(branch.user), branch.xid):
        write_i64_be(out, len(octets))
        out.write(octets)
    write_i64_be(out, len(published))
    for queues, _, sequence in published:
        write_i64_be(out, sequence)
        write_i64_be(out, len(queues))
        for queue in queues:
            write_i64_be(out, queue.id)
    accepted = [entry for entry, _, _ in branch.transaction.outcomes if entry.is_stored]
    write_i64_be(out, len(accepted))
    for entry in accepted:
        write_i64_be(out, _queue_id(entry))
        write_i64_be(out, entry.sequence)
    return out.getvalue()


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _queue_id(entry: Entry) -> i64:
    queue = entry.queue
    return queue.id if isinstance(queue, Queue) else i64(0)


class _Reader:
    """Reads a record. Raises IndexError if it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset: i64 = 0

    def number(self) -> int:
        offset = self._offset
        if offset + 8 > len(self._data):
            raise IndexError("the record ends too early")
        self._offset = offset + 8
        return int(read_i64_be(self._data, offset))

    def numbers(self) -> list[int]:
        return [self.number() for _ in range(self.number())]

    def octets(self) -> bytes:
        size = self.number()
        offset = self._offset
        if size < 0 or offset + size > len(self._data):
            raise IndexError("the record ends too early")
        self._offset = offset + size
        return self._data[int(offset) : int(offset) + size]

    def text(self) -> str:
        return self.octets().decode("utf-8", "surrogateescape")
