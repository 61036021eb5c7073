"""A broker that is silent, odd or broken: every call ends in an error of its scope, and nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.client.breaking import until
from tests.client.scripted_server import Dialogue, Script, scripted_server
from waybill.client import (
    ChannelClosed,
    ClientError,
    ConnectFailed,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    ConnectionPool,
    NotFound,
    PublishTimeout,
    ReconnectPolicy,
    RequestTimeout,
    blocking,
    connect,
    socket_connection,
)
from waybill.client import (
    channel as channel_module,
)
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicReturn,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelFlow, ChannelFlowOk, ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.methods_connection import ConnectionBlocked, ConnectionClose, ConnectionStart, ConnectionTune
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties

NEVER = ReconnectPolicy(max_attempts=0)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task outlives a test, and the loop is told of no exception that nobody saw."""
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    before: set[asyncio.Task[object] | None] = {*asyncio.all_tasks()}
    yield
    before.add(asyncio.current_task())  # Setup and teardown are tasks of their own.
    for _ in range(50):
        if not asyncio.all_tasks() - before:
            break
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == set()
    assert told == []


@pytest.fixture(autouse=True)
def brief_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket_connection, "CLOSE_TIMEOUT_S", 0.05)


def saying(octets: bytes, *, then_wait: bool = False) -> Script:
    async def script(dialogue: Dialogue) -> None:
        dialogue.writer.write(octets)
        await dialogue.writer.drain()
        if then_wait:
            await dialogue.serve()

    return script


async def honest(dialogue: Dialogue) -> None:
    await (await dialogue.handshake()).serve()


def silent_about(*kinds: type[Method]) -> Script:
    async def script(dialogue: Dialogue) -> None:
        dialogue.silent_about = set(kinds)
        await (await dialogue.handshake()).serve()

    return script


def after(kind: type[Method], *answers: Method) -> Script:
    """Answer one method with these, the rest honestly."""

    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(kind)
        dialogue.send(channel, *answers)
        await dialogue.serve()

    return script


START = method_frame(0, ConnectionStart(mechanisms="PLAIN"))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (saying(b""), "lost"),
        (saying(b"\x00"), "lost"),
        (saying(START[:-1]), "lost"),
        (saying(START + method_frame(0, ConnectionTune(1, 1, 1))), "lost"),
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "HTTP/1.1"),
        (saying(b"AMQP\x00\x00\x08\x00"), "does not speak"),
        (saying(b"", then_wait=True), "no answer within 0.1 s"),
        (saying(START, then_wait=True), "no answer within 0.1 s"),
        (saying(method_frame(0, ConnectionStart(mechanisms="GSSAPI")), then_wait=True), "GSSAPI"),
        (saying(method_frame(0, ConnectionClose(320, "CONNECTION_FORCED"))), "CONNECTION_FORCED"),
        (saying(method_frame(0, ConnectionTune())), "tune"),
        (saying(method_frame(3, BasicAck(1))), "channel 3"),
    ],
)
async def test_a_handshake_that_fails(script: Script, says: str) -> None:
    async with scripted_server(script) as uri:
        with pytest.raises(ConnectFailed, match=says):
            await connect(f"{uri}?connection_timeout=100")


async def test_a_host_that_cannot_be() -> None:
    with pytest.raises(ConnectFailed):
        await connect(f"amqp://{'a' * 70}.example")


async def test_closing_while_it_is_opened() -> None:
    async with scripted_server(saying(b"", then_wait=True), honest) as uri:
        connection = connect(f"{uri}?connection_timeout=100")
        opening = asyncio.ensure_future(connection._opened())
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ClientError):
            await opening
        with pytest.raises(ConnectionClosed):
            await connection


@pytest.mark.parametrize(
    ("silent", "call"),
    [
        (ChannelOpen, lambda connection: connection.channel(confirms=False)),
        (ConfirmSelect, lambda connection: connection.channel()),
        (QueueDeclare, lambda connection: connection.ask_aside(QueueDeclare("q"))),
    ],
)
async def test_a_request_without_an_answer(
    silent: type[Method], call: Callable[[Connection], "asyncio.Future[object]"]
) -> None:
    async with scripted_server(silent_about(silent)) as uri, connect(f"{uri}?request_timeout=50") as connection:
        with pytest.raises(RequestTimeout, match=r"0\.05 s"):
            await call(connection)
        assert connection.open_channel_count == 0


