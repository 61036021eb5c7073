"""What routing, consumers and engines know of a queue. `MessageQueue`, `Stream` and `DelayQueue` are its kinds."""

from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.cancellation import Cancellation
from waybill.model.consumer import Consumer
from waybill.model.consumer_line import consumers_in_order
from waybill.model.entry import Entry, EntryQueue
from waybill.model.errors import AccessRefused
from waybill.model.message import Message
from waybill.model.queue_arguments import QueuePolicy
from waybill.model.runtime import CountedChore, Runtime
from waybill.model.store import StoredMessage
from waybill.model.stream_filter import StreamFilter

REFUSED: Final = -1
"""What `publish` returns if a full queue refuses a message."""


class QueueHost:
    """The part of a virtual host that a queue uses."""

    def dead_letter(self, queue: "Queue", message: Message, reason: str) -> None:
        """Publish a dead message to the dead-letter exchange of the queue, if it has one."""
        raise NotImplementedError

    def send_to_alternate(self, queue: "Queue", message: Message) -> None:
        """Publish a rejected message to the alternate exchange of the queue, if it has one."""
        raise NotImplementedError

    def queue_unused(self, queue: "Queue") -> None:
        """Delete a queue: its last consumer has left and it is auto-delete, or it was unused for `x-expires`."""
        raise NotImplementedError


