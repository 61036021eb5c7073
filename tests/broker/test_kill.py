"""The broker as a process: its life, its end in order, and its end by SIGKILL under publishers."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pika
import pika.exceptions
import pytest

from tests.broker.process import BrokerProcess, command
from tests.conformance.requirement import requirement
from tests.program_environment import program_environment

ROUNDS = 20
QUEUE = "killed"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


_connections: list[pika.BlockingConnection] = []


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker
        while _connections:
            hang_up(_connections.pop())


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri()))
    _connections.append(connection)
    return connection


def hang_up(connection: pika.BlockingConnection) -> None:
    """Let pika notice that its broker is gone, or say goodbye: only then does it give its sockets back."""
    with contextlib.suppress(pika.exceptions.AMQPError, ValueError):
        connection.process_data_events(time_limit=0)
        connection.close()


class Publisher(threading.Thread):
    """Publishes numbered messages and waits for each batch of confirms, until the broker is gone."""

    def __init__(self, broker: BrokerProcess, first: int) -> None:
        super().__init__()
        self.connection = connect(broker)
        self.channel = self.connection.channel()
        self.channel.queue_declare(QUEUE, durable=True)
        self.channel.confirm_delivery()
        self.next_number = first
        self.confirmed: list[int] = []
        self.has_confirmed = threading.Event()

    def run(self) -> None:
        try:
            while True:
                self.channel.basic_publish("", QUEUE, str(self.next_number).encode(), PERSISTENT)
                self.confirmed.append(self.next_number)
                self.next_number += 1
                if len(self.confirmed) >= 10:
                    self.has_confirmed.set()
        except pika.exceptions.AMQPError:
            self.next_number += 1


def wait_for_the_end(connection: pika.BlockingConnection) -> None:
    while True:
        connection.process_data_events(time_limit=10)


def drain(broker: BrokerProcess) -> list[tuple[int, bool]]:
    """Everything in the queue, in order: numbers and redelivered flags."""
    taken = []
    connection = connect(broker)
    channel = connection.channel()
    while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
        taken.append((int(got[2]), got[0].redelivered))
    connection.close()
    return taken


@requirement("M010-014", "M010-015", "M010-052", "M010-062", "OJS-047")
@requirement("091-basic.01")
def test_no_confirmed_message_is_lost_in_twenty_kills(broker: BrokerProcess) -> None:
    random = Random(20)
    confirmed: list[int] = []
    first = 0
    for _ in range(ROUNDS):
        publisher = Publisher(broker, first)
        publisher.start()
        assert publisher.has_confirmed.wait(30)
        time.sleep(random.random() * 0.05)
        broker.kill()
        publisher.join(30)
        confirmed += publisher.confirmed
        first = publisher.next_number
        broker.start()
    taken = drain(broker)
    numbers = [number for number, _ in taken]
    assert set(confirmed) <= set(numbers)
    assert len(confirmed) >= 10 * ROUNDS
    assert len(numbers) == len(set(numbers)), "a message is there twice"
    assert numbers == sorted(numbers)


@requirement("M010-062", "M010-102")
def test_no_settled_message_returns_and_others_come_flagged(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", QUEUE, str(number).encode(), PERSISTENT)
    settled = set()
    for _ in range(60):
        method, _, body = channel.basic_get(QUEUE)
        if int(body) % 2:
            channel.basic_ack(method.delivery_tag)
            settled.add(int(body))
    # A confirm for a later message means that the acknowledgements before it are on the disk as well.
    channel.basic_publish("", QUEUE, b"100", PERSISTENT)
    broker.kill()
    broker.start()
    taken = drain(broker)
    numbers = {number for number, _ in taken}
    assert numbers == set(range(101)) - settled
    assert len(taken) == len(numbers)
    assert all(redelivered for number, redelivered in taken if number < 60)


@requirement("M010-041")
def test_a_committed_transaction_survives_and_an_open_one_does_not(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.tx_select()
    for number in range(5):
        channel.basic_publish("", QUEUE, str(number).encode(), PERSISTENT)
    channel.tx_commit()
    channel.basic_publish("", QUEUE, b"99", PERSISTENT)
    broker.kill()
    broker.start()
    assert [number for number, _ in drain(broker)] == [0, 1, 2, 3, 4]


@requirement("M010-014", "M010-079", "OJS-019")
@requirement(
    "091-exchange.declare.durable.support",
    "091-queue.declare.durable.persistence",
    "091-queue.bind.durable-exchange",
    "M010-099",
)
def test_durable_topology_survives_and_the_rest_does_not(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.exchange_declare("lasting", "topic", durable=True)
    channel.exchange_declare("fleeting", "topic")
    channel.queue_declare("lasting", durable=True, arguments={"x-max-length": 7})
    channel.queue_declare("fleeting")
    channel.queue_bind("lasting", "lasting", "#")
    broker.kill()
    broker.start()
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.exchange_declare("lasting", "topic", durable=True)
    channel.queue_declare("lasting", durable=True, arguments={"x-max-length": 7})
    channel.basic_publish("lasting", "a.b", b"1", mandatory=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.connection.channel().queue_declare("fleeting", passive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.exchange_declare("fleeting", passive=True)


def test_a_stream_survives(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", "s", str(number).encode())
    broker.kill()
    broker.start()
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    seen = []
    for method, properties, body in channel.consume("s", arguments={"x-stream-offset": "first"}, inactivity_timeout=10):
        assert method is not None
        assert properties.headers["x-stream-offset"] == int(body)
        seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 50:
            break
    connection.close()
    assert seen == list(range(50))


def test_the_ready_line_tells_the_address(broker: BrokerProcess) -> None:
    assert broker.ready_line.startswith("ready amqp://")
    assert f":{broker.port}" in broker.ready_line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0(broker: BrokerProcess, number: signal.Signals) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    for text in range(100):
        channel.basic_publish("", QUEUE, str(text).encode(), PERSISTENT)
    process = broker.process
    channel.queue_declare(QUEUE, passive=True)
    process.send_signal(number)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        wait_for_the_end(connection)
    assert closed.value.reply_code == 320
    assert process.wait(20) == 0
    broker.stop()
    broker.start()
    assert drain(broker) == [(text, False) for text in range(100)]


def test_redelivered_flags_survive_a_stop_in_order(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    for text in range(4):
        channel.basic_publish("", QUEUE, str(text).encode(), PERSISTENT)
    for _ in range(2):
        assert channel.basic_get(QUEUE)[0] is not None
    connection.close()
    assert broker.stop() == 0
    broker.start()
    assert drain(broker) == [(0, True), (1, True), (2, False), (3, False)]


def test_two_brokers_cannot_share_a_directory(broker: BrokerProcess, repository: Path) -> None:
    second = subprocess.run(
        command("--port", "0", "--data-dir", str(broker.directory / "data")),
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert "Error:" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_an_error(broker: BrokerProcess, repository: Path) -> None:
    second = subprocess.run(
        command("--port", str(broker.port), "--memory"),
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert f"cannot start: 127.0.0.1:{broker.port}: Address already in use\nHint: " in second.stderr
    assert "Traceback" not in second.stderr
