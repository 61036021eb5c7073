"""What the clients of a soak know, and what must therefore be true after a kill."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final

SHOWN: Final = 20
IN_DOUBT: Final = frozenset({"preparing", "prepared", "committing", "rolling back"})
"""How far a branch may have come that is found in doubt."""


class BrokenPromiseError(AssertionError):
    """The broker lost, repeated or tore apart something that it had promised."""


def promise(kept: object, text: str, numbers: Iterable[object] = ()) -> None:
    """Raise `BrokenPromiseError` unless `kept`, naming some of the numbers that are concerned."""
    if not kept:
        shown = sorted(numbers, key=str)
        raise BrokenPromiseError(f"{text}: {len(shown)}, among them {shown[:SHOWN]}" if shown else text)


@dataclass
class Figures:
    """Counts over all rounds. `unknown`: published or settled when the broker died, so either outcome was right."""

    rounds: int = 0
    confirmed: int = 0
    settled: int = 0
    returned: int = 0
    unknown: int = 0
    redelivered: int = 0
    transactions: int = 0
    moved: int = 0
    appended: int = 0
    branches: int = 0
    in_doubt: int = 0
    lost: int = 0
    came_back: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, item.name):,} {item.name.replace('_', ' ')}" for item in fields(self))


@dataclass
class WorkLedger:
    """The queue with publishers and consumers. Numbers below `floor` were accounted for in an earlier round."""

    next_number: int = 0
    floor: int = 0
    confirmed: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)

    def deliver(self, number: int, *, redelivered: bool) -> None:
        """A consumer got a message."""
        promise(number >= self.floor, f"message {number} of an earlier round came back")
        promise(number < self.next_number, f"message {number} was never published")
        promise(number not in self.settled, f"message {number} came back after it was settled")
        promise(redelivered or number not in self.delivered, f"message {number} came twice, without being flagged")
        self.delivered.add(number)

    def check(self, found: list[tuple[int, bool]], figures: Figures) -> None:
        """`found`: what the queue held after the restart, with redelivered flags."""
        numbers = {number for number, _ in found}
        twice = [number for number, count in Counter(number for number, _ in found).items() if count > 1]
        promise(not twice, "messages are in the queue twice", twice)
        missing = self.confirmed - self.settled - self.acked - numbers
        figures.lost += len(missing)
        promise(not missing, "confirmed messages are lost", missing)
        back = numbers & self.settled
        figures.came_back += len(back)
        promise(not back, "settled messages came back", back)
        for number, redelivered in found:
            self.deliver(number, redelivered=redelivered)
        figures.confirmed += len(self.confirmed)
        figures.settled += len(self.settled | numbers)
        figures.unknown += self.next_number - self.floor - len(self.settled | self.confirmed | self.returned)
        figures.returned += len(self.returned)
        figures.redelivered += sum(redelivered for _, redelivered in found)
        self.floor = self.next_number
        self.confirmed = set()
        self.returned = set()
        self.delivered = set()
        self.acked = set()
        self.settled = set()


@dataclass
class TransactionLedger:
    """Transactions of several messages, by their number; and moves from one queue to another."""

    next_number: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    movable: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)

    def check(self, found: list[int], figures: Figures) -> None:
        """`found`: the transaction's number of each message in any of the queues."""
        counts = Counter(found)
        promise(
            counts.keys() <= self.sizes.keys(), "messages of old transactions came back", counts.keys() - self.sizes
        )
        torn = [number for number, count in counts.items() if count != self.sizes[number]]
        promise(not torn, "transactions are torn", torn)
        missing = self.committed - counts.keys()
        figures.lost += len(missing)
        promise(not missing, "committed transactions are lost", missing)
        figures.transactions += len(self.committed)
        self.sizes = {}
        self.committed = set()

    def check_moves(self, source: list[int], target: list[int], figures: Figures) -> None:
        """A move is an ack and a publish in one transaction: each message is in exactly one place."""
        counts = Counter([*source, *target])
        promise(set(counts) == self.movable, "moved messages are lost or strange", set(counts) ^ self.movable)
        promise(len(counts) == counts.total(), "messages are in both places", [n for n, c in counts.items() if c > 1])
        promise(self.moved <= set(target), "committed moves are undone", self.moved - set(target))
        figures.moved += len(self.moved)
        self.movable = set()
        self.moved = set()


@dataclass
class BranchLedger:
    """Moves from one queue to another, each in a branch of a distributed transaction, by its number.

    `states` and `numbers`: of each branch, how far it has come and what it moves. `movable`: all there is.
    """

    next_branch: int = 0
    next_number: int = 0
    states: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, set[int]] = field(default_factory=dict)
    movable: set[int] = field(default_factory=set)

    def begin(self) -> int:
        number = self.next_branch
        self.next_branch += 1
        self.states[number] = "open"
        self.numbers[number] = set()
        return number

    def recovered(self, in_doubt: list[int]) -> None:
        """The broker tells which branches are in doubt after a kill: what has become of the others follows."""
        strange = [number for number in in_doubt if self.states.get(number, "open") not in IN_DOUBT]
        promise(not strange, "branches are in doubt that cannot be", strange)
        lost = [number for number, state in self.states.items() if state == "prepared" and number not in in_doubt]
        promise(not lost, "prepared branches are forgotten", lost)
        for number, state in self.states.items():
            if number not in in_doubt and state != "committed":
                self.states[number] = "committed" if state == "committing" else "rolled back"

    def check(self, source: list[int], target: list[int]) -> None:
        """Every branch is decided: what was committed is in the target, and all else in the source."""
        committed = [branch for branch, state in self.states.items() if state == "committed"]
        moved = [number for branch in committed for number in self.numbers[branch]]
        promise(len(moved) == len(set(moved)), "messages were moved twice", moved)
        counts = Counter([*source, *target])
        promise(set(counts) == self.movable, "messages of branches are lost or strange", set(counts) ^ self.movable)
        promise(len(counts) == counts.total(), "branches are half done", [n for n, c in counts.items() if c > 1])
        promise(set(target) == set(moved), "branches are half done", set(target) ^ set(moved))
        self.states = {}
        self.numbers = {}
        self.movable = set()


@dataclass
class StreamLedger:
    """A stream: what its one publisher appended, and what its reader saw, by offset. Checked up to `end`."""

    end: int = 0
    next_number: int = 0
    confirmed: set[int] = field(default_factory=set)
    seen: dict[int, bytes] = field(default_factory=dict)
    next_offset: int = 0

    def read(self, offset: int, body: bytes) -> None:
        """The reader got a record: the next one."""
        promise(offset == self.next_offset, f"a reader got offset {offset} and not {self.next_offset}")
        self.next_offset = offset + 1
        self.seen[offset] = body

    def check(self, records: list[tuple[int, bytes]], figures: Figures) -> None:
        """`records`: everything from `end` on, read after the restart."""
        offsets = [offset for offset, _ in records]
        promise(offsets == list(range(self.end, self.end + len(records))), "a stream's offsets have gaps", offsets)
        bodies = dict(records)
        changed = [offset for offset, body in self.seen.items() if bodies.get(offset) != body]
        promise(not changed, "a stream lost or changed what was read", changed)
        numbers = [int(body.split()[0]) for _, body in records]
        promise(numbers == sorted(set(numbers)), "a stream has lost its order, or has messages twice", numbers)
        missing = self.confirmed - set(numbers)
        figures.lost += len(missing)
        promise(not missing, "confirmed messages of a stream are lost", missing)
        figures.appended += len(self.confirmed)
        self.end += len(records)
        self.confirmed = set()
        self.seen = {}
