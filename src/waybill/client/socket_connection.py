"""The connection over one socket: a pump, its engine, and futures for its start and end."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import urandom
from typing import Final

from waybill.client.errors import AuthenticationFailed, ConnectFailed, ProtocolError, error_of
from waybill.client.uri import BrokerAddress
from waybill.engine.amqp091.client.connection import ClientEngine
from waybill.engine.amqp091.client.events import CloseReason, ConnectionEvents, Initiator
from waybill.transport.clock import Clock
from waybill.transport.pump import Pump
from waybill.wire.amqp091.reply_codes import ACCESS_REFUSED

CLOSE_TIMEOUT_S: Final = 5.0
NONCE_BYTES: Final = 18

log: Final = logging.getLogger("waybill.client.connection")


class SocketConnection(ConnectionEvents):
    """Made by `dial`, after the handshake. Each reconnect makes another one."""

    pump: Pump[ClientEngine]

    def __init__(
        self, address: BrokerAddress, on_end: Callable[[], None], after_reading: Sequence[Callable[[], None]]
    ) -> None:
        self.address = address
        self._on_end = on_end
        self._after_reading = after_reading
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[CloseReason] = self._loop.create_future()
        """Completes as soon as the connection has ended."""
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self.blocked_reason: str | None = None
        self.on_blocked: Callable[[str | None], None] | None = None
        """Called with the reason when the broker blocks publishes, with None when it unblocks them."""
        self._writing_paused = False
        self._flowing = asyncio.Event()

    @property
    def engine(self) -> ClientEngine:
        return self.pump.engine

    @property
    def flowing(self) -> bool:
        """Whether publishing may continue: neither the broker nor the transport holds it back."""
        return self._flowing.is_set()

    async def wait_flowing(self) -> None:
        """Wait until publishing may continue, or the connection has ended."""
        await self._flowing.wait()

    @staticmethod
    async def dial(
        address: BrokerAddress,
        clock: Clock,
        on_end: Callable[[], None],
        after_reading: Sequence[Callable[[], None]] = (),
    ) -> "SocketConnection":
        """Connect and shake hands. Raises ConnectFailed or a ProtocolError; leaves nothing behind if cancelled.

        `on_end` is called when the connection ends. `after_reading` callbacks run after input was processed, before the
        output is written; more can be added at any time.
        """
        made = SocketConnection(address, on_end, after_reading)
        settings = replace(address.settings, nonce=urandom(NONCE_BYTES).hex())
        made.pump = pump = Pump(
            lambda _: ClientEngine(settings, made, clock.now()), clock, made._received, made._transport_lost
        )
        context = _tls_context(address)
        try:
            async with asyncio.timeout(address.connect_timeout_s):
                await made._loop.create_connection(lambda: pump.protocol, address.host, address.port, ssl=context)
                await made._opened
        except TimeoutError:
            pump.abort()
            raise ConnectFailed(f"{address}: no answer within {address.connect_timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # The latter for an invalid host name.
            pump.abort()
            raise ConnectFailed(f"{address}: {error}") from error
        except BaseException:
            pump.abort()
            raise
        return made

    def pause_reading(self) -> None:
        """Take no input until `resume_reading`, so that TCP holds the broker back. Heartbeats are still sent."""
        self.engine.is_read = False
        self.pump.pause_reading()

    def resume_reading(self) -> None:
        self.engine.is_read = True
        self.pump.resume_reading()

    async def close(self) -> None:
        """Close in an orderly way; after `CLOSE_TIMEOUT_S`, or if cancelled, by force."""
        try:
            self.resume_reading()
            self.engine.close()
            self.pump.flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._lost)
        finally:
            self.pump.abort()

    async def wait_lost(self) -> None:
        """Wait until the transport is closed; force it after `CLOSE_TIMEOUT_S`."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._lost)
        finally:
            self.pump.abort()

    def opened(self) -> None:
        self._flowing.set()
        if not self._opened.done():
            self._opened.set_result(None)

    def closed(self, reason: CloseReason) -> None:
        if not self._opened.done():
            self._opened.set_exception(self._handshake_error(reason))
        if not self.ended.done():
            self.ended.set_result(reason)
        self._flowing.set()
        self._on_end()

    def blocked(self, reason: str) -> None:
        self.blocked_reason = reason
        log.warning("%s takes no messages: %s; publishers wait", self.address, reason)
        self._update_flow()
        if self.on_blocked is not None:
            self.on_blocked(reason)

    def unblocked(self) -> None:
        self.blocked_reason = None
        log.info("%s takes messages again", self.address)
        self._update_flow()
        if self.on_blocked is not None:
            self.on_blocked(None)

    def writing_paused(self) -> None:
        self._writing_paused = True
        self._update_flow()

    def writing_resumed(self) -> None:
        self._writing_paused = False
        self._update_flow()

    def output_ready(self) -> None:
        self._loop.call_soon(self.pump.flush)

    def output_full(self) -> None:
        self.pump.flush()

    def _received(self) -> None:
        for call in self._after_reading:
            try:
                call()
            except Exception:
                # It would end the connection, which others use.
                log.exception("a callback after reading from a connection failed")
        self.pump.flush()

    def _transport_lost(self, _pump: Pump[ClientEngine], _error: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _update_flow(self) -> None:
        if self.ended.done() or (self.blocked_reason is None and not self._writing_paused):
            self._flowing.set()
        else:
            self._flowing.clear()

    def _handshake_error(self, reason: CloseReason) -> Exception:
        """RabbitMQ answers a bad login with 403, or (to clients without that capability) by closing the socket."""
        if reason.code == ACCESS_REFUSED:
            return AuthenticationFailed(f"{self.address}: {reason.text}")
        error = error_of(reason)
        if reason.initiator is Initiator.SERVER and isinstance(error, ProtocolError):
            error.args = (f"{self.address}: {error}",)
            return error
        return ConnectFailed(f"{self.address}: {reason.text} during the handshake")


def _tls_context(address: BrokerAddress) -> ssl.SSLContext | None:
    try:
        return address.tls_context()
    except (OSError, ValueError) as error:
        files = ", ".join(str(one) for one in (address.authority, address.certificate, address.key) if one is not None)
        raise ConnectFailed(f"{address}: cannot use the TLS files {files}: {error}") from error
