"""A message as its clients know it, with its copies in queues and the transaction that it may be part of."""

from dataclasses import dataclass, field
from typing import Final

from tests.simulation.queues import FOREVER, QueueSpec

NEVER: Final = float("inf")


@dataclass(eq=False)
class Copy:
    """One message in one queue.

    `deliveries`: how often a client received it, `unflagged` of them without the flag redelivered, `free_deliveries` of
    them without having failed, as 1.0 tells apart. `settle_sent`: a
    client sent an ack for it (or a reject that drops it). `settled_in` and `settled_at`: the life of the node in which
    that settle was processed, and when that became known. `durable_at`: when it became known to be on disk.
    `may_be_gone`: a purge, or the end of its queue, may have taken it. `gone_at`: it has, and since then it is known.
    `route_version`: the state of the binding that it came by; 0 if that does not change. `is_barred`: it was not bound.
    `came_back`: a client released it as if it had never been delivered. `commits`: how many branches may settle it.
    """

    message: "Message"
    queue: QueueSpec
    ttl_s: float = FOREVER
    deliveries: int = 0
    free_deliveries: int = 0
    unflagged: int = 0
    settle_sent: bool = False
    reject_sent: bool = False
    settled_in: int = -1
    settled_at: float = NEVER
    durable_at: float = NEVER
    may_be_gone: bool = False
    gone_at: float = NEVER
    route_version: int = 0
    is_barred: bool = False
    came_back: bool = False
    commits: int = 0

    @property
    def level(self) -> int:
        """Its place among the priorities of its queue."""
        level = self.message.priority
        if self.message.has_ten_priorities:
            # 1.0, 3.2.1: the lowest and the highest priorities share a level.
            level = max(level - (5 - (self.queue.levels + 1) // 2), 0)
        return min(level, self.queue.levels - 1)

    @property
    def is_kept(self) -> bool:
        """Whether it outlives the process."""
        return self.message.persistent and self.queue.durable

    @property
    def source(self) -> "Copy | None":
        """The copy whose death brings this one about."""
        for other in self.message.copies.values():
            if other.queue.dead_letter_to == self.queue.name:
                return other
        return None

    def __str__(self) -> str:
        return f"{self.message.key} in {self.queue.name}"


@dataclass(eq=False)
class Message:
    """One publish. `channel` published it as its `number`th.

    It was sent at `sent_at`, and cannot have been routed before `routed_after`: that differs in a transaction.
    `published_in`: the life of the node then. `confirmed_at`: when its publisher knew that the broker has it.
    `has_ten_priorities`: it came by 1.0. `is_once`: by a link that resumes, so it must not be stored twice.
    """

    key: str
    channel: str
    number: int
    body: bytes
    persistent: bool
    priority: int
    sent_at: float
    routed_after: float
    published_in: int
    copies: dict[str, Copy] = field(default_factory=dict)
    confirmed_at: float = NEVER
    is_refused: bool = False
    transaction: "Transaction | None" = None
    has_ten_priorities: bool = False
    is_once: bool = False

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed_at < NEVER


OPEN: Final = "open"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"


@dataclass(eq=False)
class Transaction:
    """What a channel did since it selected, committed or rolled back. `life`: of the node when the commit was sent.

    While nobody knows whether it was carried out, `was_seen` and `was_undone` collect what clients saw of it in later
    lives: messages of it, and messages that it had settled.
    """

    state: str = OPEN
    life: int = -1
    messages: list[Message] = field(default_factory=list)
    settled: list[Copy] = field(default_factory=list)
    seen_in: int = -1
    undone_in: int = -1

    def could_fail(self) -> bool:
        """Whether a commit may be refused: all queues of a message of it may have been deleted."""
        return any(all(copy.queue.is_volatile for copy in message.copies.values()) for message in self.messages)
