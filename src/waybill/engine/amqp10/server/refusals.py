"""Notifies a sender of a refused message: by an outcome that its source allows, otherwise by a detach."""

from typing import Final

from waybill.engine.amqp10.server.faults import fault_of, link_fault
from waybill.engine.amqp10.server.incoming_delivery import IncomingDelivery
from waybill.engine.amqp10.server.outcomes import REJECTED, RELEASED
from waybill.engine.amqp10.server.strict import NOT_DURABLE
from waybill.engine.amqp10.termini import QUEUE_FULL
from waybill.model.errors import ModelError
from waybill.wire.amqp10.composite import COMPOSITE
from waybill.wire.amqp10.disposition import RELEASED_STATE
from waybill.wire.amqp10.error import NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LIMIT_EXCEEDED, Error
from waybill.wire.amqp10.messaging import Rejected, Released, Source

DELIVERY_TAG: Final = "delivery-tag"
NO_ROUTE: Final = "no queue takes the message"


class Refusals:
    """Refuses deliveries of one link. `source`: the sender's.

    `lists_rejected`: the source names that outcome. `may_reject`: it allows it; a source that names none allows all.
    """

    def __init__(self, delivery: IncomingDelivery, source: object) -> None:
        outcomes: tuple[str, ...] = ()
        if isinstance(source, COMPOSITE) and isinstance(source, Source):
            outcomes = source.outcomes
        self.lists_rejected = REJECTED in outcomes
        self.may_reject = self.lists_rejected or not outcomes
        self._may_release = RELEASED in outcomes or not outcomes
        self._delivery = delivery

    def not_routed(self) -> None:
        """As RabbitMQ 4: release the message, so that the sender knows that no queue has it."""
        delivery = self._delivery
        if delivery.is_settled:
            return
        if self._may_release and delivery.transaction is None:
            delivery.tell(RELEASED_STATE)
        elif self._may_release:
            delivery.refuse(Released())
        elif self.lists_rejected:
            delivery.refuse(Rejected(Error(NOT_FOUND, NO_ROUTE)))
        else:
            raise link_fault(NOT_FOUND, NO_ROUTE)

    def queue_full(self) -> None:
        if self.may_reject:
            self._delivery.tell(QUEUE_FULL)
        elif self._may_release:
            self._delivery.tell(RELEASED_STATE)
        else:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, "a queue is full")

    def not_durable(self) -> None:
        """A durable message would be lost with the node (3.2.1)."""
        if self._delivery.is_settled or not self.may_reject:
            raise link_fault(PRECONDITION_FAILED, NOT_DURABLE.description or "")
        self._delivery.refuse(Rejected(NOT_DURABLE))

    def not_addressed(self, error: ModelError) -> None:
        """The address of one message is wrong: that concerns the message, not the link (anonymous terminus, 2.2.2)."""
        delivery = self._delivery
        fault = fault_of(error)
        fault.info = {DELIVERY_TAG: delivery.tag}
        if delivery.is_settled and delivery.transaction is not None:
            # The sender hears of no outcome, but the discharge must not succeed.
            delivery.transaction.fail(fault.error)
        elif delivery.is_settled or not self.lists_rejected:
            raise fault
        else:
            delivery.refuse(Rejected(fault.error))
