"""Plants bugs into the broker, from outside, for as long as a block lasts: the proof that each check can fail.

Bugs of the store are made by what stands between it and the disk (`front`), so they can be planted into any build. Bugs
of the broker's logic replace one of its functions by a wrong one, which only interpreted code lets us do.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import waybill.engine.delivery.consumers
import waybill.model.priority_level
import waybill.storage.log
import waybill.storage.message_reader
from tests.simulation.front import Plants
from tests.simulation.logic_bug import (
    CALM,
    CRASHES,
    NETWORK,
    PRESENT,
    READ_ERRORS,
    READS,
    STORED_ONCE,
    LogicBug,
)
from tests.simulation.planting010 import AMQP010_BUGS
from tests.simulation.profile import Troubles
from tests.simulation.violation import Violation
from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.connection import Connection
from waybill.engine.amqp091.server.consumer import ChannelConsumer
from waybill.engine.amqp091.server.octet_window import OctetWindow
from waybill.engine.amqp10.server import attach_target
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.resumption import Resumption
from waybill.engine.amqp10.server.transaction import LinkTransaction, Retired
from waybill.engine.amqp10.server.unsettled_map import Resumed
from waybill.engine.amqp10.termini import Termini, Terminus
from waybill.model.consumer_line import ConsumerLine
from waybill.model.entry import Entry
from waybill.model.errors import ReadPostponed
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.message_queue import MessageQueue
from waybill.model.priority_level import PriorityLevel
from waybill.model.queue import Queue
from waybill.model.removal import Removal
from waybill.model.runtime import Runtime
from waybill.model.stream import Stream
from waybill.model.timers import Timer
from waybill.model.transaction import ACCEPT, RELEASE, Transaction
from waybill.model.virtual_host import VirtualHost
from waybill.storage.message_log import MessageLog

IS_COMPILED: Final = not waybill.storage.log.__file__.endswith(".py")

# --- the wrong functions ---


def fits(data: bytes, index: int, length: int) -> bool:
    """In place of the check of a record's digest."""
    del data, index, length
    return True


def publish_at_once(channel: Channel, queues: list[Queue], message: Message) -> None:
    """In place of keeping a publish for the commit."""
    del channel
    for queue in queues:
        queue.publish(message, 0)


def commit_half(transaction: Transaction, runtime: Runtime) -> bool:
    """A commit that leaves the last message out."""
    transaction.publishes = transaction.publishes[:-1]
    return _commit(transaction, runtime)


class _LateOutcomes(Timer):
    """What a transaction settled, some time after what it published."""

    def __init__(self, outcomes: list[tuple[Entry, str, int]]) -> None:
        self.outcomes = outcomes

    def fire(self, now: float) -> None:
        del now
        for entry, outcome, _ in self.outcomes:
            if outcome == ACCEPT:
                entry.queue.accept(entry)
            else:
                entry.queue.reject(entry)


def commit_in_two_steps(transaction: Transaction, runtime: Runtime) -> bool:
    """A crash may fall between what a transaction published and what it settled."""
    late = _LateOutcomes([outcome for outcome in transaction.outcomes if outcome[1] != RELEASE])
    outcomes = transaction.outcomes
    transaction.outcomes = [outcome for outcome in outcomes if outcome[1] == RELEASE]
    accepted = _commit(transaction, runtime)
    transaction.outcomes = outcomes
    runtime.timers.schedule(runtime.now + 0.1, late)
    return accepted


def expire_early(queue: MessageQueue, now: float) -> None:
    """The clock of time to live runs ahead by a minute."""
    _expire_due(queue, now + 60.0)


def lives_on(entry: Entry) -> bool:
    """Nobody looks at the age of what is delivered."""
    del entry
    return True


def always_room(queue: MessageQueue, count: int, size: int) -> bool:
    del queue, count, size
    return True


def drop_nothing(queue: MessageQueue) -> None:
    del queue


def drop_one_too_many(queue: MessageQueue) -> None:
    """The limit is one lower than was asked for."""
    queue.limits.max_length -= 1
    _drop_overflow(queue)
    queue.limits.max_length += 1


def kill_silently(queue: MessageQueue, entry: Entry, reason: str) -> None:
    """Dead letters go nowhere."""
    del reason
    queue.remove(entry)


