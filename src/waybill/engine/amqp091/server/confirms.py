"""Publisher confirms of one channel, server side (confirm.select): one basic.ack for all messages that are durable."""

from typing import Final

from librt.strings import write_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ChannelHost, ConsumerHost
from waybill.engine.server_engine import Confirming
from waybill.wire.amqp091.frames import FRAME_END
from waybill.wire.amqp091.methods_basic import BasicNack

ONE_END: Final = bytes([0, FRAME_END])
MULTIPLE_END: Final = bytes([1, FRAME_END])


class Confirms(Confirming):
    """Counts publishes, and confirms accepted ones at the end of the batch or after its commit."""

    def __init__(self, channel: ConsumerHost) -> None:
        self._channel = channel
        self._connection: ChannelHost = channel.connection
        self.publish_count: i64 = 0
        self._accepted_tag: i64 = 0
        self.confirmed_tag: i64 = 0
        self._waiting_count: i64 = 0
        self._is_collecting = False
        self._needs_commit = False

    def published(self, *, is_accepted: bool, needs_commit: bool) -> None:
        """Count one message. `needs_commit`: it is confirmed once it is durable."""
        self.publish_count += 1
        if is_accepted:
            self.accept(self.publish_count, needs_commit=needs_commit)
        else:
            self.refuse(self.publish_count)

    def accept(self, tag: i64, *, needs_commit: bool) -> None:
        """All messages up to `tag` that were not refused are in their queues."""
        self._accepted_tag = tag
        if needs_commit:
            self._needs_commit = True
        if not self._is_collecting:
            self._is_collecting = True
            self._connection.confirming(self)

    def refuse(self, tag: i64) -> None:
        self._channel.send(BasicNack(delivery_tag=int(tag), multiple=False, requeue=False))

    def settle_confirms(self) -> None:
        """At the end of a batch of input: confirm messages that need no disk; the others wait for the commit."""
        self._is_collecting = False
        if not self._channel.is_open:
            return
        if self._needs_commit or self._waiting_count > 0:
            self._needs_commit = False
            self._waiting_count += 1
            self._connection.host.runtime.store.wait(self, self._accepted_tag)
        else:
            self._confirm(self._accepted_tag)

    def committed(self, mark: i64) -> None:
        self._waiting_count -= 1
        if self._channel.is_open:
            self._confirm(mark)

    def _confirm(self, tag: i64) -> None:
        if tag > self.confirmed_tag:
            multiple = tag > self.confirmed_tag + 1
            connection = self._connection
            connection.host.runtime.counters.confirmed += tag - self.confirmed_tag
            self.confirmed_tag = tag
            connection.out.write(self._channel.ack_head)
            write_i64_be(connection.out, tag)
            connection.send(MULTIPLE_END if multiple else ONE_END)
