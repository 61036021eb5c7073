"""As many sockets as there are descriptors, of which nobody says a word: plain, and on the port of TLS.

A broker of its own, with few descriptors, must go on: for who is there, for who comes, and for its store.
"""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.test_tls import Certificates
from waybill.client import BasicProperties, connect

DESCRIPTORS = 128
CROWD = 300
PERSISTENT = BasicProperties(delivery_mode=2)


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02"])
async def test_a_crowd_at_the_door(tmp_path: Path, start: bytes) -> None:
    certificates = Certificates(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tls_port = probe.getsockname()[1]
    files = ("--tls-certificate", str(certificates.server), "--tls-key", str(certificates.server_key))
    with (
        BrokerProcess(tmp_path, "--tls-port", str(tls_port), *files, descriptors=DESCRIPTORS) as broker,
        ExitStack() as crowd,
    ):
        async with connect(broker.uri()) as bystander, asyncio.timeout(30):
            channel = await bystander.channel(confirms=True)
            await channel.declare_queue("q", durable=True)
            for number in range(CROWD):
                port = tls_port if number % 2 else broker.port
                peer = crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
                peer.send(start)
            # The store opens files meanwhile.
            await channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
            for name in ("q", "s"):
                await channel.publish(bytes(100_000), routing_key=name, properties=PERSISTENT)
            tls = f"amqps://guest:guest@localhost:{tls_port}/?cacertfile={certificates.authority}"
            for uri in (broker.uri(), tls):
                async with connect(uri) as other:
                    await (await other.channel()).declare_queue("q", durable=True)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()