async def test_a_consumer_whose_start_is_not_answered_is_gone() -> None:
    async with scripted_server(silent_about(BasicConsume)) as uri, connect(f"{uri}?request_timeout=50") as connection:
        channel = await connection.channel()
        with pytest.raises(RequestTimeout):
            await channel.consume("q", consumer_tag="c")
        with pytest.raises(RequestTimeout):
            await channel.consume("q", consumer_tag="c")


async def test_closes_without_an_answer() -> None:
    async with scripted_server(silent_about(ChannelClose, ConnectionClose)) as uri:
        connection = await connect(uri)
        channel = await connection.channel(confirms=True)
        publishing = channel.publish_nowait(b"x", routing_key="q")
        await channel.close()
        other = await connection.channel(confirms=True)
        lost = other.publish_nowait(b"x", routing_key="q")
        await connection.close()
        for future in (publishing, lost):
            with pytest.raises((ConnectionClosed, ChannelClosed, ConnectionLost)):
                await asyncio.wait_for(future, 1)


@pytest.mark.parametrize("held", [ConnectionBlocked("low on disk"), ChannelFlow(False)])
async def test_publishing_that_is_held_back_for_ever(held: Method) -> None:
    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(QueueDeclare)
        dialogue.send(channel if isinstance(held, ChannelFlow) else 0, held)
        dialogue._answer(channel, QueueDeclare("q"))
        await dialogue.serve()

    async with scripted_server(script) as uri:
        connection = await connect(f"{uri}?blocked_timeout=50")
        channel = await connection.channel()
        await channel.declare_queue("q")
        with pytest.raises(PublishTimeout):
            await channel.publish(b"x", routing_key="q")
        connection.blocked_timeout_s = None
        waiting = asyncio.ensure_future(channel.publish(b"x", routing_key="q"))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize(
    "answers",
    [
        [BasicAck(7)],
        [BasicNack(0)],
        [BasicAck(2**64 - 1, multiple=True)],
        [QueueDeclare("q")],
        [ConnectionStart(mechanisms="PLAIN")],
        [BasicDeliver("nobody", 1, False, "", ""), BasicAck(1)],
        [ConnectionClose(501, "FRAME_ERROR")],
    ],
    ids=lambda answers: answers[0].NAME,
)
async def test_nonsense_fails_what_is_in_flight_and_the_connection_comes_back(answers: list[Method]) -> None:
    quick = ReconnectPolicy(first_delay_s=0, jitter=0)
    script = after(BasicPublish, *answers)
    async with scripted_server(script, honest) as uri, connect(uri, reconnect=quick) as connection:
        channel = await connection.channel(confirms=True)
        with pytest.raises(ConnectionLost):
            await channel.publish(b"x", routing_key="q")
        await channel.declare_queue("q")
        assert connection.reconnections == 1


async def test_a_server_that_closes_each_channel_does_not_stop_the_reconnect_for_ever() -> None:
    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        while True:
            channel = await dialogue.next(ChannelOpen)
            dialogue.send(channel, ChannelClose(406, "PRECONDITION_FAILED"))

    async with scripted_server(honest_once(), script) as uri:
        connection = await connect(uri, reconnect=ReconnectPolicy(first_delay_s=0, jitter=0, max_attempts=3))
        channel = await connection.channel()
        await channel.declare_queue("q")
        waiting = asyncio.ensure_future(channel.declare_queue("other"))
        with pytest.raises(ClientError):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(ConnectionClosed, match="gave up"):
            await asyncio.wait_for(connection.wait_ready(), 5)
        await connection.close()


def honest_once() -> Script:
    """Answer one declaration, hang up at the next."""

    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(QueueDeclare)
        dialogue._answer(channel, QueueDeclare("q"))
        await dialogue.next(QueueDeclare)

    return script


async def test_a_callback_for_returned_messages_that_raises_costs_nothing_else() -> None:
    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(BasicPublish)
        dialogue.send(channel, BasicReturn(312, "NO_ROUTE", "", "q"))
        dialogue.writer.write(content_frames(channel, BasicProperties(), b"x", 4096))
        await dialogue.serve()

    async with scripted_server(script) as uri, connect(uri) as connection:
        channel = await connection.channel(confirms=False)
        returned = asyncio.Event()

        def fail(_message: object) -> None:
            returned.set()
            raise RuntimeError("mine")

        channel.on_return(fail)
        await channel.publish(b"x", routing_key="q", mandatory=True)
        await asyncio.wait_for(returned.wait(), 1)
        await channel.declare_queue("q")
        assert connection.reconnections == 0


