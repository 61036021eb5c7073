"""The shovel moves each message once and in order, wherever it is cut off."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from tests.move.cuts import Cut, cutting
from tests.rabbitmq import RabbitMQ
from waybill.broker import Broker
from waybill.client import BasicProperties, Connection, Inspector, connect
from waybill.move import Destination, MoveFailed, Shovel
from waybill.move import transfer as transfer_module

Message = tuple[bytes, bytes]


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[Broker, Broker]]:
    async with Broker(port=0) as source, Broker(port=0) as target:
        yield source, target


def odd_messages(count: int, seed: int) -> list[Message]:
    """Messages of all kinds, each with a number in its body; the properties are encoded."""
    chance = random.Random(seed)
    messages = []
    for number in range(count):
        properties = BasicProperties(
            delivery_mode=chance.choice([None, 1, 2]),
            headers=chance.choice([None, {}, {"n": number, "list": [1, "x", {"y": 2.5}], "octets": b"\x00\xff"}]),
            message_id=chance.choice([None, f"m-{number}", "the same"]),
            correlation_id=chance.choice([None, "c" * 255]),
            content_type=chance.choice([None, "text/plain"]),
            timestamp=chance.choice([None, 1_700_000_000]),
            app_id=chance.choice([None, "é"]),
        )
        body = b"%d " % number + chance.randbytes(chance.choice([0, 1, 100, 200_000]))
        messages.append((properties.encode(), body))
    return messages


async def fill(connection: Connection, queue: str, messages: list[Message], **arguments: object) -> None:
    channel = await connection.channel()
    await channel.declare_queue(queue, durable=True, arguments=arguments)
    for properties, body in messages:
        await channel.publish(body, routing_key=queue, properties=properties)


async def drain(connection: Connection, queue: str) -> list[Message]:
    async with await connection.channel() as channel:
        found = []
        while (delivery := await channel.get(queue, no_ack=True)) is not None:
            found.append((delivery.encoded_properties, delivery.body))
        return found


async def test_every_message_arrives_as_it_was_and_in_order(brokers: tuple[Broker, Broker]) -> None:
    messages = odd_messages(150, seed=1)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", messages)
        await fill(target, "q", [])
        assert await Shovel(brokers[0].uri(), "q", brokers[1].uri()).run() == 150
        assert await drain(target, "q") == messages
        assert await drain(source, "q") == []


@pytest.mark.parametrize("after", [False, True])
async def test_wherever_it_is_cut_off_each_message_arrives_once(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(transfer_module, "BATCH_MESSAGES", 3)
    uris = brokers[0].uri(), brokers[1].uri()
    # Two of them are equal: identity is not content.
    messages = [(BasicProperties(delivery_mode=2).encode(), b"%d" % (number // 2)) for number in range(8)]
    async with connect(uris[0]) as source, connect(uris[1]) as target:
        await fill(target, "q", [])
        with cutting(monkeypatch) as cutter:
            cut_at = 0
            while True:
                await fill(source, "q", messages)
                cutter.arm(cut_at, after=after)
                try:
                    await Shovel(uris[0], "q", uris[1]).run()
                except Cut:
                    cutter.arm(-1, after=after)
                    await Shovel(uris[0], "q", uris[1]).run()
                else:
                    break
                assert await drain(target, "q") == messages, f"cut at request {cut_at}"
                assert await drain(source, "q") == []
                cut_at += 1
        assert cut_at > 15


async def test_an_expiration_counts_on_the_way(brokers: tuple[Broker, Broker]) -> None:
    properties = BasicProperties(expiration="100000")
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [(properties.encode(), b"x")])
        await fill(target, "q", [])
        await Shovel(brokers[0].uri(), "q", brokers[1].uri()).run()
        [(encoded, _)] = await drain(target, "q")
        assert 0 < int(BasicProperties.decode(encoded).expiration or "") <= 100_000


async def test_a_full_queue_stops_it_and_nothing_is_lost(brokers: tuple[Broker, Broker]) -> None:
    messages = odd_messages(10, seed=2)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", messages)
        await fill(target, "q", [], **{"x-max-length": 4, "x-overflow": "reject-publish"})
        arrived: list[Message] = []
        failures = 0
        while True:
            try:
                await Shovel(brokers[0].uri(), "q", brokers[1].uri()).run()
            except MoveFailed:
                failures += 1
                arrived += await drain(target, "q")
            else:
                break
        arrived += await drain(target, "q")
        assert {body for _, body in arrived} == {body for _, body in messages}
        assert 1 <= failures < 10
        # What the refused batch had brought comes again; from then on each comes alone, and once.
        assert len(arrived) <= len(messages) + 4


async def test_a_missing_queue_is_an_error_and_nothing_moves(brokers: tuple[Broker, Broker]) -> None:
    async with connect(brokers[0].uri()) as source:
        await fill(source, "q", odd_messages(3, seed=3))
        with pytest.raises(MoveFailed, match="the target has no queue q"):
            await Shovel(brokers[0].uri(), "q", brokers[1].uri()).run()
        with pytest.raises(MoveFailed, match="the source has no queue other"):
            await Shovel(brokers[0].uri(), "other", brokers[1].uri()).run()
        found = await Inspector(source).queue("q")
        assert found is not None
        assert found.message_count == 3


async def test_unroutable_messages_stay(brokers: tuple[Broker, Broker]) -> None:
    messages = odd_messages(5, seed=4)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", messages)
        shovel = (brokers[0].uri(), "q", brokers[1].uri(), Destination("k", "amq.direct"))
        with pytest.raises(MoveFailed, match=r"no queue for messages to amq\.direct k"):
            await Shovel(*shovel).run()
        await fill(target, "bound", [])
        await (await target.channel()).bind_queue("bound", "amq.direct", "k")
        await Shovel(*shovel).run()
        assert await drain(target, "bound") == messages


async def test_one_shovel_at_a_time_takes_from_a_queue(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.move.identity.LOCK_ATTEMPTS", 1)
    async with connect(brokers[0].uri()) as source, connect(brokers[1].uri()) as target:
        await fill(source, "q", [])
        await fill(target, "q", [])
        async with source.side_channel() as channel:
            await channel.declare_queue("waybill.shovel.lock.q", exclusive=True)
        with pytest.raises(MoveFailed, match="another move is using"):
            await Shovel(brokers[0].uri(), "q", brokers[1].uri()).run()


async def test_what_is_in_transit_survives_any_number_of_starts(
    brokers: tuple[Broker, Broker], rabbitmq: RabbitMQ
) -> None:
    """Quorum queues remove a message that has come back 20 times, unless they are told otherwise."""
    for source_uri in (brokers[0].uri(), rabbitmq.uri("/")):
        shovel = (source_uri, "again", brokers[1].uri(), Destination("k", "amq.direct"))
        async with connect(source_uri) as source, connect(brokers[1].uri()) as target:
            await fill(source, "again", [(BasicProperties().encode(), b"x")])
            for _ in range(25):
                with pytest.raises(MoveFailed, match="no queue for messages"):
                    await Shovel(*shovel, queue_type="quorum").run()
            await fill(target, "bound", [])
            await (await target.channel()).bind_queue("bound", "amq.direct", "k")
            assert await Shovel(*shovel, queue_type="quorum").run() == 1
            assert [body for _, body in await drain(target, "bound")] == [b"x"]
            await (await target.channel()).delete_queue("bound")
