"""Work of a frame that may take several turns, and the reply to its peer."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ChannelTask, ConsumerHost
from waybill.engine.amqp091.server.consumer import ChannelConsumer
from waybill.model.deletion import Deletion
from waybill.model.entry import Entry
from waybill.model.fan_out import FanOut
from waybill.model.queue import Queue
from waybill.model.runtime import Chore, CountedChore
from waybill.model.transaction import ACCEPT, REJECT, RELEASE
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicCancel
from waybill.wire.amqp091.methods_channel import ChannelCloseOk
from waybill.wire.amqp091.methods_exchange import ExchangeDeleteOk
from waybill.wire.amqp091.methods_queue import QueueDeleteOk, QueuePurgeOk

RUN_MAX: Final = 256


class Task(ChannelTask):
    """A task that is answered."""

    def __init__(self, channel: ConsumerHost) -> None:
        self.channel = channel

    def answer(self, method: Method | None) -> None:
        """Send the answer, once the result is durable."""
        channel = self.channel
        channel.connection.hold()
        if method is not None and channel.is_open:
            channel.send(method)


class Purge(Task):
    """Executes a queue.purge."""

    def __init__(self, channel: ConsumerHost, removal: CountedChore, *, no_wait: bool) -> None:
        super().__init__(channel)
        self._removal = removal
        self._no_wait = no_wait

    def work(self) -> bool:
        return self._removal.work()

    def finish(self) -> None:
        self.answer(None if self._no_wait else QueuePurgeOk(self._removal.count))


class Delete(Task):
    """Executes a queue.delete or exchange.delete.

    A client that waits for delete-ok may take a basic.cancel before it for a failure; RabbitMQ answers first, too.
    """

    def __init__(self, channel: ConsumerHost, deletion: Deletion | None, *, of_queue: bool, no_wait: bool) -> None:
        super().__init__(channel)
        self._deletion = deletion
        self._of_queue = of_queue
        self._no_wait = no_wait
        self._cancels: list[BasicCancel] = []

    def work(self) -> bool:
        if self._deletion is None:
            return True
        channel = self.channel
        channel.late_cancels = self._cancels
        try:
            return self._deletion.work()
        finally:
            channel.late_cancels = None

    def finish(self) -> None:
        if self._no_wait:
            self.answer(None)
        elif self._of_queue:
            self.answer(QueueDeleteOk(0 if self._deletion is None else self._deletion.count))
        else:
            self.answer(ExchangeDeleteOk())
        if self.channel.is_open:
            for cancel in self._cancels:
                self.channel.send(cancel)


class Settlement(Task):
    """basic.ack, basic.nack, basic.reject and basic.recover of many deliveries: in their order, oldest first."""

    def __init__(self, channel: ConsumerHost, entries: list[Entry], outcome: str) -> None:
        super().__init__(channel)
        self._entries = entries
        self._outcome = outcome
        self._next: i64 = 0

    def work(self) -> bool:
        channel = self.channel
        runtime = channel.connection.host.runtime
        entries = self._entries
        count: i64 = len(entries)
        while self._next < count and runtime.work_left > 0:
            if self._outcome == ACCEPT:
                self._accept_run()
                continue
            entry = entries[self._next]
            self._next += 1
            runtime.work_left -= 1
            if self._outcome == REJECT:
                entry.queue.reject(entry)
            else:
                entry.queue.release(entry, failed=True)
            channel.give_credit(entry)
        return self._next >= count

    def _accept_run(self) -> None:
        """Accept deliveries of one queue and one holder."""
        channel = self.channel
        entries = self._entries
        first = self._next
        holder = entries[first].holder
        last = first + 1
        if holder is not channel.polled:
            end = min(len(entries), first + RUN_MAX)
            while last < end and entries[last].holder is holder:
                last += 1
        self._next = last
        channel.accept_run(entries[first:last], is_counted=False)

    def finish(self) -> None:
        self.channel.has_settled()


class Closing(Task):
    """Closes a channel: removes its consumers, and requeues its deliveries."""

    def __init__(self, channel: ConsumerHost, consumers: list[ChannelConsumer], entries: list[Entry]) -> None:
        super().__init__(channel)
        self._consumers = consumers
        consumers.reverse()
        self._settlement = Settlement(channel, entries, RELEASE)

    def work(self) -> bool:
        runtime = self.channel.connection.host.runtime
        while self._consumers:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            consumer = self._consumers.pop()
            consumer.queue.remove_consumer(consumer)
        return self._settlement.work()

    def finish(self) -> None:
        self.channel.connection.send_method(int(self.channel.number), ChannelCloseOk())


class Leaving(Chore):
    """Deletes the exclusive queues of a connection."""

    def __init__(self, virtual_host: VirtualHost, queues: list[Queue]) -> None:
        self._virtual_host = virtual_host
        self._queues = queues
        queues.reverse()

    def work(self) -> bool:
        runtime = self._virtual_host.runtime
        while self._queues:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 2
            self._virtual_host.remove_queue(self._queues.pop())
        return True


class Publishing(Task):
    """Publishes a message to very many queues."""

    def __init__(self, channel: ConsumerHost, fan_out: FanOut, needs_commit: bool) -> None:  # noqa: FBT001
        super().__init__(channel)
        self._fan_out = fan_out
        self._needs_commit = needs_commit

    def work(self) -> bool:
        return self._fan_out.work()

    def finish(self) -> None:
        self.channel.published(is_accepted=self._fan_out.is_accepted, needs_commit=self._needs_commit)
