"""A connection that reconnects."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self, cast

from waybill.client.channel import Channel
from waybill.client.declarations import Declarations
from waybill.client.errors import (
    ChannelClosed,
    ChannelLimitReached,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    error_of,
)
from waybill.client.failover import round_error, round_of
from waybill.client.hosts import ChannelHost
from waybill.client.own_loop import running_loop, wrong_loop
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.reconnect_state import NEXT_STATES, ReconnectState
from waybill.client.restoration import ask_all, restore_all, restore_one
from waybill.client.service import Closing
from waybill.client.side_channel import SideChannel, open_side_channel
from waybill.client.socket_connection import SocketConnection
from waybill.client.uri import BrokerAddress, parse_uri
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.engine.amqp091.client.requests import Reply
from waybill.transport.clock import Clock
from waybill.wire.amqp091.method import Method

log: Final = logging.getLogger("waybill.client.connection")


def connect(
    uri: str | Sequence[str] | BrokerAddress, *, name: str = "", reconnect: ReconnectPolicy | None = None
) -> "Connection":
    """A connection to the broker at `uri` (see `waybill.client.uri`), to be opened by `async with` or `await`.

        async with connect("amqp://guest:guest@localhost:5672/%2Fojs", name="worker") as connection: ...

    Raises InvalidURI. Opening raises ConnectFailed, AuthenticationFailed or a ProtocolError such as NotAllowed for an
    unknown virtual host. Once open, it reconnects by itself according to `reconnect`.

    Of a cluster, `uri` names all nodes, or is a list of their URIs. They are tried in random order, each at once when
    the one before has failed; an attempt of `reconnect` is a round through all of them. After a loss the first round
    begins at once, with the node that was lost tried last.
    """
    address = uri if isinstance(uri, BrokerAddress) else parse_uri(uri, name=name)
    return Connection(address, reconnect or ReconnectPolicy())


class Connection(Closing, ChannelHost):
    """Made by `connect`. Belongs to one event loop.

    After a loss it reconnects, repeats the declarations of its channels (exchanges, queues, bindings, in this order),
    reopens the channels with their prefetch counts and confirms, and registers the consumers. Then it calls the
    callbacks of `on_reconnect`.
    """

    def __init__(self, address: BrokerAddress, policy: ReconnectPolicy) -> None:
        self.address = address
        self.policy = policy
        self.request_timeout_s = address.request_timeout_s
        self.blocked_timeout_s = address.blocked_timeout_s
        self.declarations = Declarations()
        self._clock = Clock()
        self._state = ReconnectState.NEW
        self._socket: SocketConnection | None = None
        self._opened_at = 0.0
        self._after_reading: list[Callable[[], None]] = []
        # Set while the state is OPEN or CLOSED, to wake waiters.
        self._settled = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: dict[ChannelEvents, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[Exception], None]] = []
        self._on_blocked: list[Callable[[str | None], None]] = []
        self.reconnections = 0
        """How many times it has reconnected."""
        self.consumer_cancellations = 0

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def __aenter__(self) -> Self:
        return await self._opened()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open at this moment, with everything restored."""
        return self._is(ReconnectState.OPEN)

    @property
    def closed(self) -> bool:
        """Whether it was closed for good, by us or after the last attempt to reconnect."""
        return self._is(ReconnectState.CLOSED)

    @property
    def open_channel_count(self) -> int:
        """How many of its channels are open at this moment."""
        return sum(channel.is_open for channel in list(self._channels.values()))

    @property
    def blocked(self) -> str | None:
        """Why the broker blocks publishes (connection.blocked), None if it does not."""
        return None if self._socket is None else self._socket.blocked_reason

    @property
    def flowing(self) -> bool:
        current = self._socket
        return current is not None and current.flowing and self._settled.is_set()

    @property
    def node(self) -> BrokerAddress:
        """The node that the connection is to, or was to at last: of a cluster, one of its nodes."""
        return self.address.nodes[0] if self._socket is None else self._socket.address

    @property
    def server_properties(self) -> dict[str, object]:
        """The broker's description of itself: product, version, capabilities ..."""
        return {} if self._socket is None else self._socket.engine.server_properties

    @property
    def product(self) -> str:
        """The broker's product, such as "Waybill" or "RabbitMQ"; empty if it has not named one."""
        return str(self.server_properties.get("product", ""))

    @property
    def is_waybill(self) -> bool:
        """Whether the broker is Waybill's."""
        return self.product == "Waybill"

    @property
    def heartbeat_s(self) -> int:
        """The negotiated heartbeat interval, 0 for none."""
        return 0 if self._socket is None else self._socket.engine.heartbeat_s

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop each time the connection has reconnected and everything is restored."""
        self._on_reconnect.append(callback)

    def after_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the input of a read is handled, before the output is written, to add output.

        It is called often, and must be quick.
        """
        self._after_reading.append(callback)

    def pause_reading(self) -> None:
        """Take nothing from the broker until `resume_reading` or a reconnect: no deliveries, confirms or answers.

        For a consumer whose prefetch count may be too much to hold in memory, where messages are large.
        """
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
        if self._socket is not None:
            self._socket.resume_reading()

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` in the loop with the reason each time the connection is lost."""
        self._on_loss.append(callback)

    def on_blocked(self, callback: Callable[[str | None], None]) -> None:
        """Call `callback` in the loop: with the reason when the broker blocks publishes, with None when it ends that.

        A connection that is lost is no longer blocked.
        """
        self._on_blocked.append(callback)

    def current_queue_name(self, queue: str) -> str:
        """The present name of a server-named queue of this connection: it changes with each reconnect."""
        return self.declarations.current_name(queue)

    async def channel(self, *, confirms: bool = True, prefetch_count: int = 0, coalesce_acks: bool = False) -> Channel:
        """Open a channel, which reopens by itself after errors and reconnects. Waits while the connection is lost.

        `confirms`: the broker confirms each publish; use False for publishes without an answer, and for transactions.
        `prefetch_count`: how many deliveries a consumer may hold unacknowledged, 0 to 65,535, 0 for no limit.
        `coalesce_acks`: send the acknowledgements of one iteration of the loop as one with the `multiple` bit where
        that is equivalent, which saves the broker work. Raises ChannelLimitReached, ConnectionClosed, ConnectionLost,
        RequestTimeout, or ValueError for a prefetch count out of range.
        """
        self.check_loop()
        channel = Channel(self, confirms=confirms, prefetch_count=prefetch_count, coalesce_acks=coalesce_acks)
        self._channels[channel] = channel
        try:
            await self.wait_ready()
            await channel.restore()
        except BaseException:
            channel.abandon()
            raise
        return channel

    async def close(self) -> None:
        """Write the buffered output, and close for good. Publishes in flight fail with ConnectionClosed."""
        self.check_loop()
        if self._is(ReconnectState.CLOSED):
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
            if self._socket is not None:
                await self._socket.close()

    # For channels

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the one that the connection was opened in."""
        if self._loop is not None and running_loop() is not self._loop:
            raise wrong_loop("this connection")

    async def wait_ready(self) -> None:
        self.check_loop()
        while not self._is(ReconnectState.OPEN):
            if self._is(ReconnectState.CLOSED):
                raise self._final_error()
            if self._is(ReconnectState.NEW):
                raise ConnectionClosed("the connection is not open: use `async with` or `await`")
            await self._settled.wait()

    def require_ready(self) -> None:
        if self._is(ReconnectState.CLOSED):
            raise self._final_error()
        if not self._is(ReconnectState.OPEN):
            raise ConnectionLost("the connection is lost")

    async def wait_flowing(self) -> None:
        while not self.flowing:
            await self.wait_ready()
            if self._socket is not None:
                await self._socket.wait_flowing()

    def open_engine_channel(self, events: ChannelEvents, *, coalesce_acks: bool) -> ClientChannel:
        if self._is(ReconnectState.CLOSED):
            raise self._final_error()
        current = self._present_socket()
        channel = current.engine.open_channel(events, coalesce_acks=coalesce_acks)
        if channel is None:
            raise ChannelLimitReached(f"all {current.engine.channel_max} channels are in use")
        return channel

    def forget_channel(self, channel: ChannelEvents) -> None:
        self._channels.pop(channel, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def restore_queue(self, name: str) -> None:
        await restore_one(self._present_socket(), self.declarations, name, self.request_timeout_s)

    async def ask_aside(self, *methods: Method) -> Reply:
        """Send requests one after the other on a temporary channel. Returns the last reply.

        Nothing is recorded for reconnects, and a refusal affects no other channel. Raises its error: NotFound,
        PreconditionFailed, AccessRefused ..., or ConnectionLost.
        """
        await self.wait_ready()
        return cast("Reply", await ask_all(self._present_socket(), methods, self.request_timeout_s))

    @asynccontextmanager
    async def side_channel(self, *, waits: bool = True) -> AsyncIterator[SideChannel]:
        """Open a channel that ends with the present socket, for what must not be repeated after a reconnect.

        `waits`: until it is open, and in the end until it is closed.
        """
        await self.wait_ready()
        async with open_side_channel(self._present_socket(), self.request_timeout_s, waits=waits) as channel:
            yield channel

    # States

    def _is(self, state: ReconnectState) -> bool:
        return self._state is state

    def _move(self, state: ReconnectState) -> None:
        """Enter a state. Nothing else sets it."""
        if state not in NEXT_STATES[self._state]:
            raise RuntimeError(f"a connection that is {self._state.value} cannot become {state.value}")
        self._state = state
        if state in {ReconnectState.OPEN, ReconnectState.CLOSED}:
            self._settled.set()
        else:
            self._settled.clear()

    async def _opened(self) -> Self:
        if self._is(ReconnectState.CLOSED):
            raise self._final_error()
        if not self._is(ReconnectState.NEW):
            raise RuntimeError("a connection can be opened only once")
        self._loop = asyncio.get_running_loop()
        self._move(ReconnectState.OPENING)
        try:
            self._socket = current = await self._dial_any()
        except BaseException:
            if self._is(ReconnectState.OPENING):
                self._move(ReconnectState.NEW)
            raise
        if self._is(ReconnectState.CLOSED):
            # Closed by another task meanwhile, which had no socket to close.
            await current.close()
            raise self._final_error()
        self._opened_at = self._clock.now()
        self._move(ReconnectState.OPEN)
        if current.ended.done():
            self._move(ReconnectState.AWAY)
        self._supervisor = self._loop.create_task(self._supervise(), name="waybill-connection")
        return self

    async def _dial_any(self) -> SocketConnection:
        """Connect to the first node that answers. Raises the error of the round."""
        errors: list[ClientError] = []
        for node in round_of(self.address):
            try:
                current = await self._dial(node)
            except ClientError as error:
                if self.address.others:
                    log.warning("could not connect: %s", error)
                errors.append(error)
            else:
                if self.address.others:
                    log.info("connected to %s", node)
                return current
        raise round_error(self.address, errors)

    async def _dial(self, node: BrokerAddress) -> SocketConnection:
        current = await SocketConnection.dial(node, self._clock, self._socket_ended, self._after_reading)
        current.on_blocked = self._blocked_changed
        return current

    def _socket_ended(self) -> None:
        if self._is(ReconnectState.OPEN):
            self._move(ReconnectState.AWAY)

    def _present_socket(self) -> SocketConnection:
        current = self._socket
        if current is None or current.ended.done():
            raise ConnectionLost("the connection is lost")
        return current

    def _blocked_changed(self, reason: str | None) -> None:
        for callback in list(self._on_blocked):
            _call_back(callback, reason)

    async def _supervise(self) -> None:
        try:
            await self._keep_open()
        except asyncio.CancelledError:
            if not self._is(ReconnectState.CLOSED) and self._socket is not None:
                # Not `close`, so the loop is ending: nobody could use or close the socket any more.
                self._socket.pump.abort()
            raise

    async def _keep_open(self) -> None:
        while not self._is(ReconnectState.CLOSED):
            current = cast("SocketConnection", self._socket)
            reason = await asyncio.shield(current.ended)
            error = error_of(reason)
            log.warning("connection to %s lost: %s", current.address, error)
            if current.blocked_reason is not None:
                self._blocked_changed(None)
            for callback in list(self._on_loss):
                _call_back(callback, error)
            await current.wait_lost()
            await self._reconnect(current.address)

    async def _reconnect(self, lost: BrokerAddress) -> None:
        # Another node may take over at once, unless this one did not keep the connection for long either.
        lasted_s = self._clock.now() - self._opened_at
        delays_before = 0 if self.address.others and lasted_s >= self.policy.first_delay_s else 1
        delay_s = self.policy.delay_s(1) if delays_before else 0.0
        attempt = 0
        while True:
            if attempt == self.policy.max_attempts:
                error = ConnectionClosed(f"gave up after {attempt} attempts to reconnect to {self.address}")
                log.error("%s", error)
                self._give_up(error)
                return
            await asyncio.sleep(delay_s)
            attempt += 1
            if not (errors := await self._try_each(lost)):
                break
            delay_s = self.policy.delay_s(attempt + delays_before)
            text = "" if attempt == self.policy.max_attempts else f"; the next follows in {delay_s:.1f} s"
            log.warning("attempt %d to reconnect failed: %s%s", attempt, round_error(self.address, errors), text)
        self.reconnections += 1
        self._opened_at = self._clock.now()
        self._move(ReconnectState.OPEN)
        log.info("reconnected to %s", self.node)
        for callback in list(self._on_reconnect):
            _call_back(callback)

    async def _try_each(self, lost: BrokerAddress) -> list[ClientError]:
        """Connect to the first node that answers, and restore everything there. Returns the errors if none does."""
        errors: list[ClientError] = []
        for node in round_of(self.address, lost):
            try:
                self._socket = current = await self._dial(node)
            except ClientError as error:
                errors.append(error)
                continue
            try:
                await self._restore(current)
            except ClientError as error:
                log.warning("connection to %s lost during restoration: %s", node, error)
                errors.append(error)
                await current.close()
                continue
            return []
        return errors

    async def _restore(self, current: SocketConnection) -> None:
        """Declare topology, open channels, register consumers. Raises ClientError if the connection breaks."""
        await restore_all(current, self.declarations, self.request_timeout_s)
        for channel in list(self._channels.values()):
            try:
                await channel.restore()
            except ChannelClosed as error:
                # The channel itself retries, as after any error.
                log.warning("a channel could not be restored: %s", error)
        if current.ended.done():
            raise ConnectionLost("the connection ended")

    def _give_up(self, error: Exception) -> None:
        self._error = error
        for channel in list(self._channels.values()):
            channel.give_up(error)
        self._channels.clear()
        self._move(ReconnectState.CLOSED)

    def _final_error(self) -> Exception:
        error = self._error
        return ConnectionClosed(str(error) if error is not None else "the connection is closed")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task of the connection failed", exc_info=task.exception())


def _call_back(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.exception("a callback of the connection failed")
