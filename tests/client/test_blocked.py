"""connection.blocked, from a server that plays it."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from tests.client.breaking import until
from waybill.client import Connection, connect
from waybill.wire.amqp091.frames import FRAME_METHOD, PROTOCOL_HEADER, method_frame, parse_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import BasicAck, BasicPublish
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUnblocked,
)


class ScriptedBroker:
    """Answers the handshake, opens channels, and confirms publishes one by one."""

    def __init__(self) -> None:
        self.received: list[Method] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._published = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def send(self, channel: int, method: Method) -> None:
        for writer in self._writers:
            writer.write(method_frame(channel, method))

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        assert await reader.readexactly(len(PROTOCOL_HEADER)) == PROTOCOL_HEADER
        self.send(0, ConnectionStart(mechanisms="PLAIN"))
        data = b""
        while chunk := await reader.read(65536):
            data += chunk
            while (parsed := parse_frame(data, 0, 0)) is not None:
                frame, end = parsed
                data = data[end:]
                if frame.type == FRAME_METHOD:
                    self._answer(frame.channel, decode_method(frame.payload))
        writer.close()

    def _answer(self, channel: int, method: Method) -> None:
        self.received.append(method)
        answers: dict[type[Method], Method] = {
            ConnectionStartOk: ConnectionTune(100, 131072, 0),
            ConnectionOpen: ConnectionOpenOk(),
            ConnectionClose: ConnectionCloseOk(),
            ChannelOpen: ChannelOpenOk(),
            ChannelClose: ChannelCloseOk(),
            ConfirmSelect: ConfirmSelectOk(),
        }
        if isinstance(method, BasicPublish):
            self._published += 1
            self.send(channel, BasicAck(self._published))
        elif type(method) in answers:
            self.send(channel, answers[type(method)])


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def connection(broker: ScriptedBroker) -> AsyncIterator[Connection]:
    async with connect(f"amqp://127.0.0.1:{broker.port}") as connection:
        yield connection


async def test_publish_waits_while_the_broker_blocks(
    broker: ScriptedBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waybill.client")
    channel = await connection.channel(confirms=True)
    await channel.publish(b"1")
    broker.send(0, ConnectionBlocked("low on memory"))
    await until(lambda: connection.blocked == "low on memory")
    assert not connection.flowing
    publishing = asyncio.create_task(channel.publish(b"2"))
    draining = asyncio.create_task(channel.drain())
    await asyncio.sleep(0.02)
    assert not publishing.done()
    assert not draining.done()
    broker.send(0, ConnectionUnblocked())
    await publishing
    await draining
    assert connection.blocked is None
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    assert "takes no messages: low on memory; publishers wait" in caplog.text
    assert sum(isinstance(method, BasicPublish) for method in broker.received) == 2


async def test_closing_while_blocked_ends_those_who_wait(broker: ScriptedBroker) -> None:
    connection = await connect(f"amqp://127.0.0.1:{broker.port}")
    channel = await connection.channel(confirms=True)
    broker.send(0, ConnectionBlocked("disk"))
    await until(lambda: connection.blocked is not None)
    publishing = asyncio.create_task(channel.publish(b"x"))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(Exception, match="closed"):
        await asyncio.wait_for(publishing, 5)


async def test_channels_open_in_one_round_trip(broker: ScriptedBroker, connection: Connection) -> None:
    """Open, confirms, prefetch and a publish are written before the first answer is awaited."""
    channel = await connection.channel(confirms=True)
    before = len(broker.received)
    broker.send(1, ChannelClose(404, "NOT_FOUND"))
    await until(lambda: not channel.is_open)
    await channel.publish_nowait(b"x")
    names = [method.NAME for method in broker.received[before:]]
    assert names == ["channel.close-ok", "channel.open", "confirm.select", "basic.publish"]
