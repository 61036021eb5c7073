"""Outcomes (1.0, 3.4) in terms of the model: the effect of a receiver's state on the message of a delivery."""

from typing import Final

from waybill.engine.amqp10.message_format import AMQP10, with_annotations
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.strict import rejection
from waybill.model.consumer import Consumer
from waybill.model.entry import Entry
from waybill.model.message import Message
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.error import ILLEGAL_STATE
from waybill.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released
from waybill.wire.amqp10.sections import MessageFacts, scan_message
from waybill.wire.amqp10.types import Described, Symbol

ACCEPTED: Final = "amqp:accepted:list"
REJECTED: Final = "amqp:rejected:list"
RELEASED: Final = "amqp:released:list"
MODIFIED: Final = "amqp:modified:list"
ALL: Final = (ACCEPTED, REJECTED, RELEASED, MODIFIED)


class OutcomeHost(Consumer):
    """What an outcome needs of the link that has sent the delivery. `is_strict`: see `Limits.is_strict_amqp10`."""

    is_strict: bool

    def shun(self, entry: Entry) -> bool:
        """Never deliver this message by this link again (3.4.5). False if no other consumer could take it."""
        raise NotImplementedError


class Outcome:
    """A terminal delivery state.

    `keeps_order`: it is applied to several deliveries in their order. Others return messages to the queue, so they are
    applied last to first. `changes`: applying it may rewrite the message.
    """

    def __init__(self, state: Composite) -> None:
        self.state = state
        self.name: str = state.NAME
        self.is_accepted = self.name == ACCEPTED
        self.keeps_order = self.name in {ACCEPTED, REJECTED}
        self.changes = isinstance(state, (Rejected, Modified))
        self.encoded = state.encode()

    def apply(self, link: OutcomeHost, entry: Entry) -> None:
        """Settle the message of a delivery that `link` has sent."""
        state = self.state
        if isinstance(state, Accepted):
            entry.queue.accept(entry)
        elif isinstance(state, Rejected):
            if link.is_strict and entry.queue.page_in(entry):
                entry.queue.amend(entry, _head_of(entry.message, rejection(entry, state)), failed=False)
            entry.queue.reject(entry)
        elif isinstance(state, Modified):
            annotations = state.message_annotations or {}
            # A message that cannot be read from disk now keeps its annotations unchanged.
            is_whole = not (annotations or state.undeliverable_here) or entry.queue.page_in(entry)
            changes = _changes(entry.message, annotations) if is_whole else b""
            entry.queue.amend(entry, changes, failed=state.delivery_failed)
            if state.undeliverable_here and is_whole and not link.shun(entry):
                # As RabbitMQ 4: dead-letter or drop it, rather than keep it where no consumer can take it.
                entry.queue.reject(entry)
                return
            entry.queue.release(entry, failed=state.delivery_failed)
        else:
            entry.queue.release(entry, failed=False)


def outcome_of(state: Composite | Described | None) -> Outcome | None:
    """The outcome of a terminal state, None for another state. Raises a link fault for an unknown one."""
    if isinstance(state, COMPOSITE) and isinstance(state, (Accepted, Rejected, Released, Modified)):
        return Outcome(state)
    if state is None or isinstance(state, Received):
        return None
    raise link_fault(ILLEGAL_STATE, "the delivery state is not an outcome of this link")


def _changes(message: Message, changes: dict[str, object]) -> bytes:
    """The sections before the bare message with annotations added or replaced (3.4.5); empty if nothing changes."""
    if not changes or message.format is not AMQP10:
        return b""
    return _head_of(message, {Symbol(name): value for name, value in changes.items()})


def _head_of(message: Message, annotations: dict[object, object]) -> bytes:
    """The sections before the bare message with these annotations; empty for a message of another protocol."""
    if message.format is not AMQP10:
        return b""
    content = with_annotations(message.content, annotations)
    facts = MessageFacts()
    scan_message(content, 0, len(content), facts)
    return content[: facts.message_annotations_end]
