"""Publishing and consuming through a real broker."""

import asyncio

import pytest

from tests.client.breaking import until
from tests.conformance.requirement import requirement
from waybill.client import (
    BasicProperties,
    Channel,
    Connection,
    Delivery,
    MessageReturned,
    NotFound,
    PreconditionFailed,
    QueueFull,
    connect,
)
from waybill.client.errors import ChannelClosed, Scope


async def test_a_message_keeps_its_properties(channel: Channel, name: str) -> None:
    declared = await channel.declare_queue(name, exclusive=True)
    assert (declared.name, declared.message_count, declared.consumer_count) == (name, 0, 0)
    properties = BasicProperties(
        content_type="text/plain", headers={"n": 1, "s": "t", "b": True}, delivery_mode=2, message_id="id", timestamp=5
    )
    await channel.publish(b"body", routing_key=name, properties=properties)
    delivery = await channel.get(name)
    assert delivery is not None
    assert (delivery.body, delivery.properties, delivery.routing_key) == (b"body", properties, name)
    assert delivery.ack()
    assert await channel.get(name) is None


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
async def test_bodies_of_any_size(channel: Channel, name: str, size: int) -> None:
    await channel.declare_queue(name, exclusive=True)
    await channel.publish(b"x" * size, routing_key=name)
    delivery = await channel.get(name, no_ack=True)
    assert delivery is not None
    assert delivery.body == b"x" * size


