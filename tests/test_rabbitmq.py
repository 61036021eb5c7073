"""The RabbitMQ that other tests compare with is itself tested: data survive a crash, nothing is left behind."""

from pathlib import Path

import pika
import pytest

from tests.rabbitmq import INSTALL_HINT, RabbitMQ, installed

pytestmark = [
    pytest.mark.skipif(not installed(), reason=INSTALL_HINT),
    pytest.mark.timeout(180),
]


def message_count(broker: RabbitMQ, virtual_host: str) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri(virtual_host)))
    try:
        declared = connection.channel().queue_declare("kept", durable=True, passive=True)
        return int(declared.method.message_count)
    finally:
        connection.close()


def test_both_virtual_hosts_keep_their_messages_over_a_crash_and_nothing_stays_behind() -> None:
    with RabbitMQ() as broker:
        for virtual_host in ("/", "/ojs"):
            connection = pika.BlockingConnection(pika.URLParameters(broker.uri(virtual_host)))
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
            connection.close()
        broker.kill()
        broker.start()
        assert message_count(broker, "/") == 1
        assert message_count(broker, "/ojs") == 1
        pid, directory = broker.pid, broker.directory
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()
