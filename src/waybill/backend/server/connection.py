"""One connection: reads requests one after the other, answers them in their order.

While a request is being answered, the next ones wait in the buffer, up to a limit, and then in the socket. Whatever is
wrong gets an answer: the connection is then closed for writing, and what the client still sends is dropped for a
while, as a client that finds its connection reset would not read the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from enum import Enum
from functools import partial
from typing import Final, cast

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request, Response, read_query
from waybill.backend.server.answers import CONTINUE, chunk, encode_answer, encode_stream_head
from waybill.backend.server.body import BodyTooLarge, Chunks
from waybill.backend.server.connections import Connections
from waybill.backend.server.head import MAX_HEAD_BYTES, BadRequest, Head, read_line
from waybill.backend.server.limits import body_limit
from waybill.backend.streams import close_stream

WRITE_BUFFER_BYTES: Final = 256 * 1024
LARGE_BYTES: Final = 64 * 1024
"""Bodies from this size on count for the limit of all connections together."""

_END: Final = b"\r\n\r\n"
_RETURN: Final = 0x0D
_log = logging.getLogger("waybill.backend")


class State(Enum):
    """What the connection does."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    DROP = "drop"
    """The last answer is written: what comes is dropped."""


class Connection(asyncio.Protocol):
    """The server's side of one connection."""

    __slots__ = (
        *("_answer", "_buffer", "_chunks", "_has_ended", "_head", "_is_paused", "_pump", "_reserved", "_server"),
        *("_since", "_state", "_transport", "_unsent", "_writable", "is_secure"),
    )

    def __init__(self, server: Connections) -> None:
        """Nothing is read yet."""
        self._server = server
        self._transport: asyncio.Transport
        self._state = State.HEAD
        self._buffer = bytearray()
        self._head: Head | None = None
        self._chunks: Chunks | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        self._has_ended = False
        """Whether the client sends no more."""
        self._reserved = 0
        self._unsent = 0
        """Octets that the client had not read at the last round."""
        self._since = 0.0
        """When the present state began, by the clock of the server's rounds."""
        self.is_secure = False

    # What the transport says. -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._since = self._server.now
        if not self._server.join(self):
            self._refuse(BadRequest("overloaded", "There are too many connections."))

    def connection_lost(self, exc: Exception | None) -> None:
        """End what only this client wants; what it has asked to be done is done."""
        self._server.leave(self)
        self._release()
        self._state = State.DROP
        self._buffer.clear()
        if self._pump is not None:
            self._pump.cancel()
        if self._answer is not None and self._head is not None and self._server.is_waiting(self._head.path):
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self._state is State.HEAD and not self._buffer:
            # Nearly always: one whole request.
            end = data.find(_END)
            if 0 < end <= MAX_HEAD_BYTES and data[0] != _RETURN:
                try:
                    head = self._server.heads.read(data[:end])
                except BadRequest as error:
                    self._refuse(error)
                    return
                start = end + 4
                if head.length == len(data) - start and head.length < LARGE_BYTES:
                    self._begin(head, data[start:])
                    return
        elif self._state is State.DROP:
            return
        if not self._buffer and self._state is State.HEAD:
            self._since = self._server.now
        self._buffer += data
        self._advance()

    def eof_received(self) -> bool:
        """Answer what is complete; refuse what is not. Who waits for jobs and sends no more has gone."""
        self._has_ended = True
        if self.is_secure:
            return False
        if self._state is State.ANSWER:
            is_waiting = self._head is not None and self._server.is_waiting(self._head.path)
            return not is_waiting and self._pump is None
        if self._state is State.DROP or (self._state is State.HEAD and not self._buffer.strip(b"\r\n")):
            return False
        self._refuse(BadRequest("invalid_request", "The request ends in its middle."))
        return True

    def pause_writing(self) -> None:
        """Begin no other answer while the client does not read."""
        self._is_paused = True
        self._since = self._server.now

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._advance()

    # Time. ------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End what takes too long."""
        limits = self._server.limits
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            # It reads, if slowly.
            self._since = now
        self._unsent = unsent
        waited = now - self._since
        if self._is_paused or (unsent and self._state is State.DROP):
            if waited > limits.write:
                self._transport.abort()
        elif self._state is State.DROP:
            if waited > limits.linger:
                self._transport.abort()
        elif self._state is State.HEAD:
            if not self._buffer:
                if waited > limits.keep_alive:
                    self._transport.close()
            elif waited > limits.head:
                self._refuse(BadRequest("request_timeout", "The head of the request took too long."))
        elif self._state is State.BODY:
            size = len(self._buffer) + (0 if self._chunks is None else len(self._chunks.body))
            if waited > limits.body + size / limits.body_rate:
                self._refuse(BadRequest("request_timeout", "The body of the request took too long."))

    def shut_down(self) -> None:
        """Close when the present request is answered; a stream ends now."""
        if self._state is State.HEAD and not self._buffer:
            self._transport.close()
        elif self._pump is not None:
            self._pump.cancel()

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._answer is not None:
            self._answer.cancel()
        self._transport.abort()

    # Reading. ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Read and answer requests as long as there are whole ones."""
        try:
            while not self._is_paused:
                if self._state is State.HEAD and not self._read_head():
                    break
                head = self._head
                if self._state is not State.BODY or head is None:
                    break
                body = self._read_body(head)
                if body is None:
                    break
                self._begin(head, body)
        except BadRequest as error:
            if not error.method and self._head is not None:
                error.method, error.fields = self._head.method, self._head.headers
            self._refuse(error)
        except BodyTooLarge:
            method, fields = ("", {}) if self._head is None else (self._head.method, self._head.headers)
            self._refuse(BadRequest("payload_too_large", "The body is too large.", method, fields))
        self._hold_back()

    def _hold_back(self) -> None:
        """Leave in the socket what there is no room for."""
        if self._transport.is_closing() or self._state is State.DROP:
            return
        is_full = (self._state is State.ANSWER or self._is_paused) and (
            len(self._buffer) > self._server.limits.pipelined_bytes
        )
        if is_full and self._transport.is_reading():
            self._transport.pause_reading()
        elif not is_full and not self._transport.is_reading():
            self._transport.resume_reading()

    def _read_head(self) -> bool:
        """Read a head; False if it is not there yet. Raises BadRequest."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            # After a body, some clients send an empty line.
            del buffer[:2]
        end = buffer.find(_END, 0, MAX_HEAD_BYTES + 4)
        if end < 0:
            self._check_start()
            return False
        self._head = head = self._server.heads.read(bytes(buffer[:end]))
        del buffer[: end + 4]
        limit = body_limit(head.path)
        if head.length > limit:
            raise BodyTooLarge
        if head.length < 0 or head.length >= LARGE_BYTES:
            self._reserve(limit if head.length < 0 else head.length)
        self._chunks = Chunks(limit) if head.length < 0 else None
        if head.is_asked and not buffer:
            self._transport.write(CONTINUE)
        self._state = State.BODY
        self._since = self._server.now
        return True

    def _check_start(self) -> None:
        """Refuse the beginning of what will never be a head."""
        buffer = self._buffer
        end = buffer.find(b"\n")
        if end >= 0:
            if end == 0 or buffer[end - 1] != _RETURN:
                raise BadRequest("invalid_request", "A line of the head does not end with CR LF.")
            read_line(bytes(buffer[: end - 1]))
        if len(buffer) > MAX_HEAD_BYTES:
            if end < 0:
                raise BadRequest("uri_too_long", "The request line is too long.")
            raise BadRequest("headers_too_large", f"The head is longer than {MAX_HEAD_BYTES} bytes.")

    def _read_body(self, head: Head) -> bytes | None:
        """Return the body once it is there. Raises BadRequest, BodyTooLarge."""
        buffer = self._buffer
        if self._chunks is not None:
            return bytes(self._chunks.body) if self._chunks.take(buffer) else None
        if len(buffer) < head.length:
            return None
        body = bytes(buffer[: head.length])
        del buffer[: head.length]
        return body

    def _reserve(self, size: int) -> None:
        if not self._server.reserve(size):
            raise BadRequest("overloaded", "Too many large requests are under way.")
        self._reserved = size

    def _release(self) -> None:
        if self._reserved:
            self._server.release(self._reserved)
            self._reserved = 0

    # Answering. -------------------------------------------------------------------------------------------------

    def _begin(self, head: Head, body: bytes) -> None:
        """Have a request answered."""
        self._head, self._chunks, self._state = head, None, State.ANSWER
        request = Request(head.method, head.path, {}, head.headers, body)
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
            self._answer = answer
            answer.add_done_callback(partial(self._answered, head, request))

    def _answered(self, head: Head, request: Request, answer: asyncio.Future[Response]) -> None:
        self._answer = None
        if answer.cancelled():
            self._transport.close()
            return
        response = self._server.application.conclude(request, answer)
        if self._state is not State.ANSWER or self._transport.is_closing():
            if response.stream is not None:
                self._server.spawn(close_stream(response.stream))
            if response.unheard is not None:
                response.unheard()
            return
        self._end(head, response)
        if self._buffer:
            self._advance()
        elif not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def _end(self, head: Head, response: Response) -> None:
        """Send an answer, and be ready for the next request."""
        stays = head.stays and not self._has_ended and not self._server.is_closing
        if response.stream is not None:
            self._pump = self._server.spawn(self._stream(head, response, response.stream, stays=stays))
            return
        is_head = head.method == "HEAD"
        self._transport.write(encode_answer(response, is_head=is_head, stays=stays, is_old=head.is_old))
        self._finish(stays=stays)

    def _finish(self, *, stays: bool) -> None:
        if self._reserved:
            self._release()
        self._head = None
        if stays:
            self._state = State.HEAD
            self._since = self._server.now
        elif self._buffer and not self._has_ended:
            self._drop()
        else:
            self._state = State.DROP
            self._since = self._server.now
            self._transport.close()

    def _refuse(self, error: BadRequest) -> None:
        """Answer what cannot be read, and read no more."""
        request = Request(error.method, "", {}, error.fields)
        response = self._server.application.refuse(request, error.code, error.message)
        self._transport.write(encode_answer(response, is_head=error.method == "HEAD", stays=False))
        self._release()
        self._drop()

    def _drop(self) -> None:
        self._state = State.DROP
        self._since = self._server.now
        self._buffer.clear()
        if self._has_ended or self.is_secure or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()

    # Streams. ---------------------------------------------------------------------------------------------------

    async def _stream(self, head: Head, response: Response, stream: AsyncIterator[bytes], *, stays: bool) -> None:
        """Send the pieces of a stream as they come."""
        is_chunked = not head.is_old
        stays = stays and is_chunked
        try:
            self._transport.write(encode_stream_head(response, is_chunked=is_chunked, stays=stays))
            if head.method != "HEAD":
                await self._send(stream, is_chunked=is_chunked)
        except asyncio.CancelledError:
            # The client has gone, or the server ends.
            if is_chunked and head.method != "HEAD" and not self._transport.is_closing():
                self._transport.write(b"0\r\n\r\n")
            stays = False
        except Exception:  # noqa: BLE001 - whatever the application's generator raises
            # The end of the chunks is missing: that is how the client knows.
            _log.exception("a stream has failed")
            stays = False
        await close_stream(stream)
        self._pump = None
        if self._transport.is_closing():
            return
        self._finish(stays=stays)
        self._advance()

    async def _send(self, stream: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        async for piece in stream:
            if piece:
                self._transport.write(chunk(piece) if is_chunked else piece)
            if self._is_paused:
                self._writable = asyncio.get_running_loop().create_future()
                await self._writable
        if is_chunked:
            self._transport.write(b"0\r\n\r\n")
