"""One connection: reads requests, and answers them in order.

While a request is being answered, the next ones are read ahead, up to a limit, and then wait in the socket. Input is
parsed in pieces; once a turn of the loop has used up its time, the rest waits for another turn. An invalid request gets
an error after the answers before it. Further input is dropped for a while: after a reset, the error would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request, Response, read_query
from waybill.backend.peer import address_of, peer_text
from waybill.backend.server.answers import CONTINUE, chunk, encode_answer, encode_stream_head
from waybill.backend.server.connections import Connections
from waybill.backend.server.head import LARGE_BYTES, BadRequest, Head
from waybill.backend.server.limits import STREAM_BUFFER_BYTES
from waybill.backend.server.requests import (
    PIECE_BYTES,
    Phase,
    Received,
    RequestReader,
    head_end,
    is_one_request,
    request_of,
)
from waybill.backend.streams import close_stream

if TYPE_CHECKING:
    from waybill.backend.server.web_socket import WebSocket

WRITE_BUFFER_BYTES: Final = 64 * 1024
REQUESTS_IN_A_ROW: Final = 16
"""How many requests of a connection are answered in a row while other connections wait."""

_log = logging.getLogger("waybill.backend")


class Connection:
    """The server's side of one connection: an `asyncio.Protocol`, which a compiled class cannot inherit."""

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._reader = RequestReader(self._reserve)
        self._peer = ""
        self._current: Received | None = None
        """The request in progress."""
        self._refusal: BadRequest | None = None
        """The error that will be the last answer."""
        self._is_dropping = False
        """Whether the last answer is written: input is dropped."""
        self._ahead = 0
        """Input received while a request is in progress."""
        self._rest = b""
        """Input that is not parsed yet."""
        self._is_in_line = False
        self._answer: asyncio.Future[Response] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._socket: WebSocket | None = None
        """Reads what the client sends after it has changed to WebSocket."""
        self._is_paused = False
        self._has_ended = False
        """Whether the client has ended its output."""
        self._reserved = 0
        self._unsent = 0
        """The size of the unread output at the last check."""
        self._since = 0.0
        """When the current phase began, by the clock of the server's checks."""
        self.is_secure = False

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._peer = peer_text(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._since = self._server.now
        self._refusal = self._server.join(self)
        if self._server.is_crowded:
            self._transport.abort()
        elif self._refusal is not None:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Only schedule the cleanup: the loop may call this for thousands of connections in one turn."""
        self._is_dropping = True
        self._server.turns.ends.add(self._leave)

    def _leave(self) -> None:
        """Release the resources of the client, and cancel requests that only wait; changes are completed."""
        self._server.leave(self)
        self._server.release(self._reserved)
        self._reserved = 0
        self._rest = b""
        self._reader.close()
        if self._pump is not None:
            self._pump.cancel()
        current = self._current
        if self._answer is not None and current is not None and self._server.is_waiting(current.head.path):
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        """Process received data if this turn has time left."""
        if self._is_dropping or self._refusal is not None:
            return
        if self._socket is not None:
            self._socket.data_received(data)
        elif self._rest or not self._server.turns.may_begin():
            self._set_aside(data)
            self._wait_in_line()
        elif self._current is None and self._take_shortcut(data):
            return
        elif len(data) <= PIECE_BYTES or is_one_request(data):
            self._parse(data)
        else:
            self._take(data)

    def _take_shortcut(self, data: bytes) -> bool:
        """Answer one whole request with a head that was seen before, while nothing else is in progress."""
        end = head_end(data)
        raw = data[:end]
        shortcut = self._server.shortcuts.get(raw) or self._server.find_shortcut(raw)
        head = shortcut.head
        if head is None or not LARGE_BYTES > shortcut.length == len(data) - end or not self._is_fresh:
            return False
        self._current = received = Received(head, data[end:], 0)
        try:
            is_taken = shortcut.take(received.body, self)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            self.failed(error)
            return True
        if not is_taken:
            self._begin(received)
        return True

    @property
    def _is_fresh(self) -> bool:
        return not (self._is_paused or self._is_in_line) and self._reader.is_fresh

    def told(self, response: Response) -> None:
        """Answer a request that went through a shortcut."""
        current = self._current
        if current is None or self._is_gone:
            return
        self._end(current.head, response)
        if self._ahead or self._rest or self._refusal is not None or self._reader.ready:
            self._advance()

    def failed(self, error: Exception) -> None:
        """Answer such a request with an error."""
        current = self._current
        if current is None:
            return
        ended: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        ended.set_exception(error)
        self.told(self._server.application.conclude(request_of(current, self._peer), ended))

    def _take(self, data: bytes) -> None:
        """Parse input, and answer what is complete. The rest is set aside if there is no time."""
        start = 0
        while start < len(data) and not self._is_dropping and self._refusal is None:
            missing = self._reader.missing
            if start and not missing and not (self._may_answer and self._server.turns.has_time()):
                self._set_aside(data[start:])
                self._wait_in_line()
                return
            end = start + max(PIECE_BYTES, missing)
            piece = data if end >= len(data) and not start else data[start:end]
            start += len(piece)
            self._parse(piece)

    def _parse(self, data: bytes) -> None:
        reader = self._reader
        before = reader.phase
        try:
            reader.feed(data)
        except BadRequest as error:
            self._refusal = error
        if reader.phase is not before:
            self._since = self._server.now
        if self._may_answer and not self._is_in_line:
            self._advance()
        else:
            self._ahead += len(data)
            if self._ahead > self._server.limits.pipelined_bytes:
                self._transport.pause_reading()

    def _set_aside(self, data: bytes) -> None:
        """Keep input for later, and stop reading."""
        try:
            self._reserve(len(data))
        except BadRequest as error:
            self._refusal = error
            return
        self._rest += data
        self._ahead += len(data)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _release(self, size: int) -> None:
        self._reserved -= size
        self._server.release(size)

    def _wait_in_line(self) -> None:
        """Continue in another turn, unless an answer must be finished or read first."""
        if self._may_answer and not self._is_in_line:
            self._is_in_line = True
            self._server.turns.put_in_line(self)

    @property
    def address(self) -> str:
        """The client's address, without its port."""
        return address_of(self._peer)

    def proceed(self) -> None:
        """Continue with the received input."""
        self._is_in_line = False
        if not self._is_dropping:
            self._advance(is_due=True)

    def unread_bytes(self) -> int:
        """Return the size of the answers that the client has not read."""
        return self._transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Close immediately; a request in progress is completed."""
        self._transport.abort()

    @property
    def _may_answer(self) -> bool:
        return self._current is None and not self._is_paused

    def eof_received(self) -> bool:
        """Only schedule the work, as `connection_lost` does."""
        self._has_ended = True
        if self.is_secure or self._is_dropping:
            return False
        self._server.turns.ends.add(self._end_of_input)
        return True

    def _end_of_input(self) -> None:
        """Answer complete requests; refuse an incomplete one. A client that waits for jobs counts as disconnected."""
        if self._is_gone:
            return
        reader, current = self._reader, self._current
        if reader.phase is not Phase.NOTHING and self._refusal is None and not self._rest:
            self._refusal = BadRequest("invalid_request", "The request is incomplete.")
        is_over = not (reader.ready or self._rest) and self._refusal is None
        if current is not None:
            is_over = self._pump is not None or self._server.is_waiting(current.head.path)
        if is_over:
            self._transport.close()
        elif current is None:
            self._advance()

    def pause_writing(self) -> None:
        """Start no other answer while the client does not read."""
        self._is_paused = True
        self._since = self._server.now
        self._server.stops_reading(self)

    def resume_writing(self) -> None:
        """Continue, unless the connection is being lost: then `_leave` ends what waits for the client."""
        self._is_paused = False
        if self._is_gone:
            return
        self._server.reads_again(self)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._advance()

    # --- time ---

    def look(self, now: float) -> None:
        """Close the connection if something takes too long."""
        limits = self._server.limits
        unsent = self._transport.get_write_buffer_size()
        is_crowded = self._server.was_behind
        if unsent <= self._unsent - (limits.body_rate if is_crowded else 1):
            # The client reads, but slowly.
            self._since = now
        self._unsent = unsent
        waited = now - self._since
        if self._is_paused or (unsent and self._is_dropping):
            if waited > (limits.write_crowded if is_crowded else limits.write):
                self._transport.abort()
        elif self._is_dropping:
            if waited > limits.linger:
                self._transport.abort()
        elif self._current is None and self._reader.phase is Phase.NOTHING:
            if waited > limits.keep_alive:
                self._transport.close()
        elif self._current is None and (late := self._reader.overdue(waited, limits)) is not None:
            self._refuse(late)

    def shut_down(self) -> None:
        """Close after the current answer; a stream ends now."""
        if self._current is None and self._reader.phase is Phase.NOTHING:
            self._transport.close()
        elif self._pump is not None:
            self._pump.cancel()

    def abort(self) -> None:
        """Close immediately."""
        if self._answer is not None:
            self._answer.cancel()
        self._transport.abort()

    # --- answering ---

    def _reserve(self, size: int) -> None:
        if not self._server.reserve(size):
            raise BadRequest("overloaded", "The server is processing too many large requests.")
        self._reserved += size

    def _advance(self, *, is_due: bool = False) -> None:
        """Answer the next request, and further ones while there is time. `is_due`: this connection has waited."""
        reader = self._reader
        count = 0
        while self._may_answer and not self._is_dropping and not self._is_in_line:
            if (reader.ready or self._rest) and not self._may_go_on(count, is_due=is_due):
                self._wait_in_line()
            elif reader.ready:
                count += 1
                self._begin(reader.ready.popleft())
            elif self._rest and self._refusal is None:
                count += 1
                rest, self._rest = self._rest, b""
                self._release(len(rest))
                self._take(rest)
            elif self._refusal is not None:
                self._refuse(self._refusal)
            else:
                self._read_on()
                return

    def _may_go_on(self, count: int, *, is_due: bool) -> bool:
        if not count:
            return is_due or self._server.turns.may_begin()
        return self.unread_bytes() <= WRITE_BUFFER_BYTES and count < REQUESTS_IN_A_ROW and self._server.turns.has_time()

    def _read_on(self) -> None:
        if self._reader.is_asked:
            self._reader.is_asked = False
            self._transport.write(CONTINUE)
        if self._ahead:
            self._ahead = 0
            if not self._transport.is_closing() and not self._transport.is_reading():
                self._transport.resume_reading()

    def _begin(self, received: Received) -> None:
        """Pass a request to the application."""
        head = received.head
        request = request_of(received, self._peer)
        # Only the request keeps the body, which its handler may take.
        self._current = received._replace(body=b"")
        try:
            if head.query:
                request.query = read_query(head.query)
        except RequestRefused as error:
            self._end(head, self._server.application.refuse(request, error.code, error.message))
            return
        answer = self._server.application.begin(request)
        if isinstance(answer, Response):
            self._end(head, answer)
        else:
            self._server.turns.charge_task()
            self._answer = answer
            answer.add_done_callback(partial(self._answered, head, request))

    def _answered(self, head: Head, request: Request, answer: asyncio.Future[Response]) -> None:
        self._answer = None
        if answer.cancelled():
            self._transport.close()
            return
        response = self._server.application.conclude(request, answer)
        if len(response.body) > WRITE_BUFFER_BYTES:
            # Copying and sending it takes time.
            self._server.turns.answers.add(partial(self._conclude, head, response))
        else:
            self._conclude(head, response)

    def _conclude(self, head: Head, response: Response) -> None:
        """Send the answer of a task, and continue with the next request."""
        if self._is_gone:
            self._server.drop(response)
            return
        self._end(head, response)
        self._advance()

    def _end(self, head: Head, response: Response) -> None:
        """Send an answer, and continue with the next request."""
        stays = head.stays and not self._server.is_closing
        if self._has_ended and not self._reader.ready and not self._rest and self._refusal is None:
            stays = False
        if response.talk is not None:
            opened = self._server.open_socket(head, response, self._transport, self._until_writable, self._peer)
            if not isinstance(opened, Response):
                self._socket, self._pump = opened
                return
            response = opened
        if response.stream is not None:
            if not self._server.is_full_of_streams:
                self._pump = self._server.spawn_stream(self._stream(head, response, response.stream, stays=stays))
                return
            response = self._server.refuse_stream(head, response.stream, self._peer)
        self._transport.write(encode_answer(response, is_head=head.method == "HEAD", stays=stays, is_old=head.is_old))
        self._finish(stays=stays)

    def _finish(self, *, stays: bool) -> None:
        current, self._current = self._current, None
        if current is not None and current.reserved:
            self._release(current.reserved)
        if stays:
            self._since = self._server.now
        else:
            self._drop(is_crowded=bool(self._reader.ready or self._rest or self._reader.has_more or self._refusal))

    def _refuse(self, error: BadRequest) -> None:
        """Answer an invalid request, and stop reading."""
        asked = Request(error.method, "", {}, error.fields, peer=self._peer)
        response = self._server.application.refuse(asked, error.code, error.message, error.details)
        self._transport.write(encode_answer(response, is_head=error.method == "HEAD", stays=False))
        self._drop(is_crowded=True)

    def _drop(self, *, is_crowded: bool) -> None:
        """Close; if the client still sends, give it time to read the answer first."""
        self._is_dropping = True
        self._since = self._server.now
        # The client may take seconds to read the answer, and the collector longer to find this connection.
        self._reader.close()
        self._release(self._reserved)
        self._rest = b""
        if not is_crowded or self._has_ended or self.is_secure or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()

    # --- streams ---

    @property
    def _is_gone(self) -> bool:
        """Whether nothing can be sent any more. Work for this client may still be running."""
        return self._is_dropping or self._transport.is_closing()

    async def _stream(self, head: Head, response: Response, stream: AsyncIterator[bytes], *, stays: bool) -> None:
        """Send the pieces of a stream."""
        is_chunked = not head.is_old
        stays = stays and is_chunked
        try:
            if not self._is_gone:
                self._transport.set_write_buffer_limits(high=STREAM_BUFFER_BYTES)
                self._transport.write(encode_stream_head(response, is_chunked=is_chunked, stays=stays))
            if head.method != "HEAD":
                await self._send(stream, is_chunked=is_chunked)
        except asyncio.CancelledError:
            # The client has disconnected, or the server shuts down.
            if is_chunked and head.method != "HEAD" and not self._is_gone:
                self._transport.write(b"0\r\n\r\n")
            stays = False
        except Exception:  # noqa: BLE001 - the generator may raise anything
            # The missing last chunk tells the client.
            _log.exception("a stream failed")
            stays = False
        await close_stream(stream)
        self._pump = None
        if self._is_gone:
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._finish(stays=stays)
        self._advance()

    def _until_writable(self) -> asyncio.Future[None] | None:
        if not self._is_paused or self._is_gone:
            return None
        if self._writable is None or self._writable.done():
            self._writable = asyncio.get_running_loop().create_future()
        return self._writable

    async def _send(self, stream: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        async for piece in stream:
            if self._is_gone:
                return
            if piece:
                self._transport.write(chunk(piece) if is_chunked else piece)
            if (waiting := self._until_writable()) is not None:
                await waiting
        if is_chunked and not self._is_gone:
            self._transport.write(b"0\r\n\r\n")
