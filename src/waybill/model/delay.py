"""The exchange type `x-delayed-message`: messages with a header `x-delay` are routed that many milliseconds later.

Delayed messages wait in a queue that belongs to the exchange, in the order in which they are due. It is durable, takes
part in transactions and confirms, and may have any length, like other queues. A message that is due is routed as if it
had just been published, with its `x-delay` negated, so that nothing delays it again.
"""

import heapq
import struct
from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.entry import NO_LOCATION
from waybill.model.errors import DamagedMessage, InvalidArgument, ReadPostponed
from waybill.model.exchange import PLAIN_TYPES, Exchange
from waybill.model.message import Message
from waybill.model.queue import REFUSED, Queue, QueueHost
from waybill.model.runtime import CountedChore, Runtime
from waybill.model.store import StoredMessage
from waybill.model.timers import Timer

DELAY: Final = "x-delay"
# Messages with a longer delay are freed from memory, and read back when they are due.
IN_MEMORY_S: Final = 10.0
UNWRITTEN_RETRY_S: Final = 1.0
RELEASE_UNITS: Final = 8
REWRITE_BITS: Final = 2
"""Decoding, changing and encoding headers takes four times as long as decoding them."""

# Due time, sequence, location, batch in which it is written, whether it is stored. As octets, they are in this order,
# and take a third of the memory of a tuple.
_WAITING: Final = struct.Struct(">dqqq?")
DELAYED_BYTES: Final = 100
"""The memory of a message that waits on the disk."""
LEAST_SHARE_BITS: Final = 4
DISCARD_STEP: Final = 256


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
    """The messages that wait in a delayed exchange. It has no consumers.

    Each takes memory even if it is on the disk, which counts as declared. So there is a limit: then it refuses more.
    """

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
        self.reads_headers = True
        self._exchange = exchange
        self._delay_host = host
        self._heap: list[bytes] = []
        self._in_memory: dict[int, Message] = {}
        self._is_full = False
        self._timer = _DueTimer(self)

    @property
    def message_count(self) -> int:
        return len(self._heap)

    def has_room(self, count: i64, size: i64) -> bool:
        runtime = self.runtime
        limit = runtime.footprint_limit_bytes
        room = limit >> (1 if runtime.footprint_bytes <= limit else LEAST_SHARE_BITS)
        return runtime.delayed_bytes + count * DELAYED_BYTES <= room

    def publish(self, message: Message, location: i64) -> i64:
        if not self.has_room(1, 0) and not self.runtime.has_promise:
            self._report_full()
            return REFUSED
        self._is_full = False
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

    def _report_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            self.runtime.operator_log.warning(
                "delayed messages are refused",
                f"exchange '{self._exchange.name}' delays {len(self._heap)}: there is no memory for more. Publishers "
                "get a nack; delay fewer, or give the node more memory",
            )

    def recover(self, stored: StoredMessage) -> None:
        self.next_sequence = max(self.next_sequence, stored.sequence + 1)
        self._wait(stored.message, stored.sequence, stored.location, True, 0)  # noqa: FBT003

    def _wait(self, message: Message, sequence: i64, location: i64, is_stored: bool, batch: i64) -> None:
        runtime = self.runtime
        messages = self.messages
        runtime.work_left -= message.header_units()
        due = message.published_at + delay_ms_of(message.format.headers(message.content)) / 1000
        if messages.frees_memory and due - runtime.now >= IN_MEMORY_S:
            if location == NO_LOCATION:
                location = messages.spill(message)
        else:
            self._in_memory[int(sequence)] = message
            runtime.memory_bytes += message.size
        waiting = _WAITING.pack(due, int(sequence), int(location), int(batch), is_stored)
        heapq.heappush(self._heap, waiting)
        self._count(1)
        if self._heap[0] is waiting:
            runtime.timers.schedule(due, self._timer)

    def _count(self, change: i64) -> None:
        size = change * DELAYED_BYTES
        self.footprint += size
        self.runtime.delayed_bytes += size
        self.runtime.add_footprint(size)

    def release_due(self, now: float) -> None:
        """Route all due messages. Retry later those that are not on disk yet."""
        runtime = self.runtime
        while self._heap and runtime.work_left > 0:
            due, sequence, location, batch, is_stored = _WAITING.unpack(self._heap[0])
            if due > now:
                break
            runtime.work_left -= RELEASE_UNITS
            message = self._in_memory.pop(sequence, None)
            if message is not None:
                runtime.memory_bytes -= message.size
            elif batch > self.messages.written_batch:
                runtime.timers.schedule(now + UNWRITTEN_RETRY_S, self._timer)
                return
            else:
                try:
                    message = self.messages.read(location)
                except ReadPostponed:
                    runtime.timers.schedule(now + UNWRITTEN_RETRY_S, self._timer)
                    return
                except DamagedMessage as error:
                    # Do not settle it: the next start may be able to read it.
                    runtime.operator_log.error("messages are skipped", f"exchange '{self._exchange.name}': {error}")
            heapq.heappop(self._heap)
            self._count(-1)
            if message is not None:
                self._release(message, sequence, location, is_stored=is_stored)
        if self._heap:
            runtime.timers.schedule(_WAITING.unpack(self._heap[0])[0], self._timer)

    def _release(self, message: Message, sequence: int, location: int, *, is_stored: bool) -> None:
        messages = self.messages
        self.runtime.work_left -= message.header_units() << REWRITE_BITS
        with messages.atomic():
            self._delay_host.route_due(self._exchange, message)
            if is_stored:
                messages.settle(self.id, sequence, location)
            elif location != NO_LOCATION:
                messages.forget(location)

    def discard(self) -> int:
        heap = self._heap
        for message in self._in_memory.values():
            self.runtime.memory_bytes -= message.size
        self._in_memory = {}
        self._heap = []
        self.runtime.delayed_bytes -= len(heap) * DELAYED_BYTES
        self.is_deleted = True
        if self.is_persistent:
            self.messages.remove_queue(self.id)
        discarding = _Discarding(self, heap)
        self.runtime.begin(discarding)
        return discarding.count


class _Discarding(CountedChore):
    """Frees the places of the messages of a deleted exchange."""

    def __init__(self, queue: DelayQueue, waiting: list[bytes]) -> None:
        super().__init__(len(waiting))
        self._queue = queue
        self._waiting = waiting

    def work(self) -> bool:
        queue = self._queue
        while self._waiting and queue.runtime.work_left > 0:
            queue.runtime.work_left -= DISCARD_STEP >> 3
            for waiting in self._waiting[-DISCARD_STEP:]:
                location = _WAITING.unpack(waiting)[2]
                if location != NO_LOCATION:
                    queue.messages.forget(location)
            del self._waiting[-DISCARD_STEP:]
        return not self._waiting


class _DueTimer(Timer):
    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue

    def fire(self, now: float) -> None:
        self._queue.release_due(now)

    def is_stale(self, at: float) -> bool:
        return self._queue.is_deleted
