"""One scenario, frame by frame, says the same on RabbitMQ and on our broker."""

from urllib.parse import urlsplit

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel, Peer, SocketWire
from tests.rabbitmq import RabbitMQ
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicGet, BasicNack, BasicQos, BasicQosOk
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind

SCENARIO: list[Method | tuple[str, str, bytes]] = [
    ExchangeDeclare("trace.x", "topic"),
    ExchangeDeclare("trace.y", "fanout"),
    ExchangeBind("trace.y", "trace.x", "a.#"),
    QueueDeclare("trace.q", arguments={"x-max-length": 3}),
    QueueDeclare("trace.r"),
    QueueDeclare("-trace"),
    QueueDelete("-trace"),
    QueueBind("trace.q", "trace.x", "*.b"),
    QueueBind("trace.r", "trace.y"),
    ("trace.x", "a.b", b"both"),
    ("trace.x", "a.c", b"r only"),
    ("trace.x", "c.b", b"q only"),
    ("trace.x", "c", b"nowhere"),
    ("", "trace.q", b"by name"),
    ("trace.x", "z.b", b"one too many"),
    QueueDeclare("trace.q", passive=True),
    BasicGet("trace.q"),
    BasicNack(1, requeue=True),
    BasicGet("trace.q"),
    QueueUnbind("trace.r", "trace.y"),
    ("trace.x", "a.c", b"unbound"),
    QueueDeclare("trace.q", arguments={"x-max-length": 4}),
    QueueDeclare("trace.absent", passive=True),
    QueueBind("trace.q", "trace.absent"),
    ExchangeDeclare("trace.x", "direct"),
    ExchangeDeclare("amq.mine", "direct"),
    BasicGet("trace.absent"),
    ExchangeDelete("trace.x", if_unused=True),
    QueueDelete("trace.q", if_empty=True),
    QueuePurge("trace.q"),
    QueueDelete("trace.q"),
    QueueDelete("trace.r"),
    ExchangeDelete("trace.x"),
    ExchangeDelete("trace.y"),
]


def trace(port: int) -> list[object]:
    """All that a broker says, step by step."""
    peer = Peer(SocketWire(port))
    peer.open()
    channel = peer.open_channel(1)
    found: list[object] = []
    for step in SCENARIO:
        if isinstance(step, tuple):
            exchange, key, body = step
            channel.publish(body, key, exchange, mandatory=True)
        else:
            channel.send(step)
        found += [step, *_answers(channel)]
    peer.close()
    return found


def _answers(channel: Channel) -> list[object]:
    """What comes up to the answer to a question that always has one. A closed channel is opened again."""
    found: list[object] = []
    channel.send(BasicQos())
    while not isinstance((arrival := channel.next()).method, (BasicQosOk, ChannelClose)):
        found.append((str(arrival.method), arrival.body))
    if isinstance(arrival.method, ChannelClose):
        found.append(str(arrival.method))
        channel.send(ChannelCloseOk(), ChannelOpen())
        channel.next()
    return found


@requirement("M010-001")
def test_a_scenario_has_the_same_trace_on_both_brokers(rabbitmq: RabbitMQ, waybill_uri: str) -> None:
    port = urlsplit(waybill_uri).port
    assert port is not None
    assert trace(port) == trace(rabbitmq.port)