async def test_pipelined_publishes_arrive_in_order(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    received: list[bytes] = []

    def take(delivery: Delivery) -> None:
        received.append(delivery.body)
        delivery.ack()

    await channel.consume(name, take)
    bodies = [b"%d" % number for number in range(2000)]
    await asyncio.gather(*(channel.publish_nowait(body, routing_key=name) for body in bodies))
    await until(lambda: len(received) == len(bodies))
    assert received == bodies
    assert channel.unconfirmed_count == 0


async def test_coalesced_acks_leave_nothing_behind(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    consuming = await connection.channel(prefetch_count=10, coalesce_acks=True)
    received: list[Delivery] = []
    odd: list[Delivery] = []

    def take(delivery: Delivery) -> None:
        received.append(delivery)
        if delivery.delivery_tag % 7 == 3 and len(odd) < 5:
            odd.append(delivery)
        else:
            delivery.ack()

    await consuming.consume(name, take)
    await asyncio.gather(*(channel.publish_nowait(b"x", routing_key=name) for _ in range(500)))
    await until(lambda: len(received) == 500)
    await consuming.close()
    assert (await channel.declare_queue(name, passive=True)).message_count == len(odd)


async def test_iterating_over_a_consumer(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    consumer = await channel.consume(name)
    for number in range(5):
        await channel.publish(b"%d" % number, routing_key=name)
    received = []
    async for delivery in consumer:
        received.append(delivery.body)
        delivery.ack()
        if len(received) == 3:
            await consumer.cancel()
    assert received == [b"0", b"1", b"2"]
    await until_ready(channel, name, 2)


async def until_ready(channel: Channel, queue: str, count: int) -> None:
    async with asyncio.timeout(10):
        while (await channel.declare_queue(queue, passive=True)).message_count != count:
            await asyncio.sleep(0.01)


async def test_nack_returns_a_message_flagged(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    await channel.publish(b"x", routing_key=name)
    first = await channel.get(name)
    assert first is not None
    assert not first.redelivered
    assert first.nack()
    second = await channel.get(name)
    assert second is not None
    assert second.redelivered
    assert second.reject(requeue=False)


@requirement("OJS-030", "OJS-032")
async def test_prefetch_limits_each_consumer(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    consuming = await connection.channel(prefetch_count=5)
    received: dict[str, list[Delivery]] = {"a": [], "b": []}
    for tag, deliveries in received.items():
        await consuming.consume(name, deliveries.append, consumer_tag=tag)
    await asyncio.gather(*(channel.publish_nowait(b"x", routing_key=name) for _ in range(20)))
    await until(lambda: [len(deliveries) for deliveries in received.values()] == [5, 5])
    assert (await channel.declare_queue(name, passive=True)).message_count == 10
    for delivery in received["a"]:
        delivery.ack()
    await until(lambda: len(received["a"]) == 10)
    assert len(received["b"]) == 5


@requirement("OJS-027", "OJS-097")
async def test_an_unroutable_message_comes_back(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    good = [channel.publish_nowait(b"ok", routing_key=name, mandatory=True) for _ in range(3)]
    bad = channel.publish_nowait(b"lost", routing_key="no-such-queue", mandatory=True)
    good.append(channel.publish_nowait(b"ok", routing_key=name, mandatory=True))
    with pytest.raises(MessageReturned) as caught:
        await bad
    assert (caught.value.code, caught.value.message.body, caught.value.scope) == (312, b"lost", Scope.MESSAGE)
    await asyncio.gather(*good)


@requirement("OJS-068")
async def test_a_full_queue_refuses(channel: Channel, name: str) -> None:
    arguments: dict[str, object] = {"x-max-length": 2, "x-overflow": "reject-publish"}
    await channel.declare_queue(name, exclusive=True, arguments=arguments)
    results = await asyncio.gather(
        *(channel.publish_nowait(b"%d" % number, routing_key=name) for number in range(3)), return_exceptions=True
    )
    assert results[:2] == [None, None]
    assert isinstance(results[2], QueueFull)


@requirement("OJS-089", "OJS-091", "OJS-094")
async def test_a_channel_error_is_typed_and_the_channel_reopens(connection: Connection, channel: Channel) -> None:
    other = await connection.channel()
    with pytest.raises(NotFound) as caught:
        await channel.declare_queue("no-such-queue", passive=True)
    error = caught.value
    assert (error.code, error.scope, error.method) == (404, Scope.CHANNEL, "queue.declare")
    assert other.is_open
    with pytest.raises(NotFound):
        await channel.publish(b"x", exchange="no-such-exchange")
    with pytest.raises(NotFound):
        await channel.consume("no-such-queue")
    declared = await channel.declare_queue(exclusive=True)
    await channel.publish(b"still confirmed", routing_key=declared.name)
    delivery = await channel.get(declared.name)
    assert delivery is not None


async def test_a_conflicting_declaration_is_refused(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    with pytest.raises(PreconditionFailed):
        await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 1})
    with pytest.raises(ChannelClosed):
        await channel.declare_exchange("amq.direct", "fanout", durable=True)


async def test_consumers_live_on_after_an_error_of_their_channel(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    received: list[Delivery] = []
    await channel.consume(name, received.append)
    with pytest.raises(NotFound):
        await channel.declare_queue("no-such-queue", passive=True)
    await channel.publish(b"x", routing_key=name)
    await until(lambda: len(received) == 1)
    assert received[0].ack()


async def test_exchanges_and_bindings(channel: Channel, name: str) -> None:
    await channel.declare_exchange(f"{name}-in", "topic")
    await channel.declare_exchange(f"{name}-out", "fanout")
    await channel.bind_exchange(f"{name}-out", f"{name}-in", "a.#")
    await channel.declare_queue(name, exclusive=True)
    await channel.bind_queue(name, f"{name}-out")
    await channel.publish(b"1", exchange=f"{name}-in", routing_key="a.b", mandatory=True)
    await channel.unbind_queue(name, f"{name}-out")
    with pytest.raises(MessageReturned):
        await channel.publish(b"2", exchange=f"{name}-in", routing_key="a.b", mandatory=True)
    await channel.unbind_exchange(f"{name}-out", f"{name}-in", "a.#")
    assert await channel.purge_queue(name) == 1
    assert await channel.delete_queue(name) == 0
    for exchange in ("in", "out"):
        await channel.delete_exchange(f"{name}-{exchange}")


async def test_transactions(connection: Connection, name: str) -> None:
    channel = await connection.channel(confirms=False)
    await channel.declare_queue(name, exclusive=True)
    await channel.tx_select()
    await channel.publish(b"gone", routing_key=name)
    await channel.tx_rollback()
    await channel.publish(b"kept", routing_key=name)
    await channel.tx_commit()
    delivery = await channel.get(name)
    assert delivery is not None
    assert delivery.body == b"kept"


async def test_recover_delivers_again(channel: Channel, name: str) -> None:
    await channel.declare_queue(name, exclusive=True)
    received: list[Delivery] = []
    await channel.consume(name, received.append)
    await channel.publish(b"x", routing_key=name)
    await until(lambda: len(received) == 1)
    await channel.recover()
    await until(lambda: len(received) == 2)
    assert received[1].redelivered
    assert not received[0].ack()
    assert received[1].ack()


async def test_a_cancelled_consumer_registers_again(broker_uri: str, channel: Channel, name: str) -> None:
    await channel.declare_queue(name, durable=True)
    received: list[Delivery] = []
    await channel.consume(name, received.append)
    async with connect(broker_uri) as outsider:
        other = await outsider.channel(confirms=True)
        await other.delete_queue(name)
        async with asyncio.timeout(15):
            while not await arrives(other, name):
                await asyncio.sleep(0.01)
        await until(lambda: len(received) >= 1)
        await other.delete_queue(name)


async def test_a_consumer_without_queue_leaves_others_alone(broker_uri: str, channel: Channel, name: str) -> None:
    missing = f"{name}-missing"
    await channel.declare_queue(name, exclusive=True)
    received: list[Delivery] = []
    async with connect(broker_uri) as outsider:
        other = await outsider.channel(confirms=True)
        await other.declare_queue(missing, durable=True)
        await channel.consume(missing, received.append)
        await channel.consume(name, received.append)
        await other.delete_queue(missing)
        with pytest.raises(NotFound):
            await channel.declare_queue("no-such-queue", passive=True)
        await channel.publish(b"1", routing_key=name)
        await until(lambda: len(received) == 1)
        await other.declare_queue(missing, durable=True)
        await other.publish(b"2", routing_key=missing)
        await until(lambda: len(received) == 2)
        await other.delete_queue(missing)


async def arrives(channel: Channel, queue: str) -> bool:
    try:
        await channel.publish(b"x", routing_key=queue, mandatory=True)
    except MessageReturned:
        return False
    return True


async def test_no_more_are_fetched_than_fit(connection: Connection, channel: Channel, name: str) -> None:
    await channel.declare_queue(name)
    bodies = [b"%d" % number for number in range(40)] + [b"x" * 10_000] * 60
    await channel.publish_many(bodies, routing_key=name)
    async with connection.side_channel() as side:
        found = await side.get_some(name, 1000, 50_000)
        assert [one.body for one in found] == bodies[:64]
        assert [one.body for one in await side.get_some(name, 20, 50_000)] == bodies[64:84]
        assert [one.body for one in await side.get_some(name, 1000, 500_000)] == bodies[84:]


async def test_what_nobody_waits_for_any_more_goes_back(channel: Channel, name: str) -> None:
    await channel.declare_queue(name)
    bodies = [b"1", b"2", b"3", b"4"]
    for body in bodies:
        await channel.publish(body, routing_key=name)
    given_up = 0
    for turns in range(6):
        getting = asyncio.ensure_future(channel.get_many(name, 3))
        for _ in range(turns):
            await asyncio.sleep(0)
        getting.cancel()
        try:
            for one in await getting:
                one.nack()
        except asyncio.CancelledError:
            given_up += 1
    assert given_up >= 2
    found: list[Delivery] = []
    while len(found) < len(bodies):
        found += await channel.get_many(name, 10)
    assert sorted(one.body for one in found) == bodies
    assert all(one.ack() for one in found)
    assert await channel.get_many(name, 2) == []


async def test_a_consumer_of_a_stream_ends_with_deliveries_that_nobody_took(connection: Connection, name: str) -> None:
    channel = await connection.channel(prefetch_count=10)
    await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    await asyncio.gather(*(channel.publish(b"x", routing_key=name) for _ in range(5)))
    consumer = await channel.consume(name, arguments={"x-stream-offset": "first"})
    await anext(consumer)
    await until(lambda: len(consumer._backlog) == 4)
    await consumer.cancel()
    await channel.delete_queue(name)
    assert connection.reconnections == 0