async def test_a_name_that_cannot_be_sent_leaves_no_channel_open() -> None:
    async with scripted_server(honest) as uri, connect(uri) as connection:
        for _ in range(3):
            with pytest.raises(ValueError, match="255"):
                await connection.ask_aside(QueueDeclare("q" * 300))
        assert connection._socket is not None
        await connection.ask_aside(QueueDeclare("q"))
        assert len(connection._socket.engine._channels) == 0


async def test_a_cancelled_open_closes_the_channel() -> None:
    async with scripted_server(silent_about(ChannelOpen)) as uri, connect(uri) as connection:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.channel(confirms=False), 0.02)
        assert connection._channels == {}
        assert connection._socket is not None
        assert [one.usable for one in connection._socket.engine._channels.values()] == [False]


async def test_a_refused_request_is_told_to_its_caller_only() -> None:
    async with scripted_server(after(QueueDeclare, ChannelClose(404, "NOT_FOUND"))) as uri, connect(uri) as connection:
        channel, other = await connection.channel(), await connection.channel()
        with pytest.raises(NotFound):
            await channel.declare_queue("q", passive=True)
        assert other.is_open
        assert connection.is_open


async def test_a_server_that_pauses_channel_flow_gets_an_answer() -> None:
    answered = asyncio.Event()

    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(QueueDeclare)
        dialogue.send(channel, ChannelFlow(False), ChannelFlow(True))
        dialogue._answer(channel, QueueDeclare("q"))
        await dialogue.next(ChannelFlowOk)
        answered.set()
        await dialogue.serve()

    async with scripted_server(script) as uri, connect(uri) as connection:
        channel = await connection.channel()
        await channel.declare_queue("q")
        await asyncio.wait_for(answered.wait(), 1)


async def test_a_thread_that_waits_is_told_when_another_closes() -> None:
    async with scripted_server(silent_about(QueueDeclare, ConnectionClose)) as uri:
        connection = await asyncio.to_thread(blocking.connect, uri)
        channel = await asyncio.to_thread(connection.channel)
        waiting = asyncio.ensure_future(asyncio.to_thread(channel.declare_queue, "q"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(connection.close)
        with pytest.raises(ClientError):
            await asyncio.wait_for(waiting, 2)
        with pytest.raises(ConnectionClosed):
            await asyncio.to_thread(channel.publish, b"x", routing_key="q")
        with pytest.raises(ConnectionClosed):
            await asyncio.to_thread(connection.channel)


async def test_a_publish_that_is_never_confirmed() -> None:
    async with scripted_server(honest) as uri, connect(f"{uri}?request_timeout=30") as connection:
        channel = await connection.channel()
        with pytest.raises(RequestTimeout, match="did not confirm"):
            await asyncio.wait_for(channel.publish(b"x", routing_key="q"), 2)
        assert channel.unconfirmed_count == 1
        other = channel.publish_nowait(b"y", routing_key="q")
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(other, 2)


async def test_a_publish_waits_for_its_confirm_while_the_broker_is_blocked() -> None:
    looked = asyncio.Event()

    async def script(dialogue: Dialogue) -> None:
        await dialogue.handshake()
        channel = await dialogue.next(BasicPublish)
        dialogue.send(0, ConnectionBlocked("low on disk"))
        await looked.wait()
        dialogue.send(channel, BasicAck(1))
        await dialogue.serve()

    async with scripted_server(script) as uri, connect(f"{uri}?request_timeout=30") as connection:
        channel = await connection.channel()
        publishing = channel.publish_nowait(b"x", routing_key="q")
        blocked = asyncio.Event()
        connection.on_blocked(lambda _: blocked.set())
        await asyncio.wait_for(blocked.wait(), 2)
        assert channel._current is not None
        channel._look_at_confirms(channel._current, 2)
        assert not publishing.done()
        looked.set()
        await asyncio.wait_for(publishing, 2)


async def test_a_pool_replaces_a_connection_that_was_given_up() -> None:
    async def hang_up(dialogue: Dialogue) -> None:
        await dialogue.handshake()

    async with scripted_server(hang_up, honest) as uri, ConnectionPool(uri, 1, reconnect=NEVER) as pool:
        first = await pool.connection()
        await until(lambda: first.closed)
        second = await pool.connection()
        await (await second.channel()).declare_queue("q")
