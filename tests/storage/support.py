"""What several tests of storage need."""

from random import Random

from waybill.model.message import Address, Message, MessageFormat
from waybill.model.store import CommitWaiter
from waybill.node.commit_waiters import call_waiters
from waybill.storage.commit import Commit, CommittingStore
from waybill.storage.filesystem import Filesystem
from waybill.storage.journal import Journal, JournalOptions
from waybill.testing.simulated_disk import SimulatedDisk

FORMAT = MessageFormat(1, "AMQP 0-9-1")
ADDRESS = Address("amq.direct", "key")


class Waiter(CommitWaiter):
    def __init__(self) -> None:
        self.marks: list[int] = []

    def committed(self, mark: int) -> None:
        self.marks.append(int(mark))


def message(content: bytes, *, priority: int = 0, ttl_ms: int = -1, published_at: float = 1.5) -> Message:
    return Message(FORMAT, content, ADDRESS, True, priority, ttl_ms, published_at)


def commit(store: CommittingStore) -> bool:
    """Do one commit, if there is anything to do."""
    work = store.begin_commit()
    if work is None:
        return False
    work.execute()
    end_commit(store, work)
    return True


def end_commit(store: CommittingStore, work: Commit) -> None:
    """End a commit as the node does."""
    store.end_commit(work)
    call_waiters(work)


def commit_durably(store: CommittingStore) -> None:
    waiter = Waiter()
    store.wait(waiter, 1)
    commit(store)
    assert waiter.marks == [1]


def maintain(journal: Journal) -> None:
    """Let upkeep run until it has nothing to do."""
    for _ in range(1000):
        more = journal.maintain(0.0)
        while commit(journal):
            pass
        if not more:
            return
    raise AssertionError("upkeep does not come to an end")


def new_disk(seed: int = 1) -> SimulatedDisk:
    return SimulatedDisk(Random(seed))


def open_journal(filesystem: Filesystem, segment_bytes: int = 64 << 20, open_logs_max: int = 128) -> Journal:
    return Journal.open(filesystem, [FORMAT], JournalOptions(segment_bytes, open_logs_max))


def contents(journal: Journal, queue_id: int) -> list[bytes]:
    return [stored.message.content for stored in journal.recovered(queue_id)]
