"""The exchange type `x-delayed-message`: messages with a header `x-delay` are routed that many milliseconds later.

Delayed messages wait in a queue that belongs to the exchange, in the order in which they are due. It is durable, takes
part in transactions and confirms, and may have any length, like other queues. A message that is due is routed as if it
had just been published, with its `x-delay` negated, so that nothing delays it again.
"""

import heapq
from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.entry import NO_LOCATION
from waybill.model.errors import DamagedMessage, InvalidArgument, ReadPostponed
from waybill.model.exchange import PLAIN_TYPES, Exchange
from waybill.model.message import Message
from waybill.model.queue import Queue, QueueHost
from waybill.model.runtime import Runtime
from waybill.model.store import StoredMessage
from waybill.model.timers import Timer

DELAY: Final = "x-delay"
# Messages with a longer delay are freed from memory, and read back when they are due.
IN_MEMORY_S: Final = 10.0
UNWRITTEN_RETRY_S: Final = 1.0
RELEASE_UNITS: Final = 8

# Due time, sequence, location, batch in which it is written, whether it is stored, the message unless it is read back.
_Waiting = tuple[float, int, int, int, bool, Message | None]


def delay_ms_of(headers: dict[str, object]) -> int:
    """The delay of a message in milliseconds, 0 for none."""
    delay = headers.get(DELAY)
    return delay if isinstance(delay, int) and not isinstance(delay, bool) and delay > 0 else 0


class DelayedExchange(Exchange):
    """Routes as the type named by its argument `x-delayed-type` does."""

    type = "x-delayed-message"
    routes_by_headers = True
    delays = True

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        kind = arguments.get("x-delayed-type")
        if not isinstance(kind, str) or kind not in PLAIN_TYPES:
            raise InvalidArgument(f"invalid arg 'x-delayed-type': must be one of {', '.join(sorted(PLAIN_TYPES))}")
        self._routing = PLAIN_TYPES[kind](name, durable, auto_delete, internal, {})

    def add(self, binding: Binding) -> None:
        self._routing.add(binding)
        super().add(binding)

    def remove(self, binding: Binding) -> None:
        self._routing.remove(binding)
        super().remove(binding)

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        found = self._routing.match(routing_key, headers, steps_max)
        self.steps = self._routing.steps
        return found


class DelayHost(QueueHost):
    """What a delay queue needs of its virtual host."""

    def route_due(self, exchange: Exchange, message: Message) -> None:
        """Publish a message that is due."""
        raise NotImplementedError


class DelayQueue(Queue):
    """The messages that wait in a delayed exchange. It has no consumers."""

    def __init__(self, host: DelayHost, runtime: Runtime, exchange: Exchange, queue_id: i64) -> None:
        super().__init__(
            host,
            runtime,
            f"{exchange.type}\0{exchange.name}",
            queue_id,
            durable=exchange.durable,
            auto_delete=False,
            owner=None,
            arguments={},
        )
        self._exchange = exchange
        self._delay_host = host
        self._heap: list[_Waiting] = []
        self._timer = _DueTimer(self)

    @property
    def message_count(self) -> int:
        return len(self._heap)

    def publish(self, message: Message, location: i64) -> i64:
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        is_stored = message.durable and self.is_persistent
        if is_stored:
            if location == NO_LOCATION:
                location = self.messages.put(self.id, sequence, message)
            else:
                self.messages.put_reference(self.id, sequence, location)
        self._wait(message, sequence, location if is_stored else NO_LOCATION, is_stored, self.messages.batch)
        return location

    def recover(self, stored: StoredMessage) -> None:
        self.next_sequence = max(self.next_sequence, stored.sequence + 1)
        self._wait(stored.message, stored.sequence, stored.location, True, 0)  # noqa: FBT003

    def _wait(self, message: Message, sequence: i64, location: i64, is_stored: bool, batch: i64) -> None:
        runtime = self.runtime
        messages = self.messages
        due = message.published_at + delay_ms_of(message.format.headers(message.content)) / 1000
        in_memory: Message | None = message
        if messages.frees_memory and due - runtime.now >= IN_MEMORY_S:
            if location == NO_LOCATION:
                location = messages.spill(message)
            in_memory = None
        else:
            runtime.memory_bytes += message.size
        heapq.heappush(self._heap, (due, int(sequence), int(location), int(batch), is_stored, in_memory))
        if self._heap[0][1] == sequence:
            runtime.timers.schedule(due, self._timer)

    def release_due(self, now: float) -> None:
        """Route all due messages. Retry later those that are not on disk yet."""
        heap = self._heap
        messages = self.messages
        while heap and heap[0][0] <= now:
            if self.runtime.work_left <= 0:
                break
            self.runtime.work_left -= RELEASE_UNITS
            if heap[0][5] is None and heap[0][3] > messages.written_batch:
                self.runtime.timers.schedule(now + UNWRITTEN_RETRY_S, self._timer)
                return
            _, sequence, location, _, is_stored, message = heap[0]
            if message is not None:
                self.runtime.memory_bytes -= message.size
            else:
                try:
                    message = messages.read(location)
                except ReadPostponed:
                    self.runtime.timers.schedule(now + UNWRITTEN_RETRY_S, self._timer)
                    return
                except DamagedMessage as error:
                    # Do not settle it: the next start may be able to read it.
                    self.runtime.operator_log.error(
                        "messages are skipped", f"exchange '{self._exchange.name}': {error}"
                    )
                    heapq.heappop(heap)
                    continue
            heapq.heappop(heap)
            with messages.atomic():
                self._delay_host.route_due(self._exchange, message)
                if is_stored:
                    messages.settle(self.id, sequence, location)
                elif location != NO_LOCATION:
                    messages.forget(location)
        if heap:
            self.runtime.timers.schedule(heap[0][0], self._timer)

    def discard(self) -> int:
        count = len(self._heap)
        for _, _, location, _, _, message in self._heap:
            if message is not None:
                self.runtime.memory_bytes -= message.size
            if location != NO_LOCATION:
                self.messages.forget(location)
        self._heap = []
        self.is_deleted = True
        if self.is_persistent:
            self.messages.remove_queue(self.id)
        return count


class _DueTimer(Timer):
    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue

    def fire(self, now: float) -> None:
        self._queue.release_due(now)

    def is_stale(self, at: float) -> bool:
        return self._queue.is_deleted
