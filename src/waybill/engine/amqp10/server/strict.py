"""Rules of 1.0 that RabbitMQ does not enforce: see `Limits.is_strict_amqp10`."""

from typing import Final

from waybill.engine.amqp10.server.faults import link_fault
from waybill.model.entry import Entry
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.wire.amqp10.error import NOT_IMPLEMENTED, PRECONDITION_FAILED, Error
from waybill.wire.amqp10.messaging import Rejected
from waybill.wire.amqp10.sections import MessageFacts, decode_annotations
from waybill.wire.amqp10.types import Symbol, UInt

FREE: Final = "x-opt"
"""The prefix of annotations that a node may ignore if it does not know them."""
KNOWN: Final = frozenset(
    {
        "x-cc",
        "x-death",
        "x-delay",
        "x-deduplication-header",
        "x-exchange",
        "x-routing-key",
        "x-stream-filter-value",
        "x-stream-offset",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
    }
)
NOT_DURABLE: Final = Error(PRECONDITION_FAILED, "a queue would lose a durable message with the node")


def check_annotations(data: bytes, facts: MessageFacts) -> None:
    """Raises a link fault for an unknown annotation that is not optional (3.2.10), DecodeError for an invalid map."""
    sections = (
        (facts.delivery_annotations, facts.delivery_annotations_end),
        (facts.message_annotations, facts.message_annotations_end),
    )
    for start, end in sections:
        if start < 0:
            continue
        for name in decode_annotations(data, int(start), int(end)):
            if not isinstance(name, str) or not (name.startswith(FREE) or name in KNOWN):
                raise link_fault(
                    NOT_IMPLEMENTED, f"annotation {name!r}: only those that begin with {FREE} are optional"
                )


def would_lose(queues: list[Queue], message: Message) -> bool:
    """Whether one of the queues would lose a durable message with the node (3.2.1)."""
    return message.durable and not all(queue.is_persistent for queue in queues)


def rejection(entry: Entry, state: Rejected) -> dict[object, object]:
    """Annotations with the reason why a message was rejected, and with its delivery count (3.4.3)."""
    annotations: dict[object, object] = {Symbol("x-opt-delivery-count"): UInt(int(entry.delivery_count) + 1)}
    if state.error is not None:
        annotations[Symbol("x-opt-rejected-condition")] = Symbol(state.error.condition)
        if state.error.description is not None:
            annotations[Symbol("x-opt-rejected-description")] = state.error.description
    return annotations
