"""Attackers that go, and leave much work behind: what they had ends in the moment in which they close."""

from typing import Final

from tests.security.siege import WINDOW, Siege, login, login10, methods
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicPublish
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete
from waybill.wire.amqp091.methods_tx import TxSelect
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.messaging import Source, Target
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Attach, Flow

CHANNELS: Final = 2047
SESSIONS: Final = 255


def publish(key: str, channel: int = 1) -> bytes:
    return methods(channel, BasicPublish("", key)) + content_frames(channel, BasicProperties(), b"left", 0)


def connections_close(siege: Siege, count: int) -> None:
    _come(siege, count, login())
    _leave(siege)


def connections_reset(siege: Siege, count: int) -> None:
    _come(siege, count, login())
    _leave(siege, by_reset=True)


def connections_close_10(siege: Siege, count: int) -> None:
    _come(siege, count, login10())
    _leave(siege)


def connections_close_before_their_login(siege: Siege, count: int) -> None:
    _come(siege, count, b"AMQP\0\0\x09\x01")
    _leave(siege)


def consumers_close(siege: Siege, count: int) -> None:
    """Each connection has a consumer of one queue, and holds a delivery."""
    siege.connect(login() + methods(1, QueueDeclare("shared", no_wait=True))).send_all(
        publish("shared") for _ in range(count)
    )
    _come(siege, count, login() + methods(1, BasicConsume("shared", no_wait=True)))
    _leave(siege)


def unacknowledged_deliveries_close(siege: Siege, count: int) -> None:
    """One connection holds them on all its channels."""
    siege.connect(login() + methods(1, QueueDeclare("held", no_wait=True))).send_all(
        publish("held") for _ in range(count)
    )
    opened = (methods(number + 2, ChannelOpen()) for number in range(CHANNELS - 1))
    holder = siege.connect(login())
    holder.send_all(opened)
    holder.send_all(methods(number + 1, BasicConsume("held", f"c{number}", no_wait=True)) for number in range(CHANNELS))
    siege.quiet()
    _leave(siege)


def unsettled_deliveries_close(siege: Siege, count: int) -> None:
    """The same by 1.0, with sessions and links."""
    siege.connect(login() + methods(1, QueueDeclare("held", no_wait=True))).send_all(
        publish("held") for _ in range(count)
    )
    holder = siege.connect(login10("holder", SESSIONS))
    for number in range(SESSIONS):
        link = Attach(
            name=f"l{number}", handle=0, role=ROLE_RECEIVER, source=Source(address="/queues/held"), target=Target()
        )
        granted = Flow(
            incoming_window=WINDOW,
            next_outgoing_id=0,
            outgoing_window=WINDOW,
            handle=0,
            delivery_count=0,
            link_credit=count // SESSIONS + 1,
        )
        holder.send(amqp10_frame(number, link.encode()), amqp10_frame(number, granted.encode()))
    siege.quiet()
    _leave(siege)


def exclusive_queues_close(siege: Siege, count: int) -> None:
    """They go with their connection, and so do their messages and bindings."""
    siege.connect(login()).send_all(
        methods(
            1,
            QueueDeclare(f"x{number}", exclusive=True, auto_delete=True, no_wait=True),
            QueueBind(f"x{number}", "amq.topic", f"{number % 100}.#", no_wait=True),
            QueueBind(f"x{number}", "amq.fanout", "", no_wait=True),
        )
        + publish(f"x{number}")
        for number in range(count)
    )
    siege.quiet()
    _leave(siege)


def exclusive_queues_that_dead_letter_close(siege: Siege, count: int) -> None:
    arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "left"}
    siege.connect(login() + methods(1, QueueDeclare("left", no_wait=True))).send_all(
        methods(1, QueueDeclare(f"x{number}", exclusive=True, no_wait=True, arguments=arguments))
        + publish(f"x{number}") * 5
        for number in range(count)
    )
    siege.quiet()
    _leave(siege)


def auto_delete_queues_close(siege: Siege, count: int) -> None:
    """They go with their last consumer."""
    siege.connect(login()).send_all(
        methods(
            1,
            QueueDeclare(f"a{number}", auto_delete=True, no_wait=True),
            BasicConsume(f"a{number}", f"c{number}", no_wait=True),
        )
        for number in range(count)
    )
    siege.quiet()
    _leave(siege)


def consumers_cancelled(siege: Siege, count: int) -> None:
    """A queue is deleted under all its consumers."""
    crowd = siege.connect(login() + methods(1, QueueDeclare("doomed", no_wait=True)))
    crowd.send_all(methods(number + 2, ChannelOpen()) for number in range(100))
    crowd.send_all(
        methods(number % 100 + 2, BasicConsume("doomed", f"c{number}", no_wait=True)) for number in range(count)
    )
    siege.quiet()
    siege.connect(login()).send(methods(1, QueueDelete("doomed", no_wait=True)))


def transactions_close(siege: Siege, count: int) -> None:
    """Uncommitted messages on all channels."""
    attacker = siege.connect(login())
    attacker.send_all(methods(number + 2, ChannelOpen()) for number in range(CHANNELS - 1))
    attacker.send_all(methods(number + 1, TxSelect()) for number in range(CHANNELS))
    attacker.send_all(publish("nothing", number % CHANNELS + 1) for number in range(count))
    siege.quiet()
    _leave(siege)


def _come(siege: Siege, count: int, hello: bytes) -> None:
    for number in range(count):
        siege.connect(hello)
        if not number % 200:
            siege.quiet()
    siege.quiet()


def _leave(siege: Siege, *, by_reset: bool = False) -> None:
    with siege.one_moment():
        siege.retreat(by_reset=by_reset)


ATTACKS: Final = (
    (connections_close, 50, 10_000),
    (connections_reset, 50, 10_000),
    (connections_close_10, 50, 10_000),
    (connections_close_before_their_login, 50, 10_000),
    (consumers_close, 50, 10_000),
    (unacknowledged_deliveries_close, 1_000, 60_000),
    (unsettled_deliveries_close, 1_000, 60_000),
    (exclusive_queues_close, 200, 10_000),
    (exclusive_queues_that_dead_letter_close, 200, 10_000),
    (auto_delete_queues_close, 200, 10_000),
    (consumers_cancelled, 200, 20_000),
    (transactions_close, 500, 60_000),
)