def kill_half_way(queue: MessageQueue, entry: Entry, reason: str) -> None:
    """The end of an atomic section is forgotten."""
    queue.store.messages.atomic().__enter__()
    queue.host.dead_letter(queue, entry.message, reason)
    queue.remove(entry)


def say_rejected(host: VirtualHost, queue: Queue, message: Message, reason: str) -> None:
    """Every dead letter was rejected, by its record."""
    del reason
    _dead_letter(host, queue, message, "rejected")


def has_one_more(consumer: ChannelConsumer) -> bool:
    """Credit is one more than the prefetch count."""
    return not consumer.prefetch or consumer.unsettled_count <= consumer.prefetch


def has_room_for_all(window: OctetWindow, size: int) -> bool:
    del window, size
    return True


def has_own_credit(consumer: ChannelConsumer) -> bool:
    """The credit of the whole channel is forgotten."""
    return not consumer.prefetch or consumer.unsettled_count < consumer.prefetch


def activate_anyone(queue: MessageQueue, consumer: ChannelConsumer) -> None:
    """The single active consumer is not alone."""
    if not consumer.is_active:
        consumer.is_active = True
        queue.line.append(consumer)
    queue.runtime.mark_dirty(queue)


def take_any(line: ConsumerLine, consumer: ChannelConsumer) -> None:
    """Priorities of consumers do not count."""
    priority = consumer.priority
    consumer.priority = 0
    _append(line, consumer)
    consumer.priority = priority


def to_lowest_level(queue: MessageQueue) -> PriorityLevel:
    return next(level for level in queue.levels if level.count)


def append_released(level: PriorityLevel, entry: Entry) -> None:
    """What comes back goes to the end, and forgets that it was delivered."""
    entry.redelivered = False
    level.push(entry)


def read_from_next(stream: Stream, start: object) -> int:
    """Readers always begin at the end."""
    del start
    return int(stream.log.next_offset)


def tell_but_read_on(connection: Connection) -> None:
    """The alarm is told, and publishers go on."""
    connection.pause_reading = lambda reason: None  # type: ignore[method-assign]
    _alarm_changed(connection)
    del connection.pause_reading


def wait_for_ever(connection: Connection, now: float) -> None:
    """A peer's silence is not noticed."""
    connection._received_at = now
    _handle_timeout(connection, now)


def keep_silent(connection: Connection, now: float) -> None:
    """No heartbeat is sent."""
    connection._sent_at = now
    _handle_timeout(connection, now)


def purge_in_memory(removal: Removal) -> bool:
    """A purge forgets to tell the store."""
    for removed in removal._removed:
        while removed.take(1000):
            pass
    return True


def own_nothing(host: VirtualHost, connection: object) -> list[Queue]:
    """Exclusive queues are forgotten when their connection goes."""
    del host, connection
    return []


def unbind_nothing(host: VirtualHost, *arguments: object) -> None:
    del host, arguments


def resume_as_new(resumption: Resumption, delivery: Resumed) -> None:
    """What the peer has, and has not settled, is sent as if it were new."""
    link = resumption._link
    link.unsettled_count += 1
    link.deliver(delivery.entry)


def retire_at_once(transaction: LinkTransaction, retired: Retired) -> None:
    """An outcome takes effect before the transaction is discharged."""
    del transaction
    retired.outcome.apply(retired.link, retired.entry)
    retired.link.delivery_settled()


def post_at_once(transaction: LinkTransaction, queues: list[Queue], message: Message) -> None:
    """A posted message does not wait for the discharge."""
    del transaction
    publish_to(queues, message)


def keep_no_tag(termini: Termini, terminus: Terminus, tag: bytes, *, is_accepted: bool) -> None:
    """What came over a link is forgotten with the process."""
    del termini, terminus, tag, is_accepted


def know_no_tag(terminus: Terminus, theirs: object, *, is_complete: bool) -> dict[bytes, None]:
    """What came over a link is not told when it is attached again."""
    del theirs, is_complete
    terminus.settling.clear()
    return {}


def drain_in_part(link: OutgoingLink) -> None:
    """A drain takes one of the credit only."""
    if link.credit > 1:
        link.credit -= 1
        link.delivery_count += 1
    link.drains = False
    link.send_flow()


def has_credit_for_ever(link: OutgoingLink) -> bool:
    """Link credit does not count."""
    return bool(link.session.peer_window > 0 and not link.session.parked and not link.connection.is_stalled)


