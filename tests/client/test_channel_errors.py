"""What the broker refuses: typed for the caller, logged where it is a conflict, and never tried in another form."""

import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.breaking import cut_off, until
from tests.client.conftest import QUICK
from tests.client.test_blocked import ScriptedBroker
from tests.conformance.requirement import requirement
from tests.rabbitmq import READER, RabbitMQ
from waybill.client import AccessRefused, PreconditionFailed, blocking, connect
from waybill.ojs import Declaration, Jobs, Topology
from waybill.testing import TestBroker
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_channel import ChannelClose
from waybill.wire.amqp091.methods_queue import QueueDeclare


class Refusing(ScriptedBroker):
    """Has a queue with other properties."""

    def _answer(self, channel: int, method: Method) -> None:
        super()._answer(channel, method)
        if isinstance(method, QueueDeclare):
            self.send(channel, ChannelClose(406, "PRECONDITION_FAILED - inequivalent arg", 50, 10))


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    broker = Refusing()
    await broker.start()
    yield broker
    await broker.close()


@requirement("OJS-090")
async def test_a_conflict_is_logged_and_never_declared_in_another_form(
    refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(f"amqp://127.0.0.1:{refusing.port}", reconnect=QUICK) as connection:
        channel = await connection.channel(confirms=True)
        with pytest.raises(PreconditionFailed, match="inequivalent arg"):
            await channel.declare_queue("q", durable=True, arguments={"x-max-length": 1})
        await channel.publish(b"the channel is open again", routing_key="q")
        cut_off(connection)
        await until(lambda: connection.reconnections == 1)
    declared = [method for method in refusing.received if isinstance(method, QueueDeclare)]
    assert [method.arguments for method in declared] == [{"x-max-length": 1}]
    assert [record.levelno for record in caplog.records if "inequivalent arg" in record.message] == [logging.WARNING]


@pytest.fixture(params=["rabbitmq", "waybill"])
def reader_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a user who may read everything and do nothing else, with an exchange and a queue to try it on."""
    if request.param == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        yield _prepared(rabbitmq.uri("/ojs"))
        return
    with TestBroker() as broker:

        def admit(running: object) -> None:
            administration = running.administration  # type: ignore[attr-defined]
            administration.put_user(READER, READER)
            administration.set_permission(READER, "/ojs", "^$", "^$", ".*")

        broker._do(admit)
        yield _prepared(broker.uri())


def _prepared(uri: str) -> str:
    with blocking.connect(uri) as connection:
        channel = connection.channel()
        channel.declare_exchange("ojs.exchange.direct", durable=True)
        channel.declare_queue("read-me", durable=True)
    return uri.replace("guest:guest@", f"{READER}:{READER}@")


@requirement("OJS-093")
async def test_what_a_user_may_not_do_is_told_as_such(reader_uri: str) -> None:
    async with connect(reader_uri) as connection:
        channel = await connection.channel(confirms=True)
        for refused in (
            channel.publish(b"x", exchange="ojs.exchange.direct", routing_key="email"),
            channel.declare_queue("mine"),
            channel.bind_queue("read-me", "ojs.exchange.direct", "email"),
        ):
            with pytest.raises(AccessRefused) as error:
                await refused
            assert error.value.code == 403
        assert await channel.get("read-me") is None
    async with Jobs(reader_uri, topology=Topology(declaration=Declaration.NEVER)) as jobs:
        with pytest.raises(AccessRefused, match=r"ojs\.exchange\.direct"):
            await jobs.push("email.send")


@requirement("OJS-102")
def test_threads_share_a_connection_but_no_channel_state(broker_uri: str, name: str) -> None:
    """Each thread with a channel of its own, and all of them on one: calls are put in order on the client's thread."""
    with blocking.connect(broker_uri) as connection:
        shared = connection.channel()
        shared.declare_queue(name, durable=True)

        def work(number: int) -> int:
            own = connection.channel()
            for index in range(50):
                body = f"{number}-{index}".encode()
                own.publish(b"own " + body, routing_key=name, mandatory=True)
                shared.publish(b"shared " + body, routing_key=name, mandatory=True)
            return index + 1

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(work, range(8))) == 400
        bodies = [delivery.body for delivery in shared.consume(name, no_ack=True, inactivity_timeout=0.5)]
        assert len(set(bodies)) == len(bodies) == 800
        for number in range(8):
            mine = [body for body in bodies if body.startswith(f"own {number}-".encode())]
            assert mine == [f"own {number}-{index}".encode() for index in range(50)]
        shared.delete_queue(name)
