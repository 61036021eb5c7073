"""Many connections that each do one costly thing, all at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.security.siege import WINDOW, Attacker, Siege, login, login10, methods
from waybill.model.transaction import OTHER_UNITS, UNITS_MAX
from waybill.wire.amqp091.frames import content_frames
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicGet, BasicNack, BasicPublish
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.methods_tx import TxCommit, TxSelect
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.messaging import Received, Source, Target
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, Flow

HEADERS: Final[dict[str, object]] = {f"{number:x}": None for number in range(17_000)}
"""Almost as many as a frame has room for."""
STATES: Final = 7000


def publish(key: str, headers: dict[str, object]) -> bytes:
    return methods(1, BasicPublish("", key)) + content_frames(1, BasicProperties(headers=headers), b"", 0)


def _together(siege: Siege, count: int, hello: bytes, frames: bytes) -> None:
    attackers = [siege.connect(hello) for _ in range(count)]
    siege.serve(1)
    for attacker in attackers:
        attacker.send(frames)


def blind_copies(siege: Siege, count: int) -> None:
    siege.connect(login() + methods(1, QueueDeclare("blind", no_wait=True)))
    _together(siege, count, login(), publish("", {**HEADERS, "BCC": ["blind"]}) * 4)


def large_messages(siege: Siege, count: int) -> None:
    """Of 12 MB each: all are complete in the same moment."""
    declared = login() + methods(1, QueueDeclare("large", durable=True, no_wait=True))
    properties = BasicProperties(delivery_mode=2)
    message = methods(1, BasicPublish("", "large")) + content_frames(1, properties, bytes(12_000_000), 131_072)
    attackers = [siege.connect(declared) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda attacker: attacker.send(message[:-1]), attackers))
    siege.serve(1)
    for attacker in attackers:
        attacker.send(message[-1:])
    siege.serve(20)


def attaches_with_states(siege: Siege, count: int) -> None:
    """Each state is another one."""
    attach = Attach(
        "left",
        0,
        ROLE_SENDER,
        source=Source(),
        target=Target("/queues/none"),
        initial_delivery_count=0,
        unsettled={b"%d" % number: Received(0, number) for number in range(STATES)},
    )
    _together(siege, count, login10(), amqp10_frame(0, attach.encode()))


def conversions(siege: Siege, count: int) -> None:
    """Each consumer gets messages with large headers in another protocol."""
    _filled(siege, "converted", {}, count)
    attach = Attach("l", 0, ROLE_RECEIVER, source=Source("/queues/converted"), target=Target())
    flow = Flow(
        next_incoming_id=0,
        incoming_window=WINDOW,
        next_outgoing_id=0,
        outgoing_window=WINDOW,
        handle=0,
        delivery_count=0,
        link_credit=100,
    )
    _together(siege, count, login10(), b"".join(amqp10_frame(0, one.encode()) for one in (attach, flow)))


def rejections(siege: Siege, count: int) -> None:
    """One connection holds all messages and rejects them at once."""
    rejecter = _filled(siege, "rejected", {"x-dead-letter-exchange": "amq.fanout"}, count)
    rejecter.send(methods(1, BasicConsume("rejected", no_wait=True)))
    siege.serve(1)
    rejecter.send(methods(1, BasicNack(0, multiple=True, requeue=False)))


def gets_of_a_large_message(siege: Siege, count: int) -> None:
    publisher = siege.connect(login() + methods(1, QueueDeclare("large", no_wait=True)))
    publisher.send(
        methods(1, BasicPublish("", "large")) + content_frames(1, BasicProperties(), bytes(31 << 20), 131_072)
    )
    siege.quiet()
    for _ in range(count):
        siege.connect(login() + methods(1, BasicGet("large")), is_deaf=True)
    siege.quiet()
    siege.retreat()
    publisher = siege.connect(login())
    _together(siege, count, login(), methods(1, BasicGet("large"), BasicNack(1, requeue=True)))


def commits(siege: Siege, count: int) -> None:
    """Each connection has prepared as large a transaction as it may."""
    siege.connect(login() + methods(1, QueueDeclare("committed", no_wait=True)))
    small = methods(1, BasicPublish("", "committed")) + content_frames(1, BasicProperties(), b"", 0)
    attackers = [siege.connect(login() + methods(1, TxSelect())) for _ in range(count)]
    for attacker in attackers:
        attacker.send_all([small] * (UNITS_MAX // OTHER_UNITS))
    siege.quiet()
    for attacker in attackers:
        attacker.send(methods(1, TxCommit()))


def _filled(siege: Siege, queue: str, arguments: dict[str, object], count: int) -> Attacker:
    publisher = siege.connect(login() + methods(1, QueueDeclare(queue, no_wait=True, arguments=arguments)))
    publisher.send_all(publish(queue, HEADERS) for _ in range(count))
    siege.quiet()
    return publisher


ATTACKS: Final[tuple[tuple[Callable[[Siege, int], None], int, int], ...]] = (
    (blind_copies, 4, 100),
    (large_messages, 3, 20),
    (attaches_with_states, 4, 100),
    (conversions, 4, 100),
    (rejections, 4, 1000),
    (commits, 2, 30),
    (gets_of_a_large_message, 1, 50),
)
