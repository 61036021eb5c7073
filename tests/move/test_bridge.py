"""The shovel over AMQP 1.0 moves each message at least once, in order, and settles it when the target has it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not built: apt install gcc python3-dev, then make setup")

from proton import Message

from tests.move.test_shovel import drain, fill
from tests.program_environment import program_environment
from waybill.broker import Broker
from waybill.client import AuthenticationFailed, BasicProperties, ConnectFailed, Connection, Inspector, connect
from waybill.move import Bridge, Destination, From, MoveFailed, To
from waybill.move.amqp10_connection import connect10
from waybill.move.amqp10_links import Source10, Target10
from waybill.move.bridge import ProtocolName
from waybill.move.bridged import From091, From10

ODD = BasicProperties(
    message_id="m-1",
    correlation_id="c",
    content_type="application/json",
    headers={"n": 7, "s": "text"},
    priority=3,
    expiration="3600000",
    delivery_mode=2,
)


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[Broker, Broker]]:
    async with Broker(port=0) as source, Broker(port=0) as target:
        yield source, target


async def count(connection: Connection, queue: str) -> int:
    found = await Inspector(connection).queue(queue)
    assert found is not None
    return found.message_count


@pytest.mark.parametrize(
    ("source_protocol", "target_protocol"), [("0-9-1", "1.0"), ("1.0", "0-9-1"), ("1.0", "1.0"), ("0-9-1", "0-9-1")]
)
async def test_messages_arrive_in_order_with_what_they_say(
    brokers: tuple[Broker, Broker],
    monkeypatch: pytest.MonkeyPatch,
    source_protocol: ProtocolName,
    target_protocol: ProtocolName,
) -> None:
    monkeypatch.setattr("waybill.move.bridge.BATCH_MESSAGES", 30)
    monkeypatch.setattr("waybill.move.amqp10_links.BATCH_MESSAGES", 30)
    bodies = [b"%d" % number for number in range(100)] + [b"x" * 3_000_000, b""]
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(ODD.encode(), body) for body in bodies])
        await fill(target, "other", [])
        bridge = Bridge(
            From(brokers[0].uri(), "q", source_protocol), To(brokers[1].uri(), Destination("other"), target_protocol)
        )
        assert await bridge.run() == len(bodies)
        assert await count(source, "q") == 0
        arrived = await drain(target, "other")
    assert [body for _, body in arrived] == bodies
    for encoded, _ in (arrived[0], arrived[-1]):
        properties = BasicProperties.decode(encoded)
        assert (properties.message_id, properties.correlation_id) == ("m-1", "c")
        assert (properties.content_type, properties.priority, properties.delivery_mode) == ("application/json", 3, 2)
        assert properties.headers is not None
        assert (properties.headers["n"], properties.headers["s"]) == (7, "text")
        assert 3_000_000 < int(properties.expiration or "") <= 3_600_000


async def test_a_bare_message_of_amqp10_stays_as_it_is(brokers: tuple[Broker, Broker]) -> None:
    message = Message(id=5, body={"deep": [1, {"x": None}]}, durable=True, properties={"p": 1.5}, subject="s", ttl=90)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        for connection in (source, target):
            await fill(connection, "q", [])
        async with connect10(brokers[0].uri(), name="test") as one:
            sender = Target10(one, "/queues/q", keeps_user=False)
            await sender.open()
            assert await sender.put([From10(bytes(message.encode()), lambda: None)]) == [""]
        bridge = Bridge(
            From(brokers[0].uri(), "/queues/q", "1.0"), To(brokers[1].uri(), Destination("/queues/q"), "1.0")
        )
        assert await bridge.run() == 1
        async with connect10(brokers[1].uri(), name="test") as other:
            receiver = Source10(other, "/queues/q")
            await receiver.open()
            [found] = await receiver.take()
            arrived = Message()
            arrived.decode(found.amqp10("guest", keeps_user=False))
            found.accept()
    assert (arrived.id, arrived.body, arrived.properties) == (message.id, message.body, message.properties)
    assert (arrived.subject, arrived.durable, arrived.delivery_count) == ("s", True, 0)
    assert 0 < arrived.ttl <= 90


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
async def test_what_the_target_refuses_stays_at_the_source(
    brokers: tuple[Broker, Broker], protocol: ProtocolName
) -> None:
    source_protocol: ProtocolName = "1.0" if protocol == "0-9-1" else "0-9-1"
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(ODD.encode(), b"%d" % number) for number in range(10)])
        await fill(target, "q", [], **{"x-max-length": 4, "x-overflow": "reject-publish"})
        bridge = Bridge(From(brokers[0].uri(), "q", source_protocol), To(brokers[1].uri(), Destination("q"), protocol))
        arrived: list[bytes] = []
        for left in (6, 2):
            with pytest.raises(MoveFailed, match=f"has not taken {left} messages, they stay at the source"):
                await bridge.run()
            assert await count(source, "q") == left
            arrived += [body for _, body in await drain(target, "q")]
        await bridge.run()
        arrived += [body for _, body in await drain(target, "q")]
        assert arrived == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
async def test_what_cannot_be_sent_stays_at_the_source_alone(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, protocol: ProtocolName
) -> None:
    """Run again and again, the others do not arrive again and again."""
    converted = getattr(From091, "amqp10" if protocol == "1.0" else "amqp091")

    def convert(message: From091, user: str, *, keeps_user: bool) -> object:
        properties, body = message._delivery.encoded_properties, message._delivery.body
        if body == b"3" and protocol == "1.0":
            raise MoveFailed("cannot be converted")
        if body == b"3":
            return BasicProperties(headers={"h": "x" * 5000}), body
        return converted(message, user, keeps_user=keeps_user) if protocol == "1.0" else (properties, body)

    monkeypatch.setattr(From091, "amqp10" if protocol == "1.0" else "amqp091", convert)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(ODD.encode(), b"%d" % number) for number in range(6)])
        await fill(target, "q", [])
        # Frames so small that the properties do not fit.
        to = To(f"{brokers[1].uri()}?frame_max=4096", Destination("q"), protocol)
        for _ in range(2):
            with pytest.raises(MoveFailed, match="has not taken 1 messages, they stay at the source"):
                await Bridge(From(brokers[0].uri(), "q"), to).run()
            assert await count(source, "q") == 1
        assert [body for _, body in await drain(target, "q")] == [b"0", b"1", b"2", b"4", b"5"]


async def test_a_source_of_too_large_a_message_is_left(brokers: tuple[Broker, Broker]) -> None:
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(ODD.encode(), b"x" * 500_000)])
        await fill(target, "q", [])
        bridge = Bridge(
            From(f"{brokers[0].uri()}?message_size_max=100000", "q", "1.0"), To(brokers[1].uri(), Destination("q"))
        )
        with pytest.raises(MoveFailed, match="a message of q of more than message_size_max=100000 octets"):
            await bridge.run()
        assert await count(source, "q") == 1


@pytest.mark.parametrize("source_protocol", ["0-9-1", "1.0"])
async def test_a_message_without_an_outcome_comes_again(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, source_protocol: ProtocolName
) -> None:
    class Killed(Exception):
        pass

    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(ODD.encode(), b"%d" % number) for number in range(5)])
        await fill(target, "q", [])
        target_protocol: ProtocolName = "1.0" if source_protocol == "0-9-1" else "0-9-1"
        bridge = Bridge(
            From(brokers[0].uri(), "q", source_protocol), To(brokers[1].uri(), Destination("q"), target_protocol)
        )

        def settle(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(bridge, "_settle", settle)
            with pytest.raises(Killed):
                await bridge.run()
        assert await bridge.run() == 5
        assert sorted(body for _, body in await drain(target, "q")) == sorted(2 * [b"%d" % n for n in range(5)])
        assert await count(source, "q") == 0


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
async def test_missing_queues_are_errors(brokers: tuple[Broker, Broker], protocol: ProtocolName) -> None:
    here, there = brokers[0].uri(), brokers[1].uri()
    async with connect(here) as source:
        await fill(source, "q", [])
    with pytest.raises(MoveFailed, match=r"the source (has no queue|refuses) none"):
        await Bridge(From(here, "none", protocol), To(there, Destination("q"), "1.0")).run()
    with pytest.raises(MoveFailed, match=r"the target (has no queue|refuses) q"):
        await Bridge(From(here, "q", "1.0"), To(there, Destination("q"), protocol)).run()


async def test_logins_and_brokers_that_are_away_are_errors(brokers: tuple[Broker, Broker]) -> None:
    uri = brokers[0].uri()
    to = To(brokers[1].uri(), Destination("q"))
    with pytest.raises(AuthenticationFailed):
        await Bridge(From(uri.replace("guest:guest", "guest:wrong"), "q", "1.0"), to).run()
    await brokers[0].stop()
    with pytest.raises(ConnectFailed):
        await Bridge(From(uri, "q", "1.0"), to).run()
    # The other node of a cluster answers.
    with pytest.raises(MoveFailed, match="refuses q"):
        await Bridge(From(f"{uri},{brokers[1].uri()}", "q", "1.0"), to).run()


async def test_the_command_moves_and_explains(brokers: tuple[Broker, Broker]) -> None:
    here, there = brokers[0].uri(), brokers[1].uri()
    async with connect(here) as source, connect(there) as target:
        await fill(source, "q", [(ODD.encode(), b"x")])
        await fill(target, "q", [])
        command = ["-m", "waybill", "shovel", "/queues/q", "--from", here, "--from-protocol", "1.0", "--to", there]
        for more, code, text in (
            (["--to-exchange", "amq.topic"], 2, "a destination needs a queue, an address or a routing key"),
            (["--dry-run"], 2, "--dry-run counts over AMQP 0-9-1 only"),
            (["--to-queue", "none"], 1, "the target has no queue none"),
            (["--to-queue", "q", "--json"], 0, '"moved": 1'),
        ):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                *more,
                env=program_environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            assert (process.returncode, text in output.decode()) == (code, True), output.decode()
        assert [body for _, body in await drain(target, "q")] == [b"x"]
