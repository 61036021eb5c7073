"""A connection that comes back."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Self, cast

from waybill.client.channel import Channel
from waybill.client.errors import (
    ChannelClosed,
    ChannelLimitReached,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    error_of,
)
from waybill.client.own_loop import running_loop, wrong_loop
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.requests import Send, ask
from waybill.client.session import Session
from waybill.client.topology import Topology
from waybill.client.uri import Address, parse_uri
from waybill.engine.amqp091.client.channel import ClientChannel, Reply
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.transport.clock import Clock
from waybill.wire.amqp091.methods import ChannelOpenOk, Method, QueueDeclare, QueueDeclareOk

log: Final = logging.getLogger("waybill.client")


def connect(uri: str | Address, *, name: str = "", reconnect: ReconnectPolicy | None = None) -> "Connection":
    """A connection to the broker at `uri` (see `waybill.client.uri`), to be opened by `async with` or `await`.

        async with connect("amqp://guest:guest@localhost:5672/%2Fojs", name="worker") as connection: ...

    Raises InvalidURI. Opening raises ConnectFailed, AuthenticationFailed or a ProtocolError such as NotAllowed for an
    unknown virtual host. Once it was open it reconnects by itself, as `reconnect` says.
    """
    return Connection(parse_uri(uri, name=name) if isinstance(uri, str) else uri, reconnect or ReconnectPolicy())


class Connection:
    """Made by `connect`. Belongs to one event loop.

    After a loss it connects again, declares again what was declared through its channels (exchanges, queues,
    bindings, in this order), reopens the channels with their prefetch counts and confirms, and registers the consumers.
    Then it calls what was given to `on_reconnect`.
    """

    def __init__(self, address: Address, policy: ReconnectPolicy) -> None:
        self.address = address
        self.policy = policy
        self.topology = Topology()
        self._clock = Clock()
        self._session: Session | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: dict[Channel, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._error: Exception | None = None
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[Exception], None]] = []
        self._on_blocked: list[Callable[[str | None], None]] = []
        self.reconnections = 0
        self.consumer_cancellations = 0
        """How many times it has come back."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection stands at this moment, with everything restored."""
        return self._ready.is_set() and not self._closed

    @property
    def open_channel_count(self) -> int:
        """How many of its channels stand at this moment."""
        return sum(channel.is_open for channel in list(self._channels))

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no publishes for now (connection.blocked), None if it does."""
        return None if self._session is None else self._session.blocked_reason

    @property
    def flowing(self) -> bool:
        """Whether publishing is welcome: open, not blocked, and the transport not above its high-water mark."""
        session = self._session
        return session is not None and session.flowing and self._ready.is_set()

    @property
    def server_properties(self) -> dict[str, object]:
        """What the broker tells of itself: product, version, capabilities ..."""
        return {} if self._session is None else self._session.engine.server_properties

    @property
    def heartbeat_s(self) -> int:
        """The negotiated heartbeat interval, 0 for none."""
        return 0 if self._session is None else self._session.engine.heartbeat_s

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop each time the connection has come back and all is restored."""
        self._on_reconnect.append(callback)

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` in the loop with the reason each time the connection is lost."""
        self._on_loss.append(callback)

    def on_blocked(self, callback: Callable[[str | None], None]) -> None:
        """Call `callback` in the loop with the reason each time the broker stops to take publishes.

        When it takes them again, with None. A connection that is lost while it is blocked is not blocked any more.
        """
        self._on_blocked.append(callback)

    def current_queue_name(self, queue: str) -> str:
        """The name that a server-named queue of this connection has on the present incarnation."""
        return self.topology.current_name(queue)

    async def channel(self, *, confirms: bool = False, prefetch_count: int = 0, coalesce_acks: bool = False) -> Channel:
        """A new channel.

        `confirms`: the broker confirms each publish. `coalesce_acks`: acknowledgements of one turn of the loop are
        sent as one with the `multiple` bit where that means the same, which saves the broker work.
        """
        self.check_loop()
        channel = Channel(self, confirms=confirms, prefetch_count=prefetch_count, coalesce_acks=coalesce_acks)
        self._channels[channel] = None
        try:
            await self.wait_ready()
            await channel.restore()
        except BaseException:
            self.forget_channel(channel)
            raise
        return channel

    async def close(self) -> None:
        """Close for good. What is buffered is written before; publishes in flight fail with ConnectionClosed."""
        self.check_loop()
        if self._closed:
            return
        self._give_up(ConnectionClosed("the connection is closed"))
        current = asyncio.current_task()
        tasks = {*self._tasks} if self._supervisor is None else {self._supervisor, *self._tasks}
        tasks.discard(cast("asyncio.Task[None]", current))
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._session is not None:
                await self._session.close()

    # For channels

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the one that the connection was opened in."""
        if self._loop is not None and running_loop() is not self._loop:
            raise wrong_loop("this connection")

    async def wait_ready(self) -> None:
        """Return when the connection is open and restored. Raises ConnectionClosed if it never will be."""
        self.check_loop()
        while not self._ready.is_set() or self._closed:
            if self._closed:
                raise self._final_error()
            if self._supervisor is None:
                raise ConnectionClosed("the connection is not open: use `async with` or `await`")
            await self._ready.wait()

    def require_ready(self) -> None:
        """Raise ConnectionLost or ConnectionClosed unless the connection is open and restored."""
        if self._closed:
            raise self._final_error()
        if not self._ready.is_set():
            raise ConnectionLost("the connection is away")

    async def wait_flowing(self) -> None:
        """Return when publishing is welcome. Raises ConnectionClosed if it never will be."""
        while not self.flowing:
            await self.wait_ready()
            if self._session is not None:
                await self._session.wait_flowing()

    def open_engine_channel(self, events: ChannelEvents, *, coalesce_acks: bool) -> ClientChannel:
        """A channel of the present incarnation. Raises ConnectionLost, ConnectionClosed or ChannelLimitReached."""
        if self._closed:
            raise self._final_error()
        session = self._session
        if session is None or session.ended.done():
            raise ConnectionLost("the connection is away")
        channel = session.engine.open_channel(events, coalesce_acks=coalesce_acks)
        if channel is None:
            raise ChannelLimitReached(f"all {session.engine.channel_max} channels are in use")
        return channel

    def forget_channel(self, channel: Channel) -> None:
        self._channels.pop(channel, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def restore_queue(self, name: str) -> None:
        """Declare a queue and its bindings again if this connection once did; else see that it exists.

        Works on a channel of its own, which an error takes with it. Raises ChannelClosed or ConnectionLost.
        """
        session = self._session
        if session is None:
            raise ConnectionLost("the connection is away")
        recorded = dict(self.topology.queues()).get(name)
        channel = await self._scratch_channel(session)
        if recorded is None:
            await ask(_request(channel, QueueDeclare(self.topology.current_name(name), passive=True)))
        else:
            await self._declare_queue(channel, name, recorded)
            current = self.topology.current_name(name)
            for binding in self.topology.bindings():
                if getattr(binding, "queue", None) == current:
                    await ask(_request(channel, binding))
        await ask(channel.close)

    async def ask_aside(self, *methods: Method) -> Reply:
        """Request one thing after the other on a channel of its own; the last reply.

        Nothing is recorded for reconnects, and no other channel suffers from a refusal. Raises its error: NotFound,
        PreconditionFailed, AccessRefused ..., or ConnectionLost.
        """
        await self.wait_ready()
        channel = await self._scratch_channel(cast("Session", self._session))
        reply: Reply | None = None
        for method in methods:
            reply = await ask(_request(channel, method))
        await ask(channel.close)
        return cast("Reply", reply)

    # The life of the connection

    async def _opened(self) -> Self:
        if self._supervisor is not None:
            raise RuntimeError("the connection has been opened before")
        self._loop = asyncio.get_running_loop()
        self._session = await self._dial()
        self._ready.set()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name="waybill-connection")
        return self

    async def _dial(self) -> Session:
        session = await Session.dial(self.address, self._clock, self._ready.clear)
        session.on_blocked = self._blocked_changed
        return session

    def _blocked_changed(self, reason: str | None) -> None:
        for callback in list(self._on_blocked):
            _call_back(callback, reason)

    async def _supervise(self) -> None:
        try:
            await self._keep_open()
        except asyncio.CancelledError:
            if not self._closed and self._session is not None:
                # Not `close`, so the loop itself ends: nobody could use or close the socket any more.
                self._session.pump.abort()
            raise

    async def _keep_open(self) -> None:
        while not self._closed:
            session = cast("Session", self._session)
            reason = await asyncio.shield(session.ended)
            error = error_of(reason)
            log.warning("connection to %s lost: %s", self.address, error)
            if session.blocked_reason is not None:
                self._blocked_changed(None)
            for callback in list(self._on_loss):
                _call_back(callback, error)
            await session.wait_lost()
            await self._reconnect()

    async def _reconnect(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            if self.policy.max_attempts is not None and attempt > self.policy.max_attempts:
                error = ConnectionClosed(f"gave up after {attempt - 1} attempts to reconnect to {self.address}")
                log.error("%s", error)
                self._give_up(error)
                return
            await asyncio.sleep(self.policy.delay_s(attempt))
            try:
                self._session = session = await self._dial()
            except ClientError as error:
                log.warning("attempt %d to reconnect failed: %s", attempt, error)
                continue
            try:
                await self._restore(session)
            except ClientError as error:
                log.warning("connection to %s lost while it was restored: %s", self.address, error)
                await session.close()
                continue
            break
        self.reconnections += 1
        self._ready.set()
        log.info("connection to %s is back", self.address)
        for callback in list(self._on_reconnect):
            _call_back(callback)

    async def _restore(self, session: Session) -> None:
        """Declare topology, open channels, register consumers. Raises ClientError if the connection breaks."""
        channel = await self._scratch_channel(session)
        steps: list[tuple[str, Method]] = [("", method) for method in self.topology.exchanges()]
        steps += self.topology.queues()
        for name, method in steps:
            channel = await self._redeclare(session, channel, name, method)
        for method in self.topology.bindings():
            channel = await self._redeclare(session, channel, "", method)
        await ask(channel.close)
        for user_channel in list(self._channels):
            try:
                await user_channel.restore()
            except ChannelClosed as error:
                # The channel itself goes on trying, as after any error of its own.
                log.warning("a channel could not be restored: %s", error)
        if session.ended.done():
            raise ConnectionLost("the connection ended")

    async def _redeclare(self, session: Session, channel: ClientChannel, name: str, method: Method) -> ClientChannel:
        """Declare one thing; the channel to go on with. What the broker refuses is logged and left as it is."""
        try:
            if isinstance(method, QueueDeclare):
                await self._declare_queue(channel, name, method)
            else:
                await ask(_request(channel, method))
        except ChannelClosed as error:
            log.error("could not declare again: %s: %s", method, error)  # noqa: TRY400 - the broker's text says it all
            return await self._scratch_channel(session)
        return channel

    async def _declare_queue(self, channel: ClientChannel, name: str, method: QueueDeclare) -> None:
        reply = await ask(_request(channel, method))
        if isinstance(reply, QueueDeclareOk) and not method.queue:
            self.topology.queue_renamed(name, reply.queue)

    async def _scratch_channel(self, session: Session) -> ClientChannel:
        """A channel of no events, for declarations."""
        if session.ended.done():
            raise ConnectionLost("the connection ended")
        channel = session.engine.open_channel(ChannelEvents())
        if channel is None:
            raise ChannelLimitReached(f"all {session.engine.channel_max} channels are in use")
        cast("ChannelOpenOk", await ask(channel.open))
        return channel

    def _give_up(self, error: Exception) -> None:
        self._closed = True
        self._error = error
        for channel in list(self._channels):
            channel.give_up(error)
        self._channels.clear()
        self._ready.set()  # Whoever waits is to look.

    def _final_error(self) -> Exception:
        error = self._error
        return ConnectionClosed(str(error) if error is not None else "the connection is closed")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task of the connection failed", exc_info=task.exception())


def _request(channel: ClientChannel, method: Method) -> Send:
    def send(reply: Callable[[Reply], None]) -> None:
        channel.request(method, reply)

    return send


def _call_back(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.exception("a callback of the connection failed")
