"""Source and target queues over AMQP 1.0, with Proton's links.

A message stays unsettled until it has arrived: if the connection ends, it returns to its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from proton import Delivery as State
from proton import Endpoint, Link

from waybill.client.side_channel import AT_ONCE, in_portions
from waybill.move.amqp10_connection import Amqp10Connection, condition_text
from waybill.move.bridged import Bridged, From10
from waybill.move.errors import MoveFailed
from waybill.move.transfer import BATCH_MESSAGES, BATCH_OCTETS, FIRST_BATCH

OUTCOMES: Final = {
    State.ACCEPTED: "accepted",
    State.REJECTED: "rejected",
    State.RELEASED: "released: no queue took it",
    State.MODIFIED: "modified",
}


class Source10:
    """Takes messages in batches; a batch ends when the queue is empty."""

    def __init__(self, connection: Amqp10Connection, address: str) -> None:
        """Call `open` first."""
        self._connection = connection
        self._address = address
        self._link = connection.session.receiver(f"waybill-shovel-from-{address}")
        self._size_max = connection.address.settings.message_size_max
        connection.check_input = self._check_input
        self._mean_octets = BATCH_OCTETS // FIRST_BATCH

    async def open(self) -> None:
        """Attach. Raises MoveFailed if the source refuses."""
        link = self._link
        link.source.address = self._address
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST
        link.max_message_size = self._size_max
        link.open()
        await self._connection.until(lambda: _is_attached(link), f"the source does not answer for {self._address}")
        _check(link, "source", self._address, is_there=link.remote_source.address is not None)

    async def take(self) -> Sequence[Bridged]:
        """Take up to a batch of the messages in the queue. Raises MoveFailed, ConnectionLost."""
        count = min(BATCH_MESSAGES, max(1, BATCH_OCTETS // self._mean_octets))
        found = await in_portions(self._take_up_to, count, BATCH_OCTETS, lambda one: one.octets)
        if found:
            self._mean_octets = max(1, sum(one.octets for one in found) // len(found))
        return found

    async def _take_up_to(self, count: int) -> list[Bridged]:
        link = self._link
        found: list[Bridged] = []
        # With drain, the sender uses up its credit, so the portion ends.
        link.drain(count)

        def is_drained() -> bool:
            self._receive(found)
            return _is_gone(link) or not (link.draining() or link.queued)

        await self._connection.until(is_drained, f"the source does not answer for {self._address}")
        _check(link, "source", self._address)
        return found

    def _check_input(self) -> None:
        """Refuse what nobody asked for, which would fill the memory. Raises MoveFailed."""
        link = self._link
        if link.queued > AT_ONCE:
            raise MoveFailed(f"the source sends more messages of {self._address} than it may")
        delivery = link.current
        if delivery is not None and delivery.pending > self._size_max:
            text = f"more than message_size_max={self._size_max} octets"
            raise MoveFailed(f"the source sends a message of {self._address} of {text}")

    def _receive(self, found: list[Bridged]) -> None:
        link = self._link
        while (delivery := link.current) is not None and not delivery.partial:
            octets = bytes(link.recv(delivery.pending) or b"")
            link.advance()
            if delivery.aborted:
                delivery.settle()
            else:
                found.append(From10(octets, partial(self._accept, delivery)))

    def _accept(self, delivery: State) -> None:
        delivery.update(State.ACCEPTED)
        delivery.settle()
        self._connection.flush()


class Target10:
    """Sends messages; each is unsettled until the target has returned its outcome."""

    def __init__(self, connection: Amqp10Connection, address: str, *, keeps_user: bool) -> None:
        """Call `open` first."""
        self._connection = connection
        self._address = address
        self._keeps_user = keeps_user
        self._link = connection.session.sender(f"waybill-shovel-to-{address}")
        self._sent = 0

    async def open(self) -> None:
        """Attach. Raises MoveFailed if the target refuses."""
        link = self._link
        link.target.address = self._address
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.open()
        await self._connection.until(lambda: _is_attached(link), f"the target does not answer for {self._address}")
        _check(link, "target", self._address, is_there=link.remote_target.address is not None)

    async def put(self, batch: Sequence[Bridged]) -> list[str]:
        """Send a batch; returns for each message why it has not arrived, empty if it has. Raises MoveFailed."""
        link = self._link
        user = self._connection.address.settings.user
        sent: list[State | str] = []
        for one in batch:
            try:
                sections = one.amqp10(user, keeps_user=self._keeps_user)
            except MoveFailed as error:
                sent.append(str(error))
                continue
            what = f"the target has given no credit for {self._address}"
            await self._connection.until(lambda: _is_gone(link) or link.credit > 0, what)
            _check(link, "target", self._address)
            self._sent += 1
            sent.append(link.delivery(str(self._sent)))
            link.send(sections)
            link.advance()
        what = f"the target has not settled messages to {self._address}"
        waiting = [one for one in sent if not isinstance(one, str)]
        await self._connection.until(lambda: _is_gone(link) or all(map(_is_done, waiting)), what)
        _check(link, "target", self._address)
        outcomes = [one if isinstance(one, str) else _reason(one) for one in sent]
        for delivery in waiting:
            delivery.settle()
        return outcomes


def _is_attached(link: Link) -> bool:
    """Whether the peer has answered. A refusal is an attach without a terminus, followed by a detach."""
    return _is_gone(link) or bool(
        link.state & Endpoint.REMOTE_ACTIVE
        and (link.remote_source.address if link.is_receiver else link.remote_target.address) is not None
    )


def _is_gone(link: Link) -> bool:
    return bool(link.state & Endpoint.REMOTE_CLOSED)


def _check(link: Link, side: str, address: str, *, is_there: bool = True) -> None:
    """Raise MoveFailed if the peer has ended the link."""
    if _is_gone(link) or not is_there:
        text = condition_text(link.remote_condition) or "it gives no reason"
        raise MoveFailed(f"the {side} refuses {address}: {text}")


def _is_done(delivery: State) -> bool:
    return bool(delivery.settled) or delivery.remote_state in OUTCOMES


def _reason(delivery: State) -> str:
    state = delivery.remote_state
    if state == State.ACCEPTED:
        return ""
    reason = OUTCOMES.get(state, "settled without an outcome")
    more = condition_text(delivery.remote.condition)
    return f"{reason}: {more}" if more else reason