def shun_nothing(link: OutgoingLink, entry: Entry) -> bool:
    del link, entry
    return True


def drop_unread(level: PriorityLevel) -> int:
    """What cannot be read at once is given up."""
    try:
        return int(_refill(level))
    except ReadPostponed:
        chunk = level.backlog.popleft()
        level.count -= len(chunk.sequences)
        return len(chunk.sequences)


def settle_nothing(log: MessageLog, queue_id: int, sequence: int, location: int) -> None:
    """An ack is not written."""
    del log, queue_id, sequence, location


_append = ConsumerLine.append
_commit = Transaction.commit
_refill = PriorityLevel._refill
_expire_due = MessageQueue.expire_due
_drop_overflow = MessageQueue._drop_overflow
_dead_letter = VirtualHost.dead_letter
_alarm_changed = Connection.alarm_changed
_handle_timeout = Connection.handle_timeout

LOGIC_BUGS: Final[dict[str, LogicBug]] = {
    "transaction_in_two_steps": LogicBug(
        Transaction, "commit", commit_in_two_steps, "nothing durably settled comes back", CRASHES
    ),
    "transaction_at_once": LogicBug(
        Transaction, "publish", publish_at_once, "a transaction takes effect when it is committed", CALM
    ),
    "transaction_half_applied": LogicBug(Transaction, "commit", commit_half, PRESENT, CALM),
    "expired_early": LogicBug(MessageQueue, "expire_due", expire_early, "a message dies of a reason", CALM, "patient"),
    "expired_delivered": LogicBug(
        waybill.engine.delivery.consumers, "_lives_for_now", lives_on, "nothing expired is delivered", CALM, "plain"
    ),
    "limit_ignored": LogicBug(
        MessageQueue, "_drop_overflow", drop_nothing, "a queue keeps to its limit", CALM, "narrow"
    ),
    "limit_too_low": LogicBug(
        MessageQueue, "_drop_overflow", drop_one_too_many, "a message dies of a reason", CALM, "narrow"
    ),
    "overflow_taken": LogicBug(MessageQueue, "has_room", always_room, "a queue keeps to its limit", CALM, "strict"),
    "dead_letter_lost": LogicBug(
        MessageQueue, "kill", kill_silently, "a dead message goes where its queue says", CALM, "mortal"
    ),
    "section_left_open": LogicBug(
        MessageQueue, "kill", kill_half_way, "no atomic section is open between turns", CALM, "mortal"
    ),
    "wrong_cause_of_death": LogicBug(
        VirtualHost, "dead_letter", say_rejected, "a message dies of a reason", CALM, "crowded"
    ),
    "credit_exceeded": LogicBug(ChannelConsumer, "has_credit", has_one_more, "credit holds", CALM),
    "channel_credit_exceeded": LogicBug(ChannelConsumer, "has_credit", has_own_credit, "credit holds", CALM),
    "octets_exceeded": LogicBug(OctetWindow, "has_room", has_room_for_all, "credit holds", CALM),
    "two_active_consumers": LogicBug(
        MessageQueue, "activate", activate_anyone, "one consumer is active", CALM, "single"
    ),
    "consumer_priority_ignored": LogicBug(
        ConsumerLine, "append", take_any, "higher consumer priorities come first", CALM, "plain"
    ),
    "message_priority_ignored": LogicBug(
        MessageQueue, "first_level", to_lowest_level, "higher priorities come first", CALM, "levels"
    ),
    "redelivery_unflagged": LogicBug(
        PriorityLevel, "push_front", append_released, "redelivered is honest", CALM, "plain"
    ),
    "stream_read_elsewhere": LogicBug(
        Stream, "_offset_of", read_from_next, "a stream is read from where the reader asks", CALM, "log"
    ),
    "alarm_ignored": LogicBug(
        Connection, "alarm_changed", tell_but_read_on, "nothing is taken from a blocked publisher", CALM
    ),
    "silence_unnoticed": LogicBug(Connection, "handle_timeout", wait_for_ever, PRESENT, Troubles(silent_deaths=3)),
    "heartbeat_not_sent": LogicBug(Connection, "handle_timeout", keep_silent, "a living peer sends heartbeats", CALM),
    "purge_not_stored": LogicBug(
        Removal, "work", purge_in_memory, "what was purged does not come back", CRASHES, "volatile"
    ),
    "exclusive_queue_stays": LogicBug(
        VirtualHost, "queues_of", own_nothing, "a queue of one connection goes with it", CALM
    ),
    "unbind_ignored": LogicBug(
        VirtualHost, "unbind", unbind_nothing, "nothing appears that was never published", CALM, "roaming"
    ),
    "resumed_as_new": LogicBug(
        Resumption, "_resume_known", resume_as_new, "what both ends know is resumed, and nothing else", NETWORK
    ),
    "retired_at_once": LogicBug(LinkTransaction, "retire", retire_at_once, PRESENT, CALM),
    "posted_at_once": LogicBug(
        LinkTransaction, "publish", post_at_once, "a transaction takes effect when it is committed", CALM
    ),
    "tag_not_stored": LogicBug(Termini, "keep_delivery", keep_no_tag, STORED_ONCE, CRASHES, "plain"),
    "tag_not_told": LogicBug(attach_target, "settling_states", know_no_tag, STORED_ONCE, NETWORK, "plain"),
    "drained_in_part": LogicBug(OutgoingLink, "finish_drain", drain_in_part, "a drain leaves no credit", CALM),
    "link_credit_exceeded": LogicBug(OutgoingLink, "has_credit", has_credit_for_ever, "credit holds", CALM),
    "undeliverable_here_ignored": LogicBug(
        OutgoingLink, "shun", shun_nothing, "undeliverable here is not delivered here again", CALM
    ),
    READS: LogicBug(PriorityLevel, "_refill", drop_unread, PRESENT, READ_ERRORS, "plain"),
    **AMQP010_BUGS,
    "settle_not_stored": LogicBug(MessageLog, "settle", settle_nothing, "nothing durably settled comes back", CRASHES),
}

