"""The checks that no planted bug can reach by itself: what the reference model says to histories that must not be."""

from collections.abc import Callable

import pytest

from tests.simulation.ledger import Arrival, Ledger
from tests.simulation.message import Copy, Message
from tests.simulation.queues import FOREVER, QUEUES, QueueSpec, dead_queues
from tests.simulation.stream_history import StreamHistory
from tests.simulation.subscription import Subscription
from tests.simulation.violation import Violation

SPECS = {queue.name: queue for queue in QUEUES}


class History:
    """A ledger with all queues, and a clock that goes on by a second with everything that happens."""

    def __init__(self) -> None:
        queues = list(QUEUES)
        self.ledger = Ledger([*queues, *dead_queues(queues)])
        self.now = 0.0
        self.count = 0

    def publish(self, queue: str, priority: int = 0, channel: str = "channel") -> Message:
        self.now += 1.0
        self.count += 1
        key = f"m{self.count}"
        message = Message(
            key, channel, self.count, f"{key} ".encode(), persistent=True, priority=priority, sent_at=self.now,
            routed_after=self.now, published_in=self.ledger.life,
        )  # fmt: skip
        self.ledger.publish(message, [queue], FOREVER, is_bound=False)
        return message

    def confirmed(self, queue: str, channel: str = "channel") -> Message:
        message = self.publish(queue, channel=channel)
        self.now += 1.0
        self.ledger.confirm(message, self.now)
        return message

    def deliver(self, message: Message, queue: str, *, redelivered: bool = False) -> Copy:
        self.now += 1.0
        return self.ledger.deliver(Arrival(SPECS[queue], message.body, self.now, self.now - 0.5, redelivered))


@pytest.fixture
def history() -> History:
    return History()


def broken(promise: str, act: Callable[[], object]) -> None:
    with pytest.raises(Violation) as caught:
        act()
    assert caught.value.promise == promise


def test_a_transaction_is_recovered_as_a_whole_or_not_at_all(history: History) -> None:
    ledger = history.ledger
    old = history.confirmed("plain")
    settled = history.deliver(old, "plain")
    transaction = ledger.begin()
    new = history.publish("other")
    new.transaction = transaction
    transaction.messages.append(new)
    transaction.settled.append(settled)
    ledger.committing(transaction, history.now)
    ledger.crash()
    history.deliver(new, "other")
    broken(
        "a transaction is recovered as a whole or not at all",
        lambda: history.deliver(old, "plain", redelivered=True),
    )


def test_a_transaction_that_was_seen_after_a_crash_is_whole(history: History) -> None:
    ledger = history.ledger
    transaction = ledger.begin()
    messages = [history.publish("plain"), history.publish("other")]
    for message in messages:
        message.transaction = transaction
    transaction.messages.extend(messages)
    ledger.committing(transaction, history.now)
    ledger.crash()
    history.deliver(messages[0], "plain").settle_sent = True
    broken(
        "a confirmed message is present until settled or removed by a policy",
        lambda: ledger.check_drained(history.now),
    )


def test_only_a_full_queue_refuses(history: History) -> None:
    message = history.publish("strict")
    broken("only a full queue refuses", lambda: history.ledger.refuse(message))


def test_what_was_refused_is_not_delivered(history: History) -> None:
    messages = [history.publish("strict") for _ in range(7)]
    history.ledger.refuse(messages[-1])
    broken("nothing appears that was never published", lambda: history.deliver(messages[-1], "strict"))


def test_one_confirm_a_message(history: History) -> None:
    message = history.confirmed("plain")
    broken("one confirm a message", lambda: history.ledger.confirm(message, history.now))


def test_a_poisonous_message_goes_out_of_the_way(history: History) -> None:
    message = history.confirmed("limited")
    history.deliver(message, "limited")
    for _ in range(2):
        history.deliver(message, "limited", redelivered=True)
    broken(
        "a poisonous message goes out of the way",
        lambda: history.deliver(message, "limited", redelivered=True),
    )


def test_a_queue_is_first_in_first_out_between_publishers(history: History) -> None:
    first, second = history.confirmed("plain", "one"), history.confirmed("plain", "two")
    subscription = Subscription(SPECS["plain"], 0, no_ack=False, name="consumer")
    subscription.took(second.copies["plain"], 10.0, 9.0, redelivered=False)
    broken(
        "a queue is first in, first out",
        lambda: subscription.took(first.copies["plain"], 11.0, 9.0, redelivered=False),
    )


@pytest.mark.parametrize(
    ("offsets", "promise"),
    [
        ([(0, 0), (1, 1), (0, 1)], "an offset is one message for ever"),
        ([(0, 0), (1, 0)], "a message is in a stream once"),
        ([(0, 0), (2, 1)], "a stream is read in order, without a gap"),
    ],
)
def test_readers_of_a_stream(history: History, offsets: list[tuple[int, int]], promise: str) -> None:
    messages = [history.confirmed("log"), history.confirmed("log")]
    stream = StreamHistory(SPECS["log"])
    reader = stream.open("first")

    def read() -> None:
        for offset, index in offsets:
            stream.read(reader, offset, messages[index])

    broken(promise, read)


def test_a_stream_keeps_the_order_of_its_publishers(history: History) -> None:
    messages = [history.confirmed("log"), history.confirmed("log")]
    stream = StreamHistory(SPECS["log"])
    reader = stream.open("first")
    stream.read(reader, 0, messages[1])
    stream.read(reader, 1, messages[0])
    broken("a stream keeps the order of its publishers", lambda: stream.check(messages, 0, 2))


def test_retention_drops_the_oldest_first(history: History) -> None:
    messages = [history.confirmed("rolling") for _ in range(3)]
    stream = StreamHistory(SPECS["rolling"])
    reader = stream.open("first")
    stream.read(reader, 0, messages[0])
    stream.read(reader, 1, messages[2])
    broken("a confirmed message stays in its stream", lambda: stream.check(messages, 0, 2))
    # It may have dropped the first two while somebody read them.
    stream.check(messages, 0, 1)
    stream.check(messages, 1, 1)


def test_a_private_queue_is_not_looked_at_after_its_end(history: History) -> None:
    queue = QueueSpec("private.1", durable=False, is_private=True)
    history.ledger.add_private(queue)
    history.confirmed("private.1")
    history.ledger.private_ended(queue)
    history.ledger.check_drained(history.now)
