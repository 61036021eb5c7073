"""Dead lettering: messages that die in a queue are published to its dead-letter exchange.

A message must not die forever without a client. Cycles of queues are cut (`closes_cycle`), and the number of copies is
limited: each death divides the remaining copies among the queues that the dead letter goes to, and a message without
any is dropped when it dies again. Otherwise a fanout to N full queues that dead-letter back to it would make N! copies
of one message. A rejection by a client resets the number.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.death_headers import (
    DEATH_UNITS,
    READ,
    REJECTED,
    closes_cycle,
    died_too_often,
    record_death,
    routing_keys_of,
)
from waybill.model.errors import ModelError
from waybill.model.exchange import Exchange
from waybill.model.fan_out import publish_to
from waybill.model.message import NO_TTL, Address, Message, MessageFormat
from waybill.model.queue import Queue
from waybill.model.routing import Router
from waybill.model.runtime import Runtime

COPIES_MAX: Final = 256
"""The number of copies that successive deaths may make of a message while no client rejects it."""
TARGETS_MAX: Final = 4096
HEADER_UNIT_BYTES: Final = 64


class DeadLetter(Message):
    """A message that has died. `copies_left`: how many messages its next deaths may make of it."""

    def __init__(
        self,
        format: MessageFormat,  # noqa: A002 - as in Message
        content: bytes,
        address: Address,
        durable: bool,
        priority: i64,
        published_at: float,
        copies_left: i64,
    ) -> None:
        super().__init__(format, content, address, durable, priority, NO_TTL, published_at)
        self.copies_left: i64 = copies_left


class DeadLettering:
    """Publishes the dead letters of one virtual host, given its name and its exchanges."""

    def __init__(self, name: str, runtime: Runtime, exchanges: dict[str, Exchange], router: Router) -> None:
        self._name = name
        self._runtime = runtime
        self._exchanges = exchanges
        self._router = router
        self._dead: list[tuple[Queue, Message, str]] = []
        self._is_publishing = False

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Publish a message to the dead-letter exchange of its queue.

        If that makes other messages die, they are queued, not published recursively: a chain of full queues may have
        any length.
        """
        if queue.policy.dead_letter_exchange is None:
            return
        self._dead.append((queue, message, reason))
        if self._is_publishing:
            return
        self._is_publishing = True
        try:
            with self._runtime.messages.atomic():
                while self._dead:
                    dead = self._dead
                    self._dead = []
                    for killer, victim, why in dead:
                        self._publish(killer, victim, why)
        finally:
            self._is_publishing = False

    def _publish(self, queue: Queue, message: Message, reason: str) -> None:
        policy = queue.policy
        if policy.dead_letter_exchange is None:
            return
        exchange = self._exchanges.get(policy.dead_letter_exchange)
        if exchange is None:
            return
        self._runtime.work_left -= DEATH_UNITS
        try:
            self._publish_dead(exchange, queue, message, reason)
        except (ValueError, OverflowError, RecursionError, ModelError) as error:
            # The message cannot be read, or its headers have no room for x-death. Drop it: the messages behind it and
            # the peer that rejected it must continue.
            self._drop(queue, reason, f"cannot be written as a dead letter for exchange '{exchange.name}': {error}")

    def _drop(self, queue: Queue, reason: str, why: str) -> None:
        self._runtime.operator_log.warning(
            "dead letter dropped",
            f"a message of queue '{queue.name}' in vhost '{self._name}' died ({reason}) and {why}",
        )

    def _publish_dead(self, exchange: Exchange, queue: Queue, message: Message, reason: str) -> None:
        """Raises ValueError for content that cannot be read or annotated, ModelError if it cannot be routed."""
        policy = queue.policy
        copies_left: i64 = COPIES_MAX
        if isinstance(message, DeadLetter) and reason != REJECTED:
            copies_left = message.copies_left
        if copies_left <= 0:
            self._drop(queue, reason, f"has become {COPIES_MAX} dead letters by dying again and again")
            return
        self._runtime.work_left -= message.header_units()
        is_whole = self._router.depends_on_headers(exchange)
        form, content = message.format, message.content
        headers = form.headers(content) if is_whole else form.some_headers(content, READ)
        if died_too_often(headers):
            return
        changes = record_death(headers, message, queue.name, reason, self._runtime.now)
        removed: list[str] = []
        routing_keys = routing_keys_of(message, headers)
        if policy.dead_letter_routing_key is not None:
            routing_keys = [policy.dead_letter_routing_key]
            removed = ["CC", "BCC"]
        headers.update(changes)
        targets = [
            target
            for target in self._router.match(exchange, routing_keys, headers, message)
            if reason == REJECTED or not closes_cycle(headers, target.name)
        ]
        if not targets:
            return
        if len(targets) > TARGETS_MAX:
            self._drop(queue, reason, f"would go to {len(targets)} queues at once, more than {TARGETS_MAX}")
            return
        content = form.with_headers(content, changes, removed, keep_expiration=False)
        self._runtime.work_left -= (
            len(targets) + (len(content) - message.format.body_size(content)) // HEADER_UNIT_BYTES
        )
        dead = DeadLetter(
            message.format,
            content,
            self._router.address(exchange.name, routing_keys[0]),
            message.durable,
            message.priority,
            self._runtime.now,
            copies_left if len(targets) == 1 else copies_left // len(targets),
        )
        publish_to(targets, dead)
