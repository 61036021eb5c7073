"""A local transaction: publishes and outcomes that are held until commit, and then are atomic."""

from typing import Final

from mypy_extensions import i64

from waybill.model.death_headers import DEATH_UNITS
from waybill.model.entry import Entry
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.runtime import BYTES_PER_UNIT, Runtime

ACCEPT: Final = "accept"
REJECT: Final = "reject"
RELEASE: Final = "release"
HELD_MESSAGE_BYTES: Final = 256
"""The approximate memory of a message besides its content."""
UNITS_MAX: Final = 16_384
"""A commit is one step, which blocks all other peers, so it must be short."""
MESSAGE_UNITS_MAX: Final = UNITS_MAX >> 1
"""What the headers of one message cost at most, and its size: however large it is, a transaction may have it."""
ACCEPT_UNITS: Final = 1
OTHER_UNITS: Final = 2


def too_large(units_max: i64) -> str:
    """The error text for a transaction that is too large."""
    return (
        f"a transaction holds more than {units_max}: an acceptance is 1, any other outcome or copy of a message 2, "
        f"each {BYTES_PER_UNIT} octets of a message 1, and {DEATH_UNITS} more if it may lead to a dead letter"
    )


def publish_units(queues: list[Queue], message: Message) -> i64:
    """The units of a publish to these queues, which may be full when it takes place."""
    units: i64 = min(message.size // BYTES_PER_UNIT, MESSAGE_UNITS_MAX)
    for queue in queues:
        units += OTHER_UNITS + queue.overflow_units()
        if queue.reads_headers:
            units += min(message.header_units(), MESSAGE_UNITS_MAX)
    return max(units, OTHER_UNITS)


def outcome_units(entry: Entry, *, is_accepted: bool) -> i64:
    """The units of an outcome. Any outcome except an acceptance may lead to a dead letter, with headers rewritten."""
    if is_accepted:
        return ACCEPT_UNITS
    queue = entry.queue
    units = OTHER_UNITS + queue.death_units
    if queue.death_units > 0 and queue.page_in(entry):
        units += min(entry.message.header_units() << 1, MESSAGE_UNITS_MAX)
    return units


class Transaction:
    """The operations of a channel or link in a transaction, in order.

    `outcomes` holds each entry with its outcome and the engine's own number for the delivery. `size` is the content of
    the publishes in bytes, all of it in memory; `held` is for the engine, which counts what it costs. `units` is about
    the time that its end takes, at most `units_max`.
    """

    def __init__(self, units_max: i64) -> None:
        self.publishes: list[tuple[list[Queue], Message]] = []
        self.size: i64 = 0
        self.held: i64 = 0
        self.units: i64 = 0
        self._units_max: i64 = units_max
        self.outcomes: list[tuple[Entry, str, int]] = []

    def add_units(self, units: i64) -> bool:
        """Count units. False, and nothing is counted, if they exceed the limit."""
        if self.units + units > self._units_max:
            return False
        self.units += units
        return True

    def add_outcomes(self, entries: list[Entry], *, is_accepted: bool) -> bool:
        """Count the units of an outcome for all of these. False, and nothing is counted, if they exceed the limit."""
        units: i64 = 0
        for entry in entries:
            units += outcome_units(entry, is_accepted=is_accepted)
            if self.units + units > self._units_max:
                return False
        return self.add_units(units)

    def publish(self, queues: list[Queue], message: Message) -> None:
        self.publishes.append((queues, message))
        self.size += message.size

    def commit(self, runtime: Runtime) -> bool:
        """Apply everything, atomically. False if a full queue refused one of the messages.

        `outcomes` is kept: the engine returns the credit that they free.
        """
        accepted = True
        runtime.work_left -= self.units >> 1
        with runtime.messages.atomic():
            for queues, message in self.publishes:
                # The time to live starts when a queue gets the message.
                message.published_at = runtime.now
                if not publish_to([queue for queue in queues if not queue.is_deleted], message):
                    accepted = False
            for entry, outcome, _ in self.outcomes:
                if outcome == ACCEPT:
                    entry.queue.accept(entry)
                elif outcome == REJECT:
                    entry.queue.reject(entry)
                else:
                    entry.queue.release(entry, failed=True)
        self.publishes = []
        return accepted