class Queue(EntryQueue):
    """The base of all queues. `owner` is the connection that declared it exclusive, or None.

    Capabilities, which engines ask for instead of the kind:

    - `is_append_only`: consuming removes nothing, outcomes only give credit back, and consumers start at an offset.
    - `stores_transient`: transient messages are written to the store too, so each publish needs a commit.
    - `counts_deliveries`: failed deliveries are counted and shown to consumers.
    """

    stores_transient: bool = False

    def __init__(  # noqa: PLR0913
        self,
        host: QueueHost,
        runtime: Runtime,
        name: str,
        queue_id: i64,
        *,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: dict[str, object],
    ) -> None:
        super().__init__()
        self.host = host
        self.runtime = runtime
        self.store = runtime.store
        self.messages = runtime.messages
        self.name = name
        self.id: i64 = queue_id
        self.durable = durable
        self.is_persistent = durable and owner is None
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.policy = QueuePolicy(arguments)
        self.bindings: dict[str, Binding] = {}
        self.consumers = consumers_in_order(has_single=self.policy.single_active_consumer)
        self.exclusive_consumer: Consumer | None = None
        self._leaving: dict[Consumer, None] = {}
        self.is_deleted = False
        # Its owner decides when it is deleted, not its consumers (0-10).
        self.is_held_by_owner = False
        self.counts_deliveries = False
        # Publishing decodes the headers of a message.
        self.reads_headers = False
        self.next_sequence: i64 = 1
        self.ready_count: i64 = 0
        self.unsettled_count: i64 = 0
        # For operators: see `counts`. `awaiting_redelivery`: about how many went back and are ready.
        self.first_sequence: i64 = 1
        self.delivered: i64 = 0
        self.delivered_no_ack: i64 = 0
        self.polled: i64 = 0
        self.polled_no_ack: i64 = 0
        self.redelivered: i64 = 0
        self.returned: i64 = 0
        self.rejected: i64 = 0
        self.awaiting_redelivery: i64 = 0

    def overflow_units(self) -> i64:
        """How many units of a transaction a publish takes besides its own, if the queue is full then."""
        return 0

    def set_policy(self, policy: QueuePolicy) -> None:
        """Apply new settings."""
        self.policy = policy

    @property
    def message_count(self) -> int:
        """Messages that are ready for delivery."""
        return int(self.ready_count)

    def published_count(self) -> i64:
        """The number of messages published since the node started."""
        return self.next_sequence - self.first_sequence

    def counts(self) -> tuple[int, ...]:
        """The events of messages since the node started.

        Published; delivered and polled, to be settled and not; delivered again, which the former include; and
        acknowledged, which is not counted: it is what is left over.
        """
        acknowledged = self.delivered + self.polled - self.unsettled_count - self.returned - self.rejected
        return (
            int(self.published_count()),
            int(self.delivered),
            int(self.delivered_no_ack),
            int(self.polled),
            int(self.polled_no_ack),
            int(self.redelivered),
            max(int(acknowledged), 0),
        )

    @property
    def is_gated(self) -> bool:
        """Whether deliveries wait for the store (see `DeliveryRecorder`)."""
        return False

    # --- publishing ---

    def publish(self, message: Message, location: i64) -> i64:
        """Take a message. `location`: where another queue's publish of it just now put it, or `NO_LOCATION`.

        Returns the location to pass on to the next queue, or `REFUSED` if the queue is full and refuses.
        """
        raise NotImplementedError

    def recover(self, stored: StoredMessage) -> None:
        """Restore a message that the store preserved over a restart. Call it in order of sequences."""
        raise NotImplementedError

    def has_room(self, count: i64, size: i64) -> bool:
        """Whether `count` messages of `size` bytes in total fit, or the queue makes room for them."""
        return True

    # --- delivery ---

    def take(self, no_ack: bool) -> Entry | None:
        """One message for a consumer that polls (0-9-1: basic.get), or None."""
        raise NotImplementedError

    def awaits_commit(self, entry: Entry) -> bool:
        """Whether a peer may see a taken entry only after the next commit."""
        return False

    def claim(self, sequence: i64) -> Entry | None:
        """Take the message with this sequence for the consumer that had it before. Returns None if it is not ready."""
        return None

    def entries(self) -> list[Entry]:
        """The ready messages that are in memory, in order of delivery."""
        return []

    def redelivered_sequences(self) -> list[int]:
        """Which of the ready messages were delivered before."""
        return []

    # --- consumers ---

    def subscribe(self, consumer: Consumer, start: object, wanted: StreamFilter | None = None) -> None:
        """Add a consumer. `start` and `wanted` are for append-only queues: where it begins, and what it takes."""
        self.add_consumer(consumer)

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises `AccessRefused` if the queue is, or cannot become, exclusively consumed."""
        if self.exclusive_consumer is not None:
            raise AccessRefused(f"queue '{self.name}' in exclusive use")
        if consumer.exclusive:
            if self.consumers:
                raise AccessRefused(f"queue '{self.name}' is consumed by others and cannot be consumed exclusively")
            self.exclusive_consumer = consumer
        self.consumers[consumer] = None
        self.consumer_added(consumer)
        self.activate(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer. What it holds stays unsettled: the engine settles or releases it."""
        if consumer not in self.consumers:
            self._leaving.pop(consumer, None)
            return
        del self.consumers[consumer]
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        self.consumer_removed(consumer)
        if not self.consumers and self.auto_delete and not self.is_held_by_owner:
            self.host.queue_unused(self)

    def consumer_added(self, consumer: Consumer) -> None:
        """Prepare for a new consumer."""

    def consumer_removed(self, consumer: Consumer) -> None:
        """Forget a consumer that has left."""
        consumer.is_active = False

    def activate(self, consumer: Consumer) -> None:
        """The consumer has credit (again)."""
        raise NotImplementedError

    def start_selecting(self, consumer: Consumer) -> None:
        """Ask a consumer from now on which messages it takes."""
        raise NotImplementedError

    def positions_of(self, consumer: Consumer) -> list[i64]:
        """How far a consumer that selects has looked, by priority level; empty for others."""
        return []

    def set_positions(self, consumer: Consumer, positions: list[i64]) -> None:
        """Restore the positions of a consumer that selects, if the queue has as many priority levels as then."""

    def touch(self) -> None:
        """Restart the time after which an unused queue is deleted."""

    # --- removal ---

    def purge(self) -> int:
        """Remove all ready messages, over as many turns as needed. Returns how many."""
        removal = self.begin_purge()
        self.runtime.begin(removal)
        return removal.count

    def begin_purge(self) -> CountedChore:
        """Remove all ready messages; unsettled ones stay. Returns the chore that does so."""
        raise NotImplementedError

    def has_moved_deliveries(self) -> bool:
        """The queue is about to be deleted: send what it has delivered to its alternate exchange, if it has one.

        False if that takes another turn.
        """
        return True

    def discard(self) -> int:
        """Forget all messages and tell the consumers: the queue is deleted. Returns how many messages were ready."""
        raise NotImplementedError

    def cancel_consumers(self) -> None:
        """Notify all consumers that the queue was deleted, in as many turns as needed."""
        self._leaving = self.consumers
        self.consumers = {}
        for consumer in self._leaving:
            consumer.is_active = False
        if self._leaving:
            self.runtime.begin(Cancellation(self.runtime, self._leaving))

    def expire_due(self, now: float) -> None:
        """Remove what has expired."""

    def read_again(self) -> None:
        if not self.is_deleted:
            self.runtime.mark_dirty(self)