# Runs with a bug of the store have the troubles that bring it to light.
STORE_TROUBLES: Final = {
    "confirm_before_sync": Troubles(power_losses=2),
    "no_checksum": Troubles(kills=2, power_losses=1, bit_flips=6),
    "no_directory_sync": Troubles(power_losses=2),
    "roll_without_sync": Troubles(power_losses=3),
    "no_sync_after_recovery": Troubles(kills=2, power_losses=2),
    "stream_cut_short": CRASHES,
}
PLANT_NAMES: Final = (*STORE_TROUBLES, *LOGIC_BUGS)


def is_found_by(name: str, error: Exception) -> bool:
    """Whether an error tells of a planted bug: of one in the store any does, what is wrong there may show anywhere."""
    if name in LOGIC_BUGS:
        return isinstance(error, Violation) and error.promise == LOGIC_BUGS[name].promise
    return isinstance(error, (Violation, ValueError))  # A promise, or what a client can read at all.


@dataclass(frozen=True)
class Planting:
    """What a run with a planted bug is to be given."""

    plants: Plants
    troubles: Troubles | None = None
    theme: str | None = None
    speaks_amqp10: bool | None = None
    speaks_amqp010: bool = False


def can_be_planted(name: str) -> bool:
    return not IS_COMPILED or (name in STORE_TROUBLES and name != "no_checksum")


@contextmanager
def short_levels() -> Iterator[None]:
    """Queues keep next to nothing in memory, so that what they deliver has to be read back."""
    with ExitStack() as stack:
        for limit, value in (("HEAD_LIMIT_LENGTH", 2), ("CHUNK_LENGTH", 2)):
            stack.enter_context(patch.object(waybill.model.priority_level, limit, value))
        yield


@contextmanager
def planted(name: str | None) -> Iterator[Planting]:
    """Plant a bug; without a name, none."""
    if name is None:
        yield Planting(Plants())
        return
    with ExitStack() as stack:
        if name == "no_checksum":
            for module in (waybill.storage.log, waybill.storage.message_reader):
                stack.enter_context(patch.object(module, "record_is_whole", fits))
        if name in STORE_TROUBLES:
            yield Planting(Plants.only(name), STORE_TROUBLES[name])
            return
        if name == READS:
            stack.enter_context(short_levels())
        bug = LOGIC_BUGS[name]
        stack.enter_context(patch.object(bug.owner, bug.name, bug.wrong))
        yield Planting(Plants(), bug.troubles, bug.theme, True if bug.is_of_amqp10 else None, bug.is_of_amqp010)
