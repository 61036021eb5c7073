"""Acknowledges, refuses and returns the deliveries of one channel, each once."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.client.acknowledgements import Acknowledgements
from waybill.engine.amqp091.client.delivery import Settler
from waybill.engine.amqp091.client.output import Output
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicAck, BasicNack, BasicReject

ACK_START_SIZE: Final = 11
"""Octets of a basic.ack frame before its delivery tag."""


class Settlement(Settler):
    """Usable while the channel is open. A second settlement of a delivery is ignored."""

    def __init__(self, output: Output, number: int, *, coalesce_acks: bool) -> None:
        self.usable = False
        self.settled = Acknowledgements()
        self.unsent: list[int] = []
        """The acknowledgements of this turn of the loop, not written yet."""
        self._output = output
        self._number = number
        self._coalesce_acks = coalesce_acks
        self._ack_start = method_frame(number, BasicAck())[:ACK_START_SIZE]

    def ack(self, delivery_tag: int, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - see Delivery.ack
        if not self.usable:
            return False
        if multiple:
            if not self.settled.settle_up_to(delivery_tag):
                return False
            # This one includes an earlier single acknowledgement that is not sent yet.
            self.unsent = [tag for tag in self.unsent if tag > delivery_tag]
            self._send(BasicAck(delivery_tag, multiple=True))
            return True
        if not self.settled.settle(delivery_tag):
            return False
        if self._coalesce_acks:
            if not self.unsent:
                self._output.add_pending(self)
            self.unsent.append(delivery_tag)
        else:
            self._output.write(self._ack_start + delivery_tag.to_bytes(8, "big") + b"\x00\xce")
        return True

    def nack(self, delivery_tag: int, requeue: bool, multiple: bool) -> bool:  # noqa: FBT001 - see Delivery.nack
        if not self.usable:
            return False
        # Acknowledgements that wait must go first, or `multiple` would refuse their deliveries too.
        self.flush_acks()
        settled = self.settled
        if not (settled.settle_up_to(delivery_tag) if multiple else settled.settle(delivery_tag)):
            return False
        self._send(BasicNack(delivery_tag, multiple=multiple, requeue=requeue))
        return True

    def reject(self, delivery_tag: int, requeue: bool) -> bool:  # noqa: FBT001 - see Delivery.reject
        if not self.usable:
            return False
        # As above: a pending acknowledgement with `multiple` would include this delivery.
        self.flush_acks()
        if not self.settled.settle(delivery_tag):
            return False
        self._send(BasicReject(delivery_tag, requeue=requeue))
        return True

    def forget(self, delivery_tag: i64) -> None:
        """The delivery needs no settlement: its consumer takes them without."""
        self.settled.settle(delivery_tag)

    def flush_acks(self) -> None:
        """Write the acknowledgements of this turn of the loop."""
        tags = self.unsent
        if not tags:
            return
        self.unsent = []
        if not self.usable:
            return
        up_to, others = self.settled.compact(tags)
        if up_to:
            self._output.write(method_frame(self._number, BasicAck(up_to, multiple=True)))
        for tag in others:
            self._output.write(self._ack_start + tag.to_bytes(8, "big") + b"\x00\xce")

    def end(self) -> None:
        """The channel is closing or closed: the broker requeues unsettled deliveries."""
        self.usable = False
        self.unsent = []

    def _send(self, method: Method) -> None:
        if self.unsent:
            self.flush_acks()
        self._output.write(method_frame(self._number, method))
