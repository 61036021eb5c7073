"""A bare loop of pika with Waybill's messages and its default queue: it shows RabbitMQ's limit.

There is no framework: no handlers, events or coordinator. Messages are made before the clock starts, a window of
publishes awaits its confirms, and many deliveries are acknowledged at a time.
"""

from collections.abc import Callable
from typing import Final

import pika
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic

from benchmarks.peers.meter import PREFETCH, Arguments, Meter
from waybill.ojs import Jobs, Topology
from waybill.ojs.spec.headers import push_properties
from waybill.ojs.spec.identifiers import new_traceparent
from waybill.ojs.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration

QUEUE: Final = "bench"
WINDOW: Final = 5000
ACK_EVERY: Final = 100

topology = Topology()
arguments = Arguments()
meter = Meter(arguments.count)


def declare() -> None:
    """Declare the job queue as Waybill does."""
    connection = pika.BlockingConnection(pika.URLParameters(arguments.uri))
    channel = connection.channel()
    for entity in [*topology.shared_entities()[:2], *topology.queue_entities(QUEUE)]:
        match entity:
            case ExchangeDeclaration():
                channel.exchange_declare(entity.name, entity.type, durable=True)
            case QueueDeclaration():
                channel.queue_declare(entity.name, durable=True, arguments=entity.arguments or None)
            case BindingDeclaration():
                channel.queue_bind(entity.destination, entity.exchange, entity.routing_key)
    connection.close()


def make_messages() -> list[tuple[bytes, pika.BasicProperties]]:
    """Return the bodies and properties that Waybill pushes."""
    jobs = Jobs(arguments.uri, topology=topology)

    @jobs.handler("bench.noop", queue=QUEUE)
    async def noop(number: int) -> None: ...

    found = []
    for number in range(arguments.count):
        envelope = jobs.make(noop.job(number)).envelope
        properties = push_properties(envelope, max_priority=topology.max_priority, traceparent=new_traceparent())
        found.append(
            (
                envelope.encode(),
                pika.BasicProperties(
                    content_type=properties.content_type,
                    content_encoding=properties.content_encoding,
                    headers=properties.headers,
                    delivery_mode=properties.delivery_mode,
                    priority=properties.priority,
                    message_id=properties.message_id,
                    timestamp=properties.timestamp,
                    type=properties.type,
                    app_id=properties.app_id,
                ),
            )
        )
    return found


class Pusher:
    """Publishes the next messages as confirms arrive."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages = iter(make_messages())
        self._sent = self._confirmed = 0
        channel.confirm_delivery(self._confirm, callback=lambda _: self._begin())

    def _begin(self) -> None:
        meter.start()
        self._send()

    def _send(self) -> None:
        while self._sent - self._confirmed < WINDOW and (message := next(self._messages, None)) is not None:
            body, properties = message
            self._channel.basic_publish(topology.direct, QUEUE, body, properties, mandatory=True)
            self._sent += 1

    def _confirm(self, frame: Method) -> None:
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed >= arguments.count:
            meter.report_and_exit()
        if self._sent - self._confirmed <= WINDOW // 2:
            self._send()


class Taker:
    """Takes deliveries and acknowledges them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(topology.job_queue(QUEUE), self._take)

    def _take(self, _channel: Channel, method: Basic.Deliver, _properties: pika.BasicProperties, _body: bytes) -> None:
        is_last = meter.job_done()
        if is_last or method.delivery_tag % ACK_EVERY == 0:
            self._channel.basic_ack(method.delivery_tag, multiple=True)
        if is_last:
            meter.report()
            self._channel.connection.close()


def run(work: Callable[[Channel], object]) -> None:
    """Run `work` with a channel until the connection is closed."""
    SelectConnection(
        pika.URLParameters(arguments.uri),
        on_open_callback=lambda connection: connection.channel(on_open_callback=work),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    ).ioloop.start()


if __name__ == "__main__":
    declare()
    run(Pusher if arguments.verb == "push" else Taker)
